"""Arrays of messages: as the client built them, as they went out, and the edits between the two.

Knows how a delivery takes shape in an array (rule D4).  Pure; what is stored is read through a
function.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, chain

import msgspec

from retention.digest import Digest, digest
from retention.model import (
    START,
    Delivery,
    Face,
    Identity,
    Message,
    Part,
    PartKind,
    Reason,
    Role,
    Row,
    RowId,
    Struct,
)
from retention.providers import Provider, Shape

LOWEST: RowId = -(1 << 62)  # below every row id, for bisecting (index, row id) pairs

Read = Callable[[Digest], bytes | None]  # a stored object, or None if missing or damaged


class AbsentText(Exception):
    """The text of an element that must be inserted cannot be read; it carries the row id."""


class UnheldText(Exception):
    """An element must be changed whose text only the client has."""


class Item(Struct, frozen=True):
    """One element of an array: its message, its row, and what else is in it.

    A delivery of its own has row START and one delivery.  A host message (rule D4) has both.
    `joined` are rows of further elements that were made one with this.  Elements of an array as the
    client built it that have the same `block` other than 0 were sent as one stretch of other ones.
    """

    message: Message
    row: RowId = START
    deliveries: tuple[RowId, ...] = ()
    face: Face = Face.BOTH
    joined: tuple[RowId, ...] = ()
    block: int = 0

    @property
    def ids(self) -> tuple[RowId, ...]:
        """Its rows in log order: the message's, then the deliveries'."""
        own = () if self.row == START else (self.row,)
        return (*own, *self.joined, *self.deliveries)

    @property
    def last(self) -> RowId:
        """The row after which the next one is inserted."""
        return self.ids[-1]


def read_text(item: Item, read: Read) -> bytes | None:
    """Return the text of ITEM, None if it is damaged; raise UnheldText if only the client has it.

    The ordinary texts of the loop are never stored.
    """
    text = item.message.raw or read(item.message.exact)
    if text is None and item.face is Face.ORDINARY:
        raise UnheldText
    return text


class Sent(Struct, frozen=True):
    """An array as it goes out: `items`, the running sums of their sizes in bytes, and the
    deliveries as (index in items, row id) in payload order.  Rows from `since` on came into the
    log after it was planned.

    `replays` are the indices at which fragments begin, `marks` those of the elements that carry a
    cache mark.  Where reasoning is bound to
    what stands in front of it, `seed` digests the head and `prefixes` the elements up to and with
    each (rule C4).
    """

    items: list[Item]
    ends: list[int]
    placed: list[tuple[int, RowId]]
    since: RowId = START
    replays: list[int] = msgspec.field(default_factory=list)
    marks: tuple[int, ...] = ()
    seed: Digest | None = None
    prefixes: list[Digest] = msgspec.field(default_factory=list)

    @property
    def prefix(self) -> Digest | None:
        """What a response to this array stands behind, or None where that does not matter."""
        return self.prefixes[-1] if self.prefixes else self.seed


class State(Struct, frozen=True):
    """An array that a later delta may refer to (adapter.md Q1).

    `items` is the array itself.  For the array as gptel built it from the buffer, `sent` is what
    went out and `sent_at[i]` the length of `sent` right after element i-1; of elements with the
    same block, the first stands for the whole stretch.  `settled` elements from the start have
    rows in the log.  `mode` is what the placement of deliveries depended on.  `epoch` is when
    the conversation was made, and its own epoch then: in another one other rows count as absent
    (rule L1).
    """

    conversation: str
    items: list[Item]
    sent: Sent
    sent_at: list[int] = msgspec.field(default_factory=list)
    settled: int = 0
    mode: str = ""
    head: Digest | None = None
    epoch: tuple[float, int] = (0.0, 0)


class Step(Struct, frozen=True):
    """One edit: keep, drop or reuse `count` elements, or insert `texts` (JSON of elements)."""

    kind: str  # "keep" | "drop" | "insert" | "reuse"
    count: int = 0
    texts: tuple[bytes, ...] = ()


def make_sent(items: Sequence[Item]) -> Sent:
    """Return ITEMS, all of them logged, as an array that went out."""
    ends = list(accumulate(item.message.size for item in items))
    placed = [(at, id) for at, item in enumerate(items) for id in item.deliveries]
    return Sent(items=list(items), ends=ends, placed=placed)


def message_of(row: Row, exact: Digest | None = None) -> Message:
    """Return the message that ROW is the record of, without its text; EXACT if it had another."""
    kind = PartKind.RESULT if row.role is Role.TOOL else PartKind.CALL
    named = {part for part, _ in row.ids}
    return Message(
        role=row.role,
        exact=exact or row.exact,
        size=row.size,
        parts=tuple([
            Part(kind=kind if unit in named else PartKind.TEXT, digest=unit) for unit in row.parts
        ]),
        ids=tuple([id for _, id in row.ids]),
        reasoned=row.reasoned,
    )  # fmt: skip


def shared_length(ours: list[Item], theirs: list[Item]) -> int:
    """Return how many elements are the same from the start, their rows too.

    Elements that two arrays share compare by identity.
    """
    end = min(len(ours), len(theirs))
    at, stride = 0, 256
    while at + stride <= end and ours[at : at + stride] == theirs[at : at + stride]:
        at += stride
    while at < end and ours[at] == theirs[at]:
        at += 1
    return at


def common_length(ours: list[Item], theirs: list[Item]) -> int:
    """Return how many elements have equal texts from the start."""
    end = min(len(ours), len(theirs))
    at = shared_length(ours, theirs)
    while at < end and ours[at].message.exact == theirs[at].message.exact:
        at += 1
    return at


def link(before: Digest, message: Message) -> Digest:
    """Return the digest of what BEFORE digests and MESSAGE behind it, without reasoning."""
    if not message.parts or message.parts[0].kind is PartKind.EMPTY:
        return before
    parts = b"".join([part.digest for part in message.parts])
    return digest("prefix", before + message.role.encode() + b"\0" + parts)


class Builder:
    """The array under construction.  The one place that knows how a delivery takes shape."""

    def __init__(
        self,
        provider: Provider,
        identity: Identity,
        shape: str,
        read: Read,
        seed: Digest | None = None,
    ) -> None:
        self.provider = provider
        self.identity = identity
        self.override = shape
        self.read = read
        self.items: list[Item] = []
        self.ends: list[int] = []
        self.placed: list[tuple[int, RowId]] = []
        self.intact = 0  # elements from the start that were taken over and are as they were
        self.reasons: list[Reason] = []
        self.texts: dict[Digest, bytes] = {}  # of what was added, also where a host hides it
        self.replays: list[int] = []  # where fragments begin
        self.seed = seed
        self.prefixes: list[Digest] = []

    @property
    def prefix(self) -> Digest | None:
        """What the next element stands behind, as `Sent.prefix`."""
        return self.prefixes[-1] if self.prefixes else self.seed

    @property
    def thought(self) -> RowId:
        """The nearest row with reasoning, START for none."""
        return next((item.row for item in reversed(self.items) if item.message.reasoned), START)

    def take(self, sent: Sent, length: int) -> None:
        """Take over the first LENGTH elements of SENT."""
        self.items = sent.items[:length]
        self.ends = sent.ends[:length]
        self.placed = sent.placed[: bisect_left(sent.placed, (length, LOWEST))]
        self.replays = sent.replays[: bisect_left(sent.replays, length)]
        self.intact = len(self.items)
        if self.seed is not None:
            self.prefixes = sent.prefixes[:length] if sent.seed == self.seed else self._link_all()

    def _link_all(self) -> list[Digest]:
        assert self.seed is not None
        links = accumulate([item.message for item in self.items], link, initial=self.seed)
        return list(links)[1:]

    def _pop(self) -> None:
        self.items.pop()
        self.ends.pop()
        self.intact = min(self.intact, len(self.items))
        while self.placed and self.placed[-1][0] == len(self.items):
            self.placed.pop()
        if self.seed is not None:
            self.prefixes.pop()

    def append(self, item: Item) -> None:
        """Add ITEM, with the deliveries that it carries."""
        message = item.message
        self.placed += [(len(self.items), id) for id in item.deliveries]
        self.ends.append((self.ends[-1] if self.ends else 0) + message.size)
        self.items.append(item)
        if message.raw:
            self.texts[message.exact] = message.raw
        if self.seed is not None:
            self.prefixes.append(link(self.prefix or self.seed, message))

    def join(self, item: Item) -> bool:
        """Make ITEM one with the element before it where the API takes no two; tell if so."""
        before = self.items[-1] if self.items else None
        roles = (Role.ASSISTANT, Role.ASSISTANT)
        if before is None or self.provider.join is None:
            return False
        if (before.message.role, item.message.role) != roles:
            return False
        first, second = (read_text(each, self.read) for each in (before, item))
        if first is None or second is None:
            return False
        message = self.provider.parse(self.provider.join(first, second))
        self._pop()
        self.append(
            msgspec.structs.replace(before, message=message, joined=(*before.joined, item.row))
        )
        return True

    def note(self, reason: Reason) -> None:
        """Remember REASON, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def restore(self, id: RowId, delivery: Delivery, follower: Message | None) -> None:
        """Put the earlier DELIVERY, row ID, behind what is there and in front of FOLLOWER."""
        stored = self.read(delivery.text)
        if stored is None:
            self.reasons.append(Reason(code="delivery_lost", detail=str(id)))
        else:
            self.attach(id, stored.decode(), follower)

    def attach(self, id: RowId, text: str, follower: Message | None = None) -> bool:
        """Put delivery ID, which says TEXT, behind what is there; return whether it stands."""
        provider = self.provider
        host = self.items[-1] if self.items else None
        shape = self._shape(host.message if host else None, follower)
        if shape is Shape.NONE:
            self.reasons.append(Reason(code="no_boundary", detail=str(id)))
            return False
        if shape is Shape.MESSAGE or host is None:
            self.append(Item(message=provider.parse(provider.wrap(text)), deliveries=(id,)))
            return True
        raw = read_text(host, self.read)
        if raw is None:
            self.reasons.append(Reason(code="host_lost", detail=str(host.row)))
            return False
        put = provider.merge if shape is Shape.MERGE else provider.result
        message = msgspec.structs.replace(provider.parse(put(raw, text)), marks=host.message.marks)
        self._pop()
        self.append(
            msgspec.structs.replace(host, message=message, deliveries=(*host.deliveries, id))
        )
        return True

    def _shape(self, host: Message | None, follower: Message | None = None) -> Shape:
        legal = self.provider.shape(host, self.identity) if host else Shape.NONE
        if host and legal is Shape.MESSAGE:
            if self.override == "merge" and host.role is Role.USER:
                return Shape.MERGE
            if self.override == "result" and host.results:
                return Shape.RESULT
        if legal is not Shape.NONE or follower is None or (host and host.opens):
            return legal
        # Behind an answer, or first, where another message follows: two of the user's are legal.
        fits = follower.role is Role.ASSISTANT or self._shape(follower) is Shape.MESSAGE
        return Shape.MESSAGE if fits else legal


class Held(Struct, frozen=True):
    """What the client holds of an array that is to be made: its first `reuse` elements are those
    of the array sent before, its first `same` ones stand in the payload as they are; `marks` are
    those of these elements.
    """

    reuse: int = 0
    same: int = 0
    marks: tuple[int, ...] = ()


def plan_steps(
    sent: Sent, items: list[Item], sent_at: list[int], held: Held, write: Callable[[int], bytes]
) -> tuple[Step, ...]:
    """Return the edits that turn ITEMS, as the client built them, into SENT; () for none.

    Work is proportional to what is behind the elements that the client HELD, not to the array.
    WRITE returns the text of an element of SENT with its mark, and raises AbsentText if it is
    missing or damaged.
    """
    marked = set(sent.marks)
    limit = max(held.reuse, held.same)
    limit = min([limit, *(n for n in marked ^ set(held.marks) if n < limit)])
    count = len(sent.items)
    if sent.items == items and all(_marked(n, sent, held) == (n in marked) for n in range(count)):
        return ()
    kind, taken = ("reuse", bisect_right(sent_at, limit) - 1) if held.reuse else ("keep", limit)
    steps = [Step(kind=kind, count=limit)]
    steps += [Step(kind="drop", count=taken)] if held.reuse else []
    places = {id(item): n for n, item in enumerate(items[taken:], taken)}
    for n in range(limit, count):
        place = places.get(id(sent.items[n]), -1)
        if place < taken or _marked(n, sent, held) != (n in marked):
            steps.append(Step(kind="insert", texts=(write(n),)))
            continue
        steps += [Step(kind="drop", count=place - taken), Step(kind="keep", count=1)]
        taken = place + 1
    steps.append(Step(kind="drop", count=len(items) - taken))
    return _merge_steps(steps)


def _marked(n: int, sent: Sent, held: Held) -> bool:
    """Whether the client's element that element N of SENT may be kept from carries a mark."""
    return n in held.marks if n < held.same else bool(sent.items[n].message.marks)


def _merge_steps(steps: Collection[Step]) -> tuple[Step, ...]:
    merged: list[Step] = []
    for step in steps:
        if not step.count and not step.texts:
            continue
        if merged and merged[-1].kind == step.kind:
            last = merged.pop()
            step = Step(  # noqa: PLW2901 - the two are one
                kind=step.kind,
                count=last.count + step.count,
                texts=tuple(chain(last.texts, step.texts)),
            )
        merged.append(step)
    return tuple(merged)
