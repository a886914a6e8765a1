"""What a search may find, and what it says of a chunk that it found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from retention.index.combining import Candidate, Found
from retention.index.lexical import Scope, Value
from retention.index.rows import kind_mark, tool_mark


class Filters(NamedTuple):
    """What may be found.  `conversation` comes first, or with `only` alone.

    `kind` is that of an event in a chunk or that of its source, `tool` what was called or answered
    in it; `since` and `until` limit when what is in it was, or else its source.  Empty values limit
    nothing.
    """

    conversation: str = ""
    only: bool = False
    tool: str = ""
    kind: str = ""
    since: float = 0.0  # seconds since the epoch
    until: float = 0.0
    owner: str = ""

    def scope(self) -> Scope:
        """Return them as a condition."""
        conditions: tuple[tuple[Any, str, Value], ...] = (
            (self.only, "s.conversation = ?", self.conversation),
            (self.tool, "instr(c.marks, ?)", tool_mark(self.tool)),
            (self.kind, "instr(c.marks, ?)", kind_mark(self.kind)),
            (self.since, "coalesce(nullif(c.last, 0), s.time) >= ?", self.since),
            (self.until, "coalesce(nullif(c.first, 0), s.time) <= ?", self.until),
            (self.owner, "s.owner = ?", self.owner),
        )
        used = [(sql, value) for wanted, sql, value in conditions if wanted]
        if not used:
            return Scope()
        return Scope(" AND ".join(sql for sql, _ in used), tuple(value for _, value in used))


ALL: Final = Filters()


class Match(NamedTuple):
    """A chunk that was found.  Scores compare within one answer and one way of being `found`.

    `span` is the stretch of the chunk, in code points, that a vector of its own pointed to.
    """

    owner: str
    id: str
    number: int
    score: float
    found: Found
    span: tuple[int, int] | None = None


class _Row(NamedTuple):
    """What is read of a chunk and its source."""

    source: int
    owner: str
    id: str
    number: int
    named: int
    start: int
    end: int
    ours: int


Pair = tuple[_Row, Candidate]


def matches_of(
    db: sqlite3.Connection, candidates: Iterable[Candidate], conversation: str, limit: int
) -> list[Match]:
    """Return LIMIT of CANDIDATES as matches, those of CONVERSATION first among their equals.

    A named chunk and the one that it is cut out of are one hit: the better one stands.
    """
    kept = list[Pair]()
    for candidate in candidates:
        for fields in db.execute(_CHUNK, (conversation, candidate.chunk)):
            row = _Row(*fields)
            if not any(_same_place(row, other) for other, _ in kept):
                kept.append((row, candidate))
    # Whatever has all the words may come up; of the rest, only what would be shown anyway.
    exact = [pair for pair in kept if pair[1].found == "words"]
    others = [pair for pair in kept if pair[1].found != "words"][: max(0, limit - len(exact))]
    return [
        Match(row.owner, row.id, row.number, found.score, found.found, found.span)
        for row, found in [*_ours_first(exact), *_ours_first(others)][:limit]
    ]


def _ours_first(pairs: Iterable[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: not pair[0].ours)


def _same_place(one: _Row, other: _Row) -> bool:
    """Tell whether one of the two is a named stretch of the other."""
    if one.source != other.source or not (one.named or other.named):
        return False
    inside = other.start <= one.start and one.end <= other.end
    return inside or (one.start <= other.start and other.end <= one.end)


_CHUNK: Final = """
SELECT c.source, s.owner, s.name, c.number, c.name <> '', c.start, c.end,
    s.conversation <> '' AND s.conversation = ?
FROM chunks c JOIN sources s ON s.id = c.source WHERE c.id = ?
"""
