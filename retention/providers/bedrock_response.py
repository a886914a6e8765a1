"""Responses of Bedrock Converse: a document, or a binary event stream, to the message they hold.

The stream is `application/vnd.amazon.eventstream`: frames of total length u32, header length u32,
CRC-32 of these eight bytes, headers, payload (JSON), CRC-32 of all before it; big-endian.  A header
is a name (length u8, text), a type u8 and a value, whose size depends on the type.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import msgspec

from retention.errors import InvalidResponse
from retention.providers import splice, streams
from retention.providers.anthropic_response import close_input, keep_blocks, read_usage
from retention.providers.base import Response

_PRELUDE = struct.Struct(">II4x")  # the last checksum covers the first one, too
_CRC = struct.Struct(">I")
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # of values, by type
_SIZED = (6, 7)  # bytes and text: preceded by their length, u16
_USAGE = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens")

# Where the text of a delta goes, by the member of the delta and the member of that.
_PIECES = {
    ("text", ""): "text",
    ("toolUse", "input"): "input",
    ("reasoningContent", "text"): "reasoning",
    ("reasoningContent", "signature"): "signature",
    ("reasoningContent", "redactedContent"): "redacted",
}

Headers = dict[str, str]


class _Event(msgspec.Struct, gc=False, rename="camel"):
    content_block_index: int = -1
    start: dict[str, Any] = {}
    delta: dict[str, Any] = {}
    stop_reason: str = ""
    usage: dict[str, Any] = {}
    message: str = ""


class _Message(msgspec.Struct, gc=False):
    content: list[msgspec.Raw]


class _Output(msgspec.Struct, gc=False):
    message: msgspec.Raw


class _Document(msgspec.Struct, gc=False, rename="camel"):
    output: _Output
    stop_reason: str = ""
    usage: dict[str, Any] | None = None


class _Outline(msgspec.Struct, gc=False, rename="camel"):
    text: str | None = None
    reasoning_content: Any = None


class _Open(msgspec.Struct):
    """A block while it is streamed: what its start says, and the pieces of each field."""

    start: dict[str, Any] = {}
    pieces: dict[str, list[str]] = {}


_read_event = streams.make_decoder(_Event)
_read_document = streams.make_decoder(_Document)
_read_message = streams.make_decoder(_Message)
_read_outline = streams.make_decoder(_Outline)


def assemble(body: bytes) -> Response:
    """Read the body of a response."""
    if body[:1] == b"\0":  # the length of a frame, which is below 16 MB
        return _join_frames(body)
    texts = streams.read_documents(body)
    document = _read_document(streams.repair(texts[0])) if len(texts) == 1 else None
    message = bytes(document.output.message) if document else b""
    if document is None or _read_message(message) is None:
        raise InvalidResponse(f"no Converse response in {len(body)} bytes")
    return Response(
        elements=_make_elements(message),
        complete=True,
        finish=document.stop_reason,
        usage=read_usage(document.usage, _USAGE),
    )


# Frames


def iter_frames(body: bytes) -> Iterator[tuple[Headers, bytes]]:
    """Yield headers and payload of each frame of BODY, up to one that is cut or damaged."""
    known: dict[bytes, Headers] = {}  # each kind of event comes with the same bytes
    at = 0
    while len(body) - at >= _PRELUDE.size + _CRC.size:
        total, size = _PRELUDE.unpack_from(body, at)
        start, end = at + _PRELUDE.size, at + total - _CRC.size
        if end + _CRC.size > len(body) or start + size > end:
            return
        if crc32(body[at:end]) != _CRC.unpack_from(body, end)[0]:
            return
        raw = body[start : start + size]
        if raw not in known:
            known[raw] = dict(_iter_headers(raw))
        yield known[raw], body[start + size : end]
        at = end + _CRC.size


def _iter_headers(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield name and value of the headers RAW that are text, up to one of an unknown type."""
    at = 0
    while at < len(raw):
        name = raw[at + 1 : at + 1 + raw[at]]
        at += 1 + len(name)
        kind = raw[at] if at < len(raw) else -1
        at += 1
        if kind in _SIZED:
            size = int.from_bytes(raw[at : at + 2])
            at += 2
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            return
        if kind == 7:
            yield name.decode(errors="replace"), raw[at : at + size].decode(errors="replace")
        at += size


# Events


def _join_frames(body: bytes) -> Response:
    blocks: dict[int, _Open] = {}
    usage: dict[str, Any] = {}
    sound, begun, ended = True, False, False
    finish = error = ""
    for headers, payload in iter_frames(body):
        event = _read_event(payload)
        kind = headers.get(":event-type", "")
        if headers.get(":message-type", "event") != "event":
            error = _name_error(headers, event)
        elif event is None:
            sound = False
        elif kind == "contentBlockDelta":
            block = blocks.setdefault(event.content_block_index, _Open())
            sound = _grow(block, event.delta) and sound
        elif kind == "contentBlockStart":
            blocks[event.content_block_index] = _Open(event.start)
        elif kind == "messageStart":
            begun = True
        elif kind == "messageStop":
            ended, finish = True, event.stop_reason
        elif kind == "metadata":
            usage = event.usage
    if not begun:
        raise InvalidResponse(f"no Converse response in {len(body)} bytes")
    closed = [_close(block) for block in blocks.values()]
    content = b",".join([streams.encode(block) for block in closed if block is not None])
    return Response(
        elements=_make_elements(b'{"role":"assistant","content":[' + content + b"]}"),
        complete=sound and ended and not error and None not in closed,
        finish=finish,
        error=error,
        usage=read_usage(usage, _USAGE),
    )


def _name_error(headers: Headers, event: _Event | None) -> str:
    named = headers.get(":error-message") or headers.get(":exception-type")
    return (event.message if event else "") or named or "error"


def _grow(block: _Open, delta: dict[str, Any]) -> bool:
    """Add DELTA to BLOCK; return False for one whose meaning is not known."""
    for kind, value in delta.items():
        for name, piece in value.items() if isinstance(value, dict) else [("", value)]:
            field = _PIECES.get((kind, name))
            if field is None or not isinstance(piece, str):
                return False
            block.pieces.setdefault(field, []).append(piece)
    return True


def _close(block: _Open) -> dict[str, Any] | None:
    """Return a block in the form in which it goes back, None if that is not known."""
    texts = {field: "".join(pieces) for field, pieces in block.pieces.items()}
    fields = set(texts)
    if block.start:
        call = block.start.get("toolUse")
        text = texts.pop("input", "")
        written = close_input(text if text.strip() else "{}")
        if not isinstance(call, dict) or texts or written is None:
            return None
        return {"toolUse": {**call, "input": written}}
    if fields <= {"text"}:
        return {"text": texts.get("text", "")}
    if fields == {"redacted"}:
        data = _join_base64(block.pieces["redacted"])
        return None if data is None else {"reasoningContent": {"redactedContent": data}}
    if fields <= {"reasoning", "signature"}:
        reasoning = {"text": texts.get("reasoning", "")}
        if "signature" in texts:
            reasoning["signature"] = texts["signature"]
        return {"reasoningContent": {"reasoningText": reasoning}}
    return None


def _join_base64(pieces: list[str]) -> str | None:
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join([base64.b64decode(piece) for piece in pieces])).decode()
    except ValueError:
        return None


def _make_elements(message: bytes) -> tuple[bytes, ...]:
    """Return the MESSAGE without what the API refuses as input; nothing if all is.

    Blank text: "The text field in the ContentBlock object at ... is blank".  Reasoning at the end,
    as of an answer that was cut short: Claude's models refuse it.
    """
    span = splice.members(message, splice.whole(message))["content"]
    outlines = [
        _read_outline(message[start:end]) or _Outline()
        for start, end in splice.items(message, span)
    ]
    content = keep_blocks(
        message[slice(*span)],
        [outline.text is None or bool(outline.text.strip()) for outline in outlines],
        [outline.reasoning_content is not None for outline in outlines],
    )
    return (splice.replace(message, span, content),) if content else ()
