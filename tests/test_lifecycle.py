"""Conversations opened, forked, retired and collected, over the service (rules L1, L2, L6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retention import lifecycle, planning
from retention.errors import InvalidParams, UnknownConversation, UnknownPlan
from retention.lifecycle import DAY, GRACE
from retention.model import Conversation
from retention.store import Freed, Store, environment
from tests.dialects import Element, looped, plain, rebuilt
from tests.helpers import (
    Adapter,
    assistant,
    call,
    message,
    reminder,
    result,
    section,
    thinking,
)
from tests.store.build import objects

U1, U2, U3, U4 = (message(f"prompt {n}") for n in range(1, 5))
A1, A2, A3, A4 = (plain(f"answer {n}") for n in range(1, 5))
SUMMARY = message("what was said, in short")
ENV = section("env", "sunny")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def chat(store: Store) -> Adapter:
    return Adapter(store)


def offer(chat: Adapter, *before: Element, **options: Any) -> Any:
    where = {"before": chat.json(before)} if before else {}
    return chat.call(
        "conversation/retire", id=chat.id, array="messages", identity=chat.identity,
        **where, **options,
    )  # fmt: skip


def retire(chat: Adapter, *before: Element, **options: Any) -> None:
    assert offer(chat, *before, confirm=True, **options).retired


def head(store: Store, id: str) -> Conversation:
    with store.read() as reader:
        record = reader.conversation(id)
    assert record is not None
    return record


def talk(chat: Adapter, turns: list[tuple[Element, Element]], **options: Any) -> list[Element]:
    """Have TURNS of prompt and answer, and return the buffer."""
    buffer: list[Element] = []
    for prompt, answer in turns:
        chat.send(*buffer, prompt, **options)
        chat.end(answer, response=[assistant(thinking(), answer["content"])])
        buffer += [prompt, answer]
    return buffer


def use_tool(
    chat: Adapter, *history: Element, n: int, sections: list[Any] | None = None
) -> list[Element]:
    """Have a turn with a call behind HISTORY, and return the buffer."""
    said = assistant(thinking(f"think {n}"), "let me look", call(id=f"c{n}", path=f"{n}.txt"))
    results = {f"c{n}": f"content {n}"}
    chat.send(*history, message(f"prompt {n}"), sections=sections or [])
    span = rebuilt(said, results, backwards=False)
    chat.loop(
        *looped(said, results, streamed=False, api=chat.api), span=span, response=[said],
        sections=sections or [],
    )  # fmt: skip
    chat.end(plain(f"answer {n}"), response=[assistant(f"answer {n}")])
    return [*history, message(f"prompt {n}"), *span, plain(f"answer {n}")]


# Opening (adapter.md H4)


def opening(store: Store, file: Path | str, id: str = "") -> Any:
    return Adapter(store, id=id).call("conversation/open", id=id, file=str(file))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / f"{name}.org" for name in "abc"}
    for file in files.values():
        file.touch()
    return files


def test_a_copy_is_a_fork_while_its_original_is_there(store: Store, files: dict[str, Path]):
    """H4, L2."""
    origin = opening(store, files["a"])

    copy = opening(store, files["b"], origin.id)

    assert copy.forked == origin.id
    assert copy.id != origin.id


def test_a_file_whose_original_is_gone_was_moved(store: Store, files: dict[str, Path]):
    """H4."""
    origin = opening(store, files["a"])
    files["a"].unlink()

    moved = opening(store, files["b"], origin.id)

    assert (moved.id, moved.forked) == (origin.id, "")
    assert opening(store, files["b"]).id == origin.id, "found by its new file"


def test_a_file_whose_original_cannot_be_looked_for_is_a_fork(store: Store, files: dict[str, Path]):
    """H4: that is no reason to fail."""
    origin = opening(store, files["a"].parent / ("a" * 300))

    assert opening(store, files["b"], origin.id).forked == origin.id


def test_an_original_that_comes_back_is_a_fork(store: Store, files: dict[str, Path]):
    """H4: the two diverge, whichever is opened first."""
    origin = opening(store, files["a"])
    files["a"].unlink()
    opening(store, files["b"], origin.id)
    files["a"].touch()

    back = opening(store, files["a"], origin.id)

    assert back.forked == origin.id
    assert opening(store, files["b"], origin.id).forked == ""


def test_of_two_copies_without_their_original_one_is_a_fork(store: Store, files: dict[str, Path]):
    """H4."""
    origin = opening(store, files["a"])
    files["a"].unlink()
    opened = [opening(store, files[name], origin.id).forked for name in "bc"]

    assert opened == ["", origin.id]


def test_of_two_copies_opened_at_the_same_time_one_is_a_fork(store: Store, files: dict[str, Path]):
    """H4: another Emacs opens its copy after this one has looked and before it writes."""
    origin = opening(store, "")
    other = Adapter(store, origin.id)
    found: list[Any] = []

    def open_other() -> None:
        found.append(other.call("conversation/open", id=origin.id, file=str(files["b"])))

    with before_writing(open_other):
        mine = opening(store, files["a"], origin.id)

    assert [found[0].forked, mine.forked] == ["", origin.id]


@contextmanager
def before_writing(action: Callable[[], object]) -> Iterator[None]:
    """Run ACTION right before the next write transaction."""
    original = environment.Environment.write
    with pytest.MonkeyPatch.context() as patch:

        def write(env: environment.Environment, apply: Any) -> Any:
            patch.undo()
            action()
            return original(env, apply)

        patch.setattr(environment.Environment, "write", write)
        yield


def test_a_copy_that_was_not_saved_is_the_same_fork_again(store: Store, files: dict[str, Path]):
    """H4: until it has sent something of its own."""
    chat = Adapter(store)
    chat.call("conversation/open", id=chat.id, file=str(files["a"]))
    first = opening(store, files["b"], chat.id)
    talk(chat, [(U1, A1)])

    again = opening(store, files["b"], chat.id)

    assert (again.id, again.rows) == (first.id, 3), "and shares what was said since"


# Forking (rule L2)


def test_fork_shares_the_past_and_copies_nothing(store: Store, chat: Adapter):
    """L2."""
    history = talk(chat, [(U1, A1), (U2, A2)], sections=[ENV])
    before = objects(store)

    made = chat.call("conversation/fork", id=chat.id, title="another way", file="/x/b.org")
    other = Adapter(store, made.id)
    theirs = other.send(*history, U3, sections=[ENV])
    mine = chat.send(*history, U4, sections=[ENV])

    assert made.forked == chat.id
    assert not theirs.due
    assert theirs.array[:-1] == mine.array[:-1]
    assert head(store, made.id).files == ("/x/b.org",)
    assert len(objects(store)) == len(before) + 2, "the two prompts"
    assert store.check() == ()


def test_an_unknown_conversation_is_not_forked(chat: Adapter):
    with pytest.raises(UnknownConversation):
        chat.call("conversation/fork", id="f" * 32)


# What a summary is written from (rule L1)


def test_offer_holds_guidance_and_what_was_said_and_no_metadata(store: Store, chat: Adapter):
    """L1: decoded; without ids, signatures, digests and reasoning."""
    goal = section("goal", "be brief", kind="guidance")
    skills = section("skills", None)
    history = talk(chat, [(U1, A1)], sections=[section("env", "rain"), goal, skills])
    history = use_tool(chat, *history, n=2, sections=[ENV, goal, skills])
    before = json.dumps([row.exact.hex() for row in rows(store, chat.id)])

    offered = offer(chat, *history)

    assert "## Goal\nbe brief" in offered.text
    assert "## Env\nsunny" in offered.text
    assert "rain" not in offered.text, "replaced by what came later"
    assert "Skills" not in offered.text, "there is nothing of it"
    for said in ("User:\nprompt 1", "Assistant:\nanswer 1", "let me look", "content 2", "2.txt"):
        assert said in offered.text
    for hidden in ("c2", "sig", "hm", "think 2", "system-reminder", "signature"):
        assert hidden not in offered.text
    assert not any(word in offered.text for word in json.loads(before))
    assert offered.rows == len(rows(store, chat.id))
    assert offered.guidance > 0
    assert offered.conversation > 0
    assert offered.tools > 0
    assert not offered.retired
    assert head(store, chat.id).retired == ()


def collect(store: Store, now: float, **options: Any) -> Freed:
    return lifecycle.collect(store, lifecycle.make_limits(store, now, **options))


def rows(store: Store, id: str) -> list[Any]:
    with store.read() as reader:
        return list(reader.rows(id))


def test_offer_up_to_a_row_is_that_of_the_messages_up_to_it(chat: Adapter):
    """L1."""
    history = use_tool(chat, n=1)
    chat.send(*history, U2)
    by_messages = offer(chat, *history)

    by_row = offer(chat, row=by_messages.row)

    # What the provider sent stands for what the buffer shows of it.
    assert by_row.text == by_messages.text
    assert by_row.rows == by_messages.rows


def test_estimates_count_bodies(chat: Adapter):
    """L1: metadata costs nothing there."""
    history = talk(chat, [(U1, plain("word " * 1_000))])
    short = offer(chat, U1).conversation

    assert 900 < offer(chat, *history).conversation - short < 1_600


def test_results_are_bounded_and_newer_ones_come_first(chat: Adapter):
    """L1: what is left out is counted."""
    said = assistant(*[call(id=f"c{n}", n=n) for n in range(30)])
    results = result(
        *[f"begin {n} " + "x" * 5_000 for n in range(30)], ids=[f"c{n}" for n in range(30)]
    )
    chat.send(U1)
    chat.loop(said, results)

    offered = offer(chat, U1, said, results)

    assert "begin 29 " in offered.text
    assert "begin 0 " not in offered.text
    assert f"[{len('begin 0 ') + 5_000} characters left out]" in offered.text
    assert len(offered.text) < 40_000


def test_a_history_does_not_end_inside_an_exchange(chat: Adapter):
    """L1: calls and results stay together."""
    said = assistant(call(id="c1"))
    chat.send(U1)
    chat.loop(said, result("done"))
    opens = next(row.id for row in rows(chat.store, chat.id) if row.role == "assistant")

    with pytest.raises(InvalidParams):
        offer(chat, U1, said)
    with pytest.raises(InvalidParams):
        offer(chat, row=opens)
    with pytest.raises(InvalidParams):
        offer(chat, row=99)


def test_history_that_was_never_sent_is_offered_and_not_retired(store: Store, chat: Adapter):
    """F10: nothing is invented for it."""
    chat.send(U1)

    offered = offer(chat, U3, A3)

    assert (offered.row, offered.rows) == (0, 0)
    assert "prompt 3" in offered.text
    with pytest.raises(InvalidParams):
        offer(chat, U3, A3, confirm=True)
    assert head(store, chat.id).retired == ()


# Retired history (rule L1)


def test_after_it_current_sections_are_due_and_the_tail_keeps_its_fragments(
    store: Store, chat: Adapter
):
    """L1, A1."""
    old = use_tool(chat, n=1, sections=[ENV])
    whole = use_tool(chat, *old, n=2, sections=[ENV])
    tail = whole[len(old) :]
    retire(chat, *old)

    sent = chat.send(SUMMARY, *tail, U3, sections=[ENV])

    assert sent.due == {"env": "missing"}
    assert sent.result.replayed == 2, "the call with its result, and the answer"
    assert b"think 2" in b"".join(sent.array)
    assert not [word for word in ("prompt 1", "content 1") if word.encode() in b"".join(sent.array)]
    assert store.check() == ()


def test_a_prompt_that_says_the_same_brings_nothing_back(chat: Adapter):
    """L1: though its row could be matched."""
    yes = message("yes")
    history = talk(chat, [(U1, A1), (yes, A2)], sections=[ENV])
    retire(chat, *history)

    sent = chat.send(yes, sections=[ENV])

    assert sent.due == {"env": "missing"}
    assert sent.texts() == ["yes", "[Env]"]
    assert head(chat.store, chat.id).retired


def test_a_delivery_at_the_seam_goes_with_the_history_before_it(store: Store, chat: Adapter):
    """L1, A1: what follows it does not keep it."""
    said, results = assistant("looking", call(id="c1")), result("done")
    chat.send(U1)
    chat.loop(said, results, sections=[section("env", "rain")])
    chat.send(U1, said, results, U2, sections=[section("env", "rain")])
    chat.end(A2)
    retire(chat, U1, said, results)

    sent = chat.send(SUMMARY, plain("noted"), U2, A2, U3, sections=[ENV])

    assert b"rain" not in b"".join(sent.array)
    assert sent.due == {"env": "missing"}
    collect(store, 2.0 + GRACE * DAY)
    chat.restart()
    again = chat.prepare(SUMMARY, plain("noted"), U2, A2, U4, sections=[ENV])
    assert not again.result.reasons


def test_a_delivery_behind_what_is_taken_over_stands_again(store: Store, chat: Adapter):
    """L1, Q1: the retired history is in front of what the client sends."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    retire(chat, U1)

    sent = chat.send(U1, plain("edited"), U2, sections=[ENV])

    assert not sent.due
    assert sent.texts() == ["prompt 1", "[Env]", "edited", "prompt 2"]
    assert head(store, chat.id).retired == ()


def test_a_boundary_inside_a_response_leaves_what_is_behind_it(store: Store, chat: Adapter):
    """L1: the text in front of a call went, the call stays with its result."""
    history = use_tool(chat, n=1)
    retire(chat, *history[:2])
    rest = history[2:]

    sent = chat.send(SUMMARY, plain("noted"), U2, *rest, U3)

    assert sent.texts()[2:] == ["prompt 2", "read()", "content 1", "answer 1", "prompt 3"]
    assert b"think 1" not in b"".join(sent.array)
    assert len([*head(store, chat.id).retired[0].ids]) == 2


def test_undo_brings_the_old_payload_back_and_ends_the_retirement(store: Store, chat: Adapter):
    """L1: with its deliveries and fragments, byte for byte, also from the disk."""
    old = use_tool(chat, n=1, sections=[ENV])
    whole = use_tool(chat, *old, n=2, sections=[ENV])
    before = chat.prepare(*whole, U3, sections=[ENV]).array
    retire(chat, *old)
    chat.send(SUMMARY, *whole[len(old) :], U3, sections=[ENV])
    chat.restart()

    undone = chat.prepare(*whole, U4, sections=[ENV])
    assert undone.array[:-1] == before[:-1]
    assert not undone.due
    assert head(store, chat.id).retired, "it is prepared and not yet sent"

    chat.commit(undone)
    assert head(store, chat.id).retired == ()
    assert store.collect(retired_before=1e12).rows == 0


def test_undo_right_away_takes_the_delta_over(store: Store, chat: Adapter):
    """L1, Q1: nothing was sent between."""
    history = use_tool(chat, n=1, sections=[ENV])
    before = chat.send(*history, U2, sections=[ENV])
    chat.end(A2)
    retire(chat, *history)

    undone = chat.send(*history, U2, A2, U3, sections=[ENV])

    assert undone.array[: len(before.array)] == before.array
    assert not undone.due
    assert head(store, chat.id).retired == ()


def test_a_second_retirement_leaves_the_first(store: Store, chat: Adapter):
    """L1: undoing one brings back what it took, and no more."""
    first = talk(chat, [(U1, A1)], sections=[ENV])
    retire(chat, *first)
    second = [SUMMARY, plain("noted")]
    chat.send(*second, U2, sections=[ENV])
    chat.end(A2)
    before = chat.prepare(*second, U2, A2, U3, sections=[ENV]).array
    retire(chat, *second, U2, A2)
    chat.send(message("shorter still"), U3, sections=[ENV])

    assert chat.send(*second, U2, A2, U3, sections=[ENV]).array == before
    assert [each.end for each in head(store, chat.id).retired] == [(1, 3)]


def test_retirement_is_refused_while_another_writes_and_tried_again(store: Store, chat: Adapter):
    """L1, L4."""
    history = talk(chat, [(U1, A1)])
    other = Adapter(store, chat.id)

    with before_writing(lambda: other.send(*history, U2)):
        retire(chat, *history)

    assert len(head(store, chat.id).retired) == 1
    assert head(store, chat.id).turns == 2


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_request_is_compared_with_what_was_known_when_its_log_was_read(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch, *, forgotten: bool
):
    """L4: another process writes to the conversation, or forgets it, while it is planned."""
    chat.send(U1)
    chat.end(A1)
    other = Adapter(store, chat.id)
    original = planning.plan_buffer

    def plan_late(*arguments: Any) -> Any:
        monkeypatch.undo()
        if forgotten:
            store.forget(chat.id)
        else:
            other.send(U1, A1, message("from elsewhere"))
        return original(*arguments)

    monkeypatch.setattr(planning, "plan_buffer", plan_late)
    chat.restart()

    assert chat.prepare(U1, A1, U2).texts() == ["prompt 1", "answer 1", "prompt 2"]


def test_a_loop_goes_on_where_another_process_writes_to_the_conversation(
    store: Store, chat: Adapter
):
    """L4: between the prepare of a dispatch with results and its commit."""
    said = assistant(call(id="c1"))
    chat.send(U1)
    other = Adapter(store, chat.id)

    with before_writing(lambda: other.send(U1, A1, U2)):
        chat.loop(said, result("done"))

    assert head(store, chat.id).next_seq == 4
    assert store.check() == ()


def test_a_system_prompt_in_the_array_stays(store: Store):
    """L1: the next payload has it too."""
    chat = Adapter(store, api="openai")
    system = {"role": "system", "content": "you help"}
    chat.send(system, U1)
    chat.end(A1)
    retire(chat, system, U1, A1)

    chat.send(system, SUMMARY)

    assert [each.rows for each in head(store, chat.id).retired] == [((2, 3),)]


# Collecting it (rule L6)


def test_retired_history_is_collected_after_the_grace_and_undo_delivers_again(
    store: Store, chat: Adapter
):
    """L1, L6, A4: what was collected counts as absent."""
    old = use_tool(chat, n=1, sections=[ENV])
    whole = use_tool(chat, *old, n=2, sections=[ENV])
    tail = whole[len(old) :]
    retire(chat, *old)
    chat.send(SUMMARY, *tail, U3, sections=[ENV])
    chat.end(A3)

    assert collect(store, 1.0 + GRACE * DAY).rows == 0
    assert collect(store, 2.0 + GRACE * DAY).rows > 0
    data = b"".join(objects(store))
    assert b"content 1" not in data
    assert b"content 2" in data
    assert store.check() == ()

    after = chat.send(SUMMARY, *tail, U3, A3, U4, sections=[ENV])
    assert not after.due
    assert after.result.replayed == 2
    undone = chat.send(*whole, U3, sections=[ENV])
    assert "think 1" not in str(undone.array)
    assert b"let me look" in b"".join(undone.array), "as gptel built it"
    assert store.check() == ()
    chat.call("inspect/explain", id=chat.id, limit=100)


def test_history_that_is_collected_while_a_request_with_it_goes_out_is_no_damage(
    store: Store, chat: Adapter
):
    """L6: between prepare and commit; the request names no text that is gone."""
    old = use_tool(chat, n=1, sections=[ENV])
    whole = use_tool(chat, *old, n=2, sections=[ENV])
    retire(chat, *old)
    chat.send(SUMMARY, *whole[len(old) :], U3, sections=[ENV])
    undone = chat.prepare(*whole, U4, sections=[ENV])

    assert collect(store, 2.0 + GRACE * DAY).rows > 0
    chat.commit(undone)
    chat.end(A4)

    assert store.check() == ()
    for restart in (False, True):
        if restart:
            chat.restart()
        sent = chat.send(*whole, U4, A4, message(f"restart: {restart}"), sections=[ENV])
        assert b"let me look" in b"".join(sent.array)
        assert store.check() == ()


def test_a_chat_that_was_put_back_elsewhere_goes_on_with_all_its_texts(
    store: Store, chat: Adapter, tmp_path: Path
):
    """Z2, L5: the command line forgets it and imports an older state."""
    history = talk(chat, [(U1, A1)])
    chat.call("conversation/export", id=chat.id, file=str(tmp_path / "chat.zip"))
    for prompt, answer in ((U2, A2), (U3, A3)):
        chat.send(*history, prompt)
        chat.end(answer)
        history += [prompt, answer]

    store.forget(chat.id)
    chat.call("conversation/import", file=str(tmp_path / "chat.zip"))
    sent = chat.send(*history, U4)

    assert sent.texts()[-3:] == ["prompt 3", "answer 3", "prompt 4"]
    assert store.check() == ()


@pytest.mark.parametrize("collected", ["before", "between", "never"])
def test_a_part_of_retired_history_that_is_sent_again_has_its_texts(
    store: Store, chat: Adapter, collected: str
):
    """L1, L6: as new rows; also where the delta does not repeat it, whenever the old ones go."""
    history = talk(chat, [(U1, A1), (U2, A2)])
    retire(chat, *history)
    Adapter(store, chat.id).send(U1, sections=[ENV])  # a delivery that came between
    if collected == "before":
        assert collect(store, 2.0 + GRACE * DAY).rows
    part = chat.prepare(*history[:2], U3)
    if collected == "between":
        assert collect(store, 2.0 + GRACE * DAY).rows
    chat.commit(part)

    assert [text for text in part.texts() if text != "[Env]"] == [
        "prompt 1",
        "answer 1",
        "prompt 3",
    ]
    assert store.check() == ()


def test_a_reminder_of_collected_history_does_not_fire_again(store: Store, chat: Adapter):
    """D8."""
    tips = [reminder("tip")]
    history = talk(chat, [(U1, A1)], reminders=tips)
    retire(chat, *history)
    chat.send(SUMMARY, reminders=tips)
    collect(store, 2.0 + GRACE * DAY)
    chat.restart()

    assert chat.send(SUMMARY, A2, U3, reminders=tips).result.reminders == ()


@pytest.mark.parametrize(
    ("days", "stored", "goes"), [(2, 0, 1), (None, 2, 1), (None, 0, 0), (0, 2, 0)]
)
def test_unused_conversations_go_where_the_option_or_the_setting_says(
    store: Store, chat: Adapter, days: int | None, stored: int, goes: int
):
    """L6."""
    talk(chat, [(U1, A1)])
    store.write(lambda writer: writer.put_settings({"keep.days": stored}))

    freed = collect(store, 1.0 + 3 * DAY, days=days)

    assert len(freed.conversations) == goes


def test_collecting_over_the_wire_takes_a_conversation_out_of_the_index(chat: Adapter):
    """L6, Z2: and out of memory; it tells what went."""
    chat.send(message("the zebra crossing"))
    chat.call("evidence/learn", conversation=chat.id)
    assert chat.call("evidence/search", query="zebra").hits
    chat.service.clock = lambda: 1.0 + 3 * DAY

    told = chat.call("store/collect", days=2, dry_run=True)
    assert chat.call("evidence/search", query="zebra").hits
    freed = chat.call("store/collect", days=2)

    assert told == freed
    assert freed.conversations == (chat.id,)
    assert {kind.kind: kind.objects for kind in freed.kinds}["message"] == 1
    assert not chat.call("evidence/search", query="zebra").hits
    assert not [data for data in contents(chat.store.path) if b"zebra" in data]
    with pytest.raises(UnknownConversation):
        chat.send(U1)
    with pytest.raises(InvalidParams):
        chat.call("store/collect", grace=-1)


def test_what_is_used_while_it_is_about_to_be_collected_stays_in_the_index(
    store: Store, chat: Adapter
):
    """L6: another process sent a request between the look and the work."""
    other = Adapter(store)
    for each in (chat, other):
        each.send(message("the zebra crossing"))
        each.call("evidence/learn", conversation=each.id)
    chat.service.clock = lambda: 1.0 + 3 * DAY
    original = lifecycle.collect

    def use_one(*arguments: Any, dry_run: bool = False) -> Freed:
        if not dry_run:
            used = msgspec.structs.replace(head(store, other.id), used=1.0 + 3 * DAY)
            store.write(lambda writer: writer.put_conversation(used))
        return original(*arguments, dry_run=dry_run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "collect", use_one)
        freed = chat.call("store/collect", days=2)

    assert freed.conversations == (chat.id,)
    assert [hit.conversation for hit in other.call("evidence/search", query="zebra").hits] == [
        other.id
    ]


# Forgetting (rule Z2)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_chat_that_was_forgotten_elsewhere_begins_anew(
    store: Store, chat: Adapter, *, prepared: bool
):
    """Z2, L4: the command line forgets it, this buffer goes on, another one has said something."""
    chat.call("conversation/open", id=chat.id)
    history = talk(chat, [(U1, A1), (U2, A2)], sections=[ENV])
    plan = chat.prepare(*history, U3) if prepared else None

    store.forget(chat.id)
    chat.service.clock = lambda: 2.0
    chat.call("conversation/open", id=chat.id)
    Adapter(store, chat.id).send(message("elsewhere"), sections=[ENV])
    if plan:
        with pytest.raises(UnknownPlan):
            chat.commit(plan)
    sent = chat.send(*history, U3, sections=[ENV])

    assert sent.due == {"env": "missing"}
    assert store.check() == ()
    chat.restart()
    assert chat.prepare(*history, U3, A3, U4, sections=[ENV]).array[:-2] == sent.array


def test_a_conversation_that_comes_anew_is_not_taken_for_the_forgotten_one(
    store: Store, chat: Adapter, tmp_path: Path
):
    """L4, L5: another process forgets one that this one knows, and imports another state of it."""
    history = talk(chat, [(U1, A1), (U2, A2)], sections=[ENV])
    chat.call("conversation/export", id=chat.id, file=str(tmp_path / "chat.zip"))
    chat.call("conversation/forget", id=chat.id)
    chat.call("conversation/open", id=chat.id)
    mine = Adapter(store, chat.id)
    mine.prepare(U1)

    store.forget(chat.id)
    chat.call("conversation/import", file=str(tmp_path / "chat.zip"))
    sent = mine.send(*history, U3, sections=[ENV])

    assert not sent.due
    assert sent.result.replayed == 2
    assert store.check() == ()


def test_forgetting_leaves_none_of_the_text_in_any_file(store: Store, chat: Adapter):
    """Z2: nor of a fork once the last one went."""
    secret = message("the secret of the whole conversation")
    history = [secret, plain("another secret")]
    chat.send(secret, sections=[section("env", "a secret section")])
    chat.end(history[1])
    chat.call("output/save", conversation=chat.id, tool="read", body="a secret line\n" * 2_000)
    retire(chat, *history)
    fork = chat.call("conversation/fork", id=chat.id, title="secret title")
    Adapter(store, fork.id).send(*history, message("secret of the fork"))

    chat.call("conversation/forget", id=chat.id)
    assert any(b"secret" in data for data in contents(store.path)), "the fork shares it"
    Adapter(store, fork.id).call("conversation/forget", id=fork.id)
    store.compact()

    assert not [data for data in contents(store.path) if b"secret" in data]


def contents(directory: Path) -> list[bytes]:
    return [
        file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file() and "lock" not in file.name
    ]
