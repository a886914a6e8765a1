"""What is told of a request, beyond what the command line's tests show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retention.errors import InvalidParams, UnknownConversation
from retention.inspecting import Explained, Explanation, explain
from retention.model import Cause, Continuity, Identity, Reason, Usage
from retention.store import Store, Writer
from tests.helpers import Adapter, assistant, message, section

EMPTY = Usage(input=5000, cached=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def chat(store: Store) -> Adapter:
    """A conversation of three requests."""
    adapter = Adapter(store)
    for text in ("one", "two", "three"):
        adapter.send(message(text), sections=[section()])
    return adapter


def told(store: Store, id: str, *numbers: int) -> Explanation:
    with store.read() as reader:
        return explain(reader, id, *numbers)


def newest(store: Store, id: str) -> Explained:
    return told(store, id).requests[0]


def lines(explained: Explained, label: str) -> list[str]:
    return [line.text for line in explained.lines if line.label == label]


def alter(store: Store, id: str, seq: int, **fields: Any) -> None:
    def apply(writer: Writer) -> None:
        record = writer.request(id, seq)
        assert record is not None
        writer.put_request(id, msgspec.structs.replace(record, **fields))

    store.write(apply)


def test_requests_are_told_from_the_newest_asked_for(store: Store, chat: Adapter) -> None:
    def numbers(*asked: int) -> list[int]:
        return [each.request for each in told(store, chat.id, *asked).requests]

    assert [numbers(), numbers(2), numbers(0, 2), numbers(2, 9), numbers(3, 0)] == [
        [3], [2], [3, 2], [2, 1], [3],
    ]  # fmt: skip


def test_what_the_views_read_crosses_the_wire_whatever_its_value(
    store: Store, chat: Adapter
) -> None:
    alter(store, chat.id, 3, turn=0, at=0.0, origin="")

    wire = msgspec.json.decode(msgspec.json.encode(told(store, chat.id)))

    assert wire["total"] == 3
    assert {"request", "turn", "at", "origin", "lines"} <= set(wire["requests"][0])
    assert set(wire["requests"][0]["lines"][0]) == {"label", "text"}


@pytest.mark.parametrize("request_number", [-1, 4])
def test_a_request_that_never_was_is_refused(
    store: Store, chat: Adapter, request_number: int
) -> None:
    with pytest.raises(InvalidParams, match="3 were sent"):
        told(store, chat.id, request_number)


def test_a_forgotten_conversation_that_a_fork_shares_is_not_told(
    store: Store, chat: Adapter
) -> None:
    for file in (__file__, "/copy.org"):
        chat.call("conversation/open", id=chat.id, file=file)
    chat.call("conversation/forget", id=chat.id)

    for id in (chat.id, "f" * 32):
        with pytest.raises(UnknownConversation):
            told(store, id)
    with store.read() as reader:
        assert reader.conversation(chat.id) is not None


def test_a_message_that_hosts_a_delivery_counts_once(store: Store) -> None:
    chat = Adapter(store)
    chat.shape = "merge"
    chat.send(message("one"), sections=[section()])
    chat.send(message("one"), assistant("answer"), message("two"), sections=[section(body="new")])

    found = newest(store, chat.id)

    assert (found.messages, found.kept, found.put_back, found.sections) == (3, 1, 1, ("env",))


def test_a_damaged_identity_is_not_shown(store: Store, chat: Adapter, tmp_path: Path) -> None:
    who = Identity(api="anthropic", model="to-be-damaged")
    name = store.write(lambda writer: writer.put_object("identity", msgspec.json.encode(who)))
    alter(store, chat.id, 3, identity=name)
    assert newest(store, chat.id).provider == "to-be-damaged at anthropic"
    store.close()
    for path in tmp_path.rglob("data.mdb"):
        path.write_bytes(path.read_bytes().replace(b"to-be-damaged", b"is-now-damage"))

    reopened = Store.open(tmp_path / "store")
    try:
        assert newest(reopened, chat.id).provider == name.hex()[:12]
    finally:
        reopened.close()


def test_what_was_not_compared_is_not_judged(store: Store, chat: Adapter) -> None:
    alter(store, chat.id, 3, continuity=None, usage=EMPTY)

    found = newest(store, chat.id)

    assert (found.judgement, lines(found, "Compared")) == ("", [])


def test_a_request_is_judged_by_the_last_one_to_the_same_provider(
    store: Store, chat: Adapter
) -> None:
    for seq, input in ((1, 7000), (2, 9000)):
        alter(store, chat.id, seq, usage=Usage(input=input, cached=0, written=input))
    alter(store, chat.id, 2, identity=bytes(32))
    alter(store, chat.id, 3, usage=EMPTY, continuity=Continuity(cause=Cause.NONE, tokens=1))

    assert "of about 7000 tokens" in newest(store, chat.id).judgement

    alter(store, chat.id, 1, identity=bytes(32))
    assert "of about 1 tokens" in newest(store, chat.id).judgement  # as predicted, none is known


def test_a_repair_is_told_once_and_not_as_a_reason_for_something_missing(
    store: Store, chat: Adapter
) -> None:
    reasons = (Reason(code="repaired", detail="joined"), Reason(code="no_boundary", detail="2"))
    alter(store, chat.id, 3, reasons=reasons)

    found = newest(store, chat.id)

    assert (lines(found, "Repaired"), len(lines(found, "Reason"))) == (["joined"], 1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('say "so"\n', "'say \"so\"\\n'"),
        ("", "nothing"),
        ("…", "a text that is not stored"),
    ],
)
def test_texts_that_differ_are_quoted(store: Store, chat: Adapter, text: str, shown: str) -> None:
    changed = Continuity(cause=Cause.EDITED, path="messages.0", after=text)
    alter(store, chat.id, 3, continuity=changed)

    assert lines(newest(store, chat.id), "  now") == [shown]


def test_sizes_are_told_in_kilobytes_where_they_are_large(store: Store, chat: Adapter) -> None:
    alter(store, chat.id, 3, bytes=40_249)

    assert lines(newest(store, chat.id), "Messages")[0].endswith("; 40.2 kB")
