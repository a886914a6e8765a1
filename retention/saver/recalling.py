"""Parts of a stored output, exactly as they are, within a bound and with a place to go on (O7).

Nothing here is excerpted.  A part that is longer than the bound comes in pages: `resume` says where
the next one begins, and the pages join to the part.  Offsets and bounds are code points.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from retention.errors import InvalidParams
from retention.model import Struct
from retention.saver.excerpting import legible
from retention.saver.lines import Pieces, read_lines, read_pieces
from retention.saver.segments import Segment

CONTEXT: Final = 2  # lines before and after one that matches
OPEN: Final = 3  # `*`, `+` and `{n,}` in a pattern, at most


class Recalled(Struct, frozen=True):
    """One page: what the model gets, and where the next begins, None if nothing is left.

    `spans` are the stretches of the output's text that the page shows, in order.
    """

    answer: str
    spans: tuple[tuple[int, int], ...]
    resume: int | None = None


def recall_whole(id: str, text: str, *, limit: int, offset: int = 0) -> Recalled:
    """Return the page of the output ID, which is TEXT, that begins at OFFSET."""
    return _page(id, text, 0, len(text), limit=limit, offset=offset)


def recall_segment(
    id: str, text: str, segments: Sequence[Segment], name: str, *, limit: int, offset: int = 0
) -> Recalled:
    """Return the page that begins at OFFSET of the segment with the id NAME, of SEGMENTS of TEXT.

    Raise InvalidParams if there is none: a running number is no id (O1).
    """
    found = next((segment for segment in segments if segment.id == name), None)
    if found is None:
        raise InvalidParams(f"the output {id} has no segment {name}")
    return _page(id, text, found.start, found.end, limit=limit, offset=offset)


def recall_lines(
    id: str, text: str, first: int, last: int, *, limit: int, offset: int = 0
) -> Recalled:
    """Return the page that begins at OFFSET of the lines FIRST to LAST, from 1.

    Raise InvalidParams unless FIRST is one of TEXT's lines and LAST does not come before it.
    """
    starts = read_lines(text).starts
    if not 1 <= first <= last or first >= len(starts):
        raise InvalidParams(f"the output {id} has lines 1 to {len(starts) - 1}: {first}-{last}")
    end = starts[min(last, len(starts) - 1)]
    return _page(id, text, starts[first - 1], end, limit=limit, offset=offset)


def recall_pattern(
    id: str, text: str, pattern: str, *, limit: int, context: int = CONTEXT, offset: int = 0
) -> Recalled:
    """Return the lines of TEXT from OFFSET on that PATTERN matches, each with CONTEXT lines around.

    PATTERN is a regular expression, without regard to case unless it has a capital letter; raise
    InvalidParams if it is none, or one that may take for ever.  Of a long line the pieces stand for
    lines.
    """
    compiled = _compile(pattern)
    pieces = read_pieces(read_lines(text))
    begin = max(0, bisect_right(pieces.starts, max(0, offset)) - 1)
    hits = list(_hits(pieces, compiled, begin))
    if not hits:
        return Recalled(f"[{id}: no line matches {pattern}, from offset {offset}]\n", ())
    room = limit - len(_matches(id, len(hits), len(text)))
    body, spans = "", list[tuple[int, int]]()
    resume = None
    for low, high in _regions(hits, max(0, context), begin, len(pieces.clean)):
        start, end = max(pieces.starts[low], offset), pieces.starts[high]
        title = f"[lines {pieces.owners[low] + 1}-{pieces.owners[high - 1] + 1}]\n"
        left = room - len(body) - len(title) - 1
        if end - start > left:
            if spans:
                resume = start
                break
            end = _cut(pieces, start, max(1, left))
            resume = end if bisect_right(pieces.starts, end) - 1 <= hits[-1] else None
        shown = legible(text[start:end])
        body += title + shown + ("" if shown.endswith("\n") else "\n")
        spans.append((start, end))
        if resume is not None:
            break
    return Recalled(_matches(id, len(hits), resume) + body, tuple(spans), resume)


def _matches(id: str, hits: int, resume: int | None) -> str:
    more = "" if resume is None else f"; go on with offset {resume}"
    return f"[{id}: {hits:,} matches from here on{more}]\n"


def _hits(pieces: Pieces, pattern: re.Pattern[str], begin: int) -> Iterator[int]:
    """Yield the pieces from BEGIN on in which a match of PATTERN begins."""
    owners, shown = pieces.owners, pieces.clean
    for at in range(begin, len(shown)):
        line = shown[at]
        goes_on = at + 1 < len(shown) and owners[at + 1] == owners[at]
        found = pattern.search(line + shown[at + 1] if goes_on else line)
        if found is not None and (found.start() < len(line) or not goes_on):
            yield at


def _regions(
    hits: Sequence[int], context: int, begin: int, count: int
) -> Iterator[tuple[int, int]]:
    """Yield the pieces around HITS, first and after the last, of COUNT ones; none overlap."""
    low = high = -1
    for at in hits:
        start, end = max(begin, at - context), min(count, at + context + 1)
        if start > high >= 0:
            yield low, high
            low = -1
        low = start if low < 0 else low
        high = end
    yield low, high


def _cut(pieces: Pieces, start: int, room: int) -> int:
    """Return where the last piece ends that fits ROOM from START on; cut one if none does."""
    end = pieces.starts[bisect_right(pieces.starts, start + room) - 1]
    return end if end > start else start + room


def _page(id: str, text: str, start: int, end: int, *, limit: int, offset: int) -> Recalled:
    """Return the page that begins at OFFSET of TEXT from START to END, within LIMIT."""
    begin = min(max(start, offset), end)
    room = max(1, limit - len(_place(id, len(text), len(text), len(text), len(text))))
    after = min(begin + room, end)
    if after < end:
        after = text.rfind("\n", begin + room // 2, after) + 1 or after
    resume = after if after < end else None
    answer = _place(id, begin, after, len(text), resume) + legible(text[begin:after])
    return Recalled(answer, ((begin, after),), resume)


def _place(id: str, begin: int, after: int, total: int, resume: int | None) -> str:
    more = "" if resume is None else f"; go on with offset {resume}"
    return f"[{id}: characters {begin}-{after} of {total}{more}]\n"


# Patterns

_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]")
_OPEN = re.compile(r"[*+]|\{\d*,\}")


def _compile(pattern: str) -> re.Pattern[str]:
    """Return PATTERN, ready to match a line of any length in bearable time."""
    bare = _CLASS.sub("x", pattern)
    if _nests(bare) or len(_OPEN.findall(bare)) > OPEN or re.search(r"\\[1-9]", pattern):
        raise InvalidParams(f"the pattern repeats too much, match less at a time: {pattern}")
    try:
        return re.compile(pattern, 0 if any(map(str.isupper, bare)) else re.IGNORECASE)
    except re.error as error:
        raise InvalidParams(f"{pattern} is no regular expression: {error}") from error


def _nests(bare: str) -> bool:
    """Tell whether BARE, a pattern without classes, repeats a group that has a choice in it."""
    choices = [False]
    for at, mark in enumerate(bare):
        if mark == "(":
            choices.append(False)
        elif mark == ")" and len(choices) > 1:
            inner = choices.pop()
            if inner and bare[at + 1 : at + 2] in {"*", "+", "{"}:
                return True
            choices[-1] |= inner
        elif mark in "*+{|" or (mark == "?" and bare[at - 1 : at] != "("):
            choices[-1] = True
    return False
