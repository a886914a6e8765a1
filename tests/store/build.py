"""Records with defaults, a way to fill a store, and a way to damage one."""

from __future__ import annotations

from pathlib import Path

import lmdb
import msgspec

from retention.digest import Digest, digest
from retention.model import Conversation, Face, RequestRecord, Role, Row
from retention.store import Store, Writer
from retention.store.tables import META

A = "a" * 32
B = "b" * 32
C = "c" * 32
IDENTITY = digest("identity", b"somebody")


def row(id: int = 1, *, text: str = "hello", pred: int | None = None, **fields: object) -> Row:
    values = {
        "id": id,
        "pred": id - 1 if pred is None else pred,
        "face": Face.BOTH,
        "role": Role.USER,
        "exact": message(text),
        "size": len(text),
        "parts": (digest("part", text.encode()),),
    }
    return Row(**(values | fields))  # type: ignore[arg-type]


def message(text: str) -> Digest:
    return digest("message", text.encode())


def request(seq: int = 1, **fields: object) -> RequestRecord:
    values = {
        "seq": seq,
        "plan": f"plan-{seq}",
        "parent": seq - 1,
        "keep": 0,
        "rows": (),
        "turn": seq,
        "origin": "buffer",
        "identity": IDENTITY,
    }
    return RequestRecord(**(values | fields))  # type: ignore[arg-type]


def add(store: Store, id: str, *texts: str) -> None:
    """Append a row with its object for each of TEXTS, and one request, in one transaction."""

    def apply(writer: Writer) -> None:
        record = writer.conversation(id) or Conversation(id=id)
        grown = msgspec.structs.replace(
            record,
            version=record.version + 1,
            next_row=record.next_row + len(texts),
            next_seq=record.next_seq + 1,
        )
        writer.put_conversation(grown)
        for number, text in enumerate(texts, record.next_row):
            writer.put_object("message", text.encode())
            writer.put_row(id, row(number, text=text))
        added = tuple(range(record.next_row, grown.next_row))
        writer.put_request(id, request(record.next_seq, rows=added))

    store.write(apply)


def fork(store: Store, base: str, id: str) -> None:
    def apply(writer: Writer) -> None:
        origin = writer.conversation(base)
        assert origin is not None
        writer.put_conversation(
            msgspec.structs.replace(
                origin, id=id, base=base, base_rows=origin.next_row, version=1, next_seq=1
            )
        )

    store.write(apply)


def texts(store: Store, id: str) -> list[str]:
    """The bodies of the rows of conversation ID, each read and verified."""
    with store.read() as reader:
        return [reader.object(row.exact).decode() for row in reader.rows(id)]


def dump(store: Store) -> dict[bytes, bytes]:
    """Every key and value, whatever the table."""
    with store._environment.reading() as session:
        return dict(session.txn.cursor())


def objects(store: Store) -> set[bytes]:
    with store.read() as reader:
        return {reader.object(name) for name in reader.find_objects("", limit=100_000)}


def data_file(path: Path) -> Path:
    generation = (path / "CURRENT").read_text().strip()
    return path / generation / "data.mdb"


def flip(path: Path, body: bytes) -> None:
    """Flip one bit of BODY wherever it lies in the file of the store, which must be closed."""
    file = data_file(path)
    data = file.read_bytes()
    assert body in data
    file.write_bytes(data.replace(body, bytes((body[0] ^ 1,)) + body[1:]))


def set_raw(path: Path, key: bytes, value: bytes | None, *, generation: str = "gen-1") -> None:
    """Set or remove an entry behind the back of the store, which must be closed."""
    with lmdb.open(str(path / generation)) as env, env.begin(write=True) as txn:
        if value is None:
            assert txn.delete(key)
        else:
            txn.put(key, value)


def set_format(path: Path, version: int | None) -> None:
    set_raw(path, META + b"format", None if version is None else msgspec.msgpack.encode(version))
