"""Whether the chunks of what was learned rebuild it, and how it would be cut now (V1, V2)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from retention.errors import (
    DamagedObject,
    UnknownObject,
)
from retention.evidence import views as views_of
from retention.evidence.snapshots import Snapshot, Span
from retention.learning import cut, log_context
from retention.model import (
    Chunk,
    Source,
)
from retention.sources import fault_of, read_text
from retention.store import Reader, Store


class Cut(NamedTuple):
    """How the stored texts are cut, over all sources: `views` are the texts that vectors are of."""

    snapshots: int
    rebuilt: int
    chunks: int
    views: tuple[int, ...]

    def figures(self) -> dict[str, int]:
        """Return what a table shows of it, in code points."""
        long = [size for size in self.views if size]
        return {
            "snapshots": self.snapshots,
            "snapshots rebuilt": self.rebuilt,
            "chunks": self.chunks,
            "characters embedded": sum(self.views),
            "median view": int(statistics.median(long)) if long else 0,
            "largest view": max(long, default=0),
        }


def recut(store: Store) -> tuple[Cut, Cut]:
    """Return how all sources are cut, and how they would be now; nothing is written (V1, V2)."""
    old, new = Cut(0, 0, 0, ()), Cut(0, 0, 0, ())
    with store.read() as reader:
        context = log_context(reader)
        for source in reader.sources():
            try:
                snapshot = snapshot_of(reader, source)
            except (UnknownObject, DamagedObject):
                snapshot = None
            old = _counted(old, snapshot, source.chunks)
            new = _counted(new, snapshot, cut(source.kind, snapshot, context) if snapshot else ())
    return old, new


def snapshot_of(reader: Reader, source: Source) -> Snapshot:
    """Return the snapshot that SOURCE was cut from; raise as `read_text`."""
    ends = list(accumulate((event.chars for event in source.events), initial=0))
    spans = tuple(
        Span(start, start + e.chars, e.kind, e.tool, e.call, e.row, e.at)
        for start, e in zip(ends, source.events, strict=False)
    )
    return Snapshot(text=read_text(reader, source), spans=spans, title=source.title)


def _counted(cut: Cut, snapshot: Snapshot | None, chunks: Sequence[Chunk]) -> Cut:
    if snapshot is None:
        return cut._replace(snapshots=cut.snapshots + 1)
    text = snapshot.text
    views = tuple(
        len(views_of.embedded_text(text[chunk.start : chunk.end], whole=chunk.whole))
        for chunk in chunks
    )
    return Cut(
        cut.snapshots + 1,
        cut.rebuilt + (not fault_of(text, chunks)),
        cut.chunks + len(chunks),
        cut.views + views,
    )


def find_faults(store: Store) -> Iterator[tuple[str, str]]:
    """Yield (source id, fault) for each source whose chunks do not rebuild its text (V1)."""
    with store.read() as reader:
        for source in reader.sources():
            try:
                fault = fault_of(read_text(reader, source), source.chunks)
            except (UnknownObject, DamagedObject) as error:
                fault = str(error)
            if fault:
                yield source.id, fault
