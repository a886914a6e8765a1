"""Search for words: which chunks hold all terms of a question, which some, and how good they are.

Functions over one connection; a *scope* limits them to what a caller asked for.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from math import log
from typing import Final, NamedTuple

Value = str | float

PARTS_WEIGHT: Final = 0.5  # of a match in the parts of words, beside one in the text
NEAR: Final = 40  # words, at most, between the terms of a passage
COMMON: Final = 2_000  # chunks: a term in more of them finds none by itself


class Scope(NamedTuple):
    """An SQL condition on a chunk `c` and its source `s`, and its values."""

    condition: str = "1"
    values: tuple[Value, ...] = ()


class Hit(NamedTuple):
    """A chunk, and how good it is: the larger the better, comparable within one answer."""

    chunk: int
    score: float


_RANKED: Final = """
SELECT words.rowid, -bm25(words, 1.0, ?) AS score
FROM words JOIN chunks c ON c.id = words.rowid JOIN sources s ON s.id = c.source
WHERE words MATCH ? AND {condition} ORDER BY score DESC, words.rowid DESC LIMIT ?
"""


def ranked(connection: sqlite3.Connection, expression: str, scope: Scope, limit: int) -> list[Hit]:
    """Return the best chunks that match EXPRESSION."""
    sql = _RANKED.format(condition=scope.condition)
    values = (PARTS_WEIGHT, expression, *scope.values, limit)
    return [Hit(*row) for row in connection.execute(sql, values)]


def holding_all(
    connection: sqlite3.Connection, terms: Sequence[str], scope: Scope, limit: int
) -> list[Hit]:
    """Return the best chunks that hold all TERMS, those with all in one passage first.

    A long chunk holds many words that have nothing to do with each other.
    """
    near = f"NEAR({' '.join(terms)}, {NEAR})"
    together = ranked(connection, near, scope, limit) if _can_be_near(terms) else []
    if len(together) == limit:
        return together
    seen = {hit.chunk for hit in together}
    apart = ranked(connection, " AND ".join(terms), scope, limit)
    return [*together, *(hit for hit in apart if hit.chunk not in seen)][:limit]


def _can_be_near(terms: Sequence[str]) -> bool:
    return len(terms) > 1 and all(term.startswith('"') for term in terms)


def holding_some(
    connection: sqlite3.Connection, terms: Sequence[str], scope: Scope, limit: int
) -> list[Hit]:
    """Return the chunks that hold the most of TERMS, rare ones counting for more.

    The score is the share of what was asked for: 1.0 would be all of it.
    """
    total = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
    shares = defaultdict[int, float](float)
    asked, rare = 0.0, list[str]()
    for term in terms:
        rows = connection.execute(
            "SELECT rowid FROM words WHERE words MATCH ? LIMIT ?", (term, COMMON + 1)
        ).fetchall()
        if len(rows) > COMMON:
            continue
        weight = log(1 + (total + 0.5) / (len(rows) + 0.5))
        asked += weight
        if rows:
            rare.append(term)
        for (chunk,) in rows:
            shares[chunk] += weight
    found = ranked(connection, " OR ".join(rare or terms), scope, 4 * limit)
    best = max((hit.score for hit in found), default=1.0)
    scored = [
        Hit(chunk, (shares[chunk] / asked if asked else 0.0) + 0.05 * score / best)
        for chunk, score in found
    ]
    return sorted(scored, key=lambda hit: -hit.score)[:limit]
