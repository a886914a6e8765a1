"""Logs of runners: `job TAB step TAB timestamp message`, or `timestamp message` with commands."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from retention.saver.formats.base import SURE, Format, Parsed, chosen, kind_of, share
from retention.saver.lines import Lines, is_problem_line

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"
_LINE = re.compile(rf"(?P<group>[^\t]+\t[^\t]+\t)?\ufeff?{_TIME} ?")
_MARK = re.compile(
    r"##\[(?P<mark>error|warning|group|endgroup|command|section|debug)\]|::(?P<word>error|warning)\b"
)
_BEFORE: Final = 3  # lines before the first error of a step that explain it
_WEIGHTS: Final = {"error": SURE, "warning": 0.5, "group": 0.3, "command": 0.2, "section": 0.2}


def _parse(lines: Lines) -> Parsed | None:
    """Keep errors with what stands before them, and each kind of problem of a failed step first."""
    clean = lines.clean
    weights: dict[int, float] = {}
    follow: dict[int, float] = {}
    boundaries: list[int] = []
    seen = Counter[str]()
    group: str | None = None
    failed = False
    read = 0
    for at, line in enumerate(clean):
        head = _LINE.match(line)
        if head is None:
            continue
        read += 1
        if head["group"] != group:
            group, failed = head["group"], False
            boundaries.append(at)
        mark = _MARK.match(line, head.end())
        kind = (mark["mark"] or mark["word"]) if mark is not None else ""
        if kind == "error":
            weights[at] = SURE
            if not failed:
                failed = True
                start = max(at - _BEFORE, boundaries[-1])
                if start > boundaries[-1]:
                    boundaries.append(start)
                follow.update(dict.fromkeys(range(start, at), 0.4))
        elif kind in _WEIGHTS:
            follow[at] = _WEIGHTS[kind]
        elif is_problem_line(line[head.end() :]):
            shape = kind_of(line[head.end() :])
            weights[at] = 0.9 / (1 + seen[shape])
            seen[shape] += 1
    if not read:
        return None
    return chosen(clean, weights, follow, boundaries)


_STAMPED = share(_LINE.pattern, 0.8)


def _marks(text: str) -> bool:
    return _STAMPED(text) and ("##[" in text or "\t" in text.partition("\n")[0])


CI: Final[tuple[Format, ...]] = (Format(name="ci_log", marks=_marks, parse=_parse),)
