"""Mistral: chat completions with a strict order of roles and counts instead of ids.

Content with reasoning is a list of chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tests.loopback.apis import chat
from tests.loopback.issued import Issued
from tests.loopback.model import (
    Answer,
    Block,
    Call,
    Context,
    Json,
    Object,
    Refused,
    Request,
    Text,
    Thinking,
)
from tests.loopback.script import ScriptError
from tests.loopback.seals import NONCE, opens, seal
from tests.loopback.shape import need, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import pieces

CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
FUNCTION = re.compile(r"[a-zA-Z0-9_-]{1,64}")
AFTER = {
    "system": ("user", "assistant", "system"),
    "user": ("assistant", "system", "user"),
    "assistant": ("assistant", "user", "tool"),
    "tool": ("assistant", "tool"),
}
ORDER = "invalid_request_message_order"


def check(request: Request, strictness: Strictness, issued: Issued) -> None:
    """Refuse what the validator of the API refuses when it serves."""
    need(request.json, "model", str)
    messages = chat.get_messages(request.json, chat.OPENAI_WORDS)
    for message in messages:
        check_message(message, strictness)
    check_order(messages)
    check_counts(messages)
    check_last(messages)
    check_thoughts(messages, str(request.json["model"]), issued)


def check_message(message: Object, strictness: Strictness) -> None:
    calls = message.get("tool_calls") or ()
    if message["role"] == "assistant":
        if not (message.get("content") or calls):
            raise Refused("Assistant message must have either content or tool_calls, but not both.")
        if strictness.exclusive_content and message.get("content") and calls:
            raise Refused("Assistant message must have either content or tool_calls, but not both.")
    for call in calls:
        name = call["function"]["name"]
        if not FUNCTION.fullmatch(name):
            raise Refused(
                f"Function name was {name} but must be a-z, A-Z, 0-9, or contain underscores and"
                " dashes, with a maximum length of 64."
            )
    if strictness.strict_ids:
        check_ids([call["id"] for call in calls])
        check_ids([message["tool_call_id"]] if message["role"] == "tool" else [])


def check_ids(names: Sequence[str]) -> None:
    for name in names:
        if not CALL_ID.fullmatch(name):
            raise Refused(f"Tool call id was {name} but must be a-z, A-Z, 0-9, with a length of 9.")


def misordered(text: str) -> Refused:
    return Refused(text, kind=ORDER, code="3230")


def check_order(messages: Sequence[Object]) -> None:
    roles = [message["role"] for message in messages]
    if len(roles) == 1 and roles[0] not in ("user", "system"):
        raise misordered("Conversation must start with a user message or system message")
    for before, role in pairwise(roles):
        if role not in AFTER.get(before, ()):
            raise misordered(f"Unexpected role '{role}' after role '{before}'")


def check_counts(messages: Sequence[Object]) -> None:
    """By count alone, judged where the assistant speaks again and at the end."""
    expected = 0
    for message in messages:
        if message["role"] == "tool":
            expected -= 1
        elif message["role"] == "assistant":
            if expected:
                break
            expected = len(message.get("tool_calls") or ())
    if expected:
        raise misordered("Not the same number of function calls and responses")


def check_last(messages: Sequence[Object]) -> None:
    last = messages[-1]
    if last["role"] in ("user", "tool") or (
        last["role"] == "assistant" and last.get("prefix") is True
    ):
        return
    raise misordered(
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got "
        + last["role"]
    )


def check_thoughts(messages: Sequence[Object], model: str, issued: Issued) -> None:
    """Reasoning that is signed is as it was; what the API would say is not known."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, chunk in enumerate(content if isinstance(content, list) else ()):
            path = f"messages[{number}].content[{index}]"
            if chunk.get("signature") is None:
                continue
            text = "".join(
                need(want(part, dict, f"{path}.thinking"), "text", str, f"{path}.thinking")
                for part in need(chunk, "thinking", list, path)
            )
            token = need(chunk, "signature", str, path)
            if not issued.is_foreign("mistral", token, model) and not opens(
                token, "mistral", model, text
            ):
                raise Refused(f"Invalid signature in {path}")


def content(answer: Answer, context: Context) -> str | list[Object]:
    """The content: a string unless there is reasoning in it."""
    if answer.text and answer.calls and context.strictness.exclusive_content:
        raise ScriptError("script: text and calls in one message need exclusive_content off")
    if not answer.thinks:
        return answer.text
    if answer.calls and context.strictness.exclusive_content:
        raise ScriptError("script: reasoning and calls in one message need exclusive_content off")
    chunks = (make_chunk(n, block, context) for n, block in enumerate(answer.blocks))
    return [chunk for chunk in chunks if chunk]


def make_chunk(number: int, block: Block, context: Context) -> Object:
    """BLOCK as a chunk of the content; a call is none."""
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text):
            token = seal(context.id("", NONCE, number), "mistral", context.model, text)
            parts = [{"type": "text", "text": text}]
            return {"type": "thinking", "thinking": parts, "closed": True, "signature": token}
        case Call():
            return {}
    raise ScriptError(f"script: not a block of the mistral API: {block!r}")


def message(answer: Answer, context: Context) -> Object:
    said = {**chat.message(answer, context), "content": content(answer, context)}
    for index, call in enumerate(said.get("tool_calls", ())):
        call["id"] = context.id("", 9, index)
    return said


def usage(answer: Answer, context: Context) -> Object:
    """Nothing is said of the cache when nothing came from it."""
    told = chat.usage(answer, context)
    if not context.cached.read:
        del told["prompt_tokens_details"]
    return told


def document(answer: Answer, context: Context) -> Json:
    return chat.complete(message(answer, context), answer, context, usage)


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    def reasoning_deltas(number: int, block: Block) -> Iterator[Object]:
        """The text of a chunk in pieces, then its signature."""
        whole = make_chunk(number, block, context)
        for part in whole["thinking"]:
            for piece in pieces(part["text"]):
                thinking = [{**part, "text": piece}]
                yield {"content": [{"type": "thinking", "thinking": thinking, "closed": False}]}
        yield {"content": [{**whole, "thinking": []}]}

    deltas = chat.deltas(answer, message(answer, context), reasoning_deltas, call_deltas)
    yield from chat.stream(deltas, answer, context, usage=usage, usage_always=True)


def call_deltas(index: int, call: Object) -> Iterator[Object]:
    """A call comes whole."""
    yield {"content": "", "tool_calls": [{"index": index, **call}]}


def envelope(refused: Refused, _: Request) -> Json:
    return {
        "object": "error",
        "message": refused.message,
        "type": refused.kind,
        "param": None,
        "code": refused.code,
    }


API = replace(
    chat.OPENAI,
    name="mistral",
    route=re.compile(r"/mistral(?:/v1)?/chat/completions"),
    check=check,
    document=document,
    events=events,
    envelope=envelope,
    said=lambda answer, context: (message(answer, context),),
)
