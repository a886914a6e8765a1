"""The commands that fork, move and collect conversations."""

from __future__ import annotations

import argparse
from pathlib import Path

from retention.terminal import (
    EXIT_FINE,
    HELD,
    Command,
    Session,
    add_conversation,
    count,
    disk_usage,
    print_json,
    print_table,
    store_path,
)


def run_fork(options: argparse.Namespace) -> int:
    """Make a conversation that shares the past of another; nothing is copied."""
    with Session(options) as session:
        conversation = session.conversation(options.conversation)
        made = session.call("conversation/fork", id=conversation, title=options.title)
    if options.json:
        return print_json(made)
    print(f"{made['id']} shares {made['rows']} rows of {conversation}")
    return EXIT_FINE


def run_export(options: argparse.Namespace) -> int:
    """Write a conversation to one file, which must not exist yet."""
    file = Path(options.file).absolute()
    with Session(options) as session:
        conversation = session.conversation(options.conversation)
        made = session.call("conversation/export", id=conversation, file=str(file))
    if options.json:
        return print_json(made)
    print(f"{file}: {made['objects']} objects, {file.stat().st_size} bytes")
    if made["missing"]:
        print(f"{made['missing']} objects are damaged and not in it; see `retention check`")
    return EXIT_FINE


def run_import(options: argparse.Namespace) -> int:
    """Store the conversation in a file; one that is there is never overwritten."""
    with Session(options, make=True) as session:
        found = session.call(
            "conversation/import", file=str(Path(options.file).absolute()), as_new=options.as_new
        )
    if options.json:
        return print_json(found)
    state = f"imported, {found['rows']} rows" if found["created"] else "is there already"
    print(f"{found['id']} {state}")
    return EXIT_FINE


def run_gc(options: argparse.Namespace) -> int:
    """Free what no record needs; with --dry-run only tell what that is."""
    path = store_path(options)
    before = disk_usage(path)
    with Session(options) as session:
        freed = session.call(
            "store/collect", grace=options.grace, days=options.older_than, dry_run=options.dry_run
        )
    after = disk_usage(path)
    if options.json:
        return print_json(freed | {"before": before, "after": after})
    for id in freed["conversations"]:
        print(f"conversation {id}")
    print(f"{freed['rows']} texts of retired history, {freed['references']} references")
    if freed["kinds"]:
        rows = [(item["kind"], str(item["objects"]), str(item["bytes"])) for item in freed["kinds"]]
        print_table(("KIND", "OBJECTS", "BYTES"), rows, right="12")
    if options.dry_run:
        print("nothing was changed")
    else:
        print(f"{before} bytes before, {after} bytes after")
        if not freed["purged"]:
            print(HELD)
    return EXIT_FINE


def _add_fork(parser: argparse.ArgumentParser) -> None:
    add_conversation(parser)
    parser.add_argument("--title", default="", metavar="TEXT", help="what it is called")


def _add_export(parser: argparse.ArgumentParser) -> None:
    add_conversation(parser)
    parser.add_argument("file", metavar="FILE", help="a ZIP archive, to be made")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what `retention export` made")
    parser.add_argument("--as-new", action="store_true", help="under an id of its own")


def _add_gc(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="change nothing")
    parser.add_argument(
        "--older-than", type=_days, metavar="DAYS",
        help="conversations too that were not used for so long, 0: none of them"
        " (default: the setting keep.days)",
    )  # fmt: skip
    parser.add_argument(
        "--grace", type=_days, default=30, metavar="DAYS",
        help="history that was retired so long ago (default: 30)",
    )  # fmt: skip


def _days(text: str) -> int:
    return 0 if text == "0" else count(text)


_days.__name__ = "number"  # argparse says "invalid number value"


COMMANDS: dict[str, Command] = {
    "fork": Command(run_fork, _add_fork),
    "export": Command(run_export, _add_export),
    "import": Command(run_import, _add_import),
    "gc": Command(run_gc, _add_gc),
}
