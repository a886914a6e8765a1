"""Sources, chunks and an embedder for the tests of the index."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from retention.index import Document, Entry, Filters, Index
from retention.model import Chunk, EventKind

if TYPE_CHECKING:
    from retention.index.embedding import Vectors

Texts = dict[tuple[str, str, int], str]


def entry(id: str = "s", *, owner: str = "o", stamp: bytes = b"1", **fields: object) -> Entry:
    return Entry(**{"owner": owner, "id": id, "stamp": stamp, "kind": "file"} | fields)  # type: ignore[arg-type]


def documents(*texts: str, first: int = 0, **fields: object) -> list[Document]:
    """Chunks that follow each other, with TEXTS."""
    ends = list(accumulate(map(len, texts), initial=0))
    return [
        Document(n, Chunk(start=start, end=start + len(text), **fields), text)  # type: ignore[arg-type]
        for n, (start, text) in enumerate(zip(ends, texts, strict=False), first)
    ]


def said(*texts: str, first: int = 0) -> list[Document]:
    return documents(*texts, first=first, kind=EventKind.ASSISTANT)


def add(index: Index, id: str, *texts: str, **fields: object) -> list[Document]:
    """Add a source with TEXTS; return its documents, for its removal."""
    made = documents(*texts)
    index.update(entry(id, **fields), made)
    return made


def found(index: Index, query: str, **filters: object) -> list[tuple[str, int]]:
    """The sources and numbers of what QUERY finds, the best first."""
    return [(m.id, m.number) for m in index.search(query, Filters(**filters))]  # type: ignore[arg-type]


class Themes:
    """An embedder of two meanings: what is about water, and what is about fire."""

    name = "themes"
    dims = 2
    words = ({"sea", "river", "rain", "wet"}, {"flame", "smoke", "ash", "hot"})

    def __init__(self) -> None:
        self.embedded = list[str]()

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.embedded += texts
        return np.array([self.embed_query(text) for text in texts], np.float32).reshape(-1, 2)

    def embed_query(self, text: str) -> Vectors:
        held = [sum(word in known for word in text.split()) for known in self.words]
        vector = np.array(held, np.float32)
        return vector / (np.linalg.norm(vector) or 1)


def embed(index: Index, *sources: tuple[str, list[Document]], limit: int = 100) -> int:
    """Give all chunks of SOURCES, ids and documents, their vectors; return the rounds it took."""
    texts = {("o", id, document.number): document.text for id, made in sources for document in made}
    rounds = 0
    while index.embed_some(lambda *key: texts.get(key), limit):
        rounds += 1
    return rounds
