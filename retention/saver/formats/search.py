"""Results of searches, and listings of directories."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Final

from retention.saver.formats.base import Format, Parsed, chosen, kind_of, share
from retention.saver.lines import Lines

# A path that a number follows; a time of day or a date before it is no path.
_PATH = r"(?![\d-]*\d[T\d]*:\d\d)(?:[^\s:]*/[^\s:]*|[^\s:]*\.[A-Za-z]\w*|Makefile)"
_HIT = re.compile(rf"(?P<file>{_PATH})[:-]\d+(?P<sign>[:-])")
_NUMBERED = re.compile(r"(?P<number>\d+)(?P<sign>[:-])(?!\d\d\b)")
_HEADING = re.compile(r"[^\s:]*[/.][^\s:]*$")
_ENOUGH: Final = 0.6  # share of lines that are results


def _parse_hits(lines: Lines) -> Parsed | None:
    """Keep of each file the first results, and of all those that are unlike the others."""
    files = Counter[str]()
    shapes = Counter[str]()
    follow: dict[int, float] = {}
    boundaries: list[int] = []
    file = heading = ""
    before = 0
    hits = others = 0
    place: int | None = None
    for at, line in enumerate(lines.clean):
        hit = _HIT.match(line)
        if hit is not None:
            file = hit["file"]
        elif (hit := _NUMBERED.match(line)) is not None:
            number = int(hit["number"][:9])
            if number <= before and file == heading:
                return None  # numbers of lines grow within a file
            before, file = number, heading
        elif _HEADING.match(line):
            heading, before, place = line, 0, at
            boundaries.append(at)
            continue
        else:
            others += bool(line.strip(" -"))
            continue
        hits += 1
        if hit["sign"] == "-":
            continue  # a line of context
        shape = kind_of(line[hit.end() :])
        if not files[file] and not heading:
            boundaries.append(at)
        follow[at] = max(0.6 / (1 + files[file]), 0.5 / (1 + shapes[shape]))
        if place is not None:
            follow[place] = 0.7
            place = None
        files[file] += 1
        shapes[shape] += 1
    if not hits or hits < _ENOUGH * (hits + others):
        return None
    return chosen(lines.clean, {}, follow, boundaries)


_LONG = re.compile(r"[-dlbcps][-rwxsStT]{9}[.+@]?\s+\d+\s")
_FOLDER = re.compile(r"(?P<folder>\S.*):$")
_TREE = re.compile(r"[│├└ \u00a0]*[├└]── ")
_ENTRY = re.compile(r"(?:\.{0,2}/)?(?:[^\s/:]+/)+[^\s/:]*$|\./[^\s/:]*$")
_TOTAL = re.compile(r"total [\d.]+\w?$|\d+ director(?:y|ies)(?:, \d+ files?)?$")
_KIND = re.compile(r"\.\w+$")


_is_listing = share(
    rf"{_LONG.pattern}|{_TREE.pattern}|{_ENTRY.pattern}|{_TOTAL.pattern}|\S+:$", 0.9
)


def _parse_listing(lines: Lines) -> Parsed | None:
    """Keep the folders, and the first entries of each folder and of each kind of file."""
    follow: dict[int, float] = {}
    weights: dict[int, float] = {}
    boundaries: list[int] = []
    kinds = Counter[str]()
    folders = Counter[str]()
    folder = ""
    entries = 0
    for at, line in enumerate(lines.clean):
        if _TOTAL.match(line):
            if not line.startswith("total"):
                weights[at] = 1.0
            continue
        long = _LONG.match(line) or _TREE.match(line)
        if long is None and (head := _FOLDER.match(line)) is not None:
            folder = head["folder"]
            follow[at] = 0.6 / (1 + len(boundaries) / 40)
            boundaries.append(at)
            continue
        if long is None and not _ENTRY.match(line):
            continue
        entries += 1
        if long is None:
            folder = line.rpartition("/")[0]
            if not folders[folder]:
                boundaries.append(at)
        kind = _KIND.search(line)
        name = kind[0] if kind else ""
        follow[at] = max(0.5 / (1 + kinds[name]), 0.4 / (1 + folders[folder]))
        kinds[name] += 1
        folders[folder] += 1
    return chosen(lines.clean, weights, follow, boundaries) if entries else None


def _found(text: str) -> bool:
    return _HITS(text) or (_NUMBERS(text) and _grows(text))


_HITS = share(_HIT.pattern, _ENOUGH)
_NUMBERS = share(rf"{_NUMBERED.pattern}|{_HEADING.pattern}", 0.9)


def _grows(text: str) -> bool:
    """Tell whether the numbers at the beginning of lines grow, but for new files."""
    numbers = [
        int(hit["number"][:9]) if hit is not None else 0
        for hit in map(_NUMBERED.match, text.split("\n"))
    ]
    pairs = [(low, high) for low, high in pairwise(numbers) if low and high]
    return bool(pairs) and all(low < high for low, high in pairs)


SEARCHES: Final[tuple[Format, ...]] = (
    Format(name="search", marks=_found, parse=_parse_hits),
    Format(name="listing", marks=_is_listing, parse=_parse_listing),
)
