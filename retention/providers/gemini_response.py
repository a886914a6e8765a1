"""Responses of Gemini: one document, or a stream of such, to the content they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from retention.errors import InvalidResponse
from retention.model import Usage
from retention.providers import gemini_edits, splice, streams
from retention.providers.base import Response

_NONE = msgspec.Raw(b"")


class _Content(msgspec.Struct, gc=False):
    parts: list[msgspec.Raw] = []


class _Candidate(msgspec.Struct, gc=False, rename="camel"):
    content: msgspec.Raw = _NONE
    index: int = 0
    finish_reason: str | None = None


class _Feedback(msgspec.Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


_read_chunk = streams.make_decoder(_Chunk)
_read_content = streams.make_decoder(_Content)


def assemble(body: bytes) -> Response:
    """Read the body of a response."""
    texts = streams.read_documents(body)
    chunks = [_read_chunk(streams.repair(text)) for text in texts if text != streams.DONE]
    if not any(chunk and (chunk.candidates or chunk.prompt_feedback) for chunk in chunks):
        raise InvalidResponse(f"no Gemini response in {len(body)} bytes")
    return _join_chunks(chunks)


def _join_chunks(chunks: Iterable[_Chunk | None]) -> Response:
    contents: list[tuple[bytes, list[msgspec.Raw]]] = []
    usage: dict[str, Any] = {}
    sound = True
    finish = error = ""
    for chunk in chunks:
        if chunk is None:
            sound = False
            continue
        for candidate in chunk.candidates or ():
            if candidate.index != 0:  # another answer to the same prompt; gptel takes the first
                continue
            finish = candidate.finish_reason or finish
            raw = bytes(candidate.content)
            content = _read_content(raw) if raw not in (b"", b"null") else _Content()
            if content is None:
                sound = False
            elif content.parts:
                contents.append((raw, content.parts))
        if chunk.prompt_feedback:
            finish = chunk.prompt_feedback.block_reason or finish
        if chunk.error is not None:
            error = str(chunk.error.get("message") or chunk.error.get("status") or "error")
        usage |= chunk.usage_metadata or {}
    return Response(
        elements=_make_elements(contents),
        complete=sound and finish != "" and not error,
        finish=finish,
        error=error,
        usage=_read_usage(usage),
    )


def _make_elements(contents: Sequence[tuple[bytes, list[msgspec.Raw]]]) -> tuple[bytes, ...]:
    """Return the one content with the parts of all CONTENTS as they came; none without any.

    Parts are neither merged nor split, since a signature belongs to its part.  One without text or
    signature is left out: "it must have a text parameter".
    """
    parts = [bytes(part) for _, parts in contents for part in parts]
    kept = [part for part in parts if not gemini_edits.is_empty(part)]
    if not kept:
        return ()
    element = contents[0][0]
    if "role" not in splice.members(element, splice.whole(element)):
        element = splice.add_member(element, splice.whole(element), "role", b'"model"')
    if len(contents) > 1:
        place = splice.members(element, splice.whole(element))["parts"]
        element = splice.replace(element, place, b"[" + b",".join(kept) + b"]")
    elif len(kept) < len(parts):
        element = gemini_edits.edit_parts(
            element, lambda part: b"" if gemini_edits.is_empty(part) else part
        )
    return (element,)


def _read_usage(counts: Mapping[str, Any]) -> Usage | None:
    """Return COUNTS under our names; those that are 0 are left out by the API."""
    if type(total := counts.get("promptTokenCount")) is not int:
        return None
    output = [counts.get(name) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    made = [n for n in output if type(n) is int]
    cached = counts.get("cachedContentTokenCount", 0)
    return Usage(
        input=total,
        cached=cached if type(cached) is int else None,
        output=sum(made) if made else None,
    )
