"""Which results of earlier tool calls a conversation is given again, and how it reads them (L1-L4).

Lengths are code points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from retention import settings
from retention.encoding import shorter
from retention.model import Struct
from retention.saver.excerpting import legible

HEADING: Final = (
    "Results of earlier tool calls, newest first: a bounded selection, not all of them. Use them"
    " rather than repeat a call, unless its result may have changed. The rest is stored: look for"
    " it with search_evidence or recall_output, or ask the user."
)
SEPARATOR: Final = "\n\n"  # in front of each block


class Finding(Struct, frozen=True):
    """A result OUTPUT of the tool TOOL for INPUT, the canonical JSON text of its arguments.

    `id` is what it is found by.  `at` is in seconds since the epoch, 0 where it is not known.
    """

    id: str
    tool: str
    input: str
    output: str
    at: float = 0.0


class Bounds(Struct, frozen=True):
    """Code points that a section may have, and findings that may be read for it.

    They count different things: of `rows` findings that repeat each other one is left, whatever
    the budget, and an older one that differs was not read.
    """

    budget: int
    rows: int


class Reloaded(Struct, frozen=True):
    """The findings that fit: `items` of `lines` distinct ones among `rows` that were read.

    `skipped` did not fit or could not be shown.  `warnings` are for the user.
    """

    items: tuple[Finding, ...]
    lines: int
    rows: int
    skipped: int
    warnings: tuple[str, ...] = ()


def bound_settings(stored: Mapping[str, int]) -> Bounds:
    """Return the bounds that the STORED settings give; a missing or impossible one is the default.

    If they cannot be read, no settings give both defaults.
    """
    values = settings.in_use(stored)
    return Bounds(budget=values["reload.budget"], rows=values["reload.rows"])


def reload(findings: Iterable[Finding], bounds: Bounds) -> Reloaded:
    """Return which of FINDINGS to give again.

    FINDINGS are the newest of a source, newest first, no more than BOUNDS allow.  Of those with one
    tool and input the newest stands; one that does not fit is skipped, and smaller ones behind it
    are not.
    """
    read = list(findings)
    newest = dict[tuple[str, str], Finding]()
    for finding in read:
        newest.setdefault((finding.tool, _canonical(finding.input)), finding)
    items, warnings = list[Finding](), list[str]()
    room = bounds.budget - len(HEADING)
    for finding in newest.values():
        try:
            size = len(SEPARATOR + render_block(finding))
        except (ValueError, OverflowError, OSError) as error:
            warnings.append(f"{finding.id} cannot be shown: {error}")
            continue
        if size <= room:
            items.append(finding)
            room -= size
    if len(read) >= bounds.rows:
        warnings.append(
            f"{len(read)} results were read, as many as reload.rows allows, so that older ones may"
            f" be missing; {len(newest)} of them differ, and reload.budget could have paid for at"
            f" most {_payable(bounds.budget)}"
        )
    return Reloaded(
        items=tuple(items),
        lines=len(newest),
        rows=len(read),
        skipped=len(newest) - len(items),
        warnings=tuple(warnings),
    )


def _canonical(input: str) -> str:
    """Return INPUT without what does not matter in JSON; what is none counts as it stands."""
    try:
        return json.dumps(json.loads(input), sort_keys=True)
    except (ValueError, RecursionError):
        return input


def _payable(budget: int) -> int:
    """Return how many of the shortest blocks BUDGET pays for."""
    shortest = render_block(Finding(id="", tool="", input="", output=""))
    return max(0, budget - len(HEADING)) // len(SEPARATOR + shortest)


# What a model reads


def render_block(finding: Finding) -> str:
    """Return FINDING as a model reads it: JSON as TOON (rule T5), other text as it is.

    Bytes that were no text show as U+FFFD.  Raise ValueError, OverflowError or OSError if its time
    is none.
    """
    output, _ = shorter(finding.output, "always")
    header = f"Evidence {finding.id}: {finding.tool} ({finding.input}) @ {moment(finding.at)}"
    return legible(f"{header}\n{output}")


def moment(at: float) -> str:
    """Return AT, in seconds since the epoch, as an ISO time; 0 is not known."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at else "unknown time"


def render_section(items: Sequence[Finding]) -> str:
    """Return the section that gives ITEMS to a model; empty without any."""
    return SEPARATOR.join([HEADING, *map(render_block, items)]) if items else ""
