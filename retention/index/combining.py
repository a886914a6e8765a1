"""One answer made of hits by words and hits by meaning (V5).  Pure.

Words that are found are right: a chunk with all terms comes first, then one with most of what was
asked for.  Meaning is the rescue where words find little.  The two are never added up: one score
says nothing about the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Final, Literal, NamedTuple

from retention.index.lexical import Hit

Found = Literal["words", "some words", "meaning"]

STRONG: Final = 0.6  # share of what was asked for, from which words go before meaning


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
    return list(_once(chain(strong, _by_turns(meaning, weak))))


def _by_turns(*lists: Sequence[Candidate]) -> Iterator[Candidate]:
    for together in zip_longest(*lists):
        yield from filter(None, together)


def _once(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    seen = set[int]()
    for candidate in candidates:
        if candidate.chunk not in seen:
            seen.add(candidate.chunk)
            yield candidate
