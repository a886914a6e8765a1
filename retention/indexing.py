"""The index follows the store: told what changed, made to agree, made anew (V9).

The store is what counts.  A source is written first and indexed then: a process that is killed
between the two leaves a stamp that differs, which `reconcile` finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from retention.digest import digest
from retention.errors import (
    DamagedObject,
    UnknownObject,
)
from retention.index import Document, Entry, Index
from retention.model import (
    Source,
)
from retention.sources import documents, fault_of, read_text
from retention.store import Store


def stamp(source: Source) -> bytes:
    """Return what tells whether SOURCE is indexed as it is now."""
    return digest("blob", msgspec.msgpack.encode((source.events, source.chunks)))[:16]


def _entry(source: Source) -> Entry:
    return Entry(
        owner=source.owner, id=source.id, stamp=stamp(source), kind=source.kind, time=source.at,
        conversation=source.owner if source.live else "",
    )  # fmt: skip


def index_source(store: Store, index: Index, source: Source, before: Source | None) -> None:
    """Tell the index what of SOURCE is new beside BEFORE; chunks in the same place stay.

    All of it is new to an index that has not BEFORE: where that was learned while the index could
    not be written, or was made anew, or by a process that was killed.
    """
    key = (source.owner, source.id)
    held = index.stamp(*key) if before else None
    if before and held == stamp(source) and before.at == source.at:
        return
    kept: set[int] = set()
    removed: list[Document] | None = [] if held is None else None
    with store.read() as reader:
        if before and held == stamp(before):
            with suppress(UnknownObject, DamagedObject):
                kept = _kept(source, before)
                removed = documents(reader, before, _others(before, kept))
        if removed is None:
            kept = set()
        added = documents(reader, source, _others(source, kept))
    if removed is None:
        index.drop(*key, None)
    _update(store, index, source, added, removed or ())


def _update(
    store: Store,
    index: Index,
    source: Source,
    added: Sequence[Document],
    removed: Sequence[Document] = (),
) -> None:
    """Tell the index of SOURCE, and to let go of it if it was forgotten before that."""
    index.update(_entry(source), added, removed)
    with store.read() as reader:
        forgotten = reader.source(source.owner, source.id) is None
    if forgotten:
        index.drop(source.owner, source.id, added)


def _add(store: Store, index: Index, source: Source) -> None:
    """Index all of SOURCE, verified: nothing of one whose chunks do not rebuild its text (V1).

    `check` names that one; the index knows it, so that it lacks nothing.
    """
    try:
        with store.read() as reader:
            fault = fault_of(read_text(reader, source), source.chunks)
            numbers = range(0 if fault else len(source.chunks))
            added = documents(reader, source, numbers)
    except (UnknownObject, DamagedObject):
        added = []
    _update(store, index, source, added)


def _others(source: Source, kept: set[int]) -> list[int]:
    return [number for number in range(len(source.chunks)) if number not in kept]


def _kept(source: Source, before: Source) -> set[int]:
    """Return the numbers of the chunks that are the same, text and place, in both."""
    common = 0
    for ours, theirs in zip(source.events, before.events, strict=False):
        if (ours.text, ours.kind, ours.tool) != (theirs.text, theirs.kind, theirs.tool):
            break
        common += ours.chars
    pairs = zip(source.chunks, before.chunks, strict=False)
    return {n for n, (ours, theirs) in enumerate(pairs) if ours == theirs and ours.end <= common}


def index_sources(store: Store, index: Index, owner: str) -> None:
    """Index all sources of OWNER that came into the store otherwise than by learning."""
    stamps = index.stamps()
    with store.read() as reader:
        found = [s for s in reader.sources(owner) if stamps.get((owner, s.id)) != stamp(s)]
    for source in found:
        _add(store, index, source)


def drop_sources(store: Store, index: Index, owner: str) -> None:
    """Take all sources of OWNER out of the index: before the store forgets them, and once more
    afterwards, for what was learned in between.
    """
    with store.read() as reader:
        for source in list(reader.sources(owner)):
            with suppress(UnknownObject, DamagedObject):
                gone = documents(reader, source, range(len(source.chunks)))
                index.drop(source.owner, source.id, gone)
    for key in index.stamps():
        if key[0] == owner:
            index.drop(*key, None)


def begin(store: Store, index: Index) -> None:
    """Say of a new index that it lacks nothing, where nothing was learned yet."""
    if index.needs_rebuild:
        with store.read() as reader:
            empty = next(reader.sources(), None) is None
        if empty:
            index.clear()


def reconcile(store: Store, index: Index) -> Iterator[None]:
    """Make the index agree with the store, one source a step; make it anew where it must be."""
    if index.needs_rebuild:
        index.clear()
    stamps = index.stamps()
    with store.read() as reader:
        wanted = {(source.owner, source.id): stamp(source) for source in reader.sources()}
    for key, value in stamps.items():
        if wanted.get(key) != value:
            index.drop(*key, None)
            yield
    if index.needs_rebuild:
        index.clear()
        stamps = {}
    for key, value in wanted.items():
        if stamps.get(key) == value:
            continue
        with store.read() as reader:
            source = reader.source(*key)
        if source is not None:
            _add(store, index, source)
            yield
