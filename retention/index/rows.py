"""What stands in the index's tables: written, removed, counted.  Functions over one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from retention.digest import Digest, digest
from retention.index.passages import Span
from retention.index.words import parts_of, storable
from retention.model import Chunk, EventKind


class Entry(NamedTuple):
    """A source as it is indexed; `conversation` is the one that it goes with, if that is live."""

    owner: str
    id: str
    stamp: bytes
    kind: str
    time: float = 0.0  # seconds since the epoch
    conversation: str = ""


class Document(NamedTuple):
    """A chunk of a source: its number there, its exact text, and the kinds and tools of all the
    events that are in it, where these are more than the chunk's own.

    `first` and `last` are when the earliest and the latest of them were, in seconds since the
    epoch; 0 where only the time of the source is known.
    """

    number: int
    chunk: Chunk
    text: str
    kinds: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()
    first: float = 0.0
    last: float = 0.0


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


class Vector(NamedTuple):
    """A packed vector, and the digest of the text that it is of."""

    digest: Digest
    packed: bytes


def text_digest(text: str) -> Digest:
    """Return the digest by which an indexed or an embedded text is known."""
    return digest("blob", text.encode("utf-8", "surrogatepass"))


# Sources and chunks


def needs_rebuild(db: sqlite3.Connection) -> bool:
    """Tell whether the rows are not what they should be."""
    return bool(db.execute("SELECT needs_rebuild FROM state").fetchone()[0])


def _ask_for_rebuild(db: sqlite3.Connection) -> None:
    db.execute("UPDATE state SET needs_rebuild = 1")


def source_count(db: sqlite3.Connection) -> int:
    """Return how many sources there are."""
    found: int = db.execute("SELECT count(*) FROM sources").fetchone()[0]
    return found


def stamp(db: sqlite3.Connection, owner: str, id: str) -> bytes | None:
    """Return the stamp of source ID of OWNER, None if there is none."""
    sql = "SELECT stamp FROM sources WHERE owner = ? AND name = ?"
    found = db.execute(sql, (owner, id)).fetchone()
    return found[0] if found else None


def stamps(db: sqlite3.Connection) -> dict[tuple[str, str], bytes]:
    """Return the stamp of each source by its owner and id."""
    rows = db.execute("SELECT owner, name, stamp FROM sources")
    return {(owner, name): stamp for owner, name, stamp in rows}


def update_source(
    db: sqlite3.Connection, entry: Entry, added: Sequence[Document], removed: Iterable[Document]
) -> None:
    """Make a source what ENTRY says, without REMOVED and with ADDED, its other chunks kept."""
    known = _source_row(db, entry.owner, entry.id)
    source: int = db.execute(_PUT_SOURCE, entry).fetchone()[0]
    if known is None and len(added) != 1 + max((d.number for d in added), default=-1):
        _ask_for_rebuild(db)  # what it should have kept was never there
    for document in removed:
        _remove(db, source, entry.id, document)
    for document in added:
        _remove(db, source, entry.id, document)  # what had its number
        chunk = document.chunk
        fields = (
            source, document.number, chunk.name, chunk.kind.value, chunk.tool, chunk.start,
            chunk.end, chunk.whole, _marks(entry, document), document.first, document.last,
            text_digest(document.text),
        )  # fmt: skip
        row = db.execute(_PUT_CHUNK, fields).fetchone()[0]
        db.execute(_ADD_WORDS, (row, *_columns(entry.id, document)))


def drop_source(db: sqlite3.Connection, owner: str, id: str, removed: Iterable[Document]) -> None:
    """Drop a source with all its chunks; those that are not REMOVED leave their words."""
    source = _source_row(db, owner, id)
    if source is None:
        return
    for document in removed:
        _remove(db, source, id, document)
    db.execute(_DROP_EMBEDDINGS, (source,))
    if db.execute("DELETE FROM chunks WHERE source = ?", (source,)).rowcount:
        _ask_for_rebuild(db)
    db.execute("DELETE FROM sources WHERE id = ?", (source,))


def clear(db: sqlite3.Connection) -> None:
    """Remove all but the vectors; nothing has to be made anew any more."""
    db.execute("INSERT INTO words (words) VALUES ('delete-all')")
    for sql in _CLEAR:
        db.execute(sql)


def _source_row(db: sqlite3.Connection, owner: str, id: str) -> int | None:
    row = db.execute("SELECT id FROM sources WHERE owner = ? AND name = ?", (owner, id)).fetchone()
    return row[0] if row else None


def _remove(db: sqlite3.Connection, source: int, id: str, document: Document) -> None:
    """Remove what has the number of DOCUMENT; if its text was another, its words stay, of no chunk.

    The words of a row can be taken out only with what they were put in with.
    """
    found = db.execute(_TAKE_CHUNK, (source, document.number)).fetchone()
    if found is None:
        return
    row, *known = found
    db.execute("DELETE FROM embeddings WHERE chunk = ?", (row,))
    if known == [document.chunk.name, text_digest(document.text)]:
        db.execute(_DELETE_WORDS, (row, *_columns(id, document)))
    else:
        _ask_for_rebuild(db)


def kind_mark(kind: str) -> str:
    """Return what stands in a chunk's marks if it, or its source, is of KIND."""
    return f"\nkind {kind}\n"


def tool_mark(tool: str) -> str:
    """Return what stands in a chunk's marks if TOOL was called or answered in it."""
    return f"\ntool {tool}\n"


def _marks(entry: Entry, document: Document) -> str:
    kinds = document.kinds | {document.chunk.kind.value, entry.kind}
    tools = document.tools | {document.chunk.tool}
    return "".join((*map(kind_mark, sorted(kinds)), *map(tool_mark, sorted(tools))))


def _columns(id: str, document: Document) -> tuple[str, str]:
    """Return what is indexed: the text, and its parts with the names that the chunk is known by."""
    text = storable(document.text)
    return text, storable(f"{id} {document.chunk.name} {parts_of(text)}")


_PUT_SOURCE: Final = """
INSERT INTO sources (owner, name, stamp, kind, time, conversation) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, name) DO UPDATE SET stamp = excluded.stamp, kind = excluded.kind,
    time = excluded.time, conversation = excluded.conversation
RETURNING id
"""
_PUT_CHUNK: Final = """
INSERT INTO chunks
    (source, number, name, kind, tool, start, end, whole, marks, first, last, digest)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id
"""
_TAKE_CHUNK: Final = """
DELETE FROM chunks WHERE source = ? AND number = ? RETURNING id, name, digest
"""
_ADD_WORDS: Final = "INSERT INTO words (rowid, body, parts) VALUES (?, ?, ?)"
_DELETE_WORDS: Final = "INSERT INTO words (words, rowid, body, parts) VALUES ('delete', ?, ?, ?)"
_DROP_EMBEDDINGS: Final = """
DELETE FROM embeddings WHERE chunk IN (SELECT id FROM chunks WHERE source = ?)
"""
_CLEAR: Final = (
    "DELETE FROM sources",
    "DELETE FROM chunks",
    "DELETE FROM embeddings",
    "UPDATE state SET needs_rebuild = 0",
)


# Vectors


def waiting(db: sqlite3.Connection, model: str, limit: int) -> list[Waiting]:
    """Return LIMIT chunks without vectors of MODEL, the newest first."""
    found = list[Waiting]()
    for row in db.execute(_WAITING, (model, limit)):
        id, owner, name, number, start, end, kind, tool, whole, named = row
        chunk = Chunk(
            start=start, end=end, kind=EventKind(kind), tool=tool, whole=bool(whole), name=named
        )
        found.append(Waiting(id, owner, name, number, chunk))
    return found


def known_vectors(db: sqlite3.Connection, model: str, digests: Iterable[Digest]) -> set[Digest]:
    """Return which of DIGESTS have a vector of MODEL."""
    sql = "SELECT 1 FROM vectors WHERE digest = ? AND model = ?"
    return {key for key in digests if db.execute(sql, (key, model)).fetchone()}


def store_vectors(
    db: sqlite3.Connection,
    model: str,
    view: int,
    vectors: Iterable[Vector],
    places: Mapping[int, Iterable[tuple[Span, Digest]]],
) -> None:
    """Store VECTORS, and that the chunks of PLACES have theirs: where in them, and of which text.

    VIEW is the version of what was embedded.  A text without a vector says nothing.
    """
    db.executemany(_PUT_VECTOR, [(model, *vector) for vector in vectors])
    for chunk, found in places.items():
        if not db.execute(_EMBEDDED, (model, view, chunk)).rowcount:
            continue  # it was removed meanwhile
        db.execute("DELETE FROM embeddings WHERE chunk = ?", (chunk,))
        rows = [(chunk, *(span or (None, None)), key, model) for span, key in found]
        db.executemany(_PUT_EMBEDDING, rows)


def drop_unused_vectors(db: sqlite3.Connection) -> None:
    """Remove the vectors of texts that no chunk has any more."""
    db.execute("DELETE FROM vectors WHERE id NOT IN (SELECT vector FROM embeddings)")


def counts(db: sqlite3.Connection, model: str) -> Counts:
    """Return how much there is, with the vectors of MODEL; "" stands for none."""
    sources, chunks, vectors = (db.execute(sql).fetchone()[0] for sql in _COUNTS)
    views: dict[int, int] = dict(db.execute(_VIEWS, (model,)).fetchall())
    return Counts(sources, chunks, vectors, chunks - sum(views.values()) if model else 0, views)


_WAITING: Final = """
SELECT c.id, s.owner, s.name, c.number, c.start, c.end, c.kind, c.tool, c.whole, c.name
FROM chunks c JOIN sources s ON s.id = c.source WHERE c.model IS NOT ? ORDER BY c.id DESC LIMIT ?
"""
_EMBEDDED: Final = "UPDATE chunks SET model = ?, view = ? WHERE id = ?"
_PUT_VECTOR: Final = "INSERT OR IGNORE INTO vectors (model, digest, vector) VALUES (?, ?, ?)"
_PUT_EMBEDDING: Final = """
INSERT INTO embeddings (chunk, start, end, vector)
SELECT ?, ?, ?, id FROM vectors WHERE digest = ? AND model = ?
"""
_COUNTS: Final = (
    "SELECT count(*) FROM sources",
    "SELECT count(*) FROM chunks",
    "SELECT count(*) FROM vectors",
)
_VIEWS: Final = "SELECT view, count(*) FROM chunks WHERE model = ? GROUP BY view"
