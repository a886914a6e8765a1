"""The vectors of all chunks in memory, and the search through them.

A number of a vector is kept as one byte.  That changes no answer of the retrieval check, and
100,000 vectors take 25 MB and are compared in 5 ms.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from retention.index.embedding import Vectors

BLOCK: Final = 4_096  # vectors that are read, kept and compared at a time: a cache holds them
DEEP: Final = 32  # vectors looked at for each chunk that is wanted: a chunk has some twenty
FLOOR: Final = 0.2  # what is less near has nothing to do with the question


class Near(NamedTuple):
    """A chunk whose vector is near, how near, and the stretch of it that the vector is of."""

    chunk: int
    score: float
    span: tuple[int, int] | None


def pack(vectors: Vectors) -> list[bytes]:
    """Return each of VECTORS, none of them zero, as a byte a number: its direction counts."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return [row.tobytes() for row in np.rint(vectors * (127 / largest)).astype(np.int8)]


class _Block(NamedTuple):
    """Vectors with their lengths; the chunk, start and end of each, -1 for all of a chunk."""

    places: NDArray[np.int64]
    vectors: NDArray[np.int8]
    lengths: Vectors


class Matrix:
    """All vectors of one model in the table of embeddings, as far as it was read.

    Rows are only ever added to the table under growing ids, so that reading on is enough.  Those of
    chunks that are gone stay here, and their chunks are not there to be shown, until they are too
    many.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._opening = 0
        self._forget()

    def _forget(self) -> None:
        self._version = self._last = -1
        self._blocks: list[_Block] = []

    def read_on(self, connection: sqlite3.Connection, opening: int) -> None:
        """Read what was added since, if anything was written at all; all at another OPENING."""
        if opening != self._opening:
            self._forget()
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        there = connection.execute("SELECT count(*) FROM embeddings").fetchone()[0]
        if sum(len(block.places) for block in self._blocks) > 2 * there:
            self._forget()
        self._opening, self._version = opening, version
        added = connection.execute(_ADDED, (self._model, self._last))
        while rows := added.fetchmany(BLOCK):
            self._last = rows[-1][0]
            places = [(row[1], *(row[2:4] if row[2] is not None else (-1, -1))) for row in rows]
            joined = np.frombuffer(b"".join(row[4] for row in rows), np.int8)
            vectors = joined.reshape(len(rows), -1)
            lengths = np.linalg.norm(vectors.astype(np.float32), axis=1)
            self._add(_Block(np.array(places, np.int64), vectors, lengths))

    def _add(self, block: _Block) -> None:
        """Add BLOCK, to the last one where both fit into one."""
        last = self._blocks[-1] if self._blocks else None
        if last is not None and len(last.places) + len(block.places) <= BLOCK:
            self._blocks[-1] = _Block(
                np.concatenate((last.places, block.places)),
                np.concatenate((last.vectors, block.vectors)),
                np.concatenate((last.lengths, block.lengths)),
            )
        else:
            self._blocks.append(block)

    def nearest(self, vector: Vectors, limit: int, among: Collection[int] | None) -> list[Near]:
        """Return the chunks nearest to VECTOR, the best place of each, AMONG those if given."""
        if not self._blocks:
            return []
        scores = np.concatenate(
            [block.vectors.astype(np.float32) @ vector / block.lengths for block in self._blocks]
        )
        places = np.concatenate([block.places for block in self._blocks])
        if among is not None:
            wanted = np.isin(places[:, 0], np.fromiter(among, np.int64, len(among)))
            scores, places = scores[wanted], places[wanted]
        count = min(len(scores), DEEP * limit)
        best = np.argpartition(-scores, count - 1)[:count] if count else np.empty(0, np.int64)
        found: dict[int, Near] = {}
        for at in best[np.argsort(-scores[best], kind="stable")].tolist():
            if scores[at] < FLOOR or len(found) == limit:
                break
            chunk, start, end = places[at].tolist()
            span = None if start < 0 else (start, end)
            found.setdefault(chunk, Near(chunk, float(scores[at]), span))
        return list(found.values())


_ADDED: Final = """
SELECT e.id, e.chunk, e.start, e.end, v.vector FROM embeddings e JOIN vectors v ON v.id = e.vector
WHERE v.model = ? AND e.id > ? ORDER BY e.id
"""
