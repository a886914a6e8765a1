"""What every command of the command line shares: a service on a store, and how it prints.

Texts come from anywhere: control characters are printed as escapes.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from retention import protocol
from retention.errors import InvalidParams, StoreError, UnknownConversation

if TYPE_CHECKING:
    from retention.index import Index
    from retention.service import Service
    from retention.store import Store

EXIT_FINE = 0
EXIT_PROBLEMS = 1
EXIT_BAD_INPUT = 2
EXIT_STORE = 3

HELD = "another process reads the search index: compact again to rid it of what was removed"

MIN_PREFIX = 4  # characters; fewer name a conversation by accident
SHORT = 12  # hexadecimal digits of an id or digest in tables; --json has all of them
WIDTH = 80  # columns of running text
LABEL = 11  # columns in front of it
CELL = 60  # characters of a table's cell; --json has all of them


class Command(msgspec.Struct, frozen=True):
    """What runs a command and returns the exit status, and what adds its own arguments."""

    run: Callable[[argparse.Namespace], int]
    add: Callable[[argparse.ArgumentParser], None]


def count(text: str) -> int:
    """Return the positive number that TEXT, an argument, writes; raise ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


count.__name__ = "number"  # argparse says "invalid number value"


def add_conversation(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a conversation to PARSER."""
    parser.add_argument(
        "conversation",
        metavar="CONV",
        help=f"a conversation's id, or at least {MIN_PREFIX} characters that only it begins with",
    )


def default_store(environment: Mapping[str, str]) -> Path:
    """Return the store's directory below XDG_DATA_HOME, which counts only if it is absolute."""
    base = environment.get("XDG_DATA_HOME", "")
    home = environment.get("HOME") or "~"
    parent = Path(base) if base.startswith("/") else Path(home, ".local", "share").expanduser()
    return parent / "gptel-retention"


# The store and the service


class Session:
    """A service on a store, initialized, for the time of a `with` block; only MAKE makes one."""

    def __init__(self, options: argparse.Namespace, *, make: bool = False) -> None:
        self.store = open_store(options, make=make)
        self._service = make_service(self.store)
        self.call("initialize", protocol=protocol.PROTOCOL, client="retention command line")

    def call(self, method: str, **params: object) -> Any:
        """Return the builtin values of METHOD's result."""
        try:
            data = msgspec.json.encode(params)
        except UnicodeEncodeError:  # an argument or a file name of other bytes
            words = ", ".join(map(repr, params.values()))
            raise InvalidParams(f"no UTF-8: {words}") from None
        return complete(self._service.call(method, data))

    def index(self) -> Index:
        """Return the search index beside the store."""
        return self._service.index()

    def conversation(self, prefix: str) -> str:
        """Return the id of the one conversation that PREFIX begins."""
        listed = self.call("conversation/list")["conversations"]
        found = [item["id"] for item in listed if item["id"].startswith(prefix)]
        if prefix in found:
            return prefix
        if len(prefix) < MIN_PREFIX:
            raise InvalidParams(f"{prefix!r}: give at least {MIN_PREFIX} characters of an id")
        if not found:
            raise UnknownConversation(f"no conversation begins with {prefix!r}")
        if len(found) > 1:
            raise InvalidParams(f"{prefix!r} begins {len(found)}: {', '.join(found[:5])}")
        return str(found[0])

    def __enter__(self) -> Session:  # noqa: PYI034 - not to be subclassed
        return self

    def __exit__(self, *_: object) -> None:
        self._service.close()
        self.store.close()


def store_path(options: argparse.Namespace) -> Path:
    """Return the directory of the store that OPTIONS name."""
    if options.store is None:
        return default_store(os.environ)
    if not options.store:
        raise InvalidParams("--store needs a directory")
    return Path(options.store).expanduser().absolute()


def open_store(options: argparse.Namespace, *, make: bool) -> Store:
    """Open the store that OPTIONS name; only MAKE makes one."""
    from retention.store import Store  # noqa: PLC0415 - 30 ms that --help does not spend
    from retention.store.environment import CURRENT  # noqa: PLC0415

    path = store_path(options)
    if not make and not (path / CURRENT).exists():
        raise StoreError(f"{path}: no store there")
    return Store.open(path)


def make_service(store: Store) -> Service:
    """Return a service over STORE."""
    from retention.service import Service  # noqa: PLC0415 - likewise

    return Service(store, clock=time.time, random_id=lambda: os.urandom(16).hex())


def disk_usage(path: Path) -> int:
    """Return how many bytes the files below PATH take on the disk."""
    files = [file.stat() for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    return sum(512 * status.st_blocks for status in files)


# Output


def complete(result: object) -> Any:
    """Return RESULT as builtin values, also the fields that the wire leaves out."""
    if isinstance(result, msgspec.Struct):
        return {name: complete(getattr(result, name)) for name in result.__struct_fields__}
    if isinstance(result, tuple | list):
        return [complete(item) for item in result]
    return msgspec.to_builtins(result)


def print_json(value: object) -> int:
    """Print VALUE as JSON."""
    sys.stdout.flush()
    sys.stdout.buffer.write(format_json(value).encode() + b"\n")  # JSON is UTF-8 in any locale
    return EXIT_FINE


def format_json(value: object) -> str:
    """Return VALUE as JSON for a reader."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: str) -> int:
    """Print ROWS under COLUMNS; RIGHT holds the numbers of the columns that are flush right."""
    table = [columns, *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(columns))]
    for row in table:
        cells = [
            value.rjust(width) if str(at) in right else value.ljust(width)
            for at, (value, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    return EXIT_FINE


def print_line(label: str, text: str) -> None:
    """Print TEXT behind LABEL, broken at WIDTH columns."""
    lines = textwrap.wrap(printable(text), WIDTH - LABEL, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        print(f"{'' if number else label:{LABEL}}{line}")


def _cell(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def printable(text: str) -> str:
    """Return TEXT with an escape for each character that steers a terminal."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text
    )


def when(seconds: float) -> str:
    """Return SECONDS since the epoch as a person reads it; local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"
