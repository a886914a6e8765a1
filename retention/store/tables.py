"""The tables of the store: their names, the bytes of their keys and the types of their values.

Knows nothing of files, generations or rules about records.  docs/store-format.md lists the same
tables; a change here is a change of the format and needs a new `FORMAT`.

Keys compare as bytes, so every number in a key is big-endian and of fixed width: a scan is in
numeric order.  Records are msgpack maps from field name to value, fields at their default left
out, so that a new field with a default needs no migration.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from retention.digest import SIZE, Digest, Domain
from retention.errors import InvalidParams, StoreError
from retention.model import Conversation, Offer, Output, RequestRecord, Row, Source

if TYPE_CHECKING:
    import lmdb

FORMAT = 1  # version of everything in this file; readers refuse a greater one

# All tables lie in LMDB's one unnamed database, each behind a first byte of its own: opening a
# named database takes the writers' lock, and a store must open while another process writes.
META = b"m"
CONVERSATION = b"c"
ROW = b"r"
REQUEST = b"q"
OUTPUT = b"u"
SOURCE = b"s"
OFFER = b"f"
OBJECTS = b"o"
REFERENCES = b"x"
NAMES = {
    META: "meta",
    CONVERSATION: "conversations",
    ROW: "rows",
    REQUEST: "requests",
    OUTPUT: "outputs",
    SOURCE: "sources",
    OFFER: "offers",
    OBJECTS: "objects",
    REFERENCES: "references",
}

FORMAT_KEY = b"format"  # in META: msgpack integer
SETTINGS_KEY = b"settings"  # in META: msgpack map from the name of a setting to its number
FORGET = b"forget/"  # in META: with an id, a conversation whose records are being removed
RETIRED_KEY = b"retired"  # in META: msgpack string, the generation that replaced this one

ID_SIZE = 32  # bytes of a conversation id in a key: 128 bit as lower-case hexadecimal digits
NUMBER_SIZE = 8  # bytes of a row id or a request number in a key: unsigned, big-endian

# The first byte of an object's value.  A number never changes its meaning.
DOMAIN_TAGS: dict[Domain, int] = {
    "message": 1,
    "part": 2,
    "head": 3,
    "delivery": 4,
    "section": 5,
    "reminder": 6,
    "identity": 7,
    "blob": 8,
}
DOMAINS: dict[int, Domain] = {tag: domain for domain, tag in DOMAIN_TAGS.items()}

R = TypeVar("R")
_encode = msgspec.msgpack.Encoder().encode
_HEX = frozenset(string.digits + "abcdef")


@dataclass(frozen=True, slots=True)
class Session:
    """One open transaction, seen as tables of keys and values."""

    txn: lmdb.Transaction[bytes]

    def get(self, table: bytes, key: bytes) -> bytes | None:
        """Return the value of KEY in TABLE, or None."""
        return self.txn.get(table + key)

    def put(self, table: bytes, key: bytes, value: bytes) -> None:
        """Set the value of KEY in TABLE."""
        self.txn.put(table + key, value)

    def delete(self, table: bytes, key: bytes) -> None:
        """Remove KEY from TABLE, if it is there."""
        self.txn.delete(table + key)

    def scan(self, table: bytes, start: bytes, end: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of TABLE in ascending order from START up to, not including, END.

        An empty END means the end of the table.  Valid inside the transaction only.
        """
        cursor = self.txn.cursor()
        if not cursor.set_range(table + start):
            return
        limit = table + end if end else bytes((table[0] + 1,))
        for key, value in cursor:
            if key >= limit:
                return
            yield key[1:], value

    def count(self, table: bytes) -> int:
        """Return how many keys TABLE has, without reading the values."""
        cursor = self.txn.cursor()
        if not cursor.set_range(table):
            return 0
        return sum(
            1 for _ in takewhile(lambda key: key[0] == table[0], cursor.iternext(True, False))
        )

    def scan_back(self, table: bytes, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of TABLE in descending order from below END down to START."""
        cursor = self.txn.cursor()
        found = cursor.prev() if cursor.set_range(table + end) else cursor.last()
        limit = table + start
        while found:
            key, value = cursor.item()
            if key < limit:
                return
            yield key[1:], value
            found = cursor.prev()

    def any(self, table: bytes, prefix: bytes) -> bool:
        """Return whether TABLE has a key that begins with PREFIX."""
        cursor = self.txn.cursor()
        return cursor.set_range(table + prefix) and cursor.key().startswith(table + prefix)


class Table(Generic[R]):
    """A table whose values are msgpack records of one type."""

    def __init__(self, name: bytes, type: type[R]) -> None:
        self.name = name
        self._decode = msgspec.msgpack.Decoder(type).decode

    def decode(self, key: bytes, value: bytes) -> R:
        """Return the record in VALUE; raise StoreError if it is none."""
        try:
            return self._decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            where = f"{NAMES[self.name]} {show_key(key)}"
            raise StoreError(f"{where}: the record cannot be read: {error}") from None

    def get(self, session: Session, key: bytes) -> R | None:
        """Return the record of KEY, or None."""
        value = session.get(self.name, key)
        return None if value is None else self.decode(key, value)

    def put(self, session: Session, key: bytes, record: R) -> None:
        """Set the record of KEY."""
        session.put(self.name, key, _encode(record))


CONVERSATIONS = Table(CONVERSATION, Conversation)
ROWS = Table(ROW, Row)
REQUESTS = Table(REQUEST, RequestRecord)
OUTPUTS = Table(OUTPUT, Output)
SOURCES = Table(SOURCE, Source)
OFFERS = Table(OFFER, Offer)


def conversation_key(id: str) -> bytes:
    """Return the key of conversation ID; InvalidParams unless it is 32 lower-case hex digits."""
    if len(id) != ID_SIZE or not _HEX.issuperset(id):
        raise InvalidParams(f"a conversation id has {ID_SIZE} lower-case hex digits: {id[:80]!r}")
    return id.encode()


def entry_key(id: str, number: int) -> bytes:
    """Return the key of row, request, output or offer NUMBER of conversation ID."""
    return conversation_key(id) + number.to_bytes(NUMBER_SIZE, "big")


def entry_end(id: str) -> bytes:
    """Return a key above those of every row, request, output or offer of conversation ID."""
    return conversation_key(id) + b"\xff" * NUMBER_SIZE + b"\xff"


def entry_number(key: bytes) -> int:
    """Return the row id, or the number of the request, output or offer, in KEY."""
    return int.from_bytes(key[ID_SIZE:], "big")


def source_key(owner: str, id: str) -> bytes:
    """Return the key of source ID of OWNER, a conversation or what stands for one."""
    return conversation_key(owner) + id.encode()


def reference_key(digest: Digest, id: str) -> bytes:
    """Return the key that says: conversation ID refers, or once referred, to DIGEST."""
    return digest + conversation_key(id)


def split_reference(key: bytes) -> tuple[Digest, str]:
    """Return the digest and the conversation id in KEY of the table of references."""
    return Digest(key[:SIZE]), key[SIZE:].decode("ascii", "replace")


def forget_key(id: str) -> bytes:
    """Return the key in META of the note that conversation ID is being forgotten."""
    return FORGET + conversation_key(id)


def forgetting(session: Session) -> Iterator[str]:
    """Yield the ids of the conversations that are being forgotten."""
    for key, _ in session.scan(META, FORGET):
        if not key.startswith(FORGET):
            return
        yield key.removeprefix(FORGET).decode()


def show_key(key: bytes) -> str:
    """Return KEY as a person reads it: an id, an id and a number, or hexadecimal digits."""
    if len(key) == ID_SIZE + NUMBER_SIZE:
        return f"{key[:ID_SIZE].decode('ascii', 'replace')}/{entry_number(key)}"
    if len(key) == ID_SIZE and all(chr(byte) in _HEX for byte in key):
        return key.decode()
    return key.hex()


def encode_format() -> bytes:
    """Return the version record of this format."""
    return _encode(FORMAT)


def encode_retired(generation: str) -> bytes:
    """Return the record that names the GENERATION which replaced this one."""
    return _encode(generation)


def decode_format(value: bytes) -> int:
    """Return the version in VALUE; raise StoreError if it is no number."""
    try:
        return msgspec.msgpack.decode(value, type=int)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the version record cannot be read: {error}") from None
