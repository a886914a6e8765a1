"""The vectors of all chunks in memory, and the search through them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from retention.index.embedding import Vectors

BLOCK = 8_192  # rows that are compared at once; and of the last block before it is left alone


class Near(NamedTuple):
    """A chunk whose vector is near, how near, and the stretch of it that the vector is of."""

    chunk: int
    score: float
    span: tuple[int, int] | None


class _Block(NamedTuple):
    """Rows of the table: their CHUNKS, SPANS (-1 where it is all of the chunk) and VECTORS."""

    chunks: NDArray[np.int64]
    spans: NDArray[np.int64]
    vectors: NDArray[np.float16]


class Matrix:
    """What the table of embeddings holds for one model, as far as it was read.

    Rows are only ever added to the table under growing ids, so that reading on is enough.  Those of
    chunks that are gone stay in memory, and are left out by whoever looks the chunks up, until they
    are too many.
    """

    def __init__(self, model: str, dims: int) -> None:
        self._model = model
        self._dims = dims
        self._file: object = None
        self.forget()

    def forget(self) -> None:
        """Drop everything."""
        self._last = 0
        self._version = -1
        self._blocks: list[_Block] = []

    def read_on(self, connection: sqlite3.Connection, file: object) -> None:
        """Read what was added since, if anything was written at all; all where FILE is another."""
        if file != self._file:
            self.forget()
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        held = sum(len(block.chunks) for block in self._blocks)
        there = connection.execute("SELECT count(*) FROM embeddings").fetchone()[0]
        if held > BLOCK and there < held // 2:
            self.forget()
        self._file, self._version = file, version
        rows = connection.execute(_ADDED, (self._model, self._last))
        while batch := rows.fetchmany(BLOCK):
            self._add(batch)

    def _add(self, rows: list[tuple[int, int, int | None, int | None, bytes]]) -> None:
        self._last = rows[-1][0]
        spans = [(-1, -1) if start is None else (start, end) for _, _, start, end, _ in rows]
        block = _Block(
            np.array([row[1] for row in rows], np.int64),
            np.array(spans, np.int64),
            np.frombuffer(b"".join(row[4] for row in rows), np.float16).reshape(-1, self._dims),
        )
        if self._blocks and len(self._blocks[-1].chunks) + len(rows) <= BLOCK:
            last = self._blocks.pop()
            block = _Block(
                np.concatenate((last.chunks, block.chunks)),
                np.concatenate((last.spans, block.spans)),
                np.concatenate((last.vectors, block.vectors)),
            )
        self._blocks.append(block)

    def nearest(self, vector: Vectors, limit: int, among: Collection[int] | None) -> list[Near]:
        """Return the chunks nearest to VECTOR, the best place of each, AMONG those if given."""
        if not self._blocks:
            return []
        scores = np.concatenate([b.vectors.astype(np.float32) @ vector for b in self._blocks])
        chunks = np.concatenate([block.chunks for block in self._blocks])
        if among is not None:
            scores[~np.isin(chunks, np.fromiter(among, np.int64, len(among)))] = -1.0
        count = min(len(scores), 16 * limit)  # a chunk has at most so many
        best = np.argpartition(-scores, count - 1)[:count]
        found: dict[int, Near] = {}
        for row in best[np.argsort(-scores[best], kind="stable")]:
            chunk, score = int(chunks[row]), float(scores[row])
            if score <= 0 or len(found) == limit:
                break
            if chunk not in found:
                found[chunk] = Near(chunk, score, self._span(int(row)))
        return list(found.values())

    def _span(self, row: int) -> tuple[int, int] | None:
        for block in self._blocks:
            if row < len(block.chunks):
                start, end = map(int, block.spans[row])
                return None if start < 0 else (start, end)
            row -= len(block.chunks)
        raise IndexError(row)


_ADDED = """
SELECT e.id, e.chunk, e.start, e.end, v.vector FROM embeddings e JOIN vectors v ON v.id = e.vector
WHERE v.model = ? AND e.id > ? ORDER BY e.id
"""
