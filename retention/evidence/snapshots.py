"""A learned text and what its stretches are (evidence.md V1).

The spans of a snapshot cover its text exactly: joined they are the text.  Lengths and places are
Unicode code points everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from retention.model import START, EventKind, RowId, Struct


class Piece(NamedTuple):
    """One event before it has a place: its exact text, with its header and closing newline."""

    kind: EventKind
    text: str
    tool: str = ""
    call: str = ""
    row: RowId = START
    at: float = 0.0


class Span(NamedTuple):
    """One event of a snapshot, from `start` up to `end`; the rest as in `model.Event`."""

    start: int
    end: int
    kind: EventKind
    tool: str = ""
    call: str = ""
    row: RowId = START
    at: float = 0.0


class Snapshot(Struct, frozen=True):
    """The exact `text` of something that is learned, and its `spans`, which cover it.

    `title` and `warnings` are for a person.
    """

    text: str
    spans: tuple[Span, ...]
    title: str = ""
    warnings: tuple[str, ...] = ()


TOOLS = frozenset((EventKind.TOOL_CALL, EventKind.TOOL_OUTPUT))


def join_pieces(pieces: Iterable[Piece], title: str = "", warnings: Iterable[str] = ()) -> Snapshot:
    """Return the snapshot whose text is PIECES, one after another; empty ones leave no span."""
    kept = [piece for piece in pieces if piece.text]
    ends = list(accumulate((len(piece.text) for piece in kept), initial=0))
    spans = tuple(
        Span(start, start + len(piece.text), piece.kind, *piece[2:])
        for start, piece in zip(ends, kept, strict=False)
    )
    text = "".join(piece.text for piece in kept)
    return Snapshot(text=text, spans=spans, title=title, warnings=tuple(warnings))


def make_event(kind: EventKind, body: str, label: str = "") -> str:
    """Return the text of an event: a header line that names it, BODY, and one closing newline.

    The header is for a reader; what an event is, the table of events says.
    """
    header = f"[{kind.value} {label}]" if label else f"[{kind.value}]"
    return f"{header}\n{body}\n"


def event_body(text: str) -> str:
    """Return the body of an event that `make_event` made; another text as it is."""
    header, newline, body = text.partition("\n")
    made = newline and header.startswith("[") and header.endswith("]")
    return body.removesuffix("\n") if made else text
