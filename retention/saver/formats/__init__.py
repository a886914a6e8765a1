"""The formats that are recognised, one file for each family."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, Parsed
from retention.saver.lines import Lines

__all__ = ["FORMATS", "Format", "Parsed", "parse"]

FORMATS: Final[tuple[Format, ...]] = ()  # in the order of detection


def parse(lines: Lines) -> tuple[str, Parsed] | None:
    """Return the name of the first format that LINES have, and what its parser found."""
    for format in FORMATS:
        if format.marks(lines.clean):
            parsed = format.parse(lines)
            if parsed is not None:
                return format.name, parsed
    return None
