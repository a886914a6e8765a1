"""Where a delivery may stand, and how it is put there (rule D4)."""

from __future__ import annotations

from typing import Any

import pytest

from retention.errors import InvalidPayload
from retention.model import Identity, Role
from retention.providers import PROVIDERS, Shape
from tests.providers.helpers import APIS, encode, kinds, load, parse, provider

TEXT = "<system-reminder>\n“Now” \\ \t\x01é 😀\n</system-reminder>"
CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-pro-v1:0"


def shape(api: str, message: bytes, model: str = "") -> Shape:
    found = provider(api, model)
    return found.shape(found.parse(message), Identity(api=api, model=model))


@pytest.mark.parametrize(
    ("api", "model", "after_prompt", "after_results"),
    [
        ("anthropic", "claude-opus-5", "message", "message"),
        ("openai", "gpt-5.5", "message", "message"),
        ("copilot", "claude-sonnet-5", "message", "message"),
        ("responses", "gpt-5.5", "message", "message"),
        ("gemini", "gemini-3.8-flash", "message", "message"),
        ("ollama", "qwen3", "message", "message"),
        ("deepseek", "deepseek-v4-pro", "message", "message"),
        # "Unexpected role 'user' after role 'tool'"
        ("mistral", "mistral-large-latest", "message", "result"),
        ("openai", "mistralai/devstral-2", "message", "result"),
        ("openai", "Mixtral-8x22B-Instruct", "message", "result"),
        # "Conversation roles must alternate user/assistant/user/assistant/..."
        ("openai", "google/gemma-3-27b-it", "merge", "message"),
        # "... conversation roles must alternate user and assistant roles except for ..."
        ("openai", "mistralai/Ministral-3-14B-Instruct-2512", "merge", "result"),
        # "A conversation must alternate between user and assistant roles."
        ("bedrock", CLAUDE, "merge", "merge"),
        # "Conversation blocks and tool result blocks cannot be provided in the same turn."
        ("bedrock", NOVA, "merge", "result"),
    ],
)
def test_d4_each_exception_is_where_a_refusal_forces_it(
    api: str, model: str, after_prompt: str, after_results: str
) -> None:
    prompt, results = load(api, "prompt")[-1], load(api, "loop-whole")[-1]

    assert shape(api, prompt, model) == after_prompt
    assert shape(api, results, model) == after_results


@pytest.mark.parametrize("api", APIS)
def test_d4_nothing_goes_after_the_assistant(api: str) -> None:
    """Neither between calls and results nor after a prefilled answer."""
    for case in ("loop-whole", "rebuilt-whole"):
        for raw in load(api, case):
            if parse(api, raw).role is Role.ASSISTANT:
                assert shape(api, raw, CLAUDE if api == "bedrock" else "m") is Shape.NONE


def test_d4_nothing_goes_between_reasoning_and_what_follows_it() -> None:
    item = encode({"type": "reasoning", "id": "rs_1", "summary": []})

    assert shape("responses", item) is Shape.NONE


# Texts


@pytest.mark.parametrize("api", APIS)
def test_wrap_writes_what_gptel_writes(api: str) -> None:
    """Emacs wrote the fixture: control characters and quotes escaped, nothing outside ASCII."""
    text = 'Odd: "q" \\ / \b\f\t\x01\x1f\x7f\x80\u2028 é 😀\nend'

    assert provider(api).wrap(text) == load(api, "odd")[-1]


@pytest.mark.parametrize("api", sorted(PROVIDERS))
def test_wrap_makes_a_prompt_of_the_text(api: str) -> None:
    message = provider(api).parse(provider(api).wrap(TEXT))

    assert message.role is Role.USER
    assert message.parts == parse("openai", {"role": "user", "content": TEXT}).parts


@pytest.mark.parametrize("api", sorted(PROVIDERS))
def test_wrap_refuses_what_has_no_utf_8(api: str) -> None:
    with pytest.raises(InvalidPayload):
        provider(api).wrap("\ud800")


def added(before: bytes, after: bytes) -> bytes:
    """What was put into BEFORE in one piece; fails if any other byte changed."""
    size = len(after) - len(before)
    at = next(i for i in range(len(after)) if before[i : i + 1] != after[i : i + 1])
    starts = (i for i in range(at, -1, -1) if before == after[:i] + after[i + size :])
    start = next(starts)
    return after[start : start + size]


@pytest.mark.parametrize("case", ["prompt", "media", "odd"])
@pytest.mark.parametrize("api", APIS)
def test_r3_merge_adds_the_text_and_changes_nothing_else(api: str, case: str) -> None:
    host = load(api, case)[-1]

    merged = provider(api).merge(host, TEXT)

    assert "system-reminder" in added(host, merged).decode()
    assert kinds(parse(api, merged)) == ["text"]
    assert provider(api).check([*load(api, case)[:-1], merged]) == ()


@pytest.mark.parametrize("mode", ["stream", "whole"])
@pytest.mark.parametrize("api", APIS)
def test_r3_result_adds_the_text_to_the_last_result_alone(api: str, mode: str) -> None:
    *before, host = load(api, f"loop-{mode}")

    changed = provider(api).result(host, TEXT)

    assert "system-reminder" in added(host, changed).decode()
    assert parse(api, changed).parts[:-1] == parse(api, host).parts[:-1]
    assert parse(api, changed).parts[-1] != parse(api, host).parts[-1]
    assert provider(api).check([*before, changed]) == ()


@pytest.mark.parametrize("api", ["anthropic", "bedrock"])
def test_d4_merge_puts_the_text_after_the_results(api: str) -> None:
    *before, host = load(api, "loop-whole")

    merged = provider(api).merge(host, TEXT)

    assert kinds(parse(api, merged)) == ["result", "result", "text"]
    assert parse(api, merged).parts[:2] == parse(api, host).parts
    assert provider(api).check([*before, merged]) == ()


@pytest.mark.parametrize(
    ("api", "host", "merged"),
    [
        ("openai", {"role": "user", "content": ""}, {"role": "user", "content": "T"}),
        ("openai", {"role": "user", "content": "a"}, {"role": "user", "content": "a\n\nT"}),
        ("openai", {"role": "user"}, {"role": "user", "content": "T"}),
        (
            "openai",
            {"role": "user", "content": []},
            {"role": "user", "content": [{"type": "text", "text": "T"}]},
        ),
        (
            "responses",
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_text", "text": "T"},
                ],
            },
        ),
        (
            "ollama",
            {"role": "user", "images": ["AAAA"]},
            {"role": "user", "images": ["AAAA"], "content": "T"},
        ),
        ("gemini", {"role": "user"}, {"role": "user", "parts": [{"text": "T"}]}),
    ],
)
def test_merge_into_each_form_of_a_prompt(api: str, host: Any, merged: Any) -> None:
    assert provider(api).merge(encode(host), "T") == encode(merged)


@pytest.mark.parametrize(
    ("api", "host", "changed"),
    [
        (
            "anthropic",
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "T"}],
            },
        ),
        (
            "anthropic",
            {"role": "user", "content": [{"type": "tool_result", "content": [], "is_error": True}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "content": [{"type": "text", "text": "T"}],
                        "is_error": True,
                    }
                ],
            },
        ),
        (
            "gemini",
            {"parts": [{"functionResponse": {"name": "r", "response": {"result": "a"}}}]},
            {"parts": [{"functionResponse": {"name": "r", "response": {"result": "a\n\nT"}}}]},
        ),
        (
            "gemini",
            {"parts": [{"functionResponse": {"name": "r", "response": {"rows": 3}}}]},
            {
                "parts": [
                    {"functionResponse": {"name": "r", "response": {"rows": 3, "reminder": "T"}}}
                ]
            },
        ),
        (
            "gemini",
            {"parts": [{"functionResponse": {"name": "r"}}]},
            {"parts": [{"functionResponse": {"name": "r", "response": {"content": "T"}}}]},
        ),
        (
            "bedrock",
            {"role": "user", "content": [{"toolResult": {"toolUseId": "a"}}]},
            {
                "role": "user",
                "content": [{"toolResult": {"toolUseId": "a", "content": [{"text": "T"}]}}],
            },
        ),
        (
            "responses",
            {"type": "function_call_output", "call_id": "a"},
            {"type": "function_call_output", "call_id": "a", "output": "T"},
        ),
        (
            "openai",
            {"role": "tool", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "tool",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "T"}],
            },
        ),
    ],
)
def test_result_into_each_form_of_a_result(api: str, host: Any, changed: Any) -> None:
    assert provider(api).result(encode(host), "T") == encode(changed)


def test_r3_spelling_around_the_place_stays() -> None:
    """White space, numbers, escapes and equal keys come through as they were."""
    host = (
        b' { "x" : 1e3 , "role" : "user" , "x" : -0.0 , "content" : [ {"type" : "text",'
        b' "text" : "\\u00e9\\/ ]}\\"" } ] , "big" : 123456789012345678901234567890 } '
    )

    merged = provider("openai").merge(host, "T")

    assert merged == host.replace(b'"" } ]', b'"" } ,{"type":"text","text":"T"}]')
    assert parse("openai", merged).role is Role.USER


@pytest.mark.parametrize("api", APIS)
def test_merge_and_result_refuse_other_messages(api: str) -> None:
    calls = next(raw for raw in load(api, "loop-whole") if parse(api, raw).opens)
    prompt = load(api, "prompt")[-1]

    for function, message in [
        (provider(api).merge, calls),
        (provider(api).result, calls),
        (provider(api).result, prompt),
    ]:
        with pytest.raises(InvalidPayload):
            function(message, TEXT)


def test_bedrock_result_refuses_a_role_that_the_api_does_not_have() -> None:
    host = load("bedrock", "loop-whole")[-1].replace(b'"role":"user"', b'"role":"model"')

    with pytest.raises(InvalidPayload):
        provider("bedrock").result(host, TEXT)


def test_gemini_merge_keeps_text_out_of_results() -> None:
    with pytest.raises(InvalidPayload):
        provider("gemini").merge(load("gemini", "loop-whole")[-1], TEXT)
