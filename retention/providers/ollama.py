"""Ollama's /api/chat (array `messages`): images beside the text, results without ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from retention.errors import InvalidPayload, InvalidResponse
from retention.model import Identity, Message, PartKind, Role, Usage
from retention.providers import rules, splice, streams
from retention.providers.base import Provider, Response, Shape
from retention.providers.calls import match_calls
from retention.providers.canonical import (
    Element,
    Piece,
    build_message,
    call_piece,
    empty_piece,
    make_reader,
    media_piece,
    result_piece,
    text_piece,
)
from retention.providers.openai_edits import drop_empty, make_head
from retention.providers.openai_response import describe_error, fold_objects

_NONE = msgspec.Raw(b"")
_ROLES = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "system": Role.SYSTEM,
}
# Members of a payload that do not change the prompt or the answer.
_UNIMPORTANT = frozenset(("stream", "keep_alive"))


class _Function(msgspec.Struct, gc=False):
    name: str
    arguments: msgspec.Raw = _NONE


class _Call(msgspec.Struct, gc=False):
    function: _Function


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[msgspec.Raw] | None = None
    tool_calls: list[_Call] | None = None


class _Line(msgspec.Struct, gc=False):
    """A line of a stream, or a whole response."""

    message: dict[str, Any] | None = None
    done: bool = False
    done_reason: str | None = None
    error: Any = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None


_read_message = make_reader(_Message, "an Ollama message")
_read_line = streams.make_decoder(_Line)


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
    if message.thinking:
        pieces.append(empty_piece("thinking"))
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


def assemble(body: bytes) -> Response:
    """Return the response in BODY: a document, or lines that each bring a piece of it."""
    texts = streams.read_documents(body)
    lines: list[_Line] = []
    for text in texts:
        line = _read_line(text)
        if line is None:  # cut off
            break
        lines.append(line)
    if not any(line.message is not None for line in lines):
        raise InvalidResponse(f"no chat response of Ollama in these {len(body)} bytes")
    last = lines[-1]
    error = describe_error(last.error)
    return Response(
        elements=(_join_lines(texts, lines),),
        complete=last.done and not error,
        finish=last.done_reason or "",
        error=error,
        usage=Usage(input=last.prompt_eval_count, output=last.eval_count) if last.done else None,
    )


def _join_lines(texts: list[bytes], lines: list[_Line]) -> bytes:
    """Return the message that LINES, read from TEXTS, bring; calls keep their own bytes."""
    if len(texts) == 1:
        return _cut(streams.repair(texts[0]), "message")
    calls: list[msgspec.Raw] = []
    pieces: list[dict[str, Any]] = []
    for text, line in zip(texts, lines, strict=False):
        piece = line.message or {}
        if piece.get("tool_calls"):
            listed = _cut(streams.repair(text), "message", "tool_calls")
            spans = splice.items(listed, splice.whole(listed))
            calls += [msgspec.Raw(listed[slice(*span)]) for span in spans]
        pieces.append({key: value for key, value in piece.items() if key != "tool_calls"})
    return streams.encode(fold_objects(pieces) | ({"tool_calls": calls} if calls else {}))


def _cut(raw: bytes, *path: str) -> bytes:
    """Return the text of the value at PATH in the object RAW."""
    at = splice.whole(raw)
    for key in path:
        at = splice.members(raw, at)[key]
    return raw[slice(*at)]


def order_results(
    results: Sequence[bytes], seen: Sequence[bytes], own: Sequence[bytes]
) -> Sequence[bytes]:
    """Return RESULTS, in the order of the calls in SEEN, in that of the same calls in OWN."""
    places = match_calls(_list_calls(seen), _list_calls(own))
    if places is None or len(places) != len(results):
        return results
    return [results[place] for place in places]


def _list_calls(elements: Sequence[bytes]) -> list[tuple[str, str]]:
    pieces = [piece for raw in elements for piece in read(raw).pieces]
    return [(piece.text, piece.arguments) for piece in pieces if piece.kind is PartKind.CALL]


def strip(raw: bytes) -> bytes:
    """Leave the thinking out of a message of the assistant; b"" if nothing is left."""
    return drop_empty(splice.drop_members(raw, splice.whole(raw), "thinking"))


# Ollama refuses none of these.  Results carry neither id nor name, so that order is their only
# link to the calls: a count that differs gives a result to the wrong call without a word.
check = rules.make_check(read, rules.pair_calls, rules.no_empty_content)

PROVIDER = Provider(
    api="ollama",
    array="messages",
    read=read,
    parse=parse,
    wrap=wrap,
    shape=shape,
    merge=merge,
    result=result,
    check=check,
    head=make_head(_UNIMPORTANT),
    assemble=streams.make_assemble(assemble, read),
    order_results=order_results,
    strip=strip,
)
