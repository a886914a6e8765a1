"""DeepSeek: chat completions with its own words, reasoning, and a rule for giving it back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.loopback.apis import chat
from tests.loopback.issued import Issued
from tests.loopback.model import (
    Answer,
    Block,
    Context,
    Json,
    Object,
    Refused,
    Request,
    Thinking,
)
from tests.loopback.script import want_thinking
from tests.loopback.shape import need, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import pieces

WORDS = chat.Dialect(
    unanswered=(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to"
        " each 'tool_call_id'. (insufficient tool messages following tool_calls message)"
    ),
    orphan="Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
    fixed_code="invalid_request_error",
)
DEFAULT_REASONING = "The user wants an answer."
NO_REASONING = ("reasoning_content", "")


def check(request: Request, strictness: Strictness, _: Issued) -> None:
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


def with_reasoning(answer: Answer, context: Context) -> Answer:
    """ANSWER, which has reasoning if the server demands it back."""
    demanded = context.strictness.strict_reasoning and thinks(context.request.json)
    if answer.thinks or not demanded:
        return answer
    return replace(answer, blocks=(Thinking(DEFAULT_REASONING), *answer.blocks))


def message(answer: Answer, context: Context) -> Object:
    want_thinking(answer, "deepseek")
    reasoning = {"reasoning_content": answer.reasoning} if answer.thinks else {}
    said = chat.message(answer, context, **reasoning)
    return {**said, "content": said["content"] or ""}


def usage(answer: Answer, context: Context) -> Object:
    hit = context.cached.read
    told = {
        "prompt_cache_hit_tokens": hit,
        "prompt_cache_miss_tokens": context.input_tokens - hit,
    }
    return {**chat.usage(answer, context), **told}


def document(answer: Answer, context: Context) -> Json:
    answer = with_reasoning(answer, context)
    return chat.complete(message(answer, context), answer, context, usage)


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    answer = with_reasoning(answer, context)
    deltas = chat.deltas(answer, message(answer, context), reasoning_deltas)
    yield b": keep-alive\n\n"
    yield from chat.stream(deltas, answer, context, usage=usage, usage_always=True)


def reasoning_deltas(number: int, block: Block) -> Iterator[Object]:
    assert isinstance(block, Thinking)
    yield from ({"reasoning_content": piece} for piece in [*pieces(block.text)] or [""])


def normal(element: Object) -> Object:
    """As in chat; no reasoning is the empty string too, which the API demands."""
    whole = chat.normal(element)
    return {name: value for name, value in whole.items() if (name, value) != NO_REASONING}


API = replace(
    chat.OPENAI,
    name="deepseek",
    route=re.compile(r"/deepseek(?:/v1)?/chat/completions"),
    check=check,
    misshapen=misshapen,
    document=document,
    events=events,
    said=lambda answer, context: (message(with_reasoning(answer, context), context),),
    normal=normal,
)
