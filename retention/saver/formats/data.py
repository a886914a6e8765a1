"""Data: JSON, one value or one on each line, and tables of separated values."""

from __future__ import annotations

import csv
import re
from typing import Final

import msgspec

from retention.saver.formats.base import SURE, Format, Parsed, chosen
from retention.saver.lines import Lines

_OPENING = re.compile(r"\s*[\[{]")
_DEEP: Final = 2  # levels of indentation at which a value's parts begin


def _parse_json(lines: Lines) -> Parsed | None:
    """Say where the outer members of a value begin; none of them is worth more than another."""
    return Parsed(kept=(), boundaries=tuple(_outer(lines.clean))) if _is_json(lines) else None


def _is_json(lines: Lines) -> bool:
    """Tell whether the text is JSON, or each of its lines."""
    try:
        data = lines.text.encode()
    except UnicodeEncodeError:
        return False
    if _decodes(data):
        return True
    parts = [part for part in data.split(b"\n") if part.strip()]
    return bool(parts) and all(map(_decodes, parts))


def _decodes(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _outer(lines: list[str]) -> list[int]:
    """Return where the outer members of a value begin that stands on many lines."""
    indents = sorted({len(line) - len(line.lstrip()) for line in lines if line.strip()})
    for indent in indents[1 : 1 + _DEEP]:
        members = [
            at
            for at, line in enumerate(lines)
            if line[:indent].isspace() and line[indent : indent + 1] in {"{", "[", '"'}
        ]
        if len(members) > 1:
            return members
    return []


_FEWEST: Final = 5  # rows of a table
_EVEN: Final = 0.95  # share of rows that have the usual number of cells
_SEPARATORS: Final = (",", "\t", ";", "|")


def _separator(rows: list[str]) -> tuple[str, int] | None:
    """Return what separates the cells of ROWS, and their number."""
    if len(rows) < _FEWEST:
        return None
    for separator in _SEPARATORS:
        cells = len(_cells(rows[0], separator))
        even = sum(1 for row in rows if len(_cells(row, separator)) == cells)
        if cells > 1 and even >= _EVEN * len(rows):
            return separator, cells
    return None


def _cells(row: str, separator: str) -> list[str]:
    if '"' not in row:
        return row.split(separator)
    return next(csv.reader([row], delimiter=separator))


def _is_table(text: str) -> bool:
    return _separator(text.split("\n")) is not None


def _parse_table(lines: Lines) -> Parsed | None:
    """Keep the names of the columns, and the rows that have another number of cells."""
    rows = [(at, line) for at, line in enumerate(lines.clean) if line]
    found = _separator([line for _, line in rows])
    if found is None:
        return None
    separator, cells = found
    odd = {at: 0.9 for at, line in rows if len(_cells(line, separator)) != cells}
    return chosen(lines.clean, {rows[0][0]: SURE, **odd})


JSON: Final[tuple[Format, ...]] = (
    Format(name="json", marks=lambda text: _OPENING.match(text) is not None, parse=_parse_json),
)
TABLES: Final[tuple[Format, ...]] = (Format(name="csv", marks=_is_table, parse=_parse_table),)
