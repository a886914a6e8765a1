"""What goes out: placement, acknowledgement, boundaries and shapes, played as conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from retention.arrays import make_sent
from retention.digest import digest
from retention.model import Face
from retention.planning import NO_EDITS
from retention.sections import CLOSE, OPEN
from tests.helpers import (
    Harness,
    assistant,
    call,
    delivery_text,
    encode,
    message,
    reminder,
    result,
    section,
    text_of,
)

U1, U2, U3, U4 = (message(f"prompt {n}") for n in range(1, 5))
A1, A2, A3 = (assistant(f"answer {n}") for n in range(1, 4))
ENV = section("env")
GOAL = section("goal", kind="guidance")


def env(body: str) -> tuple:
    return (section("env", body),)


def prompt(n: int) -> str:
    return f"prompt {n}"


@pytest.fixture(params=[True, False], ids=["delta", "whole"])
def chat(request: pytest.FixtureRequest) -> Harness:
    """A conversation of a client that sends deltas, and of one that sends each array whole (Q1)."""
    return Harness(delta=request.param)


def three_turns(chat: Harness) -> None:
    """Deliver body A after the first prompt, B after the second, A after the third."""
    chat.send(U1, sections=env("A"))
    chat.end(A1)
    chat.send(U1, A1, U2, sections=env("B"))
    chat.end(A2)
    chat.send(U1, A1, U2, A2, U3, sections=env("A"))
    chat.end(A3)


# Delivery (D1-D6)


def test_delivery_follows_the_prompt_and_says_what_is_missing(chat: Harness):
    """D1, D4: all that is due shares one message after the prompt."""
    sent = chat.send(U1, sections=[section("env", None), GOAL], reminders=[reminder()])

    assert sent.due == {"env": "new", "goal": "new"}
    assert sent.texts() == ["prompt 1", "[Env][Goal][mind this]"]
    assert "nothing is available" in text_of(sent.array[1])


def test_unedited_conversation_gets_no_second_delivery(chat: Harness):
    """D2, B1: what stands is not repeated, and stands where it was."""
    chat.send(U1, sections=[ENV, GOAL])
    chat.end(A1)

    second = chat.send(U1, A1, U2, sections=[ENV, GOAL])
    chat.end(A2)
    third = chat.send(U1, A1, U2, A2, U3, sections=[ENV, GOAL])

    assert (second.due, third.due) == ({}, {})
    assert third.texts()[:2] == ["prompt 1", "[Env][Goal]"]
    assert third.array[: len(second.array)] == second.array


def test_changed_section_is_delivered_alone(chat: Harness):
    """D2: a changed section is delivered whole; the others are not repeated."""
    chat.send(U1, sections=[ENV, GOAL])
    chat.end(A1)

    sent = chat.send(U1, A1, U2, sections=[section("env", "two"), GOAL])

    assert sent.texts() == ["prompt 1", "[Env][Goal]", "answer 1", "prompt 2", "[Env]"]
    assert "two" in text_of(sent.array[-1])


def test_preparing_stages_and_does_not_deliver(chat: Harness):
    """D5: an abandoned preparation leaves all due; preparing again does not duplicate."""
    before = dict(chat.log.rows), dict(chat.objects), chat.record

    first = chat.prepare(U1, sections=[ENV], reminders=[reminder()])
    again = chat.prepare(U1, sections=[ENV], reminders=[reminder()])

    assert (dict(chat.log.rows), dict(chat.objects), chat.record) == before
    assert first.array == again.array
    sent = chat.commit(chat.prepare(U1, sections=[ENV], reminders=[reminder()]))
    assert sent.texts() == ["prompt 1", "[Env][mind this]"]


def test_what_the_payload_carried_is_what_commit_records(chat: Harness):
    """D5: a newer body is due at the next dispatch."""
    sent = chat.prepare(U1, sections=env("old"))
    chat.commit(sent)
    chat.end(A1)

    assert chat.send(U1, A1, U2, sections=env("new")).due == {"env": "changed"}
    assert chat.delivered(sent.placed[0]).count("old") == 1


def test_retry_after_a_failure_keeps_one_delivery_in_place(chat: Harness):
    """D6: a failure after the hand-over needs no undo; the next payload counts."""
    first = chat.send(U1, sections=[ENV])

    retry = chat.send(U1, sections=[ENV])
    changed = chat.send(U1, sections=env("two"))

    assert retry.array == first.array
    assert retry.due == {}
    assert changed.texts() == ["prompt 1", "[Env]", "[Env]"]
    assert changed.array[:2] == first.array


def test_deselected_section_is_stated_inactive_once(chat: Harness):
    """D7: and it does not come back while it stays deselected."""
    chat.send(U1, sections=[ENV, GOAL])
    chat.end(A1)

    second = chat.send(U1, A1, U2, sections=[ENV])
    chat.end(A2)
    third = chat.send(U1, A1, U2, A2, U3, sections=[ENV])

    assert second.due == {"goal": "inactive"}
    assert third.due == {}


def test_frozen_selection_says_nothing_of_other_sections(chat: Harness):
    """D7: an agent's selection is its own."""
    chat.send(U1, sections=[ENV, GOAL])
    chat.end(A1)
    chat.frozen = True

    assert chat.send(U1, A1, U2, sections=[ENV]).due == {}


def test_section_with_an_error_leaves_its_body_standing(chat: Harness):
    """D9: it counts as unchanged, is reported, and does not end up as inactive."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)

    sent = chat.send(U1, A1, U2, sections=[section("env", None, error=True)])

    assert sent.texts() == ["prompt 1", "[Env]", "answer 1", "prompt 2"]
    assert sent.codes == {"section_error"}


def test_lost_section_with_an_error_is_delivered_as_it_was(chat: Harness):
    """D9, A4: its last body comes back, though nobody can tell it now."""
    chat.send(U1, sections=env("the body"))
    chat.end(A1)

    sent = chat.send(U3, sections=[section("env", None, error=True)])

    assert sent.due == {"env": "missing"}
    assert "the body" in text_of(sent.array[-1])


# Reminders (D8)


def test_reminder_fires_by_commit_only(chat: Harness):
    """D8: once means delivered once, not staged once."""
    tip = [reminder()]

    assert chat.prepare(U1, reminders=tip).reminders == ("tip",)
    assert chat.send(U1, reminders=tip).reminders == ("tip",)
    chat.end(A1)
    assert chat.send(U1, A1, U2, reminders=tip).reminders == ()


def test_reminder_is_due_every_few_turns(chat: Harness):
    """D8: counted in turns, however many rounds the loop of one has."""
    every = [reminder(policy="every", turns=2)]
    fired = []
    history = []

    for turn in range(1, 6):
        history.append(message(f"prompt {turn}"))
        if chat.send(*history, reminders=every).reminders:
            fired.append(turn)
        work = (assistant(call(id=f"c{turn}")), result("done", ids=[f"c{turn}"]))
        assert chat.loop(*work, reminders=every).reminders == ()
        chat.end(assistant(f"answer {turn}"))
        history += [*work, assistant(f"answer {turn}")]

    assert fired == [1, 3, 5]


def test_condition_fires_when_it_becomes_true_or_changes(chat: Harness):
    """D8: not at each dispatch, and only by commit."""
    fired = []
    history = []
    for turn, state in enumerate([None, "a", "a", "b", None, "b"], 1):
        history.append(message(f"prompt {turn}"))
        held = [reminder(policy="while", state=state)]
        staged = chat.prepare(*history, reminders=held).reminders
        sent = chat.send(*history, reminders=held).reminders
        assert staged == sent
        fired.append(bool(sent))
        chat.end(assistant(f"answer {turn}"))
        history.append(assistant(f"answer {turn}"))

    assert fired == [False, True, False, True, False, True]


def test_condition_that_could_not_be_said_is_still_due(chat: Harness):
    """D8: it counts as seen only when its reminder went out."""
    held = [reminder(policy="while", state="a")]

    assert chat.send(U1, A1, reminders=held).reminders == ()
    assert chat.send(U1, A1, U2, reminders=held).reminders == ("tip",)


def test_events_coalesce_and_fire_again_when_raised_again(chat: Harness):
    """D8: two events of one key are one reminder; a later one is another."""
    events = [reminder("edit", body, policy="on") for body in ("first", "second")]

    sent = chat.send(U1, reminders=events)
    chat.end(A1)
    later = chat.send(U1, A1, U2, reminders=events[:1])

    assert sent.texts() == ["prompt 1", "[second]"]
    assert later.texts() == ["prompt 1", "[second]", "answer 1", "prompt 2", "[first]"]


def test_reminder_whose_delivery_is_lost_does_not_fire_again(chat: Harness):
    """D8: that it fired is read from the log, not from the payload."""
    chat.send(U1, reminders=[reminder()])
    chat.end(A1)

    assert chat.send(U3, reminders=[reminder()]).reminders == ()


# Shapes (D4)


def played(api: str, model: str = "m", **options: str) -> Iterator[list[dict]]:
    """Yield the array after a prompt, after results, and of the next turn, each with a delivery."""
    chat = Harness(api=api, model=model, **options)
    work = (assistant(call(id="c12345678")), result("done", ids=["c12345678"]))
    yield [json.loads(raw) for raw in chat.send(U1, sections=env("1")).array]
    yield [json.loads(raw) for raw in chat.loop(*work, sections=env("2")).array]
    chat.end(A1)
    yield [json.loads(raw) for raw in chat.send(U1, *work, A1, U2, sections=env("3")).array]


def test_shape_message_is_the_rule():
    """D4: a separate user message, after the prompt and after the complete results."""
    first, second, third = played("openai", "gpt")

    assert [m["role"] for m in third] == [
        *("user", "user", "assistant", "tool", "user", "assistant", "user", "user"),
    ]
    assert second[:2] == first
    assert third[:5] == second


@pytest.mark.parametrize("model", ["gemma-3", "gpt"])
def test_shape_merge_puts_the_delivery_into_the_prompt(model: str):
    """D4: where a template insists on alternation, or the user does."""
    options = {"shape": "merge"} if model == "gpt" else {}
    first, second, third = played("openai", model, **options)

    assert [m["role"] for m in second] == ["user", "assistant", "tool", "user"]
    assert first[0]["content"].startswith("prompt 1")
    assert first[0]["content"].count(OPEN) == 1
    assert third[:4] == second
    assert third[-1]["content"].count(OPEN) == 1


@pytest.mark.parametrize(("api", "model"), [("mistral", "large"), ("openai", "devstral")])
def test_shape_result_puts_the_delivery_into_the_last_result(api: str, model: str):
    """D4: where a user message after results is refused."""
    _, second, third = played(api, model)

    assert [m["role"] for m in second] == ["user", "user", "assistant", "tool"]
    assert second[-1]["content"].startswith("done")
    assert second[-1]["content"].count(OPEN) == 1
    assert third[:4] == second


def test_shape_of_bedrock_alternates():
    """D4: an added block for Claude, inside the result for models that refuse the mix."""
    for model, where in (("anthropic.claude", "text"), ("nova", "toolResult")):
        _, second, third = played("bedrock", model)
        assert [m["role"] for m in third] == ["user", "assistant", "user", "assistant", "user"]
        assert OPEN in json.dumps(second[-1]["content"][-1][where])
        assert third[:3] == second


def test_shape_none_waits_for_a_boundary(chat: Harness):
    """D4: nothing is put behind an assistant's message; all stays due."""
    sent = chat.send(U1, A1, sections=[ENV], reminders=[reminder()])

    assert sent.texts() == ["prompt 1", "answer 1"]
    assert (sent.due, sent.reminders, sent.codes) == ({}, (), {"no_boundary"})
    assert chat.send(U1, A1, U2, sections=[ENV]).due == {"env": "new"}


@pytest.mark.parametrize("change", [{"shape": "merge"}, {"model": "gemma"}, {"api": "mistral"}])
def test_shape_may_change_and_change_back(change: dict[str, str]):
    """D4: only the shape depends on where it goes; what is delivered does not."""
    chat = Harness(api="openai", model="gpt")
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    plain = chat.send(U1, A1, U2, sections=[ENV])
    chat.end(A2)
    before = {name: getattr(chat, name) for name in change}

    for name, value in change.items():
        setattr(chat, name, value)
    other = chat.send(U1, A1, U2, A2, U3, sections=[ENV])
    chat.end(A3)
    for name, value in before.items():
        setattr(chat, name, value)
    back = chat.send(U1, A1, U2, A2, U3, A3, U4, sections=[ENV])

    assert (other.due, back.due) == ({}, {})
    assert "".join(other.texts()).count("[Env]") == 1
    assert back.array[: len(plain.array)] == plain.array


def test_merged_delivery_acknowledges_only_as_the_complete_host(chat: Harness):
    """A2: the recorded host message acknowledges; an edited prompt is another message."""
    chat.shape = "merge"
    chat.send(U1, sections=[ENV])
    chat.end(A1)

    assert chat.send(U1, A1, U2, sections=[ENV]).due == {}
    edited = chat.send(message("other"), U2, sections=[ENV])
    assert edited.due == {"env": "missing"}


def test_two_deliveries_of_one_prompt_merge_in_the_order_of_their_commits(chat: Harness):
    """D4, G1: each stays, the later after the earlier."""
    chat.shape = "merge"
    chat.send(U1, sections=env("one"))
    sent = chat.send(U1, sections=env("two"))
    chat.end(A1)
    later = chat.send(U1, A1, U2, sections=env("two"))

    assert sent.texts() == ["prompt 1[Env][Env]"]
    assert later.array[0] == sent.array[0]
    assert later.due == {}


@pytest.mark.parametrize("loop", [False, True])
def test_host_that_went_out_before_gets_its_delivery(loop: bool):
    """D5, D4: the same array again, with something due now: its last message is a new element."""
    chat = Harness(api="mistral", shape="merge")
    work = (assistant(call(id="c12345678")), result("done", ids=["c12345678"]))
    chat.send(U1)
    sent = (
        (chat.loop(*work), chat.loop(sections=[ENV]))[1] if loop else chat.send(U1, sections=[ENV])
    )
    chat.end(A1)

    later = chat.send(U1, *(work if loop else ()), A1, U2, sections=[ENV])

    assert sent.texts()[-1] == ("done[Env]" if loop else "prompt 1[Env]")
    assert later.due == {}
    assert later.array[: len(sent.array)] == sent.array


# Acknowledgement (A1-A4)


def test_last_delivery_in_payload_order_decides(chat: Harness):
    """A1: of A, B, A with the last A filtered out, B is what stands."""
    three_turns(chat)

    kept = chat.send(U1, A1, U2, A2, sections=env("B"))
    sent = chat.send(U1, A1, U2, A2, U4, sections=env("A"))

    assert kept.due == {}
    assert sent.due == {"env": "changed"}
    assert sent.texts()[-2:] == ["prompt 4", "[Env]"]


def test_all_three_deliveries_stand_where_they_were(chat: Harness):
    """A1, B1: an unfiltered history needs nothing."""
    three_turns(chat)

    sent = chat.send(U1, A1, U2, A2, U3, A3, U4, sections=env("A"))

    assert sent.due == {}
    assert sent.texts() == [
        *("prompt 1", "[Env]", "answer 1", "prompt 2", "[Env]", "answer 2"),
        *("prompt 3", "[Env]", "answer 3", "prompt 4"),
    ]


@pytest.mark.parametrize(
    "quote",
    [lambda t: t, lambda t: f"> {t}", lambda t: f"look:\n{t}\nwhat is it?"],
    ids=["pasted", "quoted", "inside"],
)
def test_text_that_looks_like_a_delivery_acknowledges_nothing(chat: Harness, quote):
    """A2: trust comes from the log, never from how a text looks."""
    first = chat.send(U1, sections=[ENV])
    text = chat.delivered(first.placed[0])

    pasted = message(quote(text))
    sent = chat.send(pasted, sections=[ENV])
    chat.end(A2)
    later = chat.send(pasted, A2, U3, sections=[ENV])

    assert sent.due == {"env": "missing"}
    assert len(sent.array) == 2
    assert later.due == {}
    assert later.array[:2] == sent.array


def test_delivery_of_another_conversation_is_ordinary_text(chat: Harness):
    """A2: and so is one that an assistant or a tool says."""
    other = Harness()
    text = other.delivered(other.send(U1, sections=[ENV]).placed[0])
    chat.send(message(text), sections=[ENV])
    chat.end(assistant(text))

    fresh = Harness(delta=chat.delta)
    sent = fresh.send(message(text), assistant(text), U2, sections=[ENV])
    fresh.loop(assistant(call()), result(text), sections=[ENV])

    assert sent.due == {"env": "new"}
    later = chat.send(U2, assistant(text), U3, sections=[ENV])
    assert later.due == {}  # its own delivery stands in front of the answer (B3)


def test_tool_result_with_a_delivery_in_it_acknowledges_nothing(chat: Harness):
    """A2: a tool that returns the text of a delivery says nothing of the section."""
    first = chat.send(U1, sections=env("one"))
    text = chat.delivered(first.placed[0])
    changed = chat.loop(assistant(call()), result("x"), sections=env("two"))
    assert changed.due == {"env": "changed"}

    sent = chat.loop(assistant(call(id="c2")), result(text, ids=["c2"]), sections=env("two"))
    back = chat.loop(assistant(call(id="c3")), result(text, ids=["c3"]), sections=env("one"))

    assert sent.due == {}
    assert back.due == {"env": "changed"}


def test_acknowledgement_is_computed_after_a_restart(chat: Harness):
    """A3, L3: nothing but the log and the payload is needed."""
    three_turns(chat)
    history = (U1, A1, U2, A2, U3, A3, U4)
    expected = chat.prepare(*history, sections=env("A"))

    chat.restart()
    sent = chat.send(*history, sections=env("A"))

    assert sent.array == expected.array
    assert sent.due == {}


def test_context_loss_redelivers_what_is_missing_and_only_that(chat: Harness):
    """A4: the sections that went with the history come again, the others do not."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    chat.send(U1, A1, U2, sections=[ENV, GOAL])
    chat.end(A2)

    sent = chat.send(U2, A2, U3, sections=[ENV, GOAL])

    assert sent.due == {"env": "missing"}
    assert sent.texts() == ["prompt 2", "[Goal]", "answer 2", "prompt 3", "[Env]"]


def test_payload_without_history_is_conservative(chat: Harness):
    """A4: a conversation whose log knows nothing of the payload gets all, once."""
    three_turns(chat)
    other = Harness(delta=chat.delta)

    sent = other.send(U1, A1, U2, A2, U3, A3, U4, sections=env("A"))

    assert sent.due == {"env": "new"}
    assert sent.texts()[-2:] == ["prompt 4", "[Env]"]


# Boundaries (B1-B5, G1)


def test_repeated_messages_are_told_apart_by_their_place(chat: Harness):
    """B2: deliveries after identical prompts and answers stay each at its own."""
    yes, ok = message("yes"), assistant("ok")
    history = []
    for turn in range(1, 5):
        history.append(yes)
        sent = chat.send(*history, sections=env(str(turn)))
        history.append(ok)
        chat.end(ok)

    bodies = [raw for raw in sent.array if OPEN in text_of(raw)]
    assert sent.texts() == ["yes", "[Env]", "ok"] * 3 + ["yes", "[Env]"]
    assert [b"\\n\\n%d\\n" % n in raw for n, raw in enumerate(bodies, 1)] == [True] * 4


@pytest.mark.parametrize("lost", ["after", "before"])
def test_boundary_survives_while_either_side_does(chat: Harness, lost: str):
    """B3: the message before it, or the one behind it."""
    three_turns(chat)
    u2, a2 = (message("x"), A2) if lost == "after" else (U2, assistant("x"))

    sent = chat.send(U1, A1, u2, a2, U3, A3, U4, sections=env("A"))

    assert sent.due == {}
    assert sent.texts()[3:7] == [text_of(u2), "[Env]", text_of(a2), "prompt 3"]


def test_delivery_is_dropped_when_both_its_sides_are_gone(chat: Harness):
    """B3, A1: then what is current is delivered again."""
    chat.send(U1, sections=[GOAL])
    chat.end(A1)
    chat.send(U1, A1, U2, sections=[GOAL, ENV])
    chat.end(A2)

    sent = chat.send(U1, A1, message("x"), assistant("y"), U3, sections=[GOAL, ENV])

    assert sent.due == {"env": "missing"}
    assert sent.texts() == ["prompt 1", "[Goal]", "answer 1", "x", "y", "prompt 3", "[Env]"]


def test_inserted_message_leaves_the_delivery_at_its_prompt(chat: Harness):
    """B3: where both sides are there, it stays behind the one that it follows."""
    three_turns(chat)

    sent = chat.send(U1, message("note"), A1, U2, A2, U3, A3, U4, sections=env("A"))

    assert sent.texts()[:4] == ["prompt 1", "[Env]", "note", "answer 1"]


def test_edit_of_an_early_message_costs_only_that(chat: Harness):
    """B5: later deliveries stay; nothing is delivered again but what was lost."""
    three_turns(chat)

    sent = chat.send(message("x"), assistant("y"), U2, A2, U3, A3, U4, sections=env("A"))

    assert sent.due == {}
    assert sent.texts() == [
        *("x", "y", "prompt 2", "[Env]", "answer 2", "prompt 3", "[Env]", "answer 3", "prompt 4"),
    ]


def test_undo_brings_the_payload_back(chat: Harness):
    """G1: an edit and its undo give the payload that there was."""
    three_turns(chat)
    history = (U1, A1, U2, A2, U3, A3, U4)
    before = chat.prepare(*history, sections=env("A")).array

    chat.send(U1, A1, message("x"), sections=env("C"))
    chat.end(assistant("y"))
    chat.send(U1, A1, message("x"), assistant("y"), message("z"), sections=env("A"))
    undone = chat.send(*history, sections=env("A"))

    assert undone.array == before


def test_branches_keep_their_own_deliveries(chat: Harness):
    """G1: Org branches are subsequences of one log; each has what was delivered in it."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    left, right = (U1, A1, message("left")), (U1, A1, message("right"))
    chat.send(*left, sections=[ENV, GOAL])
    chat.end(assistant("L"))
    first = chat.send(*right, sections=[ENV])
    chat.end(assistant("R"))

    on_left = chat.send(*left, assistant("L"), U3, sections=[ENV, GOAL])
    on_right = chat.send(*right, assistant("R"), U3, sections=[ENV, GOAL])

    assert first.due == {}
    assert on_left.due == {}
    assert on_right.due == {"goal": "missing"}
    assert on_left.texts() == [
        *("prompt 1", "[Env]", "answer 1", "left", "[Goal]", "L", "prompt 3"),
    ]


def test_equal_messages_of_a_dropped_branch_stay_dropped(chat: Harness):
    """B2, G1: what was just logged is meant, not what another branch once said alike."""
    yes, ok = message("yes"), assistant("ok")
    chat.send(U1, sections=env("1"))
    chat.end(A1)
    chat.send(U1, A1, yes, sections=env("2"))
    chat.end(ok)
    chat.send(U1, A1, U2, sections=env("3"))
    chat.end(A2)
    chat.send(U1, A1, U2, A2, U3, sections=env("3"))
    chat.end(ok)

    sent = chat.send(U1, A1, U2, A2, U3, ok, U4, sections=env("3"))

    assert sent.due == {}
    assert sent.texts()[5:] == ["answer 2", "prompt 3", "ok", "prompt 4"]


def test_deliveries_of_requests_in_flight_keep_the_order_of_their_commits(chat: Harness):
    """G1, G5: two dispatches of one prompt, prepared before either was committed."""
    one = chat.prepare(U1, sections=env("one"))
    two = chat.prepare(U1, sections=env("two"))
    chat.commit(one)
    chat.commit(two)
    chat.end(A1)

    sent = chat.send(U1, A1, U2, sections=env("two"))

    assert sum(row.role == "user" and row.delivery is None for row in chat.log.rows.values()) == 2
    assert sent.placed == [*one.placed, *two.placed]
    assert sent.due == {}
    assert sent.texts() == ["prompt 1", "[Env]", "[Env]", "answer 1", "prompt 2"]


def test_rows_of_requests_in_flight_keep_the_order_of_their_arrays(chat: Harness):
    """G1, G5: a prompt that another commit logged is taken only where the array has it."""
    yes = message("yes")
    chat.send(U1, sections=[ENV])
    one = chat.prepare(U1, yes)
    two = chat.prepare(yes, U2, U1)
    chat.commit(one)
    chat.commit(two)

    rows = [item.row for item in two.plan.sent.items if item.row]
    places = [chat.log.position(id) for id in rows]
    assert places == sorted(places)
    assert rows[0] != one.plan.items[1].row


def test_commit_of_another_request_in_flight_is_seen_by_a_later_delta(chat: Harness):
    """Q1, B1: a delta of an array that was planned before that commit still gets its delivery."""
    slow = chat.prepare(U1, sections=[GOAL])
    chat.send(U1, A1, U2, sections=[ENV])
    chat.commit(slow)
    chat.end(A2)

    sent = chat.send(U1, A1, U2, A2, U3, sections=[ENV, GOAL])

    assert sent.due == {}
    assert sent.texts() == [
        *("prompt 1", "[Goal]", "answer 1", "prompt 2", "[Env]", "answer 2", "prompt 3"),
    ]


def test_conditions_seen_by_requests_in_flight_are_merged(chat: Harness):
    """D8, G5: a commit does not forget the condition that another one reported."""
    held = [reminder(policy="while", state="a")]
    slow = chat.prepare(U1)
    chat.send(U1, reminders=held)
    chat.commit(slow)
    chat.end(A1)

    assert chat.send(U1, A1, U2, reminders=held).reminders == ()


def test_late_commit_is_seen_though_another_request_went_out_since(chat: Harness):
    """Q1, B1: neither the base of the delta nor the array sent last has its delivery."""
    slow = chat.prepare(U1, sections=[GOAL])
    chat.send(U1, A1, U2, sections=[ENV])
    chat.end(A2)
    next_one = chat.prepare(U1, A1, U2, A2, U3, sections=[ENV])
    chat.commit(slow)
    chat.commit(next_one)
    chat.end(A3)

    sent = chat.send(U1, A1, U2, A2, U3, A3, U4, sections=[ENV, GOAL])

    assert sent.due == {}
    assert sent.texts()[:3] == ["prompt 1", "[Goal]", "answer 1"]


def test_delivery_returns_with_the_answer_that_followed_it(chat: Harness):
    """B3, G1: the answer came back at the end of another branch, its prompt did not."""
    chat.send(U1, sections=env("1"))
    chat.end(A1)
    chat.send(U1, U2, sections=env("1"))
    chat.end(A2)
    chat.send(U2, A2, U3, sections=env("2"))
    chat.end(A3)

    sent = chat.send(U2, A2, U3, A3, A1, U4, sections=env("1"))

    assert sent.due == {}
    assert sent.texts()[2:] == ["prompt 3", "[Env]", "answer 3", "[Env]", "answer 1", "prompt 4"]


# The loop (B4, Q2, Q3, G5)

WORK1 = (assistant("look", call(id="c1"), call(id="c2")), result("one", "two"))
WORK2 = (assistant(call(id="c4")), result("three", ids=["c4"]))


def worked(chat: Harness, **first: tuple) -> None:
    """Play a turn with two rounds and a delivery after the prompt and after each round."""
    chat.send(U1, sections=env("1"))
    chat.loop(*WORK1, sections=env("2"), **first)
    chat.loop(*WORK2, sections=env("3"))


def test_loop_recognizes_what_stands(chat: Harness):
    """B4: the payload holds earlier deliveries in actual form; they are not doubled."""
    first = chat.send(U1, sections=[ENV])
    second = chat.loop(*WORK1, sections=[ENV])
    third = chat.loop(*WORK2, sections=[ENV, GOAL])

    assert (second.due, third.due) == ({}, {"goal": "new"})
    assert second.array[:2] == first.array
    assert third.texts() == [
        *("prompt 1", "[Env]", "look read() read()", "one two", "read()", "three", "[Goal]"),
    ]


@pytest.mark.parametrize("at", [0, 2, 3])
def test_loop_recognizes_what_stands_behind_a_change(chat: Harness, at: int):
    """B4: one earlier element was changed by somebody else; what follows is ours all the same."""

    def change(array: list[bytes]) -> list[bytes]:
        return [raw[:-1] + b',"x":1}' if n == at else raw for n, raw in enumerate(array)]

    chat.send(U1, sections=env("1"))
    chat.loop(*WORK1, sections=env("2"))
    sent = chat.loop(*WORK2, sections=[section("env", "2"), GOAL], change=change)
    chat.end(A1)
    later = chat.send(U1, *WORK1, *WORK2, A1, U2, sections=[section("env", "2"), GOAL])

    assert sent.due == {"goal": "new"}
    assert [t for t in sent.texts() if "[" in t] == ["[Env]", "[Env]", "[Goal]"]
    assert later.due == {}
    assert later.texts() == [
        *("prompt 1", "[Env]", "look read() read()", "one two", "[Env]"),
        *("read()", "three", "[Goal]", "answer 1", "prompt 2"),
    ]
    assert len(later.plan.drafts) == 1, "a row of the round was not found again"


def test_loop_leaves_reminders_of_other_packages_alone(chat: Harness):
    """B4: what another package put there is theirs."""
    note = encode(message(delivery_text("theirs")))
    chat.send(U1, sections=[ENV])

    sent = chat.loop(*WORK1, sections=[ENV], change=lambda array: [*array, note])

    assert sent.due == {}
    assert sent.texts()[:3] == ["prompt 1", "[Env]", "[theirs]"]


def test_delivery_that_left_the_loop_is_delivered_again(chat: Harness):
    """B4, A1: what somebody removed from the payload does not stand."""
    chat.send(U1, sections=[ENV])

    sent = chat.loop(*WORK1, sections=[ENV], change=lambda array: array[:1])

    assert sent.due == {"env": "missing"}


def test_deliveries_of_the_loop_come_back_between_the_ordinary_messages(chat: Harness):
    """Q3: the rebuilt payload has each where it was, behind the complete results."""
    worked(chat)
    chat.end(A1)

    sent = chat.send(U1, *WORK1, *WORK2, A1, U2, sections=env("3"))

    assert sent.due == {}
    assert sent.texts() == [
        *("prompt 1", "[Env]", "look read() read()", "one two", "[Env]"),
        *("read()", "three", "[Env]", "answer 1", "prompt 2"),
    ]


def test_rebuilt_rounds_may_differ_from_the_actual_ones(chat: Harness):
    """Q3: gptel's rebuild splits parallel calls; the span says what stands for the round."""
    span = (
        assistant("look"),
        assistant(call(id="x1")),
        result("one", ids=["x1"]),
        assistant(call(id="x2")),
        result("two", ids=["x2"]),
    )
    worked(chat, span=span)
    chat.end(A1)

    sent = chat.send(U1, *span, *WORK2, A1, U2, sections=env("3"))
    again = chat.prepare(U1, *span, *WORK2, A1, U2, sections=env("3"))

    assert sent.due == {}
    assert sent.texts() == [
        *("prompt 1", "[Env]", "look read() read()", "one two", "[Env]"),
        *("read()", "three", "[Env]", "answer 1", "prompt 2"),
    ]
    assert again.array == sent.array


def test_hidden_results_move_the_boundary_to_the_end_of_the_turn(chat: Harness):
    """Q3: where texts merge, the whole region stands for the rounds."""
    worked(chat)
    merged = assistant("look answer 1")
    chat.end(A1, whole=(merged,))

    sent = chat.send(U1, merged, U2, sections=env("3"))
    chat.end(A2)
    other = chat.send(U1, merged, U3, sections=env("3"))

    assert (sent.due, other.due) == ({}, {})
    assert sent.texts() == ["prompt 1", "[Env]", "look answer 1", "[Env]", "[Env]", "prompt 2"]
    assert other.texts() == [*sent.texts()[:-1], "prompt 3"]


def test_edit_of_a_result_keeps_the_delivery_behind_it(chat: Harness):
    """B3, Q3: the first message behind the round is the other side of the boundary."""
    worked(chat)
    chat.end(A1)

    edited = (WORK1[0], result("one", "edited"))
    sent = chat.send(U1, *edited, *WORK2, A1, U2, sections=env("3"))

    assert sent.due == {}
    assert sent.texts()[:6] == [
        *("prompt 1", "[Env]", "look read() read()", "one edited", "[Env]", "read()"),
    ]


def test_turn_that_failed_keeps_the_rounds_that_were_committed(chat: Harness):
    """G4, Q3: after an error no end of the turn was logged; the boundaries are still found."""
    worked(chat)

    sent = chat.send(U1, *WORK1, *WORK2, U2, sections=env("3"))

    assert sent.due == {}
    assert [t for t in sent.texts() if t == "[Env]"] == ["[Env]"] * 3


def test_steering_message_in_the_loop_is_an_ordinary_one(chat: Harness):
    """Q4: a user's message inside a span; the delivery follows it."""
    chat.send(U1, sections=env("1"))
    steer = message("rather this")
    sent = chat.loop(*WORK1, steer, sections=env("2"))
    chat.end(A1)
    later = chat.send(U1, *WORK1, steer, A1, U2, sections=env("2"))

    assert sent.texts()[-2:] == ["rather this", "[Env]"]
    assert later.due == {}
    assert later.array[: len(sent.array)] == sent.array


def test_restart_inside_the_loop_delivers_again_rather_than_guess(chat: Harness):
    """A2, Q2: without the known prefix nothing in a payload is trusted; later all is found."""
    chat.send(U1, sections=[ENV])
    array = chat.loop(*WORK1, sections=[ENV]).array
    held = chat._sent
    chat.restart()
    chat._sent = held[0], None

    assert len(array) == 4
    assert chat.send(U1, *WORK1, U2, sections=[ENV]).due == {}


# Prompts that transforms change (Q6)


def test_prompt_comes_back_as_the_buffer_holds_it(chat: Harness):
    """Q6: "@preset text" goes out as "text" and comes back as written."""
    chat.send(message("text"), sections=[ENV], prompt=message("@preset text"))
    chat.end(A1)

    sent = chat.send(message("@preset text"), A1, U2, sections=[ENV])

    assert sent.due == {}
    assert sent.texts() == ["text", "[Env]", "answer 1", "prompt 2"], "as it was sent"
    assert sum(row.delivery is None for row in chat.log.rows.values()) == 3


@pytest.mark.parametrize("kept", [True, False])
def test_context_that_moves_with_the_prompt_leaves_boundaries_in_place(chat: Harness, kept: bool):
    """Q6, B2, S16: "continue" with another context each turn, kept where it was or not."""
    chat.context = kept
    history = []
    for turn in range(1, 4):
        sent = chat.send(
            *history,
            message(f"context {turn}\n\ncontinue"),
            sections=env(str(turn)),
            prompt=message("continue"),
        )
        history += [message("continue"), assistant(f"answer {turn}")]
        chat.end(history[-1])

    first, second = (
        ("context 1\n\ncontinue", "context 2\n\ncontinue") if kept else ("continue",) * 2
    )
    assert sent.texts()[:6] == [first, "[Env]", "answer 1", second, "[Env]", "answer 2"]
    assert sum(row.delivery is None for row in chat.log.rows.values()) == 6


# Switching the API (I4, G2)


def test_switch_of_the_api_keeps_boundaries(chat: Harness):
    """I4, G2: text, calls and results have one form everywhere, in the loop too."""
    worked(chat)
    chat.end(A1)
    history = (U1, *WORK1, *WORK2, A1)
    anthropic = chat.send(*history, U2, sections=env("3"))
    chat.end(A2)

    chat.api, chat.model = "openai", "gpt"
    switched = chat.send(*history, U2, A2, U3, sections=env("3"))
    chat.end(A3)
    chat.api, chat.model = "anthropic", "claude-test"
    back = chat.send(*history, U2, A2, U3, A3, U4, sections=env("3"))

    assert (switched.due, back.due) == ({}, {})
    assert switched.texts() == [
        *("prompt 1", "[Env]", "look read() read()", "one", "two", "[Env]"),
        *("read()", "three", "[Env]", "answer 1", "prompt 2", "answer 2", "prompt 3"),
    ]
    assert back.array[: len(anthropic.array)] == anthropic.array


def test_results_whose_calls_are_gone_keep_their_group_whole(chat: Harness):
    """D4: a delivery that would stand right before results goes behind them."""
    chat.send(U1, sections=[ENV])
    chat.loop(*WORK1, sections=[ENV])
    chat.end(A1)

    sent = chat.send(U1, WORK1[1], A1, U2, sections=[ENV])

    assert sent.due == {}
    assert sent.texts() == ["prompt 1", "one two", "[Env]", "answer 1", "prompt 2"]


def test_switch_of_the_api_with_an_edit_never_splits_calls(chat: Harness):
    """D4, B3: what was one message is several; a delivery before it stands before all of them."""
    chat.send(U1, sections=[ENV])
    chat.loop(*WORK1, sections=[ENV])
    chat.end(A1)
    chat.send(U1, *WORK1, A1, U2, sections=[ENV])
    chat.end(A2)

    parts = (assistant("look"), assistant(call(id="c1"), call(id="c2")), WORK1[1])
    sent = chat.send(message("x"), *parts, A1, U2, A2, U3, sections=[ENV])

    assert sent.due == {}
    assert sent.texts()[:4] == ["x", "[Env]", "look read() read()", "one two"]


def test_boundary_before_several_rows_that_are_one_message_now(chat: Harness):
    """B3, G2: the first of the rows is the side of the boundary, and it survives."""
    chat.send(U1, sections=[ENV])
    parts = (assistant("look"), assistant(call(id="c1"), call(id="c2")), WORK1[1])
    chat.loop(*WORK1, span=parts, sections=[ENV])
    chat.end(A1)
    chat.send(U1, *parts, A1, U2, sections=[ENV])
    chat.end(A2)

    sent = chat.send(message("x"), *WORK1, A1, U2, A2, U3, sections=[ENV])

    assert sent.due == {}
    assert sent.texts()[:3] == ["x", "[Env]", "look read() read()"]


# Growth, damage, refusal


def test_rows_grow_with_what_is_new(chat: Harness):
    """C1: a dispatch logs its new messages, whatever the length of the conversation."""
    history, grown = [], []
    for turn in range(1, 30):
        history.append(message(f"prompt {turn}"))
        before = len(chat.log.rows), len(chat.objects)
        sent = chat.send(*history, sections=env("same"))
        chat.end(assistant(f"answer {turn}"))
        history.append(assistant(f"answer {turn}"))
        grown.append((len(chat.log.rows) - before[0], len(sent.plan.drafts)))
        if chat.delta and turn > 1:
            assert len(sent.plan.steps) <= 3
            assert sum(len(step.texts) for step in sent.plan.steps) == 0

    assert grown == [(3, 2)] + [(2, 1)] * 28


def test_reused_part_is_what_equals_the_array_sent_last(chat: Harness):
    """C1: the share that the next request repeats as its exact prefix."""
    first = chat.send(U1, sections=[ENV])
    chat.end(A1)
    second = chat.send(U1, A1, U2, sections=[ENV])

    assert second.plan.common == len(first.array)
    assert second.plan.sent.ends == make_sent(second.plan.sent.items).ends


def test_damaged_delivery_counts_as_absent(chat: Harness):
    """Z3: what cannot be read is never sent, and its sections are due again."""
    first = chat.send(U1, sections=[ENV])
    chat.end(A1)
    gone = {digest("delivery", chat.delivered(first.placed[0]).encode())}
    gone.add(first.plan.sent.items[1].message.exact)
    chat.read = lambda name: None if name in gone else chat.objects.get(name)
    chat._last = (None, [])

    sent = chat.send(U1, A1, U2, sections=[ENV])

    assert sent.due == {"env": "missing"}
    assert sent.texts() == ["prompt 1", "answer 1", "prompt 2", "[Env]"]
    assert "delivery_lost" in sent.codes


def test_refused_edits_are_held_back(chat: Harness):
    """Z6: at the last step the request goes out as gptel made it; later nothing is lost."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    chat.step = NO_EDITS

    held = chat.send(U1, A1, U2, sections=[ENV, GOAL])
    chat.end(A2)
    chat.step = 0
    sent = chat.send(U1, A1, U2, A2, U3, sections=[ENV, GOAL])

    assert held.texts() == ["prompt 1", "answer 1", "prompt 2"]
    assert held.codes == {"refused"}
    assert sent.due == {"goal": "new"}
    assert sent.texts()[:2] == ["prompt 1", "[Env]"]


def test_rows_of_a_round_name_it(chat: Harness):
    """Q3: the ordinary rows of a round come before its actual ones, then the delivery."""
    chat.send(U1)
    chat.loop(*WORK1, sections=[ENV])

    rows = [chat.log.rows[id] for id in chat.log.order]
    assert [(r.face, r.round, r.delivery is not None) for r in rows] == [
        (Face.BOTH, 0, False),
        (Face.ORDINARY, 1, False),
        (Face.ORDINARY, 1, False),
        (Face.ACTUAL, 1, False),
        (Face.ACTUAL, 1, False),
        (Face.ACTUAL, 0, True),
    ]


def test_delivery_closes_its_blocks(chat: Harness):
    """D4: each block of a delivery is complete."""
    sent = chat.send(U1, sections=[ENV, GOAL], reminders=[reminder()])

    assert text_of(sent.array[1]).count(OPEN) == text_of(sent.array[1]).count(CLOSE) == 3
