"""Results of searches, and listings of directories."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from retention.saver.formats.base import SURE, Format, Parsed, chosen, kind_of, share
from retention.saver.lines import Lines

# The number of a line, alone or after a path; what begins with a date or a time of day is neither.
_RESULT = re.compile(
    r"(?P<number>\d+)(?P<sign>[:-])(?!\d\d\b)"
    r"|(?!\d[\dT/.-]*:\d\d)(?=[^\s:]*[/.]|Makefile)"
    r"(?:(?P<file>[^\s:]++):\d+:|(?P<around>[^\s:]+?)-\d+-)"
)
_HEADING = re.compile(r"(?=[^\s:]*[/.])[^\s:]+$")
_ENOUGH: Final = 0.6  # share of lines that are results


def _parse_hits(lines: Lines) -> Parsed | None:
    """Keep of each file the first results, and of all those that are unlike the others."""
    found_in: dict[int, tuple[str, str]] = {}  # the file and the kind of each result
    follow: dict[int, float] = {}
    boundaries: list[int] = []
    heading = shown = ""
    hits = others = number = 0
    for at, line in enumerate(lines.clean):
        found = _RESULT.match(line)
        if found is None:
            if _HEADING.match(line):
                heading, number = line, 0
                boundaries.append(at)
                follow[at] = 0.3
            else:
                others += bool(line.strip(" -"))
            continue
        hits += 1
        file = found["file"]
        if found["number"]:
            before, number = number, int(found["number"][:9])
            if number <= before:
                return None  # numbers of lines grow within a file
            file = heading if found["sign"] == ":" else None
        if file is None:
            continue  # what stands around a result
        if file not in {shown, heading}:
            shown = file
            boundaries.append(at)
        found_in[at] = file, kind_of(line[found.end() :])
    if not hits or hits < _ENOUGH * (hits + others):
        return None
    often = Counter(kind for _, kind in found_in.values())
    files = Counter[str]()
    kinds = Counter[str]()
    for at, (file, kind) in found_in.items():
        first = 0.3 / (1 + files[file])
        follow[at] = max(first, (0.3 + first) / often[kind] / (1 + kinds[kind]))
        files[file] += 1
        kinds[kind] += 1
    return chosen(lines.clean, {}, follow, boundaries)


_ENTRY = re.compile(
    r"(?P<long>[-dlbcps][-rwxsStT]{9}[.+@]?\s+\d+\s)"  # ls -l
    r"|(?P<tree>[│├└ \u00a0]*[├└]── )"
    r"|(?P<total>total [\d.]+\w?$)"
    r"|(?P<sum>\d+ director(?:y|ies)(?:, \d+ files?)?$)"
    r"|(?P<path>(?:\.{0,2}/)?(?:[^\s/:]+/)+[^\s/:]*$|\./[^\s/:]*$)"  # find
    r"|(?P<folder>\S+:$)"
)
_is_listing = share(_ENTRY.pattern, 0.9)


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
        entry = _ENTRY.match(line)
        what = entry.lastgroup if entry is not None else "total"
        if what == "sum":
            weights[at] = SURE
        elif what == "folder":
            folder = line
            follow[at] = 0.6 / (1 + len(boundaries) / 40)
            boundaries.append(at)
        elif what != "total":
            entries += 1
            before, _, name = line.rpartition("/")
            if what == "path":
                folder = before
                if not folders[folder]:
                    boundaries.append(at)
            kind = name.rpartition(".")[2] if "." in name else ""
            follow[at] = max(0.5 / (1 + kinds[kind]), 0.4 / (1 + folders[folder]))
            kinds[kind] += 1
            folders[folder] += 1
    return chosen(lines.clean, weights, follow, boundaries) if entries else None


SEARCHES: Final[tuple[Format, ...]] = (
    Format(
        name="search",
        marks=share(_RESULT.pattern, _ENOUGH / 2),
        parse=_parse_hits,
    ),
    Format(name="listing", marks=_is_listing, parse=_parse_listing),
)
