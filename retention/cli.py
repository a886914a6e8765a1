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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import retention
from retention import evidence_cli, lifecycle_cli, server
from retention.errors import ClientError, InvalidParams, RetentionError
from retention.hooks import cli as hooks_cli
from retention.terminal import (
    EXIT_BAD_INPUT,
    EXIT_FINE,
    EXIT_PROBLEMS,
    EXIT_STORE,
    HELD,
    SHORT,
    Command,
    Session,
    add_conversation,
    complete,
    count,
    disk_usage,
    format_json,
    make_service,
    open_store,
    print_json,
    print_line,
    print_table,
    printable,
    store_path,
    when,
)

if TYPE_CHECKING:
    from retention.service import Service
    from retention.working import Worker

LEARN_AFTER = 1.0  # seconds from the start of the process on


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
        print(f"retention: {printable(str(error))}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, ClientError) else EXIT_STORE


# Commands: each returns the exit status


def run_serve(options: argparse.Namespace) -> int:
    """Answer the adapter on standard input and output."""
    failed: list[RetentionError] = []
    with ExitStack() as opened:

        def open_service() -> server.Service:
            try:
                store = opened.enter_context(closing(open_store(options, make=True)))
            except RetentionError as error:
                server.log(str(error))
                failed.append(error)
                return _Unusable(error)
            service = opened.enter_context(closing(make_service(store)))
            opened.callback(_learn_beside(service))
            return service

        status = server.run(open_service, debug=options.debug)
    return status or (EXIT_STORE if failed else EXIT_FINE)


def _learn_beside(service: Service) -> Callable[[], None]:
    """Let SERVICE's conversations be learned in the background; return what ends that.

    It begins when the first requests, for which the process was started, are answered; what they
    leave to learn is found then.
    """
    workers: list[Worker] = []

    def begin() -> None:
        from retention.working import Worker  # noqa: PLC0415 - as in terminal.open_store

        worker = Worker(service.store, service.index, lambda: service.asked)
        service.notify = worker.notify
        workers.append(worker)
        worker.start()

    timer = Timer(LEARN_AFTER, begin)
    timer.daemon = True
    timer.start()

    def end() -> None:
        timer.cancel()
        timer.join()
        for worker in workers:
            worker.stop()

    return end


def run_conversations(options: argparse.Namespace) -> int:
    """List the conversations, the last used first."""
    with Session(options) as session:
        found = session.call("conversation/list")
    if options.json:
        return print_json(found)
    rows = [
        (
            item["id"][:SHORT],
            str(item["turns"]),
            str(item["requests"]),
            str(item["rows"]),
            when(item["used"]),
            item["title"] or ", ".join(item["files"]) or "-",
        )
        for item in found["conversations"]
    ]
    return print_table(("CONV", "TURNS", "REQUESTS", "ROWS", "USED", "TITLE"), rows, right="123")


def run_log(options: argparse.Namespace) -> int:
    """Show a conversation's log: its messages and deliveries, in order."""
    with Session(options) as session:
        conversation = session.conversation(options.conversation)
        found = session.call(
            "inspect/log", id=conversation, bodies=options.bodies, limit=options.limit
        )
    if options.json:
        return print_json(found)
    if options.bodies:
        for row in found["rows"]:
            print(f"-- row {row['row']}  {row['face']}  {row['role']}  {_carried(row)}")
            print(printable("(not readable)" if row["body"] is None else row["body"]))
    else:
        rows = [
            (str(row["row"]), str(row["after"]), row["face"], row["role"], str(row["bytes"]),
             row["digest"][:SHORT], _carried(row))
            for row in found["rows"]
        ]  # fmt: skip
        columns = ("ROW", "AFTER", "FACE", "ROLE", "BYTES", "DIGEST", "DELIVERY")
        print_table(columns, rows, right="014")
    if len(found["rows"]) < found["total"]:
        print(f"the last {len(found['rows'])} of {found['total']} rows; see --limit")
    return EXIT_FINE


def run_show(options: argparse.Namespace) -> int:
    """Print a stored object: the exact text of a message, delivery, head or section."""
    with Session(options) as session:
        found = session.call("inspect/object", digest=options.digest)
    if options.json:
        return print_json(found)
    print(f"{found['kind']} {found['digest']}, {found['bytes']} bytes", file=sys.stderr)
    text = found["text"] if "text" in found else format_json(found["section"])
    print(printable(text))
    return EXIT_FINE


def run_requests(options: argparse.Namespace) -> int:
    """List a conversation's last requests, the newest first, and why each looked as it did."""
    with Session(options) as session:
        conversation = session.conversation(options.conversation)
        found = session.call("inspect/requests", id=conversation, limit=options.limit)
    if options.json:
        return print_json(found)
    rows = [
        (str(item["request"]), str(item["turn"]), when(item["at"]), item["origin"],
         str(item["bytes"]), f"{item['kept']}+{item['new']}",
         " ".join([*item["sections"], *item["reminders"]]) or "-",
         " ".join(reason["code"] for reason in item["reasons"]) or "-")
        for item in found["requests"]
    ]  # fmt: skip
    columns = ("REQ", "TURN", "AT", "ORIGIN", "BYTES", "ROWS", "DELIVERED", "REASONS")
    print_table(columns, rows, right="014")
    if found["refusal"]:
        refusal = found["refusal"]
        print(f"edits are held back (step {refusal['step']}) since a status {refusal['status']}")
    return EXIT_FINE


def run_explain(options: argparse.Namespace) -> int:
    """Tell of a request what was kept, put in and marked, why it differs, and what it cost."""
    from retention.inspecting import MAX_EXPLAINED, explain  # noqa: PLC0415 - as in make_service

    with Session(options) as session:
        conversation = session.conversation(options.conversation)
        limit = MAX_EXPLAINED if options.all else 1
        with session.store.read() as reader:
            found = complete(explain(reader, conversation, options.request, limit))
    if options.json:
        return print_json(found)
    if options.all:
        return _print_explained(found["requests"])
    for item in found["requests"]:
        print(
            f"Request {item['request']} ({item['origin']}), turn {item['turn']}, {when(item['at'])}"
        )
        for line in item["lines"]:
            print_line(line["label"], line["text"])
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
            str(item["request"]), str(item["turn"]), when(item["at"]),
            *("-" if figure is None else str(figure) for figure in figures),
            cause or "-",
        ))  # fmt: skip
    columns = ("REQ", "TURN", "AT", "PREDICTED", "CACHED", "INPUT", "CAUSE")
    return print_table(columns, rows, right="01345")


def run_outputs(options: argparse.Namespace) -> int:
    """List a conversation's stored tool outputs, the newest first, or the ledger over them."""
    with Session(options) as session:
        conversation = session.conversation(options.conversation)
        found = session.call("output/list", conversation=conversation, limit=options.limit)
    if options.json:
        return print_json(found)
    if options.stats:
        for name, value in found["stats"].items():
            shown = f"{100 * value:.0f} %" if name == "rate" else value
            print(f"{name.replace('_', ' '):15} {shown}")
        if found["stats"]["rate"] > found["high_rate"]:
            print("much is recalled: the limits may be too tight")
        return EXIT_FINE
    rows = [
        (item["id"], str(item["turn"]), when(item["at"]), item["tool"], str(item["bytes"]),
         str(item["lines"]), str(item["shown"]), item["strategy"], str(item["recalls"]))
        for item in found["outputs"]
    ]  # fmt: skip
    columns = ("ID", "TURN", "AT", "TOOL", "BYTES", "LINES", "SHOWN", "STRATEGY", "RECALLS")
    return print_table(columns, rows, right="14568")


def run_recall(options: argparse.Namespace) -> int:
    """Print a stored tool output, or a part of it, exactly."""
    first, last = options.lines or (0, 0)
    part = {"segment": options.segment, "first": first, "last": last, "pattern": options.grep}
    offset = 0
    with Session(options) as session:
        while True:
            found = session.call(
                "output/recall", id=options.id, by="user", offset=offset,
                context=options.context, **part,
            )  # fmt: skip
            if options.json:
                return print_json(found)
            # Each page begins with a line about itself; matches are no pages of one text.
            print(printable(found["text"].partition("\n")[2]), end="")
            offset = found["more"]
            if not offset:
                return EXIT_FINE


def run_excerpt(options: argparse.Namespace) -> int:
    """Print what a model would get of a file, and how it came about; nothing is stored."""
    from retention.saver import excerpting  # noqa: PLC0415 - as in make_service

    try:
        data = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    except OSError as error:
        raise InvalidParams(f"{options.file}: {error.strerror}") from None
    output = excerpting.Output(data=data, task=options.task, tool=options.tool, call=options.call)
    made = excerpting.excerpt(output)
    if options.json:
        return print_json(complete(made))
    print(printable(made.text))
    known = f", {made.format}" if made.format else ""
    print(
        f"{made.strategy}{known}: {made.why}; {len(made.text)} of {made.chars} characters",
        file=sys.stderr,
    )
    return EXIT_FINE


def run_check(options: argparse.Namespace) -> int:
    """Verify every object and every reference of the store."""
    with Session(options) as session:
        found = session.call("inspect/check")
    problems = found["problems"]
    if options.json:
        print_json(found)
    elif problems:
        for problem in problems:
            print(printable("  ".join(str(value) for value in problem.values())))
        print(f"{len(problems)} problems")
    else:
        print("no problems")
    if len(found["views"]) > 1 and not options.json:
        mix = ", ".join(f"{count} of version {view}" for view, count in found["views"].items())
        print(f"vectors are of different views: {mix}")
    return EXIT_PROBLEMS if problems else EXIT_FINE


def run_forget(options: argparse.Namespace) -> int:
    """Remove a conversation with all that no other conversation needs, or a learned source."""
    from retention.finding import learned_apart  # noqa: PLC0415 - as in terminal.open_store

    with Session(options) as session:
        with session.store.read() as reader:
            source = learned_apart(reader, options.conversation)
        conversation = source.id if source else session.conversation(options.conversation)
        session.call("conversation/forget", id=conversation)
    if options.json:
        return print_json({"id": conversation})
    print(f"forgot {conversation}; `retention compact` gives its space back to the disk")
    return EXIT_FINE


def run_compact(options: argparse.Namespace) -> int:
    """Rewrite the store's file without free space; other processes may use it meanwhile."""
    from retention.service import INDEX  # noqa: PLC0415 - as in terminal.open_store

    path = store_path(options)
    before = disk_usage(path)
    with Session(options) as session:
        session.store.compact()
        purged = not (path / INDEX).exists() or session.index().purge()
    after = disk_usage(path)
    if options.json:
        return print_json({"before": before, "after": after, "purged": purged})
    print(f"{before} bytes before, {after} bytes after")
    if not purged:
        print(HELD)
    return EXIT_FINE


def _add_nothing(_: argparse.ArgumentParser) -> None:
    pass


def _add_debug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--debug", action="store_true", help="log errors in full; they may quote conversations"
    )


def _add_log(parser: argparse.ArgumentParser) -> None:
    add_conversation(parser)
    parser.add_argument("--bodies", action="store_true", help="print the stored texts")
    parser.add_argument("--limit", type=count, default=1000, metavar="N", help="the last N rows")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add_conversation(parser)
    parser.add_argument("--limit", type=count, default=20, metavar="N", help="the last N requests")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    add_conversation(parser)
    parser.add_argument(
        "--request", type=count, default=0, metavar="N", help="this one instead of the newest"
    )
    parser.add_argument(
        "--all", action="store_true", help="a line for each request up to that one, newest first"
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    add_conversation(parser)
    parser.add_argument("--stats", action="store_true", help="the ledger instead of the list")
    parser.add_argument("--limit", type=count, default=1000, metavar="N", help="the last N outputs")


def _add_recall(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the output's id, as the excerpt names it")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--segment", default="", metavar="ID", help="the segment with this id")
    part.add_argument("--lines", type=_lines, metavar="A-B", help="these lines, from 1")
    part.add_argument("--grep", default="", metavar="PATTERN", help="lines that match")
    parser.add_argument(
        "--context", type=count, default=2, metavar="N", help="lines around those that match"
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
    **evidence_cli.COMMANDS,
    "check": Command(run_check, _add_nothing),
    "forget": Command(run_forget, add_conversation),
    "compact": Command(run_compact, _add_nothing),
    **lifecycle_cli.COMMANDS,
    **hooks_cli.COMMANDS,
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


def _lines(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    numbers = count(first), count(last if dash else first)
    if numbers[1] < numbers[0]:
        raise ValueError(text)
    return numbers


_lines.__name__ = "lines"


class _Unusable:
    """Answers every method with the error that kept the store from being opened.

    The adapter can then say what is wrong, which it could not of a process that just ended.
    """

    def __init__(self, error: RetentionError) -> None:
        self._error = error

    def call(self, _method: str, _params: bytes, /) -> object:
        raise self._error


def _carried(row: Mapping[str, Any]) -> str:
    delivery = row.get("delivery")
    if not delivery:
        return ""
    names = [
        state["name"] + (" (inactive)" if state["inactive"] else "")
        for state in delivery["sections"]
    ]
    return " ".join([*names, *delivery["reminders"]]) or "-"
