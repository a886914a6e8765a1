"""Reasoning on its way back: what each API demands of it, and in which words it refuses it.

A conversation is held with a client that loses nothing; then a row of a table edits its array, and
the body is judged.  A row: a name, the edit, and a part of the refusal, or None if it is accepted.
"""

# ruff: noqa: E501  # a case is one line, whatever the API has to say about it

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.loopback import Loopback, Strictness
from tests.loopback_client import (
    PATHS,
    Client,
    ask,
    assemble,
    iter_sse,
    prompt,
    streaming,
)

Body = dict[str, Any]
Edit = Callable[[Body], Any]
Row = tuple[str, Edit, str | None]

CALL = {"call": {"name": "read", "args": {"path": "a", "depth": 1}}}
ROUNDS: list[Body] = [
    {"blocks": [{"thinking": "one"}, {"text": "Looking."}, {"thinking": ""}, CALL]},
    {"blocks": [{"redacted": True}, {"thinking": "two"}, CALL]},
    {"blocks": [{"thinking": "three"}, {"text": "Done."}]},
]


def rows(table: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("edit", "expected"), [row[1:] for row in table], ids=[row[0] for row in table]
    )


@contextmanager
def talk(
    api: str, script: list[Body], strictness: Strictness | None = None, **body: Any
) -> Iterator[Client]:
    """A client that has come to the end of SCRIPT."""
    with Loopback(script, strictness=strictness) as server:
        client = Client(server=server, api=api, body=body)
        client.prompt()
        assert server.refusals == []
        yield client


def judge(client: Client, edit: Edit, *, final: bool = True) -> str | None:
    """The refusal of the conversation as EDIT leaves it; with a new prompt if FINAL."""
    array = copy.deepcopy(client.array)
    body = client.make_body(array + (prompt(client.api, "more")[client.name] if final else []))
    edit(body)
    client.server.answer("POST", PATHS[client.api], json.dumps(body).encode())
    return client.server.requests[-1].refusal


def hold(client: Client, edit: Edit, expected: str | None, *, final: bool = True) -> None:
    refusal = judge(client, edit, final=final)
    assert (refusal is None) == (expected is None), refusal
    assert (expected or "") in (refusal or "")


def leave(_: Body) -> None:
    """Edit nothing."""


def put(*path: Any) -> Edit:
    """An edit that sets the place PATH[:-2] to PATH[-1]."""

    def edit(body: Body) -> None:
        value: Any = body
        for key in path[:-2]:
            value = value[key]
        value[path[-2]] = path[-1]

    return edit


def drop(*path: Any) -> Edit:
    """An edit that deletes the place PATH."""

    def edit(body: Body) -> None:
        value: Any = body
        for key in path[:-1]:
            value = value[key]
        del value[path[-1]]

    return edit


def every(*edits: Edit) -> Edit:
    return lambda body: [edit(body) for edit in edits]


# --- Claude


def content(body: Body, number: int) -> list[Any]:
    found: list[Any] = body["messages"][number]["content"]
    return found


def reorder(number: int, *order: int) -> Edit:
    """An edit that leaves the blocks ORDER of a message, in that order."""

    def edit(body: Body) -> None:
        blocks = content(body, number)
        blocks[:] = [blocks[index] for index in order]

    return edit


def move(source: tuple[int, int], target: tuple[int, int]) -> Edit:
    """An edit that moves a block to another place."""

    def edit(body: Body) -> None:
        block = content(body, source[0]).pop(source[1])
        content(body, target[0]).insert(target[1], block)

    return edit


def join_thinking(body: Body) -> None:
    """As gptel does inside the loop: all reasoning so far in one block, signatures too."""
    first, second = content(body, 1)[0], content(body, 3)[1]
    second["thinking"] = first["thinking"] + second["thinking"]
    second["signature"] = first["signature"] + second["signature"]


def without_thinking(*numbers: int) -> Edit:
    def edit(body: Body) -> None:
        for number in numbers:
            blocks = content(body, number)
            blocks[:] = [block for block in blocks if "thinking" not in block["type"]]

    return edit


MODIFIED = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response."
SIGNATURE = "Invalid `signature` in `thinking` block"
LENIENT: list[Row] = [
    ("as it was", leave, None),
    ("all left out", without_thinking(1, 3, 5), None),
    ("one left out of several", reorder(1, 1, 2, 3), None),
    ("the other left out", reorder(1, 0, 1, 3), None),
    ("redacted left out", reorder(3, 1, 2), None),
    ("other text of the same message", put("messages", 1, "content", 1, "text", "Hm."), None),
    ("marks", put("messages", 1, "content", 1, "cache_control", {"type": "ephemeral"}), None),
    ("another model", every(put("model", "claude-opus-5"), put("messages", 1, "content", 0, "thinking", "?")), None),
    ("text changed", put("messages", 1, "content", 0, "thinking", "One"), f"messages.1.content.0: {SIGNATURE}"),
    ("text added to an empty one", put("messages", 1, "content", 2, "thinking", "x"), f"messages.1.content.2: {SIGNATURE}"),
    ("signature blank", put("messages", 1, "content", 0, "signature", ""), f"messages.1.content.0: {SIGNATURE}"),
    ("signature changed", put("messages", 1, "content", 0, "signature", "c2ln"), SIGNATURE),
    ("redacted changed", put("messages", 3, "content", 0, "data", "c2ln"), f"messages.3.content.0: {SIGNATURE}"),
    ("rounds joined", join_thinking, f"messages.3.content.1: {SIGNATURE}"),
    ("moved to a later message", move((1, 0), (3, 0)), f"messages.3.content.0: {MODIFIED}"),
    ("moved to an earlier message", move((3, 1), (1, 0)), MODIFIED),
    ("moved behind the text", reorder(1, 1, 0, 2, 3), f"messages.1.content.1: {MODIFIED}"),
    ("regrouped", reorder(1, 0, 2, 1, 3), MODIFIED),
    ("order of two", reorder(3, 1, 0, 2), MODIFIED),
    ("twice in its message", reorder(3, 0, 1, 1, 2), MODIFIED),
    ("twice with its message", lambda body: body["messages"].extend([body["messages"][5], body["messages"][0]]), f"messages.7.content.0: {MODIFIED}"),
    ("text beside it left out", reorder(1, 0, 2, 3), MODIFIED),
    ("text put before it", lambda body: content(body, 1).insert(2, {"type": "text", "text": "new"}), MODIFIED),
]  # fmt: skip


@rows(LENIENT)
def test_anthropic_lenient(edit: Edit, expected: str | None) -> None:
    with talk("anthropic", ROUNDS) as client:
        hold(client, edit, expected)


def test_anthropic_lenient_does_without_inside_the_loop() -> None:
    with talk("anthropic", ROUNDS) as client:
        del client.array[5:]
        hold(client, without_thinking(3), None, final=False)


def split_turn(body: Body) -> None:
    """Neighbouring messages of one role are one message."""
    blocks = content(body, 1)
    body["messages"][1:2] = [{"role": "assistant", "content": [block]} for block in blocks]


def test_anthropic_takes_a_message_in_pieces() -> None:
    with talk("anthropic", ROUNDS) as client:
        hold(client, split_turn, None)


EXPECTED = "Expected `thinking` or `redacted_thinking`, but found `{}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
ENABLED = {"type": "enabled", "budget_tokens": 1024}
DISABLED = {"type": "disabled"}
REQUIRED: list[Row] = [
    ("as it was", leave, None),
    ("left out of the latest", without_thinking(3), "messages.3.content.0.type: " + EXPECTED.format("tool_use")),
    ("only its head left out", reorder(3, 1, 2), None),
    ("left out of an earlier one", without_thinking(1), None),
    ("a system message at the end", every(without_thinking(3), lambda body: body["messages"].append({"role": "system", "content": "note"})), EXPECTED.format("tool_use")),
    ("text behind the results", every(without_thinking(3), lambda body: content(body, 4).append({"type": "text", "text": "note"})), EXPECTED.format("tool_use")),
    ("thinking disabled", every(without_thinking(1, 3), put("thinking", DISABLED)), None),
    ("behind the text", reorder(3, 2), "messages.3.content.0.type: " + EXPECTED.format("tool_use")),
]  # fmt: skip


@rows(REQUIRED)
def test_anthropic_required(edit: Edit, expected: str | None) -> None:
    with talk("anthropic", ROUNDS, Strictness(thinking="required")) as client:
        del client.array[5:]
        hold(client, edit, expected, final=False)


def test_anthropic_demands_no_reasoning_once_the_loop_is_over() -> None:
    with talk("anthropic", ROUNDS, Strictness(thinking="required")) as client:
        hold(client, without_thinking(1, 3, 5), None)


@pytest.mark.parametrize(("setting", "known", "expected"), [(ENABLED, True, None), (ENABLED, False, EXPECTED.format("text")), (None, False, None)])  # fmt: skip
def test_anthropic_demands_no_reasoning_of_a_response_that_had_none(
    setting: Body | None, known: bool, expected: str | None
) -> None:
    script = [{"text": "Looking.", "calls": [CALL["call"]]}]
    with talk("anthropic", script, Strictness(thinking="required")) as client:
        del client.array[3:]
        name = content(client.make_body(client.array), 1)[1]["id"] if known else "toolu_other"
        edits = [
            put("messages", 1, "content", 1, "id", name),
            put("messages", 2, "content", 0, "tool_use_id", name),
        ]
        edits += [put("thinking", setting)] if setting else []
        hold(client, every(*edits), expected, final=False)


TOOL = {"name": "read", "input_schema": {"type": "object"}}
SYSTEM = [{"type": "text", "text": "Be brief."}]


def bound(path: str, first: str) -> str:
    return (
        f"{path}: {SIGNATURE}. The block is bound to a different conversation. Remove the block, or"
        ' set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". Content before'
        f" this block differs from when it was created, first at `{first}`."
    )


FIRST = "messages.1.content.0"
BOUND: list[Row] = [
    ("as it was", leave, None),
    ("marks", every(put("system", 0, "cache_control", {"type": "ephemeral"}), put("messages", 2, "content", 0, "cache_control", {"type": "ephemeral"}), put("tools", 0, "cache_control", {"type": "ephemeral"})), None),
    ("a string as a block", put("messages", 0, "content", [{"type": "text", "text": "go"}]), None),
    ("the system as a string", put("system", "Be brief."), None),
    ("the order of keys", put("messages", 1, "content", 3, "input", {"depth": 1, "path": "a"}), None),
    ("a result as blocks", lambda body: put("messages", 2, "content", 0, "content", [{"type": "text", "text": content(body, 2)[0]["content"]}])(body), None),
    ("other parameters", every(put("max_tokens", 7), put("metadata", {"user_id": "x"})), None),
    ("left out at the start", reorder(1, 1, 2, 3), None),
    ("left out at the end", without_thinking(5), None),
    ("all left out", without_thinking(1, 3, 5), None),
    ("the prompt", put("messages", 0, "content", "Go"), bound(FIRST, "messages.0.content.0")),
    ("a text added to the prompt", put("messages", 0, "content", [{"type": "text", "text": "go"}, {"type": "text", "text": "on"}]), bound("messages.1.content.0", "messages.1.content.0")),
    ("the system", put("system", 0, "text", "Be long."), bound(FIRST, "system.0")),
    ("a tool", put("tools", 0, "description", "x"), bound(FIRST, "tools.0")),
    ("a tool added", put("tools", [TOOL, {**TOOL, "name": "other"}]), bound(FIRST, "tools.1")),
    ("text before it in its message", put("messages", 1, "content", 1, "text", "Hm."), bound("messages.1.content.2", "messages.1.content.1")),
    ("a call", put("messages", 1, "content", 3, "input", {}), bound("messages.3.content.0", "messages.1.content.3")),
    ("a result", put("messages", 2, "content", 0, "content", "cut"), bound("messages.3.content.0", "messages.2.content.0")),
    ("left out in the middle", reorder(1, 0, 1, 3), bound("messages.3.content.0", "messages.3.content.0")),
    ("its own text", put("messages", 1, "content", 0, "thinking", "One"), f"messages.1.content.0: {SIGNATURE}"),
]  # fmt: skip


@rows(BOUND)
def test_anthropic_bound(edit: Edit, expected: str | None) -> None:
    strict = Strictness(thinking="bound")
    with talk(
        "anthropic", ROUNDS, strict, system=copy.deepcopy(SYSTEM), tools=[dict(TOOL)]
    ) as client:
        hold(client, edit, expected)


def test_anthropic_unmodified_text_is_told_from_a_changed_prefix() -> None:
    with talk("anthropic", ROUNDS, Strictness(thinking="bound")) as client:
        refusal = judge(client, put("messages", 1, "content", 0, "thinking", "One"))

    assert refusal == f"messages.1.content.0: {SIGNATURE}"


def test_anthropic_does_not_take_reasoning_that_was_left_out_once() -> None:
    """What was made without it is valid only without it."""
    strict = Strictness(thinking="bound")
    with Loopback([*ROUNDS, ROUNDS[2]], strictness=strict) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()
        whole = copy.deepcopy(client.array)
        without_thinking(1, 3, 5)({"messages": client.array})
        client.prompt("more")
        assert server.refusals == []

        hold(client, leave, None)
        client.array[:6] = whole
        hold(client, leave, bound("messages.7.content.0", "messages.7.content.0"))


B_TEXT = ("content", 0, "reasoningContent", "reasoningText")
BEDROCK: list[tuple[str, str, Edit, str | None]] = [
    ("lenient", "as it was", leave, None),
    ("lenient", "left out", lambda body: content(body, 1).pop(0), None),
    ("lenient", "text changed", put("messages", 1, *B_TEXT, "text", "One"), f"messages.1.content.0: {SIGNATURE}"),
    ("lenient", "signature left out", drop("messages", 1, *B_TEXT, "signature"), f"messages.1.content.0: {SIGNATURE}"),
    ("lenient", "redacted changed", put("messages", 3, "content", 0, "reasoningContent", "redactedContent", "c2ln"), f"messages.3.content.0: {SIGNATURE}"),
    ("lenient", "regrouped", reorder(1, 0, 2, 1, 3), MODIFIED),
    ("bound", "as it was", leave, None),
    ("bound", "marks", lambda body: content(body, 0).append({"cachePoint": {"type": "default"}}), None),
    ("bound", "the prompt", put("messages", 0, "content", 0, "text", "Go"), bound(FIRST, "messages.0.content.0")),
    ("bound", "marks of tools", lambda body: body["toolConfig"]["tools"].append({"cachePoint": {"type": "default"}}), None),
    ("bound", "a tool", put("toolConfig", "tools", 0, "toolSpec", "name", "x"), bound(FIRST, "toolConfig.tools.0")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "edit", "expected"),
    [(row[0], *row[2:]) for row in BEDROCK],
    ids=[f"{row[0]}: {row[1]}" for row in BEDROCK],
)
def test_bedrock(mode: str, edit: Edit, expected: str | None) -> None:
    tools = {"tools": [{"toolSpec": {"name": "read"}}]}
    with talk("bedrock", ROUNDS, Strictness(thinking=mode), toolConfig=tools) as client:
        hold(client, edit, expected)


def test_bedrock_required() -> None:
    strict = Strictness(thinking="required")
    point = {"role": "user", "content": [{"cachePoint": {"type": "default"}}]}
    with Loopback(strictness=strict) as server:
        assert Client(server=server, api="bedrock", array=[point]).send().status == 200
    with talk("bedrock", ROUNDS, strict, toolConfig={"tools": []}) as client:
        del client.array[5:]
        hold(client, leave, None, final=False)
        hold(
            client,
            reorder(3, 2),
            "messages.3.content.0.type: " + EXPECTED.format("tool_use"),
            final=False,
        )


def test_bedrock_demands_nothing_if_thinking_is_disabled() -> None:
    with talk(
        "bedrock", ROUNDS, Strictness(thinking="required"), toolConfig={"tools": []}
    ) as client:
        del client.array[5:]
        disabled = put("additionalModelRequestFields", {"thinking": DISABLED})
        hold(client, every(reorder(3, 2), disabled), None, final=False)


# --- Responses

R_ROUNDS: list[Body] = [
    {"blocks": [{"thinking": "one"}, {"text": "Looking."}, {"thinking": ""}, CALL, CALL]},
    {"blocks": [{"thinking": "two"}, CALL]},
    {"blocks": [{"thinking": "three"}, {"text": "Done."}]},
]
# 0 user, 1 rs, 2 msg, 3 rs, 4 fc, 5 fc, 6 out, 7 out, 8 rs, 9 fc, 10 out, 11 rs, 12 msg, 13 user


def lacks(kind: str, prefix: str) -> str:
    return f"' of type '{kind}' was provided without its required '{prefix}' item: 'rs_"


def remove(*numbers: int) -> Edit:
    def edit(body: Body) -> None:
        for number in sorted(numbers, reverse=True):
            del body["input"][number]

    return edit


def order(*numbers: int) -> Edit:
    """An edit that begins the input with the items NUMBERS, in that order."""

    def edit(body: Body) -> None:
        items = body["input"]
        items[: len(numbers)] = [items[number] for number in numbers]

    return edit


FOLLOWED = "' of type 'reasoning' was provided without its required following item."
UNREADABLE = "could not be verified. Reason: Encrypted content could not be decrypted or parsed."
RESPONSES: list[Row] = [
    ("as it was", leave, None),
    ("a round left out with its reasoning", remove(8, 9, 10), None),
    ("no ids of messages and calls", every(*(drop("input", n, "id") for n in (2, 4, 5, 9, 12))), None),
    ("no ids at all", every(*(drop("input", n, "id") for n in (1, 2, 3, 4, 5, 8, 9, 11, 12))), None),
    ("reasoning left out with the ids that need it", every(*(drop("input", n, "id") for n in (2, 4, 5)), remove(1, 3)), None),
    ("other text of a message", put("input", 2, "content", 0, "text", "Hm."), None),
    ("another message after it", put("input", 2, {"role": "assistant", "content": "Hm."}), FOLLOWED),
    ("reasoning of a call left out", remove(3), lacks("function_call", "reasoning")),
    ("reasoning of a message left out", remove(1), lacks("message", "reasoning")),
    ("reasoning of the answer left out", remove(11), lacks("message", "reasoning")),
    ("calls before the message", order(0, 1, 3, 4, 5, 2), FOLLOWED),
    ("message left out", remove(2), FOLLOWED),
    ("calls in another order", order(0, 1, 2, 3, 5, 4), FOLLOWED),
    ("one item twice", lambda body: body["input"].insert(1, body["input"][1]), "Duplicate item found with id rs_"),
    ("no encrypted content", drop("input", 1, "encrypted_content"), "' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."),
    ("null encrypted content", put("input", 1, "encrypted_content", None), "' not found. Items are not persisted"),
    ("encrypted content changed", put("input", 1, "encrypted_content", "gAAAAABc2ln"), UNREADABLE),
    ("summary changed", put("input", 1, "summary", []), UNREADABLE),
    ("another model", put("model", "other"), UNREADABLE),
]  # fmt: skip


@rows(RESPONSES)
def test_responses(edit: Edit, expected: str | None) -> None:
    with talk("responses", R_ROUNDS, store=False) as client:
        hold(client, edit, expected)


def test_responses_names_what_it_cannot_read_and_what_it_does_not_find() -> None:
    with talk("responses", R_ROUNDS, store=False) as client:
        judge(client, put("input", 1, "encrypted_content", "gAAAAABc2ln"))
        body = client.make_body(
            [
                *client.array[:1],
                {"type": "reasoning", "id": "rs_1", "summary": []},
                *client.array[2:3],
            ]
        )
        reply = client.server.answer("POST", PATHS["responses"], json.dumps(body).encode())

    assert reply.status == 404
    assert json.loads(reply.body)["error"]["message"].startswith("Item with id 'rs_1' not found.")


def test_responses_keeps_what_it_stores() -> None:
    with talk("responses", R_ROUNDS) as client:
        assert not any("encrypted_content" in item for item in client.array)
        hold(client, leave, None)
        hold(
            client,
            every(put("input", 1, "id", "rs_other"), drop("input", 2, "id")),
            "Item with id 'rs_other' not found.",
        )


ENCRYPTS: list[tuple[str, bool, Body, bool]] = [
    ("stateless", True, {"store": False}, True),
    ("asked", True, {"include": ["reasoning.encrypted_content"]}, True),
    ("neither", True, {}, False),
    ("older, stateless", False, {"store": False}, False),
    ("older, asked", False, {"store": False, "include": ["reasoning.encrypted_content"]}, True),
]


@pytest.mark.parametrize(("default", "body", "expected"), [row[1:] for row in ENCRYPTS], ids=[row[0] for row in ENCRYPTS])  # fmt: skip
def test_responses_encrypts_for_whom_it_should(default: bool, body: Body, expected: bool) -> None:
    strict = Strictness(encrypted_by_default=default)
    with talk("responses", R_ROUNDS[2:], strict, **body) as client:
        found = [item for item in client.array if item.get("type") == "reasoning"]

    assert ["encrypted_content" in item for item in found] == [expected]


def test_responses_knows_what_cannot_come_back() -> None:
    """Neither stored nor encrypted: the reasoning has to go, and the ids that ask for it."""
    strict = Strictness(encrypted_by_default=False, exact=True)
    with Loopback(R_ROUNDS, strictness=strict) as server:
        client = Client(server=server, api="responses", body={"store": False})
        assert client.prompt().status == 404
        items = client.array
        client.array = [item for item in items if item.get("type") != "reasoning"]
        hold(client, leave, lacks("message", "reasoning"), final=False)
        client.array = [{k: v for k, v in item.items() if k != "id"} for item in client.array]
        hold(client, leave, None, final=False)
        assert server.requests[0].issued == tuple(client.array[1:4])


def test_responses_says_what_is_commentary() -> None:
    with talk("responses", R_ROUNDS, store=False) as client:
        assert [item["phase"] for item in client.array if "phase" in item] == [
            "commentary",
            "final_answer",
        ]


# --- Gemini

G_CALL = {"call": {"name": "read", "args": {"path": "a"}}}
G_OTHER = {"call": {"name": "read", "args": {"path": "b"}}}
G_ROUNDS: list[Body] = [
    {"blocks": [{"thinking": "one"}, {"text": "Looking."}, G_CALL, G_OTHER]},
    {"blocks": [{"thinking": ""}, G_OTHER]},
    {"blocks": [{"thinking": "two"}, {"text": "Done."}, {"empty_text": True}]},
]
MISSING = "Function call is missing a thought_signature in functionCall parts."
CORRUPTED = "Corrupted thought signature."


def parts(number: int, *path: Any) -> tuple[Any, ...]:
    return ("contents", number, "parts", *path)


def move_signature(source: tuple[int, int], target: tuple[int, int]) -> Edit:
    def edit(body: Body) -> None:
        values = body["contents"]
        token = values[source[0]]["parts"][source[1]].pop("thoughtSignature")
        values[target[0]]["parts"][target[1]]["thoughtSignature"] = token

    return edit


GEMINI: list[Row] = [
    ("as it was", leave, None),
    ("thoughts left out", drop(*parts(1, 0)), None),
    ("missing in the current turn", drop(*parts(3, 0, "thoughtSignature")), MISSING),
    ("a dummy", put(*parts(3, 0, "thoughtSignature", "skip_thought_signature_validator")), None),
    ("the other dummy", put(*parts(1, 2, "thoughtSignature", "context_engineering_is_the_way_to_go")), None),
    ("changed", put(*parts(1, 2, "thoughtSignature", "c2ln")), CORRUPTED),
    ("other arguments", put(*parts(1, 2, "functionCall", "args", {"path": "c"})), CORRUPTED),
    ("moved to the sibling", move_signature((1, 2), (1, 3)), MISSING),
    ("moved to another step", move_signature((1, 2), (3, 0)), MISSING),
    ("copied to another step", lambda body: put(*parts(3, 0, "thoughtSignature", body["contents"][1]["parts"][2]["thoughtSignature"]))(body), CORRUPTED),
]  # fmt: skip


@rows(GEMINI)
def test_gemini_in_the_current_turn(edit: Edit, expected: str | None) -> None:
    with talk("gemini", G_ROUNDS, Strictness(strict_signatures=True)) as client:
        del client.array[5:]
        hold(client, edit, expected, final=False)


def merge_signed(body: Body) -> None:
    texts = body["contents"][5]["parts"]
    texts[1:] = [{**texts[2], "text": texts[1]["text"]}]


GEMINI_LATER: list[Row] = [
    ("as it was", leave, None),
    ("missing in an earlier turn", drop(*parts(1, 2, "thoughtSignature")), None),
    ("missing on the text", drop(*parts(5, 2)), None),
    ("merged with the text before", merge_signed, CORRUPTED),
    ("changed in an earlier turn", put(*parts(1, 2, "thoughtSignature", "c2ln")), CORRUPTED),
    ("copied to an equal call", lambda body: put(*parts(1, 3, "thoughtSignature", body["contents"][3]["parts"][0]["thoughtSignature"]))(body), CORRUPTED),
]  # fmt: skip


@rows(GEMINI_LATER)
def test_gemini_in_a_later_turn(edit: Edit, expected: str | None) -> None:
    with talk("gemini", G_ROUNDS, Strictness(strict_signatures=True)) as client:
        hold(client, edit, expected)


def test_gemini_drops_signatures_of_another_model() -> None:
    with talk("gemini", G_ROUNDS) as client:
        path = PATHS["gemini"].replace("gemini-3-pro", "gemini-3-flash")
        body = client.make_body([*client.array, *prompt("gemini")["contents"]])
        body["contents"][1]["parts"][2]["functionCall"]["args"] = {}
        assert client.server.answer("POST", path, json.dumps(body).encode()).status == 200


ECHO: list[Row] = [
    ("as it was", leave, None),
    ("left out", drop("contents", 2, "parts", 0, "functionResponse", "id"), "ids of their function calls"),
    ("of the sibling", lambda body: body["contents"][2]["parts"].reverse(), "ids of their function calls"),
    ("of calls without ids", every(*(drop("contents", n, "parts", m, name, "id") for n, m, name in ((1, 2, "functionCall"), (2, 0, "functionResponse")))), None),
]  # fmt: skip


@rows(ECHO)
def test_gemini_echo(edit: Edit, expected: str | None) -> None:
    with talk("gemini", G_ROUNDS, Strictness(gemini_echo_ids=True)) as client:
        hold(client, edit, expected)


def test_gemini_does_not_mind_other_ids() -> None:
    with talk("gemini", G_ROUNDS) as client:
        hold(client, ECHO[1][1], None)


SIGNED_PARTS = [
    ("a call", [{"thinking": "x"}, G_CALL, G_OTHER], [False, True, False]),
    ("a text", [{"thinking": "x"}, {"text": "a"}, {"text": "b"}], [False, False, True]),
    ("a text before a thought", [{"text": "a"}, {"thinking": "x"}], [True, False]),
    ("an empty text", [{"text": "a"}, {"empty_text": True}], [False, True]),
    ("an empty text before a call", [{"empty_text": True}, G_CALL], [True, True]),
    ("no thought", [{"text": "a"}, G_CALL], [False, False]),
]


@pytest.mark.parametrize(("blocks", "expected"), [row[1:] for row in SIGNED_PARTS], ids=[row[0] for row in SIGNED_PARTS])  # fmt: skip
def test_gemini_signs_the_first_call_or_the_last_text(
    blocks: list[Body], expected: list[bool]
) -> None:
    with talk("gemini", [{"blocks": blocks}]) as client:
        assert ["thoughtSignature" in part for part in client.array[1]["parts"]] == expected


# --- Chat completions that reason

F_ROUNDS: list[Body] = [
    {"blocks": [{"thinking": "one"}, {"text": "Looking."}, CALL]},
    {"blocks": [{"text": "More."}, {"thinking": "two"}, CALL]},
    {"blocks": [{"thinking": "three"}, {"text": "Done."}]},
]
COPILOT: list[Row] = [
    ("as it was", leave, None),
    ("left out", every(drop("messages", 1, "reasoning_text"), drop("messages", 1, "reasoning_opaque")), None),
    ("null", put("messages", 1, "reasoning_opaque", None), None),
    ("another model", every(put("model", "other"), drop("messages", 1, "reasoning_text")), None),
    ("text left out", drop("messages", 1, "reasoning_text"), f"messages.1.content.0: {SIGNATURE}"),
    ("text changed", put("messages", 3, "reasoning_text", "Two"), f"messages.3.content.0: {SIGNATURE}"),
    ("opaque changed", put("messages", 1, "reasoning_opaque", "c2ln"), SIGNATURE),
]  # fmt: skip


@rows(COPILOT)
def test_copilot(edit: Edit, expected: str | None) -> None:
    with talk("copilot", F_ROUNDS) as client:
        hold(client, edit, expected)


O_ROUNDS: list[Body] = [
    {"blocks": [{"thinking": "one"}, {"redacted": True}, {"text": "Looking."}, CALL]},
    *F_ROUNDS[1:],
]
DETAILS = ("messages", 1, "reasoning_details")
OPENROUTER: list[Row] = [
    ("as it was", leave, None),
    ("left out", drop(*DETAILS), None),
    ("plain reasoning left out", drop("messages", 1, "reasoning"), None),
    ("another model", every(put("model", "other"), put(*DETAILS, 0, "text", "?")), None),
    ("text changed", put(*DETAILS, 0, "text", "One"), f"messages.1.content.0: {SIGNATURE}"),
    ("signature changed", put(*DETAILS, 0, "signature", "c2ln"), f"messages.1.content.0: {SIGNATURE}"),
    ("data changed", put(*DETAILS, 1, "data", "c2ln"), f"messages.1.content.1: {SIGNATURE}"),
    ("only what is not sealed", put(*DETAILS, [{"type": "reasoning.summary", "summary": "Hm.", "index": 0}]), None),
    ("one left out", drop(*DETAILS, 0), f"messages.1.content.0: {MODIFIED}"),
    ("another order", lambda body: body["messages"][1]["reasoning_details"].reverse(), MODIFIED),
    ("an id changed", put(*DETAILS, 0, "id", "x"), MODIFIED),
    ("moved", lambda body: put("messages", 3, "reasoning_details", body["messages"][1]["reasoning_details"])(body), MODIFIED),
]  # fmt: skip


@rows(OPENROUTER)
def test_openrouter(edit: Edit, expected: str | None) -> None:
    with talk("openrouter", O_ROUNDS) as client:
        hold(client, edit, expected)


CHUNK = ("messages", 1, "content", 0)
MISTRAL: list[Row] = [
    ("as it was", leave, None),
    ("left out", drop(*CHUNK), None),
    ("unsigned", drop(*CHUNK, "signature"), None),
    ("another model", every(put("model", "other"), put(*CHUNK, "thinking", [])), None),
    ("text changed", put(*CHUNK, "thinking", 0, "text", "One"), "Invalid signature in messages[1].content[0]"),
    ("signature changed", put(*CHUNK, "signature", "c2ln"), "Invalid signature in messages[1].content[0]"),
]  # fmt: skip


@rows(MISTRAL)
def test_mistral(edit: Edit, expected: str | None) -> None:
    strict = Strictness(exclusive_content=False)
    # A new prompt may not follow results, so the conversation ends where the last round began.
    with talk("mistral", F_ROUNDS, strict) as client:
        del client.array[5:]
        hold(client, edit, expected, final=False)


# --- Messages as they are

ID = "<id>"
CALL_MADE = {"id": ID, "type": "function", "function": {"name": "f", "arguments": "{}"}}
F_CALL = {"call": {"name": "f"}}
MESSAGES: list[tuple[str, list[Body], Body]] = [
    ("copilot", [{"text": "a"}], {"content": "a"}),
    ("copilot", [F_CALL], {"content": None, "tool_calls": [CALL_MADE]}),
    ("copilot", [{"thinking": "x"}, {"text": "a"}], {"content": "a", "reasoning_text": "x", "reasoning_opaque": ID}),
    ("copilot", [{"thinking": ""}, {"text": "a"}], {"content": "a", "reasoning_opaque": ID}),
    ("openrouter", [{"text": "a"}], {"content": "a"}),
    ("openrouter", [{"redacted": True}, {"text": "a"}], {"content": "a", "reasoning": None, "reasoning_details": [{"type": "reasoning.encrypted", "data": ID, "id": ID, "format": "anthropic-claude-v1", "index": 0}]}),
    ("openrouter", [{"thinking": "x"}, {"text": "a"}], {"content": "a", "reasoning": "x", "reasoning_details": [{"type": "reasoning.text", "text": "x", "signature": ID, "id": ID, "format": "anthropic-claude-v1", "index": 0}]}),
    ("deepseek", [{"text": "a"}], {"content": "a"}),
    ("deepseek", [{"thinking": ""}, F_CALL], {"content": "", "reasoning_content": "", "tool_calls": [CALL_MADE]}),
    ("deepseek", [{"thinking": "x"}, {"text": "a"}], {"content": "a", "reasoning_content": "x"}),
    ("mistral", [{"text": "a"}], {"content": "a"}),
    ("mistral", [F_CALL], {"content": "", "tool_calls": [CALL_MADE]}),
    ("mistral", [{"thinking": "x"}, {"text": "a"}], {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "x"}], "closed": True, "signature": ID}, {"type": "text", "text": "a"}]}),
    ("ollama", [{"text": "a"}], {"content": "a"}),
    ("ollama", [{"thinking": "x"}, F_CALL], {"content": "", "thinking": "x", "tool_calls": [{"function": {"index": 0, "name": "f", "arguments": {}}}]}),
]  # fmt: skip


def hide_ids(value: Any) -> Any:
    """VALUE with everything that the provider made up as `ID`."""
    if isinstance(value, list):
        return [hide_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    names = ("id", "data", "signature", "reasoning_opaque")
    return {name: ID if name in names else hide_ids(each) for name, each in value.items()}


@pytest.mark.parametrize(("api", "blocks", "expected"), MESSAGES)
def test_message_has_what_the_model_said_and_no_more(
    api: str, blocks: list[Body], expected: Body
) -> None:
    with Loopback([{"blocks": blocks}]) as server:
        client = Client(server=server, api=api, array=prompt(api)["messages"])
        (message,) = assemble(api, client.send())

    assert hide_ids(message) == {"role": "assistant", **expected}


REASONS: list[tuple[str, Body, Body, str | None]] = [
    ("not demanded", {"strict_reasoning": False}, {}, None),
    ("demanded", {"strict_reasoning": True}, {}, "The user wants an answer."),
    ("demanded, but disabled", {"strict_reasoning": True}, {"thinking": {"type": "disabled"}}, None),
]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("flags", "body", "expected"), [row[1:] for row in REASONS], ids=[row[0] for row in REASONS])  # fmt: skip
def test_deepseek_reasons_if_it_wants_reasoning_back(
    flags: Body, body: Body, expected: str | None, streamed: bool
) -> None:
    script = [{"text": "a"}, {"reasoning": "own", "text": "a"}]
    with Loopback(script, strictness=Strictness(**flags)) as server:
        client = Client(server=server, api="deepseek", body=body, streamed=streamed)
        client.prompt()
        client.prompt()

    assert [each.get("reasoning_content") for each in client.array[1::2]] == [expected, "own"]


def test_streamed_reasoning_without_text_is_there() -> None:
    with Loopback([{"reasoning": "", "text": "a"}]) as server:
        client = Client(server=server, api="deepseek", streamed=True)
        client.prompt()

    assert client.array[1]["reasoning_content"] == ""


def test_responses_items_are_those_that_say_something() -> None:
    blocks: list[Body] = [{"thinking": ""}, {"text": ""}, {"text": "a"}, {"text": "b"}]
    with talk("responses", [{"blocks": blocks}], store=False) as client:
        thought, first, second = client.array[1:]

    assert thought["summary"] == []
    assert [first["phase"], second["phase"]] == ["final_answer", "final_answer"]


@pytest.mark.parametrize("api", ["anthropic", "bedrock", "responses"])
def test_reasoning_that_nothing_followed_does_not_come_back(api: str) -> None:
    """It was cut off at the end; the API that wrote it does not take it."""
    blocks: list[Body] = [{"thinking": "x"}, {"text": "a"}, {"thinking": "y"}]
    body = {"store": False} if api == "responses" else {}
    with talk(api, [{"blocks": blocks}], Strictness(exact=True), **body) as client:
        whole = client.array
        refusal = judge(client, leave)
        if api == "responses":
            client.array = whole[:-1]
        else:
            client.array = [whole[0], {**whole[1], "content": whole[1]["content"][:-1]}]
        hold(client, leave, None)

    assert refusal


@pytest.mark.parametrize("api", ["anthropic", "bedrock"])
def test_text_that_the_api_does_not_take_is_left_out(api: str) -> None:
    """What stands behind it is bound to what can come back."""
    blocks = [{"text": ""}, {"thinking": "x"}, {"text": "a"}]
    strict = Strictness(exact=True, thinking="bound")
    with Loopback([{"blocks": blocks}], strictness=strict) as server:
        client = Client(server=server, api=api)
        client.prompt()
        kept = [block for block in client.array[1]["content"] if block.get("text") != ""]
        client.array[1]["content"] = kept
        hold(client, leave, None)

        assert list(server.requests[0].issued) == client.array[1:]


@pytest.mark.parametrize("api", ["anthropic", "bedrock", "gemini", "responses"])
def test_answer_that_says_nothing_issues_nothing(api: str) -> None:
    with talk(api, [{"text": ""}]) as client:
        assert client.server.requests[0].issued == ()


def test_gemini_sends_a_text_whole_unless_it_streams() -> None:
    lengths = []
    for streamed in (False, True):
        with Loopback([{"text": "long enough for several"}]) as server:
            client = Client(server=server, api="gemini", streamed=streamed)
            client.prompt()
            lengths.append(len(client.array[1]["parts"]))

    assert lengths == [1, 2]


def test_anthropic_streams_reasoning_then_its_signature() -> None:
    with Loopback(
        [{"blocks": [{"thinking": "long enough for two"}, {"redacted": True}]}]
    ) as server:
        path, body = streaming("anthropic", prompt("anthropic"))
        events = [event for _, event in iter_sse(ask(server, path, body).body)]

    starts = [event["content_block"] for event in events if "content_block" in event]
    deltas = [event["delta"]["type"] for event in events if "index" in event and "delta" in event]
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert starts[1]["data"]
    assert deltas == ["thinking_delta", "thinking_delta", "signature_delta"]


# --- What an API cannot say

UNSAYABLE: dict[str, list[Body]] = {
    "openai": [{"thinking": "x"}, {"redacted": True}, {"empty_text": True}],
    "copilot": [{"redacted": True}, {"empty_text": True}],
    "openrouter": [{"empty_text": True}],
    "deepseek": [{"redacted": True}, {"empty_text": True}],
    "mistral": [{"redacted": True}, {"empty_text": True}],
    "anthropic": [{"empty_text": True}],
    "bedrock": [{"empty_text": True}],
    "responses": [{"redacted": True}, {"empty_text": True}],
    "gemini": [{"redacted": True}],
    "ollama": [{"redacted": True}, {"empty_text": True}],
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("api", "block"), [(api, block) for api, blocks in UNSAYABLE.items() for block in blocks])  # fmt: skip
def test_block_that_an_api_cannot_say_is_an_error_of_the_script(
    api: str, block: Body, streamed: bool
) -> None:
    with Loopback([{"blocks": [block, {"text": "x"}]}]) as server:
        got = Client(server=server, api=api, streamed=streamed).prompt()

    assert got.status == 500
    assert b"script:" in got.body


def test_mistral_says_reasoning_and_calls_apart_unless_told_otherwise() -> None:
    with Loopback([{"reasoning": "x", "calls": [{"name": "f"}]}]) as server:
        got = Client(server=server, api="mistral").prompt()

    assert b"script:" in got.body


def test_only_claude_reasons_on_bedrock() -> None:
    with Loopback([{"reasoning": "x", "text": "y"}]) as server:
        path = "/model/amazon.nova-2-lite-v1:0/converse"
        reply = server.answer("POST", path, json.dumps(prompt("bedrock")).encode())

    assert reply.status == 500
