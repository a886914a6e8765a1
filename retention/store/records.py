"""Read and write the records of conversations and the objects, inside one transaction.

Knows the rules that tie records together: shared rows of forks (rule L2), digests of objects
(Z3) and which conversation refers to which object (Z2).  Knows nothing of files or map sizes.
Iterators are lazy and valid only until the transaction ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TypeVar

import msgspec

from retention.digest import SIZE, Digest, Domain, digest
from retention.errors import DamagedObject, StoreError, UnknownConversation, UnknownObject
from retention.model import (
    START,
    Conversation,
    Face,
    Offer,
    Output,
    RequestRecord,
    Row,
    RowId,
    Source,
)
from retention.store.tables import (
    CONVERSATIONS,
    DOMAIN_TAGS,
    DOMAINS,
    ID_SIZE,
    META,
    OBJECTS,
    OFFERS,
    OUTPUTS,
    REFERENCES,
    REQUESTS,
    ROWS,
    SETTINGS_KEY,
    SOURCES,
    Session,
    Table,
    conversation_key,
    entry_end,
    entry_key,
    entry_number,
    reference_key,
    source_key,
)

R = TypeVar("R")
Entry = tuple[RowId, int, bytes]  # row id, distance of its owner in the chain of bases, value


Record = Row | RequestRecord | Output | Conversation | Source | Offer


def references(record: Record) -> Iterator[Digest]:
    """Yield every digest in RECORD: whatever object it names is in use while the record is."""
    if isinstance(record, Row) and record.gone:
        return
    yield from needed(record)
    if isinstance(record, Row):
        yield record.exact
        yield from record.parts
        yield from record.alias
        if record.origin is not None:
            yield record.origin.identity
    elif isinstance(record, Output) and record.same is not None:
        yield record.same
    elif isinstance(record, RequestRecord):
        yield record.identity
    elif isinstance(record, Conversation) and record.refusal is not None:
        yield record.refusal.identity


def needed(record: Record) -> Iterator[Digest]:
    """Yield the digests in RECORD whose object must be in the store.

    The other digests serve to compare: of parts, of identities, and of the ordinary messages of a
    round, which are never sent.
    """
    if isinstance(record, Row) and record.gone:
        return
    if isinstance(record, Row | Offer) and record.delivery is not None:
        yield record.delivery.text
        yield from (state.body for state in record.delivery.sections)
    if isinstance(record, Row):
        if record.face is not Face.ORDINARY:
            yield record.exact
    elif isinstance(record, RequestRecord):
        if record.head is not None:
            yield record.head
        yield from record.changed.values()
    elif isinstance(record, Output):
        yield record.blob
        if record.excerpt is not None:
            yield record.excerpt
    elif isinstance(record, Source):
        yield from (event.text for event in record.events)
    elif isinstance(record, Conversation) and record.evidence is not None:
        yield record.evidence


@lru_cache(maxsize=32)
def _decode_source(key: bytes, value: bytes) -> Source:
    """Return the source in VALUE: a long conversation has many events, and is read often."""
    return SOURCES.decode(key, value)


class Reader:
    """One transaction's view of the store.  A snapshot: it does not see later commits."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def conversation(self, id: str) -> Conversation | None:
        """Return the head record of conversation ID, also of a forgotten one, or None."""
        return CONVERSATIONS.get(self._session, conversation_key(id))

    def conversations(self) -> Iterator[Conversation]:
        """Yield every head record, also of forgotten ones, in the order of their ids."""
        for key, value in self._session.scan(CONVERSATIONS.name, b""):
            yield CONVERSATIONS.decode(key, value)

    def rows(self, id: str) -> Iterator[Row]:
        """Yield the rows of conversation ID by ascending row id, those shared with its base too.

        A row that the conversation wrote itself stands before a shared one of the same id.
        """
        for number, _, value in self._entries(id):
            yield ROWS.decode(entry_key(id, number), value)

    def row_count(self, id: str) -> int:
        """Return how many rows `rows` yields, without decoding them."""
        return sum(1 for _ in self._entries(id))

    def row_ids(self, id: str) -> Iterator[RowId]:
        """Yield the ids of the rows that `rows` yields, without decoding them."""
        return (number for number, _, _ in self._entries(id))

    def _entries(self, id: str) -> Iterator[Entry]:
        chain = self.chain(id)
        parts = [self._own(owner, below, rank) for rank, (owner, below) in enumerate(chain)]
        if len(parts) == 1:
            return parts[0]
        return _first_of_each(heapq.merge(*parts))

    def chain(self, id: str) -> list[tuple[str, RowId | None]]:
        """Return (conversation, bound) for ID and its bases, nearest first.

        Rows with an id below the bound are shared; None means all.
        """
        chain: list[tuple[str, RowId | None]] = [(id, None)]
        record, bound = self.conversation(id), None
        while record is not None and record.base:
            if any(record.base == owner for owner, _ in chain):
                raise StoreError(f"conversation {id}: {record.base} is a base of itself")
            bound = record.base_rows if bound is None else min(bound, record.base_rows)
            chain.append((record.base, bound))
            record = self.conversation(record.base)
        return chain

    def _own(self, id: str, below: RowId | None, rank: int) -> Iterator[Entry]:
        end = entry_end(id) if below is None else entry_key(id, below)
        for key, value in self._session.scan(ROWS.name, conversation_key(id), end):
            yield entry_number(key), rank, value

    def request(self, id: str, seq: int) -> RequestRecord | None:
        """Return request SEQ of conversation ID, or None."""
        return REQUESTS.get(self._session, entry_key(id, seq))

    def requests(self, id: str, limit: int) -> list[RequestRecord]:
        """Return up to LIMIT requests of conversation ID, the newest first."""
        return self._newest(REQUESTS, id, limit)

    def output(self, id: str, number: int) -> Output | None:
        """Return output NUMBER of conversation ID, or None."""
        return OUTPUTS.get(self._session, entry_key(id, number))

    def outputs(self, id: str, limit: int) -> list[Output]:
        """Return up to LIMIT outputs of conversation ID, the newest first."""
        return self._newest(OUTPUTS, id, limit)

    def offers(self, id: str) -> Iterator[Offer]:
        """Yield the offers of conversation ID, the oldest first."""
        for key, value in self._session.scan(OFFERS.name, conversation_key(id), entry_end(id)):
            yield OFFERS.decode(key, value)

    def _newest(self, table: Table[R], id: str, limit: int) -> list[R]:
        scan = self._session.scan_back(table.name, conversation_key(id), entry_end(id))
        return [table.decode(key, value) for key, value in islice(scan, max(0, limit))]

    def source(self, owner: str, id: str) -> Source | None:
        """Return source ID of OWNER, or None."""
        key = source_key(owner, id)
        value = self._session.get(SOURCES.name, key)
        return None if value is None else _decode_source(key, value)

    def sources(self, owner: str = "") -> Iterator[Source]:
        """Yield every source, or those of OWNER."""
        start = conversation_key(owner) if owner else b""
        for key, value in self._session.scan(
            SOURCES.name, start, start + b"\xff" if start else b""
        ):
            yield SOURCES.decode(key, value)

    def source_count(self) -> int:
        """Return how many sources there are, without decoding them."""
        return self._session.count(SOURCES.name)

    def find_source(self, id: str) -> Source | None:
        """Return a source with ID, whoever owns it, or None."""
        wanted = id.encode("utf-8", "surrogatepass")
        for key, value in self._session.scan(SOURCES.name, b""):
            if key[ID_SIZE:] == wanted:
                return SOURCES.decode(key, value)
        return None

    def settings(self) -> dict[str, int]:
        """Return the settings that were stored; raise StoreError if they cannot be read."""
        value = self._session.get(META, SETTINGS_KEY)
        try:
            return {} if value is None else msgspec.msgpack.decode(value, type=dict[str, int])
        except msgspec.MsgspecError as error:
            raise StoreError(f"the settings cannot be read: {error}") from None

    def object(self, digest: Digest) -> bytes:
        """Return the bytes of the object, verified against DIGEST (rule Z3)."""
        return self._verified(digest)[1]

    def object_domain(self, digest: Digest) -> Domain:
        """Return of which kind the object is, verified like its bytes."""
        return self._verified(digest)[0]

    def _verified(self, name: Digest) -> tuple[Domain, bytes]:
        value = self._session.get(OBJECTS, name) if len(name) == SIZE else None
        if value is None:
            raise UnknownObject(f"no object {name.hex()}")
        return verify(name, value)

    def find_objects(self, prefix_hex: str, limit: int = 10) -> list[Digest]:
        """Return up to LIMIT digests that begin with the hexadecimal digits PREFIX_HEX."""
        wanted = prefix_hex.lower()
        if len(wanted) > 2 * SIZE or any(digit not in "0123456789abcdef" for digit in wanted):
            return []
        found: list[Digest] = []
        start = bytes.fromhex(wanted + "0" * (len(wanted) % 2))
        for key, _ in self._session.scan(OBJECTS, start):
            if len(found) >= limit or not key.hex().startswith(wanted):
                break
            found.append(Digest(key))
        return found

    def forks(self, id: str) -> list[Conversation]:
        """Return the conversations whose base is ID, forgotten ones too."""
        return [record for record in self.conversations() if record.base == id]


def verify(name: Digest, value: bytes) -> tuple[Domain, bytes]:
    """Return (domain, bytes) of the object stored as VALUE under NAME, or raise DamagedObject."""
    domain = DOMAINS.get(value[0]) if value else None
    data = value[1:]
    if domain is None or digest(domain, data) != name:
        raise DamagedObject(f"object {name.hex()}: the {len(value)} stored bytes do not hash to it")
    return domain, data


def _first_of_each(entries: Iterator[Entry]) -> Iterator[Entry]:
    last = START
    for entry in entries:
        if entry[0] != last:
            last = entry[0]
            yield entry


class Writer(Reader):
    """A write transaction.  Sees its own writes; all of them are committed, or none."""

    def put_conversation(self, record: Conversation) -> None:
        """Store the head RECORD of a conversation.

        Raise UnknownConversation if it was forgotten and lives on only for its forks, or if it is
        new and its base is unknown or forgotten.
        """
        found = self.conversation(record.id)
        if found is not None and found.forgotten:
            raise UnknownConversation(f"conversation {record.id} was forgotten")
        if record.base and (found is None or found.base != record.base):
            self._live(record.base)
        self.replace_conversation(record)

    def replace_conversation(self, record: Conversation) -> None:
        """Store RECORD without asking whether it was forgotten; for `forgetting` only."""
        self._refer(record.id, record)
        CONVERSATIONS.put(self._session, conversation_key(record.id), record)

    def put_row(self, id: str, row: Row) -> None:
        """Store ROW as conversation ID's own; a shared row of the same id is hidden by it."""
        assert row.id > START, f"row id {row.id}"
        self._live(id)
        self._refer(id, row)
        ROWS.put(self._session, entry_key(id, row.id), row)

    def put_request(self, id: str, record: RequestRecord) -> None:
        """Store the RECORD of one dispatch of conversation ID."""
        assert record.seq > 0, f"request number {record.seq}"
        self._live(id)
        self._refer(id, record)
        REQUESTS.put(self._session, entry_key(id, record.seq), record)

    def put_output(self, id: str, output: Output) -> None:
        """Store OUTPUT as one of conversation ID."""
        assert output.number > 0, f"output number {output.number}"
        self._live(id)
        self._refer(id, output)
        OUTPUTS.put(self._session, entry_key(id, output.number), output)

    def put_offer(self, id: str, offer: Offer) -> None:
        """Store OFFER as one of conversation ID."""
        assert offer.number > 0, f"offer number {offer.number}"
        self._live(id)
        self._refer(id, offer)
        OFFERS.put(self._session, entry_key(id, offer.number), offer)

    def put_source(self, source: Source) -> None:
        """Store SOURCE in the place of an earlier one of the same owner and id.

        Raise UnknownConversation if its owner is a conversation that was forgotten.
        """
        record = self.conversation(source.owner)
        if record is not None and record.forgotten:
            raise UnknownConversation(f"conversation {source.owner} was forgotten")
        before = self.source(source.owner, source.id)
        known = frozenset(references(before)) if before else frozenset()
        self._name(source.owner, set(references(source)) - known)
        SOURCES.put(self._session, source_key(source.owner, source.id), source)

    def put_settings(self, settings: dict[str, int]) -> None:
        """Store SETTINGS in the place of all earlier ones."""
        self._session.put(META, SETTINGS_KEY, msgspec.msgpack.encode(settings))

    def put_object(self, domain: Domain, data: bytes) -> Digest:
        """Store DATA as an object of the kind DOMAIN and return its digest.

        It changes nothing if the object is there, and mends one that is damaged.
        """
        name = digest(domain, data)
        value = bytes((DOMAIN_TAGS[domain],)) + data
        if self._session.get(OBJECTS, name) != value:
            self._session.put(OBJECTS, name, value)
        return name

    def _live(self, id: str) -> None:
        record = self.conversation(id)
        if record is None or record.forgotten:
            raise UnknownConversation(f"no conversation {id}")

    def _refer(self, id: str, record: Record) -> None:
        # An entry outlives the record that made it, until the conversation is forgotten: what a
        # replaced row named still belongs to this conversation.
        self._name(id, references(record))

    def _name(self, id: str, names: Iterable[Digest]) -> None:
        for name in names:
            key = reference_key(name, id)
            if self._session.get(REFERENCES, key) is None:
                self._session.put(REFERENCES, key, b"")
