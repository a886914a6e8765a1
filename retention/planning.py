"""Compose alignment, placement, sections and shapes into one plan, in one fixed order.  Pure.

A request is planned against a `View`: the log, the states that the client's deltas refer to, and a
reader of stored objects.  The answer is a frozen `Plan`: the edits that make the payload what the
model should see, and the rows to log when it was dispatched.  Nothing is written here.

Rows that do not exist yet have negative ids (drafts); `settle` gives them their real ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from retention.arrays import (
    LOWEST,
    AbsentText,
    Builder,
    Held,
    Item,
    Sent,
    State,
    Step,
    common_length,
    message_of,
    plan_steps,
    read_text,
    shared_length,
)
from retention.digest import Digest, Domain, digest
from retention.fragments import (
    LOOP_REPAIRED,
    NOT_REPLAYED,
    REPAIRED,
    Fragment,
    Loop,
    Rules,
    fill_loop,
    find_fragments,
    find_response,
    missing_rounds,
    repair_loop,
    split_loop,
)
from retention.ledger import Log
from retention.marking import asked_lifetime, given_marks, plan_marks, trim_marks
from retention.matching import (
    draft_actual,
    draft_row,
    match_payload,
    recognize,
    sent_rows,
    units_of,
)
from retention.model import (
    START,
    Delivery,
    Face,
    Message,
    Origin,
    Reason,
    Reminder,
    Role,
    Row,
    RowId,
    Struct,
)
from retention.ordinary import Ordinary, is_filled
from retention.placing import find_places, move_out
from retention.providers.rules import MAX_MARKS
from retention.request import NO_EDITS, NO_FRAGMENTS, NO_REASONING, Request, View
from retention.retiring import find_hidden
from retention.sections import (
    Due,
    plan_reminders,
    plan_sections,
    render,
    standing,
)


class Plan(Struct, frozen=True):
    """What to change and what to log.

    `items`, `sent`, `sent_at` and `mode` are those of the states that the client may refer to
    later.  `drafts` are rows in the order of their insertion; `befores` names the rows that now
    follow deliveries which stood last; `seen` are the reminders whose condition counts as seen:
    it was delivered, or does not hold.  `texts` are those of the elements that are new.
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
    texts: dict[Digest, bytes]
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
    cut = _cut(base, request, mode, view) if base and not fresh else 0
    if base and cut and _came_between(base, cut, view.log):
        cut = 0
    rest = [item.message for item in base.items[cut : request.keep]] if base else []
    settled = view.log.position(base.items[cut - 1].row) if base and cut else -1
    sent = sent_rows(view.last, base.sent_at[cut] if base and cut else 0, view.log)
    messages = rest + request.tail
    hidden = find_hidden(
        view.conversation.retired, messages, base.items[:cut] if base else (), view.log
    )
    match = match_payload(messages, view.log, settled, request.prompt, sent, hidden=hidden)
    items = base.items[:cut] + match.items if base else match.items
    spans = {row: (cut + first, cut + last) for row, (first, last) in match.spans.items()}
    owners = {cut + n: ids for n, ids in enumerate(match.owners)}
    rules = Rules(digest=request.who, identity=request.identity, read=view.read, check=fresh)
    fragments, obstacles = find_fragments(spans, owners, view.log, rules)
    if view.step >= NO_FRAGMENTS:
        obstacles |= {fragment.round: "held back" for fragment in fragments.values()}
        fragments = {}
    items = _cover(items, fragments)
    rows = (*view.log.in_front_of(spans), *view.log.after(settled))
    candidates = [row for row in rows if not row.gone and row.id not in hidden]
    places = find_places(items, cut, spans, candidates, view.log) if view.step < NO_EDITS else {}
    places = move_out(places, fragments)
    build = _builder(request, view)
    if base and cut:
        build.take(base.sent, base.sent_at[cut])  # without the deliveries behind it
    ordinary = Ordinary(request, view, build, match.drafts, owners, fragments=fragments.values())
    sent_at = base.sent_at[:cut] if base else []
    at = cut
    while at < len(items):
        sent_at.append(len(build.items))
        for row in places.get(at, ()):
            if row.delivery is not None:
                build.restore(row.id, row.delivery, items[at].message)
        fragment = fragments.get(at)
        if fragment is not None:
            _replay(build, fragment, view, filled=ordinary.filled)
            sent_at += [len(build.items)] * (fragment.last - at)
            at = fragment.last + 1
        else:
            ordinary.add(items, at)
            at += 1
    sent_at.append(len(build.items))
    for row in places.get(at, ()):
        if row.delivery is not None:
            build.restore(row.id, row.delivery, None)
    lost = missing_rounds(
        view.last.items[build.intact :] if view.last else (),
        (fragment.round for fragment in fragments.values()), obstacles, view.log,
        _front(items, view.log),
    )  # fmt: skip
    # What was replayed before comes first: it is what breaks the prefix.
    details = (lost | {n: why for n, why in obstacles.items() if n not in lost}).values()
    build.reasons += [Reason(code=NOT_REPLAYED, detail=why) for why in details]
    turn = view.conversation.turns + 1
    new = _deliver(build, request, view, turn)
    start = build.intact
    drafts, _ = _order(
        build.items[start:], ordinary.drafts, new.row, last_row(build.items[:start], view.log),
        view.log,
    )  # fmt: skip
    if len(items) > 1 and items[-2].message.role is not Role.USER:
        drafts = [_behind_variants(row, items[-1].row, view.log) for row in drafts]
    array = _Array(
        items=items,
        sent_at=sent_at,
        mode=mode,
        cut=cut,
        start=start,
        drafts=tuple(drafts),
        turn=turn,
    )
    return _finish(request, view, build, array, new)


def plan_loop(request: Request, view: View, round: int) -> Plan:
    """Plan a payload inside the tool loop: deliveries are those of the known sent prefix (B4)."""
    try:
        return _plan_loop(request, view, round)
    except AbsentText as absent:
        # A mark stays where its element cannot be written anew without it (Z3).
        plan = _plan_loop(msgspec.structs.replace(request, marks=False), view, round)
        reason = Reason(code="damaged", detail=str(absent))
        return msgspec.structs.replace(plan, reasons=(*plan.reasons, reason))


def _plan_loop(request: Request, view: View, round: int) -> Plan:
    base = view.base
    build = _builder(request, view)
    if base:
        build.take(base.sent, min(request.keep, base.settled))
    same = start = len(build.items)
    origin = _origin(request, view)
    loose = [item.message for item in base.items[start : request.keep]] if base else []
    given = recognize(loose + request.tail, base.items[request.keep :] if base else [])
    stands = base is not None and same + sum(bool(item.ids) for item in given) == len(base.items)
    taken, drafts, reasons = _speak(
        given, request, view, draft_actual(round, origin), stands=stands
    )  # fmt: skip
    build.reasons += reasons
    items = build.items + given
    for item in taken:
        build.append(item)
    plain = build.items.copy()
    turn = max(1, view.conversation.turns)
    new = _deliver(build, request, view, turn)
    end = build.placed[-1][0] if new.row else len(plain)
    start += next((n for n, item in enumerate(plain[start:]) if item.row < START), 0)
    start = min(start, end)
    tail = next((n for n in range(end, start, -1) if plain[n - 1].last > START), start)
    rows, last = _order(
        build.items[start:tail], drafts, new.row, last_row(plain[:start], view.log), view.log
    )
    for n, message in enumerate(request.span):
        row = draft_row(len(drafts) + 2 + n, message, Face.ORDINARY, round)
        rows.append(msgspec.structs.replace(row, pred=last))
        last = row.id
    rows += _order(build.items[tail:], drafts, new.row, last, view.log)[0]
    array = _Array(
        items=items, sent_at=[], mode="", cut=len(items), start=start, drafts=tuple(rows),
        turn=turn, same=same,
    )  # fmt: skip
    return _finish(request, view, build, array, new)


def _origin(request: Request, view: View) -> Origin:
    """Return where the response comes from that the loop goes on with: that to the base."""
    if request.seed is None or view.base is None:
        return Origin(identity=request.who)
    answered = _builder(request, view)
    answered.take(view.base.sent, len(view.base.sent.items))
    return Origin(identity=request.who, prefix=answered.prefix, thought=answered.thought)


def _builder(request: Request, view: View) -> Builder:
    build = Builder(view.provider, request.identity, request.shape, view.read, request.seed)
    if view.step:
        build.reasons.append(Reason(code="refused", detail=str(view.step)))
    return build


# Matching


def _front(items: Iterable[Item], log: Log) -> int:
    """Return the place in LOG of the first row among ITEMS, the end of it if there is none."""
    rows = (item.row for item in items if item.row > START)
    return next(map(log.position, rows), len(log.order))


def _mode(request: Request, view: View) -> str:
    # What is sent depends on this besides the log: in another mode all is placed afresh.
    seed = request.seed.hex() if request.seed else ""
    context = "context" if request.context else ""
    filled = "filled" if is_filled(request, view) else ""
    return "\0".join((request.who.hex(), request.shape, str(view.step), seed, context, filled))


def _cut(base: State, request: Request, mode: str, view: View) -> int:
    """Return how many elements can be taken over from BASE as placed: matching continues there.

    Only what the array sent LAST has too, as matching whole arrays prefers its rows.
    """
    log, last = view.log, view.last
    if base.mode != mode or last is None:
        return 0
    shared = shared_length(base.sent.items, last.items)
    cut = min(request.keep, base.settled, bisect_right(base.sent_at, shared) - 1)
    while cut and not _can_cut(base, cut, log):
        cut -= 1
    return cut


def _can_cut(base: State, cut: int, log: Log) -> bool:
    """Whether what BASE sent can be taken over up to and with its element CUT - 1.

    Not right behind results, where deliveries stand whose boundary is in front of them, nor behind
    calls, whose results get their ids; not inside a round, which may be replayed now, nor inside a
    stretch that was sent as another one, nor behind one that has become a part of another.
    """
    before = base.items[cut - 1]
    if before.message.results or before.message.opens:
        return False
    row = log.rows.get(before.row)
    if row and row.face is Face.ORDINARY and log.rounds[row.round][-1] != row.id:
        return False
    if before.block and cut < len(base.items) and base.items[cut].block == before.block:
        return False
    at = base.sent_at[cut]
    return not (at and len(base.sent.items[at - 1].ids) > 1)


def _came_between(base: State, cut: int, log: Log) -> bool:
    """Whether another commit put a delivery among the first CUT elements since BASE was planned."""
    last = log.position(base.items[cut - 1].row)
    late = log.deliveries[bisect_left(log.deliveries, base.sent.since) :]
    own = {id for _, id in base.sent.placed[-len(late) :]} if late else set()
    return any(id not in own and log.boundary(id) < last for id in late)


def _speak(
    given: list[Item],
    request: Request,
    view: View,
    draft: Callable[[int, Message], Row],
    *,
    stands: bool,
) -> tuple[list[Item], dict[RowId, Row], list[Reason]]:
    """Return the elements to send for GIVEN, those of the client, with a draft for each new one.

    The provider's own message stands for gptel's (R1).  Elements that stay are put into GIVEN too,
    so that they are the same in both.  STANDS: all that was sent before is among them or in front.
    """
    known = max((n + 1 for n, item in enumerate(given) if item.ids), default=0)
    first = known + find_response([item.message for item in given[known:]])
    loop = split_loop([item.message for item in given[first:]])
    reasons: list[Reason] = []
    spoken = loop
    if loop.results and view.step < NO_FRAGMENTS:
        spoken, reason = repair_loop(
            loop, view.response, view.provider,
            hooked=request.hooked, bare=view.step >= NO_REASONING,
        )  # fmt: skip
        if reason is None and _exacts(spoken) != _exacts(loop):
            reason = LOOP_REPAIRED
        reasons = [reason] if reason else []
    if spoken is loop and view.step < NO_EDITS and is_filled(request, view):
        spoken = fill_loop(loop, view.provider)
        if spoken != loop:
            reasons.append(Reason(code=REPAIRED, detail="reasoning added"))
    drafts: dict[RowId, Row] = {}
    free = {item.message.exact: n for n, item in reversed([*enumerate(given)]) if not item.ids}
    messages = [item.message for item in given[:first]] + spoken.all
    items: list[Item] = []
    for n, message in enumerate(messages):
        if n < known and given[n].ids:
            items.append(given[n])
            continue
        # What somebody else changed further up is no part of this round; what they added is.
        added = n >= known if stands else n >= first
        make = draft if added else partial(draft_row, face=Face.ACTUAL)
        row = make(len(drafts) + 1, message)
        drafts[row.id] = row
        item = Item(message=message, row=row.id, face=Face.ACTUAL)
        place = free.pop(message.exact, None)
        if place is not None:
            given[place] = item
        items.append(item)
    return items, drafts, reasons


def _exacts(loop: Loop) -> list[Digest]:
    return [message.exact for message in loop.all]


# Replay


def _cover(items: list[Item], fragments: Mapping[int, Fragment]) -> list[Item]:
    """Return ITEMS with those marked that FRAGMENTS stand for."""
    for fragment in fragments.values():
        for n in range(fragment.first, fragment.last + 1):
            items[n] = msgspec.structs.replace(items[n], block=fragment.round)
    return items


def _replay(build: Builder, fragment: Fragment, view: View, *, filled: bool) -> None:
    """Add the actual messages of FRAGMENT (F2), without reasoning that would not be valid (C4).

    FILLED: what was recorded before the model reasoned gets what the API demands since (G4).
    """
    origins = [row.origin for row in fragment.rows if row.reasoned]
    valid = True
    if build.seed is not None and origins:
        before, thought = build.prefix, build.thought
        valid = all(
            origin and origin.prefix == before and thought in (START, origin.thought)
            for origin in origins
        )
    if not valid:
        build.reasons.append(Reason(code="reasoning_dropped", detail="the history changed"))
    at = len(build.items)
    for row in fragment.rows:
        message = message_of(row)
        bare = row.reasoned and (not valid or view.step >= NO_REASONING)
        if bare or (filled and row.role is Role.ASSISTANT and not row.reasoned):
            raw = view.read(row.exact)
            if raw is None:
                raise AbsentText(row.id)
            text = view.provider.strip(raw) if bare else view.provider.fill(raw)
            if not text:
                continue
            message = view.provider.parse(text)
        item = Item(message=message, row=row.id, face=Face.ACTUAL)
        if len(build.items) == at and build.join(item):  # what stood between was removed
            at -= 1
            build.note(Reason(code=REPAIRED, detail="joined"))
        else:
            build.append(item)
    build.replays.append(at)


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
            id=NEW, pred=START, face=Face.ACTUAL, role=message.role, exact=message.exact,
            size=message.size, parts=units_of(message), ids=message.named, delivery=delivery,
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
        for id in item.joined:
            if id in drafts:
                rows.append(msgspec.structs.replace(drafts[id], pred=last))
            last = id
        for id in item.deliveries:
            if id == NEW and new is not None:
                rows.append(msgspec.structs.replace(new, pred=last))
                last = id
            elif log.follows(id, last):
                last = id
    return rows, last


def _behind_variants(row: Row, newest: RowId, log: Log) -> Row:
    """Return ROW, moved behind all variants of the answer before it if it is the NEWEST prompt.

    So each variant stands in front of what followed any of them, and the way back to it is no
    change of the order.
    """
    if row.id != newest or row.role is not Role.USER or row.pred < START:
        return row
    return msgspec.structs.replace(row, pred=log.behind_variants(row.pred))


class _Array(Struct, frozen=True):
    items: list[Item]
    sent_at: list[int]
    mode: str
    cut: int
    start: int
    drafts: tuple[Row, ...]
    turn: int
    same: int = 0


def _finish(request: Request, view: View, build: Builder, array: _Array, new: _New) -> Plan:
    last, base = view.last, view.base
    common = common_length(build.items, last.items) if last else 0
    if array.sent_at:
        reuse = common if view.reusable else 0
        held = Held(reuse=reuse, marks=last.marks if last and reuse else ())
    else:
        held = Held(same=min(array.same, build.intact), marks=base.sent.marks if base else ())
    sent = Sent(
        items=build.items, ends=build.ends, placed=build.placed,
        since=view.conversation.next_row, marks=_marks(request, view, build, held, common),
        replays=build.replays, seed=build.seed, prefixes=build.prefixes,
    )  # fmt: skip
    return Plan(
        items=array.items,
        sent=sent,
        sent_at=array.sent_at,
        mode=array.mode,
        cut=array.cut,
        start=array.start,
        steps=plan_steps(sent, array.items, array.sent_at, held, _writer(sent, view, request)),
        drafts=array.drafts,
        objects=new.objects,
        texts=build.texts,
        befores=_befores(sent, view.log, array.start),
        seen=tuple(r for r in request.reminders if r.state is None or r.key in new.reminders),
        turn=array.turn,
        due=new.due,
        reminders=new.reminders,
        common=common,
        reasons=tuple(build.reasons),
    )


def _marks(
    request: Request, view: View, build: Builder, held: Held, common: int
) -> tuple[int, ...]:
    """Return which elements carry a cache mark: planned, or the client's if not too many (C3)."""
    marks = view.provider.marks
    if marks is None:
        return ()
    budget = MAX_MARKS - (len(request.head.marks) if request.head else 0)
    if view.step >= NO_EDITS or not request.marks:
        given = given_marks(build.items, held)
        return trim_marks(build.items, given, budget) if view.step < NO_EDITS else given

    def able(n: int) -> bool:
        raw = read_text(build.items[n], view.read)
        return raw is not None and marks.put(raw, "5m") is not None

    return plan_marks(build.items, budget, able, view.last, common)


def _writer(sent: Sent, view: View, request: Request) -> Callable[[int], bytes]:
    """Return a function that writes an element of SENT with its mark."""
    marked = set(sent.marks)

    def write(n: int) -> bytes:
        item = sent.items[n]
        raw = read_text(item, view.read)
        if raw is None:
            raise AbsentText(item.last)
        if n not in marked or view.provider.marks is None:
            return raw
        lifetime = asked_lifetime(sent.items if request.marks else [item])
        return view.provider.marks.put(raw, lifetime) or raw

    return write


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
