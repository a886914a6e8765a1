"""Our hooks in a client's settings file: put in and taken out, all else left byte for byte.

The file for this machine is used, which the client keeps out of version control: our entries
name a program by its path.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from retention.errors import InvalidParams, InvalidPayload
from retention.providers import splice
from retention.providers.splice import Span

FILE = Path(".claude", "settings.local.json")  # below the project's directory
TIMEOUT = 10  # seconds that the client waits for us; more than we take

# -P: a directory `retention` in the project must not stand in for ours.
_PROGRAM = ("-P", "-m", "retention", "hook")


def make_command(client: str, arguments: Sequence[str]) -> str:
    """Return the shell command that answers the hooks of CLIENT."""
    return shlex.join([sys.executable, *_PROGRAM, client, *arguments])


def install(path: Path, events: Sequence[str], command: str) -> bool:
    """Have the settings in PATH call COMMAND at EVENTS; return whether that changes the file.

    Earlier entries of ours make way.  Raise InvalidParams, and change nothing, if the file is no
    settings file.
    """
    before = _read(path)
    text = before if before is not None and before.strip() else b"{}\n"
    return _write(path, before, add_hooks(remove_hooks(text), events, command))


def uninstall(path: Path) -> bool:
    """Remove our entries from the settings in PATH; return whether that changes the file."""
    before = _read(path)
    return before is not None and _write(path, before, remove_hooks(before))


def add_hooks(text: bytes, events: Sequence[str], command: str) -> bytes:
    """Return the settings TEXT with an entry that runs COMMAND at each of EVENTS."""
    entry = {"hooks": [{"type": "command", "command": command, "timeout": TIMEOUT}]}
    for event in events:
        root, hooks = _hooks(text)
        if hooks is None:
            text = _add(text, root, {event: [entry]}, "hooks", depth=0)
        elif (found := splice.members(text, hooks).get(event)) is None:
            text = _add(text, hooks, [entry], event, depth=1)
        else:
            text = _add(text, found, entry, depth=2)
    return text


def remove_hooks(text: bytes) -> bytes:
    """Return the settings TEXT without our entries, and without what is empty for that reason."""
    root, hooks = _hooks(text)
    if hooks is None:
        return text
    emptied: list[str] = []
    for event, span in reversed(splice.members(text, hooks).items()):
        entries = [text[start:end] for start, end in splice.items(text, span)]
        ours = [entry for entry in entries if _is_ours(entry)]
        if ours and len(ours) == len(entries):
            emptied.append(event)
        elif ours:
            text = splice.map_items(text, span, lambda raw: b"" if _is_ours(raw) else raw)
    if not emptied:
        return text
    root, hooks = _hooks(text)
    assert hooks is not None
    if len(splice.members(text, hooks)) > len(emptied):
        return splice.drop_members(text, hooks, *emptied)
    if len(splice.members(text, root)) > 1:
        return splice.drop_members(text, root, "hooks")
    return splice.replace(text, root, b"{}")


def _is_ours(entry: bytes) -> bool:
    """Whether ENTRY, one of an event, holds our command and nothing else."""
    try:
        hooks = msgspec.json.decode(entry)["hooks"]
        commands = [shlex.split(hook["command"]) for hook in hooks]
    except (KeyError, TypeError, ValueError):
        return False
    return bool(commands) and all(tuple(words[1:5]) == _PROGRAM for words in commands)


def _hooks(text: bytes) -> tuple[Span, Span | None]:
    """Return where the settings and the hooks in them stand; raise InvalidParams for others."""
    try:
        found = msgspec.json.decode(text)
        hooks = found.get("hooks", {})
        fine = all(isinstance(entries, list) for entries in hooks.values())
        root = splice.whole(text)
        place = splice.members(text, root).get("hooks")
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, InvalidPayload):
        fine = False
    if not fine:
        raise InvalidParams("these are no settings of the client; nothing was changed")
    return root, place


def _add(text: bytes, span: Span, value: object, key: str = "", *, depth: int) -> bytes:
    """Append VALUE, with KEY in an object, to the container at SPAN, written as the file is."""
    indent = _indent(text)
    newline = b"\r\n" if b"\r\n" in text else b"\n"
    last = max(
        (end for _, end in _children(text, span, is_array=not key)), default=None
    )  # fmt: skip
    flat = last is not None and b"\n" not in text[span[0] : span[1]]
    written = msgspec.json.encode(value)
    if not flat:
        margin = newline + indent * (depth + 1)
        lines = msgspec.json.format(written, indent=len(indent) or 2).split(b"\n")
        written = margin.join(_reindent(line, indent) for line in lines)
    if key:
        written = msgspec.json.encode(key) + b": " + written
    if last is not None:
        gap = b", " if flat else b"," + margin
        return text[:last] + gap + written + text[last:]
    inner = margin + written + newline + indent * depth
    return text[: span[0] + 1] + inner + text[span[1] - 1 :]


def _children(text: bytes, span: Span, *, is_array: bool) -> list[Span]:
    if is_array:
        return list(splice.items(text, span))
    return list(splice.members(text, span).values())


def _indent(text: bytes) -> bytes:
    found = re.search(rb'\n([ \t]+)"', text)
    return found[1] if found else b"  "


def _reindent(line: bytes, indent: bytes) -> bytes:
    stripped = line.lstrip(b" ")
    return indent * ((len(line) - len(stripped)) // (len(indent) or 2)) + stripped


# The file


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidParams(f"{path}: {error.strerror}") from None


def _write(path: Path, before: bytes | None, after: bytes) -> bool:
    """Write AFTER in one step, with the rights and behind the links that PATH has."""
    if after == before:
        return False
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(after)
                file.flush()
                os.fsync(file.fileno())
            mode = target.stat().st_mode & 0o777 if before is not None else 0o644
            Path(name).chmod(mode)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidParams(f"{path}: {error.strerror}") from None
    return True
