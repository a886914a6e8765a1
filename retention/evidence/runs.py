r"""Runs of a CI service: the log of what failed, cut into chunks, and the facts of a run (V4).

A log has lines `job TAB step TAB timestamp message`; a line of another form continues the one
before it.  Lines that follow one another with one job and one step are a *group*.  Cleaning serves
matching only: a chunk is a stretch of the exact text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from retention.errors import InvalidParams
from retention.model import Chunk, EventKind, Struct
from retention.saver.lines import clean

MARKER: Final = "##[error]"
CONTEXT: Final = 3  # lines before the first marker of a group that go with the failure
RUN: Final = re.compile(r"(?<!\w)(?:R-[0-9]{3,5}|[0-9]{8,20})(?!\w)")  # a run's id, in any text

_HEAD = re.compile(
    r"\ufeff*+(?P<job>[^\t\n]+)\t(?P<step>[^\t\n]+)\t\ufeff*\d{4}-\d\d-\d\dT[\d:.]+Z ?", re.ASCII
)
_SAMPLE: Final = 8_192  # code points of a text that tell whether it is a log


# What things are called


def log_id(run: str) -> str:
    """Return the id of the source that is the log of RUN."""
    return f"{run}.failed"


def row_id(run: str) -> str:
    """Return the id of the source that states the facts of RUN."""
    return f"Run:{run}"


_NAMED = re.compile(rf"({RUN.pattern})(?:\.failed)?\.[a-z]+")


def named_run(file: str) -> str:
    """Return the id of the run that FILE, a name, is of: "RUN.failed.log" or "RUN.log"; else ""."""
    found = _NAMED.fullmatch(file)
    return found[1] if found else ""


# The log


def is_log(text: str) -> bool:
    """Tell whether at least half of the lines that TEXT begins with are those of a log."""
    lines = text[:_SAMPLE].split("\n")
    hits = sum(1 for line in lines if _HEAD.match(line))
    return hits > 0 and 2 * hits >= len(lines)


def parse_log(text: str, context: int = CONTEXT) -> tuple[Chunk, ...]:
    """Return the chunks of a log TEXT, in order; joined they are the text.

    A group is cut CONTEXT lines before its first error marker: what follows, to the end of the
    group, is "error<n>", everything else "chunk<n>", each counted over the whole log.  Lines before
    any group are a chunk.  The number of an "error<n>" does not depend on CONTEXT.  Raise
    InvalidParams if that is negative.
    """
    if context < 0:
        raise InvalidParams(f"{context} lines of context: less than none")
    counts = Counter[str]()
    chunks: list[Chunk] = []
    for group, found in groupby(_read_lines(text), attrgetter("group")):
        lines = list(found)
        marked = next((at for at, line in enumerate(lines) if line.marked), None)
        cut = len(lines) if marked is None or group is None else max(0, marked - context)
        for role, part in (("chunk", lines[:cut]), ("error", lines[cut:])):
            if part:
                counts[role] += 1
                chunks.append(
                    Chunk(
                        start=part[0].start,
                        end=part[-1].end,
                        kind=EventKind.TOOL_OUTPUT,
                        tool=" / ".join(group or ()),
                        name=f"{role}{counts[role]}",
                    )
                )
    return tuple(chunks)


class _Line(NamedTuple):
    r"""A line from `start` up to `end`, with its "\n"; `group` is its job and step, if any."""

    group: tuple[str, str] | None
    start: int
    end: int
    marked: bool


def _read_lines(text: str) -> Iterator[_Line]:
    group, start = None, 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        head = _HEAD.match(text, start, end)
        if head is not None:
            group = (head["job"], head["step"])
        message = head.end() if head is not None else start
        yield _Line(group, start, end, text.find(MARKER, message, end) >= 0)
        start = end


def clean_message(line: str) -> str:
    """Return what LINE, without its end, says: no job, step, timestamp or colour; for matching."""
    head = _HEAD.match(line)
    return clean(line[head.end() :] if head is not None else line).rstrip()


def clean_log(text: str) -> str:
    """Return what the lines of TEXT say, for matching, one a line."""
    return "\n".join(map(clean_message, text.split("\n")))


# The facts of a run


class Run(Struct, frozen=True):
    """What is known of a run beside its log.

    `status` is "failed", "passed", or what the service calls it, "" while it has not ended.
    `started` is the service's own text.  `failed_job` is the first job that failed, `failed_step`
    its first step that did.
    """

    id: str
    workflow: str = ""
    event: str = ""
    branch: str = ""
    commit: str = ""
    started: str = ""
    title: str = ""
    status: str = ""
    failed_job: str = ""
    failed_step: str = ""


class _Part(Struct, frozen=True, rename="camel"):
    """A job, or a step of one."""

    name: str
    conclusion: str | None = None
    steps: tuple[_Part, ...] | None = None


class _View(Struct, frozen=True, rename="camel"):
    """The fields of `gh run view --json` that are read."""

    database_id: int | str
    workflow_name: str = ""
    event: str = ""
    head_branch: str | None = None
    head_sha: str = ""
    created_at: str = ""
    display_title: str = ""
    conclusion: str | None = None
    jobs: tuple[_Part, ...] = ()


_STATUS: Final = {"failure": "failed", "success": "passed"}


def parse_run(data: bytes) -> Run:
    """Read the facts of a run, the JSON of `gh run view --json`.

    Raise InvalidParams if it is none, or has an id that no question could name.
    """
    try:
        view = msgspec.json.decode(data, type=_View)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"not the facts of a run: {error}") from error
    id = str(view.database_id)
    if RUN.fullmatch(id) is None:
        raise InvalidParams(f"not the id of a run: {id[:40]!r}")
    job = _first_failed(view.jobs)
    conclusion = view.conclusion or ""
    return Run(
        id=id, workflow=view.workflow_name, event=view.event, branch=view.head_branch or "",
        commit=view.head_sha, started=view.created_at, title=view.display_title,
        status=_STATUS.get(conclusion, conclusion),
        failed_job=job.name, failed_step=_first_failed(job.steps or ()).name,
    )  # fmt: skip


def _first_failed(parts: tuple[_Part, ...]) -> _Part:
    return next((part for part in parts if part.conclusion == "failure"), _Part(name=""))


_ROW: Final = {
    "status": "Status",
    "failed_step": "Failing step",
    "failed_job": "Failing job",
    "workflow": "Workflow",
    "event": "Event",
    "branch": "Branch",
    "commit": "Commit",
    "started": "Started",
    "title": "Title",
}


def run_row(run: Run) -> str:
    """Return the text that states the facts of RUN, one a line; what is not known has none."""
    facts = ((label, getattr(run, name)) for name, label in _ROW.items())
    rows = (f"{label}: {fact}" for label, fact in facts if fact)
    return "\n".join((f"Run: {run.id}", *rows)) + "\n"


def started_at(run: Run) -> float:
    """Return when RUN started, in seconds since the epoch; 0 if that is not known."""
    return parse_time(run.started) or 0.0


def parse_time(text: str) -> float | None:
    """Return the ISO time TEXT in seconds since the epoch, UTC if it names no zone, or None."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
