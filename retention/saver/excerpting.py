"""What the model receives of one tool result: the decisions in their order (tool-output.md O3).

Pure and deterministic.  The caller stores the bytes whole before it hands on anything else, and
keeps what was decided for ever after (O2).  The unit of all bounds is the Unicode code point.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from retention.digest import Digest, digest, to_hex
from retention.encoding import Mode, shorter
from retention.model import Struct
from retention.saver.formats import Parsed, parse
from retention.saver.lines import (
    Lines,
    Pieces,
    read_lines,
    read_pieces,
    size_words,
    without_escapes,
)
from retention.saver.scoring import LOCAL_KEEP, Evidence, local, weigh
from retention.saver.segments import Segment, bytes_of, split
from retention.saver.selecting import JUDGED, WANTED, select

ID: Final = 12  # hex digits of an output's id, after its letter
RECALL: Final = "recall_output"  # the tool by which a model recalls what it was not shown
BLOCK: Final = 4_096  # lines that are compared together
COMPACTION: Final = 8  # JSON this many times the bound is not tried in another notation


class Output(Struct, frozen=True):
    """One tool result: its exact bytes, the latest user turn, the tool, its arguments as text."""

    data: bytes
    task: str = ""
    tool: str = ""
    call: str = ""


class Earlier(Struct, frozen=True):
    """An earlier result: its id, and the tool that returned it."""

    id: str
    tool: str = ""


class Known(Struct, frozen=True):
    """What is known besides the output: earlier results by `sameness`, and of stored outputs the
    HANDLES, ids and paths, that a call may name; PATH is where this one can be read, if anywhere.
    """

    earlier: Mapping[Digest, Earlier] = {}
    handles: Sequence[str] = ()
    path: str = ""


class Options(Struct, frozen=True):
    """The thresholds, in code points where nothing else is said.

    `tail_min_chars`: results up to this long are left alone.  `narrowed_max_chars`: likewise for a
    call that narrows its output itself.  `duplicate_min_chars`: from here on a result is compared
    with earlier ones.  `excerpt_max_chars` and `segment_max_fraction`, of the original, bound an
    excerpt, and it must save `saved_min_chars`.  `segment_keep`: the score from which a segment is
    kept, of those that a model gives.  `json`: when JSON goes out as TOON (rule T5).
    """

    tail_min_chars: int = 12_000
    narrowed_max_chars: int = 32_000
    duplicate_min_chars: int = 2_000
    excerpt_max_chars: int = 16_000
    segment_max_fraction: float = 0.4
    saved_min_chars: int = 1_000
    segment_keep: float = 0.7
    json: Mode = "auto"


DEFAULTS: Final = Options()
NOTHING: Final = Known()


class Strategy(StrEnum):
    """How the text that the model receives was made."""

    WHOLE = "whole"  # as it is
    PAGE = "page"  # the first page of it
    DUPLICATE = "duplicate"  # a note that points to an earlier result
    ENCODED = "encoded"  # all of it: JSON in a shorter notation
    FORMAT = "format"  # an excerpt by a format's parser
    SEGMENTS = "segments"  # an excerpt with whole segments that the task needs
    GENERIC = "generic"  # an excerpt of problems, words of the task, rare lines, beginning and end


class Excerpt(Struct, frozen=True):
    """What the model receives, and how it came about.

    `why` is one line for the user.  `kept` are ranges of lines, first and last, from 1, of which at
    least a part is in the text.  `chars`, `lines` and `size`, in bytes, are those of the original,
    `undecoded` how many of its bytes are no UTF-8.
    """

    id: str
    text: str
    strategy: Strategy
    why: str
    chars: int
    lines: int
    size: int
    undecoded: int = 0
    format: str = ""
    kept: tuple[tuple[int, int], ...] = ()
    segments: tuple[Segment, ...] = ()


def output_id(data: bytes) -> str:
    """Return the short id of an output with the bytes DATA, and of no other."""
    return f"o{to_hex(digest('blob', data))[:ID]}"


def decode(data: bytes) -> str:
    """Return DATA as text to work on; `surrogateescape` keeps what is no UTF-8."""
    return data.decode("utf-8", "surrogateescape")


_UNDECODED = re.compile("[\udc80-\udcff]")


def legible(text: str) -> str:
    """Return TEXT with U+FFFD for each byte that is no UTF-8."""
    return text if text.isascii() else _UNDECODED.sub("\ufffd", text)


def sameness(text: str) -> Digest:
    """Return what two results have in common that a reader would call the same."""
    return _sameness(read_lines(text))


def _sameness(lines: Lines) -> Digest:
    shown, starts = lines.clean, lines.starts
    inked = (at for at, line in enumerate(shown) if line and not line.isspace())
    first = next(inked, len(shown))
    last = max(inked, default=first)
    # What stands, not what is matched: long lines may differ at their ends alone.
    blocks = (
        without_escapes(lines.text[starts[at] : starts[min(at + BLOCK, last + 1)]])
        for at in range(first, min(last + 1, len(shown)), BLOCK)
    )
    texts = ("\n".join([line.rstrip() for line in block.split("\n")]).rstrip() for block in blocks)
    digests = [digest("blob", text.encode("utf-8", "surrogatepass")) for text in texts]
    return digest("blob", b"".join(digests))


def excerpt(
    output: Output,
    options: Options = DEFAULTS,
    known: Known = NOTHING,
    scores: Sequence[float] | None = None,
    *,
    whole: bool = False,
) -> Excerpt:
    """Return what the model receives of OUTPUT.

    SCORES are a model's, one for each segment of this very output, and WHOLE what it says of the
    task's need; without scores, and where none is high enough, the text decides alone.
    """
    id = output_id(output.data)
    text = decode(output.data)
    lines = read_lines(text)
    made = Excerpt(
        id=id,
        text=legible(text),
        strategy=Strategy.WHOLE,
        why="it is short",
        chars=len(text),
        lines=len(lines.clean),
        size=len(output.data),
        undecoded=0 if text.isascii() else sum(1 for _ in _UNDECODED.finditer(text)),
    )
    if any(_names(output.call, handle) for handle in known.handles):
        return _page(made, text, options, known, "it was recalled")
    if made.chars <= options.narrowed_max_chars and _NARROWS.search(output.call):
        return replace(made, why="the call narrows its output")
    name, parsed = parse(lines) or ("", Parsed(kept=()))
    made = replace(made, format=name)
    if whole or _needs_whole(output.task, name):
        return _page(made, text, options, known, "the task needs the whole")
    if made.chars >= options.duplicate_min_chars:
        earlier = known.earlier.get(_sameness(lines))
        if earlier is not None:
            return _duplicate(made, earlier)
    encoded = _encoded(made, text, options, known)
    if encoded is not None:
        return encoded
    if made.chars <= options.tail_min_chars:
        return made
    return _excerpt(
        made,
        lines,
        parsed,
        output.task,
        options=options,
        known=known,
        scores=scores,
    )


class Examined(NamedTuple):
    """An output taken apart: its pieces, the segments that they make, and what speaks for them."""

    pieces: Pieces
    segments: tuple[Segment, ...]
    evidence: Evidence


def examine(lines: Lines, parsed: Parsed, task: str) -> Examined:
    """Take LINES apart, in which a format's parser found what PARSED says, for TASK."""
    pieces = read_pieces(lines)
    marked = {bisect_left(pieces.owners, at): weight for at, weight in parsed.weights.items()}
    return Examined(pieces, split(pieces, parsed.boundaries), weigh(pieces, task, marked))


def _excerpt(
    made: Excerpt,
    lines: Lines,
    parsed: Parsed,
    task: str,
    *,
    options: Options,
    known: Known,
    scores: Sequence[float] | None,
) -> Excerpt:
    """Return an excerpt of LINES, or the first page where none fits the bounds."""
    pieces, segments, evidence = examine(lines, parsed, task)
    wanted = _wanted(segments, scores, options.segment_keep)
    if not wanted and not made.format:
        wanted = _wanted(segments, local(segments, pieces, evidence), LOCAL_KEEP)
    strategy = Strategy.SEGMENTS if wanted else Strategy.FORMAT if made.format else Strategy.GENERIC

    longest = min(
        options.excerpt_max_chars,
        int(made.chars * options.segment_max_fraction),
        made.chars - options.saved_min_chars,
    )
    room = longest - len(_header(made, made.size, made.lines)) - len(_footer(made, known, segments))
    first = partial(bisect_left, pieces.owners)  # the first piece of a line
    kept = select(
        pieces,
        segments,
        evidence,
        limit=room,
        wanted=wanted,
        share=WANTED if scores is None else JUDGED,
        parsed=[piece for at in parsed.kept for piece in range(first(at), first(at + 1))],
    )
    numbers = [at for at, keep in enumerate(kept.kept) if keep]
    if kept.cost > room or not numbers:
        return _page(made, pieces.text, options, known, "no excerpt fits the bounds")
    ranges = _ranges([pieces.owners[at] + 1 for at in numbers])
    shown = sum(last - first + 1 for first, last in ranges)
    starts = pieces.starts
    size = sum(len(bytes_of(pieces.text[starts[at] : starts[at + 1]])) for at in numbers)
    gone = [
        segment for segment in segments if not any(kept.kept[at] for at in kept.pieces_of(segment))
    ]
    body = kept.render()
    text = _header(made, size, shown) + body
    text += ("" if body.endswith("\n") else "\n") + _footer(made, known, gone)
    return replace(
        made,
        text=legible(text),
        strategy=strategy,
        why=_WHY[strategy],
        kept=ranges,
        segments=segments,
    )


_WHY: Final = {
    Strategy.FORMAT: "its format is known",
    Strategy.SEGMENTS: "the task needs some segments",
    Strategy.GENERIC: "it is long",
}


def _wanted(
    segments: Sequence[Segment], scores: Sequence[float] | None, least: float
) -> list[Segment]:
    """Return the SEGMENTS with at least the LEAST of SCORES, best first."""
    if scores is None or len(scores) != len(segments):
        return []
    pairs = [pair for pair in zip(scores, segments, strict=True) if pair[0] >= least]
    return [segment for _, segment in sorted(pairs, key=lambda pair: -pair[0])]


def _ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges, first and last, that the growing NUMBERS make; one may stand twice."""
    ranges = list[tuple[int, int]]()
    for number in numbers:
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return tuple(ranges)


# What stands around the text


def _header(made: Excerpt, size: int, lines: int) -> str:
    """Return the first line of an excerpt that has LINES of the output, SIZE bytes in all."""
    what = f"{made.format} output" if made.format else "output"
    return (
        f"[Excerpt of {what}: {lines:,} of {made.lines:,} lines,"
        f" {size_words(size)} of {size_words(made.size)}.{_undecoded(made)} What is not shown may"
        " still be there: narrow the command or recall a part before concluding that something is"
        " absent.]\n"
    )


def _undecoded(made: Excerpt) -> str:
    if not made.undecoded:
        return ""
    return f" {made.undecoded:,} bytes are no UTF-8 and stand as \ufffd."


def _footer(made: Excerpt, known: Known, gone: Sequence[Segment]) -> str:
    """Return the last line: how to come by what was left out, GONE segments above all."""
    place = f", file {known.path}" if known.path else ""
    what = "any part exactly: lines, a pattern with context"
    if gone:
        ids = ", ".join(f"{segment.number} = {segment.id}" for segment in gone)
        what += f", an omitted segment by its id: {ids}"
    return f"[Whole output: id {made.id}{place}. {RECALL} returns {what}.]"


def _page(made: Excerpt, text: str, options: Options, known: Known, why: str) -> Excerpt:
    """Return all of TEXT if it fits the bound, else its first page."""
    if made.chars <= options.excerpt_max_chars:
        return replace(made, why=why)
    place = f", file {known.path}" if known.path else ""

    def around(end: int) -> tuple[str, str]:
        header = (
            f"[The first {end:,} of {made.chars:,} characters.{_undecoded(made)} The rest is not"
        )
        return (
            header + " shown: read on before concluding that something is absent.]\n",
            f"\n[Whole output: id {made.id}{place}. Read on with {RECALL}, offset {end}.]",
        )

    end = max(0, options.excerpt_max_chars - sum(map(len, around(made.chars))))
    end = text.rfind("\n", end // 2, end) + 1 or end
    header, footer = around(end)
    shown = read_lines(text[:end])
    return replace(
        made,
        text=header + legible(text[:end]) + footer,
        strategy=Strategy.PAGE,
        why=why,
        kept=((1, len(shown.clean)),),
    )


def _duplicate(made: Excerpt, earlier: Earlier) -> Excerpt:
    """Return the note that stands for a result that is identical to an EARLIER one."""
    source = f" of {earlier.tool}" if earlier.tool else ""
    note = (
        f"[Identical to the earlier result{source}, id {earlier.id}: {made.chars:,} characters,"
        f" {made.lines:,} lines. What was shown of that result still applies; {RECALL} returns any"
        " part of it.]"
    )
    why = f"identical to {earlier.id}"
    return replace(made, text=note, strategy=Strategy.DUPLICATE, why=why)


def _encoded(made: Excerpt, text: str, options: Options, known: Known) -> Excerpt | None:
    """Return JSON in a shorter notation where all of it fits the bound and enough is saved."""
    if made.chars > COMPACTION * options.excerpt_max_chars or text.lstrip()[:1] not in {"{", "["}:
        return None
    body, form = shorter(text, options.json)
    body += "\n" + _footer(made, known, ())
    if len(body) > min(options.excerpt_max_chars, made.chars - options.saved_min_chars):
        return None
    return replace(made, text=body, strategy=Strategy.ENCODED, why=f"JSON, all of it as {form}")


# What the call and the task say


_NARROWS = re.compile(
    r"""(?:^|[|;&(\s"'])(?:head|tail)\s
    |\bsed\s+(?:-\w+\s+)*-n\b
    |\b(?:grep|rg|ag)\b[^|;&]*\s(?:-m\s*\d|--max-count)
    |"(?:offset|limit|start_?line|end_?line|line_?range|max_?lines|head_?limit)"\s*:\s*["\[]?[1-9]
    """,
    re.VERBOSE | re.IGNORECASE,
)

# What in a task asks for the whole of an output: of any, and of those of some formats ("" is none).
_EXACT = re.compile(
    r"""\b(?:exact|verbatim|full|entire|complete|whole)\s+(?:\w+\s+){0,2}(?:output|text|contents?)\b
    |\b(?:output|print|show|repeat|quote)\b[^.]{0,40}\b(?:exactly|verbatim|in\ full)\b""",
    re.VERBOSE | re.IGNORECASE,
)
_THOROUGH: Final = {
    "": re.compile(r"\breview\b[^.]{0,40}\b(?:code|source|file|module|class)\b", re.IGNORECASE),
    "git_diff": re.compile(r"\breview\b", re.IGNORECASE),
    "git_log": re.compile(r"\b(?:change\s?log|release notes)\b", re.IGNORECASE),
    "json": re.compile(r"\b(?:convert|transform|translate|reformat)\b", re.IGNORECASE),
    "csv": re.compile(r"\b(?:convert|transform|translate|reformat)\b", re.IGNORECASE),
}


def _names(call: str, handle: str) -> bool:
    """Tell whether CALL, which may be JSON, has HANDLE in it."""
    return handle in call or handle.replace("\\", "\\\\") in call


def _needs_whole(task: str, format: str) -> bool:
    """Tell whether TASK can only be done with the whole of an output of FORMAT."""
    thorough = _THOROUGH.get(format)
    return any(pattern.search(task) for pattern in (_EXACT, thorough) if pattern is not None)
