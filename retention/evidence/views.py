r"""What of a chunk is embedded: the chunk itself, or a reduced view of a long one (evidence.md V3).

A view is for vectors alone: it is never shown, stored or searched for words.  It is a function of
the text and nothing else.  Lengths are code points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from retention.evidence.chunking import HARD_MAX, SIZE, find_problems
from retention.saver.lines import (
    MATCHED,
    clean,
    is_problem_line,
    line_shape,
    read_lines,
    read_pieces,
)

VIEW: Final = 1  # version of the view, kept with each vector: a new one re-embeds nothing by itself

HEADER: Final = 400  # of a first line that counts as a header
HEAD: Final = 2 * SIZE // 5  # of the opening lines
TAIL: Final = SIZE // 5  # of the closing lines
PROBLEMS: Final = SIZE - HEAD - TAIL  # of the problem lines between them
CLIP: Final = 400  # of one problem line
MOST: Final = 40  # problem lines, so that the marks of the gaps keep a view within HARD_MAX
RUN: Final = 3  # like lines in a row of which one is shown

SEGMENT: Final = 500  # of a text for an extra vector
SEGMENTS: Final = 12  # of a chunk


def embedded_text(text: str, *, whole: bool) -> str:
    """Return what is embedded of TEXT, a chunk; WHOLE as in `Chunk`.

    All that becomes a vector passes through here, wherever it comes from: one text, a batch, an
    import, an index made anew.  Of a long tool event that is a view of at most HARD_MAX, of
    anything else the text itself.
    """
    return _reduce(text) if whole and len(text) > HARD_MAX else text


class _Item(NamedTuple):
    """One line, or a run of many LINES of one SHAPE, which its FIRST stands for."""

    first: int
    lines: int
    shape: str | int

    def show(self, line: str) -> str:
        """Return the item with LINE, of which it may be a part."""
        return line if self.lines == 1 else f"{line} [x{self.lines} similar lines]"


class _Lines(NamedTuple):
    """The lines of a text as they stand, and CLEAN as they are matched."""

    raw: list[str]
    clean: list[str]

    def shape(self, at: int) -> str | int:
        """Return what line AT has in common with its likes; one not matched as a whole has none."""
        return line_shape(self.clean[at]) if len(self.raw[at]) <= MATCHED else at

    def items(self, numbers: Iterable[int]) -> Iterator[_Item]:
        """Yield the items of the lines with NUMBERS, neighbours that count up or down."""
        for shape, group in groupby(numbers, self.shape):
            run = list(group)
            if len(run) < RUN:
                yield from (_Item(at, 1, shape) for at in run)
            else:
                yield _Item(min(run), len(run), shape)

    def take(self, numbers: Iterable[int], room: int) -> list[_Item]:
        """Return the items of the lines with NUMBERS up to the first that does not fit in ROOM."""
        taken = list[_Item]()
        for item in self.items(numbers):
            room -= len(item.show(self.raw[item.first])) + 1
            if room < 0:
                break
            taken.append(item)
        return taken


def _reduce(text: str) -> str:
    """Return the view of TEXT: its header and opening, problems of the middle, its closing."""
    lines = _Lines(text.removesuffix("\n").split("\n"), read_lines(text).clean)
    raw, count = lines.raw, len(lines.raw)
    begin = 1 if len(raw[0]) <= HEADER else 0
    head = lines.take(range(begin, count), HEAD)
    start = begin + sum(item.lines for item in head)
    tail = lines.take(range(count - 1, start - 1, -1), TAIL)[::-1]
    end = count - sum(item.lines for item in tail)
    opening = [*raw[:begin], *(item.show(raw[item.first]) for item in head)]
    closing = [item.show(raw[item.first]) for item in tail]
    # A huge line at either end keeps its own, and one that is all there is keeps both.
    if start == begin and end == count == start + 1:
        gap = _characters(len(raw[start]) - HEAD - TAIL)
        return "\n".join([*opening, raw[start][:HEAD], gap, raw[start][-TAIL:]])
    if start == begin:
        opening += [raw[start][:HEAD], _characters(len(raw[start]) - HEAD)]
        start += 1
    if start < end == count:
        end -= 1
        closing = [_characters(len(raw[end]) - TAIL), raw[end][-TAIL:]]
    middle = _middle(lines, start, end, {item.shape for item in head})
    return "\n".join([*opening, *middle, *closing])


def _middle(lines: _Lines, start: int, end: int, seen: set[str | int]) -> Iterator[str]:
    """Yield the problems among the lines from START up to END, one of each shape that was not SEEN,
    and what says how many lines are left out between them.
    """
    room, shown = PROBLEMS, 0
    after = start  # behind the last line that is accounted for
    for offset, _ in find_problems(lines.clean[start:end]):
        at = start + offset
        shape = lines.shape(at)
        if shape in seen:
            continue
        item = next(lines.items(range(at, end)))
        first, last = _around(lines.raw[at], 0, len(lines.raw[at]), CLIP)
        text = item.show(lines.raw[at][first:last])
        room -= len(text) + 1
        if room < 0 or shown == MOST:
            break
        yield from _gap(at - after)
        yield text
        shown += 1
        seen.add(shape)
        after = at + item.lines
    yield from _gap(end - after)


def _gap(count: int) -> Iterator[str]:
    if count:
        yield f"[... {count} {'line' if count == 1 else 'lines'} omitted]"


def _characters(count: int) -> str:
    return f"[... {count} characters omitted]"


def _around(text: str, start: int, end: int, size: int) -> tuple[int, int]:
    """Return the stretch of TEXT from START to END, of at most SIZE, around its first problem."""
    if end - start <= size:
        return start, end
    step = size // 4
    windows = range(start, end, step)
    found = (at for at in windows if is_problem_line(clean(text[at : at + 2 * step])))
    first = max(start, min(next(found, start) - step, end - size))
    return first, first + size


def short_segments(text: str) -> list[tuple[int, int]]:
    """Return the stretches of TEXT, a chunk, that get a vector of their own: from, up to.

    They are blocks of problem lines with a line around them, the clearest problem of each shape
    first, listed in their order.  The reason is measured, with 40 paraphrased questions about two
    lines in the middle of 3,600 characters: the vector of the whole has the answer among the first
    five for at most 2 of them with any model at hand, vectors of 420 characters have it for 6, and
    for 15 among the first ten.  A text that is short itself has none.
    """
    if len(text) <= SEGMENT:
        return []
    pieces = read_pieces(read_lines(text))
    weights = dict(find_problems(pieces.clean))
    seen, blocks = set[str](), list[tuple[int, int]]()
    for at in sorted(weights, key=lambda at: (-weights[at], at)):
        if len(blocks) == SEGMENTS:
            break
        if line_shape(pieces.clean[at]) in seen:
            continue
        first, after = _block(pieces.starts, at, weights.keys())
        seen.update(line_shape(pieces.clean[n]) for n in range(first, after) if n in weights)
        blocks.append(_around(text, pieces.starts[first], pieces.starts[after], SEGMENT))
    return sorted(blocks)


def _block(starts: Sequence[int], at: int, problems: Iterable[int]) -> tuple[int, int]:
    """Return the pieces, from and up to, of the block around piece AT that fit in a segment."""
    first, after = at, at + 1

    def fits(first: int, after: int) -> bool:
        return first >= 0 and after < len(starts) and starts[after] - starts[first] <= SEGMENT

    if fits(first - 1, after):
        first -= 1
    while after in problems and fits(first, after + 1):
        after += 1
    if fits(first, after + 1):
        after += 1
    return first, after
