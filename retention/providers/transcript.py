"""An element of a payload's array as a reader would tell it: texts, reasoning, calls, results.

For learning (evidence.md V1), never for sending: what an API needs beside the words is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from retention.model import EventKind, PartKind, Role
from retention.providers.canonical import Element, make_reader

_SPOKEN = {
    Role.SYSTEM: EventKind.TEXT,
    Role.USER: EventKind.USER,
    Role.TOOL: EventKind.USER,  # a text beside results
    Role.ASSISTANT: EventKind.ASSISTANT,
}
_MEDIA = "[media]"
_THOUGHT = ("reasoning_content", "reasoning", "thinking", "reasoningText")
_INSIDE = ("content", "parts", "reasoningContent")

_read_any = make_reader(object, "JSON")


class Told(NamedTuple):
    """One stretch of an element: `text` is what was said, the result, or the call's arguments.

    `tool` is the name of a call's tool, `id` the id of a call or of the call that a result is for.
    """

    kind: EventKind
    text: str
    tool: str = ""
    id: str | None = None


def tell(read: Callable[[bytes], Element], raw: bytes) -> list[Told]:
    """Return what the element RAW says, in its order, reasoning first; raise InvalidPayload.

    READ is that of its API's `Provider`.
    """
    element = read(raw)
    told = [Told(EventKind.ANALYSIS, text) for text in dict.fromkeys(_thoughts(_read_any(raw)))]
    for piece in element.pieces:
        match piece.kind:
            case PartKind.TEXT:
                told.append(Told(_SPOKEN[element.role], piece.text))
            case PartKind.MEDIA:
                told.append(Told(_SPOKEN[element.role], _MEDIA))
            case PartKind.CALL:
                told.append(Told(EventKind.TOOL_CALL, piece.arguments, piece.text, piece.id))
            case PartKind.RESULT:
                text = piece.text or (_MEDIA if piece.media else "")
                told.append(Told(EventKind.TOOL_OUTPUT, text, "", piece.id))
            case PartKind.EMPTY:
                pass  # reasoning is read above; the rest says nothing
    return told


def _thoughts(value: Any) -> Iterator[str]:
    """Yield the readable reasoning in an element of any API, in order."""
    if isinstance(value, list):
        for item in value:
            yield from _thoughts(item)
    if not isinstance(value, dict):
        return
    if value.get("thought") is True:  # Gemini
        yield from _texts(value.get("text"))
        return
    for key in _THOUGHT:
        yield from _texts(value.get(key))
    if value.get("type") == "reasoning":  # Responses
        yield from _texts(value.get("summary"))
        yield from _texts(value.get("content"))
        return
    for key in _INSIDE:
        yield from _thoughts(value.get(key))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, dict):
        yield from _texts(value.get("text"))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
