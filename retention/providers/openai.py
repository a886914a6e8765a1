"""OpenAI Chat Completions (array `messages`) and the many servers that speak it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from retention.errors import InvalidPayload
from retention.model import Identity, Message, PartKind, Reason, Role
from retention.providers import openai_edits, openai_response, rules, splice, streams
from retention.providers.base import Provider, Shape
from retention.providers.canonical import (
    Element,
    Piece,
    build_message,
    call_piece,
    canonical_json,
    empty_piece,
    make_reader,
    media_digest,
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
    "developer": Role.SYSTEM,
}
# Tokenizers and templates of these families refuse a user message after results:
# "Unexpected role 'user' after role 'tool'", on Mistral's API, behind routers and on vLLM.
_MISTRAL = re.compile(r"mi[sx]tral|ministral|devstral|codestral|magistral|pixtral", re.IGNORECASE)
# Templates of these families refuse two user messages in a row:
# "Conversation roles must alternate user/assistant/user/assistant/..." (Gemma),
# "... roles must alternate user and assistant roles except for tool calls and results." (Ministral)
_ALTERNATING = re.compile(r"gemma|ministral", re.IGNORECASE)

_BESIDE = empty_piece("reasoning")  # all that stands beside a content


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    image_url: msgspec.Raw = _NONE
    input_audio: msgspec.Raw = _NONE
    file: msgspec.Raw = _NONE


class _Function(msgspec.Struct, gc=False):
    name: str
    arguments: msgspec.Raw = _NONE


class _Custom(msgspec.Struct, gc=False):
    name: str
    input: str = ""


class _Call(msgspec.Struct, gc=False):
    id: str | None = None
    function: _Function | None = None
    custom: _Custom | None = None
    extra_content: msgspec.Raw = _NONE


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: msgspec.Raw = _NONE
    reasoning: msgspec.Raw = _NONE
    reasoning_details: msgspec.Raw = _NONE
    reasoning_text: msgspec.Raw = _NONE
    reasoning_opaque: msgspec.Raw = _NONE
    extra_content: msgspec.Raw = _NONE


class _Parts(msgspec.Struct, gc=False):
    content: list[msgspec.Raw]


_read_message = make_reader(_Message, "a chat message")
_read_parts = make_reader(_Parts, "a chat message")


def read(raw: bytes) -> Element:
    """Read the JSON text of one message."""
    message = _read_message(raw)
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidPayload(f"no chat role: {message.role}")
    content = message.content
    if role is Role.TOOL:
        return Element(role, [_read_result(content, message.tool_call_id)])
    if isinstance(content, str):
        pieces = [text_piece(content)]
    elif content:
        pieces = [_read_part(raw, at, role, part) for at, part in enumerate(content)]
    else:
        pieces = []
    if message.tool_calls:
        pieces += [_read_call(call) for call in message.tool_calls]
    if role is Role.ASSISTANT and _is_reasoned(message):
        pieces.append(_BESIDE)
    return Element(role, pieces)


def _is_reasoned(message: _Message) -> bool:
    """Whether reasoning or signatures stand beside the content of MESSAGE."""
    found = [getattr(message, key) for key in openai_edits.REASONING]
    found += [call.extra_content for call in message.tool_calls or ()]
    return any(bytes(raw) not in openai_edits.NOTHING for raw in found)


def _read_part(raw: bytes, at: int, role: Role, part: _Part) -> Piece:
    if part.text is not None:
        return text_piece(part.text)
    media = _get_media(part)
    if media is not None:
        return media_piece(media)
    if role is Role.USER:  # a form that we do not know: all of it counts
        return media_piece(_read_parts(raw).content[at])
    return empty_piece(part.type)  # thinking chunks of Mistral, refusals


def _get_media(part: _Part) -> msgspec.Raw | None:
    for media in (part.image_url, part.input_audio, part.file):
        if media is not _NONE:
            return media
    return None


def _read_result(content: str | list[_Part] | None, id: str | None) -> Piece:
    if isinstance(content, str):
        return result_piece([content], id)
    parts = content or []
    texts = [part.text for part in parts if part.text is not None]
    found = (_get_media(part) for part in parts)
    return result_piece(
        texts, id, tuple(media_digest(media) for media in found if media is not None)
    )


def _read_call(call: _Call) -> Piece:
    if call.function is not None:
        return call_piece(call.function.name, call.function.arguments, call.id)
    if call.custom is not None:
        arguments = canonical_json(msgspec.json.encode(call.custom.input))  # free text, not JSON
        return Piece(PartKind.CALL, call.custom.name, arguments, (), call.id)
    raise InvalidPayload("a tool call without a function")


def parse(raw: bytes) -> Message:
    """Return the `Message` of one element of the array."""
    return build_message(raw, read(raw))


def wrap(text: str) -> bytes:
    """Return the user message with TEXT alone, as gptel writes one."""
    return b'{"role":"user","content":' + splice.encode_string(text) + b"}"


def shape(message: Message, identity: Identity) -> Shape:
    """Place a delivery: a message of its own, but for models whose templates refuse one."""
    if message.role is Role.ASSISTANT:
        return Shape.NONE
    if message.role is Role.TOOL and _MISTRAL.search(identity.model):
        return Shape.RESULT
    if message.role is Role.USER and _ALTERNATING.search(identity.model):
        return Shape.MERGE
    return Shape.MESSAGE


def merge(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a user message."""
    if read(raw).role is not Role.USER:
        raise InvalidPayload("a text goes into a user message")
    return _append(raw, text)


def result(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a message with a result."""
    if read(raw).role is not Role.TOOL:
        raise InvalidPayload("the message has no result")
    return _append(raw, text)


def _append(raw: bytes, text: str) -> bytes:
    message = splice.whole(raw)
    content = splice.members(raw, message).get("content")
    if content is None:
        return splice.add_member(raw, message, "content", splice.encode_string(text))
    if splice.is_string(raw, content):
        return splice.append_text(raw, content, text)
    if not splice.is_array(raw, content):
        raise InvalidPayload("the content is null")
    part = b'{"type":"text","text":' + splice.encode_string(text) + b"}"
    return splice.append_item(raw, content, part)


def no_bare_reasoning(elements: list[Element]) -> Iterator[Reason]:
    """Reasoning beside a content does not stand for it."""
    for at, element in enumerate(elements):
        if element.pieces == [_BESIDE]:
            yield Reason(code="empty_content", detail=str(at))


check = rules.make_check(
    read,
    rules.pair_calls,
    rules.unique_ids,
    rules.match_ids(openai_edits.CALL_IDS),
    rules.no_empty_content,
    no_bare_reasoning,
)

PROVIDER = Provider(
    api="openai",
    array="messages",
    read=read,
    parse=parse,
    wrap=wrap,
    shape=shape,
    merge=merge,
    result=result,
    check=check,
    head=openai_edits.head,
    assemble=streams.make_assemble(openai_response.assemble, read),
    rename=openai_edits.rename,
    id_pattern=openai_edits.CALL_IDS,
    make_id=openai_edits.make_id,
    strip=openai_edits.strip,
)
