"""Compose alignment, placement, sections and shapes into one plan, in one fixed order.  Pure.

A request is planned against a `View`: the log, the states that the client's deltas refer to, and a
reader of stored objects.  The answer is a frozen `Plan`: the edits that make the payload what the
model should see, and the rows to log when it was dispatched.  Nothing is written here.

Rows that do not exist yet have negative ids (drafts); `settle` gives them their real ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from retention.arrays import (
    LOWEST,
    AbsentText,
    Builder,
    Item,
    Read,
    Sent,
    State,
    Step,
    common_length,
    plan_steps,
    shared_length,
)
from retention.digest import Digest, Domain, digest
from retention.ledger import Log, match_rows
from retention.model import (
    START,
    Conversation,
    Delivery,
    Face,
    Identity,
    Message,
    Reason,
    Reminder,
    Role,
    Row,
    RowId,
    Section,
    Struct,
)
from retention.providers import Provider
from retention.sections import (
    Due,
    plan_reminders,
    plan_sections,
    render,
    standing,
)

NO_EDITS = 3  # the step of `Refusal` from which on a request goes out as gptel made it


class View(Struct, frozen=True):
    """What a plan may look at.  `base` is the state that the delta refers to, `last` the array that
    this conversation sent last, `reusable` whether the client still holds that one.
    """

    conversation: Conversation
    log: Log
    provider: Provider
    read: Read
    base: State | None = None
    last: Sent | None = None
    reusable: bool = False
    step: int = 0


class Request(Struct, frozen=True):
    """A prepare with its texts read: `tail` are the elements behind the first `keep` of the base,
    `span` and `prompt` as in `protocol.Prepare`.
    """

    tail: list[Message]
    identity: Identity
    keep: int = 0
    span: tuple[Message, ...] = ()
    prompt: tuple[Message, ...] = ()
    sections: tuple[Section, ...] = ()
    reminders: tuple[Reminder, ...] = ()
    frozen: bool = False
    shape: str = ""


class Plan(Struct, frozen=True):
    """What to change and what to log.

    `items`, `sent`, `sent_at` and `mode` are those of the states that the client may refer to
    later.  `drafts` are rows in the order of their insertion; `befores` names the rows that now
    follow deliveries which stood last; `seen` are the reminders whose condition counts as seen:
    it was delivered, or does not hold.
    """

    items: list[Item]
    sent: Sent
    sent_at: list[int]
    mode: str
    cut: int  # elements of `items` that were taken over from the base
    start: int  # elements of `sent` that were taken over
    steps: tuple[Step, ...]
    drafts: tuple[Row, ...]
    objects: tuple[tuple[Domain, bytes], ...]
    befores: dict[RowId, RowId]
    seen: tuple[Reminder, ...]
    turn: int
    due: tuple[Due, ...]
    reminders: tuple[str, ...]
    common: int  # elements that equal the array sent last, from its start
    reasons: tuple[Reason, ...]


def plan_buffer(request: Request, view: View) -> Plan:
    """Plan a payload that gptel built from the buffer: nothing in it is a delivery (Q2)."""
    try:
        return _plan_buffer(request, view, fresh=False)
    except AbsentText as absent:
        # A damaged object counts as absent (Z3): place everything again without what was built.
        plan = _plan_buffer(request, msgspec.structs.replace(view, reusable=False), fresh=True)
        reason = Reason(code="damaged", detail=str(absent))
        return msgspec.structs.replace(plan, reasons=(*plan.reasons, reason))


def _plan_buffer(request: Request, view: View, *, fresh: bool) -> Plan:
    mode = _mode(request, view)
    base = view.base
    cut = _cut(base, request, mode, view.last) if base and not fresh else 0
    if base and cut and _came_between(base, cut, view.log):
        cut = 0
    rest = [item.message for item in base.items[cut : request.keep]] if base else []
    settled = view.log.position(base.items[cut - 1].row) if base and cut else -1
    messages = rest + request.tail
    sent_rows = _sent_rows(view.last, base.sent_at[cut] if base and cut else 0)
    matched, drafts, found = _match(messages, view.log, settled, request.prompt, sent_rows)
    items = base.items[:cut] + matched if base else matched
    spans = {row: (cut + first, cut + last) for row, (first, last) in found.items()}
    candidates = [*view.log.in_front_of(found), *view.log.after(settled)]
    places = _places(items, cut, spans, candidates, view.log) if view.step < NO_EDITS else {}
    build = _builder(request, view)
    if base and cut:
        build.resume(base, cut)
    sent_at = base.sent_at[:cut] if base else []
    for at in range(cut, len(items) + 1):
        sent_at.append(len(build.items))
        follower = items[at].message if at < len(items) else None
        for row in places.get(at, ()):
            if row.delivery is not None:
                build.restore(row.id, row.delivery, follower)
        if at < len(items):
            build.append(items[at])
    turn = view.conversation.turns + 1
    new = _deliver(build, request, view, turn)
    start = build.intact
    rows, _ = _order(
        build.items[start:], drafts, new.row, last_row(build.items[:start], view.log), view.log
    )
    array = _Array(
        items=items, sent_at=sent_at, mode=mode, cut=cut, start=start, drafts=tuple(rows), turn=turn
    )
    return _finish(request, view, build, array, new)


def plan_loop(request: Request, view: View, round: int) -> Plan:
    """Plan a payload inside the tool loop: deliveries are those of the known sent prefix (B4)."""
    base = view.base
    build = _builder(request, view)
    if base:
        build.take(base.sent, min(request.keep, base.settled))
    start = len(build.items)
    loose = [item.message for item in base.items[start : request.keep]] if base else []
    rest = base.items[request.keep :] if base else []
    items, drafts = _recognize(loose + request.tail, rest, round)
    for item in items:
        build.append(item)
    items = build.items.copy()
    turn = max(1, view.conversation.turns)
    new = _deliver(build, request, view, turn)
    end = build.placed[-1][0] if new.row else len(items)
    start += next((n for n, item in enumerate(items[start:]) if item.row < START), 0)
    start = min(start, end)
    tail = next((n for n in range(end, start, -1) if items[n - 1].last > START), start)
    rows, last = _order(
        build.items[start:tail], drafts, new.row, last_row(items[:start], view.log), view.log
    )
    span = [
        Row(id=-len(drafts) - 2 - n, pred=START, face=Face.ORDINARY, role=message.role,
            exact=message.exact, size=message.size, parts=_units(message), round=round)
        for n, message in enumerate(request.span)
    ]  # fmt: skip
    for row in span:
        rows.append(msgspec.structs.replace(row, pred=last))
        last = row.id
    rows += _order(build.items[tail:], drafts, new.row, last, view.log)[0]
    array = _Array(
        items=items, sent_at=[], mode="", cut=start, start=start, drafts=tuple(rows), turn=turn
    )
    return _finish(request, view, build, array, new)


def _builder(request: Request, view: View) -> Builder:
    return Builder(view.provider, request.identity, request.shape, view.read)


# Matching


def _mode(request: Request, view: View) -> str:
    # What the placed deliveries depend on besides the log: another mode is placed afresh.
    identity = request.identity
    off = view.step >= NO_EDITS
    return "\0".join((view.provider.api, identity.model, request.shape, "off" if off else "on"))


def _cut(base: State, request: Request, mode: str, last: Sent | None) -> int:
    """Return how many elements can be taken over from BASE as placed: matching continues there.

    Only what the array sent LAST has too, as matching whole arrays prefers its rows, and not right
    behind results, where deliveries stand whose boundary is in front of them.
    """
    if base.mode != mode or last is None:
        return 0
    shared = shared_length(base.sent.items, last.items)
    cut = min(request.keep, base.settled, bisect_right(base.sent_at, shared) - 1)
    while cut and base.items[cut - 1].message.results:
        cut -= 1
    return cut


def _came_between(base: State, cut: int, log: Log) -> bool:
    """Whether another commit put a delivery among the first CUT elements since BASE was planned."""
    last = log.position(base.items[cut - 1].row)
    late = log.deliveries[bisect_left(log.deliveries, base.sent.since) :]
    own = {id for _, id in base.sent.placed[-len(late) :]} if late else set()
    return any(id not in own and log.boundary(id) < last for id in late)


def _units(message: Message) -> tuple[Digest, ...]:
    return tuple([part.digest for part in message.parts])


def _sent_rows(last: Sent | None, start: int) -> list[RowId]:
    items = last.items[start:] if last else []
    return [item.row for item in items if item.row != START and item.face is not Face.ACTUAL]


def _match(
    messages: Sequence[Message],
    log: Log,
    settled: int,
    prompt: tuple[Message, ...],
    sent: Sequence[RowId],
) -> tuple[list[Item], dict[RowId, Row], dict[RowId, tuple[int, int]]]:
    """Return an item per message with the row it stands for, a draft for each new one, and the
    first and the last message that each matched row was found in.
    """
    rows = [row for row in log.after(settled) if row.delivery is None and row.face != Face.ACTUAL]
    matches = match_rows([_units(message) for message in messages], rows, sent)
    newest = max((n for n, m in enumerate(messages) if m.role is Role.USER), default=-1)
    items: list[Item] = []
    drafts: dict[RowId, Row] = {}
    found: dict[RowId, tuple[int, int]] = {}
    for n, ids in enumerate(matches):
        for row in ids:
            found[row] = (found[row][0] if row in found else n, n)
    for n, (message, ids) in enumerate(zip(messages, matches, strict=True)):
        if ids:
            items.append(Item(message=message, row=ids[-1], face=log.rows[ids[-1]].face))
            continue
        alias = _units(prompt[-1]) if n == newest and prompt else ()
        draft = draft_row(len(drafts) + 1, message, Face.BOTH, alias=alias)
        drafts[draft.id] = draft
        items.append(Item(message=message, row=draft.id))
    return items, drafts, found


def draft_row(
    n: int, message: Message, face: Face, round: int = 0, alias: tuple[Digest, ...] = ()
) -> Row:
    """Return the Nth draft: MESSAGE as a row whose id and predecessor are still to come."""
    units = _units(message)
    return Row(
        id=-n,
        pred=START,
        face=face,
        role=message.role,
        exact=message.exact,
        size=message.size,
        parts=units,
        alias=alias if alias != units else (),
        round=round,
    )


def _recognize(
    tail: Sequence[Message], rest: Sequence[Item], round: int
) -> tuple[list[Item], dict[RowId, Row]]:
    # Something may have changed one element in the middle of what we sent: the elements behind it
    # are ours all the same when they come in our order, byte for byte (B4).
    items: list[Item] = []
    drafts: dict[RowId, Row] = {}
    at = 0
    for message in tail:
        hit = next((n for n in range(at, len(rest)) if rest[n].message.exact == message.exact), -1)
        if hit >= 0 and rest[hit].last > START:
            items.append(rest[hit])
            at = hit + 1
            continue
        draft = draft_row(len(drafts) + 1, message, Face.ACTUAL, round)
        drafts[draft.id] = draft
        items.append(Item(message=message, row=draft.id, face=Face.ACTUAL))
    return items, drafts


# Placement


def _places(
    items: Sequence[Item],
    cut: int,
    found: Mapping[RowId, tuple[int, int]],
    candidates: Iterable[Row],
    log: Log,
) -> dict[int, list[Row]]:
    """Return where the deliveries among CANDIDATES stand: index of the element before which,
    deliveries in the order of their commits (rules B1, B3).

    Those that stand in front of CUT are placed already.  FOUND are the rows behind it, each with
    the first and the last element that shows it.
    """
    where = dict(found)
    if cut:
        where[items[cut - 1].row] = (cut - 1, cut - 1)
    places: dict[int, list[Row]] = {}
    for row in {row.id: row for row in candidates}.values():
        if row.delivery is None:
            continue
        at = _place(row.delivery, where, items, cut, log)
        if at is None or at < cut:
            continue
        while at < len(items) and items[at].message.results:
            at += 1  # never between a call and its result (D4)
        places.setdefault(at, []).append(row)
    for rows in places.values():
        rows.sort(key=lambda row: row.id)
    return places


def _place(
    delivery: Delivery,
    where: Mapping[RowId, tuple[int, int]],
    items: Sequence[Item],
    cut: int,
    log: Log,
) -> int | None:
    after = log.ordinary(delivery.after, last=True)
    if after in where:
        return where[after][1] + 1
    before = log.ordinary(delivery.before, last=False)
    if before == START or before not in where:
        return None
    if any(items[n].row == after for n in range(cut)):
        return None  # behind an element that was taken over: there it stands already
    return where[before][0]


# The new delivery


class _New(Struct, frozen=True):
    row: Row | None = None
    due: tuple[Due, ...] = ()
    reminders: tuple[str, ...] = ()
    objects: tuple[tuple[Domain, bytes], ...] = ()


NEW: RowId = -1_000_000_000  # the draft id of the new delivery; other drafts count down from -1


def _deliver(build: Builder, request: Request, view: View, turn: int) -> _New:
    """Add what is due behind the last element: after the prompt or the complete results (D4)."""
    if view.step >= NO_EDITS:
        build.reasons.append(Reason(code="refused", detail=str(view.step)))
        return _New()
    log = view.log
    last = next((item.row for item in reversed(build.items) if item.row != START), START)
    deliveries = [log.rows[id].delivery for _, id in build.placed if id in log.rows]
    due, reasons = plan_sections(
        request.sections,
        standing(d for d in deliveries if d),
        {name: state for name, (_, state) in log.known.items()},
        view.read,
        frozen=request.frozen,
    )
    build.reasons += reasons
    reminders = plan_reminders(request.reminders, log.fired, view.conversation.conditions, turn)
    if last == START or not (due or reminders):
        return _New()
    text = render(due, reminders)
    if not build.attach(NEW, text):
        return _New()
    delivery = Delivery(
        text=digest("delivery", text.encode()),
        after=last,
        host=build.items[-1].row != START,
        sections=tuple(item.state for item in due),
        reminders=tuple(reminder.key for reminder in reminders),
        turn=turn,
    )
    message = build.items[-1].message
    return _New(
        row=Row(
            id=NEW, pred=START, face=Face.ACTUAL, role=Role.USER, exact=message.exact,
            size=message.size, delivery=delivery,
        ),
        due=tuple(due),
        reminders=delivery.reminders,
        objects=(
            ("delivery", text.encode()),
            *(("section", item.record) for item in due),
        ),
    )  # fmt: skip


# Finishing


def last_row(items: Sequence[Item], log: Log) -> RowId:
    """Return the row to insert after behind ITEMS, all of them in LOG."""
    at = len(items)
    while at and items[at - 1].row == START:
        at -= 1
    return _order(items[max(0, at - 1) :], {}, None, START, log)[1]


def _order(
    items: Iterable[Item], drafts: Mapping[RowId, Row], new: Row | None, last: RowId, log: Log
) -> tuple[list[Row], RowId]:
    """Return the drafts among ITEMS in order, each naming the row that it is inserted after, and
    the row to insert after behind them.

    That is the last ordinary row, or the delivery that follows it: one whose boundary moved may
    stand elsewhere in the log, and would put what comes next in front of what came before.
    """
    rows: list[Row] = []
    for item in items:
        if item.row in drafts:
            rows.append(msgspec.structs.replace(drafts[item.row], pred=last))
        last = item.row or last
        for id in item.deliveries:
            if id == NEW and new is not None:
                rows.append(msgspec.structs.replace(new, pred=last))
                last = id
            elif log.follows(id, last):
                last = id
    return rows, last


class _Array(Struct, frozen=True):
    items: list[Item]
    sent_at: list[int]
    mode: str
    cut: int
    start: int
    drafts: tuple[Row, ...]
    turn: int


def _finish(request: Request, view: View, build: Builder, array: _Array, new: _New) -> Plan:
    since = view.conversation.next_row
    sent = Sent(items=build.items, ends=build.ends, placed=build.placed, since=since)
    common = common_length(sent.items, view.last.items) if view.last else 0
    reuse = common if view.reusable else 0
    return Plan(
        items=array.items,
        sent=sent,
        sent_at=array.sent_at,
        mode=array.mode,
        cut=array.cut,
        start=array.start,
        steps=plan_steps(sent, array.items, array.sent_at, reuse, view.read),
        drafts=array.drafts,
        objects=new.objects,
        befores=_befores(sent, view.log, array.start),
        seen=tuple(r for r in request.reminders if r.state is None or r.key in new.reminders),
        turn=array.turn,
        due=new.due,
        reminders=new.reminders,
        common=common,
        reasons=tuple(build.reasons),
    )


def _befores(sent: Sent, log: Log, start: int) -> dict[RowId, RowId]:
    """Return the row that now follows each delivery which so far stood last."""
    befores: dict[RowId, RowId] = {}
    first = bisect_left(sent.placed, (max(0, start - 1), LOWEST))
    for place, id in sent.placed[first:]:
        row = log.rows.get(id)
        if row is None or row.delivery is None or row.delivery.before != START:
            continue
        follower = next((item.row for item in sent.items[place + 1 :] if item.row != START), START)
        if follower != START:
            befores[id] = follower
    return befores
