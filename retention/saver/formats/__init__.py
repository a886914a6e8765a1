"""The formats that are recognised, one file for each family."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, Parsed, sample
from retention.saver.formats.ci import CI
from retention.saver.formats.compilers import COMPILERS
from retention.saver.formats.data import JSON, TABLES
from retention.saver.formats.installs import INSTALLS
from retention.saver.formats.search import SEARCHES
from retention.saver.formats.tests import TESTS
from retention.saver.formats.traces import TRACES
from retention.saver.formats.vcs import VCS
from retention.saver.lines import Lines

__all__ = ["FORMATS", "Format", "Parsed", "parse"]

# In the order of detection: what may hold another format comes before it.
FORMATS: Final[tuple[Format, ...]] = (
    *JSON,
    *CI,
    *VCS,
    *TESTS,
    *COMPILERS,
    *INSTALLS,
    *SEARCHES,
    *TRACES,
    *TABLES,
)


def parse(lines: Lines) -> tuple[str, Parsed] | None:
    """Return the name of the first format that LINES have, and what its parser found."""
    text = sample(lines.clean)
    for format in FORMATS:
        if format.marks(text):
            parsed = format.parse(lines)
            if parsed is not None:
                return format.name, parsed
    return None
