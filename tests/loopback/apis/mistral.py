"""Mistral: chat completions with a strict order of roles and counts instead of ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tests.loopback.apis import chat
from tests.loopback.model import Answer, Context, Json, Object, Refused, Request
from tests.loopback.script import ScriptError
from tests.loopback.shape import need
from tests.loopback.strictness import Strictness

CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
FUNCTION = re.compile(r"[a-zA-Z0-9_-]{1,64}")
AFTER = {
    "system": ("user", "assistant", "system"),
    "user": ("assistant", "system", "user"),
    "assistant": ("assistant", "user", "tool"),
    "tool": ("assistant", "tool"),
}
ORDER = "invalid_request_message_order"


def check(request: Request, strictness: Strictness) -> None:
    """Refuse what the validator of the API refuses when it serves."""
    need(request.json, "model", str)
    messages = chat.get_messages(request.json, chat.OPENAI_WORDS)
    for message in messages:
        check_message(message, strictness)
    check_order(messages)
    check_counts(messages)
    check_last(messages)


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


def message(answer: Answer, context: Context) -> Object:
    if answer.text and answer.calls and context.strictness.exclusive_content:
        raise ScriptError("script: text and calls in one message need exclusive_content off")
    said = chat.message(answer, context)
    said["content"] = said["content"] or ""
    for index, call in enumerate(said.get("tool_calls", ())):
        call["id"] = context.id("", 9, index)
    return said


def document(answer: Answer, context: Context) -> Json:
    return chat.complete(message(answer, context), answer, context)


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    said = message(answer, context)
    yield from chat.stream(
        chat.text_deltas(said), call_deltas(said), answer, context, usage_always=True
    )


def call_deltas(said: Object) -> Iterator[Object]:
    """Calls come whole, one a chunk."""
    for index, call in enumerate(said.get("tool_calls", ())):
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
)
