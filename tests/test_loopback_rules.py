"""What each API accepts and what it refuses, with its own words.

A table has one row a case: a name, a body, and a part of the refusal, or None where the body is
accepted.  The bodies are written with the small builders above each table.
"""

# ruff: noqa: E501  # a case is one line, whatever the API has to say about it

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.loopback import Loopback, Strictness
from tests.loopback.seals import seal
from tests.loopback_client import PATHS, Got, ask

Body = dict[str, Any]
Row = tuple[str, Body, str | None]


def cases(rows: list[Row]) -> pytest.MarkDecorator:
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize(
        ("body", "expected"), [(body, expected) for _, body, expected in rows], ids=names
    )


def judge(path: str, body: Body, strictness: Strictness | None = None) -> tuple[Got, str | None]:
    """The answer, and the message of the refusal if it is one."""
    with Loopback(strictness=strictness) as server:
        got = ask(server, path, body)
        return got, server.requests[0].refusal


def hold(path: str, body: Body, expected: str | None, strictness: Strictness | None = None) -> Got:
    got, refusal = judge(path, body, strictness)
    assert (got.status, refusal is None) == ((200, True) if expected is None else (400, False))
    assert (expected or "") in (refusal or "")
    return got


# --- Anthropic

U = {"role": "user", "content": "hi"}
A = {"role": "assistant", "content": "yes"}
S = {"role": "system", "content": "note"}
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
UNANSWERED = "`tool_use` ids were found without `tool_result` blocks immediately after: "


def text(value: str = "t", **fields: Any) -> Body:
    return {"type": "text", "text": value, **fields}


def use(name: str = "t1", **fields: Any) -> Body:
    return {"type": "tool_use", "id": name, "name": "f", "input": {}, **fields}


def result(name: str = "t1", **fields: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": name, "content": "ok", **fields}


def thinking(**fields: Any) -> Body:
    signature = seal("nonce-nonce-", "anthropic", "claude-opus-5", "thinking", "hm", "")
    return {"type": "thinking", "thinking": "hm", "signature": signature, **fields}


def by(role: str, *blocks: Body) -> Body:
    return {"role": role, "content": list(blocks)}


def claude(*messages: Body, model: str = "claude-opus-5", **fields: Any) -> Body:
    return {"model": model, "max_tokens": 10, "messages": list(messages), **fields}


def without(body: Body, key: str) -> Body:
    return {name: value for name, value in body.items() if name != key}


CALL, RESULT = by("assistant", use()), by("user", result())
BOTH = by("assistant", use("a"), use("b"))
TOOL = {"name": "f", "input_schema": {"type": "object"}}

ANTHROPIC: list[Row] = [
    ("a prompt", claude(U), None),
    ("turns", claude(U, A, U), None),
    ("neighbours of one role", claude(U, U, A, A, U), None),
    ("a tool round", claude(U, CALL, RESULT), None),
    ("two calls of one message", claude(U, BOTH, by("user", result("b"), result("a"))), None),
    ("results in two messages", claude(U, BOTH, by("user", result("a")), by("user", result("b"))), None),
    ("calls in two messages", claude(U, by("assistant", use("a")), by("assistant", use("b")), by("user", result("a"), result("b"))), None),
    ("text after the results", claude(U, CALL, by("user", result(), text())), None),
    ("a message after the results", claude(U, CALL, RESULT, U), None),
    ("text before the call", claude(U, by("assistant", text(), use()), RESULT), None),
    ("thinking before the call", claude(U, by("assistant", thinking(), use()), RESULT), None),
    ("a result of blocks", claude(U, CALL, by("user", result(content=[text()]))), None),
    ("an empty result", claude(U, CALL, by("user", result(content=""))), None),
    ("a result that is an error", claude(U, CALL, by("user", result(is_error=True))), None),
    ("an id of another provider", claude(U, by("assistant", use("call_a-B_1")), by("user", result("call_a-B_1"))), None),
    ("no messages", claude(), "messages: at least one message is required"),
    ("messages missing", without(claude(U), "messages"), "messages: Field required"),
    ("max_tokens missing", without(claude(U), "max_tokens"), "max_tokens: Field required"),
    ("model missing", without(claude(U), "model"), "model: Field required"),
    ("messages no list", {**claude(), "messages": "hi"}, "messages: Input should be a valid list"),
    ("unknown field", claude(U, colour="red"), "colour: Extra inputs are not permitted"),
    ("unknown field of a message", claude({**U, "name": "x"}), "messages.0.name: Extra inputs are not permitted"),
    ("unknown field of a block", claude(by("user", text(id="x"))), "messages.0.content.0.text.id: Extra inputs are not permitted"),
    ("unknown block", claude(by("user", {"type": "input_text", "text": "t"})), "messages.0.content.0: Input tag 'input_text' found using 'type' does not match any of the expected tags"),
    ("unknown role", claude({"role": "tool", "content": "x"}), "messages.0.role: Input should be 'user' or 'assistant'"),
    ("null content", claude({"role": "user", "content": None}), "messages.0.content: Input should be a valid list"),
    ("call without input", claude(U, by("assistant", without(use(), "input")), RESULT), "messages.1.content.0.tool_use.input: Field required"),
    ("call with null input", claude(U, by("assistant", use(input=None)), RESULT), "messages.1.content.0.tool_use.input: Input should be a valid dictionary"),
    ("first message assistant", claude(A, U), 'messages: first message must use the "user" role'),
    ("unanswered call", claude(U, CALL, U), f"messages.1: {UNANSWERED}t1. Each `tool_use` block must have a corresponding `tool_result` block in the next message."),
    ("unanswered call at the end", claude(U, CALL), f"messages.1: {UNANSWERED}t1."),
    ("one of two unanswered", claude(U, BOTH, by("user", result("b"))), f"messages.1: {UNANSWERED}a."),
    ("both unanswered", claude(U, BOTH, U), f"{UNANSWERED}a, b."),
    ("text before the result", claude(U, CALL, by("user", text(), result())), f"messages.1: {UNANSWERED}t1."),
    ("a message before the result", claude(U, CALL, U, RESULT), f"messages.1: {UNANSWERED}t1."),
    ("text between the results", claude(U, BOTH, by("user", result("a"), text(), result("b"))), f"{UNANSWERED}b."),
    ("a system message before the result", claude(U, CALL, S, RESULT), "messages.2: role 'system' must precede an 'assistant' message"),
    ("result without a call", claude(U, A, RESULT), "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t1. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."),
    ("result in the first message", claude(by("user", text(), result())), "messages.0.content.1: unexpected `tool_use_id`"),
    ("late result", claude(U, CALL, RESULT, A, RESULT), "messages.4.content.0: unexpected `tool_use_id`"),
    ("two results of one call", claude(U, CALL, by("user", result(), result())), "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with id: t1"),
    ("one id twice in a message", claude(U, by("assistant", use(), use()), RESULT), "messages.1.content.1: `tool_use` ids must be unique"),
    ("one id twice in a chat", claude(U, CALL, RESULT, CALL, RESULT), "messages.3.content.0: `tool_use` ids must be unique"),
    ("id with other characters", claude(U, by("assistant", use("a.b")), by("user", result("a.b"))), "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
    ("empty id", claude(U, by("assistant", use("")), by("user", result(""))), "String should match pattern"),
    ("result by the assistant", claude(U, by("assistant", result())), "messages.1: `tool_result` blocks can only be in `user` messages"),
    ("call by the user", claude(by("user", use())), "messages.0: `tool_use` blocks can only be in `assistant` messages"),
    ("empty text", claude(by("user", text(""))), "messages: text content blocks must be non-empty"),
    ("empty text in a result", claude(U, CALL, by("user", result(content=[text("")]))), "messages: text content blocks must be non-empty"),
    ("empty text of the system", claude(U, system=[text("")]), "system: text content blocks must be non-empty"),
    ("mark on empty text", claude(by("user", text("", cache_control=MARK))), "messages.0.content.0.text: cache_control cannot be set for empty text blocks"),
    ("empty content", claude({"role": "user", "content": ""}), "messages.0: all messages must have non-empty content except for the optional final assistant message"),
    ("no blocks", claude(U, by("assistant"), U), "messages.1: all messages must have non-empty content"),
    ("thinking at the end", claude(U, by("assistant", text(), thinking()), U), "messages.1: The final block in an assistant message cannot be `thinking`."),
    ("two tools of one name", claude(U, tools=[TOOL, TOOL]), "tools: Tool names must be unique."),
    ("forced tool without tools", claude(U, tool_choice={"type": "any"}), "tool_choice may only be specified while providing tools"),
    ("forced tool", claude(U, tools=[TOOL], tool_choice={"type": "any"}), None),
    ("forced tool on a model that thinks", claude(U, model="claude-fable-5-1", tools=[TOOL], tool_choice={"type": "any"}), 'tool_choice: type "tool" and "any" are not supported for this model.'),
    ("tool without a schema", claude(U, tools=[{"name": "f"}]), "tools.0.custom.input_schema: Field required"),
    ("temperature on a new model", claude(U, temperature=1.0), "`temperature` is deprecated for this model."),
    ("temperature on an older model", claude(U, model="claude-sonnet-4-5-20250929", temperature=1.0), None),
]  # fmt: skip


@cases(ANTHROPIC)
def test_anthropic(body: Body, expected: str | None) -> None:
    got = hold(PATHS["anthropic"], body, expected)

    if expected:
        assert (got.json["type"], got.json["error"]["type"]) == ("error", "invalid_request_error")


MARKED = [text(cache_control=MARK)] * 4
ANTHROPIC_MARKS: list[Row] = [
    ("four", claude(by("user", *MARKED)), None),
    ("five", claude(by("user", *MARKED), tools=[{**TOOL, "cache_control": MARK}]), "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    ("five with the system", claude(by("user", *MARKED), system=[text(cache_control=MARK)]), "Found 5."),
    ("five inside a result", claude(U, CALL, by("user", result(content=MARKED, cache_control=MARK))), "Found 5."),
    ("five with the whole request", claude(by("user", *MARKED), A, U, cache_control=MARK), "Found 5."),
    ("four with the whole request on the fourth", claude(by("user", *MARKED), cache_control=MARK), None),
    ("longer first", claude(by("user", text(cache_control=HOUR), text(cache_control=MARK))), None),
    ("longer later", claude(by("user", text(cache_control=MARK), text(cache_control=HOUR))), "messages.0.content.1.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."),
    ("longer in the system than in the tools", claude(U, tools=[{**TOOL, "cache_control": MARK}], system=[text(cache_control=HOUR)]), "system.0.cache_control.ttl: a ttl='1h'"),
    ("other lifetime for the whole request", claude(by("user", text(cache_control=HOUR)), cache_control=MARK), "Top-level cache_control has ttl='5m' but the target block already has cache_control with ttl='1h'"),
    ("unknown type", claude(by("user", text(cache_control={"type": "x"}))), "messages.0.content.0.text.cache_control.type: Input should be 'ephemeral'"),
    ("unknown lifetime", claude(by("user", text(cache_control={**MARK, "ttl": "2h"}))), "Input should be '5m' or '1h'"),
    ("null", claude(by("user", text(cache_control=None))), None),
    ("on thinking", claude(U, by("assistant", thinking(cache_control=MARK), text()), U), "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"),
    ("on a call and its result", claude(U, by("assistant", use(cache_control=MARK)), by("user", result(cache_control=MARK))), None),
]  # fmt: skip


@cases(ANTHROPIC_MARKS)
def test_anthropic_marks(body: Body, expected: str | None) -> None:
    hold(PATHS["anthropic"], body, expected)


PREFILL = "This model does not support assistant message prefill."
MISPLACED = "role 'system' must precede an 'assistant' message or end the array"
DIRECTIVE = {"role": "system", "content": [], "output_config": {"effort": "low"}}
ANTHROPIC_ROLES: list[Row] = [
    ("prefill, new", claude(U, A), PREFILL),
    ("prefill, empty", claude(U, {"role": "assistant", "content": ""}), PREFILL),
    ("prefill, 4.6", claude(U, A, model="claude-sonnet-4-6"), PREFILL),
    ("prefill, unknown", claude(U, A, model="some-model"), PREFILL),
    ("prefill, 4.5", claude(U, A, model="claude-opus-4-5-20251101"), None),
    ("prefill, haiku", claude(U, A, model="claude-haiku-4-5"), None),
    ("prefill, 3", claude(U, A, model="claude-3-7-sonnet-20250219"), None),
    ("system first", claude(S, U), "messages.0: use the top-level 'system' parameter for the initial system prompt"),
    ("system before the assistant", claude(U, S, A, U), None),
    ("system at the end", claude(U, A, U, S), None),
    ("system after results", claude(U, CALL, RESULT, S), None),
    ("a run of system", claude(U, S, S, A, U), None),
    ("system before the user", claude(U, A, S, U), f"messages.2: {MISPLACED}"),
    ("directive anywhere", claude(U, A, DIRECTIVE, U), None),
    ("empty system", claude(U, by("system")), "messages.1: system content must contain at least one block"),
    ("system on an older model", claude(U, S, model="claude-opus-4-7"), "role 'system' is not supported on this model"),
    ("system on a sonnet", claude(U, S, model="claude-sonnet-5"), "role 'system' is not supported on this model"),
    ("system on a newer sonnet", claude(U, S, model="claude-sonnet-5-5"), None),
    ("system on opus 4.8", claude(U, S, model="claude-opus-4-8"), None),
]  # fmt: skip


@cases(ANTHROPIC_ROLES)
def test_anthropic_roles(body: Body, expected: str | None) -> None:
    hold(PATHS["anthropic"], body, expected)


HALF = "\ud83d"  # of a surrogate pair: JSON can say it, UTF-8 cannot


@pytest.mark.parametrize("mode", ["lenient", "bound"])
def test_half_a_surrogate_is_read_and_told_back(mode: str) -> None:
    bodies = [
        claude({**U, "content": HALF}),
        claude(U, by("assistant", thinking(thinking=HALF), use()), RESULT),
        {**claude(U), HALF: 1},
    ]
    with Loopback(strictness=Strictness(thinking=mode, exact=True)) as server:
        replies = [
            server.answer("POST", PATHS["anthropic"], json.dumps(body).encode()) for body in bodies
        ]

    assert [reply.status for reply in replies] == [200, 400, 400]
    assert json.loads(replies[2].body)["error"]["message"].startswith(HALF)


def test_anthropic_refuses_a_body_above_32_megabytes() -> None:
    got, refusal = judge(PATHS["anthropic"], claude({"role": "user", "content": "x" * 2**25}))

    assert (got.status, got.json["error"]["type"]) == (413, "request_too_large")
    assert refusal == "Request exceeds the maximum size"


# --- Chat completions


def calls(*names: str, content: Any = None, **fields: Any) -> Body:
    made = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for name in names
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, **fields}


def tool(name: str = "c1", content: Any = "ok") -> Body:
    return {"role": "tool", "tool_call_id": name, "content": content}


def chat(*messages: Body, model: str = "gpt-4.1", **fields: Any) -> Body:
    return {"model": model, "messages": list(messages), **fields}


PAIRED: list[Row] = [
    ("a prompt", chat(U), None),
    ("a tool round", chat(U, calls("c1"), tool()), None),
    ("two calls", chat(U, calls("a", "b"), tool("b"), tool("a")), None),
    ("calls without content", chat(U, without(calls("c1"), "content"), tool()), None),
    ("calls with empty content", chat(U, calls("c1", content=""), tool()), None),
    ("one id in two groups", chat(U, calls("c1"), tool(), calls("c1"), tool()), None),
    ("a rebuilt pair", chat(U, calls("b"), tool("b"), calls("a"), tool("a"), A, U), None),
]
OPENAI_UNANSWERED = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
OPENAI_ORPHAN = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
OPENAI: list[Row] = [
    *PAIRED,
    ("system anywhere", chat(S, U, S, A, S), None),
    ("neighbours of one role", chat(U, U, A, A), None),
    ("text and calls", chat(U, calls("c1", content="let me see"), tool()), None),
    ("user after results", chat(U, calls("c1"), tool(), U), None),
    ("content of parts", chat(by("user", text()), calls("c1"), tool(content=[text()])), None),
    ("empty text", chat({"role": "user", "content": ""}), None),
    ("an unknown field", chat(U, colour="red"), None),
    ("fields of relatives", chat(U, {**A, "reasoning_content": 7, "reasoning_details": []}, U), None),
    ("no messages", chat(), "Invalid 'messages': empty array."),
    ("messages missing", {"model": "m"}, "Missing required parameter: 'messages'."),
    ("model missing", {"messages": [U]}, "Missing required parameter: 'model'."),
    ("messages no list", {"model": "m", "messages": {}}, "Invalid type for 'messages': expected an array"),
    ("unknown role", chat({"role": "model", "content": "x"}), "Invalid value: 'model'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'."),
    ("user before the result", chat(U, calls("c1"), U, tool()), f"{OPENAI_UNANSWERED}c1"),
    ("unanswered at the end", chat(U, calls("c1")), f"{OPENAI_UNANSWERED}c1"),
    ("one of two unanswered", chat(U, calls("a", "b"), tool("b"), U), f"{OPENAI_UNANSWERED}a"),
    ("both unanswered", chat(U, calls("a", "b"), U), f"{OPENAI_UNANSWERED}a, b"),
    ("result without a call", chat(U, tool()), OPENAI_ORPHAN),
    ("result of another call", chat(U, calls("c1"), tool("c2")), OPENAI_ORPHAN),
    ("result after an answer", chat(U, calls("c1"), tool(), A, tool()), OPENAI_ORPHAN),
    ("two results of one call", chat(U, calls("c1"), tool(), tool()), "Duplicate value for 'tool_call_id' of 'c1'"),
    ("one id twice in a group", chat(U, calls("c1", "c1"), tool()), "Duplicate value for 'id' of 'c1'"),
    ("longest id", chat(U, calls("c" * 40), tool("c" * 40)), None),
    ("id too long", chat(U, calls("c" * 41), tool("c" * 41)), "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40"),
    ("null content", chat({"role": "user", "content": None}), "Invalid value for 'content': expected a string, got null."),
    ("null content of the assistant", chat(U, {"role": "assistant", "content": None}, U), "Invalid value for 'content': expected a string, got null."),
    ("empty content", chat({"role": "user", "content": []}), "Invalid 'messages[0].content': empty array."),
    ("empty calls", chat(U, {**A, "tool_calls": []}, U), "Invalid 'messages[1].tool_calls': empty array."),
    ("arguments no string", chat(U, {**A, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}]}, tool("c")), "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string"),
    ("content too long", chat({"role": "user", "content": "x" * 1_048_577}), "Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576"),
    ("max_tokens on a new model", chat(U, model="gpt-5.4", max_tokens=5), "Unsupported parameter: 'max_tokens' is not supported with this model."),
    ("max_tokens on an older model", chat(U, max_tokens=5), None),
]  # fmt: skip


def test_fields_of_relatives_mean_nothing() -> None:
    body = chat(U, {**A, "reasoning_details": ["x", {"data": 7}]}, U)

    hold(PATHS["openai"], body, None, Strictness(exact=True))


@pytest.mark.parametrize("api", ["openai", "copilot", "openrouter"])
@cases(OPENAI)
def test_openai(api: str, body: Body, expected: str | None) -> None:
    got = hold(PATHS[api], body, expected)

    if expected and api == "openrouter":
        assert got.json["error"]["message"] == "Provider returned error"
        assert got.json["error"]["metadata"]["provider_name"] == "Anthropic"
    elif expected:
        assert got.json["error"]["type"] == "invalid_request_error"


def test_openai_names_the_message_that_breaks_a_pair() -> None:
    got, _ = judge(PATHS["openai"], chat(U, calls("c1"), U))

    assert got.json["error"]["param"] == "messages.[2].role"
    assert got.json["error"]["code"] is None


def thought(message: Body, reasoning: Any = "") -> Body:
    return {**message, "reasoning_content": reasoning}


DEEPSEEK: list[Row] = [
    *PAIRED,
    ("reasoning left out", chat(U, calls("c1"), tool(), A, U), None),
    ("unanswered", chat(U, calls("c1"), U), "responding to each 'tool_call_id'. (insufficient tool messages following tool_calls message)"),
    ("result without a call", chat(U, tool()), "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"),
    ("messages missing", {"model": "m"}, "Missing required parameter: 'messages'."),
]  # fmt: skip


@cases(DEEPSEEK)
def test_deepseek(body: Body, expected: str | None) -> None:
    got = hold(PATHS["deepseek"], body, expected)

    if expected:
        kind = "invalid_request_error"
        message = got.json["error"].pop("message")
        assert expected in message
        assert got.json["error"] | {"message": ""} == {
            "message": "",
            "type": kind,
            "param": None,
            "code": kind,
        }


NO_REASONING = "The `reasoning_content` in the thinking mode must be passed back to the API."
ROUND = (U, thought(calls("c1"), "hm"), tool())
DEEPSEEK_REASONING: list[Row] = [
    ("no calls yet", chat(U, A, U), None),
    ("all there", chat(*ROUND, thought(A), U), None),
    ("answers before the first call may lack it", chat(U, A, *ROUND), None),
    ("missing on the call", chat(U, calls("c1"), tool()), NO_REASONING),
    ("null on the call", chat(U, thought(calls("c1"), None), tool()), NO_REASONING),
    ("missing on a later answer", chat(*ROUND, A, U), NO_REASONING),
    ("thinking disabled", chat(U, calls("c1"), tool(), thinking={"type": "disabled"}), None),
]


@cases(DEEPSEEK_REASONING)
def test_deepseek_reasoning(body: Body, expected: str | None) -> None:
    hold(PATHS["deepseek"], body, expected, Strictness(strict_reasoning=True))


def test_deepseek_that_wants_reasoning_gives_some() -> None:
    got, _ = judge(PATHS["deepseek"], chat(U), Strictness(strict_reasoning=True))

    assert got.json["choices"][0]["message"]["reasoning_content"]


# --- Mistral

PREFIX = {**A, "prefix": True}
COUNT = "Not the same number of function calls and responses"
NOT_BOTH = "Assistant message must have either content or tool_calls, but not both."
MISTRAL_ORDER: list[Row] = [
    ("user after tool", chat(U, calls("c1"), tool(), U), "Unexpected role 'user' after role 'tool'"),
    ("system after tool", chat(U, calls("c1"), tool(), S), "Unexpected role 'system' after role 'tool'"),
    ("system after assistant", chat(U, A, S, U), "Unexpected role 'system' after role 'assistant'"),
    ("tool after user", chat(U, tool()), "Unexpected role 'tool' after role 'user'"),
    ("last role assistant", chat(U, A), "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"),
    ("last role system", chat(U, S), "Expected last role User or Tool (or Assistant with prefix True) for serving but got system"),
    ("assistant alone", chat(A), "Conversation must start with a user message or system message"),
    ("too few results", chat(U, calls("a", "b"), tool("a")), COUNT),
    ("too few results before an answer", chat(U, calls("a", "b"), tool("a"), A, U), COUNT),
    ("user instead of a result", chat(U, calls("c1"), U), COUNT),
    ("too many results", chat(U, calls("c1"), tool(), tool()), COUNT),
]  # fmt: skip
MISTRAL: list[Row] = [
    *PAIRED,
    ("order of roles", chat(S, S, U, U, S, U, A, A, U), None),
    ("assistant after tool", chat(U, calls("c1"), tool(), A, U), None),
    ("results by count alone", chat(U, calls("a"), tool("other")), None),
    ("prefix", chat(U, PREFIX), None),
    ("ids of any length", chat(U, calls("call_123456789"), tool("call_123456789")), None),
    ("text and calls", chat(U, calls("c1", content="x"), tool()), NOT_BOTH),
    ("neither text nor calls", chat(U, {"role": "assistant", "content": ""}, U), NOT_BOTH),
    ("function name", chat(U, {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "a.b", "arguments": "{}"}}]}, tool("c")), "Function name was a.b but must be a-z, A-Z, 0-9"),
]  # fmt: skip


@cases(MISTRAL_ORDER)
def test_mistral_order(body: Body, expected: str) -> None:
    got = hold(PATHS["mistral"], body, expected)

    assert got.json == {
        "object": "error",
        "message": expected,
        "type": "invalid_request_message_order",
        "param": None,
        "code": "3230",
    }


@cases(MISTRAL)
def test_mistral(body: Body, expected: str | None) -> None:
    got = hold(PATHS["mistral"], body, expected)

    if expected:
        assert (got.json["type"], got.json["code"]) == ("invalid_request_error", None)


BAD_ID = "Tool call id was call_1234 but must be a-z, A-Z, 0-9, with a length of 9."
MISTRAL_IDS: list[Row] = [
    ("nine letters and digits", chat(U, calls("abcDEF123"), tool("abcDEF123")), None),
    ("of the call", chat(U, calls("call_1234"), tool("abcDEF123")), BAD_ID),
    ("of the result", chat(U, calls("abcDEF123"), tool("call_1234")), BAD_ID),
]


@cases(MISTRAL_IDS)
def test_mistral_ids(body: Body, expected: str | None) -> None:
    hold(PATHS["mistral"], body, expected, Strictness(strict_ids=True))


def test_mistral_of_later_tokenizers_takes_text_and_calls() -> None:
    body = chat(U, calls("c1", content="x"), tool())

    hold(PATHS["mistral"], body, None, Strictness(exclusive_content=False))


# --- Responses


def function(name: str = "c1", **fields: Any) -> Body:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}", **fields}


def output(name: str = "c1", value: Any = "ok") -> Body:
    return {"type": "function_call_output", "call_id": name, "output": value}


def reasoning(name: str = "rs_1", **fields: Any) -> Body:
    blob = "gAAAAAB" + seal("nonce-nonce-", "responses", "m", "")
    return {"type": "reasoning", "id": name, "summary": [], "encrypted_content": blob, **fields}


def items(*values: Body) -> Body:
    return {"model": "m", "input": list(values)}


def part(kind: str) -> Body:
    return {"type": kind, "text": "t"}


RESPONSES: list[Row] = [
    ("a string", {"model": "m", "input": "hi"}, None),
    ("turns", items(U, A, U), None),
    ("a tool round", items(U, function(), output()), None),
    ("two calls", items(U, function("a"), function("b"), output("b"), output("a")), None),
    ("a message between call and output", items(U, function(), U, output()), None),
    ("output of parts", items(U, function(), output(value=[part("input_text")])), None),
    ("reasoning before a call", items(U, reasoning(), function(), output()), None),
    ("reasoning before text", items(U, reasoning("rs_1"), reasoning("rs_2"), A, U), None),
    ("parts of their role", items(by("user", part("input_text")), by("assistant", part("output_text"))), None),
    ("a refusal of the assistant", items(U, by("assistant", {"type": "refusal", "refusal": "no"}), U), None),
    ("ids", items(U, {**A, "type": "message", "id": "msg_1"}, function(id="fc_1"), output()), None),
    ("input missing", {"model": "m"}, "Missing required parameter: 'input'."),
    ("model missing", {"input": "hi"}, "Missing required parameter: 'model'."),
    ("call without output", items(U, function(), U), "No tool output found for function call c1."),
    ("output without call", items(U, output()), "No tool call found for function call output with call_id c1."),
    ("output before its call", items(U, output(), function()), "No tool call found for function call output with call_id c1."),
    ("two outputs", items(U, function(), output(), output()), "Duplicate item found with id c1."),
    ("one call id twice", items(U, function(), output(), function(), output()), "Duplicate item found with id c1."),
    ("one id twice", items(U, function("a", id="fc_1"), function("b", id="fc_1"), output("a"), output("b")), "Duplicate item found with id fc_1."),
    ("prefix of a call", items(U, function(id="call_1"), output()), "Invalid 'input[1].id': 'call_1'. Expected an ID that begins with 'fc'."),
    ("prefix of a message", items({**U, "id": "fc_1"}), "Expected an ID that begins with 'msg'."),
    ("prefix of reasoning", items(U, reasoning("x"), A), "Expected an ID that begins with 'rs'."),
    ("characters", items(U, function("a.b"), output("a.b")), "Invalid 'input[1].call_id': 'a.b'. Expected an ID that contains letters"),
    ("longest id", items(U, function("c" * 64), output("c" * 64)), None),
    ("id too long", items(U, function("c" * 65), output("c" * 65)), "Invalid 'input[1].call_id': string too long. Expected a string with maximum length 64"),
    ("reasoning alone", items(U, reasoning()), "Item 'rs_1' of type 'reasoning' was provided without its required following item."),
    ("reasoning before the user", items(U, reasoning(), U), "without its required following item."),
    ("unknown item", items({"type": "tool_use"}), "Invalid value: 'tool_use'."),
    ("unknown role", items({"role": "tool", "content": "x"}), "Invalid value: 'tool'. Supported values are: 'user', 'assistant', 'system', and 'developer'."),
    ("user's part from the assistant", items(U, by("assistant", part("input_text"))), "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'."),
    ("chat's part", items(by("user", text())), "Invalid value: 'text'."),
    ("arguments no string", items(U, function(arguments={}), output()), "Invalid type for 'input[1].arguments': expected a string"),
    ("null content", items({"role": "user", "content": None}), "Invalid type for 'input[0].content': expected an array"),
]  # fmt: skip


@cases(RESPONSES)
def test_responses(body: Body, expected: str | None) -> None:
    got = hold(PATHS["responses"], body, expected)

    if expected:
        assert got.json["error"]["type"] == "invalid_request_error"


# --- Gemini


def says(role: str | None, *parts: Body) -> Body:
    content: Body = {"parts": list(parts)}
    return content if role is None else {"role": role, **content}


def word(value: str = "t") -> Body:
    return {"text": value}


def asks(name: str = "f", **fields: Any) -> Body:
    return {"functionCall": {"name": name, "args": {}}, **fields}


def told(name: str = "f") -> Body:
    return {"functionResponse": {"name": name, "response": {"content": "ok"}}}


DUMMY = "skip_thought_signature_validator"


def contents(*values: Body, **fields: Any) -> Body:
    return {"contents": list(values), **fields}


GU, GM = says("user", word()), says("model", word())
ONE, TWO = says("model", asks()), says("model", asks(), asks())
R1, R2 = says("user", told()), says("user", told(), told())
G_COUNT = "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn."
G_RESPONSE = (
    "Please ensure that function response turn comes immediately after a function call turn."
)
G_CALL = "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
G_ROLE = "Please use a valid role: user, model."
GEMINI: list[Row] = [
    ("a prompt", contents(GU), None),
    ("no role", contents(says(None, word())), None),
    ("turns", contents(GU, GM, GU), None),
    ("neighbours of the user", contents(GU, GU, GM, GU, GU), None),
    ("a tool round", contents(GU, ONE, R1), None),
    ("two calls", contents(GU, TWO, R2), None),
    ("calls one after the other", contents(GU, ONE, R1, ONE, R1), None),
    ("text and call", contents(GU, says("model", word(), asks()), R1), None),
    ("snake case", contents(GU, says("model", {"function_call": {"name": "f"}}), says("user", {"function_response": {"name": "f"}})), None),
    ("snake case, not answered", contents(GU, says("model", {"function_call": {"name": "f"}}), GU), G_COUNT),
    ("user after the results", contents(GU, ONE, R1, GU), None),
    ("known fields", contents(GU, tools=[], safetySettings=[], system_instruction={}), None),
    ("null args", contents(GU, says("model", {"functionCall": {"name": "f", "args": None}}), R1), None),
    ("empty text beside text", contents(says("user", word(), word(""))), None),
    ("empty text with a signature", contents(GU, says("model", {"text": "", "thoughtSignature": DUMMY}), GU), None),
    ("no contents", contents(), "contents is not specified"),
    ("too few results", contents(GU, TWO, R1), G_COUNT),
    ("too many results", contents(GU, ONE, R2), G_COUNT),
    ("results in two contents", contents(GU, TWO, R1, R1), G_COUNT),
    ("call not answered", contents(GU, ONE, GU), G_COUNT),
    ("call at the end", contents(GU, ONE), G_COUNT),
    ("text beside the results", contents(GU, ONE, says("user", told(), word())), G_COUNT),
    ("result without a call", contents(GU, R1), G_RESPONSE),
    ("result first", contents(R1), G_RESPONSE),
    ("result after an answer", contents(GU, ONE, R1, GM, R1), G_RESPONSE),
    ("result by the model", contents(GU, says("model", told())), G_RESPONSE),
    ("call first", contents(ONE, R1), G_CALL),
    ("call after an answer", contents(GU, GM, ONE, R1), G_CALL),
    ("call by the user", contents(GU, says("user", asks()), R1), G_CALL),
    ("role of another API", contents(says("assistant", word())), G_ROLE),
    ("old role of results", contents(GU, ONE, says("function", told())), G_ROLE),
    ("model at the end", contents(GU, GM), "Please ensure that multiturn requests ends with a user role or a function response."),
    ("no parts", contents(says("user")), "contents.parts must not be empty."),
    ("part without data", contents(says("user", {"thought": True})), "required oneof field 'data' must have one initialized field"),
    ("part with two", contents(says("user", {**word(), **asks()})), "oneof field 'data' is already set. Cannot set 'functionCall'"),
    ("empty text alone", contents(says("user", word(""))), "it must have a text parameter"),
    ("unknown field", contents(GU, messages=[]), 'Invalid JSON payload received. Unknown name "messages": Cannot find field.'),
    ("unknown field of a part", contents(says("user", {**word(), "cache_control": {}})), "Unknown name \"cache_control\" at 'contents[0].parts[0]': Cannot find field."),
    ("unknown field of a call", contents(GU, says("model", {"functionCall": {"name": "f", "arguments": {}}}), R1), "Unknown name \"arguments\" at 'contents[1].parts[0].function_call': Cannot find field."),
    ("args no object", contents(GU, says("model", {"functionCall": {"name": "f", "args": "x"}}), R1), "Invalid value at 'contents[1].parts[0].function_call.args'"),
]  # fmt: skip


@cases(GEMINI)
def test_gemini(body: Body, expected: str | None) -> None:
    got = hold(PATHS["gemini"], body, expected)

    if expected:
        assert (got.json["error"]["code"], got.json["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_gemini_refuses_inside_an_array_when_it_streams_one() -> None:
    path = PATHS["gemini"].replace("generate", "streamGenerate")
    alone, _ = judge(path, contents(GU, ONE))
    events, _ = judge(path + "?alt=sse", contents(GU, ONE))

    assert alone.json == [events.json]


GEMINI_SEAL = seal("nonce-nonce-", "gemini", "gemini-3-pro", "f {}")
SIGNED = says("model", asks(thoughtSignature=GEMINI_SEAL), asks())
UNSIGNED = "Function call is missing a thought_signature in functionCall parts."
GEMINI_SIGNATURES: list[Row] = [
    ("on the first call of a step", contents(GU, SIGNED, R2), None),
    ("on null arguments", contents(GU, says("model", {"functionCall": {"name": "f", "args": None}, "thoughtSignature": GEMINI_SEAL}), R1), None),
    ("missing", contents(GU, ONE, R1), f"{UNSIGNED} This is required"),
    ("missing on the second call only", contents(GU, says("model", asks(), asks(thoughtSignature=DUMMY)), R2), UNSIGNED),
    ("missing in a later step", contents(GU, SIGNED, R2, ONE, R1), "function call `default_api:f` , position 4."),
    ("missing in an earlier turn", contents(GU, ONE, R1, GM, GU), None),
    ("missing before a reminder", contents(GU, ONE, R1, GU), None),
]  # fmt: skip


@cases(GEMINI_SIGNATURES)
def test_gemini_signatures(body: Body, expected: str | None) -> None:
    hold(PATHS["gemini"], body, expected, Strictness(strict_signatures=True))


def test_gemini_that_wants_signatures_gives_one() -> None:
    two = [{"name": "f"}, {"name": "f"}]
    with Loopback([{"calls": two}], strictness=Strictness(strict_signatures=True)) as server:
        got = ask(server, PATHS["gemini"], contents(GU))

    parts = got.json["candidates"][0]["content"]["parts"]
    assert ["thoughtSignature" in each for each in parts] == [True, False]


def test_gemini_may_join_neighbours_before_it_judges() -> None:
    body = contents(GU, GM, ONE, R1)

    hold(PATHS["gemini"], body, None, Strictness(merge_contents=True))


# --- Ollama


def local(*messages: Body, **fields: Any) -> Body:
    return {"model": "m", "stream": False, "messages": list(messages), **fields}


ORDINARY = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
}
OLLAMA: list[Row] = [
    ("a prompt", local(U), None),
    ("a tool round", local(U, ORDINARY, {"role": "tool", "content": "ok"}), None),
    ("null content", local(U, {**ORDINARY, "content": None}, {"role": "tool", "content": "ok"}), None),
    ("anything unpaired", local({"role": "tool", "content": "ok"}, ORDINARY, A), None),
    ("no messages", {"model": "m", "stream": False}, None),
    ("model missing", {"messages": [U]}, "model is required"),
    ("unknown role", local({"role": "model", "content": "x"}), "invalid role: model"),
    ("content of parts", local(by("user", text())), "json: cannot unmarshal into Go struct field ChatRequest.messages.content of type string"),
    ("arguments no object", local(U, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}), "messages.tool_calls.function.arguments of type object"),
]  # fmt: skip


@cases(OLLAMA)
def test_ollama(body: Body, expected: str | None) -> None:
    got = hold(PATHS["ollama"], body, expected)

    if expected:
        assert set(got.json) == {"error"}


# --- Bedrock

NOVA = "/model/amazon.nova-2-lite-v1:0/converse"
OLDER = "/model/anthropic.claude-haiku-4-5/converse"


def b_use(name: str = "t1") -> Body:
    return {"toolUse": {"toolUseId": name, "name": "f", "input": {}}}


def b_result(name: str = "t1") -> Body:
    return {"toolResult": {"toolUseId": name, "content": [word()], "status": "success"}}


def converse(*messages: Body, **fields: Any) -> Body:
    return {"messages": list(messages), "toolConfig": {"tools": []}, **fields}


BU, BA = by("user", word()), by("assistant", word())
BC, BR = by("assistant", b_use()), by("user", b_result())
POINT = {"cachePoint": {"type": "default"}}
BEDROCK: list[Row] = [
    ("a prompt", converse(BU), None),
    ("a tool round", converse(BU, BC, BR), None),
    ("two calls", converse(BU, by("assistant", b_use("a"), b_use("b")), by("user", b_result("b"), b_result("a"))), None),
    ("cache points", converse(by("user", word(), POINT), system=[word(), POINT]), None),
    ("two of the user", converse(BU, BU), "A conversation must alternate between user and assistant roles."),
    ("two of the assistant", converse(BU, BA, BA, BU), "A conversation must alternate between user and assistant roles."),
    ("assistant first", converse(BA, BU), "A conversation must start with a user message."),
    ("unknown role", converse(by("system", word())), "Member must satisfy enum value set: [user, assistant]"),
    ("missing result", converse(BU, BC, BU), "Expected toolResult blocks at messages.2.content for the following Ids: t1"),
    ("missing result at the end", converse(BU, BC), "Expected toolResult blocks at messages.2.content for the following Ids: t1"),
    ("result of another call", converse(BU, BC, by("user", b_result("t2"))), "for the following Ids: t1"),
    ("too many results", converse(BU, BC, by("user", b_result(), b_result("t2"))), "The number of toolResult blocks at messages.2.content exceeds the number of toolUse blocks of previous turn."),
    ("result without a call", converse(BU, BA, BR), "The number of toolResult blocks at messages.2.content exceeds"),
    ("blank text", converse(by("user", word(" \n"))), "The text field in the ContentBlock object at messages.0.content.0 is blank."),
    ("no content", converse(by("user")), "The content field in the Message object at messages.0 is empty."),
    ("no toolConfig", without(converse(BU, BC, BR), "toolConfig"), "The toolConfig field must be defined when using toolUse and toolResult content blocks."),
    ("id", converse(BU, by("assistant", b_use("a.b")), by("user", b_result("a.b"))), "Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"),
    ("id too long", converse(BU, by("assistant", b_use("a" * 65)), by("user", b_result("a" * 65))), "Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"),
    ("block with two keys", converse(by("user", {**word(), **POINT})), "must set one of the following keys"),
    ("prefill", converse(BU, BA), PREFILL),
]  # fmt: skip
BEDROCK_BY_MODEL: list[tuple[str, str, Body, str | None]] = [
    ("text after results, Claude", PATHS["bedrock"], converse(BU, BC, by("user", b_result(), word())), None),
    ("text after results, other", NOVA, converse(BU, BC, by("user", b_result(), word())), "messages.2.content: Conversation blocks and tool result blocks cannot be provided in the same turn."),
    ("text before results, Claude", PATHS["bedrock"], converse(BU, BC, by("user", word(), b_result())), "Expected toolResult blocks at messages.2.content"),
    ("reasoning that nobody signed, other", NOVA, converse(BU, by("assistant", {"reasoningContent": {"reasoningText": {"text": "hm"}}}, word()), BU), None),
    ("reasoning that nobody signed, Claude", PATHS["bedrock"], converse(BU, by("assistant", {"reasoningContent": {"reasoningText": {"text": "hm"}}}, word()), BU), "Invalid `signature` in `thinking` block"),
    ("a tool round, other", NOVA, converse(BU, BC, BR), None),
    ("prefill, other", NOVA, converse(BU, BA), PREFILL),
    ("prefill, older Claude", OLDER, converse(BU, BA), None),
    ("one id twice, Claude", PATHS["bedrock"], converse(BU, BC, BR, BC, BR), "messages.3.content.0: `tool_use` ids must be unique"),
    ("one id twice, other", NOVA, converse(BU, BC, BR, BC, BR), None),
    ("five cache points, Claude", PATHS["bedrock"], converse(by("user", word(), *[POINT] * 5)), "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    ("five cache points, other", NOVA, converse(by("user", word(), *[POINT] * 5)), None),
]  # fmt: skip


@cases(BEDROCK)
def test_bedrock(body: Body, expected: str | None) -> None:
    got = hold(PATHS["bedrock"], body, expected)

    if expected:
        assert set(got.json) == {"message"}
        assert got.headers["x-amzn-errortype"] == "ValidationException"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [row[1:] for row in BEDROCK_BY_MODEL],
    ids=[row[0] for row in BEDROCK_BY_MODEL],
)
def test_bedrock_by_model(path: str, body: Body, expected: str | None) -> None:
    hold(path, body, expected)


# --- All of them

WRONG: list[Any] = [None, 0, True, "", "x", [], {}, [None], ["x"], [[]], [{}], {"type": "text"}]
ACCEPTED: list[tuple[str, Row]] = [
    (api, row)
    for api, table in {
        "anthropic": [*ANTHROPIC, *ANTHROPIC_MARKS, *ANTHROPIC_ROLES],
        "openai": OPENAI,
        "deepseek": DEEPSEEK_REASONING,
        "mistral": MISTRAL,
        "responses": RESPONSES,
        "gemini": GEMINI,
        "ollama": OLLAMA,
        "bedrock": BEDROCK,
    }.items()
    for row in table
    if row[2] is None
]


def variants(value: Any) -> Iterator[Any]:
    """VALUE with each of its parts in turn left out or replaced by each wrong value."""
    yield from WRONG
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            for part_of in variants(value[key]):
                copy: Any = value.copy()
                copy[key] = part_of
                yield copy
            rest: Any = value.copy()
            del rest[key]
            yield rest


@pytest.mark.parametrize(
    ("api", "row"), ACCEPTED, ids=[f"{api}: {row[0]}" for api, row in ACCEPTED]
)
def test_nothing_that_is_sent_makes_the_server_stumble(api: str, row: Row) -> None:
    """Whatever JSON stands in whatever place, the answer is the API's own."""
    everything = Strictness(
        exact=True, thinking="bound", strict_ids=True, strict_reasoning=True, strict_signatures=True
    )
    with Loopback(strictness=everything) as server:
        for body in variants(row[1]):
            reply = server.answer("POST", PATHS[api], json.dumps(body).encode())
            assert reply.status in (200, 400, 404), body
