r"""Lines of a tool's output, as they stand and as a reader of a terminal would see them.

What is kept of an output is always a stretch of its own text.  `clean` and what builds on it serve
matching only.  A *line* ends after "\n"; of a long line only the first `MATCHED` characters are
matched, so that no pattern meets an unbounded text.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MATCHED: Final = 2_000  # characters of a line that patterns see

# CSI and OSC sequences, character sets, and the two-character escapes (ECMA-48).
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][0-9A-Za-z]|[@-Z\\-_=>])"
)
_BACKSPACE = re.compile(r"[^\x08\n]\x08")


def split_lines(text: str) -> list[str]:
    r"""Return the lines of TEXT with their ends, so that they join to TEXT: only "\n" ends one."""
    pieces = text.split("\n")
    last = pieces.pop()
    lines = [piece + "\n" for piece in pieces]
    return [*lines, last] if last else lines


def clean(line: str) -> str:
    r"""Return LINE as a terminal would leave it, without its end, clipped to `MATCHED` characters.

    Escape sequences are dropped, a character before a backspace too, and of what the line wrote
    over itself with carriage returns only the last writing stands.
    """
    end = len(line) - line.endswith("\n")
    while True:
        start = line.rfind("\r", 0, end) + 1
        shown = _without_escapes(line[start : min(end, start + 2 * MATCHED)])
        if shown or not start:
            return shown[:MATCHED]
        end = start - 1


def _without_escapes(text: str) -> str:
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _BACKSPACE.sub("", text) if "\b" in text else text


class Lines(NamedTuple):
    """The lines of one output: RAW as they stand, joining to it, and CLEAN as `clean` has them."""

    raw: list[str]
    clean: list[str]


def read_lines(text: str) -> Lines:
    """Return the lines of TEXT."""
    raw = split_lines(text)
    if any(mark in text for mark in "\x1b\b\r"):
        return Lines(raw, [clean(line) for line in raw])
    return Lines(raw, [line[:MATCHED].removesuffix("\n") for line in raw])


# What a line says went wrong.  The words are looked for in lower case, so that the patterns need
# no flag; a word that is part of a name in the plural or of a count of zero is no problem.
_PROBLEM = re.compile(
    r"""(?<![a-z0-9_.-])(?:errors?|fail(?:ed|ure|ures|ing|s)?|fatal|exceptions?|panic(?:ked)?
    |traceback|assert(?:ion)?error|[a-z0-9_.]*(?:error|exception)|undefined\ reference
    |segmentation\ fault|segfault|core\ dumped|abort(?:ed)?|denied|refused|cannot|could\ not
    |unable\ to|not\ found|no\ such\ file|timed?\ out|timeout|killed|out\ of\ memory|conflict
    |critical|unresolved|unexpected|invalid|npm\ err!|exited\ with|warn(?:ings?)?)(?![a-z0-9_-])
    |^\s*(?:e\ {2,}\S|[\u00d7✗✕✖●]\ |not\ ok\b)|\#\#\[error\]""",
    re.VERBOSE,
)
_NO_PROBLEM = re.compile(
    r"(?<![\w.])(?:0|no)\s+(?:errors?|fail(?:ed|ures?)|warnings?|problems?|vulnerabilities)"
)


def is_problem_line(line: str) -> bool:
    """Tell whether LINE, a cleaned one, says that something went wrong, or warns."""
    lowered = line[:MATCHED].lower()
    if _PROBLEM.search(lowered) is None:
        return False
    return _PROBLEM.search(_NO_PROBLEM.sub("", lowered)) is not None


_VARYING = re.compile(r"0x[0-9a-f]+|\b(?=[0-9a-f]*[0-9])[0-9a-f]{6,}\b|[0-9]+")


def line_shape(line: str) -> str:
    """Return LINE, a cleaned one, with what varies between its likes masked: numbers, hashes.

    Lines that one statement of a program wrote have one shape.
    """
    return " ".join(_VARYING.sub("0", line[:MATCHED].lower()).split())


def size_words(size: int) -> str:
    """Return SIZE in bytes as KB of 1,024 bytes, with one decimal."""
    return f"{size / 1024:,.1f} KB"
