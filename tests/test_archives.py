"""One conversation as one file, written, verified and read (rule L5)."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retention import archives
from retention.archives import export_conversation, import_conversation
from retention.digest import digest
from retention.errors import (
    ConversationExists,
    InvalidArchive,
    InvalidParams,
    UnknownConversation,
)
from retention.model import Event, EventKind, Source
from retention.store import Store
from tests.dialects import plain
from tests.helpers import Adapter, message, section
from tests.store.build import dump
from tests.store.build import flip as damage
from tests.test_lifecycle import retire, use_tool

U3, U4 = message("prompt 3"), message("prompt 4")
ENV = section("env", "sunny")
NOW = 1_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "other")
    yield store
    store.close()


@pytest.fixture
def chat(store: Store) -> Adapter:
    """A conversation with a call, deliveries, an output, something learned and retired history."""
    chat = Adapter(store)
    chat.call("conversation/open", id=chat.id, file="/home/somebody/chat.org")
    old = use_tool(chat, n=1, sections=[ENV])
    chat.call("output/save", conversation=chat.id, tool="read", body="a line\n" * 5_000)
    source = Source(
        id=f"c{chat.id}", owner=chat.id, kind="conversation", chunks=(), learner=1,
        events=(Event(kind=EventKind.USER, text=digest("blob", b"learned"), chars=7),),
        title="chat.org", path="/home/somebody/chat.org",
    )  # fmt: skip
    store.write(lambda writer: (writer.put_object("blob", b"learned"), writer.put_source(source)))
    retire(chat, *old)
    return chat


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "conversation.zip"


def test_import_into_another_store_goes_on_where_it_was(
    store: Store, other: Store, chat: Adapter, file: Path
):
    """L5: deliveries, fragments and outputs included."""
    history = use_tool(chat, n=2, sections=[ENV])
    name = chat.call("output/list", conversation=chat.id)["outputs"][0]["id"]
    expected = chat.prepare(*history, U3, sections=[ENV]).array

    exported = export_conversation(store, chat.id, file)
    found = import_conversation(other, file, NOW)

    moved = Adapter(other, chat.id)
    assert moved.prepare(*history, U3, sections=[ENV]).array == expected
    assert "a line" in moved.call("output/recall", id=name).text
    assert (found.created, found.record.id) == (True, chat.id)
    assert found.record.files == ()
    assert len(found.record.retired) == 1
    assert exported.missing == 0
    assert other.check() == ()
    assert other.collect().objects == {}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_fork_is_exported_with_what_it_shares(
    store: Store, other: Store, chat: Adapter, file: Path
):
    """L5, L2: it stands alone."""
    history = use_tool(chat, n=2)
    fork = Adapter(store, chat.call("conversation/fork", id=chat.id).id)
    fork.send(*history, U3)
    expected = fork.prepare(*history, U3, plain("yes"), U4).array

    export_conversation(store, fork.id, file)
    import_conversation(other, file, NOW)

    assert Adapter(other, fork.id).prepare(*history, U3, plain("yes"), U4).array == expected
    assert other.check() == ()


def test_importing_again_changes_nothing(store: Store, chat: Adapter, file: Path):
    """L5: the same conversation is there already, whatever its file is called now."""
    export_conversation(store, chat.id, file)
    chat.call("conversation/open", id=chat.id, file="/home/somebody/elsewhere.org")
    before = dump(store)

    assert not import_conversation(store, file, NOW).created
    assert dump(store) == before


def test_what_was_learned_since_makes_no_difference(
    store: Store, other: Store, chat: Adapter, file: Path
):
    """L5: learning happens by itself, and is not the conversation."""
    export_conversation(store, chat.id, file)
    import_conversation(other, file, NOW)
    for each in (store, other):
        Adapter(each, chat.id).call("evidence/learn", conversation=chat.id)

        assert not import_conversation(each, file, NOW).created


def test_names_of_files_stay_here(store: Store, chat: Adapter, file: Path):
    """L5: neither in the head record nor in what was learned."""
    export_conversation(store, chat.id, file)

    assert [name for name, data in unpack(file).items() if b"chat.org" in data] == []
    with store.read() as reader:
        assert next(reader.sources(chat.id)).path, "the store has it"


def test_an_old_conversation_is_used_when_it_is_imported(
    store: Store, other: Store, chat: Adapter, file: Path
):
    """L5, L6: it is not collected for its age right away, and is still the same."""
    export_conversation(store, chat.id, file)
    import_conversation(other, file, NOW)

    assert other.collect(unused_before=NOW).conversations == ()
    assert not import_conversation(other, file, NOW + 1).created


def test_a_different_conversation_is_never_overwritten(store: Store, chat: Adapter, file: Path):
    """L5: one that went on, and one that was forgotten while a fork lives."""
    export_conversation(store, chat.id, file)
    chat.send(U3)
    fork = chat.call("conversation/fork", id=chat.id).id
    before = dump(store)

    with pytest.raises(ConversationExists):
        import_conversation(store, file, NOW)
    assert dump(store) == before

    store.forget(chat.id)
    before = dump(store)
    with pytest.raises(ConversationExists):
        import_conversation(store, file, NOW)
    assert dump(store) == before
    assert fork


def test_as_new_it_gets_another_id(store: Store, chat: Adapter, file: Path):
    """L5: beside the one that is there; what was learned of that one stays its own."""
    export_conversation(store, chat.id, file)

    found = import_conversation(store, file, NOW, as_new=lambda: "b" * 32)

    assert found.record.id == "b" * 32
    with store.read() as reader:
        assert [*reader.rows("b" * 32)] == [*reader.rows(chat.id)]
        assert not [*reader.sources("b" * 32)]
    assert store.check() == ()
    assert store.collect().objects == {}


def test_equal_conversations_make_equal_files(store: Store, chat: Adapter, tmp_path: Path):
    """L5: whenever they are written."""
    files = [tmp_path / "one.zip", tmp_path / "two.zip"]
    for file in files:
        export_conversation(store, chat.id, file)

    assert files[0].read_bytes() == files[1].read_bytes()


def test_standard_tools_read_it(store: Store, chat: Adapter, file: Path):
    """L5: JSON lines, and objects under the digest of their bytes."""
    export_conversation(store, chat.id, file)

    with zipfile.ZipFile(file) as packed:
        assert packed.testzip() is None
        manifest = json.loads(packed.read("manifest.json"))
        rows = [json.loads(line) for line in packed.read("rows.jsonl").splitlines()]
        texts = [packed.read(name) for name in packed.namelist() if "/message/" in name]

    assert manifest == {"format": archives.FORMAT, "version": 1, "id": chat.id}
    assert [row["id"] for row in rows] == list(range(1, len(rows) + 1))
    assert any(b"prompt 1" in text for text in texts)


def test_a_damaged_object_is_left_out_and_named(
    store: Store, other: Store, chat: Adapter, file: Path
):
    """L5, Z3: the rest can be moved all the same."""
    text = b'{"role":"user","content":"prompt 1"}'
    store.close()
    damage(store.path, text)
    again = Store.open(store.path)

    assert export_conversation(again, chat.id, file).missing == 1
    import_conversation(other, file, NOW)
    assert [problem.code for problem in other.check()] == ["missing"]
    again.close()


def test_a_learned_text_that_is_missing_does_not_fail_the_import(
    store: Store, other: Store, chat: Adapter, file: Path
):
    """L5, Z3: with an index beside the store as well."""
    chat.call("evidence/learn", conversation=chat.id)
    chat.service.close()
    store.close()
    damage(store.path, b"prompt 1")
    again = Store.open(store.path)
    assert export_conversation(again, chat.id, file).missing
    again.close()
    there = Adapter(other)
    there.call("evidence/search", query="anything")

    assert there.call("conversation/import", file=str(file)).created
    assert there.call("evidence/search", query="prompt").hits == ()


def test_export_refuses_what_it_cannot_do_and_leaves_no_file(
    store: Store, chat: Adapter, file: Path
):
    with pytest.raises(UnknownConversation):
        export_conversation(store, "f" * 32, file)
    assert not file.exists()
    with pytest.raises(InvalidParams):
        export_conversation(store, chat.id, file / "nowhere.zip")
    file.write_text("mine")
    with pytest.raises(InvalidParams):
        export_conversation(store, chat.id, file)
    assert file.read_text() == "mine"


# Files that are not what they should be


Members = dict[str, bytes]


def unpack(file: Path) -> Members:
    with zipfile.ZipFile(file) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def pack(file: Path, members: Members) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data)


def edited(name: str, change: Callable[[Any], Any]) -> Callable[[Members], Members]:
    """Return a change of the JSON in member NAME; of a list, of its first line."""

    def apply(members: Members) -> Members:
        first, newline, rest = members[name].partition(b"\n")
        value = json.loads(first)
        changed = msgspec.json.encode(change(value) or value)
        return members | {name: changed + newline + rest}

    return apply


def without(part: str) -> Callable[[Members], Members]:
    def apply(members: Members) -> Members:
        gone = next(name for name in members if part in name)
        return {name: data for name, data in members.items() if name != gone}

    return apply


def added(name: str, data: bytes = b"x") -> Callable[[Members], Members]:
    return lambda members: members | {name: data}


def swapped(members: Members) -> Members:
    name = next(name for name in members if "/message/" in name)
    return members | {name: members[name] + b" "}


STRAY = "objects/blob/" + digest("blob", b"stray").hex()
UPWARD = "../../../etc/passwd"
HOSTILE: dict[str, Callable[[Members], Members]] = {
    "other-format": edited("manifest.json", lambda m: m | {"format": "other"}),
    "newer-version": edited("manifest.json", lambda m: m | {"version": 2}),
    "no-manifest": without("manifest.json"),
    "no-rows": without("rows.jsonl"),
    "no-object": without("/message/"),
    "other-bytes": swapped,
    "path-upward": added(UPWARD),
    "path-absolute": added("/etc/passwd"),
    "path-inside": added("objects/blob/../../x"),
    "unknown-kind": added("objects/program/" + "a" * 64),
    "stray-object": added(STRAY, b"stray"),
    "not-json": added("rows.jsonl", b"{\n"),
    "deep-json": added("rows.jsonl", b"[" * 100_000),
    "wrong-type": edited("rows.jsonl", lambda r: r | {"id": "one"}),
    "huge-number": edited("rows.jsonl", lambda r: r | {"id": 1 << 70}),
    "row-zero": edited("rows.jsonl", lambda r: r | {"id": 0}),
    "row-twice": lambda members: members | {"rows.jsonl": members["rows.jsonl"] * 2},
    "unknown-row": edited("rows.jsonl", lambda r: r | {"pred": 99}),
    "later-pred": edited("rows.jsonl", lambda r: r | {"pred": 2}),
    "next-row": edited("conversation.json", lambda c: c | {"next_row": 2}),
    "request-of-no-row": edited("requests.jsonl", lambda r: r | {"rows": [99]}),
    "retires-no-row": edited(
        "conversation.json",
        lambda c: c | {"retired": [{"at": 0, "rows": [[1, 1 << 60]], "end": []}]},
    ),
    "fork": edited("conversation.json", lambda c: c | {"base": "c" * 32, "base_rows": 2}),
    "forgotten": edited("conversation.json", lambda c: c | {"forgotten": True}),
    "files": edited("conversation.json", lambda c: c | {"files": ["/home/victim/chat.org"]}),
    "empty-digest": edited("rows.jsonl", lambda r: r | {"parts": [""]}),
    "long-digest": edited("rows.jsonl", lambda r: r | {"parts": ["A" * 1_000]}),
    "follows-itself": edited("requests.jsonl", lambda r: r | {"parent": r["seq"], "keep": 1}),
    "follows-nothing": edited("requests.jsonl", lambda r: r | {"parent": -1, "keep": 1}),
    "keeps-less": edited("requests.jsonl", lambda r: r | {"keep": -1}),
    "next-request": edited("conversation.json", lambda c: c | {"next_seq": 1 << 60}),
    "next-round": edited("conversation.json", lambda c: c | {"next_round": (1 << 63) - 1}),
    "begins-inside": edited("requests.jsonl", lambda r: r | {"inside": r["rows"]}),
    "long-output": edited("outputs.jsonl", lambda o: o | {"id": "o" * 500}),
    "long-source": edited("sources.jsonl", lambda s: s | {"id": "c" * 500}),
    "source-with-file": edited("sources.jsonl", lambda s: s | {"path": "/ssh:elsewhere:/x"}),
    "source-of-another": edited("sources.jsonl", lambda s: s | {"owner": "c" * 32}),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bad_file_is_refused_and_changes_nothing(
    store: Store, other: Store, chat: Adapter, file: Path, case: str
):
    """L5: nothing is written, in the store or anywhere else."""
    export_conversation(store, chat.id, file)
    pack(file, HOSTILE[case](unpack(file)))
    before, around = dump(other), sorted(file.parent.iterdir())

    with pytest.raises(InvalidArchive):
        import_conversation(other, file, NOW)

    assert dump(other) == before
    assert sorted(file.parent.iterdir()) == around


def test_a_bad_id_is_refused(store: Store, other: Store, chat: Adapter, file: Path):
    export_conversation(store, chat.id, file)
    rename = edited("conversation.json", lambda c: c | {"id": "../x"})
    pack(file, rename(unpack(file)))

    with pytest.raises(InvalidParams):
        import_conversation(other, file, NOW)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_another_compression_is_refused(
    store: Store, other: Store, chat: Adapter, file: Path, method: int
):
    """L5: with LZMA the archive says how much memory reading takes."""
    export_conversation(store, chat.id, file)
    members = unpack(file)
    with zipfile.ZipFile(file, "w", method) as packed:
        for name, data in members.items():
            packed.writestr(name, data)

    with pytest.raises(InvalidArchive, match="compressed"):
        import_conversation(other, file, NOW)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(
    store: Store, other: Store, chat: Adapter, file: Path, share: float
):
    """L5."""
    export_conversation(store, chat.id, file)
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    before = dump(other)

    with pytest.raises(InvalidArchive):
        import_conversation(other, file, NOW)
    assert dump(other) == before


def test_any_flipped_byte_is_found_or_changes_nothing_that_counts(
    store: Store, other: Store, chat: Adapter, file: Path
):
    """L5: what is stored is what was exported, or nothing."""
    export_conversation(store, chat.id, file)
    import_conversation(other, file, NOW)
    expected = dump(other)
    other.forget(chat.id)
    empty = dump(other)
    data = file.read_bytes()

    for at in range(0, len(data), 211):
        file.write_bytes(data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :])
        try:
            import_conversation(other, file, NOW)
        except InvalidArchive:
            assert dump(other) == empty
        else:
            assert dump(other) == expected
            other.forget(chat.id)


@pytest.mark.parametrize("limit", ["MAX_MEMBER", "MAX_TOTAL", "MAX_MEMBERS"])
def test_a_file_that_unpacks_to_too_much_is_refused(
    other: Store, chat: Adapter, file: Path, limit: str, monkeypatch: pytest.MonkeyPatch
):
    """L5: ten megabytes in ten kilobytes, say."""
    export_conversation(chat.store, chat.id, file)
    pack(file, unpack(file) | {STRAY: b"0" * 10_000_000})
    assert file.stat().st_size < 100_000
    monkeypatch.setattr(archives, limit, 10)

    with pytest.raises(InvalidArchive, match="than is read"):
        import_conversation(other, file, NOW)


def test_no_more_is_unpacked_than_the_file_says(
    store: Store, other: Store, chat: Adapter, file: Path, monkeypatch: pytest.MonkeyPatch
):
    """L5: a member that states a smaller size than it has is damaged."""
    export_conversation(store, chat.id, file)
    members = unpack(file)
    pack(file, members | {STRAY: b"0" * 1_000_000})
    data = file.read_bytes()
    size = (1_000_000).to_bytes(4, "little")
    assert size in data
    file.write_bytes(data.replace(size, (100).to_bytes(4, "little")))
    read: list[int] = []
    original = archives._member

    def watched(packed: zipfile.ZipFile, name: str) -> bytes:
        found = original(packed, name)
        read.append(len(found))
        return found

    monkeypatch.setattr(archives, "_member", watched)
    with pytest.raises(InvalidArchive):
        import_conversation(other, file, NOW)
    assert max(read, default=0) < 1_000_000


def test_what_is_no_archive_is_refused(other: Store, file: Path):
    with pytest.raises(InvalidParams):
        import_conversation(other, file, NOW)
    with pytest.raises(InvalidParams):
        import_conversation(other, file.parent, NOW)
    file.write_bytes(b"not a zip file")
    with pytest.raises(InvalidArchive):
        import_conversation(other, file, NOW)
