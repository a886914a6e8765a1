r"""Segments of an output: at most sixteen stretches that join to it (tool-output.md O5).

They begin where the output's own structure does: at the boundaries of its format if there are some,
else at diffs of files, headers of tests, tracebacks, pauses of a log and blank lines; where nothing
of the kind stands, at equal distances.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from retention.digest import digest, to_hex
from retention.model import Struct
from retention.saver.lines import Pieces

MOST: Final = 16
SHORT: Final = 2_000  # code points of an output for each segment, until there are MOST
LABEL: Final = 80  # characters of a label
ID: Final = 8  # hex digits of a segment's id, after its letter
BALANCE: Final = (
    4  # a stretch this many times its share is cut further while there are segments left
)
PAUSE: Final = 60  # seconds between two lines of a log that part it


class Segment(Struct, frozen=True):
    """One segment: code points START to END of the text, lines FIRST to LAST of it, from 1.

    `id` names its bytes and nothing else, so that it stands for one text for ever; `number` is for
    display.  `size` is in bytes.  `label` is its first line that is not blank, clipped.
    """

    id: str
    number: int
    start: int
    end: int
    first: int
    last: int
    size: int
    label: str


def bytes_of(text: str) -> bytes:
    """Return the bytes that TEXT was decoded from."""
    return text.encode("utf-8", "surrogateescape")


def split(pieces: Pieces, boundaries: Sequence[int] = ()) -> tuple[Segment, ...]:
    """Return the segments of PIECES; BOUNDARIES are numbers of lines, from 0, of a format."""
    count = len(pieces.clean)
    if not count:
        return ()
    cuts = {bisect_left(pieces.owners, line) for line in boundaries}
    cuts = (cuts or _natural(pieces.clean)) - {0, count}
    most = min(MOST, -(-len(pieces.text) // SHORT))
    edges = _merged(pieces.starts, [0, *sorted(cuts), count], most)
    edges = _balanced(pieces.starts, edges, most)
    return tuple(
        _segment(pieces, number, first, after)
        for number, (first, after) in enumerate(pairwise(edges), 1)
    )


def _segment(pieces: Pieces, number: int, first: int, after: int) -> Segment:
    start, end = pieces.starts[first], pieces.starts[after]
    data = bytes_of(pieces.text[start:end])
    label = next((line.strip() for line in pieces.clean[first:after] if line.strip()), "")
    return Segment(
        id=f"s{to_hex(digest('blob', data))[:ID]}",
        number=number,
        start=start,
        end=end,
        first=pieces.owners[first] + 1,
        last=pieces.owners[after - 1] + 1,
        size=len(data),
        label=label if len(label) <= LABEL else label[: LABEL - 1] + "…",
    )


# Where a part of an output begins

# Groups are kinds of beginnings, the strongest first.
_HEADERS = re.compile(
    r"(diff --git )"
    r"|((?:PASS|FAIL|not ok|# Subtest|=== RUN|--- FAIL|--- PASS)\b|[✓\u00d7✗✕●] |_{3,} .* _{3,}$)"
    r"|(Traceback \(most recent|Exception in thread|panic:)"
)
_FRAME = re.compile(r"\s+at .+:\d+:\d+\)?$")
_STAMP = re.compile(r"\[?(?:\d{4}-\d\d-\d\d[T ])?(?P<h>[0-2]\d):(?P<m>[0-5]\d):(?P<s>[0-6]\d)\b")


TRACE, LOG, BLANK = 3, 4, 5  # the kinds of beginnings that `_HEADERS` has not, and its last
# What lines begin with that are looked at more closely: headers, stamps, frames and blank lines.
_STAMPED = "[0123456789"
_CLOSER = frozenset(f" \t\r\x0b\x0c{_STAMPED}dPFn#=-_TEp✓\u00d7✗✕●") | {""}


def _natural(lines: Sequence[str]) -> set[int]:
    """Return the numbers of LINES that begin a part of an output of no known format.

    Weaker kinds of beginnings count only while the stronger ones make too few segments.
    """
    kinds: list[list[int]] = [[] for _ in range(BLANK + 1)]
    for at, kind in _beginnings(lines):
        kinds[kind].append(at)
    found = set[int]()
    for places in kinds:
        if len(found) < MOST:
            found.update(places)
    return found


def _beginnings(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the number and the kind of each of LINES that begins a part of an output."""
    blank = framed = begun = False
    time = -1
    for at, line in enumerate(lines):
        first = line[:1]
        if first not in _CLOSER:
            if blank:
                yield at, BLANK
            blank, framed, begun, time = False, False, True, -1
            continue
        if not line or line.isspace():
            blank, framed = begun, False
            continue
        if blank:
            yield at, BLANK
        blank, begun = False, True
        before, time = time, -1
        was_framed, framed = framed, False
        if first.isspace():
            framed = _FRAME.match(line) is not None
            if framed and not was_framed:
                yield at, TRACE
        elif first in _STAMPED:
            time = _seconds(line)
            if time >= 0 and (before < 0 or time - before >= PAUSE):
                yield at, LOG
        elif (header := _HEADERS.match(line)) is not None:
            yield at, header.lastindex or 0


def _seconds(line: str) -> int:
    """Return the time of day that LINE begins with, in seconds; -1 if it begins with none."""
    found = _STAMP.match(line)
    return -1 if found is None else int(found["h"]) * 3600 + int(found["m"]) * 60 + int(found["s"])


# How many there are


def _merged(starts: Sequence[int], edges: list[int], most: int) -> list[int]:
    """Return EDGES without those whose neighbours are smallest together, down to MOST parts."""
    surplus = len(edges) - 1 - most
    if surplus <= 0:
        return edges
    before = list(range(-1, len(edges) - 1))
    after = list(range(1, len(edges) + 1))

    def joined(at: int) -> int:
        return starts[edges[after[at]]] - starts[edges[before[at]]]

    heap = [(joined(at), at) for at in range(1, len(edges) - 1)]
    heapq.heapify(heap)
    gone = bytearray(len(edges))
    while surplus:
        size, at = heapq.heappop(heap)
        if gone[at] or size != joined(at):
            continue  # another entry of the edge says its size now
        gone[at] = True
        surplus -= 1
        low, high = before[at], after[at]
        after[low], before[high] = high, low
        for neighbour in (low, high):
            if 0 < neighbour < len(edges) - 1:
                heapq.heappush(heap, (joined(neighbour), neighbour))
    return [edge for at, edge in enumerate(edges) if not gone[at]]


def _balanced(starts: Sequence[int], edges: list[int], most: int) -> list[int]:
    """Return EDGES and more, at equal distances inside stretches far above their share."""
    share = -(-starts[-1] // most)
    left = most - (len(edges) - 1)
    result = set(edges)
    sizes = sorted(((starts[a] - starts[b], b, a) for b, a in pairwise(edges)), reverse=True)
    for size, first, after in sizes:
        parts = min(left + 1, -(-size // share))
        if size <= BALANCE * share or parts < 2:
            break
        inner = set()
        for part in range(1, parts):
            target = starts[first] + size * part // parts
            inner.add(bisect_right(starts, target, first, after) - 1)
        inner -= {first}
        result |= inner
        left -= len(inner)
    return sorted(result)
