"""The stretch of a text around what matched (evidence.md V5).  Pure; the text stays exact."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ROOM = 360  # code points of an excerpt: four or five lines
LEAD = 90  # of them in front of the match, when there is more text
MATCHES = 200  # of one word that are looked at in one chunk

MARGIN = 1e-9  # of a sum that was added to and taken from

_WORD = re.compile(r"\w+")


class Place(NamedTuple):
    """A stretch of a text from `start` to `end`, the match in it at `at`, and the words there."""

    at: int
    start: int
    end: int
    words: tuple[str, ...]


def find_place(
    text: str, words: Iterable[str], span: tuple[int, int] | None = None, room: int = ROOM
) -> Place:
    """Return the stretch of at most ROOM code points of TEXT with the most of WORDS.

    Words that are rare in TEXT count for more.  SPAN is where a vector pointed to: the place is
    looked for in it.  Without a match the stretch begins there.
    """
    low, high = span or (0, len(text))
    wanted = sorted(
        {part.lower() for word in words for part in _WORD.findall(word)}, key=len, reverse=True
    )
    found = _matches(text, wanted, low, high)
    if not found:
        return _cut(text, low, room, ())
    counts = Counter(word for _, word in found)
    at = _densest(found, counts, room - LEAD)
    inside = {word for start, word in found if at <= start < at + room - LEAD}
    return _cut(text, at, room, tuple(word for word in wanted if word in inside))


def _matches(text: str, wanted: Sequence[str], low: int, high: int) -> list[tuple[int, str]]:
    """Return where the WANTED words begin, at the beginning of a word or behind a low line.

    Of each the first ones: a word that is everywhere tells little.
    """
    folded = text.lower()
    if len(folded) != len(text):  # of the few letters whose other case is two
        folded = "".join(other if len(other := char.lower()) == 1 else char for char in text)
    found: list[tuple[int, str]] = []
    for word in wanted:
        at, left = folded.find(word, low, high), MATCHES
        while at >= 0 and left:
            if at == 0 or folded[at - 1] == "_" or not folded[at - 1].isalnum():
                found.append((at, word))
                left -= 1
            at = folded.find(word, at + len(word), high)
    return sorted(found)


def _densest(found: Sequence[tuple[int, str]], counts: Counter[str], width: int) -> int:
    """Return where the best window of WIDTH code points begins: that of its first match.

    Of windows that are as good and overlap the last one is the tightest.
    """
    best, at = 0.0, found[0][0]
    score, stop = 0.0, 0
    inside = Counter[str]()
    for start, word in found:
        while stop < len(found) and found[stop][0] < start + width:
            entering = found[stop][1]
            inside[entering] += 1
            score += (1.0 + 1.0 / counts[entering]) * (inside[entering] == 1)
            stop += 1
        if score > best + MARGIN or (score > best - MARGIN and start < at + width):
            best, at = score, start
        inside[word] -= 1
        score -= (1.0 + 1.0 / counts[word]) * (inside[word] == 0)
    return at


def _cut(text: str, at: int, room: int, words: tuple[str, ...]) -> Place:
    """Return the stretch around AT, cut at lines' ends where there are some near."""
    start = max(0, at - LEAD)
    if start:
        start = text.find("\n", start, at) + 1 or start
    end = min(len(text), start + room)
    if end < len(text):
        end = text.rfind("\n", max(at, start + room // 2), end) + 1 or end
    return Place(at, start, end, words)
