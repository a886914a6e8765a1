"""What of an output is kept within a bound, and the text that says so (O4, O5, O6).

Pieces are kept as they stand and in their order.  One line stands for what is left out between two
of them, in each segment: of a segment that is left out as a whole it quotes the first line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from retention.saver.lines import Pieces, size_words
from retention.saver.scoring import Evidence
from retention.saver.segments import Segment, bytes_of

WANTED: Final = 0.5  # share of the bound for whole segments that the local scorer chose
JUDGED: Final = 0.8  # the same for those that a model chose; the rest is for problems
HEAD, TAIL = 0.05, 0.1  # shares of the bound for the beginning and the end of an output
HEAD_MAX, TAIL_MAX = 1_000, 2_000  # code points, at most, of them
EACH = 0.20  # share for the clearest problem of each segment
PROBLEMS, OVERLAP, RARITY = 0.35, 0.25, 0.12  # shares for what has evidence
AROUND = 0.08  # share for what stands around problems, and around what the task shares words with
NEAR: Final = (-2, -1, 1, 2, 3)  # what stands around a piece comes along with it
CLOSE: Final = 0.5  # overlap from which a piece answers the task
MISSES: Final = 16  # pieces in a row that did not fit, after which no more are tried


class Gap(NamedTuple):
    """Pieces FIRST to before AFTER, all of SEGMENT, that are left out."""

    segment: Segment
    first: int
    after: int


class Selection:
    """The pieces of an output that are kept, as many as fit the LIMIT, in code points.

    What the lines cost that stand for gaps is reckoned with: `cost` is never less than the length
    of the text that `render` returns.
    """

    def __init__(
        self,
        pieces: Pieces,
        segments: Sequence[Segment],
        limit: int,
        problems: Iterable[int] = (),
    ) -> None:
        self.pieces = pieces
        self.segments = segments
        self.limit = limit
        self.kept = bytearray(len(pieces.clean))
        self._edges = [bisect_right(pieces.starts, segment.start) - 1 for segment in segments]
        self._edges.append(len(self.kept))
        self._counts = [0] * len(segments)
        troubles = Counter(map(self.segment_of, problems))
        self._whole = [
            _whole(segment, len(segments), troubles[at]) for at, segment in enumerate(segments)
        ]
        self._part = _longest_part(pieces, segments)
        self.cost = sum(map(len, self._whole))

    def keep(self, wanted: Iterable[int], limit: int | None = None) -> bool:
        """Keep all WANTED pieces if the cost stays within LIMIT, by default that of all."""
        before, new = self.cost, list[int]()
        for at in wanted:
            if not self.kept[at]:
                segment = self.segment_of(at)
                self.cost += self._price(at, segment)
                self.kept[at] = True
                self._counts[segment] += 1
                new.append(at)
        if self.cost <= (self.limit if limit is None else limit):
            return True
        for at in new:
            self.kept[at] = False
            self._counts[self.segment_of(at)] -= 1
        self.cost = before
        return False

    def _price(self, at: int, segment: int) -> int:
        """Return by how much the cost grows with piece AT of the SEGMENT of that index."""
        first, after = self._edges[segment], self._edges[segment + 1]
        gaps = (at > first and not self.kept[at - 1]) + (at + 1 < after and not self.kept[at + 1])
        size = self.pieces.starts[at + 1] - self.pieces.starts[at]
        if not self._counts[segment]:
            return size + gaps * self._part - len(self._whole[segment])
        return size + (gaps - 1) * self._part

    def pieces_of(self, segment: Segment) -> range:
        """Return the numbers of the pieces of SEGMENT."""
        return range(self._edges[segment.number - 1], self._edges[segment.number])

    def segment_of(self, at: int) -> int:
        """Return the index of the segment that piece AT belongs to."""
        return bisect_right(self._edges, at) - 1

    def gaps(self) -> Iterator[Gap]:
        """Yield the gaps, in order."""
        for segment, (first, after) in zip(self.segments, pairwise(self._edges), strict=True):
            at = self.kept.find(False, first, after)
            while at >= 0:
                end = self.kept.find(True, at, after)
                end = after if end < 0 else end
                yield Gap(segment, at, end)
                at = self.kept.find(False, end, after)

    def close(self) -> None:
        """Keep what is no longer than the line that would stand for it."""
        starts = self.pieces.starts
        for gap in list(self.gaps()):
            if starts[gap.after] - starts[gap.first] <= self._part:
                self.keep(range(gap.first, gap.after))

    def render(self) -> str:
        """Return the kept text, with a line for each gap that says what is left out.

        Of a segment without a kept piece the line also says how many problems are in it.
        """
        starts = self.pieces.starts
        parts = list[str]()
        end = 0
        for gap in self.gaps():
            parts.append(self.pieces.text[end : starts[gap.first]])
            if parts[-1] and not parts[-1].endswith("\n"):
                parts.append("\n")
            parts.append(self._line(gap))
            end = starts[gap.after]
        return "".join([*parts, self.pieces.text[end:]])

    def _line(self, gap: Gap) -> str:
        segment = gap.segment
        if not self._counts[segment.number - 1]:
            return self._whole[segment.number - 1]
        text = self.pieces.text[self.pieces.starts[gap.first] : self.pieces.starts[gap.after]]
        owners = self.pieces.owners
        first, last = owners[gap.first], owners[gap.after - 1]
        partly = (gap.first > 0 and owners[gap.first - 1] == first) or (
            gap.after < len(owners) and owners[gap.after] == last
        )
        return _part(first + 1, last + 1, segment.number, len(bytes_of(text)), partly=partly)


def _whole(segment: Segment, of: int, problems: int) -> str:
    size = size_words(segment.size)
    if problems:
        size += f", {problems} {'problem' if problems == 1 else 'problems'}"
    return f'[segment {segment.number} of {of} omitted, {size}, "{segment.label}"]\n'


def _part(first: int, last: int, segment: int, size: int, *, partly: bool) -> str:
    lines = f"line {first}" if first == last else f"lines {first}-{last}"
    what = f"part of {lines}" if partly else lines
    return f"[{what} of segment {segment} omitted, {size_words(size)}]\n"


def _longest_part(pieces: Pieces, segments: Sequence[Segment]) -> int:
    """Return the length of the longest line that `_part` returns, and of an end of line before."""
    last, size = pieces.owners[-1] + 1, sum(segment.size for segment in segments)
    return len(_part(last - 1, last, len(segments), size, partly=True)) + 1


def select(
    pieces: Pieces,
    segments: Sequence[Segment],
    evidence: Evidence,
    *,
    limit: int,
    wanted: Sequence[Segment] = (),
    share: float = WANTED,
    parsed: Sequence[int] = (),
) -> Selection:
    """Return what is kept of PIECES, which has SEGMENTS, within LIMIT code points.

    WANTED segments come first, as many of them as fit whole into SHARE of it.  Then come the
    beginning and the end, a problem of each segment, and what has most EVIDENCE, each kind within a
    share of its own.  The rest goes to what stands around, to what answers the task, to what a
    format's parser PARSED, and to more of the same.
    """
    kept = Selection(pieces, segments, limit, evidence.problems)
    free = limit - kept.cost
    for segment in wanted:
        kept.keep(kept.pieces_of(segment), limit - int(free * (1 - share)))
    free = limit - kept.cost
    _keep_while(kept, range(len(pieces.clean)), min(free * HEAD, HEAD_MAX))
    _keep_while(kept, reversed(range(len(pieces.clean))), min(free * TAIL, TAIL_MAX))
    best = {kept.segment_of(at): at for at in reversed(evidence.problems)}
    _fill(kept, sorted(best.values(), key=list(evidence.problems).index), free * EACH)
    queues: tuple[tuple[Collection[int], float], ...] = (
        (evidence.problems, PROBLEMS),
        (evidence.overlap, OVERLAP),
        (evidence.rarity, RARITY),
    )
    for queue, part in queues:
        _fill(kept, queue, free * part)
    for queue in (evidence.overlap, evidence.problems):
        _fill(kept, _around(queue, len(pieces.clean)), free * AROUND)
    close = [at for at, weight in evidence.overlap.items() if weight >= CLOSE]
    for queue in (close, parsed, *(queue for queue, _ in queues)):
        _fill(kept, queue, free)
    kept.close()
    return kept


def _keep_while(kept: Selection, queue: Iterable[int], room: float) -> None:
    """Keep pieces of QUEUE up to the first that does not fit the ROOM, in code points."""
    limit = min(kept.limit, kept.cost + int(room))
    for at in queue:
        if not kept.keep((at,), limit):
            return


def _fill(kept: Selection, queue: Iterable[int] | Iterable[Sequence[int]], room: float) -> None:
    """Keep what fits of QUEUE in the ROOM, in code points, until too much in a row does not."""
    limit = min(kept.limit, kept.cost + int(room))
    misses = 0
    for at in queue:
        fits = kept.keep(at if isinstance(at, Sequence) else (at,), limit)
        misses = 0 if fits else misses + 1
        if misses == MISSES:
            return


def _around(queue: Iterable[int], count: int) -> Iterator[list[int]]:
    """Yield what stands around each piece of QUEUE; there are COUNT pieces."""
    for at in queue:
        yield [at + near for near in NEAR if 0 <= at + near < count]
