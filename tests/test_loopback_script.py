"""What the provider answers: scripts by order and by prompt, faults, and the default."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.loopback import Answer, Call, Loopback, Script, ScriptError, Text
from tests.loopback.model import EmptyText, Redacted, Step, Thinking
from tests.loopback_client import (
    PATHS,
    Client,
    ask,
    assemble,
    iter_frames,
    iter_sse,
    prompt,
    read,
    streaming,
)

REMINDER = "<system-reminder>\nweather is fine\n</system-reminder>"
TWO = [{"name": "f", "args": {"n": 1}}, {"name": "f", "args": {"n": 2}}]


def user(*texts: str) -> Step:
    return Step(kind="user", texts=texts)


def said(*texts: str) -> Step:
    return Step(kind="assistant", texts=texts)


def results(count: int) -> Step:
    return Step(kind="results", texts=("ok",) * count)


def test_responses_are_taken_in_order_then_the_default_counts_prompts() -> None:
    script = Script([{"text": "one"}, {"text": "two"}])
    steps = [user("a"), said("b"), user("c")]

    assert [script.next(steps).text for _ in range(4)] == ["one", "two", "Reply 2.", "Reply 2."]


def test_match_is_answered_by_its_own_rounds_whatever_else_is_asked() -> None:
    """Two chats whose requests interleave get their own answers, and a repeated one the same."""
    entries = [
        {"match": "red", "responses": [{"calls": TWO}, {"text": "red done"}]},
        {"match": "blue", "responses": [{"calls": TWO[:1]}, {"calls": TWO}, {"text": "blue done"}]},
    ]
    script = Script(entries)
    red, blue = [user("a red one")], [user("a blue one")]

    assert len(script.next(red).calls) == 2
    assert len(script.next(blue).calls) == 1
    assert len(script.next(red).calls) == 2
    blue += [said(), results(1)]
    assert len(script.next(blue).calls) == 2
    red += [said(), results(2)]
    assert script.next(red).text == "red done"
    blue += [said(), results(2)]
    assert script.next(blue).text == "blue done"


def test_results_in_groups_of_one_count_as_the_group_they_were() -> None:
    """A client that rebuilds history may split two calls of one message into two messages."""
    script = Script([{"match": "x", "responses": [{"calls": TWO}, {"text": "done"}]}])

    assert script.next([user("x"), said(), results(1), said(), results(1)]).text == "done"


def test_match_that_has_nothing_left_gets_the_default() -> None:
    script = Script([{"match": "x", "responses": [{"calls": TWO}]}])

    assert script.next([user("x"), said(), results(2)]) == Answer(blocks=(Text("Reply 1."),))


def test_first_match_wins_and_other_prompts_take_the_queue() -> None:
    entries = [
        {"text": "queued"},
        {"match": "sun", "responses": [{"text": "first"}]},
        {"match": "sunny", "responses": [{"text": "second"}]},
    ]
    script = Script(entries)

    assert script.next([user("a sunny day")]).text == "first"
    assert script.next([user("rain")]).text == "queued"


AFTER_REMINDERS = {
    "a message of reminders alone": ([user("tell"), user(REMINDER, REMINDER)], "start"),
    "reminders after the text of a message": ([user("tell", REMINDER)], "start"),
    "a reminder inside the text": ([user(f"tell\n\n{REMINDER}")], "start"),
    "a blank message": ([user("tell"), user("  \n")], "start"),
    "a reminder after results": ([user("tell"), said(), results(2), user(REMINDER)], "end"),
}


@pytest.mark.parametrize(("steps", "text"), AFTER_REMINDERS.values(), ids=AFTER_REMINDERS)
def test_newest_prompt_is_found_past_reminders(steps: list[Step], text: str) -> None:
    entries = [
        {"match": "weather", "responses": [{"text": "wrong"}]},
        {"match": "tell", "responses": [{"text": "start", "calls": TWO}, {"text": "end"}]},
    ]
    assert Script(entries).next(steps).text == text


def test_reminders_are_no_prompts_in_the_default() -> None:
    steps = [user("a"), user(REMINDER), said(), user("b", REMINDER)]

    assert Script().next(steps).text == "Reply 2."


def test_prose_about_reminders_is_a_prompt() -> None:
    script = Script([{"match": "what is", "responses": [{"text": "a tag"}]}])

    assert script.next([user("what is <system-reminder>?")]).text == "a tag"


def test_fault_of_a_match_is_served_once_before_the_response_it_precedes() -> None:
    responses = [{"calls": TWO}, {"status": 500}, {"status": 529, "error": "Busy"}, {"text": "ok"}]
    script = Script([{"match": "x", "responses": responses}])
    first, second = [user("x")], [user("x"), said(), results(2)]

    assert len(script.next(first).calls) == 2
    assert [script.next(second).status for _ in range(2)] == [500, 529]
    assert [script.next(second).text for _ in range(2)] == ["ok", "ok"]
    assert len(script.next(first).calls) == 2


def test_fault_at_the_end_of_a_match_is_served_once() -> None:
    script = Script([{"match": "x", "responses": [{"calls": TWO}, {"status": 500}]}])
    steps = [user("x"), said(), results(2)]

    assert [script.next(steps).status for _ in range(2)] == [500, None]


def test_blocks_are_said_in_their_order() -> None:
    blocks: list[Any] = [
        {"thinking": ""},
        {"text": "a"},
        {"redacted": True},
        {"call": {"name": "f", "raw": '{ "b":1 }'}},
        {"empty_text": True},
    ]
    answer = Script([{"blocks": blocks}]).next([user("x")])

    assert answer.blocks == (
        Thinking(""),
        Text("a"),
        Redacted(),
        Call("f", '{ "b":1 }'),
        EmptyText(),
    )
    assert answer.calls[0].args == {"b": 1}


def test_fields_are_reasoning_then_text_then_calls() -> None:
    entry = {
        "calls": [{"name": "f", "args": {"a": 1}}, {"name": "g"}],
        "text": "a",
        "reasoning": "",
    }

    assert Script([entry]).next([user("x")]).blocks == (
        Thinking(""),
        Text("a"),
        Call("f", '{"a":1}'),
        Call("g"),
    )


def test_text_that_says_nothing_is_no_block_unless_it_is_one() -> None:
    assert Script([{"text": ""}]).next([user("x")]).blocks == ()
    assert Script([{"blocks": [{"text": ""}]}]).next([user("x")]).blocks == (Text(""),)


def test_calls_among_blocks_tell_which_response_is_due() -> None:
    two = {"blocks": [{"call": call} for call in TWO]}
    script = Script([{"match": "x", "responses": [two, {"text": "done"}]}])

    assert len(script.next([user("x")]).calls) == 2
    assert script.next([user("x"), said(), results(2)]).text == "done"
    assert script.next([user("x"), said(), results(3)]).text == "Reply 1."


def test_call_without_arguments_may_be_written_as_nothing() -> None:
    assert Script([{"calls": [{"name": "f", "raw": ""}]}]).next([user("x")]).calls[0].args == {}


RAW = '{ "b" : 1e0,\n"a":null}'


@pytest.mark.parametrize("api", ["openai", "copilot", "openrouter", "deepseek", "mistral"])
@pytest.mark.parametrize("streamed", [False, True])
def test_arguments_are_sent_as_the_model_wrote_them(api: str, streamed: bool) -> None:
    with Loopback([{"calls": [{"name": "f", "raw": RAW}]}]) as server:
        client = Client(server=server, api=api, streamed=streamed, array=prompt(api)["messages"])
        (element,) = assemble(api, client.send())

    assert element["tool_calls"][0]["function"]["arguments"] == RAW


def test_pieces_of_a_streamed_input_are_what_the_model_wrote() -> None:
    with Loopback([{"calls": [{"name": "f", "raw": RAW}]}] * 2) as server:
        path, body = streaming("anthropic", prompt("anthropic"))
        events = [event for _, event in iter_sse(ask(server, path, body).body)]
        path, body = streaming("bedrock", prompt("bedrock"))
        frames = [frame for _, frame in iter_frames(ask(server, path, body).body)]

    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == RAW
    inputs = [f["delta"]["toolUse"]["input"] for f in frames if "toolUse" in f.get("delta", {})]
    assert "".join(inputs) == RAW


INVALID: list[Any] = [
    "text",
    {"txt": "misspelt"},
    {"text": 1},
    {"calls": [{"args": {}}]},
    {"calls": [{"name": "f", "args": []}]},
    {"calls": [{"name": "f", "arguments": {}}]},
    {"calls": ["f"]},
    {"calls": [{"name": "f", "raw": "[]"}]},
    {"calls": [{"name": "f", "raw": "{"}]},
    {"calls": [{"name": "f", "raw": "{}", "args": {}}]},
    {"blocks": [], "text": "both"},
    {"blocks": [{}]},
    {"blocks": ["text"]},
    {"blocks": [{"text": "a", "thinking": "b"}]},
    {"blocks": [{"thinking": None}]},
    {"blocks": [{"redacted": False}]},
    {"blocks": [{"call": {"args": {}}}]},
    {"quirks": "comments"},
    {"match": "x"},
    {"match": "x", "responses": {}},
    {"match": "x", "responses": [{"answer": ""}]},
    {"match": "x", "responses": [], "text": ""},
]


@pytest.mark.parametrize("entry", INVALID, ids=repr)
def test_script_that_is_not_of_the_form_is_refused(entry: Any) -> None:
    with pytest.raises(ScriptError):
        Script([entry])


def test_script_takes_answers_as_values() -> None:
    answer = Answer(blocks=(Text("hi"), Call("f")))

    assert Script([answer]).next([user("x")]) is answer


@pytest.mark.parametrize("api", PATHS)
def test_default_reply_counts_the_prompts_of_every_api(api: str) -> None:
    with Loopback() as server:
        got = ask(server, PATHS[api], prompt(api))

    assert read(api, got) == ("Reply 1.", [])


FAULTS = {
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}},
    "openai": {"error": {"message": "Busy", "type": "server_error", "param": None, "code": None}},
    "mistral": {
        "object": "error",
        "message": "Busy",
        "type": "server_error",
        "param": None,
        "code": None,
    },
    "gemini": {"error": {"code": 529, "message": "Busy", "status": "UNKNOWN"}},
    "ollama": {"error": "Busy"},
    "bedrock": {"message": "Busy"},
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("api", "envelope"), FAULTS.items())
def test_scripted_status_has_the_envelope_of_the_api(
    api: str, envelope: object, streamed: bool
) -> None:
    target = streaming(api, prompt(api)) if streamed else (PATHS[api], prompt(api))
    with Loopback([{"status": 529, "error": "Busy"}, {"text": "ok"}]) as server:
        got = ask(server, *target)

        assert (got.status, got.json) == (529, envelope)
        assert ask(server, *target).status == 200
        assert [each.refusal for each in server.requests] == ["Busy", None]


def test_rate_limit_tells_when_to_come_back() -> None:
    with Loopback([{"status": 429}]) as server:
        got = ask(server, PATHS["anthropic"], prompt("anthropic"))

    assert got.headers["retry-after"] == "1"
    assert got.json["error"]["type"] == "rate_limit_error"


def test_error_without_a_stream_is_a_server_error() -> None:
    with Loopback([{"text": "Hm", "error": "Busy"}]) as server:
        got = ask(server, PATHS["anthropic"], prompt("anthropic"))

    assert (got.status, got.json["error"]["message"]) == (500, "Busy")


def test_refused_request_takes_nothing_from_the_script() -> None:
    with Loopback([{"text": "one"}]) as server:
        assert ask(server, PATHS["openai"], {"model": "m", "messages": []}).status == 400
        assert read("openai", ask(server, PATHS["openai"], prompt("openai"))) == ("one", [])


def test_stop_ends_a_delay() -> None:
    """A test that is done does not wait for an answer that nobody wants."""
    server = Loopback([{"text": "late", "delay": 60}])
    started = time.monotonic()
    with server:
        client = threading.Thread(
            target=ask, args=(server, PATHS["openai"], prompt("openai")), daemon=True
        )
        client.start()
        while not server.requests:
            assert time.monotonic() - started < 10
    client.join(10)

    assert not client.is_alive()
    assert time.monotonic() - started < 10
