"""The search index: derived from the store, and rebuilt from it at any time (V5, V9).

An `Index` may be shared by threads and its directory by processes.  It holds words and vectors,
never a text.  Whoever fills it keeps to one rule: while `needs_rebuild`, `clear` it and add
everything; else add what `stamps` does not have.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from retention.digest import Digest, digest
from retention.evidence.views import VIEW
from retention.index.combining import Candidate, Found, combine
from retention.index.database import Database
from retention.index.embedding import Embedder
from retention.index.lexical import Scope, Value, holding_all, holding_some
from retention.index.passages import Span, embedded
from retention.index.words import parts_of, storable, terms_of
from retention.model import Chunk, EventKind

if TYPE_CHECKING:
    from retention.index.vectors import Matrix

__all__ = ["Counts", "Document", "Entry", "Filters", "Index", "Match", "Mode", "Waiting"]

Mode = Literal["combined", "lexical", "dense"]

SPARE: Final = 3  # times as many candidates as hits are asked for: some turn out to be one


class Entry(NamedTuple):
    """A source as it is indexed; `conversation` is the one that it goes with, if that is live."""

    owner: str
    id: str
    stamp: bytes
    kind: str
    time: float = 0.0  # seconds since the epoch
    conversation: str = ""


class Document(NamedTuple):
    """A chunk of a source: its number there, and its exact text."""

    number: int
    chunk: Chunk
    text: str


class Filters(NamedTuple):
    """What may be found.  `conversation` comes first, or with `only` alone.

    `kind` is that of a chunk's event or that of its source; empty values limit nothing.
    """

    conversation: str = ""
    only: bool = False
    tool: str = ""
    kind: str = ""
    since: float = 0.0
    until: float = 0.0
    owner: str = ""

    def scope(self) -> Scope:
        """Return them as a condition."""
        conditions: tuple[tuple[Any, str, tuple[Value, ...]], ...] = (
            (self.only, "s.conversation = ?", (self.conversation,)),
            (self.tool, "c.tool = ?", (self.tool,)),
            (self.kind, "? IN (c.kind, s.kind)", (self.kind,)),
            (self.since, "s.time >= ?", (self.since,)),
            (self.until, "s.time <= ?", (self.until,)),
            (self.owner, "s.owner = ?", (self.owner,)),
        )
        used = [(sql, values) for wanted, sql, values in conditions if wanted]
        if not used:
            return Scope()
        values = tuple(value for _, given in used for value in given)
        return Scope(" AND ".join(sql for sql, _ in used), values)


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


class Waiting(NamedTuple):
    """A chunk without vectors: its row in the index, and where its text is to be had."""

    row: int
    owner: str
    id: str
    number: int
    chunk: Chunk


class Counts(NamedTuple):
    """What is in the index; `views` counts the chunks with vectors by the version of their view."""

    sources: int = 0
    chunks: int = 0
    vectors: int = 0
    unembedded: int = 0
    views: Mapping[int, int] = {}


class _Row(NamedTuple):
    """What a search reads of a chunk and its source."""

    chunk: int
    source: int
    owner: str
    id: str
    number: int
    named: int
    start: int
    end: int
    ours: int


class Index:
    """The index in one directory, opened by this process."""

    def __init__(self, database: Database, embedder: Embedder | None) -> None:
        self._database = database
        self._embedder = embedder
        self._matrix: Matrix | None = None
        self._matrix_lock = threading.Lock()
        self._embedding = threading.Lock()  # a vector that is about to be used is not unused

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
        return self._database.read(
            lambda db: bool(db.execute("SELECT needs_rebuild FROM state").fetchone()[0]), lost=True
        )

    # Filling

    def stamps(self) -> dict[tuple[str, str], bytes]:
        """Return the stamp of each source that is indexed, by its owner and id."""

        def read(db: sqlite3.Connection) -> dict[tuple[str, str], bytes]:
            rows = db.execute("SELECT owner, name, stamp FROM sources")
            return {(owner, name): stamp for owner, name, stamp in rows}

        return self._database.read(read, lost={})

    def update(
        self, entry: Entry, added: Sequence[Document], removed: Sequence[Document] = ()
    ) -> None:
        """Make a source what ENTRY says, without REMOVED and with ADDED, its other chunks kept.

        All at once: a search finds the source as it was before or as it is now.  Texts that were
        removed have to be what was added, else the rows are hidden and a rebuild is needed.
        """

        def write(db: sqlite3.Connection) -> None:
            known = _source_of(db, entry.owner, entry.id)
            source = _put_source(db, entry)
            if known is None and len(added) != 1 + max((d.number for d in added), default=-1):
                _ask_for_rebuild(db)  # what it should have kept was never there
            for document in removed:
                _remove(db, source, entry.id, document)
            for document in added:
                _add(db, source, entry.id, document)

        self._database.write(write, lost=None)

    def drop(self, owner: str, id: str, removed: Sequence[Document] | None) -> None:
        """Drop a source; REMOVED are all its chunks.

        None where their texts are gone: nothing is found any more, and a rebuild is needed.
        """

        def write(db: sqlite3.Connection) -> None:
            source = _source_of(db, owner, id)
            if source is None:
                return
            for document in removed or ():
                _remove(db, source, id, document)
            db.execute(_DELETE_EMBEDDINGS, (source,))
            if db.execute("DELETE FROM chunks WHERE source = ?", (source,)).rowcount:
                _ask_for_rebuild(db)
            db.execute("DELETE FROM sources WHERE id = ?", (source,))

        self._database.write(write, lost=None)

    def clear(self) -> None:
        """Make it empty, for a rebuild.  Vectors stay: they are found again by what they are of."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO words (words) VALUES ('delete-all')")
            for sql in _CLEAR:
                db.execute(sql)

        self._database.write(write, lost=None)

    def purge(self) -> bool:
        """Leave nothing in the files of what was removed, vectors included.

        False where another process was reading, so that its copy of a page may be left.
        """
        with self._matrix_lock:
            self._matrix = None
        with self._embedding:
            self._database.write(lambda db: db.execute(_UNUSED_VECTORS), lost=None)
        return self._database.scrub()

    def check(self) -> bool:
        """Tell whether the file is sound; one that is not is made anew, and needs a rebuild."""
        return self._database.check()

    # Vectors

    def unembedded(self, limit: int) -> list[Waiting]:
        """Return chunks without vectors, the newest first."""

        def read(db: sqlite3.Connection) -> list[Waiting]:
            rows = db.execute(_WAITING, (self._model, limit))
            return [
                Waiting(row, owner, id, number, Chunk(
                    start=start, end=end, kind=EventKind(kind), tool=tool, whole=bool(whole),
                    name=name))
                for row, owner, id, number, start, end, kind, tool, whole, name in rows
            ]  # fmt: skip

        return self._database.read(read, lost=[]) if self._embedder else []

    def embed_some(self, read: Callable[[str, str, int], str | None], limit: int) -> int:
        """Give chunks their vectors, LIMIT of them at most; return how many have theirs now.

        READ returns the text of a chunk by owner, id and number, None where it is gone.  What is
        stored is complete for each chunk, so that a process that was killed goes on where it was.
        """
        if self._embedder is None:
            return 0
        places: dict[int, list[tuple[Span, Digest]]] = {}
        texts: dict[Digest, str] = {}
        for waiting in self.unembedded(limit):
            text = read(waiting.owner, waiting.id, waiting.number)
            found = [] if text is None else list(embedded(waiting.chunk, text))
            keyed = [(span, _text_digest(part), part) for span, part in found]
            places[waiting.row] = [(span, key) for span, key, _ in keyed]
            texts.update({key: part for _, key, part in keyed})
        if places:
            with self._embedding:
                for key in self._known_vectors(texts):
                    del texts[key]
                self._store_vectors(places, self._make_vectors(texts))
        return len(places)

    def _known_vectors(self, digests: Iterable[Digest]) -> list[Digest]:
        def read(db: sqlite3.Connection) -> list[Digest]:
            sql = "SELECT 1 FROM vectors WHERE digest = ? AND model = ?"
            return [key for key in digests if db.execute(sql, (key, self._model)).fetchone()]

        return self._database.read(read, lost=[])

    def _make_vectors(self, texts: Mapping[Digest, str]) -> list[tuple[str, Digest, bytes]]:
        """Return rows of the table of vectors for TEXTS, without those that say nothing."""
        if self._embedder is None or not texts:
            return []
        from retention.index.vectors import pack  # noqa: PLC0415 - as in _nearest

        made = self._embedder.embed_documents(list(texts.values()))
        telling = [key for key, vector in zip(texts, made, strict=True) if vector.any()]
        packed = pack(made[made.any(axis=1)])
        return [(self._model, *row) for row in zip(telling, packed, strict=True)]

    def _store_vectors(
        self,
        places: Mapping[int, list[tuple[Span, Digest]]],
        vectors: Sequence[tuple[str, Digest, bytes]],
    ) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.executemany(_PUT_VECTOR, vectors)
            for chunk, found in places.items():
                if not db.execute(_EMBEDDED, (self._model, VIEW, chunk)).rowcount:
                    continue  # it was removed meanwhile
                db.execute("DELETE FROM embeddings WHERE chunk = ?", (chunk,))
                rows = [(chunk, *(span or (None, None)), key, self._model) for span, key in found]
                db.executemany(_PUT_EMBEDDING, rows)

        self._database.write(write, lost=None)

    @property
    def _model(self) -> str:
        return self._embedder.name if self._embedder else ""

    # Searching

    def search(
        self, query: str, filters: Filters = ALL, limit: int = 10, mode: Mode = "combined"
    ) -> list[Match]:
        """Return what has to do with QUERY, the best first; any text will do as a query."""
        terms = terms_of(query)
        vector = None
        if terms and self._embedder is not None and mode != "lexical":
            vector = self._embedder.embed_query(query)

        def read(db: sqlite3.Connection) -> list[Match]:
            scope, many = filters.scope(), SPARE * limit
            every = holding_all(db, terms, scope, many) if terms and mode != "dense" else []
            if filters.conversation and not filters.only and len(every) == many:
                ours = filters._replace(only=True).scope()
                every = [*holding_all(db, terms, ours, many), *every]
            some, near = [], list[Candidate]()
            if len(every) < limit:
                if len(terms) > 1 and mode != "dense":
                    some = holding_some(db, terms, scope, many)
                if vector is not None:
                    near = self._nearest(db, vector, scope, many)
            return _matches(db, combine(every, some, near), filters, limit)

        return self._database.read(read, lost=[])

    def _nearest(
        self, db: sqlite3.Connection, vector: Any, scope: Scope, limit: int
    ) -> list[Candidate]:
        among = None
        if scope.values:
            rows = db.execute(_AMONG.format(condition=scope.condition), scope.values)
            among = [chunk for (chunk,) in rows]
        with self._matrix_lock:
            if self._matrix is None:
                # Without vectors nobody waits for numpy.
                from retention.index.vectors import Matrix  # noqa: PLC0415

                self._matrix = Matrix(self._model)
            self._matrix.read_on(db, self._database.file)
            near = self._matrix.nearest(vector, limit, among)
        return [Candidate(found.chunk, found.score, "meaning", found.span) for found in near]

    def counts(self) -> Counts:
        """Return how much is in it."""

        def read(db: sqlite3.Connection) -> Counts:
            sources, chunks, vectors = (
                db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - ours
                for table in ("sources", "chunks", "vectors")
            )
            views = Counter(dict(db.execute(_VIEWS, (self._model,)).fetchall()))
            waiting = chunks - views.total() if self._embedder else 0
            return Counts(sources, chunks, vectors, waiting, views)

        return self._database.read(read, lost=Counts())


_CLEAR: Final = (
    "DELETE FROM sources",
    "DELETE FROM chunks",
    "DELETE FROM embeddings",
    "UPDATE state SET needs_rebuild = 0",
)
_DELETE_EMBEDDINGS: Final = """
DELETE FROM embeddings WHERE chunk IN (SELECT id FROM chunks WHERE source = ?)
"""
_UNUSED_VECTORS: Final = "DELETE FROM vectors WHERE id NOT IN (SELECT vector FROM embeddings)"
_WAITING: Final = """
SELECT c.id, s.owner, s.name, c.number, c.start, c.end, c.kind, c.tool, c.whole, c.name
FROM chunks c JOIN sources s ON s.id = c.source
WHERE c.model IS NOT ? ORDER BY c.id DESC LIMIT ?
"""
_EMBEDDED: Final = "UPDATE chunks SET model = ?, view = ? WHERE id = ?"
_PUT_VECTOR: Final = "INSERT OR IGNORE INTO vectors (model, digest, vector) VALUES (?, ?, ?)"
_PUT_EMBEDDING: Final = """
INSERT INTO embeddings (chunk, start, end, vector)
SELECT ?, ?, ?, id FROM vectors WHERE digest = ? AND model = ?
"""
_AMONG: Final = "SELECT c.id FROM chunks c JOIN sources s ON s.id = c.source WHERE {condition}"
_VIEWS: Final = "SELECT view, count(*) FROM chunks WHERE model = ? GROUP BY view"
_FOUND: Final = """
SELECT c.id, c.source, s.owner, s.name, c.number, c.name <> '', c.start, c.end,
    s.conversation <> '' AND s.conversation = ?
FROM chunks c JOIN sources s ON s.id = c.source WHERE c.id = ?
"""
_PUT_SOURCE: Final = """
INSERT INTO sources (owner, name, stamp, kind, time, conversation) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, name) DO UPDATE SET stamp = excluded.stamp, kind = excluded.kind,
    time = excluded.time, conversation = excluded.conversation
RETURNING id
"""
_PUT_CHUNK: Final = """
INSERT INTO chunks (source, number, name, kind, tool, start, end, whole, digest)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id
"""
_TAKE_CHUNK: Final = """
DELETE FROM chunks WHERE source = ? AND number = ? RETURNING id, name, digest
"""
_ADD_WORDS: Final = "INSERT INTO words (rowid, body, parts) VALUES (?, ?, ?)"
_DELETE_WORDS: Final = "INSERT INTO words (words, rowid, body, parts) VALUES ('delete', ?, ?, ?)"


def _source_of(db: sqlite3.Connection, owner: str, id: str) -> int | None:
    row = db.execute("SELECT id FROM sources WHERE owner = ? AND name = ?", (owner, id)).fetchone()
    return row[0] if row else None


def _put_source(db: sqlite3.Connection, entry: Entry) -> int:
    """Return the row of the source that ENTRY describes."""
    fields = (entry.owner, entry.id, entry.stamp, entry.kind, entry.time, entry.conversation)
    found: int = db.execute(_PUT_SOURCE, fields).fetchone()[0]
    return found


def _ask_for_rebuild(db: sqlite3.Connection) -> None:
    db.execute("UPDATE state SET needs_rebuild = 1")


def _text_digest(text: str) -> Digest:
    return digest("blob", text.encode("utf-8", "surrogatepass"))


def _add(db: sqlite3.Connection, source: int, id: str, document: Document) -> None:
    """Add DOCUMENT, in the place of what has its number in SOURCE, whose id is ID."""
    _remove(db, source, id, document)
    number, chunk, text = document
    row = db.execute(
        _PUT_CHUNK,
        (source, number, chunk.name, chunk.kind.value, chunk.tool, chunk.start, chunk.end,
         chunk.whole, _text_digest(text)),
    ).fetchone()[0]  # fmt: skip
    db.execute(_ADD_WORDS, (row, *_columns(id, document)))


def _remove(db: sqlite3.Connection, source: int, id: str, document: Document) -> None:
    """Remove what has the number of DOCUMENT; if its text was another, its words stay, of no chunk.

    The words of a row can be taken out only with what they were put in with.
    """
    found = db.execute(_TAKE_CHUNK, (source, document.number)).fetchone()
    if found is None:
        return
    row, *known = found
    db.execute("DELETE FROM embeddings WHERE chunk = ?", (row,))
    if known == [document.chunk.name, _text_digest(document.text)]:
        db.execute(_DELETE_WORDS, (row, *_columns(id, document)))
    else:
        _ask_for_rebuild(db)


def _columns(id: str, document: Document) -> tuple[str, str]:
    """Return what is indexed: the text, and its parts with the names that the chunk is known by."""
    text = storable(document.text)
    return text, storable(f"{id} {document.chunk.name} {parts_of(text)}")


def _matches(
    db: sqlite3.Connection, candidates: Iterable[Candidate], filters: Filters, limit: int
) -> list[Match]:
    """Return CANDIDATES as matches, those of the filters' conversation first among their equals.

    A named chunk and the one that it is cut out of are one hit: the better one stands.
    """
    kept: list[tuple[_Row, Candidate]] = []
    for candidate in candidates:
        row = db.execute(_FOUND, (filters.conversation, candidate.chunk)).fetchone()
        if row is not None and not any(_same_place(_Row(*row), other) for other, _ in kept):
            kept.append((_Row(*row), candidate))
    exact = [pair for pair in kept if pair[1].found == "words"]
    others = [pair for pair in kept if pair[1].found != "words"][: max(0, limit - len(exact))]
    shown = [*_ours_first(exact), *_ours_first(others)]
    return [
        Match(row.owner, row.id, row.number, found.score, found.found, found.span)
        for row, found in shown[:limit]
    ]


def _ours_first(pairs: Iterable[tuple[_Row, Candidate]]) -> list[tuple[_Row, Candidate]]:
    return sorted(pairs, key=lambda pair: not pair[0].ours)


def _same_place(one: _Row, other: _Row) -> bool:
    """Tell whether one of the two is a named stretch of the other."""
    if one.source != other.source or not (one.named or other.named):
        return False
    inside = other.start <= one.start and one.end <= other.end
    return inside or (one.start <= other.start and other.end <= one.end)
