"""Remove a conversation in write transactions of bounded length (rule Z2, adapter.md Y1).

The head record is marked `forgotten` and the conversation noted in the table `meta`, in one
transaction; from then on nobody can write to it or fork it.  The note goes in the last
transaction, so that a forget which was killed is taken up again by the next `forget` or
`compact`.  Rows that forks share stay, with the objects that those rows name, until the last
fork goes: forgetting it notes its forgotten base again.

Two processes may forget related conversations at once: every slice can be repeated, and forks of
a forgotten conversation only ever go away, so what an older bound kept was at most too much.  When
one of them is done the id may come anew; each slice looks whether it is still about the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from retention.digest import Digest
from retention.errors import UnknownConversation
from retention.model import Conversation, RowId
from retention.store.environment import Environment
from retention.store.records import Reader, Writer, references
from retention.store.tables import (
    CONVERSATIONS,
    META,
    OBJECTS,
    OFFERS,
    OUTPUTS,
    REFERENCES,
    REQUESTS,
    ROWS,
    SOURCES,
    Session,
    conversation_key,
    entry_key,
    forget_key,
    forgetting,
    split_reference,
)

SLICE = 0.025  # seconds of work in one transaction; adapter.md Y1 allows 0.050 with its commit
BATCH = 64  # entries between two looks at the clock; about 1 ms of deletions


def forget(env: Environment, id: str) -> None:
    """Remove conversation ID; raise UnknownConversation if there is none, or it was forgotten."""
    env.write(lambda session: mark(session, id))
    finish(env)


def forget_sources(env: Environment, owner: str) -> None:
    """Remove what was learned under OWNER, which stands for no conversation."""
    _in_slices(env, lambda session, at: _delete(session, SOURCES.name, at, owner))
    _in_slices(env, lambda session, at: _release(session, owner, _learned(session, owner), at))


def _learned(session: Session, owner: str) -> set[Digest]:
    """Return what sources of OWNER name: they were learned again meanwhile."""
    return {name for source in Reader(session).sources(owner) for name in references(source)}


def finish(env: Environment) -> None:
    """Remove what noted conversations hold and no fork needs, until none is noted."""
    while True:
        with env.reading() as session:
            id = next(forgetting(session), None)
        if id is None:
            return
        _purge(env, id)


def find_bound(id: str, records: Iterable[Conversation]) -> RowId:
    """Return the row id below which a fork of ID shares rows; 0 if none does."""
    return max((record.base_rows for record in records if record.base == id), default=0)


def mark(session: Session, id: str) -> None:
    """Note that conversation ID goes, and forget what it is; raise UnknownConversation."""
    writer = Writer(session)
    record = writer.conversation(id)
    if record is None or record.forgotten:
        raise UnknownConversation(f"no conversation {id}")
    # What a person wrote goes at once; what forks need to find their rows stays.
    kept = Conversation(
        id=id,
        version=record.version + 1,
        next_row=record.next_row,
        next_seq=record.next_seq,
        next_round=record.next_round,
        base=record.base,
        base_rows=record.base_rows,
        forgotten=True,
    )
    CONVERSATIONS.put(session, conversation_key(id), kept)
    session.put(META, forget_key(id), b"")


def _purge(env: Environment, id: str) -> None:
    with env.reading() as session:
        if session.get(META, forget_key(id)) is None:
            return  # somebody is done with it
        record = CONVERSATIONS.get(session, conversation_key(id))
        bound = find_bound(id, list(Reader(session).conversations()))
        kept = _digests_below(session, id, bound)

    def still(work: Callable[[Session, bytes], bytes | None]) -> None:
        def if_same(session: Session, at: bytes) -> bytes | None:
            same = CONVERSATIONS.get(session, conversation_key(id)) == record
            return work(session, at) if same else None

        _in_slices(env, if_same)

    still(lambda session, at: _release(session, id, kept, at))
    still(lambda session, at: _delete(session, REQUESTS.name, at, id, 0))
    still(lambda session, at: _delete(session, OUTPUTS.name, at, id, 0))
    still(lambda session, at: _delete(session, OFFERS.name, at, id, 0))
    still(lambda session, at: _delete(session, SOURCES.name, at, id))
    still(lambda session, at: _delete(session, ROWS.name, at, id, bound))
    still(lambda session, _: _end(session, id, bound))


def _digests_below(session: Session, id: str, bound: RowId) -> set[Digest]:
    scan = session.scan(ROWS.name, conversation_key(id), entry_key(id, bound))
    return {name for key, value in scan for name in references(ROWS.decode(key, value))}


def _in_slices(env: Environment, work: Callable[[Session, bytes], bytes | None]) -> None:
    """Call WORK in one write transaction after another, each from the key where the last ended."""
    at: bytes | None = b""
    while at is not None:
        start = at
        at = env.write(lambda session, start=start: work(session, start))  # type: ignore[misc]


def _release(session: Session, id: str, kept: set[Digest], at: bytes) -> bytes | None:
    """Drop references of ID, and objects that nobody else refers to; return where to go on."""
    mine, deadline = conversation_key(id), time.monotonic() + SLICE
    for batch in _batches(session, REFERENCES, at):
        for key in batch:
            name, owner = split_reference(key)
            if owner.encode() != mine or name in kept:
                continue
            session.delete(REFERENCES, key)
            if not session.any(REFERENCES, name):
                session.delete(OBJECTS, name)
        if len(batch) == BATCH and time.monotonic() > deadline:
            return batch[-1] + b"\0"
    return None


def _delete(
    session: Session, table: bytes, at: bytes, id: str, bound: RowId | None = None
) -> bytes | None:
    """Delete the entries of ID, if numbered from BOUND on; return where to go on."""
    start = conversation_key(id) if bound is None else entry_key(id, bound)
    end, deadline = conversation_key(id) + b"\xff" * 16, time.monotonic() + SLICE
    for batch in _batches(session, table, at or start, end):
        for key in batch:
            session.delete(table, key)
        if len(batch) == BATCH and time.monotonic() > deadline:
            return batch[-1] + b"\0"
    return None


def _batches(
    session: Session, table: bytes, start: bytes, end: bytes = b""
) -> Iterator[list[bytes]]:
    # Keys are read before anything is deleted: a cursor must not stand on what goes.
    while True:
        batch = [key for key, _ in islice(session.scan(table, start, end), BATCH)]
        if batch:
            yield batch
        if len(batch) < BATCH:
            return
        start = batch[-1] + b"\0"


def _end(session: Session, id: str, bound: RowId) -> None:
    """Drop the note, and the record unless forks need it; note a forgotten base again.

    The note stays, for another round, if a fork went since the bound was found.
    """
    reader = Reader(session)
    record, records = reader.conversation(id), list(reader.conversations())
    if find_bound(id, records) != bound:
        return
    session.delete(META, forget_key(id))
    if record is None or any(other.base == id for other in records):
        return
    session.delete(CONVERSATIONS.name, conversation_key(id))
    base = reader.conversation(record.base) if record.base else None
    if base is not None and base.forgotten:
        session.put(META, forget_key(base.id), b"")
