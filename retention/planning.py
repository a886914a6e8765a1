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
    Read,
    Sent,
    State,
    Step,
    common_length,
    message_of,
    plan_steps,
    shared_length,
)
from retention.digest import Digest, Domain, digest
from retention.errors import InvalidPayload
from retention.fragments import (
    NOT_REPLAYED,
    REPAIRED,
    Fragment,
    Ids,
    Loop,
    Rules,
    find_fragments,
    missing_rounds,
    repair_loop,
    split_loop,
)
from retention.ledger import Log, match_rows
from retention.marking import given_marks, plan_marks, wants_marks
from retention.model import (
    START,
    Conversation,
    Delivery,
    Face,
    Identity,
    Message,
    Origin,
    Reason,
    Reminder,
    Role,
    Row,
    RowId,
    Section,
    Struct,
)
from retention.providers import Head, Provider, Response, no_change
from retention.providers.rules import MAX_MARKS
from retention.sections import (
    Due,
    plan_reminders,
    plan_sections,
    render,
    standing,
)

# Steps of `Refusal`: what a request leaves out from each on (adapter.md Z6).
NO_REASONING, NO_FRAGMENTS, NO_EDITS = 1, 2, 3


class View(Struct, frozen=True):
    """What a plan may look at.  `base` is the state that the delta refers to, `last` the array that
    this conversation sent last, `reusable` whether the client still holds that one.  `response` is
    what the provider sent to the last dispatch of the request.
    """

    conversation: Conversation
    log: Log
    provider: Provider
    read: Read
    base: State | None = None
    last: Sent | None = None
    reusable: bool = False
    step: int = 0
    response: Response | None = None


class Request(Struct, frozen=True):
    """A prepare with its texts read: `tail` are the elements behind the first `keep` of the base,
    `span`, `prompt`, `hooked`, `context` and `marks` as in `protocol.Prepare`.  `who` digests the
    identity, `seed` what reasoning may be bound to beside the array, None if it is not.
    """

    tail: list[Message]
    identity: Identity
    who: Digest
    keep: int = 0
    span: tuple[Message, ...] = ()
    prompt: tuple[Message, ...] = ()
    sections: tuple[Section, ...] = ()
    reminders: tuple[Reminder, ...] = ()
    frozen: bool = False
    shape: str = ""
    hooked: bool = False
    context: bool = True
    marks: bool = True
    head: Head | None = None
    seed: Digest | None = None


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
    cut = _cut(base, request, mode, view.last) if base and not fresh else 0
    if base and cut and _came_between(base, cut, view.log):
        cut = 0
    rest = [item.message for item in base.items[cut : request.keep]] if base else []
    settled = view.log.position(base.items[cut - 1].row) if base and cut else -1
    sent_rows = _sent_rows(view.last, base.sent_at[cut] if base and cut else 0, view.log)
    match = _match(rest + request.tail, view.log, settled, request, sent_rows)
    items = base.items[:cut] + match.items if base else match.items
    spans = {row: (cut + first, cut + last) for row, (first, last) in match.spans.items()}
    owners = {cut + n: ids for n, ids in enumerate(match.owners)}
    rules = Rules(digest=request.who, identity=request.identity, read=view.read, check=fresh)
    fragments, obstacles = find_fragments(spans, owners, view.log, rules)
    if view.step >= NO_FRAGMENTS:
        obstacles |= {fragment.round: "held back" for fragment in fragments.values()}
        fragments = {}
    items = _cover(items, fragments)
    candidates = [*view.log.in_front_of(spans), *view.log.after(settled)]
    places = _places(items, cut, spans, candidates, view.log) if view.step < NO_EDITS else {}
    places = _move_out(places, fragments)
    build = _builder(request, view)
    if base and cut:
        build.resume(base, cut)
    passing = _Passing(request, view, build, match.drafts, owners)
    sent_at = base.sent_at[:cut] if base else []
    at = cut
    while at < len(items):
        sent_at.append(len(build.items))
        for row in places.get(at, ()):
            if row.delivery is not None:
                build.restore(row.id, row.delivery, items[at].message)
        fragment = fragments.get(at)
        if fragment is not None:
            _replay(build, fragment, view)
            sent_at += [len(build.items)] * (fragment.last - at)
            at = fragment.last + 1
        else:
            passing.add(items, at)
            at += 1
    sent_at.append(len(build.items))
    for row in places.get(at, ()):
        if row.delivery is not None:
            build.restore(row.id, row.delivery, None)
    lost = missing_rounds(
        view.last.items[build.intact :] if view.last else (),
        (fragment.round for fragment in fragments.values()), obstacles, view.log,
    )  # fmt: skip
    details = list((obstacles | lost).values())
    build.reasons += [Reason(code=NOT_REPLAYED, detail=why) for why in details]
    turn = view.conversation.turns + 1
    new = _deliver(build, request, view, turn)
    start = build.intact
    rows, _ = _order(
        build.items[start:], passing.drafts, new.row, last_row(build.items[:start], view.log),
        view.log,
    )  # fmt: skip
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
    same = start = len(build.items)
    origin = Origin(
        identity=request.who,
        prefix=build.prefix if base and same == len(base.sent.items) else None,
        thought=build.thought if request.seed else START,
    )
    loose = [item.message for item in base.items[start : request.keep]] if base else []
    given = _recognize(loose + request.tail, base.items[request.keep :] if base else [])
    taken, drafts, reasons = _speak(given, request, view, draft_actual(round, origin))
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


def _builder(request: Request, view: View) -> Builder:
    return Builder(view.provider, request.identity, request.shape, view.read, request.seed)


# Matching


def _mode(request: Request, view: View) -> str:
    # What is sent depends on this besides the log: in another mode all is placed afresh.
    seed = request.seed.hex() if request.seed else ""
    context = "context" if request.context else ""
    return "\0".join((request.who.hex(), request.shape, str(view.step), seed, context))


def _cut(base: State, request: Request, mode: str, last: Sent | None) -> int:
    """Return how many elements can be taken over from BASE as placed: matching continues there.

    Only what the array sent LAST has too, as matching whole arrays prefers its rows.
    """
    if base.mode != mode or last is None:
        return 0
    shared = shared_length(base.sent.items, last.items)
    cut = min(request.keep, base.settled, bisect_right(base.sent_at, shared) - 1)
    while cut and not _can_cut(base, cut):
        cut -= 1
    return cut


def _can_cut(base: State, cut: int) -> bool:
    """Whether what BASE sent can be taken over up to and with its element CUT - 1.

    Not right behind results, where deliveries stand whose boundary is in front of them; not inside
    a stretch that was sent as another one, nor behind one that hosts a delivery.
    """
    before = base.items[cut - 1]
    if before.message.results:
        return False
    if before.block and cut < len(base.items) and base.items[cut].block == before.block:
        return False
    at = base.sent_at[cut]
    return not (before.block and at and base.sent.items[at - 1].deliveries)


def _came_between(base: State, cut: int, log: Log) -> bool:
    """Whether another commit put a delivery among the first CUT elements since BASE was planned."""
    last = log.position(base.items[cut - 1].row)
    late = log.deliveries[bisect_left(log.deliveries, base.sent.since) :]
    own = {id for _, id in base.sent.placed[-len(late) :]} if late else set()
    return any(id not in own and log.boundary(id) < last for id in late)


def _units(message: Message) -> tuple[Digest, ...]:
    return tuple([part.digest for part in message.parts])


def _sent_rows(last: Sent | None, start: int, log: Log) -> list[RowId]:
    """Return the rows by which a payload built from the buffer shows what was sent LAST."""
    rows: list[RowId] = []
    seen: set[int] = set()
    for item in last.items[start:] if last else []:
        row = log.rows.get(item.row)
        if row is None:
            continue
        if row.face is not Face.ACTUAL:
            rows += (row.id, *item.joined)
        elif row.round not in seen:
            seen.add(row.round)
            rows += log.rounds.get(row.round, ())
    return rows


class _Match(Struct, frozen=True):
    """The elements of a payload with the rows they stand for: an item and the rows of each, a draft
    for each new one, and the first and the last element that each matched row was found in.
    """

    items: list[Item]
    owners: list[list[RowId]]
    drafts: dict[RowId, Row]
    spans: dict[RowId, tuple[int, int]]


def _match(
    messages: Sequence[Message], log: Log, settled: int, request: Request, sent: Sequence[RowId]
) -> _Match:
    rows = [row for row in log.after(settled) if row.delivery is None and row.face != Face.ACTUAL]
    owners = match_rows([_units(message) for message in messages], rows, sent)
    newest = max((n for n, m in enumerate(messages) if m.role is Role.USER), default=-1)
    match = _Match(items=[], owners=owners, drafts={}, spans={})
    for n, (message, ids) in enumerate(zip(messages, owners, strict=True)):
        for row in ids:
            match.spans[row] = (match.spans[row][0] if row in match.spans else n, n)
        if ids:
            item = Item(message=message, row=ids[-1], face=log.rows[ids[-1]].face)
        else:
            draft = draft_row(len(match.drafts) + 1, message, Face.BOTH)
            if n == newest and request.prompt:
                draft = _with_prompt(draft, message, request.prompt[-1])
            match.drafts[draft.id] = draft
            item = Item(message=message, row=draft.id)
        match.items.append(item)
    return match


def _with_prompt(draft: Row, message: Message, prompt: Message) -> Row:
    """Return DRAFT of the newest prompt, MESSAGE, with its form in the buffer, PROMPT (Q6)."""
    alias = _units(prompt)
    context = _inserted(prompt.raw, message.raw)
    return msgspec.structs.replace(
        draft,
        alias=alias if alias != draft.parts else (),
        context=digest("part", context) if context else None,
    )


def _inserted(plain: bytes, full: bytes) -> bytes:
    """Return what FULL has in one place more than PLAIN, b"" if that is not all."""
    more = len(full) - len(plain)
    at = next((n for n, (a, b) in enumerate(zip(plain, full, strict=False)) if a != b), len(plain))
    return full[at : at + more] if more > 0 and full[at + more :] == plain[at:] else b""


def draft_row(n: int, message: Message, face: Face, round: int = 0) -> Row:
    """Return the Nth draft: MESSAGE as a row whose id and predecessor are still to come."""
    return Row(
        id=-n,
        pred=START,
        face=face,
        role=message.role,
        exact=message.exact,
        size=message.size,
        parts=_units(message),
        round=round,
        ids=message.named,
        reasoned=message.reasoned,
    )


def draft_actual(round: int, origin: Origin) -> Callable[[int, Message], Row]:
    """Return a maker of drafts of what was sent or received in ROUND, which have ORIGIN."""

    def draft(n: int, message: Message) -> Row:
        row = draft_row(n, message, Face.ACTUAL, round)
        return msgspec.structs.replace(row, origin=origin)

    return draft


def _recognize(tail: Sequence[Message], rest: Sequence[Item]) -> list[Item]:
    """Return the elements TAIL of a loop's payload, those that were sent before with their rows.

    Something may have changed one element in the middle of what we sent: the elements of REST
    behind it are ours all the same when they come in our order, byte for byte (B4).
    """
    items: list[Item] = []
    at = 0
    for message in tail:
        hit = next((n for n in range(at, len(rest)) if rest[n].message.exact == message.exact), -1)
        if hit >= 0 and rest[hit].last > START:
            items.append(rest[hit])
            at = hit + 1
        else:
            items.append(Item(message=message, face=Face.ACTUAL))
    return items


def _speak(
    given: list[Item], request: Request, view: View, draft: Callable[[int, Message], Row]
) -> tuple[list[Item], dict[RowId, Row], list[Reason]]:
    """Return the elements to send for GIVEN, those of the client, with a draft for each new one.

    The provider's own message stands for gptel's (R1).  Elements that stay are put into GIVEN too,
    so that they are the same in both.
    """
    known = max((n + 1 for n, item in enumerate(given) if item.ids), default=0)
    loop = split_loop([item.message for item in given[known:]])
    reasons: list[Reason] = []
    spoken = loop
    if loop.results and view.step < NO_FRAGMENTS:
        spoken, reason = repair_loop(
            loop, view.response, view.provider,
            hooked=request.hooked, bare=view.step >= NO_REASONING,
        )  # fmt: skip
        if reason is None and _exacts(spoken) != _exacts(loop):
            reason = Reason(code=REPAIRED, detail="in the loop")
        reasons = [reason] if reason else []
    drafts: dict[RowId, Row] = {}
    free = {item.message.exact: n for n, item in reversed([*enumerate(given)]) if not item.ids}
    messages = [item.message for item in given[:known]] + spoken.all
    items: list[Item] = []
    for n, message in enumerate(messages):
        if n < known and given[n].ids:
            items.append(given[n])
            continue
        # What somebody else changed further up is no part of this round.
        make = draft if n >= known else partial(draft_row, face=Face.ACTUAL)
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


def _replay(build: Builder, fragment: Fragment, view: View) -> None:
    """Add the actual messages of FRAGMENT (F2), without reasoning that would not be valid (C4)."""
    before, thought = build.prefix, build.thought if build.seed else START
    valid = all(
        row.origin is None
        or row.origin.prefix is None
        or build.seed is None
        or (row.origin.prefix == before and thought in (START, row.origin.thought))
        for row in fragment.rows
        if row.reasoned
    )
    if not valid:
        build.reasons.append(Reason(code="reasoning_dropped", detail="the history changed"))
    build.replays.append(len(build.items))
    for row in fragment.rows:
        message = message_of(row)
        if row.reasoned and (not valid or view.step >= NO_REASONING):
            raw = view.read(row.exact)
            if raw is None:
                raise AbsentText(row.id)
            text = view.provider.strip(raw)
            if not text:
                continue
            message = view.provider.parse(text)
        build.append(Item(message=message, row=row.id, face=Face.ACTUAL))


class UnheldText(Exception):
    """An element must be changed whose text only the client has."""


class _Passing:
    """Adds elements as gptel built them, with what the API needs to take them (F7, G4)."""

    def __init__(
        self,
        request: Request,
        view: View,
        build: Builder,
        drafts: dict[RowId, Row],
        owners: Mapping[int, Sequence[RowId]],
    ) -> None:
        self.request = request
        self.view = view
        self.build = build
        self.drafts = drafts
        self.owners = owners
        self.ids = Ids(view.provider, view.log, build.items)
        self.filled = view.log.reasoned or view.provider.demands(request.identity)

    def add(self, items: list[Item], at: int) -> None:
        """Add element AT of ITEMS; one that was made one with the element before gets its block."""
        item = items[at]
        if self.view.step >= NO_EDITS:
            self.build.append(item)
            return
        message = self._repaired(self._told(item, at), self.owners.get(at, ()))
        if message is not item.message:
            message = msgspec.structs.replace(message, marks=item.message.marks)
            item = msgspec.structs.replace(item, message=message)
        if self.build.join(item):
            block = items[at - 1].block or -at
            items[at - 1 : at + 1] = [
                msgspec.structs.replace(each, block=block) for each in items[at - 1 : at + 1]
            ]
            message = self.build.items[-1].message
            self._note("joined")
        else:
            self.build.append(item)
        draft = self.drafts.get(item.row)
        if draft is not None and message is not items[at].message:
            self.drafts[draft.id] = msgspec.structs.replace(
                draft, exact=message.exact, size=message.size,
                ids=item.message.named, reasoned=message.reasoned,
            )  # fmt: skip

    def _told(self, item: Item, at: int) -> Message:
        """Return the user's message as it was sent, with what gptel put into it (Q6, case S16)."""
        message = item.message
        if message.role is not Role.USER:
            return message
        draft = self.drafts.get(item.row)
        if draft is not None:
            if draft.context is None or not self.request.context:
                return message
            if self._context() != draft.context:
                return message
            prompt = self.request.prompt[-1]  # what it adds stands further up already
            self.drafts[draft.id] = msgspec.structs.replace(
                draft, parts=_units(prompt), exact=prompt.exact, size=prompt.size, alias=(),
                context=None,
            )  # fmt: skip
            self._note("context stands further up")
            return prompt
        rows = self.owners.get(at, ())
        row = self.view.log.rows[item.row]
        moves = row.context is not None and not self.request.context
        if len(rows) != 1 or not row.alias or _units(message) != row.alias or moves:
            return message
        raw = self.view.read(row.exact)
        if raw is None:
            return message
        try:
            stored = self.view.provider.parse(raw)
        except InvalidPayload:  # of another API
            return message
        return stored if _units(stored) == row.parts else message

    def _context(self) -> Digest | None:
        log = self.view.log
        rows = (item.row for item in reversed(self.build.items) if item.row in log.contexts)
        return next((log.rows[id].context for id in rows), None)

    def _repaired(self, message: Message, rows: Sequence[RowId]) -> Message:
        provider = self.view.provider
        if message.ids and provider.id_pattern:
            ids = self.ids.assign(message, rows)
            if ids != list(message.ids):
                message = provider.parse(provider.rename(_text(message), ids))
                self._note("call ids")
        if self.filled and message.role is Role.ASSISTANT and provider.fill is not no_change:
            raw = _text(message)
            filled = provider.fill(raw)
            if filled != raw:
                message = provider.parse(filled)
                self._note("reasoning added")
        return message

    def _note(self, detail: str) -> None:
        reason = Reason(code=REPAIRED, detail=detail)
        if reason not in self.build.reasons:
            self.build.reasons.append(reason)


def _text(message: Message) -> bytes:
    if not message.raw:
        raise UnheldText
    return message.raw


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


def _move_out(
    places: Mapping[int, list[Row]], fragments: Mapping[int, Fragment]
) -> dict[int, list[Row]]:
    """Return PLACES with what would stand inside one of FRAGMENTS behind it."""
    behind = {n: f.last + 1 for f in fragments.values() for n in range(f.first + 1, f.last + 1)}
    moved: dict[int, list[Row]] = {}
    for at in sorted(places):
        moved.setdefault(behind.get(at, at), []).extend(places[at])
    return {at: sorted(rows, key=lambda row: row.id) for at, rows in moved.items()}


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
            id=NEW, pred=START, face=Face.ACTUAL, role=message.role, exact=message.exact,
            size=message.size, parts=_units(message), ids=message.named, delivery=delivery,
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
        steps=plan_steps(sent, array.items, array.sent_at, held, _writer(sent, view)),
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
    given = given_marks(build.items, held)
    if view.step >= NO_EDITS:
        return given
    budget = MAX_MARKS - (len(request.head.marks) if request.head else 0)
    if not request.marks or not wants_marks(request.identity.cache):
        return given if len(given) <= budget else given[len(given) - max(0, budget) :]

    def able(n: int) -> bool:
        message = build.items[n].message
        raw = message.raw or view.read(message.exact)
        return raw is not None and marks.put(raw, "5m") is not None

    return plan_marks(build.items, budget, able, view.last, common)


def _writer(sent: Sent, view: View) -> Callable[[int], bytes]:
    """Return a function that writes an element of SENT with its mark."""
    marked = set(sent.marks)

    def write(n: int) -> bytes:
        item = sent.items[n]
        raw = item.message.raw or view.read(item.message.exact)
        if raw is None:
            raise AbsentText(item.last)
        if n not in marked or view.provider.marks is None:
            return raw
        lifetime = next(iter(item.message.marks), "5m")
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
