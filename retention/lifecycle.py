"""A conversation over the store: opened, forked, retired, collected (rules L1, L2, L6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from retention.errors import InvalidParams, UnknownConversation
from retention.ledger import Log
from retention.model import Conversation, Struct
from retention.retiring import find_retired, make_retirement
from retention.settings import in_use
from retention.store import Freed, Reader, Store, Writer
from retention.summarizing import History

DAY = 86_400.0  # seconds
GRACE = 30  # days after which the texts of retired history are collected


# Opening and forking


class Opening(Struct, frozen=True):
    """What a client knows of its conversation: the id, the true name of the file, a title."""

    id: str = ""
    file: str = ""
    title: str = ""


class Opened(Struct, frozen=True):
    """The conversation that was found or made; `forked` names the one that it was split from."""

    record: Conversation
    created: bool = False
    forked: str = ""


def open_conversation(
    store: Store, opening: Opening, now: float, random_id: Callable[[], str]
) -> Opened:
    """Find a conversation by id, else by file, else make one (adapter.md H4).

    The newest file of a conversation is its home.  While that exists, another file with its id is a
    copy and becomes a fork; when it is gone, it was moved.
    """
    with store.read() as reader:
        found = _find(reader, opening)
    if found is not None and opening.file in {"", _home(found)}:
        return Opened(record=found)
    # Looked at again in the transaction that writes: two copies may be opened at the same time.
    return store.write(lambda writer: _open(writer, opening, now, random_id))


def _open(writer: Writer, opening: Opening, now: float, random_id: Callable[[], str]) -> Opened:
    found = _find(writer, opening)
    if found is None:
        record = Conversation(
            id=_free_id(writer, opening.id, random_id), created=now, used=now, title=opening.title,
            files=(opening.file,) if opening.file else (),
        )  # fmt: skip
        writer.put_conversation(record)
        return Opened(record=record, created=True)
    home = _home(found)
    if opening.file in {"", home}:
        return Opened(record=found)
    if home and _may_be_there(home):
        fork = _unused_fork(writer, found, opening.file)
        id = fork.id if fork else random_id()
        return Opened(record=_fork(writer, found, id, opening, now), forked=found.id)
    others = tuple(file for file in found.files if file != opening.file)
    moved = msgspec.structs.replace(found, version=found.version + 1, files=(*others, opening.file))
    writer.put_conversation(moved)
    return Opened(record=moved)


def _may_be_there(file: str) -> bool:
    try:
        return Path(file).exists()
    except OSError:  # nobody may look: as a fork nothing is lost
        return True


def _home(record: Conversation) -> str:
    return record.files[-1] if record.files else ""


def _find(reader: Reader, opening: Opening) -> Conversation | None:
    if opening.id:
        record = reader.conversation(opening.id)
        return record if record and not record.forgotten else None
    if not opening.file:
        return None
    named = [
        record
        for record in reader.conversations()
        if _home(record) == opening.file and not record.forgotten
    ]
    return max(named, key=lambda record: record.used, default=None)


def _free_id(reader: Reader, wanted: str, random_id: Callable[[], str]) -> str:
    # A forgotten conversation whose rows forks share keeps its id: nobody gets it again.
    taken = bool(wanted) and reader.conversation(wanted) is not None
    return random_id() if taken or not wanted else wanted


def _unused_fork(reader: Reader, origin: Conversation, file: str) -> Conversation | None:
    """Return a fork of ORIGIN for FILE that sent nothing: the file was not saved with its id."""
    return next(
        (
            fork
            for fork in reader.forks(origin.id)
            if fork.files == (file,) and fork.next_seq == 1 and not fork.forgotten
        ),
        None,
    )


def fork_conversation(store: Store, id: str, opening: Opening, now: float) -> Conversation:
    """Make a conversation, named by OPENING, that shares the past of ID (rule L2).

    Nothing is copied.  Raise UnknownConversation.
    """

    def apply(writer: Writer) -> Conversation:
        origin = writer.conversation(id)
        if origin is None or origin.forgotten:
            raise UnknownConversation(f"no conversation {id!r}")
        return _fork(writer, origin, opening.id, opening, now)

    return store.write(apply)


def _fork(
    writer: Writer, origin: Conversation, id: str, opening: Opening, now: float
) -> Conversation:
    earlier = writer.conversation(id)
    record = msgspec.structs.replace(
        origin, id=id, version=earlier.version + 1 if earlier else 0, base=origin.id,
        base_rows=origin.next_row, files=(opening.file,) if opening.file else (), created=now,
        used=now, title=opening.title or origin.title, next_seq=1,
    )  # fmt: skip
    writer.put_conversation(record)
    return record


# Retiring


def retire(
    store: Store, history: History, record: Conversation, log: Log, now: float
) -> Conversation | None:
    """Retire HISTORY in one transaction, given the RECORD and the LOG that it was found in (L1).

    Return the new record, None if somebody else wrote to the conversation meanwhile.  Raise
    InvalidParams if nothing of HISTORY is in the log.
    """
    rows = find_retired(history.owners, log)
    if not any(history.owners) or not rows:
        raise InvalidParams("nothing of the history is in the log")
    retirement = make_retirement(rows, now)
    changed = msgspec.structs.replace(
        record,
        version=record.version + 1,
        retired=(*record.retired, retirement),
        epoch=record.epoch + 1,
    )

    def apply(writer: Writer) -> bool:
        current = writer.conversation(record.id)
        if current is None or current.version != record.version:
            return False
        writer.put_conversation(changed)
        return True

    return changed if store.write(apply) else None


# Collecting


class Limits(Struct, frozen=True):
    """What goes: history retired before one time, conversations last used before another."""

    retired_before: float
    unused_before: float


def make_limits(store: Store, now: float, *, days: int | None = None, grace: int = GRACE) -> Limits:
    """Return what goes at the time NOW: history GRACE days after it was retired, and conversations
    DAYS after they were last used, 0 for never; by default as the stored setting says.
    """
    if days is None:
        with store.read() as reader:
            days = in_use(reader.settings())["keep.days"]
    return Limits(retired_before=now - grace * DAY, unused_before=now - days * DAY if days else 0.0)


def collect(store: Store, limits: Limits, *, dry_run: bool = False) -> Freed:
    """Free what nothing needs, and give its space back to the system (rule L6); return what it was.

    DRY_RUN only tells.
    """
    freed = store.collect(
        retired_before=limits.retired_before, unused_before=limits.unused_before, dry_run=dry_run
    )
    if not dry_run:
        store.compact()
    return freed
