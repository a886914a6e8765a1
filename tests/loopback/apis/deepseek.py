"""DeepSeek: chat completions with its own words, reasoning, and a rule for giving it back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.loopback.apis import chat
from tests.loopback.model import Answer, Context, Json, Object, Refused, Request
from tests.loopback.shape import need, want
from tests.loopback.strictness import Strictness

WORDS = chat.Dialect(
    unanswered=(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to"
        " each 'tool_call_id'. (insufficient tool messages following tool_calls message)"
    ),
    orphan="Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
    fixed_code="invalid_request_error",
)
DEFAULT_REASONING = "The user wants an answer."


def check(request: Request, strictness: Strictness) -> None:
    """Refuse what the API refuses."""
    need(request.json, "model", str)
    messages = chat.get_messages(request.json, WORDS)
    chat.check_pairing(messages, WORDS)
    if strictness.strict_reasoning and thinks(request.json):
        check_reasoning(messages)


def check_reasoning(messages: Sequence[Object]) -> None:
    """From the first call on, assistant messages have their reasoning; "" will do, null not."""
    called = False
    for message in messages:
        called = called or bool(message.get("tool_calls"))
        if (
            called
            and message["role"] == "assistant"
            and not isinstance(message.get("reasoning_content"), str)
        ):
            raise WORDS.refusal(
                "The `reasoning_content` in the thinking mode must be passed back to the API.", None
            )


def thinks(body: Object) -> bool:
    return want(body.get("thinking") or {}, dict, "thinking").get("type") != "disabled"


def misshapen(path: str, expected: str) -> Refused:
    return WORDS.refusal(chat.misshapen(path, expected).message, None)


def message(answer: Answer, context: Context) -> Object:
    reasoning = answer.reasoning
    if reasoning is None and context.strictness.strict_reasoning and thinks(context.request.json):
        reasoning = DEFAULT_REASONING
    said = chat.message(replace(answer, reasoning=None), context)
    said["content"] = said["content"] or ""
    return said if reasoning is None else {**said, "reasoning_content": reasoning}


def document(answer: Answer, context: Context) -> Json:
    return chat.complete(message(answer, context), answer, context)


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    said = message(answer, context)
    yield b": keep-alive\n\n"
    yield from chat.stream(
        chat.text_deltas(said), chat.call_deltas(said), answer, context, usage_always=True
    )


API = replace(
    chat.OPENAI,
    name="deepseek",
    route=re.compile(r"/deepseek(?:/v1)?/chat/completions"),
    check=check,
    misshapen=misshapen,
    document=document,
    events=events,
)
