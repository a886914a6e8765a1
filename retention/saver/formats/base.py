r"""What every format fills in, and the grammar that most of them are written as.

A grammar is one pattern for each line, whose named groups are the kinds of lines:

- `head`: begins a report (a failed test, a stack trace), which also begins a part of the output;
- `hit`: one finding on one line, with what follows it;
- `part`: says where the findings after it are (a file); kept if one of them is;
- `sum`: how it all ended; `dull`: nothing that a task would need.

`head`, `sum`, `part` and `dull` end the report before them; other lines belong to it.  Where most
lines are findings the first few would say little, so kinds count: a group `rule` inside a hit says
what is found, a group `file` where, and the first finding of its rule or its file counts most.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from retention.saver.lines import Lines, line_shape

SURE: Final = 1.0  # weight of a line that says what failed, or how it all ended
ROOM: Final = 12_000  # characters of the lines that a parser keeps
_REPORTS: Final = 40  # reports after which one counts half as much


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a parser found: numbers of lines, from 0, each in growing order.

    `kept` are the lines of the excerpt, `boundaries` those that begin a part of the output's own
    structure.  `weights` says of lines that report a problem or a result how much they matter, from
    0 to 1.
    """

    kept: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    weights: dict[int, float] = {}


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of output, recognised by its structure alone.

    `marks` tells from a sample of the text (see `sample`) whether an output may be of the kind;
    `parse` returns None where it is not after all.
    """

    name: str
    marks: Callable[[str], bool]
    parse: Callable[[Lines], Parsed | None]


_ENDS: Final = 300  # lines of a sample from either end
_MIDDLE: Final = 100  # lines of a sample from each of three places between
_WIDTH: Final = 300  # characters of a line of a sample


def sample(lines: list[str]) -> str:
    """Return the beginning, the end and some of the middle of LINES, clipped: what marks see."""
    count = len(lines)
    if count > 2 * _ENDS + 3 * _MIDDLE:
        starts = (0, count // 4, count // 2, 3 * count // 4, count - _ENDS)
        sizes = (_ENDS, _MIDDLE, _MIDDLE, _MIDDLE, _ENDS)
        lines = [
            line
            for start, size in zip(starts, sizes, strict=True)
            for line in lines[start : start + size]
        ]
    return "\n".join(line[:_WIDTH] for line in lines)


def signs(*patterns: str) -> Callable[[str], bool]:
    """Return whether a text has each of PATTERNS, in which ^ and $ stand for ends of lines."""
    compiled = [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    return lambda text: all(pattern.search(text) for pattern in compiled)


def share(pattern: str, least: float) -> Callable[[str], bool]:
    """Return whether PATTERN matches at least the share LEAST of a text's lines that are not blank."""
    compiled = re.compile(pattern)

    def marks(text: str) -> bool:
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        hits = sum(1 for line in lines if compiled.match(line))
        return hits > 0 and hits >= least * len(lines)

    return marks


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the lines of a format (see the module).

    `inside` are the telling lines of a report, of which at most `depth` lines that are not blank
    are kept.  An output has the format if it has one of `needs`.
    """

    line: re.Pattern[str]
    inside: re.Pattern[str]
    depth: int
    needs: frozenset[str] = frozenset({"head", "hit", "sum"})


def grammar(
    name: str,
    marks: Callable[[str], bool],
    line: str,
    *,
    inside: str = r"(?!)",
    depth: int = 0,
    needs: Iterable[str] = ("head", "hit", "sum"),
) -> Format:
    """Return the format NAME with the marks MARKS, whose LINE is as the module says."""
    rules = Grammar(
        line=re.compile(line, re.VERBOSE),
        inside=re.compile(inside, re.VERBOSE),
        depth=depth,
        needs=frozenset(needs),
    )
    return Format(name=name, marks=marks, parse=lambda lines: read(lines.clean, rules))


def read(lines: list[str], rules: Grammar) -> Parsed | None:
    """Return what LINES hold by RULES."""
    match, inside = rules.line.match, rules.inside.search
    found = set[str]()
    weights: dict[int, float] = {}
    follow: dict[int, float] = {}  # lines kept with a report, and how much they say
    boundaries: list[int] = []
    seen = Counter[str]()
    reports = left = 0
    weight = 0.0
    part: int | None = None
    for at, line in enumerate(lines):
        hit = match(line)
        kind = hit.lastgroup if hit is not None else None
        if hit is None or kind is None:
            if left and line and not line.isspace():
                left -= 1
                follow[at] = 0.8 * weight if inside(line) else 0.1 * weight
            continue
        found.add(kind)
        if kind == "sum":
            weights[at] = SURE
        elif kind == "part":
            part = at
            boundaries.append(at)
        elif kind == "head":
            weight = 1 / (1 + reports / _REPORTS)
            reports += 1
            weights[at] = weight
            boundaries.append(at)
        elif kind == "hit":
            weight = weights[at] = novelty(hit, seen)
        if kind in {"head", "hit"}:
            left = rules.depth
            if part is not None:
                follow[part] = weight
                part = None
        else:
            left = 0
    if not found & rules.needs:
        return None
    return chosen(lines, weights, follow, boundaries)


def novelty(hit: re.Match[str], seen: Counter[str]) -> float:
    """Return how much the finding HIT counts after those that SEEN counts, and count it."""
    groups = hit.groupdict()
    rule = "rule " + (groups.get("rule") or line_shape(hit.string[hit.end() :]))
    file = "file " + (groups.get("file") or "")
    result = max(1 / (1 + seen[rule]), 0.6 / (1 + seen[file]))
    seen.update((rule, file))
    return result


def chosen(
    lines: list[str],
    weights: dict[int, float],
    follow: dict[int, float] | None = None,
    boundaries: Iterable[int] = (),
) -> Parsed:
    """Return as much of what WEIGHTS and FOLLOW say of LINES as there is room for, best first."""
    both = {**(follow or {}), **weights}
    room = ROOM
    kept = []
    for at in sorted(both, key=lambda number: (-both[number], number)):
        room -= len(lines[at]) + 1
        if room < 0:
            break
        kept.append(at)
    strong = {at: weight for at, weight in sorted(both.items()) if at in weights or weight >= 0.3}
    return Parsed(kept=tuple(sorted(kept)), boundaries=tuple(boundaries), weights=strong)
