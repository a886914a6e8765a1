"""The search index: derived from the store, and rebuilt from it at any time (V5, V9).

It holds words and vectors, never a text.  Whoever fills it keeps to one rule: while
`needs_rebuild`, `clear` it and add everything; else add what `stamps` does not have.

An `Index` may be shared by threads and its directory by processes.  The modules: `database` opens
and replaces the file, `rows` has its tables; `words` and `lexical` search words, `passages`,
`embedding` and `vectors` meaning; `combining` and `matches` make one answer of both.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from retention.digest import Digest
from retention.evidence.views import VIEW
from retention.index import rows
from retention.index.combining import Candidate, combine
from retention.index.database import Database
from retention.index.embedding import Embedder
from retention.index.lexical import Scope, holding_all, holding_some
from retention.index.matches import ALL, Filters, Match, matches_of
from retention.index.passages import Span, embedded
from retention.index.rows import Counts, Document, Entry, Vector, Waiting
from retention.index.words import terms_of

if TYPE_CHECKING:
    from retention.index.embedding import Vectors
    from retention.index.vectors import Matrix

__all__ = ["Counts", "Document", "Entry", "Filters", "Index", "Match", "Mode", "Waiting"]

Mode = Literal["combined", "lexical", "dense"]

FEW: Final = 5  # chunks with all words: with more nothing else is looked for
SPARE: Final = 3  # times as many candidates as hits are asked for: some turn out to be one


class Index:
    """The index in one directory, opened by this process."""

    def __init__(self, database: Database, embedder: Embedder | None) -> None:
        self._database = database
        self._embedder = embedder
        self._model = embedder.name if embedder else ""
        self._embedding = threading.Lock()  # a vector that is about to be used is not unused
        self._matrix: Matrix | None = None
        self._matrix_lock = threading.Lock()

    @classmethod
    def open(cls, directory: Path, embedder: Embedder | None = None) -> Index:
        """Open the index in DIRECTORY, an empty one where there is none that can be trusted.

        Raise StoreError where the directory cannot be used.
        """
        return cls(Database(directory), embedder)

    def close(self) -> None:
        """Close it; a second time does nothing."""
        self._database.close()

    @property
    def dense(self) -> bool:
        """Whether it can be searched by meaning."""
        return self._embedder is not None

    @property
    def needs_rebuild(self) -> bool:
        """Whether it lacks something, or holds more than it should: `clear` it, add everything."""
        return self._database.read(rows.needs_rebuild, lost=True)

    # Filling

    def stamps(self) -> dict[tuple[str, str], bytes]:
        """Return the stamp of each source that is indexed, by its owner and id."""
        return self._database.read(rows.stamps, lost={})

    def stamp(self, owner: str, id: str) -> bytes | None:
        """Return the stamp of one source, None if it is not indexed."""
        return self._database.read(lambda db: rows.stamp(db, owner, id), lost=None)

    def update(
        self, entry: Entry, added: Sequence[Document], removed: Sequence[Document] = ()
    ) -> None:
        """Make a source what ENTRY says, without REMOVED and with ADDED, its other chunks kept.

        All at once: a search finds the source as it was before or as it is now.  Texts that were
        removed have to be what was added, else the rows are hidden and a rebuild is needed.
        """
        self._database.write(lambda db: rows.update_source(db, entry, added, removed), lost=None)

    def drop(self, owner: str, id: str, removed: Sequence[Document] | None) -> None:
        """Drop a source; REMOVED are all its chunks.

        None where their texts are gone: nothing is found any more, and a rebuild is needed.
        """
        self._database.write(lambda db: rows.drop_source(db, owner, id, removed or ()), lost=None)

    def clear(self) -> None:
        """Make it empty, for a rebuild.  Vectors stay: they are found again by what they are of."""
        self._database.write(rows.clear, lost=None)

    def purge(self) -> bool:
        """Leave nothing in the files of what was removed, vectors included.

        False where another process was reading, so that its copy of a page may be left.
        """
        with self._matrix_lock:
            self._matrix = None
        with self._embedding:
            self._database.write(rows.drop_unused_vectors, lost=None)
        return self._database.scrub()

    def check(self) -> bool:
        """Tell whether the file is sound; one that is not is made anew, and needs a rebuild."""
        return self._database.check()

    def source_count(self) -> int:
        """Return how many sources are in it; `counts` reads much more."""
        return self._database.read(rows.source_count, lost=0)

    def counts(self) -> Counts:
        """Return how much is in it."""
        return self._database.read(lambda db: rows.counts(db, self._model), lost=Counts())

    # Vectors

    def unembedded(self, limit: int) -> list[Waiting]:
        """Return chunks without vectors, the newest first; none where nothing makes vectors."""
        if self._embedder is None:
            return []
        return self._database.read(lambda db: rows.waiting(db, self._model, limit), lost=[])

    def embed_some(self, read: Callable[[str, str, int], str | None], limit: int) -> int:
        """Give chunks their vectors, LIMIT of them at most; return how many have theirs now.

        READ returns the text of a chunk by owner, id and number, None where it is gone.  What is
        stored is complete for each chunk, so that a process that was killed goes on where it was.
        """
        places: dict[int, list[tuple[Span, Digest]]] = {}
        texts: dict[Digest, str] = {}
        for waiting in self.unembedded(limit):
            text = read(waiting.owner, waiting.id, waiting.number)
            parts = [] if text is None else list(embedded(waiting.chunk, text))
            keys = [rows.text_digest(part) for _, part in parts]
            places[waiting.row] = [(span, key) for (span, _), key in zip(parts, keys, strict=True)]
            texts.update(zip(keys, (part for _, part in parts), strict=True))
        if not places:
            return 0
        with self._embedding:
            known = self._database.read(
                lambda db: rows.known_vectors(db, self._model, texts), lost=set[Digest]()
            )
            made = self._make({key: text for key, text in texts.items() if key not in known})
            self._database.write(
                lambda db: rows.store_vectors(db, self._model, VIEW, made, places), lost=None
            )
        return len(places)

    def _make(self, texts: Mapping[Digest, str]) -> list[Vector]:
        """Return the vectors of TEXTS, without those that say nothing."""
        if not texts or self._embedder is None:
            return []
        # Without vectors nobody waits for numpy.
        from retention.index.vectors import pack  # noqa: PLC0415

        made = self._embedder.embed_documents(list(texts.values()))
        telling = [key for key, vector in zip(texts, made, strict=True) if vector.any()]
        packed = pack(made[made.any(axis=1)])
        return [Vector(*pair) for pair in zip(telling, packed, strict=True)]

    # Searching

    def search(
        self, query: str, filters: Filters = ALL, limit: int = 10, mode: Mode = "combined"
    ) -> list[Match]:
        """Return what has to do with QUERY, the best first; any text will do as a query."""
        terms = terms_of(query)
        if not terms:
            return []
        vector = None
        if self._embedder is not None and mode != "lexical":
            vector = self._embedder.embed_query(query)
        scope, many = filters.scope(), SPARE * limit

        def read(db: sqlite3.Connection) -> list[Match]:
            every = holding_all(db, terms, scope, many) if mode != "dense" else []
            if filters.conversation and not filters.only and len(every) == many:
                ours = filters._replace(only=True).scope()
                every = [*holding_all(db, terms, ours, many), *every]
            weak = len(every) < min(FEW, limit)
            some = holding_some(db, terms, scope, many) if weak and mode != "dense" else []
            near = self._nearest(db, vector, scope, many) if weak and vector is not None else []
            return matches_of(db, combine(every, some, near), filters.conversation, limit)

        return self._database.read(read, lost=[])

    def _nearest(
        self, db: sqlite3.Connection, vector: Vectors, scope: Scope, limit: int
    ) -> list[Candidate]:
        among = None
        if scope.values:
            found = db.execute(_AMONG.format(condition=scope.condition), scope.values)
            among = [chunk for (chunk,) in found]
        from retention.index.vectors import Matrix  # noqa: PLC0415 - as in _make

        with self._matrix_lock:
            matrix = self._matrix = self._matrix or Matrix(self._model)
            matrix.read_on(db, self._database.opening)
            near = matrix.nearest(vector, limit, among)
        return [Candidate(found.chunk, found.score, "meaning", found.span) for found in near]


_AMONG: Final = "SELECT c.id FROM chunks c JOIN sources s ON s.id = c.source WHERE {condition}"
