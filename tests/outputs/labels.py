"""Labels of the corpus: per file its task, its format, and the numbers of the lines that matter."""

from __future__ import annotations

import re
from typing import Any

from retention.saver.lines import read_lines
from tests.outputs import OUTPUTS
from tests.outputs.recordings import RECORDINGS, Recording


def matching(lines: list[str], patterns: tuple[str, ...]) -> list[int]:
    """Return the numbers, from 0, of the LINES (cleaned ones) in which one of PATTERNS is found."""
    return [
        number
        for number, line in enumerate(lines)
        if any(re.search(pattern, line) for pattern in patterns)
    ]


def label(recording: Recording) -> dict[str, Any]:
    """Return the label of RECORDING; a pattern that no line matches is an error of the table."""
    text = (OUTPUTS / f"{recording.name}.txt").read_bytes().decode("utf-8", "surrogateescape")
    lines = read_lines(text).clean
    for pattern in recording.needs + recording.errors:
        if not matching(lines, (pattern,)):
            raise ValueError(f"{recording.name}: no line matches {pattern}")
    return {
        "task": recording.task,
        "format": recording.format,
        "needs": matching(lines, recording.needs),
        "errors": matching(lines, recording.errors),
    }


def label_all() -> dict[str, dict[str, Any]]:
    """Return the label of each recording that has a file, by file name."""
    return {
        f"{recording.name}.txt": label(recording)
        for recording in RECORDINGS
        if (OUTPUTS / f"{recording.name}.txt").exists()
    }
