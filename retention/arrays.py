"""Arrays of messages: as the client built them, as they went out, and the edits between the two.

Knows how a delivery takes shape in an array (rule D4).  Pure; what is stored is read through a
function.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from retention.digest import Digest
from retention.model import (
    START,
    Delivery,
    Face,
    Identity,
    Message,
    Reason,
    Role,
    RowId,
    Struct,
)
from retention.providers import Provider, Shape

LOWEST: RowId = -(1 << 62)  # below every row id, for bisecting (index, row id) pairs

Read = Callable[[Digest], bytes | None]  # a stored object, or None if missing or damaged


class AbsentText(Exception):
    """The text of an element that must be inserted cannot be read; it carries the row id."""


class Item(Struct, frozen=True):
    """One element of an array: its message, its row, and the deliveries inside or on it.

    A delivery of its own has row START and one delivery.  A host message (rule D4) has both.
    """

    message: Message
    row: RowId = START
    deliveries: tuple[RowId, ...] = ()
    face: Face = Face.BOTH

    @property
    def ids(self) -> tuple[RowId, ...]:
        """Its rows in log order: the message's, then the deliveries'."""
        return self.deliveries if self.row == START else (self.row, *self.deliveries)

    @property
    def last(self) -> RowId:
        """The row after which the next one is inserted."""
        return self.deliveries[-1] if self.deliveries else self.row


class Sent(Struct, frozen=True):
    """An array as it goes out: `items`, the running sums of their sizes in bytes, and the
    deliveries as (index in items, row id) in payload order.  Rows from `since` on came into the
    log after it was planned.
    """

    items: list[Item]
    ends: list[int]
    placed: list[tuple[int, RowId]]
    since: RowId = START


class State(Struct, frozen=True):
    """An array that a later delta may refer to (adapter.md Q1).

    `items` is the array itself.  For the array as gptel built it from the buffer, `sent` is what
    went out and `sent_at[i]` the length of `sent` right after element i-1.  `settled` elements from
    the start have rows in the log.  `mode` is what the placement of deliveries depended on.
    """

    conversation: str
    items: list[Item]
    sent: Sent
    sent_at: list[int] = msgspec.field(default_factory=list)
    settled: int = 0
    mode: str = ""
    head: Digest | None = None


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


class Builder:
    """The array under construction.  The one place that knows how a delivery takes shape."""

    def __init__(self, provider: Provider, identity: Identity, shape: str, read: Read) -> None:
        self.provider = provider
        self.identity = identity
        self.override = shape
        self.read = read
        self.items: list[Item] = []
        self.ends: list[int] = []
        self.placed: list[tuple[int, RowId]] = []
        self.intact = 0  # elements from the start that were taken over and are as they were
        self.reasons: list[Reason] = []

    def take(self, sent: Sent, length: int) -> None:
        """Take over the first LENGTH elements of SENT."""
        self.items = sent.items[:length]
        self.ends = sent.ends[:length]
        self.placed = sent.placed[: bisect_left(sent.placed, (length, LOWEST))]
        self.intact = len(self.items)

    def resume(self, base: State, cut: int) -> None:
        """Take over what BASE sent for its first CUT elements, without deliveries behind them."""
        self.take(base.sent, base.sent_at[cut])
        if self.items and self.items[-1].deliveries and self.items[-1].row != START:
            # It hosts deliveries that are placed again: begin with it as gptel built it.
            self._pop()
            self.append(base.items[cut - 1])

    def _pop(self) -> None:
        self.items.pop()
        self.ends.pop()
        self.intact = min(self.intact, len(self.items))
        while self.placed and self.placed[-1][0] == len(self.items):
            self.placed.pop()

    def append(self, item: Item) -> None:
        """Add ITEM, with the deliveries that it carries."""
        self.placed += [(len(self.items), id) for id in item.deliveries]
        self.ends.append((self.ends[-1] if self.ends else 0) + item.message.size)
        self.items.append(item)

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
        raw = host.message.raw or self.read(host.message.exact)
        if raw is None:
            self.reasons.append(Reason(code="host_lost", detail=str(host.row)))
            return False
        put = provider.merge if shape is Shape.MERGE else provider.result
        message = provider.parse(put(raw, text))
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


def plan_steps(
    sent: Sent, items: list[Item], sent_at: list[int], reuse: int, read: Read
) -> tuple[Step, ...]:
    """Return the edits that turn ITEMS into SENT; () when nothing changes.

    The first REUSE elements of SENT equal those of the array sent before, which the client holds.
    Work is proportional to the number of deliveries behind them, not to the messages.  Raise
    AbsentText if a text that must be inserted is missing or damaged.
    """
    if not sent.placed or (len(sent.items) == len(items) and sent.items == items):
        return ()
    steps: list[Step] = []
    at = taken = 0  # in sent.items, in items
    if reuse and sent.placed[0][0] < reuse and sent_at:
        at, taken = reuse, bisect_right(sent_at, reuse) - 1
        steps += [Step(kind="reuse", count=at), Step(kind="drop", count=taken)]
    changed = sorted({place for place, _ in sent.placed if place >= at})
    for place in changed:
        item = sent.items[place]
        run = place - at
        if not sent_at and taken + run < len(items) and items[taken + run] is item:
            continue  # inside the loop an earlier delivery is an element of the payload
        if run:
            steps.append(Step(kind="keep", count=run))
        at, taken = place + 1, taken + run
        if item.row != START:
            steps.append(Step(kind="drop", count=1))
            taken += 1
        text = item.message.raw or read(item.message.exact)
        if text is None:
            raise AbsentText(item.last)
        steps.append(Step(kind="insert", texts=(text,)))
    if taken < len(items):
        steps.append(Step(kind="keep", count=len(items) - taken))
    return tuple(step for step in steps if step.count or step.texts)
