"""What of a chunk gets a vector: all of it, and the short passages in it.  Pure.

The vector of a whole chunk cannot say what two of its lines say.  Of 102 questions about 1,132
chunks (`python -m bench.retrieval`) the first hit by meaning alone answered 44 by the vectors of
chunks and of problem lines, 54 with those of passages of 240 characters, 48 of 480.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from retention.evidence.chunking import HARD_MAX
from retention.evidence.views import embedded_text, short_segments
from retention.model import Chunk, EventKind

PASSAGE: Final = 240  # characters, at most
TOOLS: Final = frozenset((EventKind.TOOL_CALL, EventKind.TOOL_OUTPUT))
ENDS: Final = ("\n", ". ", " ")  # where a passage is best cut, after the mark

Span = tuple[int, int] | None  # None: the whole chunk


def embedded(chunk: Chunk, text: str) -> Iterator[tuple[Span, str]]:
    """Yield what is embedded of CHUNK, whose text is TEXT, and where in it that stands (V3).

    What a tool wrote is searched for by what went wrong in it, what was said by all of it.
    """
    yield None, embedded_text(text, whole=chunk.whole)
    said = chunk.kind not in TOOLS and len(text) <= HARD_MAX
    for start, end in passages(text) if said else short_segments(text):
        yield (start, end), text[start:end]


def passages(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the passages of TEXT begin and end; none where it is one."""
    start = 0
    while start < len(text) > PASSAGE:
        end = min(len(text), start + PASSAGE)
        if end < len(text):
            cuts = (text.rfind(mark, start + PASSAGE // 2, end) + len(mark) for mark in ENDS)
            end = next((cut for cut in cuts if cut > start + PASSAGE // 2), end)
        yield start, end
        start = end
