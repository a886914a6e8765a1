"""Learning: live conversations, outputs and files become sources, each exactly (V1, V2, V9)."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retention import indexing, learning, rechunking, sources
from retention.digest import digest
from retention.errors import InvalidParams, StoreError, UnknownConversation, UnknownObject
from retention.evidence import chunking
from retention.evidence.views import VIEW
from retention.index import Index
from retention.model import EventKind, Source
from retention.store import Store
from retention.store.tables import OBJECTS
from tests.dialects import ARRAYS
from tests.helpers import (
    Adapter,
    assistant,
    call,
    identity,
    message,
    result,
    section,
    thinking,
)

APIS = sorted(ARRAYS | {"anthropic": "messages", "openai": "messages"})


def play(chat: Adapter) -> None:
    """One turn with reasoning, two calls and their results, and the answer to it."""
    asked = message("Which wombat lives in the burrow?")
    calls = assistant(
        thinking("I should look at the burrow"),
        "Let me look.",
        call("look", "c1", where="burrow"),
        call("weigh", "c2", unit="kg"),
    )
    results = result("a marsupial named Ottoline", "31 kg")
    answer = assistant("It is Ottoline, of 31 kg.")
    chat.send(asked, sections=[section("goal", "find the wombat")])
    chat.loop(calls, results, response=[calls])
    chat.end(answer, response=[answer])


def learn(chat: Adapter, **params: Any) -> Any:
    return chat.call("evidence/learn", **params).sources


def source(store: Store, id: str) -> Source:
    with store.read() as reader:
        found = reader.find_source(id)
    assert found is not None
    return found


def text(store: Store, id: str) -> str:
    with store.read() as reader:
        found = reader.find_source(id)
        assert found is not None
        return sources.read_text(reader, found)


def search(chat: Adapter, query: str, **params: Any) -> Any:
    return chat.call("evidence/search", query=query, **params)


# Live conversations


@pytest.mark.parametrize("api", APIS)
def test_a_conversation_is_learned_as_events_with_their_kinds(store: Store, api: str) -> None:
    """V1: what was said, thought, called and returned, and what was delivered."""
    chat = Adapter(store, api=api)
    play(chat)
    [learned] = learn(chat, conversation=chat.id)
    found = source(store, learned.source)

    kinds = [event.kind for event in found.events]
    told = text(store, learned.source)
    for kind in ("user", "assistant", "tool_call", "tool_output", "delivery"):
        assert EventKind(kind) in kinds
    for words in ("wombat lives", "find the wombat", "Let me look.", "a marsupial named Ottoline",
                  "It is Ottoline, of 31 kg."):  # fmt: skip
        assert told.count(words) == 1
    tools = [event.tool for event in found.events if event.kind is EventKind.TOOL_OUTPUT]
    assert tools == ["look", "weigh"]
    calls = [json.loads(event.call) for event in found.events if event.tool == "look"]
    assert calls == [{"where": "burrow"}] * 2
    chat.service.close()


def test_reasoning_is_learned_where_it_can_be_read(store: Store, chat: Adapter) -> None:
    play(chat)
    [learned] = learn(chat, conversation=chat.id)

    events = source(store, learned.source).events
    assert [event.kind for event in events].count(EventKind.ANALYSIS) == 1
    assert "I should look at the burrow" in text(store, learned.source)
    assert "sig" not in text(store, learned.source)


def test_learning_twice_changes_nothing(store: Store, chat: Adapter) -> None:
    play(chat)
    [first] = learn(chat, conversation=chat.id)
    before = source(store, first.source)
    [second] = learn(chat, conversation=chat.id)

    assert (first.changed, second.changed) == (True, False)
    assert source(store, first.source) == before


def test_another_turn_is_found_and_nothing_is_found_twice(store: Store, chat: Adapter) -> None:
    """V1: a changed conversation is rechunked whole; what the index had of it is replaced."""
    play(chat)
    learn(chat, conversation=chat.id)
    chat.send(message("Which wombat lives in the burrow?"), assistant("It is Ottoline, of 31 kg."),
              message("And the platypus?"))  # fmt: skip
    chat.end(assistant("No platypus here."))
    [learned] = learn(chat, conversation=chat.id)

    assert learned.changed
    assert [hit.source for hit in search(chat, "platypus").hits] == [learned.source]
    assert len(search(chat, "Ottoline").hits) == 1


def test_a_conversation_that_changed_since_waits_and_then_does_not(
    store: Store, chat: Adapter
) -> None:
    play(chat)
    assert learning.waiting(store) == [chat.id]
    learn(chat, conversation=chat.id)
    assert learning.waiting(store) == []


def test_what_was_collected_since_stays_as_it_was_learned(store: Store, chat: Adapter) -> None:
    """L6, V1: compaction takes texts out of the log, not out of what was learned."""
    play(chat)
    [before] = learn(chat, conversation=chat.id)
    whole = text(store, before.source)
    with store.read() as reader:
        rows = list(reader.rows(chat.id))[:3]
    gone = [msgspec.structs.replace(row, exact=digest("message", b"gone")) for row in rows]
    store.write(lambda writer: [writer.put_row(chat.id, row) for row in gone])
    [after] = learn(chat, conversation=chat.id)

    assert (after.changed, text(store, after.source)) == (False, whole)
    assert "Which wombat lives" in whole


def test_a_fork_tells_what_it_shares(store: Store, chat: Adapter, tmp_path: Path) -> None:
    """L2: the rows of a base are read as the API has them that the base was sent to."""
    file = tmp_path / "one.org"
    file.touch()
    chat.call("conversation/open", id=chat.id, file=str(file))
    play(chat)
    other = chat.call("conversation/open", id=chat.id, file=str(tmp_path / "two.org"))
    assert other.forked == chat.id
    [learned] = learn(chat, conversation=other.id)

    assert "a marsupial named Ottoline" in text(store, learned.source)


SWITCHES = [(ours, theirs) for ours in APIS for theirs in ("anthropic", "openai", "gemini")]


def switch(chat: Adapter, api: str) -> None:
    """Go on with another API, of which nothing is held."""
    chat.api, chat.identity = api, msgspec.to_builtins(identity(api, "other"))
    chat.ordinary, chat.sent, chat.held = ("", []), ("", []), {}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(("before", "after"), SWITCHES)
def test_each_message_is_read_as_the_api_has_it_that_it_is_of(
    store: Store, before: str, after: str, recorded: bool
) -> None:
    """V1: also the answer that another API was sent first, whether it was RECORDED or is only known
    as gptel rebuilds it.
    """
    chat = Adapter(store, api=before)
    calls = assistant("Let me look.", call("look", "c1", where="burrow"))
    elements = [message("Which wombat?"), calls, result("a marsupial"), assistant("Ottoline.")]
    chat.send(elements[0])
    chat.loop(*elements[1:3], response=[calls] if recorded else None)
    chat.end(elements[3], response=[elements[3]] if recorded else None)
    learn(chat, conversation=chat.id)
    switch(chat, after)
    chat.send(*elements, message("And the platypus?"))
    chat.end(assistant("None."))
    [learned] = learn(chat, conversation=chat.id)

    told = [(event.kind.value, event.tool) for event in source(store, learned.source).events]
    assert sorted(told) == sorted([
        ("user", ""), ("assistant", ""), ("tool_call", "look"), ("tool_output", "look"),
        ("assistant", ""), ("user", ""), ("assistant", ""),
    ])  # fmt: skip
    assert learned.warnings == ()
    chat.service.close()


def test_what_no_api_reads_is_plain_text_with_a_warning(store: Store, chat: Adapter) -> None:
    """V2: it is not left out."""
    play(chat)
    with store.read() as reader:
        [asked, *_] = reader.rows(chat.id)
    odd = store.write(lambda writer: writer.put_object("message", b'{"odd": "numbat"}'))
    store.write(lambda writer: writer.put_row(chat.id, msgspec.structs.replace(asked, exact=odd)))
    [learned] = learn(chat, conversation=chat.id)

    assert source(store, learned.source).events[0].kind is EventKind.TEXT
    assert '{"odd": "numbat"}' in text(store, learned.source)
    assert learned.warnings[0].startswith("1 messages")


@pytest.mark.parametrize("api", ["gemini", "ollama"])
def test_a_call_that_was_broken_off_gets_no_later_result(store: Store, api: str) -> None:
    """V1: of APIs whose calls have no ids."""
    chat = Adapter(store, api=api)
    broken, calls = assistant(call("look", "c1")), assistant(call("weigh", "c2"))
    chat.send(message("Look."))
    chat.end(broken, response=[broken])
    chat.send(message("Look."), broken, message("Then weigh."))
    chat.loop(calls, result("31 kg", ids=["c2"]), response=[calls])
    [learned] = learn(chat, conversation=chat.id)

    events = source(store, learned.source).events
    assert [e.tool for e in events if e.kind is EventKind.TOOL_OUTPUT] == ["weigh"]
    chat.service.close()


def test_a_conversation_is_found_where_its_file_is_now(
    store: Store, chat: Adapter, tmp_path: Path
) -> None:
    for name in ("old.org", "new.org"):
        chat.call("conversation/open", id=chat.id, file=str(tmp_path / name))
    play(chat)
    learn(chat, conversation=chat.id)
    [hit] = search(chat, "Ottoline").hits

    assert (hit.path, hit.title) == (str(tmp_path / "new.org"), "new.org")


def test_a_new_learner_learns_everything_anew(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V1: its version is kept with each source, and nothing else makes it learn again."""
    saved = chat.call("output/save", conversation=chat.id, tool="make", body=LOG)
    play(chat)
    learn(chat, conversation=chat.id)
    assert (learning.waiting(store), learning.outputs_to_learn(store, chat.id)) == ([], [])
    monkeypatch.setattr(chunking, "LEARNER", chunking.LEARNER + 1)

    assert learning.waiting(store) == [chat.id]
    assert [output.id for output in learning.outputs_to_learn(store, chat.id)] == [saved.id]
    assert [each.changed for each in learn(chat, conversation=chat.id)] == [True, True]
    assert (learning.waiting(store), learning.outputs_to_learn(store, chat.id)) == ([], [])


def test_an_output_that_was_saved_since_waits(store: Store, chat: Adapter) -> None:
    """Also of a conversation without requests: one of an engine's."""
    chat.call("output/save", conversation=chat.id, tool="make", body=LOG)
    assert learning.waiting(store) == [chat.id]
    learn(chat, conversation=chat.id)
    assert learning.waiting(store) == []


def test_a_damaged_object_is_absent_and_the_rest_is_learned(store: Store, chat: Adapter) -> None:
    """Z3."""
    saved = chat.call("output/save", conversation=chat.id, tool="make", body=LOG)
    play(chat)
    with store.read() as reader:
        [output] = reader.outputs(chat.id, 1)
    for name in (output.excerpt, output.blob):
        store._environment.write(lambda session, name=name: session.put(OBJECTS, name, b"\x08?"))
    learned = learn(chat, conversation=chat.id)

    assert [each.kind for each in learned] == ["conversation"]
    assert "Ottoline" in text(store, learned[0].source)
    assert saved.id


def test_unknown_conversation_is_refused(chat: Adapter) -> None:
    with pytest.raises(UnknownConversation):
        learn(chat, conversation="f" * 32)


# Outputs

LOG = "".join(f"step {n} of the build went fine\n" for n in range(900))


def test_an_output_is_learned_whole_and_its_excerpt_adds_no_second_hit(
    store: Store, chat: Adapter
) -> None:
    """V1: a line that the excerpt left out is found, one that it kept is found once."""
    whole = LOG.replace("step 450 of the build", "ERROR the numbat escaped at step 450")
    saved = chat.call("output/save", conversation=chat.id, tool="make", body=whole)
    assert saved.id
    chat.send(message("build"))
    calls = assistant(call("make", "c1"))
    chat.loop(calls, result(saved.text), response=[calls])
    chat.end(assistant("It failed."))
    learned = learn(chat, conversation=chat.id)

    assert [each.kind for each in learned] == ["output", "conversation"]
    hits = search(chat, "numbat escaped").hits
    assert [hit.source for hit in hits] == [saved.id]
    assert text(store, saved.id) == whole
    assert f"[output {saved.id}, stored whole]" in text(store, learned[-1].source)
    assert "step 123 of the build" in search(chat, "step 123").hits[0].excerpt


def test_the_error_cluster_of_an_output_is_named(store: Store, chat: Adapter) -> None:
    """V4: beside its one chunk, with an id of its own; the two are one hit."""
    whole = LOG.replace("step 450 of the build", "ERROR the numbat escaped at step 450")
    saved = chat.call("output/save", conversation=chat.id, tool="make", body=whole)
    learn_outputs = chat.call("evidence/learn", conversation=chat.id).sources
    assert learn_outputs[0].source == saved.id
    names = [chunk.name for chunk in source(store, saved.id).chunks]

    assert names == ["", "error1"]
    [hit] = search(chat, "numbat").hits
    page = chat.call("evidence/expand", id=f"{saved.id}:error1")
    assert "numbat escaped" in page.text
    assert hit.id in {saved.id, f"{saved.id}:error1"}


# Files


def test_a_text_is_learned_exactly_and_expanded_exactly(
    store: Store, chat: Adapter, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    body = "first\r\nsecond \x00 \f é\nlast without end".encode() + b"\xff"
    file.write_bytes(body)
    [learned] = learn(chat, path=str(file))

    assert sources.encode(text(store, learned.source)) == body
    assert learned.warnings
    assert list(rechunking.find_faults(store)) == []


def test_a_text_that_is_no_chat_is_left_alone_unless_it_is_named(
    chat: Adapter, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing of a chat\n")

    assert learn(chat, path=str(file), plain=False) == ()
    assert len(learn(chat, path=str(file))) == 1


def test_what_is_no_file_is_not_read(chat: Adapter, tmp_path: Path) -> None:
    """A pipe would keep the backend waiting for ever."""
    pipe = tmp_path / "pipe.org"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(InvalidParams):
            learn(chat, path=str(path))


def test_only_a_name_of_a_run_makes_a_log_that_of_a_run(chat: Adapter, tmp_path: Path) -> None:
    """Logs of one day are not one log."""
    line = "build\tTest\t2026-03-05T06:33:20.1Z ##[error]disk full\n"
    names = ("20260305-one.log", "20260305-two.log", "30524190877.failed.log")
    for name in names:
        (tmp_path / name).write_text(line)
    learned = [learn(chat, path=str(tmp_path / name))[0].source for name in names]

    assert len(set(learned)) == 3
    assert learned[2] == "30524190877.failed"


@pytest.mark.parametrize("path", ["relative.org", "/no/such/file.org", "/no\0file.org"])
def test_a_file_that_cannot_be_read_is_refused(chat: Adapter, path: str) -> None:
    with pytest.raises(InvalidParams):
        learn(chat, path=path)


def test_a_changed_file_replaces_what_was_learned_of_it(
    store: Store, chat: Adapter, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("the quokka smiles\n")
    [first] = learn(chat, path=str(file))
    file.write_text("the bilby digs\n")
    [second] = learn(chat, path=str(file))

    assert (first.source, second.changed) == (second.source, True)
    assert search(chat, "quokka").hits == ()
    assert len(search(chat, "bilby").hits) == 1


def test_a_file_that_was_only_touched_has_its_new_time_also_in_the_index(
    chat: Adapter, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("the quokka smiles\n")
    learn(chat, path=str(file))
    os.utime(file, (5.0, 5.0))
    [learned] = learn(chat, path=str(file))

    assert not learned.changed
    assert len(search(chat, "quokka", until=6.0).hits) == 1
    assert search(chat, "quokka", since=6.0).hits == ()


# The index follows the store


def test_an_index_that_was_deleted_is_made_anew(store: Store, chat: Adapter) -> None:
    """V9: from the store, and it is never trusted as it is."""
    play(chat)
    learn(chat, conversation=chat.id)
    chat.service.close()
    for file in (store.path / "index").iterdir():
        file.unlink()
    lost = search(chat, "Ottoline")
    assert (lost.hits, "0 of 1 sources" in lost.note) == ((), True)

    for _ in indexing.reconcile(store, chat.service.index()):
        pass

    found = search(chat, "Ottoline")
    assert (len(found.hits), found.note) == (1, "")


def test_a_source_that_its_chunks_do_not_rebuild_is_named_and_never_indexed(
    store: Store, chat: Adapter, tmp_path: Path
) -> None:
    """V1: `check` and reindexing verify it, and the others are found all the same."""
    sources = []
    for n in range(4):
        file = tmp_path / f"{n}.txt"
        file.write_text(f"the numbat {n} escaped\n" * 2_000)
        sources.append(source(store, learn(chat, path=str(file))[0].source))
    gap, short, lost, sound = sources
    broken = [
        msgspec.structs.replace(gap, chunks=(gap.chunks[0], *gap.chunks[2:])),
        msgspec.structs.replace(short, chunks=short.chunks[:-1]),
    ]
    for each in broken:
        store.write(lambda writer, each=each: writer.put_source(each))
    store._environment.write(lambda session: session.put(OBJECTS, lost.events[0].text, b"\x08?"))
    index = chat.service.index()
    index.clear()
    for _ in indexing.reconcile(store, index):
        pass
    found = search(chat, "numbat escaped", mode="lexical", limit=100)

    assert {hit.source for hit in found.hits} == {sound.id}
    assert found.note == ""
    named = chat.call("inspect/check")["problems"]
    assert {problem["where"] for problem in named if problem["code"] == "source"} == {
        gap.id, short.id, lost.id
    }  # fmt: skip
    _, new = rechunking.recut(store)
    assert (new.snapshots, new.rebuilt) == (4, 3)
    assert list(indexing.reconcile(store, index)) == []


def test_a_check_tells_of_which_views_the_vectors_are(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V3: a new version of the view embeds nothing anew by itself, and the mix is reported."""
    index = chat.service.index()
    if not index.dense:
        pytest.skip("the extra `dense` is not installed")

    def embed() -> int:
        return index.embed_some(lambda *key: sources.read_chunk(store, *key), 100)

    play(chat)
    learn(chat, conversation=chat.id)
    assert embed() == 1
    monkeypatch.setattr("retention.index.VIEW", VIEW + 1)
    assert embed() == 0
    chat.call("output/save", conversation=chat.id, tool="make", body=LOG)
    learn(chat, conversation=chat.id)
    assert embed() == 1

    assert chat.call("inspect/check")["views"] == {str(VIEW): 1, str(VIEW + 1): 1}


def test_what_another_process_learned_is_indexed_and_what_it_forgot_is_not(
    store: Store, chat: Adapter
) -> None:
    """The store counts: a source without a stamp is added, a stamp without a source dropped."""
    play(chat)
    learn(chat, conversation=chat.id)
    other = Adapter(store)
    play(other)
    other.service.index().clear()
    learn(other, conversation=other.id)
    store.forget(chat.id)

    for _ in indexing.reconcile(store, chat.service.index()):
        pass

    assert [hit.conversation for hit in search(chat, "Ottoline").hits] == [other.id]
    other.service.close()


def say(chat: Adapter, *texts: str) -> None:
    """Go on with the last of TEXTS, which were all asked and answered in this order."""
    earlier = [each for one in texts[:-1] for each in (message(one), assistant("noted"))]
    chat.send(*earlier, message(texts[-1]))
    chat.end(assistant("noted"))


MANY = "".join(f"word{n} of a talk\n" for n in range(1_000))  # more than one chunk


def test_what_the_index_did_not_get_is_added_with_what_comes_next(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V9: an index is not told what changed beside something that it never had."""
    said = [MANY, f"the numbat escaped {MANY}", MANY]
    say(chat, *said[:1])
    learn(chat, conversation=chat.id)
    say(chat, *said[:2])
    with monkeypatch.context() as patch:
        patch.setattr(Index, "update", failing)
        with pytest.raises(StoreError):
            learn(chat, conversation=chat.id)
    say(chat, *said)
    learn(chat, conversation=chat.id)
    for _ in indexing.reconcile(store, chat.service.index()):
        pass

    found = search(chat, "numbat escaped")
    assert ([hit.found for hit in found.hits], found.note) == (["words"], "")


def test_an_unchanged_source_that_the_index_lacks_is_added(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(chat, "the numbat escaped")
    with monkeypatch.context() as patch:
        patch.setattr(Index, "update", failing)
        with pytest.raises(StoreError):
            learn(chat, conversation=chat.id)
    assert search(chat, "numbat").hits == ()
    [learned] = learn(chat, conversation=chat.id)

    assert not learned.changed
    assert len(search(chat, "numbat").hits) == 1


def failing(*_: object) -> None:
    raise StoreError("no space")


def test_a_source_that_another_process_left_half_indexed_is_made_anew_at_once(
    store: Store, chat: Adapter
) -> None:
    """V9: also what the words of an earlier text are in the way of."""
    say(chat, MANY)
    learn(chat, conversation=chat.id)
    index = chat.service.index()
    chat.service._index = Index.open(store.path / "elsewhere")
    say(chat, MANY, "the numbat escaped")
    learn(chat, conversation=chat.id)
    chat.service._index.close()
    chat.service._index = index

    for _ in indexing.reconcile(store, index):
        pass

    assert not index.needs_rebuild
    assert len(search(chat, "numbat").hits) == 1


def test_what_was_learned_of_a_later_state_is_not_taken_back(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes learn one conversation: the one that read it first may write it last."""
    say(chat, "the numbat escaped")
    real = learning._put

    def late(*arguments: Any) -> bool:
        monkeypatch.setattr(learning, "_put", real)
        say(chat, "the numbat escaped", "the quokka smiles")
        learn(chat, conversation=chat.id)
        return real(*arguments)

    monkeypatch.setattr(learning, "_put", late)
    [learned] = learn(chat, conversation=chat.id)

    assert not learned.changed
    assert "quokka" in text(store, learned.source)
    assert learning.waiting(store) == []
    assert len(search(chat, "quokka").hits) == 1


def test_what_is_forgotten_while_the_index_is_made_anew_leaves_nothing(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Z2."""
    say(chat, "the numbat escaped")
    learn(chat, conversation=chat.id)
    chat.service.index().clear()
    real = Index.update

    def forgetting(*arguments: Any) -> None:
        monkeypatch.setattr(Index, "update", real)
        chat.call("conversation/forget", id=chat.id)
        real(*arguments)

    monkeypatch.setattr(Index, "update", forgetting)
    for _ in indexing.reconcile(store, chat.service.index()):
        pass

    assert chat.service.index().counts().chunks == 0


@pytest.mark.parametrize("step", ["_put", "index_source", "update", "after"])
def test_what_is_forgotten_while_it_is_learned_leaves_nothing(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Z2: wherever the thread that learns it is at that moment."""
    say(chat, "the numbat escaped")
    chat.service.index()
    owner, name = (Index, "update") if step in {"update", "after"} else (learning, step)
    real = getattr(owner, name)

    def forgetting(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        made = real(*arguments) if step == "after" else None
        chat.call("conversation/forget", id=chat.id)
        return made if step == "after" else real(*arguments)

    monkeypatch.setattr(owner, name, forgetting)
    with suppress(UnknownConversation, UnknownObject):
        learning.learn_conversation(store, chat.service.index(), chat.id)

    counts = chat.service.index().counts()
    assert (counts.sources, counts.chunks) == (0, 0)
    with store.read() as reader:
        assert list(reader.sources()) == []


def test_what_is_learned_while_it_is_being_forgotten_leaves_nothing(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Z2: after the index was asked to let go of it, before the store does."""
    say(chat, "the numbat escaped")
    real = store.forget

    def forget(id: str) -> None:
        learning.learn_conversation(store, chat.service.index(), id)
        real(id)

    chat.service.index()
    monkeypatch.setattr(store, "forget", forget)
    chat.call("conversation/forget", id=chat.id)

    assert chat.service.index().counts().chunks == 0


def test_forgetting_takes_what_was_learned_along(store: Store, chat: Adapter) -> None:
    """Z2: neither source nor word is left."""
    play(chat)
    [learned] = learn(chat, conversation=chat.id)
    chat.call("conversation/forget", id=chat.id)

    with store.read() as reader:
        assert list(reader.sources()) == []
    assert search(chat, "Ottoline").hits == ()
    assert chat.service.index().counts().chunks == 0
    assert store.check() == ()
    assert learned.source


def test_nothing_of_a_forgotten_conversation_is_left_in_any_file(
    store: Store, chat: Adapter
) -> None:
    """Z2, L6: texts, words and vectors, once store and index have let go of what was removed."""
    play(chat)
    other = Adapter(store)
    other.send(message("the quokka smiles"))
    other.end(assistant("indeed"))
    for each in (chat, other):
        learn(chat, conversation=each.id)
    index = chat.service.index()
    while index.embed_some(lambda *key: sources.read_chunk(store, *key), 100):
        pass
    vectors = index.counts().vectors
    chat.call("conversation/forget", id=chat.id)
    store.compact()
    assert index.purge()
    index.close()

    data = b"".join(file.read_bytes() for file in store.path.rglob("*") if file.is_file()).lower()
    assert b"quokka" in data
    for word in (b"ottoline", b"wombat", b"burrow", b"marsupial", chat.id.encode()):
        assert word not in data
    left = Index.open(store.path / "index")
    assert (0 < left.counts().vectors < vectors) if index.dense else vectors == 0
    left.close()
    other.service.close()


def test_a_learned_file_can_be_forgotten(store: Store, chat: Adapter, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("the quokka smiles\n")
    [learned] = learn(chat, path=str(file))
    chat.call("conversation/forget", id=learned.source)

    assert search(chat, "quokka").hits == ()
    assert store.check() == ()


def test_recutting_compares_and_writes_nothing(store: Store, chat: Adapter) -> None:
    play(chat)
    [learned] = learn(chat, conversation=chat.id)
    before = source(store, learned.source)
    old, new = rechunking.recut(store)

    assert (old, new.rebuilt, new.snapshots) == (new, 1, 1)
    assert source(store, learned.source) == before


def test_an_imported_conversation_is_found_at_once(
    store: Store, chat: Adapter, tmp_path: Path
) -> None:
    """L5: what was learned of it comes along and is indexed."""
    play(chat)
    learn(chat, conversation=chat.id)
    file = tmp_path / "chat.zip"
    chat.call("conversation/export", id=chat.id, file=str(file))
    other = Store.open(tmp_path / "other")
    there = Adapter(other)
    there.send(message("the quokka smiles"))
    learn(there, conversation=there.id)
    there.call("conversation/import", file=str(file))

    assert [hit.conversation for hit in search(there, "Ottoline").hits] == [chat.id]
    there.service.close()
    other.close()


@pytest.mark.parametrize("step", ["drop_sources", "index_sources"])
def test_an_index_that_cannot_be_used_keeps_nothing_from_the_store(
    store: Store, chat: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It follows the store, and agrees with it again at the next start."""
    play(chat)
    learn(chat, conversation=chat.id)
    file = tmp_path / "chat.zip"
    chat.call("conversation/export", id=chat.id, file=str(file))

    def broken(*_: object) -> None:
        raise StoreError("search index: disk I/O error")

    monkeypatch.setattr(indexing, step, broken)
    chat.call("conversation/forget", id=chat.id)
    assert chat.call("conversation/import", file=str(file)).created
    monkeypatch.undo()
    for _ in indexing.reconcile(store, chat.service.index()):
        pass

    assert [hit.conversation for hit in search(chat, "Ottoline").hits] == [chat.id]


# What would be found twice


@pytest.mark.parametrize("tool", ["search_evidence", "expand_evidence", "recall_output"])
def test_what_our_own_tools_answered_is_not_learned_again(
    store: Store, chat: Adapter, tool: str
) -> None:
    """V1: it comes from a source that is learned, and would come before that one next time."""
    chat.send(message("search"))
    calls = assistant(call(tool, "c1", query="wombat"))
    chat.loop(calls, result("a marsupial named Ottoline"), response=[calls])
    chat.end(assistant("Found."))
    [learned] = learn(chat, conversation=chat.id)

    assert "Ottoline" not in text(store, learned.source)
    assert search(chat, "wombat").hits[0].tool == tool  # that it was asked for stays
    assert search(chat, "Ottoline", mode="lexical").hits == ()


def test_the_evidence_of_an_earlier_conversation_is_not_learned_again(
    store: Store, chat: Adapter
) -> None:
    play(chat)
    [old] = learn(chat, conversation=chat.id)
    new = Adapter(store)
    new.service.close()
    new.service = chat.service
    new.call("evidence/resume", conversation=new.id, source=chat.id)
    new.send(message("go on"), sections=[section("goal", "find the platypus")])
    new.end(assistant("yes"))
    [learned] = learn(new, conversation=new.id)
    told = text(store, learned.source)

    assert "Prior evidence" in told
    assert "find the platypus" in told
    assert "Ottoline" not in told
    assert [hit.source for hit in search(chat, "Ottoline", mode="lexical").hits] == [old.source]


def test_a_chat_that_went_live_is_found_once(store: Store, chat: Adapter, tmp_path: Path) -> None:
    """The file was learned before the mode was on in it."""
    file = tmp_path / "chat.org"
    file.write_text("Which wombat lives in the burrow?\n")
    learn(chat, path=str(file))
    play(chat)
    file.write_text(f":PROPERTIES:\n:GPTEL_RETENTION_ID: {chat.id}\n:END:\nWhich wombat?\n")
    learned = learn(chat, path=str(file))

    assert [each.kind for each in learned] == ["conversation"]
    assert [hit.kind for hit in search(chat, "wombat burrow").hits] == ["conversation"]
    assert store.check() == ()


def test_a_file_under_two_names_is_one_source(chat: Adapter, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("the quokka smiles\n")
    (tmp_path / "link.txt").symlink_to(file)

    ids = {learn(chat, path=str(tmp_path / name))[0].source for name in ("notes.txt", "link.txt")}
    assert len(ids) == 1


# Options


def test_the_lines_that_go_with_an_error_are_a_setting(
    store: Store, chat: Adapter, tmp_path: Path
) -> None:
    """V4: and the names of errors do not depend on it."""
    lines = [f"build\tmake\t2026-01-01T00:00:{n:02}Z step {n}\n" for n in range(20)]
    lines[12] = "build\tmake\t2026-01-01T00:00:12Z ##[error]it broke\n"
    chunks = []
    for number, context in (("30000000001", 3), ("30000000002", 7)):
        chat.call("settings/change", change={"log.context": context})
        file = tmp_path / f"{number}.failed.log"
        file.write_text("".join(lines))
        [learned] = learn(chat, path=str(file))
        chunks.append(source(store, learned.source).chunks)

    assert [[chunk.name for chunk in each] for each in chunks] == [["chunk1", "error1"]] * 2
    assert [each[1].start for each in chunks] == [len("".join(lines[:9])), len("".join(lines[:5]))]
