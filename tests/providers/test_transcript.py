"""What an element says to a reader, reasoning included (V1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retention.errors import InvalidPayload
from retention.model import EventKind
from retention.providers import PROVIDERS
from retention.providers.transcript import Told, tell

ANALYSIS, ASSISTANT, CALL = EventKind.ANALYSIS, EventKind.ASSISTANT, EventKind.TOOL_CALL
RESULT, USER, TEXT = EventKind.TOOL_OUTPUT, EventKind.USER, EventKind.TEXT

REASONED: list[tuple[str, Any]] = [
    ("anthropic", {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "text", "text": "So."}]}),
    ("openai", {"role": "assistant", "content": "So.", "reasoning": "hm",
                "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
    ("deepseek", {"role": "assistant", "content": "So.", "reasoning_content": "hm"}),
    ("mistral", {"role": "assistant", "content": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "So."}]}),
    ("gemini", {"role": "model", "parts": [
        {"text": "hm", "thought": True}, {"text": "So.", "thoughtSignature": "s"}]}),
    ("ollama", {"role": "assistant", "content": "So.", "thinking": "hm"}),
    ("bedrock", {"role": "assistant", "content": [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
        {"text": "So."}]}),
]  # fmt: skip


def told(api: str, element: Any) -> list[Told]:
    return tell(PROVIDERS[api].read, json.dumps(element).encode())


@pytest.mark.parametrize(("api", "element"), REASONED, ids=[api for api, _ in REASONED])
def test_reasoning_comes_first_and_once(api: str, element: Any) -> None:
    assert told(api, element) == [Told(ANALYSIS, "hm"), Told(ASSISTANT, "So.")]


def test_reasoning_items_of_responses_are_read() -> None:
    item = {
        "type": "reasoning", "encrypted_content": "x",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "content": [{"type": "reasoning_text", "text": "at length"}],
    }  # fmt: skip
    assert told("responses", item) == [Told(ANALYSIS, "hm"), Told(ANALYSIS, "at length")]


def test_calls_and_results_keep_their_ids_and_arguments() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "read", "arguments": '{"path": "a"}'}}]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c1", "content": "contents"}

    assert told("openai", calls) == [Told(CALL, '{"path":"a"}', "read", "c1")]
    assert told("openai", result) == [Told(RESULT, "contents", "", "c1")]


def test_media_are_named_and_not_quoted() -> None:
    element = {"role": "user", "content": [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                     "data": "AAAA"}}]}  # fmt: skip

    assert told("anthropic", element) == [Told(USER, "What is it?"), Told(USER, "[media]")]


def test_a_system_message_is_no_ones_word() -> None:
    assert told("openai", {"role": "system", "content": "Be brief."}) == [Told(TEXT, "Be brief.")]


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(InvalidPayload):
        tell(PROVIDERS["openai"].read, b"[]")
