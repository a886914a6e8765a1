"""Damage on purpose: it is reported and named, and never comes back as data (rule Z3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from retention.errors import DamagedObject, StoreError
from retention.model import Conversation, Delivery
from retention.store import Store
from tests.store.build import (
    A,
    B,
    add,
    flip,
    fork,
    message,
    request,
    row,
    set_raw,
    texts,
)

BODY = b"a body that is long enough to be found in the file"


def codes(store: Store) -> set[tuple[str, str]]:
    return {(problem.code, problem.where) for problem in store.check()}


def read_all(store: Store) -> None:
    with store.read() as reader:
        reader.conversation(A)
        list(reader.rows(A))
        reader.requests(A, 1)


@pytest.fixture
def filled(path: Path) -> Path:
    store = Store.open(path)
    add(store, A, "one", BODY.decode(), "three")
    store.close()
    return path


def test_a_flipped_bit_is_a_damaged_object_and_the_check_names_it(filled: Path) -> None:
    """Rule Z3."""
    flip(filled, BODY)

    store = Store.open(filled)
    name = message(BODY.decode())
    with store.read() as reader:
        with pytest.raises(DamagedObject, match=name.hex()):
            reader.object(name)
        with pytest.raises(DamagedObject):
            reader.object_domain(name)
        assert reader.object(message("one")) == b"one"
    assert codes(store) == {("object", name.hex())}
    store.close()


def test_a_changed_domain_is_damage_too(filled: Path) -> None:
    """Z3, I3: the domain is part of what the digest covers."""
    name = message("one")
    for value in (b"\x05one", b"\x63one", b""):
        set_raw(filled, b"o" + name, value)
        store = Store.open(filled)
        with store.read() as reader, pytest.raises(DamagedObject):
            reader.object(name)
        assert codes(store) == {("object", name.hex())}
        store.close()


def test_storing_a_damaged_object_again_mends_it(filled: Path) -> None:
    """Rule Z3."""
    flip(filled, BODY)
    store = Store.open(filled)

    store.write(lambda writer: writer.put_object("message", BODY))

    assert texts(store, A)[1] == BODY.decode()
    assert store.check() == ()
    store.close()


def test_a_record_that_cannot_be_read_is_an_error_and_the_check_goes_on(filled: Path) -> None:
    keys = {
        A: b"c" + A.encode(),
        f"{A}/2": b"r" + A.encode() + bytes(7) + b"\x02",
        f"{A}/1": b"q" + A.encode() + bytes(7) + b"\x01",
    }
    for value in (b"\xc1", b"", b"\x80", b"\x81\xa2id\xa1\xff"):
        for where, key in keys.items():
            store = Store.open(filled)
            with store._environment.reading() as session:
                before = session.txn.get(key)
            store.close()
            set_raw(filled, key, value)

            store = Store.open(filled)
            with pytest.raises(StoreError, match="cannot be read"):
                read_all(store)
            assert codes(store) == {("record", where)}
            store.close()
            set_raw(filled, key, before)


def test_the_check_finds_an_object_that_is_missing(filled: Path) -> None:
    set_raw(filled, b"o" + message("one"), None)

    store = Store.open(filled)
    assert codes(store) == {("missing", f"{A}/1")}
    store.close()


def test_the_check_finds_missing_and_stray_references(filled: Path) -> None:
    """Without its entry, forgetting another conversation would take the object away."""
    set_raw(filled, b"x" + message("one") + A.encode(), None)
    set_raw(filled, b"x" + message("one") + B.encode(), b"")

    store = Store.open(filled)
    assert codes(store) == {("reference", f"{A}/1"), ("stray", B)}
    store.close()


def test_the_check_finds_rows_and_requests_out_of_order(store: Store) -> None:
    add(store, A, "one", "two")
    lost = Delivery(text=message("one"), after=1, before=9)

    store.write(
        lambda writer: (
            writer.put_row(A, row(1, text="one", pred=2)),
            writer.put_row(A, row(2, text="two", pred=1, delivery=lost)),
            writer.put_row(A, row(7, text="two", pred=5)),
            writer.put_request(A, request(5, rows=(1, 8), parent=5)),
        )
    )

    assert [(p.code, p.where, p.detail) for p in store.check()] == [
        ("order", f"{A}/1", "it stands after row 2"),
        ("row", f"{A}/2", "there is no row 9"),
        ("order", f"{A}/7", "the next row is 3"),
        ("row", f"{A}/7", "there is no row 5"),
        ("order", f"{A}/5", "the next one is 2"),
        ("order", f"{A}/5", "its parent is 5"),
        ("row", f"{A}/5", "there is no row 8"),
    ]


def test_the_check_finds_a_base_that_is_missing_or_its_own(filled: Path) -> None:
    """Rule L2."""
    store = Store.open(filled)
    fork(store, A, B)
    store.write(
        lambda writer: writer.put_conversation(Conversation(id=A, base=B, next_row=4, next_seq=2))
    )
    assert codes(store) == {("base", A), ("base", B)}
    with store.read() as reader, pytest.raises(StoreError, match="base of itself"):
        list(reader.rows(A))
    store.close()
    set_raw(filled, b"c" + A.encode(), None)

    store = Store.open(filled)
    assert ("base", B) in codes(store)
    store.close()


def test_a_file_that_is_no_database_is_an_error(filled: Path) -> None:
    """Rule Z4."""
    (filled / "gen-1" / "data.mdb").write_bytes(b"not a database" * 1000)

    with pytest.raises(StoreError):
        Store.open(filled)
