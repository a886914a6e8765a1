r"""Where a learned text is cut into chunks, and what puts it together again (evidence.md V1, V2).

Chunks are spans, in code points, of a text that stands elsewhere.  Those without a name cover it:
the first begins at 0, the last ends with the text, each begins after the one before and no later
than where that one ends.  Only chunks of ordinary text overlap.  Nothing is stripped or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from retention.errors import DamagedObject
from retention.evidence.snapshots import TOOLS, Snapshot, Span
from retention.model import Chunk, EventKind
from retention.saver.lines import PROBLEM_WORDS, problem_weight, read_lines, read_pieces

LEARNER: Final = 1  # version of what cuts: another one cuts everything anew

# Code points.
SIZE: Final = 6_000  # of a chunk of ordinary text, at most
OVERLAP: Final = 400  # of such a chunk that the next one repeats, at most
HARD_MAX: Final = 8_000  # of a tool event that is still ordinary text
PIECE: Final = 262_144  # of a chunk of a longer tool event, at most

CONTEXT: Final = 3  # lines in front of the first error of a cluster
SILENCE: Final = 40  # lines without an error that end a cluster: a deep traceback is shorter

_BREAKS: Final = ("\n\n", "\n", " ")  # where ordinary text is best cut, after the break


def cut_snapshot(snapshot: Snapshot) -> tuple[Chunk, ...]:
    """Return the chunks of SNAPSHOT: long tool events apart, what lies between them as usual."""
    return tuple(_chunks(snapshot.text, snapshot.spans))


def _chunks(text: str, spans: Sequence[Span]) -> Iterator[Chunk]:
    first = 0  # the first span that is not cut yet
    for number, span in enumerate(spans):
        if span.kind in TOOLS and span.end - span.start > HARD_MAX:
            yield from _ordinary(text, spans[first:number])
            yield from _pieces(text, span)
            first = number + 1
    yield from _ordinary(text, spans[first:])


def _ordinary(text: str, spans: Sequence[Span]) -> Iterator[Chunk]:
    """Yield the chunks of what SPANS, neighbours, cover."""
    if not spans:
        return
    owners = iter(spans)
    owner = next(owners)
    for start, end in _cut_prose(text, spans[0].start, spans[-1].end):
        while owner.end <= start:
            owner = next(owners)
        yield Chunk(start=start, end=end, kind=owner.kind, tool=owner.tool)


def _cut_prose(text: str, start: int, after: int) -> Iterator[tuple[int, int]]:
    """Yield the chunks of TEXT from START up to AFTER as if there were nothing around it."""
    while after - start > SIZE:
        # A break counts behind half of the window, so that the overlap is a small part of a chunk.
        low, high = start + SIZE // 2, start + SIZE
        found = (text.rfind(mark, low, high) + len(mark) for mark in _BREAKS)
        end = next((cut for cut in found if cut > low), high)
        yield start, end
        line = text.find("\n", end - OVERLAP - 1, end - OVERLAP // 2 - 1) + 1
        start = line or end - OVERLAP
    yield start, after


def _pieces(text: str, span: Span) -> Iterator[Chunk]:
    """Yield the chunks of SPAN, a tool event of TEXT: one, or pieces that end with a line."""
    start, whole = span.start, span.end - span.start > HARD_MAX
    while start < span.end:
        end = min(start + PIECE, span.end)
        if end < span.end:
            end = text.rfind("\n", start, end) + 1 or end
        yield Chunk(start=start, end=end, kind=span.kind, tool=span.tool, whole=whole)
        start, whole = end, False


def cut_output(text: str, tool: str) -> tuple[Chunk, ...]:
    """Return the chunks of TEXT, a saved output of TOOL: all of it, and its error cluster if any.

    The cluster, "error1", stands beside what covers the text and finds what the whole would bury.
    """
    span = Span(0, len(text), EventKind.TOOL_OUTPUT, tool)
    return (*_pieces(text, span), *_error_cluster(text, tool))


def _error_cluster(text: str, tool: str) -> Iterator[Chunk]:
    """Yield the chunk from just before the first line that is surely an error through the last one
    that belongs to it: that is near the one before and within the bound.
    """
    pieces = read_pieces(read_lines(text))  # no piece is so long that the bound would cut it
    sure = (at for at, weight in find_problems(pieces.clean) if weight == 1.0)
    first = last = next(sure, -1)
    if first < 0:
        return
    start = pieces.starts[max(0, first - CONTEXT)]
    for at in sure:
        if at - last > SILENCE or pieces.starts[at + 1] - start > HARD_MAX:
            break
        last = at
    end = pieces.starts[last + 1]
    yield Chunk(start=start, end=end, kind=EventKind.TOOL_OUTPUT, tool=tool, name="error1")


def find_problems(lines: Sequence[str]) -> Iterator[tuple[int, float]]:
    """Yield the numbers of the clean LINES that say that something is wrong, and how clearly."""
    low = "\n".join(lines).lower()
    words = [word for word in PROBLEM_WORDS if word in low]  # few: no line is asked for the others
    for at, line in enumerate(low.split("\n") if words else ()):
        if any(word in line for word in words) and (weight := problem_weight(line)):
            yield at, weight


def rebuild(chunks: Iterable[Chunk], read: Callable[[int, int], str]) -> str:
    """Return the text that CHUNKS cover, of whose contents READ(start, end) returns each.

    Whether it is the text that was cut is for the caller to compare.  Raise DamagedObject unless
    the chunks join, and unless contents are as long as their chunk and equal where they overlap.
    """
    parts = list[str]()
    last, shown = Chunk(start=-1, end=0), " "  # so that the first one joins at 0
    for chunk in chunks:
        if chunk.name:
            continue
        where = f"the chunk from {chunk.start} to {chunk.end}"
        if not (last.start < chunk.start <= last.end < chunk.end):
            raise DamagedObject(f"{where} does not join the one from {last.start} to {last.end}")
        content = read(chunk.start, chunk.end)
        if len(content) != chunk.end - chunk.start:
            raise DamagedObject(f"{where} has {len(content)} code points")
        known = last.end - chunk.start
        if content[:known] != shown[chunk.start - last.start :]:
            raise DamagedObject(f"{where} does not repeat the end of the one before")
        parts.append(content[known:])
        last, shown = chunk, content
    return "".join(parts)
