"""Find and free what no record needs (rule L6), beside processes that go on writing.

What is in use is computed from the records themselves, as an entry in the table of references
outlives the record that made it.  One snapshot tells what to free; each transaction that frees it
works for a bounded time, and looks again if anybody wrote since.  An object comes in the same
transaction as the record that names it, hence it is never taken for one that nobody needs.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from typing import TypeVar

import msgspec

from retention.digest import SIZE, Digest
from retention.model import (
    Conversation,
    Delivery,
    RequestRecord,
    Retirement,
    Row,
    RowId,
    Struct,
)
from retention.store.environment import Environment, Moment
from retention.store.forgetting import SLICE, find_bound, finish, mark
from retention.store.records import Reader, Writer, references
from retention.store.tables import (
    CONVERSATIONS,
    DOMAINS,
    OBJECTS,
    OFFERS,
    OUTPUTS,
    REFERENCES,
    REQUESTS,
    ROWS,
    SOURCES,
    Session,
    conversation_key,
    entry_end,
    entry_key,
    entry_number,
    reference_key,
    split_reference,
)

T = TypeVar("T")


class Freed(Struct, frozen=True):
    """What was freed, or would be: conversations by id, how many retired rows lost their text,
    objects by kind as (number, bytes), and references.
    """

    conversations: tuple[str, ...] = ()
    rows: int = 0
    objects: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    references: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of all objects."""
        return sum(size for _, size in self.objects.values())


class Leaving(Struct, frozen=True):
    """What is about to go: conversations that nobody used, and of others the rows, own ones that
    no fork shares, that were retired long enough ago.
    """

    conversations: frozenset[str] = frozenset()
    rows: dict[str, frozenset[RowId]] = msgspec.field(default_factory=dict)


NOTHING = Leaving()
UNKNOWN = "unknown"  # the kind of an object whose tag is none of ours


class Survey(Struct, frozen=True):
    """What a snapshot holds in excess: references by conversation, objects without any, figures."""

    stale: dict[str, list[Digest]]
    orphans: list[Digest]
    freed: Freed


def collect(
    env: Environment, *, retired_before: float, unused_before: float, dry_run: bool
) -> Freed:
    """Free what no record needs, and first make these records go, times in seconds since the epoch.

    The text of history that was retired before one time and is not shared, and conversations that
    were last used before another one.  DRY_RUN only tells what would be freed.
    """
    if not dry_run:
        finish(env)
    with env.reading() as session:
        records = list(Reader(session).conversations())
        leaving = _find_leaving(session, records, retired_before, unused_before)
        freed = _survey(session, leaving).freed
    if dry_run:
        return freed
    gone = [id for id in freed.conversations if env.write(partial(_leave, id=id, at=unused_before))]
    finish(env)
    for id, rows in leaving.rows.items():
        _hollow(env, id, sorted(rows), retired_before)
    with env.reading() as session:
        survey = _survey(session, NOTHING)
    for id, names in survey.stale.items():
        _release(env, id, names)
    _in_slices(env, survey.orphans, lambda session: partial(_drop_orphan, session))
    return msgspec.structs.replace(freed, conversations=tuple(gone))


# What goes


def _find_leaving(
    session: Session, records: Sequence[Conversation], retired_before: float, unused_before: float
) -> Leaving:
    unused = frozenset(r.id for r in records if not r.forgotten and r.used < unused_before)
    held = _find_held(records, unused)
    rows: dict[str, frozenset[RowId]] = {}
    for record in records:
        if record.id in unused:
            continue
        ids = frozenset(
            id
            for id in _retired_rows(record, held, retired_before)
            if (row := _own_row(session, record.id, id)) and not row.gone
        )
        # A collector that was killed leaves what has no text, and is retired all the same.
        if ids or any(_is_over(session, record.id, each) for each in record.retired):
            rows[record.id] = ids
    return Leaving(conversations=unused, rows=rows)


def _find_held(records: Sequence[Conversation], going: Collection[str]) -> list[Conversation]:
    """Return those of RECORDS that stay, or of which a fork, at any distance, stays."""
    known = {record.id: record for record in records}
    held: dict[str, Conversation] = {}
    for record in records:
        each = None if record.forgotten or record.id in going else record
        while each is not None and each.id not in held:
            held[each.id] = each
            each = known.get(each.base)
    return list(held.values())


def _retired_rows(
    record: Conversation, records: Sequence[Conversation], before: float
) -> frozenset[RowId]:
    """Return the rows of RECORD that were retired BEFORE, without those that RECORDS share."""
    due = [each.ids for each in record.retired if each.at < before]
    bound = find_bound(record.id, records)
    return frozenset(id for id in chain.from_iterable(due) if id >= bound)


def _own_row(session: Session, id: str, number: RowId) -> Row | None:
    return ROWS.get(session, entry_key(id, number))


def _live(session: Session, id: str) -> Conversation | None:
    record = CONVERSATIONS.get(session, conversation_key(id))
    return None if record is None or record.forgotten else record


def _leave(session: Session, *, id: str, at: float) -> bool:
    """Begin to forget conversation ID; return False if it was used since AT, or goes already."""
    record = _live(session, id)
    if record is None or record.used >= at:
        return False
    mark(session, id)
    return True


def _hollow(env: Environment, id: str, rows: Sequence[RowId], before: float) -> None:
    """Take the texts of ROWS of conversation ID, retired BEFORE, out of its records.

    Not those that are in use again, or that somebody has forked since.
    """
    _in_slices(env, rows, partial(_hollow_rows, id=id, before=before))
    with env.reading() as session:
        requests = session.scan(REQUESTS.name, conversation_key(id), entry_end(id))
        seqs = [entry_number(key) for key, _ in requests]
    _in_slices(env, seqs, partial(_hollow_requests, id=id))
    env.write(lambda session: _end_retirements(session, id))


def _hollow_rows(session: Session, *, id: str, before: float) -> Callable[[RowId], None]:
    record, records = _live(session, id), list(Reader(session).conversations())
    due = _retired_rows(record, records, before) if record else frozenset[RowId]()
    if record and due:
        _renew(session, record, record.retired)
    return lambda row: _hollow_row(session, id, row) if row in due else None


def _hollow_row(session: Session, id: str, number: RowId) -> None:
    row = _own_row(session, id, number)
    if row is None:
        return
    delivery = row.delivery
    if delivery is not None:  # what of it fired is read from the log (rule D8)
        delivery = Delivery(
            text=Digest(b""), after=delivery.after, before=delivery.before, host=delivery.host,
            reminders=delivery.reminders, turn=delivery.turn,
        )  # fmt: skip
    hollow = Row(
        id=row.id, pred=row.pred, face=row.face, role=row.role, exact=Digest(b""),
        round=row.round, delivery=delivery, reasoned=row.reasoned, gone=True,
    )  # fmt: skip
    Writer(session).put_row(id, hollow)


def _hollow_requests(session: Session, *, id: str) -> Callable[[int], None]:
    live = _live(session, id) is not None
    return lambda seq: _hollow_request(session, id, seq) if live else None


def _hollow_request(session: Session, id: str, seq: int) -> None:
    """Take texts of collected rows out of the record of a request, and what it quotes.

    A request that does not hold such a row may have been compared with one that does.
    """
    request = REQUESTS.get(session, entry_key(id, seq))
    if request is None:
        return
    quoting = request.continuity
    hollow = msgspec.structs.replace(
        request,
        changed={
            number: name
            for number, name in request.changed.items()
            if not (row := _own_row(session, id, number)) or not row.gone
        },
        continuity=quoting and msgspec.structs.replace(quoting, path="", before="", after=""),
    )
    if hollow != request:
        Writer(session).put_request(id, hollow)


def _end_retirements(session: Session, id: str) -> None:
    """Take the retirements of which nothing is left from the record of conversation ID."""
    record = _live(session, id)
    if record is None:
        return
    left = tuple(each for each in record.retired if not _is_over(session, id, each))
    _renew(session, record, left)


def _is_over(session: Session, id: str, retirement: Retirement) -> bool:
    """Tell whether nothing of RETIREMENT is left."""
    return all((row := _own_row(session, id, n)) and row.gone for n in retirement.ids)


def _renew(session: Session, record: Conversation, retired: tuple[Retirement, ...]) -> None:
    """Have everybody who knows RECORD read its log again, in the transaction that changes a row."""
    renewed = msgspec.structs.replace(
        record, version=record.version + 1, epoch=record.epoch + 1, retired=retired
    )
    Writer(session).put_conversation(renewed)


# What nothing names


def _survey(session: Session, leaving: Leaving) -> Survey:
    """Return what no record names once what is LEAVING is gone."""
    live = _find_live(session, leaving)
    stale: dict[str, list[Digest]] = {}
    dying: set[Digest] = set()
    first, known = -1, set[int]()
    references_made = (key for key, _ in session.scan(REFERENCES, b""))
    for name, group in groupby(references_made, key=lambda key: Digest(key[:SIZE])):
        if name[0] != first:
            first, known = name[0], set(live[name[0]])
        keys = list(group)
        gone = [key for key in keys if hash(key) not in known]
        for key in gone:
            stale.setdefault(split_reference(key)[1], []).append(name)
        if len(gone) == len(keys):
            dying.add(name)
    orphans: list[Digest] = []
    objects: dict[str, tuple[int, int]] = {}
    for key, value in session.scan(OBJECTS, b""):
        name = Digest(key)
        orphaned = name not in dying and not session.any(REFERENCES, name)
        if orphaned:
            orphans.append(name)
        if orphaned or name in dying:
            kind = DOMAINS.get(value[0], UNKNOWN) if value else UNKNOWN
            count, size = objects.get(kind, (0, 0))
            objects[kind] = (count + 1, size + max(0, len(value) - 1))
    return Survey(
        stale=stale,
        orphans=orphans,
        freed=Freed(
            conversations=tuple(sorted(leaving.conversations)),
            rows=sum(map(len, leaving.rows.values())),
            objects=objects,
            references=sum(map(len, stale.values())),
        ),
    )


def _find_live(session: Session, leaving: Leaving) -> list[array[int]]:
    """Return the hashes of the references that records make, by the first byte of the digest.

    Eight bytes each, since a store has millions.  Two that hash alike only keep what could go.
    """
    live = [array("q") for _ in range(256)]
    reader = Reader(session)
    records = list(reader.conversations())
    held = _find_held(records, leaving.conversations)
    owners = {record.id for record in records}
    owners.update(source.owner for source in reader.sources())
    for id in owners:
        for name in _named(session, id, held, leaving):
            live[name[0]].append(hash(reference_key(name, id)))
    return live


def _named(
    session: Session, id: str, held: Sequence[Conversation], leaving: Leaving
) -> Iterator[Digest]:
    """Yield each digest that the records of ID, a conversation or what stands for one, name.

    HELD are the conversations that stay, if only for their forks.
    """
    start, end = conversation_key(id), entry_end(id)
    record = CONVERSATIONS.get(session, start)
    going = id in leaving.conversations
    if going or (record is not None and record.forgotten):
        end = entry_key(id, find_bound(id, held))
    gone = leaving.rows.get(id, frozenset())
    for key, value in session.scan(ROWS.name, start, end):
        row = ROWS.decode(key, value)
        if row.id not in gone:
            yield from references(row)
    if going:
        return
    if record is not None:
        yield from references(record)
    for key, value in session.scan(REQUESTS.name, start, entry_end(id)):
        yield from _named_by_request(REQUESTS.decode(key, value), gone)
    for table in (OUTPUTS, OFFERS):
        for key, value in session.scan(table.name, start, entry_end(id)):
            yield from references(table.decode(key, value))
    for key, value in session.scan(SOURCES.name, start, start + b"\xff"):
        yield from references(SOURCES.decode(key, value))


def _named_by_request(request: RequestRecord, gone: Collection[RowId]) -> Iterator[Digest]:
    changed = {row: name for row, name in request.changed.items() if row not in gone}
    yield from references(msgspec.structs.replace(request, changed=changed))


# Freeing it


def _release(env: Environment, id: str, names: Sequence[Digest]) -> None:
    """Drop the references of ID to NAMES, and objects that nobody else refers to."""
    left = names
    while left:
        with env.reading() as session:
            seen = env.moment(session)
            left = _unnamed(session, id, left)
        left = env.write(partial(_release_some, env=env, id=id, names=left, seen=seen))


def _unnamed(session: Session, id: str, names: Iterable[Digest]) -> list[Digest]:
    held = _find_held(list(Reader(session).conversations()), ())
    named = set(_named(session, id, held, NOTHING))
    return [name for name in names if name not in named]


def _release_some(
    session: Session, *, env: Environment, id: str, names: Sequence[Digest], seen: Moment
) -> Sequence[Digest]:
    """Release as many of NAMES as there is time for, and return the others.

    They were not named at the moment SEEN; what somebody wrote since may name them.
    """
    if not env.follows(session, seen):
        names = _unnamed(session, id, names)
    deadline, at = time.monotonic() + SLICE, 0
    while at < len(names) and (not at or time.monotonic() < deadline):
        session.delete(REFERENCES, reference_key(names[at], id))
        _drop_orphan(session, names[at])
        at += 1
    return names[at:]


def _drop_orphan(session: Session, name: Digest) -> None:
    if not session.any(REFERENCES, name):
        session.delete(OBJECTS, name)


def _in_slices(
    env: Environment, items: Sequence[T], begin: Callable[[Session], Callable[[T], None]]
) -> None:
    """Do for each of ITEMS what BEGIN returns, in write transactions of bounded length."""
    at = 0
    while at < len(items):
        at = env.write(partial(_work_on, items=items, at=at, begin=begin))


def _work_on(
    session: Session,
    *,
    items: Sequence[T],
    at: int,
    begin: Callable[[Session], Callable[[T], None]],
) -> int:
    deadline, work = time.monotonic() + SLICE, begin(session)
    while at < len(items):
        work(items[at])
        at += 1
        if time.monotonic() > deadline:
            break
    return at
