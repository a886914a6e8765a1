"""The debug command line, over the same service functions as the server.

Owns arguments, human output and exit statuses; `--json` prints what the RPC method answers.  A
command that only looks never makes a store.  Statuses: 0 fine, 1 `check` found problems, 2 bad
input, 3 the store cannot be used.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import retention
from retention import protocol, server
from retention.errors import (
    ClientError,
    InvalidParams,
    RetentionError,
    StoreError,
    UnknownConversation,
)

if TYPE_CHECKING:
    from retention.service import Service
    from retention.store import Store

EXIT_FINE = 0
EXIT_PROBLEMS = 1
EXIT_BAD_INPUT = 2
EXIT_STORE = 3

MIN_PREFIX = 4  # characters; fewer name a conversation by accident
SHORT = 12  # hexadecimal digits of an id or digest in tables; --json has all of them
WIDTH = 80  # columns of running text
LABEL = 11  # columns in front of it
CELL = 60  # characters of a table's cell; --json has all of them


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ARGUMENTS name and return the exit status."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the locale may lack a character
    command: Command = COMMANDS[options.command]
    try:
        status = command.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # as in `retention log ab12 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FINE
    except RetentionError as error:
        print(f"retention: {_printable(str(error))}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, ClientError) else EXIT_STORE


def default_store(environment: Mapping[str, str]) -> Path:
    """Return the store's directory below XDG_DATA_HOME, which counts only if it is absolute."""
    base = environment.get("XDG_DATA_HOME", "")
    home = environment.get("HOME") or "~"
    parent = Path(base) if base.startswith("/") else Path(home, ".local", "share").expanduser()
    return parent / "gptel-retention"


# Commands: each returns the exit status


def run_serve(options: argparse.Namespace) -> int:
    """Answer the adapter on standard input and output."""
    store: Store | None = None

    def open_service() -> server.Service:
        nonlocal store
        try:
            store = _open(options, make=True)
        except RetentionError as error:
            server.log(str(error))
            return _Unusable(error)
        return _service(store)

    try:
        status = server.run(open_service, debug=options.debug)
    finally:
        if store is not None:
            store.close()
    return status or (EXIT_FINE if store else EXIT_STORE)


def run_conversations(options: argparse.Namespace) -> int:
    """List the conversations, the last used first."""
    with _Session(options) as session:
        found = session.call("conversation/list")
    if options.json:
        return _print_json(found)
    rows = [
        (
            item["id"][:SHORT],
            str(item["turns"]),
            str(item["requests"]),
            str(item["rows"]),
            _when(item["used"]),
            item["title"] or ", ".join(item["files"]) or "-",
        )
        for item in found["conversations"]
    ]
    return _print_table(("CONV", "TURNS", "REQUESTS", "ROWS", "USED", "TITLE"), rows, right="123")


def run_log(options: argparse.Namespace) -> int:
    """Show a conversation's log: its messages and deliveries, in order."""
    with _Session(options) as session:
        conversation = session.conversation(options.conversation)
        found = session.call(
            "inspect/log", id=conversation, bodies=options.bodies, limit=options.limit
        )
    if options.json:
        return _print_json(found)
    if options.bodies:
        for row in found["rows"]:
            print(f"-- row {row['row']}  {row['face']}  {row['role']}  {_carried(row)}")
            print(_printable("(not readable)" if row["body"] is None else row["body"]))
    else:
        rows = [
            (str(row["row"]), str(row["after"]), row["face"], row["role"], str(row["bytes"]),
             row["digest"][:SHORT], _carried(row))
            for row in found["rows"]
        ]  # fmt: skip
        columns = ("ROW", "AFTER", "FACE", "ROLE", "BYTES", "DIGEST", "DELIVERY")
        _print_table(columns, rows, right="014")
    if len(found["rows"]) < found["total"]:
        print(f"the last {len(found['rows'])} of {found['total']} rows; see --limit")
    return EXIT_FINE


def run_show(options: argparse.Namespace) -> int:
    """Print a stored object: the exact text of a message, delivery, head or section."""
    with _Session(options) as session:
        found = session.call("inspect/object", digest=options.digest)
    if options.json:
        return _print_json(found)
    print(f"{found['kind']} {found['digest']}, {found['bytes']} bytes", file=sys.stderr)
    text = found["text"] if "text" in found else _json(found["section"])
    print(_printable(text))
    return EXIT_FINE


def run_requests(options: argparse.Namespace) -> int:
    """List a conversation's last requests, the newest first, and why each looked as it did."""
    with _Session(options) as session:
        conversation = session.conversation(options.conversation)
        found = session.call("inspect/requests", id=conversation, limit=options.limit)
    if options.json:
        return _print_json(found)
    rows = [
        (str(item["request"]), str(item["turn"]), _when(item["at"]), item["origin"],
         str(item["bytes"]), f"{item['kept']}+{item['new']}",
         " ".join([*item["sections"], *item["reminders"]]) or "-",
         " ".join(reason["code"] for reason in item["reasons"]) or "-")
        for item in found["requests"]
    ]  # fmt: skip
    columns = ("REQ", "TURN", "AT", "ORIGIN", "BYTES", "ROWS", "DELIVERED", "REASONS")
    _print_table(columns, rows, right="014")
    if found["refusal"]:
        refusal = found["refusal"]
        print(f"edits are held back (step {refusal['step']}) since a status {refusal['status']}")
    return EXIT_FINE


def run_explain(options: argparse.Namespace) -> int:
    """Tell of a request what was kept, put in and marked, why it differs, and what it cost."""
    from retention.inspecting import MAX_EXPLAINED, explain  # noqa: PLC0415 - as in _service

    with _Session(options) as session:
        conversation = session.conversation(options.conversation)
        limit = MAX_EXPLAINED if options.all else 1
        with session.store.read() as reader:
            found = _complete(explain(reader, conversation, options.request, limit))
    if options.json:
        return _print_json(found)
    if options.all:
        return _print_explained(found["requests"])
    for item in found["requests"]:
        print(
            f"Request {item['request']} ({item['origin']}), turn {item['turn']}, "
            f"{_when(item['at'])}"
        )
        for line in item["lines"]:
            _print_line(line["label"], line["text"])
    if not found["requests"]:
        print("no request so far")
    return EXIT_FINE


def _print_explained(requests: Sequence[Mapping[str, Any]]) -> int:
    rows = []
    for item in requests:
        compared = item["continuity"] or {}
        usage = item["usage"] or {}
        figures = (compared.get("tokens"), usage.get("cached"), usage.get("input"))
        cause = " ".join(filter(None, (compared.get("cause"), compared.get("detail"))))
        rows.append((
            str(item["request"]), str(item["turn"]), _when(item["at"]),
            *("-" if figure is None else str(figure) for figure in figures),
            cause or "-",
        ))  # fmt: skip
    columns = ("REQ", "TURN", "AT", "PREDICTED", "CACHED", "INPUT", "CAUSE")
    return _print_table(columns, rows, right="01345")


def run_outputs(options: argparse.Namespace) -> int:
    """List a conversation's stored tool outputs, the newest first, or the ledger over them."""
    with _Session(options) as session:
        conversation = session.conversation(options.conversation)
        found = session.call("output/list", conversation=conversation, limit=options.limit)
    if options.json:
        return _print_json(found)
    if options.stats:
        for name, value in found["stats"].items():
            shown = f"{100 * value:.0f} %" if name == "rate" else value
            print(f"{name.replace('_', ' '):15} {shown}")
        if found["stats"]["rate"] > found["high_rate"]:
            print("much is recalled: the limits may be too tight")
        return EXIT_FINE
    rows = [
        (item["id"], str(item["turn"]), _when(item["at"]), item["tool"], str(item["bytes"]),
         str(item["lines"]), str(item["shown"]), item["strategy"], str(item["recalls"]))
        for item in found["outputs"]
    ]  # fmt: skip
    columns = ("ID", "TURN", "AT", "TOOL", "BYTES", "LINES", "SHOWN", "STRATEGY", "RECALLS")
    return _print_table(columns, rows, right="14568")


def run_recall(options: argparse.Namespace) -> int:
    """Print a stored tool output, or a part of it, exactly."""
    first, last = options.lines or (0, 0)
    part = {"segment": options.segment, "first": first, "last": last, "pattern": options.grep}
    offset = 0
    with _Session(options) as session:
        while True:
            found = session.call(
                "output/recall", id=options.id, by="user", offset=offset,
                context=options.context, **part,
            )  # fmt: skip
            if options.json:
                return _print_json(found)
            # Each page begins with a line about itself; matches are no pages of one text.
            print(_printable(found["text"].partition("\n")[2]), end="")
            offset = found["more"]
            if not offset:
                return EXIT_FINE


def run_excerpt(options: argparse.Namespace) -> int:
    """Print what a model would get of a file, and how it came about; nothing is stored."""
    from retention.saver import excerpting  # noqa: PLC0415 - as in _service

    try:
        data = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    except OSError as error:
        raise InvalidParams(f"{options.file}: {error.strerror}") from None
    output = excerpting.Output(data=data, task=options.task, tool=options.tool, call=options.call)
    made = excerpting.excerpt(output)
    if options.json:
        return _print_json(_complete(made))
    print(_printable(made.text))
    known = f", {made.format}" if made.format else ""
    print(
        f"{made.strategy}{known}: {made.why}; {len(made.text)} of {made.chars} characters",
        file=sys.stderr,
    )
    return EXIT_FINE


def run_check(options: argparse.Namespace) -> int:
    """Verify every object and every reference of the store."""
    with _Session(options) as session:
        found = session.call("inspect/check")
    problems = found["problems"]
    if options.json:
        _print_json(found)
    elif problems:
        for problem in problems:
            print(_printable("  ".join(str(value) for value in problem.values())))
        print(f"{len(problems)} problems")
    else:
        print("no problems")
    return EXIT_PROBLEMS if problems else EXIT_FINE


def run_forget(options: argparse.Namespace) -> int:
    """Remove a conversation with all that no other conversation needs."""
    with _Session(options) as session:
        conversation = session.conversation(options.conversation)
        session.call("conversation/forget", id=conversation)
    if options.json:
        return _print_json({"id": conversation})
    print(f"forgot {conversation}; `retention compact` gives its space back to the disk")
    return EXIT_FINE


def run_compact(options: argparse.Namespace) -> int:
    """Rewrite the store's file without free space; other processes may use it meanwhile."""
    path = _path(options)
    before = _disk_usage(path)
    with _Session(options) as session:
        session.store.compact()
    after = _disk_usage(path)
    if options.json:
        return _print_json({"before": before, "after": after})
    print(f"{before} bytes before, {after} bytes after")
    return EXIT_FINE


class Command(msgspec.Struct, frozen=True):
    """What runs a command, and what adds its own arguments."""

    run: Callable[[argparse.Namespace], int]
    add: Callable[[argparse.ArgumentParser], None]


def _add_nothing(_: argparse.ArgumentParser) -> None:
    pass


def _add_debug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--debug", action="store_true", help="log errors in full; they may quote conversations"
    )


def _add_conversation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "conversation",
        metavar="CONV",
        help=f"a conversation's id, or at least {MIN_PREFIX} characters that only it begins with",
    )


def _add_log(parser: argparse.ArgumentParser) -> None:
    _add_conversation(parser)
    parser.add_argument("--bodies", action="store_true", help="print the stored texts")
    parser.add_argument("--limit", type=_count, default=1000, metavar="N", help="the last N rows")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    _add_conversation(parser)
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="the last N requests")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    _add_conversation(parser)
    parser.add_argument(
        "--request", type=_count, default=0, metavar="N", help="this one instead of the newest"
    )
    parser.add_argument(
        "--all", action="store_true", help="a line for each request up to that one, newest first"
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    _add_conversation(parser)
    parser.add_argument("--stats", action="store_true", help="the ledger instead of the list")
    parser.add_argument(
        "--limit", type=_count, default=1000, metavar="N", help="the last N outputs"
    )


def _add_recall(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the output's id, as the excerpt names it")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--segment", default="", metavar="ID", help="the segment with this id")
    part.add_argument("--lines", type=_lines, metavar="A-B", help="these lines, from 1")
    part.add_argument("--grep", default="", metavar="PATTERN", help="lines that match")
    parser.add_argument(
        "--context", type=_count, default=2, metavar="N", help="lines around those that match"
    )


def _add_excerpt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file, or - for standard input")
    parser.add_argument("--task", default="", metavar="TEXT", help="what the user asked for")
    parser.add_argument("--tool", default="", metavar="NAME", help="the tool that returned it")
    parser.add_argument("--call", default="", metavar="TEXT", help="the arguments of the call")


def _add_digest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("digest", metavar="DIGEST", help="its first hexadecimal digits, or all")


COMMANDS: dict[str, Command] = {
    "serve": Command(run_serve, _add_debug),
    "conversations": Command(run_conversations, _add_nothing),
    "log": Command(run_log, _add_log),
    "show": Command(run_show, _add_digest),
    "requests": Command(run_requests, _add_requests),
    "explain": Command(run_explain, _add_explain),
    "outputs": Command(run_outputs, _add_outputs),
    "recall": Command(run_recall, _add_recall),
    "excerpt": Command(run_excerpt, _add_excerpt),
    "check": Command(run_check, _add_nothing),
    "forget": Command(run_forget, _add_conversation),
    "compact": Command(run_compact, _add_nothing),
}


# Arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="retention", description="Look into a retention store.")
    parser.add_argument("--version", action="version", version=retention.__version__)
    _add_common(parser, store=None, json=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary = (command.run.__doc__ or "").strip()
        sub = commands.add_parser(name, help=summary, description=summary)
        # What is not given here must not hide what was given before the command.
        _add_common(sub, store=argparse.SUPPRESS, json=argparse.SUPPRESS)
        command.add(sub)
    return parser


def _add_common(parser: argparse.ArgumentParser, *, store: str | None, json: bool | str) -> None:
    parser.add_argument(
        "--store",
        metavar="DIR",
        default=store,
        help="the store's directory (default: gptel-retention in the user's data directory)",
    )
    parser.add_argument("--json", action="store_true", default=json, help="print JSON")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _lines(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    numbers = _count(first), _count(last if dash else first)
    if numbers[1] < numbers[0]:
        raise ValueError(text)
    return numbers


_lines.__name__ = "lines"
_count.__name__ = "number"  # argparse says "invalid number value"


# The store and the service


class _Session:
    """A service on an existing store, initialized, for the time of a `with` block."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.store = _open(options, make=False)
        self._service = _service(self.store)
        self.call("initialize", protocol=protocol.PROTOCOL, client="retention command line")

    def call(self, method: str, **params: object) -> Any:
        """Return the builtin values of METHOD's result."""
        result = self._service.call(method, msgspec.json.encode(params))
        return _complete(result)

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

    def __enter__(self) -> _Session:  # noqa: PYI034 - not to be subclassed
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()


class _Unusable:
    """Answers every method with the error that kept the store from being opened.

    The adapter can then say what is wrong, which it could not of a process that just ended.
    """

    def __init__(self, error: RetentionError) -> None:
        self._error = error

    def call(self, _method: str, _params: bytes, /) -> object:
        raise self._error


def _path(options: argparse.Namespace) -> Path:
    if options.store is None:
        return default_store(os.environ)
    if not options.store:
        raise InvalidParams("--store needs a directory")
    return Path(options.store).expanduser().absolute()


def _open(options: argparse.Namespace, *, make: bool) -> Store:
    from retention.store import Store  # noqa: PLC0415 - 30 ms that --help does not spend
    from retention.store.environment import CURRENT  # noqa: PLC0415

    path = _path(options)
    if not make and not (path / CURRENT).exists():
        raise StoreError(f"{path}: no store there")
    return Store.open(path)


def _service(store: Store) -> Service:
    from retention.service import Service  # noqa: PLC0415 - likewise

    return Service(store, clock=time.time, random_id=lambda: os.urandom(16).hex())


def _disk_usage(path: Path) -> int:
    files = [file.stat() for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    return sum(512 * status.st_blocks for status in files)


# Output


def _complete(result: object) -> Any:
    """Return RESULT as builtin values, also the fields that the wire leaves out."""
    if isinstance(result, msgspec.Struct):
        return {name: _complete(getattr(result, name)) for name in result.__struct_fields__}
    if isinstance(result, tuple | list):
        return [_complete(item) for item in result]
    return msgspec.to_builtins(result)


def _print_json(value: object) -> int:
    sys.stdout.flush()
    sys.stdout.buffer.write(_json(value).encode() + b"\n")  # JSON is UTF-8 in any locale
    return EXIT_FINE


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: str) -> int:
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


def _print_line(label: str, text: str) -> None:
    """Print TEXT behind LABEL, broken at WIDTH columns."""
    lines = textwrap.wrap(_printable(text), WIDTH - LABEL, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        print(f"{'' if number else label:{LABEL}}{line}")


def _cell(text: str) -> str:
    text = _printable(" ".join(text.split()))
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


# Stored texts come from anywhere and must not steer the terminal.
def _printable(text: str) -> str:
    return "".join(
        char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text
    )


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"


def _carried(row: Mapping[str, Any]) -> str:
    delivery = row.get("delivery")
    if not delivery:
        return ""
    names = [
        state["name"] + (" (inactive)" if state["inactive"] else "")
        for state in delivery["sections"]
    ]
    return " ".join([*names, *delivery["reminders"]]) or "-"
