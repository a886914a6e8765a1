"""What is written is read back, in order, and only then."""

from __future__ import annotations

import msgspec
import pytest

from retention.digest import digest
from retention.errors import InvalidParams, UnknownConversation, UnknownObject
from retention.model import Conversation, Delivery, Output, Reason, Refusal, SectionState
from retention.store import Store, Writer
from tests.store.build import (
    IDENTITY,
    A,
    B,
    C,
    add,
    dump,
    fork,
    message,
    objects,
    request,
    row,
    texts,
)


def test_records_come_back_equal(store: Store) -> None:
    delivery = Delivery(
        text=digest("delivery", b"text"),
        after=1,
        sections=(SectionState(name="env", body=digest("section", b"body")),),
        reminders=("key",),
        turn=3,
    )
    record = Conversation(
        id=A,
        version=7,
        next_row=9,
        files=("/some/file.org",),
        conditions={"key": "state"},
        refusal=Refusal(identity=IDENTITY, step=2, status=400),
    )
    rows = [
        row(1, text="é \U0001f600"),
        row(2, delivery=delivery),
    ]
    sent = request(1, changed={1: message("x")}, reasons=(Reason(code="edited"),), head=IDENTITY)

    def apply(writer: Writer) -> None:
        writer.put_conversation(record)
        for each in rows:
            writer.put_row(A, each)
        writer.put_request(A, sent)

    store.write(apply)

    with store.read() as reader:
        assert reader.conversation(A) == record
        assert list(reader.conversations()) == [record]
        assert list(reader.rows(A)) == rows
        assert reader.request(A, 1) == sent


def test_what_is_not_there_is_none_or_empty(store: Store) -> None:
    with store.read() as reader:
        assert reader.conversation(A) is None
        assert list(reader.rows(A)) == []
        assert reader.row_count(A) == 0
        assert reader.request(A, 1) is None
        assert reader.requests(A, 10) == []
        with pytest.raises(UnknownObject):
            reader.object(message("nothing"))


def test_rows_ascend_past_a_byte_boundary(store: Store) -> None:
    """Numbers in keys are big-endian: row 256 comes after row 255."""
    add(store, A, *(str(n) for n in range(300)))
    add(store, B, "other")

    with store.read() as reader:
        assert [each.id for each in reader.rows(A)] == list(range(1, 301))
        assert reader.row_count(A) == 300


def test_requests_are_newest_first_and_of_one_conversation(store: Store) -> None:
    for _ in range(300):
        add(store, B, "x")
    add(store, A, "x")
    add(store, C, "x")

    with store.read() as reader:
        assert [each.seq for each in reader.requests(B, 3)] == [300, 299, 298]
        assert [each.seq for each in reader.requests(C, 3)] == [1]
        assert [each.seq for each in reader.requests(A, 3)] == [1]
        assert reader.requests(B, 0) == []


def test_a_row_is_replaced_whole(store: Store) -> None:
    add(store, A, "one", "two")

    store.write(lambda writer: writer.put_row(A, row(1, text="two", round=5)))

    with store.read() as reader:
        assert list(reader.rows(A)) == [row(1, text="two", round=5), row(2, text="two")]


def test_an_object_is_stored_once_and_found_by_prefix(store: Store) -> None:
    first = store.write(lambda writer: writer.put_object("message", b"body"))
    second = store.write(lambda writer: writer.put_object("message", b"body"))
    other = store.write(lambda writer: writer.put_object("section", b"body"))

    assert first == second != other
    with store.read() as reader:
        assert reader.object(first) == reader.object(other) == b"body"
        assert (reader.object_domain(first), reader.object_domain(other)) == ("message", "section")
        for digits in (1, 7, 8, 64):
            assert reader.find_objects(first.hex()[:digits].upper())[:1] == [first] or digits == 1
            assert first in reader.find_objects(first.hex()[:digits])
        assert reader.find_objects("") == sorted((first, other))
        assert reader.find_objects("", limit=1) == sorted((first, other))[:1]
        assert reader.find_objects("xyz") == reader.find_objects("0" * 65) == []


def test_an_empty_and_a_large_object_come_back(store: Store) -> None:
    large = bytes(range(256)) * 4096
    names = [store.write(lambda w, d=d: w.put_object("head", d)) for d in (b"", large)]

    with store.read() as reader:
        assert [reader.object(name) for name in names] == [b"", large]


def test_nothing_is_written_when_apply_raises(store: Store) -> None:
    add(store, A, "one")
    before = dump(store)

    def apply(writer: Writer) -> None:
        writer.put_object("message", b"two")
        writer.put_row(A, row(2, text="two"))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        store.write(apply)

    assert dump(store) == before


def test_a_writer_sees_its_own_writes_and_a_reader_its_snapshot(store: Store) -> None:
    add(store, A, "one")

    def apply(writer: Writer) -> int:
        writer.put_row(A, row(2, text="one"))
        return writer.row_count(A)

    assert store.write(apply) == 2


@pytest.mark.parametrize("id", ["", "a" * 31, "A" * 32, "a" * 33, "../" + "a" * 29, "é" * 32])
def test_a_malformed_id_is_refused_and_changes_nothing(store: Store, id: str) -> None:
    before = dump(store)

    with store.read() as reader, pytest.raises(InvalidParams):
        reader.conversation(id)
    with pytest.raises(InvalidParams):
        store.write(lambda writer: writer.put_conversation(Conversation(id=id)))

    assert dump(store) == before


def test_rows_and_requests_need_their_conversation(store: Store) -> None:
    with pytest.raises(UnknownConversation):
        store.write(lambda writer: writer.put_row(A, row()))
    with pytest.raises(UnknownConversation):
        store.write(lambda writer: writer.put_request(A, request()))


# L2: forks


def test_a_fork_shares_its_past_and_goes_its_own_way(store: Store) -> None:
    """L2: nothing is copied, and neither sees what the other adds."""
    add(store, A, "one", "two")
    size = len(dump(store))
    fork(store, A, B)
    assert len(dump(store)) == size + 1

    add(store, A, "three of a")
    add(store, B, "three of b")

    assert texts(store, A) == ["one", "two", "three of a"]
    assert texts(store, B) == ["one", "two", "three of b"]
    assert store.check() == ()


def test_a_fork_of_a_fork_shares_both_pasts(store: Store) -> None:
    """Rule L2."""
    add(store, A, "one")
    fork(store, A, B)
    add(store, B, "two")
    fork(store, B, C)
    add(store, C, "three")
    add(store, B, "hidden from c")
    add(store, A, "hidden from both")

    assert texts(store, C) == ["one", "two", "three"]
    with store.read() as reader:
        assert reader.row_count(C) == 3
    assert store.check() == ()


def test_a_fork_below_the_point_where_its_base_forked_shares_less(store: Store) -> None:
    """Rule L2."""
    add(store, A, "one", "two", "three")
    fork(store, A, B)
    add(store, B, "four")
    record = Conversation(id=C, base=B, base_rows=3, next_row=3)
    store.write(lambda writer: writer.put_conversation(record))

    assert texts(store, C) == ["one", "two"]


def test_a_fork_that_replaces_a_shared_row_leaves_its_base_alone(store: Store) -> None:
    """Rule L2."""
    add(store, A, "one", "two")
    fork(store, A, B)

    store.write(lambda writer: writer.put_row(B, row(1, text="two", round=9)))

    with store.read() as reader:
        assert [each.round for each in reader.rows(A)] == [0, 0]
        assert [each.round for each in reader.rows(B)] == [9, 0]
        assert reader.row_count(B) == 2


def test_a_fork_needs_a_base_that_is_there(store: Store) -> None:
    """Rule L2."""
    with pytest.raises(UnknownConversation):
        store.write(lambda writer: writer.put_conversation(Conversation(id=B, base=A, base_rows=1)))
    assert objects(store) == set()


def test_fields_of_a_later_version_are_ignored(store: Store) -> None:
    """A field with a default can be added without a new format."""
    add(store, A, "one")
    with store._environment.reading() as session:
        value = session.get(b"c", A.encode())
    assert value is not None
    later = msgspec.msgpack.decode(value) | {"unheard_of": 1}

    store._environment.write(
        lambda session: session.put(b"c", A.encode(), msgspec.msgpack.encode(later))
    )

    with store.read() as reader:
        found = reader.conversation(A)
    assert found is not None
    assert found.next_row == 2


def test_outputs_are_numbered_and_the_newest_come_first(store: Store) -> None:
    add(store, A, "hello")
    keep(store, A, b"first", b"second")

    with store.read() as reader:
        assert [output.number for output in reader.outputs(A, 5)] == [2, 1]
        assert [output.number for output in reader.outputs(A, 1)] == [2]
        assert reader.output(A, 1) == reader.outputs(A, 5)[1]
        assert reader.output(A, 3) is None
        assert reader.object(reader.outputs(A, 1)[0].blob) == b"second"
    assert store.check() == ()


def test_what_an_output_names_must_be_there(store: Store) -> None:
    add(store, A, "hello")
    keep(store, A, b"kept")
    lost = digest("blob", b"lost")

    store.write(lambda writer: writer.put_output(A, Output(number=2, id="x", blob=lost, tool="t")))

    assert {problem.code for problem in store.check()} == {"missing"}


def test_forgetting_takes_outputs_that_no_other_conversation_has(store: Store) -> None:
    for id in (A, B):
        add(store, id, "hello")
        keep(store, id, b"shared", id.encode())

    store.forget(A)

    with store.read() as reader:
        assert reader.outputs(A, 5) == []
        assert reader.object(digest("blob", b"shared")) == b"shared"
        with pytest.raises(UnknownObject):
            reader.object(digest("blob", A.encode()))
    assert store.check() == ()


def keep(store: Store, id: str, *blobs: bytes) -> None:
    """Keep each of BLOBS as an output of conversation ID."""

    def apply(writer: Writer) -> None:
        for number, data in enumerate(blobs, 1):
            blob = writer.put_object("blob", data)
            writer.put_output(id, Output(number=number, id=blob.hex()[:12], blob=blob, tool="t"))

    store.write(apply)
