"""Ollama's /api/chat (array `messages`): images beside the text, results without ids."""

from __future__ import annotations

import msgspec

from retention.errors import InvalidPayload
from retention.model import Identity, Message, Role
from retention.providers import rules, splice
from retention.providers.base import Provider, Shape
from retention.providers.canonical import (
    Element,
    Piece,
    build_message,
    call_piece,
    make_reader,
    media_piece,
    result_piece,
    text_piece,
)

_NONE = msgspec.Raw(b"")
_ROLES = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "system": Role.SYSTEM,
}


class _Function(msgspec.Struct, gc=False):
    name: str
    arguments: msgspec.Raw = _NONE


class _Call(msgspec.Struct, gc=False):
    function: _Function


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | None = None
    images: list[msgspec.Raw] | None = None
    tool_calls: list[_Call] | None = None


_read_message = make_reader(_Message, "an Ollama message")


def read(raw: bytes) -> Element:
    """Read the JSON text of one message."""
    message = _read_message(raw)
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidPayload(f"no Ollama role: {message.role}")
    if role is Role.TOOL:
        return Element(role, [result_piece([message.content or ""])])
    pieces: list[Piece] = [] if message.content is None else [text_piece(message.content)]
    if message.images:
        pieces += [media_piece(image) for image in message.images]
    if message.tool_calls:
        calls = [call.function for call in message.tool_calls]
        pieces += [call_piece(call.name, call.arguments) for call in calls]
    return Element(role, pieces)


def parse(raw: bytes) -> Message:
    """Return the `Message` of one element of the array."""
    return build_message(raw, read(raw))


def wrap(text: str) -> bytes:
    """Return the user message with TEXT alone, as gptel writes one."""
    return b'{"role":"user","content":' + splice.encode_string(text) + b"}"


def shape(message: Message, _identity: Identity) -> Shape:
    """Place a delivery: a message of its own; Ollama checks no order and its templates none."""
    return Shape.NONE if message.role is Role.ASSISTANT else Shape.MESSAGE


def merge(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a user message."""
    return _append(raw, Role.USER, text)


def result(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a message with a result."""
    return _append(raw, Role.TOOL, text)


def _append(raw: bytes, role: Role, text: str) -> bytes:
    if read(raw).role is not role:
        raise InvalidPayload(f"the message is not one of the role {role.value}")
    message = splice.whole(raw)
    content = splice.members(raw, message).get("content")
    if content is None:
        return splice.add_member(raw, message, "content", splice.encode_string(text))
    if not splice.is_string(raw, content):
        raise InvalidPayload("the content is null")
    return splice.append_text(raw, content, text)


# Ollama refuses none of these.  Results carry neither id nor name, so that order is their only
# link to the calls: a count that differs gives a result to the wrong call without a word.
check = rules.make_check(read, rules.pair_calls, rules.no_empty_content)

PROVIDER = Provider(
    api="ollama",
    array="messages",
    parse=parse,
    wrap=wrap,
    shape=shape,
    merge=merge,
    result=result,
    check=check,
)
