r"""Saved gptel chats: what each stretch of such a file is (evidence.md V1).

gptel saves the positions of what it marked (its *bounds*): responses, results of tools, text that
is no part of the conversation.  They tell the model from the user, and are facts only while they
fit the text, which may have been edited without gptel since.  What tools and reasoning are, the
lines tell that gptel writes around them, which make a *block*.  Where bounds are missing or do not
fit, the text is in *doubt*: all but its blocks is plain text, and a warning says so.

Places are offsets in the exact text, in code points.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import sexpdata

from retention.errors import InvalidPayload
from retention.evidence.snapshots import Snapshot, Span
from retention.model import EventKind, Struct
from retention.providers.canonical import canonical_json
from retention.saver.excerpting import decode, legible

Mode = Literal["org", "markdown", "text"]

TITLE: Final = 80  # code points of a title
BOUNDS: Final = 1_000_000  # code points of saved bounds that are read: some 40,000 of them
CALL: Final = 1_000_000  # code points of a tool's call that are read
DEPTH: Final = 100  # levels of an expression that are read
MANY: Final = 0.25  # of the bounds from one on do not fit: none of these is trusted


class ChatFile(Struct, frozen=True):
    """A file as a chat.

    `conversation` is the id that we saved in it, "" for none.  `is_chat` tells whether gptel saved
    anything in it; where it did not, all of it is plain text.
    """

    snapshot: Snapshot
    conversation: str = ""
    mode: Mode = "text"
    is_chat: bool = False


class Range(NamedTuple):
    """The text from START up to END."""

    start: int
    end: int


class Bound(NamedTuple):
    """A stretch that gptel marked as MARK; FITS tells that it can be one of this text."""

    start: int
    end: int
    mark: str
    fits: bool = True


class Bounds(NamedTuple):
    """All bounds of a file in order, and where some are missing.

    PLAIN tells that they are of an early gptel, which saved those of responses only.
    """

    found: list[Bound]
    missing: list[Range]
    plain: bool = False


class Block(NamedTuple):
    """The whole lines of a tool's call with its result, or of reasoning.

    WITNESS is the bound that gptel made along with it, None where there is none.
    """

    start: int
    end: int
    header: Range
    tool: bool
    witness: Bound | None


class Settings(NamedTuple):
    """What is saved in a file beside the conversation, and where that stands."""

    values: dict[str, str]
    places: list[Range]


def read_chat(data: bytes, name: str) -> ChatFile:
    """Return the file DATA, called NAME, as a chat; any bytes are read."""
    text = decode(data)
    drawer, variables = _read_drawer(text), _read_variables(text)
    values = drawer.values | variables.values
    mode = _mode(name, drawer)
    written = values.get("GPTEL_BOUNDS", values.get("gptel--bounds"))
    if written is None:
        warning = "gptel saved no bounds in this file: nothing tells who wrote what in it."
        spans, warnings = [Span(0, len(text), EventKind.TEXT)], [warning]
    else:
        settings = _join((*drawer.places, *variables.places))
        spans, warnings = _attribute(text, written, settings, org=mode == "org")
    snapshot = Snapshot(
        text=text,
        spans=tuple(spans) if text else (),
        title=_title(text, spans) or _one_line(name),
        warnings=tuple(warnings),
    )
    return ChatFile(
        snapshot=snapshot,
        conversation=_conversation(values),
        mode=mode,
        is_chat=any(key.lower().startswith("gptel") for key in values),
    )


_MODES: Final[dict[str, Mode]] = {"org": "org", "md": "markdown", "markdown": "markdown"}


def _mode(name: str, drawer: Settings) -> Mode:
    ending = name.rpartition(".")[2].lower()
    if ending in _MODES:
        return _MODES[ending]
    return "org" if "GPTEL_BOUNDS" in drawer.values and ending != "txt" else "text"


_ID = re.compile(r'"?([\w-]{1,128})"?')


def _conversation(values: dict[str, str]) -> str:
    written = values.get("GPTEL_RETENTION_ID", values.get("gptel-retention-id", ""))
    found = _ID.fullmatch(written)
    return legible(found[1]) if found else ""


# What is saved beside the conversation

# Org reads the properties of a file from a drawer before all but comments, those of its first
# heading from the one below that.
_DRAWER = re.compile(
    r"(?P<before>\ufeff?(?:\*+ [^\n]*\n)?(?:[ \t]*(?:(?:#|CLOSED:|DEADLINE:|SCHEDULED:)[^\n]*)?\n"
    r"|\r\n){0,100}?)"
    r"[ \t]*:PROPERTIES:[ \t]*\r?\n"
    r"(?P<lines>(?:[ \t]*:[^\s:]+:(?:[ \t][^\n]*|\r)?\n)*?)"
    r"[ \t]*:END:[ \t]*\r?(?:\n|\Z)",
    re.IGNORECASE,
)
_PROPERTY = re.compile(r"^[ \t]*:([^\s:]+):[ \t]*([^\n]*)", re.MULTILINE)


def _read_drawer(text: str) -> Settings:
    found = _DRAWER.match(text)
    if found is None:
        return Settings({}, [])
    values = {key.upper(): value.strip() for key, value in _PROPERTY.findall(found["lines"])}
    before = found["before"]
    return Settings(values, [Range(len(before) if before != "\ufeff" else 0, found.end())])


_VARIABLES = re.compile(
    r"^([^\n]{0,80}?)(?i:Local Variables:)([^\n]{0,80}?)\r?\n", re.MULTILINE | re.ASCII
)


def _read_variables(text: str) -> Settings:
    """Return the file-local variables of all blocks that hold one of gptel's, and where those are.

    Emacs starts another block when the last one is so long that it does not find its beginning.
    """
    values: dict[str, str] = {}
    places = []
    for head in _VARIABLES.finditer(text):
        block = _read_block(text, head)
        if block is not None and any(key.startswith("gptel") for key in block.values):
            values |= block.values
            places += block.places
    return Settings(values, places)


def _read_block(text: str, head: re.Match[str]) -> Settings | None:
    prefix, suffix = head[1], head[2].rstrip()
    values: dict[str, str] = {}
    at = head.end()
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        line = text[at:end].rstrip()
        if not (line.startswith(prefix) and line.endswith(suffix)):
            return None
        key, colon, value = line[len(prefix) : len(line) - len(suffix)].strip().partition(":")
        if key.lower() == "end" and not value:
            return Settings(values, [Range(head.start(), end)])
        if not colon or not key or " " in key:
            return None
        values[key] = value.strip()
        at = end
    return None


# Expressions

_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[(\[]|[)\]]|\\.|[^"()\[\]\\]++|.', re.DOTALL)


class UnreadableExpression(ValueError):
    """A text that is no Lisp expression, or too long or too deep to be read."""


def _find_expression(text: str, start: int, end: int) -> str:
    """Return the list that stands in TEXT at START, and ends before END, as it is written.

    Raise UnreadableExpression.
    """
    depth = 0
    for token in _TOKEN.finditer(text, start, end):
        mark = token[0]
        if mark in {"(", "["}:
            depth += 1
        elif mark in {")", "]"}:
            depth -= 1
        if depth > DEPTH:
            break
        if depth == 0:
            return text[start : token.end()]
    raise UnreadableExpression("they do not end, or are too deep")


def _parse(written: str) -> list[Any]:
    """Return the list WRITTEN, as its library has it; raise UnreadableExpression."""
    try:
        value = sexpdata.loads(legible(written))
    # The library signals what it cannot read by whatever goes wrong in it.
    except Exception as error:
        raise UnreadableExpression("they are no Lisp expression") from error
    if not isinstance(value, list):
        raise UnreadableExpression("they are no list")
    return value


def _to_json(value: Any) -> Any:
    """Return the JSON value that gptel reads as the Lisp VALUE; nil and null are both None.

    Raise ValueError for what is none.
    """
    match value:
        case []:
            return None
        case [sexpdata.Symbol() as key, *_] if str(key).startswith(":"):
            pairs = zip(value[::2], value[1::2], strict=True)
            return {str(key).removeprefix(":"): _to_json(item) for key, item in pairs}
        case list():
            return [_to_json(item) for item in value]
        case sexpdata.Brackets():
            return [_to_json(item) for item in value.I]
        case sexpdata.Symbol():
            return {":json-false": False, ":null": None}.get(str(value), str(value))
        case str() | int() | float():
            return value
    raise UnreadableExpression("they hold what is no data")


# Org puts a comma before what begins a heading or a keyword.
_ESCAPE = re.compile(r"^([ \t]*,*),(?=\*|#\+)", re.MULTILINE)


def _read_call(text: str, block: Block, newline: int, *, org: bool) -> tuple[str, str] | None:
    """Return the tool's name and its arguments as canonical JSON; None if they are unreadable."""
    start = block.header.end + newline
    try:
        written = _find_expression(text, start, min(block.end, start + CALL))
        if newline == 2:
            written = written.replace("\r\n", "\n")
        call = _to_json(_parse(_ESCAPE.sub(r"\1", written) if org else written))
        name, arguments = call["name"], call.get("args") or {}
        return (name, canonical_json(json.dumps(arguments))) if isinstance(name, str) else None
    except (ValueError, TypeError, KeyError, AttributeError, InvalidPayload):
        return None


_BEGINS = re.compile(r"[ \t]*(?:#\+begin_tool|```+ tool)\b", re.IGNORECASE)


def block_result(block: str) -> str:
    """Return what the tool returned, of BLOCK, the text of a tool's block in a saved chat.

    That is without the lines around it, the call, and the commas that Org needs.  Another text, and
    a block whose call cannot be told, is returned as it is.
    """
    if not _BEGINS.match(block):
        return block
    header, _, inside = block.rstrip().partition("\n")
    inside = inside.rpartition("\n")[0]
    try:
        call = _find_expression(inside, 0, len(inside)) if inside.startswith("(") else ""
    except UnreadableExpression:
        return block
    result = inside[len(call) :].strip("\r\n")
    return _ESCAPE.sub(r"\1", result) if "#+" in header else result


# Bounds


class _Places:
    """Where in a text the positions of its buffer are.

    Emacs counts from 1, leaves out a byte order mark, and has one character for the end of a line
    if all of them are CR LF.
    """

    def __init__(self, text: str) -> None:
        self.first = int(text.startswith("\ufeff"))
        self.size = len(text)
        self._ends: list[int] = []  # positions of line ends of two characters, as Emacs counts
        if 0 < text.count("\r\n") == text.count("\n"):
            starts = (found.start() for found in re.finditer("\r\n", text))
            self._ends = [start - n - self.first for n, start in enumerate(starts)]

    @property
    def newline(self) -> int:
        """How many characters end a line."""
        return 2 if self._ends else 1

    def holds(self, start: int, end: int) -> bool:
        """Tell whether there is text from position START up to END."""
        return 1 <= start < end <= self.size - self.first - len(self._ends) + 1

    def find(self, position: int) -> int:
        """Return the offset of POSITION, or that of the nearest one of the text."""
        index = min(max(position - 1, 0), self.size)
        return min(index + bisect_left(self._ends, index) + self.first, self.size)


def _read_bounds(written: str, places: _Places) -> Bounds:
    """Return the bounds in WRITTEN: lists of them by mark or, of an early gptel, one of pairs.

    Raise UnreadableExpression.
    """
    if len(written) > BOUNDS:
        raise UnreadableExpression(f"they have more than {BOUNDS:,} characters")
    if written == "nil":
        return Bounds([], [])
    value = _parse(_find_expression(written, 0, len(written)))
    plain = bool(value and isinstance(value[0], list) and value[0]) and type(value[0][0]) is int
    found: list[Bound] = []
    missing: list[Range] = []
    for entry in [[sexpdata.Symbol("response"), *value]] if plain else value:
        match entry:
            case [sexpdata.Symbol() as mark, *items]:
                _read_marked(str(mark), items, places, found, missing)
            case _:
                missing.append(Range(0, places.size))
    return Bounds(_check_order(found), missing, plain)


def _read_marked(
    mark: str, items: list[Any], places: _Places, found: list[Bound], missing: list[Range]
) -> None:
    """Add the bounds of ITEMS to FOUND, and to MISSING where there are unreadable ones."""
    last, lost = 0, False
    for item in items:
        match item:
            case [int(start), int(end)] | [int(start), int(end), _]:
                pass
            case [int(start), sexpdata.Symbol(), int(end)]:
                pass
            case _:  # "..." of a print that was cut off, most of all
                lost = True
                continue
        bound = _place(start, end, mark, places)
        if lost:
            missing.append(Range(last, max(last, bound.start)))
        last, lost = bound.end, False
        found.append(bound)
    if lost:
        missing.append(Range(last, places.size))


def _place(start: int, end: int, mark: str, places: _Places) -> Bound:
    first, last = places.find(start), places.find(end)
    return Bound(first, max(first, last), mark, places.holds(start, end))


def _check_order(found: list[Bound]) -> list[Bound]:
    """Return FOUND in order; those that overlap another do not fit."""
    ordered = sorted(found)
    reached = 0
    for at, bound in enumerate(ordered):
        if bound.start < reached:
            ordered[at] = bound._replace(fits=False)
            ordered[at - 1] = ordered[at - 1]._replace(fits=False)
        reached = max(reached, bound.end)
    return ordered


# Blocks


class Line(NamedTuple):
    """A line that begins or ends a block, without its end; KIND "" stands for any."""

    start: int
    end: int
    opens: bool
    kind: str


# In Markdown whatever stands alone may end a block; the bounds tell which one does.
_ORG_LINE = re.compile(r"^#\+(?P<edge>begin|end)_(?P<kind>tool|reasoning)\b[^\n]*", re.MULTILINE)
_FENCE = re.compile(r"^```(?:(?P<edge>) (?P<kind>tool|reasoning)\b[^\n]*|[ \t\r]*$)", re.MULTILINE)


def _read_lines(text: str, newline: int, *, org: bool) -> Iterator[Line]:
    for found in (_ORG_LINE if org else _FENCE).finditer(text):
        end = found.end()
        if newline == 2 and text[end - 1] == "\r":
            end -= 1
        opens = found["edge"] == "begin" if org else found["edge"] is not None
        yield Line(found.start(), end, opens, found["kind"] or "")


def _find_blocks(text: str, bounds: list[Bound], newline: int, *, org: bool) -> list[Block]:
    """Return the blocks of TEXT.

    A block ends with the first line that can end it after its witness, without which it is the
    first at all, and never behind the beginning of another block.
    """
    openers: list[Line] = []
    closers: dict[str, list[Line]] = {"tool": [], "reasoning": []}
    for line in _read_lines(text, newline, org=org):
        if line.opens:
            openers.append(line)
        else:
            for kind in [line.kind] if line.kind else closers:
                closers[kind].append(line)
    starts = [line.start for line in openers]
    ends = {kind: [line.end for line in lines] for kind, lines in closers.items()}
    contents = {line.start - newline for line in closers["tool"]}  # where those end
    marked = [bound.start for bound in bounds]

    blocks: list[Block] = []
    reached = 0
    for at, line in enumerate(openers):
        if line.start < reached:
            continue
        near = bisect_right(marked, line.end + newline) - 1
        witness = bounds[near] if near >= 0 else None
        if witness is not None and not _bears_witness(witness, line, newline, contents):
            witness = None
        content = max(line.end + newline, witness.end if witness else 0)
        found = bisect_left(ends[line.kind], content)
        following = bisect_left(starts, content, lo=at + 1)
        if found == len(ends[line.kind]):
            continue
        closer = closers[line.kind][found]
        if following < len(starts) and starts[following] < closer.start:
            continue
        reached = min(closer.end + newline, len(text))
        header = Range(line.start, line.end)
        blocks.append(Block(line.start, reached, header, line.kind == "tool", witness))
    return blocks


def _bears_witness(bound: Bound, line: Line, newline: int, contents: set[int]) -> bool:
    """Tell whether BOUND, the last to begin before the content of the block at LINE, is its own.

    gptel marks a tool's call and result from the end of the first line to one of CONTENTS, where
    the last line follows.  What is typed in front of marked text becomes part of it, so that one of
    the two may have moved.  Reasoning is marked with the lines around it or without, as a response
    or as no part of the conversation; then the last line of a block in front may be part of it.
    """
    if not bound.fits:
        return False
    if line.kind == "tool":
        exact = bound.start in {line.start, line.end} or bound.end in contents
        return bound.mark == "tool" and line.start <= bound.start <= line.end and exact
    content = line.end + newline
    if bound.mark == "response":
        return bound.start == content
    begins = bound.start in {line.start, content} or bound.start in contents
    return bound.mark == "ignore" and begins and bound.end > line.start


# Who wrote what

_EDGE: Final = frozenset(("", "\ufeff", "\r", "\n"))  # before and after whole lines
_KINDS: Final = {"response": EventKind.ASSISTANT}
_PLAIN: Final = frozenset((EventKind.USER, EventKind.ASSISTANT, EventKind.TEXT))


def _attribute(
    text: str, written: str, settings: list[Range], *, org: bool
) -> tuple[list[Span], list[str]]:
    """Return the spans of TEXT, whose bounds are WRITTEN, and the warnings.

    SETTINGS are the places of what is no part of the conversation.
    """
    places = _Places(text)
    warnings: list[str] = []
    try:
        bounds = _read_bounds(written, places)
    except UnreadableExpression as error:
        warnings.append(f"The saved bounds cannot be read: {error}.")
        bounds = Bounds([], [Range(0, len(text))])
    else:
        if bounds.missing:
            warnings.append(f"Saved bounds are missing for {_lines(text, _join(bounds.missing))}.")
    blocks = _find_blocks(text, bounds.found, places.newline, org=org)
    missing, moved = _join(bounds.missing), _find_moved(text, bounds.found, blocks, settings)
    if moved:  # one that fits by chance is no witness
        firm = [bound for bound in bounds.found if not _is_within(bound, moved)]
        blocks = _find_blocks(text, firm, places.newline, org=org)
    doubt = _join((*missing, *moved))
    trusted = [b for b in blocks if b.witness or bounds.plain or _is_within(b, doubt)]
    told, unread = _tell_blocks(text, trusted, places.newline, org=org)
    marked = [
        Span(bound.start, bound.end, _KINDS.get(bound.mark, EventKind.TEXT))
        for bound in bounds.found
        if bound.fits
    ]
    spans = [Span(0, len(text), EventKind.USER)]
    for layer in (_plain(missing), marked, _plain(moved), told, _plain(settings)):
        spans = _overlay(spans, layer)

    if moved:
        warnings.append(
            f"The saved bounds do not fit {_lines(text, moved)}: the text was edited without gptel,"
            " or the user's words and the model's share a line."
        )
    if doubt:
        warnings.append(
            "There nothing tells who wrote what; tools and reasoning are known by their blocks."
        )
    if bounds.plain and trusted:
        warnings.append(
            "An early gptel saved this file: tools and reasoning are known by their blocks."
        )
    if unread:
        warnings.append(f"The arguments of {unread} calls cannot be read.")
    known = _join((*doubt, *settings))
    apart = [s for s in spans if s.kind is EventKind.TEXT and not _is_within(s, known)]
    if any(not text[span.start : span.end].isspace() for span in apart):
        where = _lines(text, [Range(span.start, span.end) for span in apart])
        warnings.append(f"gptel keeps text out of the conversation that is in no block: {where}.")
    return _join_blanks(text, spans), warnings


def _find_moved(
    text: str, found: list[Bound], blocks: list[Block], settings: list[Range]
) -> list[Range]:
    """Return the stretches of TEXT whose bounds do not fit it.

    Text that was put in or taken out moves all bounds behind it: where many do not fit, none is
    trusted up to the end.  One that does not by itself is a matter of its surroundings.  The bounds
    beside it are not trusted either, since one may fit by chance.
    """
    witnesses = {block.witness for block in blocks}
    edges = {block.start for block in blocks} | {place.start for place in settings}
    sound = [
        bound in witnesses
        or (bound.fits and bound.mark != "tool" and _stands(text, bound, edges, blocks))
        for bound in found
    ]
    misfits, last = 0, len(found)
    for at in reversed(range(len(found))):
        misfits += not sound[at]
        if not sound[at] and misfits >= MANY * (len(found) - at):
            last = at
    sound[last:] = [False] * len(sound[last:])

    moved = []
    for at, bound in enumerate(found):
        if not all(sound[max(0, at - 1) : at + 2]):
            start = found[at - 1].end if at else 0
            end = found[at + 1].start if at + 1 < len(found) else len(text)
            moved.append(Range(min(start, bound.start), max(end, bound.end)))
    return _join(moved)


def _stands(text: str, bound: Bound, edges: set[int], blocks: list[Block]) -> bool:
    """Tell whether BOUND, which is no witness, begins and ends where gptel puts what it marks so.

    A response begins after white space, in no block, and reaches to the end of a line, or to one of
    EDGES; what is kept out of the conversation begins and ends with a line, or at the end of one.
    """
    at = bisect_right(blocks, bound.start, key=lambda block: block.start) - 1
    if bound.mark == "response" and at >= 0 and bound.start < blocks[at].end:
        return False
    before, after = text[bound.start - 1 : bound.start], text[bound.end : bound.end + 1]
    first, last = text[bound.start], text[bound.end - 1]
    begins = before in _EDGE or (before.isspace() if bound.mark == "response" else first in _EDGE)
    ends = after in _EDGE or (bound.end in edges if bound.mark == "response" else last in _EDGE)
    return begins and ends


_NAME = re.compile(r"\(([^\s()]+)")


def _tell_blocks(
    text: str, blocks: list[Block], newline: int, *, org: bool
) -> tuple[list[Span], int]:
    """Return BLOCKS as spans, and how many calls could not be read."""
    spans, unread = [], 0
    for block in blocks:
        start, end = block.start, block.end
        if not block.tool:
            spans.append(Span(start, end, EventKind.ANALYSIS))
            continue
        call = _read_call(text, block, newline, org=org)
        if call is None:
            unread += 1
            named = _NAME.search(text, *block.header)
            call = (legible(named[1]) if named else "", "")
        spans.append(Span(start, end, EventKind.TOOL_OUTPUT, *call))
    return spans, unread


# Stretches


def _plain(ranges: Iterable[Range]) -> list[Span]:
    return [Span(*place, EventKind.TEXT) for place in ranges]


def _join(ranges: Iterable[Range]) -> list[Range]:
    """Return RANGES in order, those that touch as one, without empty ones."""
    joined: list[Range] = []
    for place in sorted(ranges):
        if joined and place.start <= joined[-1].end:
            joined[-1] = Range(joined[-1].start, max(joined[-1].end, place.end))
        elif place.start < place.end:
            joined.append(place)
    return joined


def _is_within(place: Block | Bound | Span, ranges: Sequence[Range]) -> bool:
    """Tell whether one of RANGES, which are in order and apart, holds PLACE."""
    at = bisect_right(ranges, place.start, key=lambda r: r.start) - 1
    return at >= 0 and place.end <= ranges[at].end


def _overlay(spans: list[Span], layer: Sequence[Span]) -> list[Span]:
    """Return SPANS, which cover a text, with those of LAYER, in order and apart, in their stead."""
    covered: list[Span] = []
    at = 0
    for span in spans:
        reached = span.start
        while at < len(layer) and layer[at].start < span.end:
            over = layer[at]
            if reached < over.start:
                covered.append(span._replace(start=reached, end=over.start))
            if span.start <= over.start:
                covered.append(over)
            reached = max(reached, over.end)
            if over.end > span.end:
                break
            at += 1
        if reached < span.end:
            covered.append(span._replace(start=reached))
    return covered


def _join_blanks(text: str, spans: list[Span]) -> list[Span]:
    """Return SPANS with white space in the event before or after it, one event for each kind.

    A block stays as it is: only its own lines are in it.
    """
    joined: list[Span] = []
    was_blank = False
    for span in spans:
        blank = span.kind in _PLAIN and text[span.start : span.end].isspace()
        last = joined[-1] if joined else None
        if (
            last is not None
            and {last.kind, span.kind} <= _PLAIN
            and (blank or was_blank or last.kind is span.kind)
        ):
            kind = span.kind if was_blank and not blank else last.kind
            joined[-1] = last._replace(end=span.end, kind=kind)
            was_blank = was_blank and blank
        else:
            joined.append(span._replace(kind=EventKind.TEXT) if blank else span)
            was_blank = blank
    return joined


# In words

_SHOWN: Final = 3  # stretches that a warning names


def _lines(text: str, ranges: list[Range]) -> str:
    """Return the numbers of the lines of RANGES, the first few, as words."""
    named = []
    for start, end in ranges[:_SHOWN]:
        first = text.count("\n", 0, start) + 1
        last = first + text.count("\n", start, max(start, end - 1))
        named.append(f"{first}-{last}")
    more = f" and {len(ranges) - _SHOWN} more stretches" if len(ranges) > _SHOWN else ""
    return f"lines {', '.join(named)}{more}"


_TITLE = re.compile(r"^#\+TITLE:[ \t]*(\S[^\n]*)", re.MULTILINE | re.IGNORECASE)
_PROMPT = re.compile(r"^(?![ \t]*#\+)[ \t#*]*([^\s#*][^\n]*)", re.MULTILINE)


def _title(text: str, spans: list[Span]) -> str:
    """Return Org's title, or the first line of the first prompt without the marks before it."""
    plain = (EventKind.USER, EventKind.TEXT)
    opening = next((span.start for span in spans if span.kind not in plain), len(text))
    found = _TITLE.search(text, 0, opening)
    if found is None:
        prompts = (span for span in spans if span.kind is EventKind.USER)
        hits = (_PROMPT.search(text, span.start, span.end) for span in prompts)
        found = next((hit for hit in hits if hit), None)
    return _one_line(found[1]) if found else ""


def _one_line(text: str) -> str:
    """Return the beginning of TEXT as a title."""
    return legible(" ".join(text[: 4 * TITLE].split())[:TITLE].rstrip())
