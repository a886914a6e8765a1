"""The record that Claude Code keeps of a session: which texts of hooks it holds.

A session is a file of JSON lines, each entry with the entry it follows.  An entry that carries the
texts of hooks has them word for word, unless they were too long: then it has a preview.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from retention.model import Struct

_KIND = "hook_additional_context"


class Echo(Struct, frozen=True):
    """One text of a hook as the session recorded it, at a time in seconds since the epoch.

    `live` tells that the model still gets it: no compaction came after, and the newest entry
    follows from it.
    """

    id: str
    text: str
    at: float
    live: bool


class _Attachment(msgspec.Struct):
    type: str = ""
    content: msgspec.Raw = msgspec.Raw(b"[]")


class _Entry(msgspec.Struct, rename="camel"):
    uuid: str = ""
    parent_uuid: str | None = None
    session_id: str = ""
    is_sidechain: bool = False
    subtype: str = ""
    timestamp: str = ""
    attachment: _Attachment | None = None


def read_echoes(path: Path, session: str) -> list[Echo]:
    """Return what SESSION recorded of hooks in the file PATH, in order; nothing without a file.

    A line that is none of the form is passed over, as the last one while it is being written.
    """
    try:
        with path.open("rb") as file:
            entries = list(_entries(file, session))
    except FileNotFoundError:
        return []
    live = _live(entries)
    return [
        Echo(id=f"{entry.uuid}/{number}", text=text, at=at, live=entry.uuid in live)
        for entry in entries
        if (at := _time(entry.timestamp)) is not None
        for number, text in enumerate(_texts(entry.attachment))
    ]


def _entries(lines: Iterator[bytes], session: str) -> Iterator[_Entry]:
    decode = msgspec.json.Decoder(_Entry).decode
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            entry = decode(line)
            if entry.uuid and entry.session_id == session and not entry.is_sidechain:
                yield entry


def _live(entries: list[_Entry]) -> set[str]:
    """Return the entries since the last compaction that the newest one follows from."""
    last = max((n for n, e in enumerate(entries) if e.subtype == "compact_boundary"), default=-1)
    parents = {entry.uuid: entry.parent_uuid for entry in entries[last + 1 :]}
    found: set[str] = set()
    at: str | None = next(reversed(parents), None)
    while at in parents and at not in found:
        found.add(at)
        at = parents[at]
    return found


def _texts(attachment: _Attachment | None) -> list[str]:
    if attachment is None or attachment.type != _KIND:
        return []
    try:
        return msgspec.json.decode(attachment.content, type=list[str])
    except msgspec.MsgspecError:
        return []


def _time(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
