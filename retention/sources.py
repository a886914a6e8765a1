"""Sources over the store: their texts, whole or in parts, exactly, and what names them (V1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from retention.digest import digest
from retention.errors import (
    DamagedObject,
    UnknownObject,
)
from retention.evidence import chunking
from retention.index import Document
from retention.model import (
    Chunk,
    Event,
    Source,
)
from retention.saver.excerpting import decode
from retention.store import Reader, Store


def encode(text: str) -> bytes:
    """Return the bytes that TEXT was decoded from."""
    return text.encode("utf-8", "surrogateescape")


def read_text(reader: Reader, source: Source) -> str:
    """Return the exact text of SOURCE.

    Raise UnknownObject or DamagedObject if a part of it cannot be had.
    """
    return "".join(decode(reader.object(event.text)) for event in source.events)


class Reading:
    """The text of one source, read in parts: a source may be long, what is looked for is not."""

    def __init__(self, reader: Reader, source: Source) -> None:
        self.source = source
        self._reader = reader
        self._starts = list(accumulate((event.chars for event in source.events), initial=0))

    def event(self, at: int) -> Event | None:
        """Return the event in which code point AT stands."""
        number = bisect_right(self._starts, at) - 1
        return self.source.events[number] if number < len(self.source.events) else None

    def text(self, start: int, end: int) -> str:
        """Return the exact text from START up to END; raise as `read_text`."""
        first = max(0, bisect_right(self._starts, start) - 1)
        parts = [
            decode(self._reader.object(event.text))
            for event in self.source.events[first : bisect_left(self._starts, end)]
        ]
        begin = self._starts[first]
        return "".join(parts)[start - begin : end - begin]

    def line(self, at: int) -> int:
        """Return the number of the line, from 1, in which code point AT stands."""
        number = max(0, bisect_right(self._starts, at) - 1)
        breaks = sum(event.breaks for event in self.source.events[:number])
        return breaks + self.text(self._starts[number], at).count("\n") + 1


def chunk_id(source: Source, number: int) -> str:
    """Return what names chunk NUMBER of SOURCE: the source itself where it is all there is."""
    chunk = source.chunks[number]
    if chunk.name:
        return f"{source.id}:{chunk.name}"
    alone = sum(1 for each in source.chunks if not each.name) == 1
    return source.id if alone else f"{source.id}:{number}"


def documents(reader: Reader, source: Source, numbers: Sequence[int]) -> list[Document]:
    """Return the chunks NUMBERS of SOURCE with their texts."""
    if not numbers:
        return []
    text = read_text(reader, source)
    starts = list(accumulate((event.chars for event in source.events), initial=0))
    found: list[Document] = []
    for number in numbers:
        chunk = source.chunks[number]
        inside = source.events[
            max(0, bisect_right(starts, chunk.start) - 1) : bisect_left(starts, chunk.end)
        ]
        found.append(Document(
            number, chunk, text[chunk.start : chunk.end],
            kinds=frozenset(event.kind.value for event in inside),
            tools=frozenset(event.tool for event in inside if event.tool),
            first=min((event.at for event in inside if event.at), default=0.0),
            last=max((event.at for event in inside), default=0.0),
        ))  # fmt: skip
    return found


def read_chunk(store: Store, owner: str, id: str, number: int) -> str | None:
    """Return the text of a chunk, None if it is no more or cannot be read."""
    with store.read() as reader:
        source = reader.source(owner, id)
        if source is None or number >= len(source.chunks):
            return None
        chunk = source.chunks[number]
        try:
            return Reading(reader, source).text(chunk.start, chunk.end)
        except (UnknownObject, DamagedObject):
            return None


def owner_of(name: str) -> str:
    """Return what stands for a conversation's id where there is none: made from NAME."""
    return digest("blob", f"source {name}".encode("utf-8", "surrogateescape"))[:16].hex()


def conversation_source(id: str) -> str:
    """Return the source id of conversation ID."""
    return f"c{id[:12]}"


def fault_of(text: str, chunks: Sequence[Chunk]) -> str:
    """Return why CHUNKS do not rebuild TEXT, "" if they do (V1)."""
    plain = [chunk for chunk in chunks if not chunk.name] or chunks
    try:
        rebuilt = chunking.rebuild(plain, lambda start, end: text[start:end])
    except DamagedObject as error:
        return str(error)
    return "" if rebuilt == text else "its chunks do not rebuild its text"
