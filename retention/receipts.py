"""Deliveries for engines that own their history (rules X1, X2).

gptel sends what the buffer holds, so what a payload carries can be seen.  An engine that keeps its
own history is offered a text; what stands in its history is what it echoed, exactly and whole.
Each function is one transaction, so that several processes may serve one conversation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from retention.digest import Digest, digest, digest_fields, to_hex
from retention.errors import DamagedObject, InvalidParams, UnknownConversation, UnknownObject
from retention.model import (
    START,
    Conversation,
    Delivery,
    Offer,
    Reason,
    Receipt,
    Reminder,
    Section,
    Struct,
)
from retention.sections import (
    CLOSE,
    OPEN,
    Due,
    plan_reminders,
    plan_sections,
    render,
    standing,
    update_conditions,
)
from retention.store import Reader, Store, Writer
from retention.store.tables import ID_SIZE

# A turn begins with a prompt.  After a compaction nothing of what was delivered stands any more.
BOUNDARIES = ("prompt", "results", "compacted")
ID = 16  # hexadecimal digits of the id of an offer


class Observed(Struct, frozen=True):
    """What an engine could be told now: the selected sections and reminders."""

    sections: tuple[Section, ...] = ()
    reminders: tuple[Reminder, ...] = ()


class Boundary(Struct, frozen=True):
    """Where a text would go: `kind` is one of BOUNDARIES.

    `limit` is how much the engine takes unshortened, 0 for any length, in UTF-16 code units: what
    engines count, and never less than code points.  `wrapped` tells that the engine puts the text
    into a reminder of its own, so that it needs no tags of ours.
    """

    kind: str = "prompt"
    limit: int = 0
    wrapped: bool = False


class Offered(Struct, frozen=True):
    """The exact `text` to give to the engine, and its offer.  Without a text nothing is offered.

    `due` pairs the name of each section in it with why it is due.  `waiting` is what was due and
    does not go, with why; `news` tells that this was not so the last time.  `reasons` are those of
    sections that could not be read.
    """

    id: str = ""
    text: str = ""
    due: tuple[tuple[str, str], ...] = ()
    reminders: tuple[str, ...] = ()
    waiting: tuple[Reason, ...] = ()
    news: bool = False
    reasons: tuple[Reason, ...] = ()


def name_conversation(engine: str, session: str) -> str:
    """Return the id of the conversation that stands for SESSION of ENGINE."""
    return to_hex(digest_fields("identity", (engine, session)))[:ID_SIZE]


def open_conversation(store: Store, id: str, title: str, now: float) -> None:
    """Make conversation ID, unless it is there; raise UnknownConversation if it was forgotten."""

    def apply(writer: Writer) -> None:
        if writer.conversation(id) is None:
            writer.put_conversation(Conversation(id=id, created=now, used=now, title=title))
        _live(writer, id)

    store.write(apply)


# Offers


def offer(store: Store, id: str, observed: Observed, boundary: Boundary, now: float) -> Offered:
    """Offer what is due of OBSERVED at BOUNDARY of conversation ID as one exact text (X1).

    All of it stays due until the text is acknowledged.  A piece that is larger than the limit
    waits for a boundary without one, a piece that has no room beside the others for the next.
    """
    if boundary.kind not in BOUNDARIES or boundary.limit < 0:
        raise InvalidParams(f"boundary {boundary.kind!r} or limit {boundary.limit} is out of range")
    return store.write(lambda writer: _offer(writer, id, observed, boundary, now))


def _offer(writer: Writer, id: str, observed: Observed, boundary: Boundary, now: float) -> Offered:
    record = _live(writer, id)
    if boundary.kind == "compacted":
        _lose(writer, id, ())
    earlier = list(writer.offers(id))
    delivered = [o for o in earlier if o.receipt is not Receipt.NONE]
    record = msgspec.structs.replace(
        record, version=record.version + 1, used=now,
        turns=record.turns + (boundary.kind == "prompt"),
        conditions=_held(record.conditions, observed.reminders),
    )  # fmt: skip
    writer.put_conversation(record)
    states = standing(_deliveries(o for o in delivered if o.receipt is Receipt.ACKNOWLEDGED))
    ever = standing(_deliveries(delivered))
    known = {name: state for name, state in ever.items() if not state.inactive}
    due, reasons = plan_sections(
        observed.sections, states, known, lambda name: _read(writer, name), frozen=False
    )
    fired = {key: o.delivery.turn for o in delivered if o.delivery for key in o.delivery.reminders}
    firing = plan_reminders(observed.reminders, fired, record.conditions, record.turns)
    fitting = _Fitting(boundary)
    going = [item for item in due if fitting.takes(item.state.name, _piece(boundary, due=(item,)))]
    said = [item for item in firing if fitting.takes(item.key, _piece(boundary, told=(item,)))]
    text = fitting.text
    waiting = tuple(fitting.waiting)
    before = earlier[-1] if earlier else None
    news = waiting != (before.waiting if before else ())
    made = Offered(text=text, waiting=waiting, news=news, reasons=tuple(reasons))
    if not text and not news:
        return made
    number = before.number + 1 if before else 1
    name = digest_fields("delivery", (id, str(number), text))
    stored = Offer(
        number=number, id=to_hex(name)[:ID], waiting=waiting, boundary=boundary.kind, at=now,
        delivery=_put_delivery(writer, text, going, said, record.turns) if text else None,
        conditions=update_conditions({}, said),
    )  # fmt: skip
    writer.put_offer(id, stored)
    if not text:
        return made
    return msgspec.structs.replace(
        made, id=stored.id, reminders=tuple(item.key for item in said),
        due=tuple((item.state.name, item.reason) for item in going),
    )  # fmt: skip


def _put_delivery(
    writer: Writer, text: str, due: Sequence[Due], reminders: Sequence[Reminder], turn: int
) -> Delivery:
    for item in due:
        writer.put_object("section", item.record)
    return Delivery(
        text=writer.put_object("delivery", text.encode()), after=START, turn=turn,
        sections=tuple(item.state for item in due),
        reminders=tuple(item.key for item in reminders),
    )  # fmt: skip


def _held(conditions: dict[str, str], reminders: Sequence[Reminder]) -> dict[str, str]:
    """Return CONDITIONS without those that hold no more: they are due when they hold again."""
    over = {r.key for r in reminders if r.policy == "while" and r.state is None}
    return {key: state for key, state in conditions.items() if key not in over}


def _piece(boundary: Boundary, due: Sequence[Due] = (), told: Sequence[Reminder] = ()) -> str:
    text = render(due, told)
    if boundary.wrapped:
        text = text.removeprefix(f"{OPEN}\n").removesuffix(f"\n{CLOSE}")
    return text


class _Fitting:
    """A text that grows by the pieces that a boundary has room for."""

    def __init__(self, boundary: Boundary) -> None:
        self.text = ""
        self.waiting: list[Reason] = []
        self._limit = boundary.limit
        self._gap = "\n\n" if boundary.wrapped else "\n"

    def takes(self, name: str, piece: str) -> bool:
        """Append PIECE, if there is room; else note that NAME waits."""
        text = f"{self.text}{self._gap}{piece}" if self.text else piece
        if not self._limit or measure(text) <= self._limit:
            self.text = text
            return True
        size = measure(piece)
        code = "oversized" if size > self._limit else "no_room"
        self.waiting.append(Reason(code=code, detail=f"{name}: {size} of {self._limit}"))
        return False


def measure(text: str) -> int:
    """Return the length of TEXT in UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


# Receipts


def acknowledge(
    store: Store, id: str, name: str, text: str, *, ok: bool = True, echo: str = ""
) -> str:
    """Take the echo TEXT of offer NAME of conversation ID; return "" if it acknowledges it (X1).

    Else why not: "foreign" (no offer of this conversation), "failed" (not OK), "duplicate" (the
    offer, or the engine's record ECHO, had its receipt), "partial" or "altered".
    """

    def apply(writer: Writer) -> str:
        record = _live(writer, id)
        offers = list(writer.offers(id))
        found = next((o for o in offers if o.id == name), None)
        if found is None or found.delivery is None:
            return "foreign"
        if not ok:
            return "failed"
        if found.receipt is not Receipt.NONE or (echo and any(o.echo == echo for o in offers)):
            return "duplicate"
        if digest("delivery", text.encode("utf-8", "surrogatepass")) != found.delivery.text:
            whole = _read(writer, found.delivery.text) or b""
            return "partial" if text in whole.decode() else "altered"
        writer.put_offer(
            id, msgspec.structs.replace(found, receipt=Receipt.ACKNOWLEDGED, echo=echo)
        )
        conditions = record.conditions | found.conditions
        writer.put_conversation(
            msgspec.structs.replace(record, version=record.version + 1, conditions=conditions)
        )
        return ""

    return store.write(apply)


def lose(store: Store, id: str, kept: Collection[str]) -> None:
    """Note that of what conversation ID acknowledged the engine holds only the echoes KEPT."""

    def apply(writer: Writer) -> None:
        _live(writer, id)
        _lose(writer, id, kept)

    store.write(apply)


def _lose(writer: Writer, id: str, kept: Collection[str]) -> None:
    for each in list(writer.offers(id)):
        if each.receipt is Receipt.ACKNOWLEDGED and each.echo not in kept:
            writer.put_offer(id, msgspec.structs.replace(each, receipt=Receipt.LOST))


def find_offer(offers: Iterable[Offer], text: str, at: float) -> Offer | None:
    """Return the newest of OFFERS without a receipt that is TEXT and was made before AT."""
    name = digest("delivery", text.encode("utf-8", "surrogatepass"))
    fitting = [
        o for o in offers
        if o.delivery and o.delivery.text == name and o.receipt is Receipt.NONE and o.at <= at
    ]  # fmt: skip
    return fitting[-1] if fitting else None


# Small parts


def _live(writer: Writer, id: str) -> Conversation:
    record = writer.conversation(id)
    if record is None or record.forgotten:
        raise UnknownConversation(f"no conversation {id!r}")
    return record


def _read(reader: Reader, name: Digest) -> bytes | None:
    try:
        return reader.object(name)
    except (UnknownObject, DamagedObject):
        return None


def _deliveries(offers: Iterable[Offer]) -> Iterable[Delivery]:
    return (o.delivery for o in offers if o.delivery is not None)
