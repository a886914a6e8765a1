"""A full check of a store: every record read, every object verified, every reference resolved."""

from __future__ import annotations

from collections.abc import Iterator

from retention.digest import Digest, to_hex
from retention.errors import RetentionError
from retention.model import START, Conversation, RequestRecord, Row, Struct
from retention.store.records import Reader, needed, references, verify
from retention.store.tables import (
    CONVERSATIONS,
    OBJECTS,
    REFERENCES,
    REQUESTS,
    ROWS,
    Session,
    entry_end,
    entry_key,
    reference_key,
    show_key,
)


class Problem(Struct, frozen=True):
    """One thing that is wrong: a stable `code`, `where` it is, and `detail` for a person."""

    code: str
    where: str
    detail: str


def find_problems(session: Session) -> Iterator[Problem]:
    """Yield every problem of a store, one read transaction long."""
    yield from _damaged_objects(session)
    for key, value in session.scan(CONVERSATIONS.name, b""):
        try:
            record = CONVERSATIONS.decode(key, value)
            yield from _conversation(session, record)
        except RetentionError as error:
            yield Problem(code="record", where=show_key(key), detail=str(error))


def _damaged_objects(session: Session) -> Iterator[Problem]:
    for key, value in session.scan(OBJECTS, b""):
        try:
            verify(Digest(key), value)
        except RetentionError as error:
            yield Problem(code="object", where=to_hex(key), detail=str(error))


def _conversation(session: Session, record: Conversation) -> Iterator[Problem]:
    reader = Reader(session)
    if record.base and reader.conversation(record.base) is None:
        yield Problem(code="base", where=record.id, detail=f"its origin {record.base} is missing")
    known = {START} | {row.id for row in reader.rows(record.id)}
    for key, value in session.scan(ROWS.name, entry_key(record.id, 0), entry_end(record.id)):
        row = ROWS.decode(key, value)
        yield from _row(session, record, key, row, known)
    requests = session.scan(REQUESTS.name, entry_key(record.id, 0), entry_end(record.id))
    for key, value in requests:
        request = REQUESTS.decode(key, value)
        missing = [id for id in request.rows if id not in known]
        if missing:
            yield Problem(code="request", where=show_key(key), detail=f"no row {missing[0]}")
        yield from _absent(session, record.id, key, request)


def _row(
    session: Session, record: Conversation, key: bytes, row: Row, known: set[int]
) -> Iterator[Problem]:
    if row.pred not in known or row.pred >= row.id:
        yield Problem(code="order", where=show_key(key), detail=f"stands after row {row.pred}")
    if row.id >= record.next_row:
        yield Problem(code="order", where=show_key(key), detail=f"next row is {record.next_row}")
    if row.delivery is not None:
        for id in (row.delivery.after, row.delivery.before):
            if id not in known:
                yield Problem(code="boundary", where=show_key(key), detail=f"no row {id}")
    yield from _absent(session, record.id, key, row)


def _absent(
    session: Session, id: str, key: bytes, record: Row | RequestRecord
) -> Iterator[Problem]:
    for name in needed(record):
        if session.get(OBJECTS, name) is None:
            yield Problem(code="missing", where=show_key(key), detail=f"object {to_hex(name)}")
    for name in references(record):
        if session.get(REFERENCES, reference_key(name, id)) is None:
            yield Problem(code="reference", where=show_key(key), detail=f"of {to_hex(name)}")
