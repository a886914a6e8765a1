"""Responses of Anthropic Messages: a document, or a stream of events, to the message they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from retention.errors import InvalidResponse
from retention.model import Usage
from retention.providers import splice, streams
from retention.providers.base import Response

THINKING = ("thinking", "redacted_thinking")

# The field that a delta of each kind continues.  Its text goes to the block's field of that name,
# that of `partial_json` becomes the block's `input`.
_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class _Event(msgspec.Struct, gc=False):
    type: str
    index: int = -1
    delta: dict[str, Any] | None = None
    content_block: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class _Document(msgspec.Struct, gc=False):
    type: Literal["message"]
    content: msgspec.Raw
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None


class _Outline(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None


class _Open(msgspec.Struct):
    """A block while it is streamed: its fields at the start, and the pieces of each field."""

    fields: dict[str, Any]
    pieces: dict[str, list[str]] = {}


_read_event = streams.make_decoder(_Event)
_read_document = streams.make_decoder(_Document)
_read_outline = streams.make_decoder(_Outline)
_read_object = streams.make_decoder(dict[str, msgspec.Raw])


def assemble(body: bytes) -> Response:
    """Read the body of a response."""
    texts = streams.read_documents(body)
    if len(texts) == 1:
        document = _read_document(streams.repair(texts[0]))
        if document is not None and bytes(document.content)[:1] == b"[":
            return Response(
                elements=_make_elements(bytes(document.content)),
                complete=True,
                finish=document.stop_reason or "",
                usage=read_usage(document.usage),
            )
    events = [_read_event(text) for text in texts if text != streams.DONE]
    if not any(event is not None and event.type == "message_start" for event in events):
        raise InvalidResponse(f"no Anthropic response in {len(body)} bytes")
    return _join_events(events)


def _join_events(events: Iterable[_Event | None]) -> Response:
    blocks: dict[int, _Open] = {}
    usage: dict[str, Any] = {}
    sound, ended = True, False
    finish = error = ""
    for event in events:
        if event is None:
            sound = False
        elif event.type == "content_block_delta":
            sound = sound and _grow(blocks.get(event.index), event.delta or {})
        elif event.type == "content_block_start":
            blocks[event.index] = _Open(event.content_block or {})
        elif event.type == "message_start":
            _update(usage, (event.message or {}).get("usage"))
        elif event.type == "message_delta":
            finish = str((event.delta or {}).get("stop_reason") or finish)
            _update(usage, event.usage)
        elif event.type == "message_stop":
            ended = True
        elif event.type == "error":
            error = _name_error(event.error)
    closed = [_close(block) for block in blocks.values()]
    content = b"[" + b",".join([block for block in closed if block is not None]) + b"]"
    return Response(
        elements=_make_elements(content),
        complete=sound and ended and not error and None not in closed,
        finish=finish,
        error=error,
        usage=read_usage(usage),
    )


def _grow(block: _Open | None, delta: dict[str, Any]) -> bool:
    """Add DELTA to BLOCK; return False for one whose meaning is not known."""
    if block is None:
        return False
    kind = delta.get("type")
    name = _PIECES.get(str(kind))
    if name is not None:
        piece = delta.get(name)
        if isinstance(piece, str):
            block.pieces.setdefault(name, []).append(piece)
        return isinstance(piece, str)
    if kind == "citations_delta":
        citations = block.fields.get("citations") or []
        if not isinstance(citations, list):
            return False
        block.fields["citations"] = [*citations, delta.get("citation")]
    elif kind == "compaction_delta":  # the whole block at once
        block.fields |= {key: value for key, value in delta.items() if key != "type"}
    else:
        return False
    return True


def _close(block: _Open) -> bytes | None:
    """Return the JSON text of a block, None if it is none of the API's or its input no object."""
    fields = block.fields
    for name, pieces in block.pieces.items():
        text = "".join(pieces)
        begun = fields.get(name) or ""
        if name != "partial_json":
            if not isinstance(begun, str):
                return None
            fields[name] = begun + text
        elif text.strip():
            written = close_input(text)
            if written is None:
                return None
            fields["input"] = written
    return streams.encode(fields)


def _make_elements(content: bytes) -> tuple[bytes, ...]:
    """Return the message with CONTENT, without what the API refuses as input; none if all is.

    An empty text block: "messages: text content blocks must be non-empty".  One of white space, in
    a message without other text: "text content blocks must contain non-whitespace text".  Thinking
    at the end, as of an answer that was cut short: "The final block in an assistant message cannot
    be `thinking`".
    """
    span = splice.whole(content)
    outlines = [
        _read_outline(content[start:end]) or _Outline()
        for start, end in splice.items(content, span)
    ]
    texts = [outline.text or "" for outline in outlines if outline.type == "text"]
    blank = not any(text.strip() for text in texts)
    kept = [outline.type != "text" or bool(outline.text and not blank) for outline in outlines]
    content = keep_blocks(content, kept, [outline.type in THINKING for outline in outlines])
    return (b'{"role":"assistant","content":' + content + b"}",) if content else ()


def _name_error(error: Mapping[str, Any] | None) -> str:
    """Return what an error event says."""
    error = error or {}
    return str(error.get("message") or error.get("type") or "error")


def _update(usage: dict[str, Any], newer: object) -> None:
    """Take the counts of NEWER that it has over into USAGE: they are cumulative."""
    if isinstance(newer, dict):
        usage |= {key: value for key, value in newer.items() if value is not None}


# What Bedrock has in common


def close_input(text: str) -> msgspec.Raw | None:
    """Return the arguments TEXT exactly as the model wrote them, None if they are not an object."""
    raw = streams.repair(streams.join_text(text).encode())
    return None if _read_object(raw) is None else msgspec.Raw(raw)


def keep_blocks(content: bytes, kept: Sequence[bool], thinking: Sequence[bool]) -> bytes:
    """Return the array CONTENT with the KEPT blocks that are not THINKING at its end; b"" if none.

    Both tell of each block in its order.
    """
    last = max((n for n, keep in enumerate(kept) if keep and not thinking[n]), default=-1)
    if last < 0:
        return b""
    flags = iter([keep and n <= last for n, keep in enumerate(kept)])
    return splice.map_items(
        content, splice.whole(content), lambda block: block if next(flags) else b""
    )


NAMES = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)


def read_usage(counts: Mapping[str, Any] | None, names: tuple[str, ...] = NAMES) -> Usage | None:
    """Return COUNTS under our names; under theirs, `input` leaves out what the cache was used for.

    NAMES are those of input, cached, written and output.
    """
    found = [(counts or {}).get(name) for name in names]
    fresh, cached, written, output = [n if type(n) is int else None for n in found]
    if (fresh, cached, written, output) == (None,) * 4:
        return None
    total = None if fresh is None else fresh + (cached or 0) + (written or 0)
    return Usage(input=total, cached=cached, written=written, output=output)
