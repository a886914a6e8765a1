"""A full check of a store: every record read, every object verified, every reference resolved.

It reports and never repairs.  One read transaction, so that it sees one state of the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from retention.digest import Digest, to_hex
from retention.errors import DamagedObject, StoreError
from retention.model import START, Conversation, RequestRecord, Row, RowId, Struct
from retention.store.records import Reader, Record, needed, references, verify
from retention.store.tables import (
    CONVERSATIONS,
    OBJECTS,
    OFFERS,
    OUTPUTS,
    REFERENCES,
    REQUESTS,
    ROWS,
    SOURCES,
    Session,
    Table,
    conversation_key,
    entry_end,
    entry_number,
    forgetting,
    reference_key,
    show_key,
    split_reference,
)

R = TypeVar("R")


class Problem(Struct, frozen=True):
    """One thing that is wrong: a stable `code`, `where` it is, and `detail` for a person.

    The codes: `object` an object's bytes do not hash to its digest; `missing` a record names an
    object that is not there; `record` a value cannot be read; `order` a row, request, output or
    offer is out of order; `row` a record names a row that is not there; `base` a fork's base is
    missing; `reference` the table of references lacks an entry; `stray` it has one of no
    conversation; `unfinished` a forget was interrupted and goes on with the next forget or compact.
    """

    code: str
    where: str
    detail: str


def find_problems(session: Session) -> Iterator[Problem]:
    """Yield every problem, objects first."""
    yield from _objects(session)
    going = set(forgetting(session))
    for id in sorted(going):
        yield Problem(code="unfinished", where=id, detail="its records are being removed")
    known: set[str] = set()
    for key, value in session.scan(CONVERSATIONS.name, b""):
        known.add(show_key(key))
        record = _decode(CONVERSATIONS, key, value)
        if isinstance(record, Problem):
            yield record
        elif record.id not in going:
            yield from _conversation(session, record)
    for key, value in session.scan(SOURCES.name, b""):
        source = _decode(SOURCES, key, value)
        if isinstance(source, Problem):
            yield source
        elif source.owner not in going:
            known.add(source.owner)
            yield from _absent(session, source.owner, f"source {source.id}", source)
    yield from _strays(session, known)


def _objects(session: Session) -> Iterator[Problem]:
    for key, value in session.scan(OBJECTS, b""):
        try:
            verify(Digest(key), value)
        except DamagedObject as error:
            yield Problem(code="object", where=to_hex(key), detail=str(error))


def _decode(table: Table[R], key: bytes, value: bytes) -> R | Problem:
    try:
        return table.decode(key, value)
    except StoreError as error:
        return Problem(code="record", where=show_key(key), detail=str(error))


def _conversation(session: Session, record: Conversation) -> Iterator[Problem]:
    reader = Reader(session)
    if record.base and reader.conversation(record.base) is None:
        yield Problem(code="base", where=record.id, detail=f"its base {record.base} is missing")
    try:
        known = {START, *reader.row_ids(record.id)}
    except StoreError as error:
        yield Problem(code="base", where=record.id, detail=str(error))
        return
    yield from _absent(session, record.id, record.id, record)
    start, end = conversation_key(record.id), entry_end(record.id)
    for key, value in session.scan(ROWS.name, start, end):
        row = _decode(ROWS, key, value)
        if isinstance(row, Problem):
            yield row
        else:
            yield from _row(record, key, row, known)
            yield from _absent(session, record.id, show_key(key), row)
    for key, value in session.scan(REQUESTS.name, start, end):
        request = _decode(REQUESTS, key, value)
        if isinstance(request, Problem):
            yield request
        else:
            yield from _request(record, key, request, known)
            yield from _absent(session, record.id, show_key(key), request)
    for key, value in session.scan(OUTPUTS.name, start, end):
        output = _decode(OUTPUTS, key, value)
        if isinstance(output, Problem):
            yield output
        else:
            if output.number != entry_number(key):
                detail = f"the record is of output {output.number}"
                yield Problem(code="order", where=show_key(key), detail=detail)
            yield from _absent(session, record.id, show_key(key), output)
    for key, value in session.scan(OFFERS.name, start, end):
        offer = _decode(OFFERS, key, value)
        if isinstance(offer, Problem):
            yield offer
        else:
            if offer.number != entry_number(key):
                detail = f"the record is of offer {offer.number}"
                yield Problem(code="order", where=show_key(key), detail=detail)
            yield from _absent(session, record.id, show_key(key), offer)


def _row(record: Conversation, key: bytes, row: Row, known: set[RowId]) -> Iterator[Problem]:
    where = show_key(key)
    if row.id != entry_number(key):
        yield Problem(code="order", where=where, detail=f"the record is of row {row.id}")
    if row.id >= record.next_row:
        yield Problem(code="order", where=where, detail=f"the next row is {record.next_row}")
    if row.pred >= row.id:
        yield Problem(code="order", where=where, detail=f"it stands after row {row.pred}")
    named = {row.pred}
    if row.delivery is not None:
        named.add(row.delivery.after)
        # What followed a row that forks share may be gone with its conversation.
        if not record.forgotten:
            named.add(row.delivery.before)
    yield from _unknown(where, named, known)


def _request(
    record: Conversation, key: bytes, request: RequestRecord, known: set[RowId]
) -> Iterator[Problem]:
    where = show_key(key)
    if request.seq != entry_number(key):
        yield Problem(code="order", where=where, detail=f"the record is of request {request.seq}")
    if request.seq >= record.next_seq:
        yield Problem(code="order", where=where, detail=f"the next one is {record.next_seq}")
    if request.parent >= request.seq:
        yield Problem(code="order", where=where, detail=f"its parent is {request.parent}")
    named = {*request.rows, *request.delivered, *request.changed}
    yield from _unknown(where, named, known)


def _unknown(where: str, named: Iterable[RowId], known: set[RowId]) -> Iterator[Problem]:
    for id in sorted(set(named) - known):
        yield Problem(code="row", where=where, detail=f"there is no row {id}")


def _absent(session: Session, id: str, where: str, record: Record) -> Iterator[Problem]:
    for name in sorted(set(needed(record))):
        if session.get(OBJECTS, name) is None:
            yield Problem(code="missing", where=where, detail=f"object {to_hex(name)}")
    for name in sorted(set(references(record))):
        if session.get(REFERENCES, reference_key(name, id)) is None:
            yield Problem(code="reference", where=where, detail=f"of {to_hex(name)}")


def _strays(session: Session, known: set[str]) -> Iterator[Problem]:
    for key, _ in session.scan(REFERENCES, b""):
        name, id = split_reference(key)
        if id not in known:
            yield Problem(code="stray", where=id, detail=f"of {to_hex(name)}")
