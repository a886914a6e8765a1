r"""Lines of a tool's output, as they stand and as a reader of a terminal would see them.

What is kept of an output is always a stretch of its own text.  `clean` and what builds on it serve
matching only.  A *line* ends after "\n"; of a long line only the first `MATCHED` characters are
matched, so that no pattern meets an unbounded text.  A *piece* is a line, or a stretch of one that
is too long to be kept or left out as one: what an excerpt is made of.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

MATCHED: Final = 2_000  # characters of a line that patterns see
WHOLE: Final = 1_000  # characters of a line that is one piece
PIECE: Final = 500  # characters, at most, of a piece of a longer line

# CSI and OSC sequences, character sets, and the two-character escapes (ECMA-48).
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][0-9A-Za-z]|[@-Z\\-_=>])"
)
_BACKSPACE = re.compile(r"[^\x08\n]\x08")


def clean(line: str) -> str:
    r"""Return LINE as a terminal would leave it, without its end, clipped to `MATCHED` characters.

    Escape sequences are dropped, a character before a backspace too, and of what the line wrote
    over itself with carriage returns only the last writing stands.
    """
    end = len(line)
    while True:
        start = line.rfind("\r", 0, end) + 1
        shown = without_escapes(line[start : min(end, start + 2 * MATCHED)])
        if shown or not start:
            return shown[:MATCHED]
        end = start - 1


def without_escapes(text: str) -> str:
    """Return TEXT without escape sequences, and without a character before a backspace."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _BACKSPACE.sub("", text) if "\b" in text else text


class Lines(NamedTuple):
    """The lines of one output.

    CLEAN are the lines as `clean` has them, for matching.  STARTS are the offsets in TEXT where the
    lines begin, and after them its length: a line as it stands is a stretch of TEXT.
    """

    text: str
    starts: array[int]
    clean: list[str]


def read_lines(text: str) -> Lines:
    r"""Return the lines of TEXT: only "\n" ends one, and there is none after the last end."""
    lines = text.split("\n")
    starts = array("q", accumulate((len(line) + 1 for line in lines), initial=0))
    starts[-1] = len(text)
    if not lines[-1]:
        lines.pop()
        starts.pop()
    if any(mark in text for mark in "\x1b\b\r"):
        lines = [clean(line) for line in lines]
    elif any(len(line) > MATCHED for line in lines):
        lines = [line[:MATCHED] for line in lines]
    return Lines(text, starts, lines)


class Pieces(NamedTuple):
    """The pieces of one output: STARTS and CLEAN as those of `Lines`, OWNERS the lines' numbers."""

    text: str
    starts: array[int]
    clean: list[str]
    owners: Sequence[int]


def read_pieces(lines: Lines) -> Pieces:
    """Return the pieces of LINES, which join to their text."""
    text, starts, clean_lines = lines
    long = [at for at in range(len(clean_lines)) if starts[at + 1] - starts[at] > WHOLE + 1]
    if not long:
        return Pieces(text, starts, clean_lines, range(len(clean_lines)))
    owners, places, shown = array("q"), array("q"), list[str]()
    after = 0
    for at in [*long, len(clean_lines)]:
        owners.extend(range(after, at))
        places.extend(starts[after:at])
        shown.extend(clean_lines[after:at])
        if at < len(clean_lines):
            cuts = [*_cuts(text, starts[at], starts[at + 1]), starts[at + 1]]
            owners.extend([at] * (len(cuts) - 1))
            places.extend(cuts[:-1])
            shown.extend(clean(text[a:b].removesuffix("\n")) for a, b in pairwise(cuts))
        after = at + 1
    places.append(len(text))
    return Pieces(text, places, shown, owners)


_JOINTS = ("\r", "},", "],", ";", ",", " ")  # where a long line is best cut, after the joint


def _cuts(text: str, start: int, end: int) -> Iterator[int]:
    """Yield where the pieces of the long line from START to END begin."""
    yield start
    while end - start > PIECE:
        low, high = start + PIECE // 2, start + PIECE
        found = (text.rfind(joint, low, high) + len(joint) for joint in _JOINTS)
        start = next((cut for cut in found if cut > low), high)
        yield start


# What says that something went wrong, in lower case: a line without one of these words has no
# problem, and is not looked at further.
PROBLEM_WORDS: Final = tuple(
    """error|exception|fail|fatal|panic|traceback|warn|abort|critical|denied|refused|killed|conflict
    |unresolved|crash|invalid|unexpected|timeout|timed out|segfault|segmentation fault|core dumped
    |out of memory|undefined reference|exited with|not ok|not found|no such file|cannot|could not
    |unable to|✗|✕""".replace("\n    ", "").split("|")
)
_END = r"(?![\w-]|[.(]\w)"  # so that no name of a file, function or option is a word
_PROBLEM = re.compile(
    rf"""(?P<sure>(?:error|exception)s?{_END}|fail(?:ed|ures?|ing|s)?{_END}|fatal\b|panic(?:ked)?\b
    |traceback\ \(|abort(?:ed)?{_END}|critical{_END}|segfault|segmentation\ fault|core\ dumped
    |out\ of\ memory|undefined\ reference|exited\ with|not\ ok\b|[✗✕]\ )
    |(?P<likely>denied|refused|killed{_END}|conflict{_END}|unresolved|crash(?:ed|es)?{_END}
    |timed\ out|timeout{_END}|not\ found|no\ such\ file|cannot|could\ not|unable\ to)
    |(?P<maybe>warn(?:ing|ings)?{_END}|invalid|unexpected)""",
    re.VERBOSE,
)
_WEIGHTS: Final = {"sure": 1.0, "likely": 0.8, "maybe": 0.5}
_NONE = re.compile(r"(?:\b(?:0|no|without|any)|[-/_.])\s*$")  # before a word, makes it say nothing


def problem_weight(line: str) -> float:
    """Return how clearly LINE, clean and in lower case, says that something is wrong: 0 to 1."""
    weight = 0.0
    for found in _PROBLEM.finditer(line):
        if not _NONE.search(line[max(0, found.start() - 10) : found.start()]):
            weight = max(weight, _WEIGHTS[found.lastgroup or ""])
            if weight == 1.0:
                break
    return weight


def is_problem_line(line: str) -> bool:
    """Tell whether LINE, a clean one, says that something went wrong, or warns."""
    return problem_weight(line.lower()) > 0


_VARYING = re.compile(r"0x[0-9a-f]+|\b(?=[0-9a-f]*[0-9])[0-9a-f]{6,}\b|[0-9]+")


def line_shape(line: str) -> str:
    """Return LINE, a cleaned one, with what varies between its likes masked: numbers, hashes.

    Lines that one statement of a program wrote have one shape.
    """
    return " ".join(_VARYING.sub("0", line[:MATCHED].lower()).split())


def size_words(size: int) -> str:
    """Return SIZE in bytes as KB of 1,024 bytes, with one decimal."""
    return f"{size / 1024:,.1f} KB"
