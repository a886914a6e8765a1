"""What every format fills in, and the grammar that most of them are written as.

A grammar gives patterns for the kinds of lines, of which the first that matches holds:

- `head`: begins a report (a failed test, a stack trace), and so a part of the output;
- `hit`: one finding on one line, with what follows it;
- `part`: says where the findings after it are (a file); kept if one of them is;
- `sum`: how it all ended; `dull`: nothing that a task would need.

Lines of no kind belong to the report or the finding before them.  Where most lines are findings the
first few would say little, so what is new counts: groups whose names begin with `rule` say what a
hit found, a group `file` where; the first finding of its rule or its file counts most.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Final

import msgspec

from retention.saver.lines import Lines

SURE: Final = 1.0  # weight of a line that says what failed, or how it all ended
ROOM: Final = 12_000  # characters of the lines that a parser keeps
_MOST: Final = 1_000  # lines that it keeps
_STRONG: Final = 0.1  # least weight that is told
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
    """Return the beginning, the end and some of the middle of LINES: what marks see.

    Lines are clipped, and blank ones left out, so that no pattern can run from line to line.
    """
    count = len(lines)
    if count > 2 * _ENDS + 3 * _MIDDLE:
        starts = (0, count // 4, count // 2, 3 * count // 4, count - _ENDS)
        sizes = (_ENDS, _MIDDLE, _MIDDLE, _MIDDLE, _ENDS)
        lines = [
            line
            for start, size in zip(starts, sizes, strict=True)
            for line in lines[start : start + size]
        ]
    clipped = (line[:_WIDTH].rstrip() for line in lines)
    return "\n".join(line for line in clipped if line)


def signs(*patterns: str) -> Callable[[str], bool]:
    """Return whether each of PATTERNS matches the beginning of some line of a sample."""
    compiled = [re.compile(rf"\n(?:{pattern})", re.MULTILINE) for pattern in patterns]
    return lambda text: all(pattern.search("\n" + text) for pattern in compiled)


def share(pattern: str, least: float) -> Callable[[str], bool]:
    """Return whether PATTERN matches at least the share LEAST of the lines of a sample."""
    compiled = re.compile(pattern)

    def marks(text: str) -> bool:
        lines = text.split("\n")
        hits = sum(1 for line in lines if compiled.match(line))
        return hits > 0 and hits >= least * len(lines)

    return marks


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the lines of a format: `line` has a group for each kind.

    `inside` are the telling lines of a report, of which at most `depth` lines that are not blank
    are kept.  An output has the format if it has a line of a kind in `needs`.
    """

    line: re.Pattern[str]
    inside: re.Pattern[str]
    depth: int
    needs: frozenset[str]


def grammar(
    name: str,
    *,
    marks: Callable[[str], bool],
    inside: tuple[str, ...] = ("(?!)",),
    depth: int = 0,
    needs: tuple[str, ...] = ("head", "hit", "sum"),
    **kinds: tuple[str, ...],
) -> Format:
    """Return the format NAME; KINDS are tried in the order in which they are given."""
    groups = (f"(?P<{kind}>{'|'.join(patterns)})" for kind, patterns in kinds.items())
    rules = Grammar(
        line=re.compile("|".join(groups)),
        inside=re.compile("|".join(inside)),
        depth=depth,
        needs=frozenset(needs),
    )
    return Format(name=name, marks=marks, parse=lambda lines: read(lines.clean, rules))


def read(lines: list[str], rules: Grammar) -> Parsed | None:
    """Return what LINES hold by RULES."""
    match, inside = rules.line.match, rules.inside.search
    found = set[str]()
    weights: dict[int, float] = {}
    follow: dict[int, float] = {}  # what else is kept of a report
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
                if inside(line):
                    weights[at] = 0.8 * weight
                else:
                    follow[at] = 0.1 * weight
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


def kind_of(text: str) -> str:
    """Return what TEXT, the rest of a line, begins with, without its digits."""
    return text[:_TELLING].translate(_NO_DIGITS).strip()


_TELLING: Final = 40  # characters that say of which kind a message is
_NO_DIGITS: Final = dict.fromkeys(map(ord, "0123456789"))


def novelty(hit: re.Match[str], seen: Counter[str]) -> float:
    """Return how much the finding HIT counts after those that SEEN counts, and count it."""
    groups = hit.groupdict(default="")
    rule = "".join(text for group, text in groups.items() if group.startswith("rule"))
    rule = f"rule {rule or kind_of(hit.string[hit.end() :])}"
    file = f"file {groups.get('file', '')}"
    result = max(1 / (1 + seen[rule]), 0.6 / (1 + seen[file]))
    seen.update((rule, file))
    return result


def chosen(
    lines: list[str],
    weights: dict[int, float],
    follow: dict[int, float] | None = None,
    boundaries: Iterable[int] = (),
) -> Parsed:
    """Return as much of what WEIGHTS and FOLLOW say of LINES as there is room for, best first.

    WEIGHTS are of lines that report something, FOLLOW of others that are worth keeping.
    """
    both = {**(follow or {}), **weights}
    room = ROOM
    kept = []
    for _, at in nsmallest(_MOST, ((-weight, at) for at, weight in both.items())):
        room -= len(lines[at]) + 1
        if room < 0:
            break
        kept.append(at)
    strong = {at: weight for at, weight in weights.items() if weight >= _STRONG}
    return Parsed(kept=tuple(sorted(kept)), boundaries=tuple(boundaries), weights=strong)
