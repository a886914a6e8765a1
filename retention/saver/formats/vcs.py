"""Version control."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from retention.saver.formats.base import SURE, Format, Parsed, chosen, share, signs
from retention.saver.lines import Lines

_COMMIT = re.compile(r"commit [0-9a-f]{7,64}(?: \(.*\))?$", re.MULTILINE)
_ONELINE = re.compile(r"(?:[*|/\\_ ]*[*|/\\_] +)?[0-9a-f]{7,12} \S")
_CHANGED = re.compile(r" \S.* \|\s+(?:\d+|Bin )| \d+ files? changed|diff --git ")
_FADING: Final = 60  # commits after which a subject counts half as much


def _parse_log(lines: Lines) -> Parsed | None:
    """Keep the commits with their subjects; files and diffs as far as there is room."""
    clean = lines.clean
    commits = [at for at, line in enumerate(clean) if _COMMIT.match(line)]
    if not commits:
        commits = [at for at, line in enumerate(clean) if _ONELINE.match(line)]
        weights = dict.fromkeys(commits, 0.3)
        return chosen(clean, {}, weights, commits) if commits else None
    follow: dict[int, float] = {}
    for count, at in enumerate(commits):
        weight = 0.3 / (1 + count / _FADING)
        follow[at] = weight
        after = commits[count + 1] if count + 1 < len(commits) else len(clean)
        subject = False
        for near in range(at + 1, after):
            line = clean[near]
            if not subject and line.startswith("    "):
                subject = True
                follow[near] = weight
            elif line and line[0] in " d" and _CHANGED.match(line):
                follow[near] = weight / 3
    return chosen(clean, {}, follow, commits)


_HASHES = share(_ONELINE.pattern, 0.9)

_DIFF = re.compile(
    r"(?P<file>diff --git |diff --cc |Index: )|(?P<hunk>@@ )|(?P<line>[-+](?![-+]{2} ))"
)


def _parse_diff(lines: Lines) -> Parsed | None:
    """Keep the names of files, the heads of hunks, and of each hunk its first changes."""
    follow: dict[int, float] = {}
    weights: dict[int, float] = {}
    boundaries: list[int] = []
    changes = hunks = 0
    for at, line in enumerate(lines.clean):
        hit = _DIFF.match(line)
        if hit is None:
            if line.startswith(("<<<<<<< ", ">>>>>>> ", "Binary files ")):
                weights[at] = 0.9
        elif hit["file"]:
            boundaries.append(at)
            follow[at] = 0.9
            hunks = 0
        elif hit["hunk"]:
            follow[at] = 0.6 / (1 + hunks / 8)
            hunks += 1
            changes = 0
        else:
            follow[at] = 0.25 / (1 + changes / 3) / (1 + hunks / 8)
            changes += 1
    if not boundaries:
        return None
    return chosen(lines.clean, weights, follow, boundaries)


_ENTRY = re.compile(r"\t(?:(?P<what>[a-z][a-z ]*?):\s+)?\S")
_SECTION = re.compile(
    r"[A-Z].*:$|On branch |HEAD detached|Your branch |nothing |no changes |You have "
)


def _parse_status(lines: Lines) -> Parsed | None:
    """Keep the sections, and of each its first entries of each kind."""
    weights: dict[int, float] = {}
    follow: dict[int, float] = {}
    boundaries: list[int] = []
    seen = Counter[str]()
    for at, line in enumerate(lines.clean):
        if line[:1] != "\t":
            if _SECTION.match(line):
                weights[at] = SURE
                boundaries.append(at)
                seen.clear()
            continue
        entry = _ENTRY.match(line)
        if entry is not None:
            kind = entry["what"] or "untracked"
            follow[at] = (0.2 if entry["what"] is None else 0.9) / (1 + seen[kind] / 20)
            seen[kind] += 1
    return chosen(lines.clean, weights, follow, boundaries) if len(boundaries) > 1 else None


_STATUS = re.compile(r"On branch |HEAD detached|interactive rebase|Not currently on")

VCS: Final[tuple[Format, ...]] = (
    Format(
        name="git_log",
        marks=lambda text: _COMMIT.match(text) is not None or _HASHES(text),
        parse=_parse_log,
    ),
    Format(name="git_diff", marks=signs("diff --(?:git|cc) |Index: "), parse=_parse_diff),
    Format(
        name="git_status",
        marks=lambda text: _STATUS.match(text) is not None,
        parse=_parse_status,
    ),
)
