"""Sections and reminders from a TOML file: read from files, commands and the file itself.

The words are those of Emacs (docs/emacs.md).  Commands are run by the shell in the project's
directory, all at the same time, each for a few seconds at most.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from retention.errors import InvalidParams
from retention.model import Reminder, Section
from retention.receipts import Observed

FILE = Path(".claude", "retention.toml")  # below the project's directory
COMMAND_TIME = 3.0  # seconds for one command

_T = TypeVar("_T")
_R = TypeVar("_R")


class SectionSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a section's body comes from: exactly one of `file`, `command` and `text`.

    `limit` cuts the body after so many characters; 0 does not.
    """

    name: str
    title: str = ""
    kind: Literal["fact", "guidance"] = "fact"
    file: str = ""
    command: str = ""
    text: str = ""
    limit: int = 0


class ReminderSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reminder: `turns` belong to the policy "every", `condition`, a command, to "while".

    The condition holds while the command succeeds; what it prints tells one case from another.
    """

    key: str
    body: str
    policy: Literal["once", "every", "while"] = "once"
    turns: int = 1
    condition: str = ""


class Sources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of sections and reminders."""

    section: tuple[SectionSource, ...] = ()
    reminder: tuple[ReminderSource, ...] = ()


class CommandFailed(Exception):
    """A command did not end in time; its message says which."""


def read_sources(path: Path) -> Sources:
    """Return what the file PATH selects; raise InvalidParams if it cannot be used."""
    try:
        sources = msgspec.toml.decode(path.read_bytes(), type=Sources)
    except OSError as error:
        raise InvalidParams(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidParams(f"{path}: {error}") from None
    for problem in _problems(sources):
        raise InvalidParams(f"{path}: {problem}")
    return sources


def _problems(sources: Sources) -> list[str]:
    found = [
        f"section {section.name!r} needs one of file, command and text"
        for section in sources.section
        if sum(map(bool, (section.file, section.command, section.text))) != 1
    ]
    found += [
        f"reminder {reminder.key!r}: the policy while, and no other, needs a condition"
        for reminder in sources.reminder
        if (reminder.policy == "while") != bool(reminder.condition)
    ]
    for names in ([s.name for s in sources.section], [r.key for r in sources.reminder]):
        found += [f"{name!r} stands there twice" for name in names if names.count(name) > 1]
    return found


def observe(sources: Sources, project: Path) -> Observed:
    """Return what SOURCES say now in the directory PROJECT.

    A section that cannot be read has an error (rule D9), a file that is not there has no body.  A
    condition that is not known within the time leaves its reminder out.
    """
    sections = _all(lambda source: _section(source, project), sources.section)
    reminders = _all(lambda source: _reminder(source, project), sources.reminder)
    return Observed(sections=tuple(sections), reminders=tuple(r for r in reminders if r))


def _all(read: Callable[[_T], _R], sources: Sequence[_T]) -> list[_R]:
    with ThreadPoolExecutor(max_workers=max(1, len(sources))) as pool:
        return list(pool.map(read, sources))


def _section(source: SectionSource, project: Path) -> Section:
    try:
        body, failed = _body(source, project), False
    except (OSError, CommandFailed):
        body, failed = None, True
    if body and 0 < source.limit < len(body):
        cut = f"\n\n(cut: the first {source.limit} of {len(body)} characters)"
        body = body[: source.limit] + cut
    return Section(
        name=source.name, title=source.title or source.name, kind=source.kind, body=body,
        error=failed,
    )  # fmt: skip


def _body(source: SectionSource, project: Path) -> str | None:
    if source.command:
        status, output = _run(source.command, project)
        if status:
            raise CommandFailed(source.command)
        return output
    if source.file:
        path = project / source.file
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
    return source.text


def _reminder(source: ReminderSource, project: Path) -> Reminder | None:
    state = None
    if source.condition:
        try:
            status, output = _run(source.condition, project)
        except (OSError, CommandFailed):
            return None
        state = None if status else output.strip() or "it holds"
    return Reminder(
        key=source.key, body=source.body, policy=source.policy, turns=source.turns, state=state
    )


def _run(command: str, project: Path) -> tuple[int, str]:
    """Return the exit status of the shell COMMAND and what it printed."""
    process = subprocess.Popen(  # noqa: S602 - the user's own file says what to run
        command,
        shell=True,
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=COMMAND_TIME)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what the shell started, too
            raise CommandFailed(command) from None
    return process.returncode, output.decode("utf-8", "replace")
