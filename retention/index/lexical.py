"""Search for words: which chunks hold all terms of a question, which some, and how good they are.

Functions over one connection; a *scope* limits them to what a caller asked for.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from heapq import nlargest
from itertools import combinations
from math import expm1, log, log1p, sqrt
from typing import Final, NamedTuple

from retention.index.words import loosened

Value = str | float

PARTS_WEIGHT: Final = 0.5  # of a match in the parts of words, beside one in the text
NEAR: Final = 40  # words, at most, between the terms of a passage
COMMON: Final = 2_000  # chunks: a term in more of them tells nothing
LIKELY: Final = 4  # times as many chunks as are wanted, of which the lengths are looked up
OFTEN: Final = 300  # chunks: a term in more of them is not looked for in other forms
PAIRED: Final = 4  # terms, the rarest, that are looked for in one passage, two by two
PAIR_WEIGHT: Final = 0.5
SHORT: Final = 200  # characters: in a chunk that is shorter a term tells no more


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
    return len(terms) > 1 and all(map(_is_phrase, terms))


def _is_phrase(term: str) -> bool:
    return term.startswith('"')


def holding_some(
    connection: sqlite3.Connection, terms: Sequence[str], scope: Scope, limit: int
) -> list[Hit]:
    """Return the chunks that hold the most of TERMS, in whatever form of the words.

    A term counts for how little it is to be expected in a chunk: rare terms tell much, and in a
    long chunk any term tells less.  Passages with two of the rarest terms, or with all that are
    known at all, are terms of half the weight.  The score is the share of what the terms would
    count for together in a chunk of average length.
    """
    total, average = connection.execute("SELECT count(*), avg(end - start) FROM chunks").fetchone()
    forms = [_form(connection, term, scope) for term in terms]
    held = {form: rows for form, rows in forms if rows is not None}
    rare = sorted((form for form, rows in held.items() if rows), key=lambda form: len(held[form]))
    if not rare:
        common = ranked(connection, " OR ".join(terms), scope, limit)
        return [Hit(hit.chunk, 0.0) for hit in common]
    asked = sum(_surprise(_rate(len(rows), total)) for rows in held.values())
    told = [(held[form], _Term(_rate(len(held[form]), total), 1.0)) for form in rare]
    known = [form for form, rows in forms if rows != set() and _is_phrase(form)]
    pairs = combinations(list(filter(_is_phrase, rare))[:PAIRED], 2)
    for near in (*pairs, *([known] if len(known) > 1 else ())):
        rows = _rows(connection, f"NEAR({' '.join(near)}, {NEAR})", scope) or set()
        told.append((rows, _Term(_rate(len(rows), total), PAIR_WEIGHT)))
    worth = defaultdict[int, float](float)  # a term may be in thousands of chunks
    for rows, each in told:
        value = _told([each])
        for chunk in rows:
            worth[chunk] += value
    likely = nlargest(LIKELY * limit, zip(worth.values(), worth.keys(), strict=True))
    hits = [
        Hit(chunk, _told(in_it, sqrt(max(length, SHORT) / max(average, SHORT))) / asked)
        for _, chunk in likely
        if (in_it := [each for rows, each in told if chunk in rows])
        for (length,) in connection.execute(_LENGTH, (chunk,))
    ]
    return sorted(hits, key=lambda hit: -hit.score)[:limit]


class _Term(NamedTuple):
    """How often a term is to be expected in a chunk, and what it counts for beside others."""

    rate: float
    weight: float


def _told(terms: Sequence[_Term], room: float = 1.0) -> float:
    """Return how much it tells that all TERMS are in a chunk, with ROOM for more than usual."""
    return sum(term.weight * _surprise(term.rate * room) for term in terms)


def _form(connection: sqlite3.Connection, term: str, scope: Scope) -> tuple[str, set[int] | None]:
    """Return TERM, loosened unless it is met often as it is, and the chunks that hold it so."""
    rows = _rows(connection, term, scope)
    form = loosened(term)
    if form == term or rows is None or len(rows) > OFTEN:
        return term, rows
    return form, _rows(connection, form, scope)


def _rows(connection: sqlite3.Connection, expression: str, scope: Scope) -> set[int] | None:
    """Return the chunks that match EXPRESSION, None if there are too many to tell anything."""
    sql = _MATCHING.format(condition=scope.condition) if scope.values else _ANYWHERE
    found = {row for (row,) in connection.execute(sql, (expression, *scope.values, COMMON + 1))}
    return found if len(found) <= COMMON else None


_LENGTH: Final = "SELECT end - start FROM chunks WHERE id = ?"  # none where the chunk is gone
_ANYWHERE: Final = "SELECT rowid FROM words WHERE words MATCH ? LIMIT ?"
_MATCHING: Final = """
SELECT words.rowid FROM words JOIN chunks c ON c.id = words.rowid JOIN sources s ON s.id = c.source
WHERE words MATCH ? AND {condition} LIMIT ?
"""


def _rate(count: int, total: int) -> float:
    """Return how often a term that COUNT of TOTAL chunks hold is to be expected in one chunk."""
    return -log1p(-(min(count, total) + 0.5) / (total + 1))  # some may be of chunks that are gone


def _surprise(rate: float) -> float:
    """Return how much it tells that a term of this RATE is there."""
    return -log(-expm1(-rate))
