"""One answer made of hits by words and hits by meaning (V5).  Pure.

Words that are found are right: a chunk with all terms comes first, then one with most of what was
asked for.  Meaning is the rescue where words find little: there, and only there, places in the two
orders are weighed, never the scores, of which one says nothing about the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Literal, NamedTuple

from retention.index.lexical import Hit

Found = Literal["words", "some words", "meaning"]

STRONG: Final = 0.5  # share of what was asked for, from which words go before meaning
MEANING: Final = 0.5  # what a place in the order by meaning counts, beside one by words
FLAT: Final = 10  # places at the top that are nearly the same


class Candidate(NamedTuple):
    """A chunk that may answer: `found` says by what, `span` is where in it, if that is known."""

    chunk: int
    score: float
    found: Found
    span: tuple[int, int] | None = None


def combine(
    all_terms: Sequence[Hit], some_terms: Sequence[Hit], meaning: Sequence[Candidate]
) -> list[Candidate]:
    """Return the candidates, the best first, each chunk once."""
    strong = [Candidate(*hit, "words") for hit in all_terms]
    some = [Candidate(*hit, "some words") for hit in some_terms]
    strong += [candidate for candidate in some if candidate.score >= STRONG]
    weak = [candidate for candidate in some if candidate.score < STRONG]
    return list(_once(chain(strong, _by_places(weak, meaning))))


def _by_places(weak: Sequence[Candidate], meaning: Sequence[Candidate]) -> list[Candidate]:
    """Return both in the order of what their places in the two count for together."""
    counted = defaultdict[int, float](float)
    for share, candidates in ((1.0, weak), (MEANING, meaning)):
        for place, candidate in enumerate(candidates):
            counted[candidate.chunk] += share / (FLAT + place)
    return sorted(_once(chain(weak, meaning)), key=lambda candidate: -counted[candidate.chunk])


def _once(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    seen = set[int]()
    for candidate in candidates:
        if candidate.chunk not in seen:
            seen.add(candidate.chunk)
            yield candidate
