"""Copilot: chat completions whose reasoning is a text and one opaque string for all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tests.loopback.apis import chat
from tests.loopback.issued import Issued
from tests.loopback.model import Answer, Block, Context, Json, Object, Refused, Request, Thinking
from tests.loopback.script import want_thinking
from tests.loopback.seals import NONCE, opens, seal
from tests.loopback.shape import nullable
from tests.loopback.strictness import Strictness
from tests.loopback.thinking import INVALID
from tests.loopback.wire import pieces


def check(request: Request, strictness: Strictness, issued: Issued) -> None:
    """Refuse what chat completions refuse, and an opaque string that is not of its text."""
    chat.check(request, strictness, issued)
    model = str(request.json["model"])
    for number, message in enumerate(request.json["messages"]):
        path = f"messages[{number}]"
        token = nullable(message, "reasoning_opaque", str, path)
        text = nullable(message, "reasoning_text", str, path) or ""
        if token is None:
            continue
        if not issued.is_foreign("copilot", token, model) and not opens(
            token, "copilot", model, text
        ):
            raise Refused(INVALID.format(path=f"messages.{number}.content.0"))


def reason(answer: Answer, context: Context) -> Object:
    """The fields of a message that has reasoning."""
    want_thinking(answer, "copilot")
    if not answer.thinks:
        return {}
    text = answer.reasoning
    token = seal(context.id("", NONCE), "copilot", context.model, text)
    return {**({"reasoning_text": text} if text else {}), "reasoning_opaque": token}


def message(answer: Answer, context: Context) -> Object:
    return chat.message(answer, context, **reason(answer, context))


def document(answer: Answer, context: Context) -> Json:
    return chat.complete(message(answer, context), answer, context)


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    said = message(answer, context)
    last = max((n for n, block in enumerate(answer.blocks) if block in answer.hidden), default=-1)

    def reasoning_deltas(number: int, block: Block) -> Iterator[Object]:
        """The text in pieces; behind the last of it what vouches for all."""
        assert isinstance(block, Thinking)
        yield from ({"reasoning_text": piece} for piece in pieces(block.text))
        if number == last:
            yield {"reasoning_opaque": said["reasoning_opaque"]}

    yield from chat.stream(chat.deltas(answer, said, reasoning_deltas), answer, context)


API = replace(
    chat.OPENAI,
    name="copilot",
    route=re.compile(r"/copilot(?:/v1)?/chat/completions"),
    check=check,
    document=document,
    events=events,
    said=lambda answer, context: (message(answer, context),),
)
