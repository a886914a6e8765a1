"""The commands that learn, search, list, explain and reload evidence."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from retention.errors import InvalidParams, RetentionError
from retention.terminal import (
    EXIT_BAD_INPUT,
    EXIT_FINE,
    EXIT_PROBLEMS,
    Command,
    Session,
    count,
    print_json,
    print_table,
    printable,
    when,
)

DAY = "%Y-%m-%d"
WORKED = 64  # texts that get vectors between two lines of progress


def run_learn(options: argparse.Namespace) -> int:
    """Learn saved chats, logs and facts of CI runs, or with --live all conversations."""
    with Session(options, make=True) as session:
        return _learn_all(session, options)


def _learn_all(session: Session, options: argparse.Namespace) -> int:
    asked: list[dict[str, Any]] = [{"path": str(path), "plain": plain} for path, plain in
                                   _files(options.paths)]  # fmt: skip
    if options.live:
        listed = session.call("conversation/list")["conversations"]
        asked += [{"conversation": item["id"]} for item in listed]
    found: list[dict[str, Any]] = []
    failed = 0
    for number, params in enumerate(asked, 1):
        try:
            sources = session.call("evidence/learn", **params)["sources"]
        except RetentionError as error:
            failed += 1
            print(f"retention: {printable(str(error))}", file=sys.stderr)
            continue
        found += sources
        if not options.json:
            _print_learned(f"[{number}/{len(asked)}]", sources)
    if options.vectors:
        _embed(session, quiet=options.json)
    if options.json:
        print_json({"sources": found, "failed": failed})
    else:
        changed = sum(item["changed"] for item in found)
        print(f"{len(found)} sources, {changed} changed, {failed} not readable")
    return EXIT_BAD_INPUT if failed else EXIT_FINE


def _print_learned(progress: str, sources: Sequence[Mapping[str, Any]]) -> None:
    for item in sources:
        state = "learned" if item["changed"] else "unchanged"
        size = f"{item['chunks']} chunks, {item['chars']} characters"
        print(printable(f"{progress} {item['source']}  {state}, {size}  {item['title']}"))
        for warning in item["warnings"]:
            print(printable(f"        {warning}"))


def _files(paths: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Yield the files that PATHS name, and whether each was named itself; runs before logs."""
    from retention.learning import CHATS, RECORDS  # noqa: PLC0415 - as in terminal.open_store

    for name in paths:
        path = Path(os.path.realpath(Path(name).expanduser()))
        if not path.is_dir():
            yield path, True
            continue
        inside = [
            file
            for file in path.rglob("*")
            if file.suffix in (*CHATS, *RECORDS)
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
            and file.is_file()
        ]
        for file in sorted(inside, key=lambda file: (file.suffix != ".json", file)):
            yield file, False


def _embed(session: Session, *, quiet: bool) -> None:
    from retention.sources import read_chunk  # noqa: PLC0415 - as in terminal.open_store

    index = session.index()
    done = 0
    while made := index.embed_some(partial(read_chunk, session.store), WORKED):
        done += made
        if not quiet:
            print(f"{done} passages have vectors, {index.counts().unembedded} wait")


def run_search(options: argparse.Namespace) -> int:
    """Find what was learned: words first, meaning where words find nothing."""
    from retention.indexing import reconcile  # noqa: PLC0415 - as in terminal.open_store

    with Session(options) as session:
        if session.index().needs_rebuild:
            print("the index is made anew", file=sys.stderr)
            for _ in reconcile(session.store, session.index()):
                pass
        conversation = session.conversation(options.within) if options.within else ""
        found = session.call(
            "evidence/search", query=" ".join(options.query), conversation=conversation,
            only=bool(conversation), tool=options.tool, kind=options.kind, limit=options.limit,
            since=options.since, until=options.until, mode=options.mode,
        )  # fmt: skip
    if options.json:
        return print_json(found)
    for number, hit in enumerate(found["hits"], 1):
        what = hit["tool"] or hit["event"] or hit["kind"]
        print(
            printable(f"{number}. {hit['title'] or hit['source']}  ({what}, {when(hit['time'])})")
        )
        print(f"   {hit['id']}  line {hit['line']}, by {hit['found']}; "
              f"retention expand {hit['id']} --offset {hit['at']}")  # fmt: skip
        for line in hit["excerpt"].split("\n"):
            print(printable(f"   | {line}").rstrip())
    if found["note"]:
        print(found["note"])
    return EXIT_FINE


def run_sources(options: argparse.Namespace) -> int:
    """List what was learned, the newest first, and how far the index is."""
    with Session(options) as session:
        found = session.call("evidence/sources", kind=options.kind, limit=options.limit)
    if options.json:
        return print_json(found)
    rows = [
        (item["source"], item["kind"], str(item["chunks"]), str(item["chars"]),
         when(item["time"]), item["title"] or item["path"])
        for item in found["sources"]
    ]  # fmt: skip
    print_table(("SOURCE", "KIND", "CHUNKS", "CHARS", "WHEN", "TITLE"), rows, right="23")
    vectors = f"{found['unembedded']} without vectors" if found["dense"] else "no vectors"
    print(f"{found['total']} sources; {found['chunks']} chunks indexed, {vectors}; "
          f"{found['waiting']} conversations wait")  # fmt: skip
    return EXIT_FINE


def run_chunks(options: argparse.Namespace) -> int:
    """Print the chunks of a source, each up to a bound."""
    with Session(options) as session:
        found = session.call(
            "evidence/chunks", source=options.source, first=options.first, limit=options.limit
        )
    if options.json:
        return print_json(found)
    print(printable(found["text"]), end="")
    if found["more"]:
        print(f"[{found['total']} chunks; go on with --first {found['more']}]")
    return EXIT_FINE


def run_expand(options: argparse.Namespace) -> int:
    """Print the exact text of a source or a chunk, as a search names it."""
    with Session(options) as session:
        offset = options.offset
        while True:
            found = session.call("evidence/expand", id=options.id, offset=offset)
            if options.json:
                return print_json(found)
            print(printable(found["text"].partition("\n")[2]), end="")
            offset = found["more"]
            if not offset:
                return EXIT_FINE


def run_explain_run(options: argparse.Namespace) -> int:
    """Tell why a run of CI failed, as far as its learned log and facts say so."""
    with Session(options) as session:
        found = session.call("evidence/explain", question=" ".join(options.run_id))
    if options.json:
        return print_json(found)
    print(printable(found["text"]))
    return EXIT_PROBLEMS if found["refused"] else EXIT_FINE


def run_reload(options: argparse.Namespace) -> int:
    """Print what the tools of a conversation or file found, as a resumed one would get it."""
    with Session(options) as session:
        found = session.call("evidence/reload", source=options.source)
    if options.json:
        return print_json(found)
    print(printable(found["text"]))
    print(f"{found['items']} of {found['lines']} distinct findings, {found['skipped']} too large, "
          f"{found['rows']} results read", file=sys.stderr)  # fmt: skip
    for warning in found["warnings"]:
        print(printable(warning), file=sys.stderr)
    return EXIT_FINE


def run_settings(options: argparse.Namespace) -> int:
    """Show the settings that the store keeps, or change some: NAME=NUMBER, 0 for the default."""
    change: dict[str, int] = {}
    for pair in options.change:
        name, _, value = pair.partition("=")
        if not value.isdecimal():
            raise InvalidParams(f"{pair!r} is not NAME=NUMBER")
        change[name] = int(value)
    with Session(options, make=bool(change)) as session:
        found = session.call("settings/change", change=change)
    if options.json:
        return print_json(found)
    from retention.settings import SETTINGS  # noqa: PLC0415 - as in terminal.open_store

    rows = [(name, str(value), SETTINGS[name].what) for name, value in found["settings"].items()]
    return print_table(("NAME", "VALUE", "WHAT"), rows, right="1")


def run_rechunk(options: argparse.Namespace) -> int:
    """Cut every learned text anew without storing it, and compare with how it was cut."""
    from retention.rechunking import recut  # noqa: PLC0415 - as in terminal.open_store

    with Session(options) as session:
        old, new = recut(session.store)
    figures = {"old": old.figures(), "new": new.figures()}
    if options.json:
        return print_json(figures)
    rows = [(name, str(figures["old"][name]), str(figures["new"][name])) for name in figures["new"]]
    print_table(("", "STORED", "ANEW"), rows, right="12")
    return EXIT_FINE if new.rebuilt == new.snapshots else EXIT_PROBLEMS


# Arguments


def _date(text: str) -> float:
    return time.mktime(time.strptime(text, DAY))


_date.__name__ = "date YYYY-MM-DD"


def _add_learn(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files and directories")
    parser.add_argument("--live", action="store_true", help="the conversations of the store")
    parser.add_argument("--vectors", action="store_true", help="compute all vectors now")


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="+", metavar="WORD")
    parser.add_argument("--within", default="", metavar="CONV", help="only this conversation")
    parser.add_argument("--tool", default="", metavar="NAME", help="what this tool had to do with")
    parser.add_argument("--kind", default="", metavar="KIND", help="of a message or a source")
    parser.add_argument("--since", type=_date, default=0.0, metavar="DATE")
    parser.add_argument("--until", type=_date, default=0.0, metavar="DATE")
    parser.add_argument("--limit", type=count, default=10, metavar="N")
    parser.add_argument("--mode", default="combined", choices=("combined", "lexical", "dense"))


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", default="", metavar="KIND", help="only these, outputs too")
    parser.add_argument("--limit", type=count, default=1000, metavar="N")


def _add_chunks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="its id, or that of a conversation")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with this one")
    parser.add_argument("--limit", type=count, default=1000, metavar="N")


def _add_expand(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of a source or a chunk")
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="begin there")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", nargs="+", metavar="RUN", help="its number")


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="its id, or that of a conversation")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("change", nargs="*", metavar="NAME=NUMBER")


def _add_nothing(_: argparse.ArgumentParser) -> None:
    pass


COMMANDS: dict[str, Command] = {
    "learn": Command(run_learn, _add_learn),
    "search": Command(run_search, _add_search),
    "sources": Command(run_sources, _add_sources),
    "chunks": Command(run_chunks, _add_chunks),
    "expand": Command(run_expand, _add_expand),
    "explain-run": Command(run_explain_run, _add_run),
    "reload": Command(run_reload, _add_source),
    "settings": Command(run_settings, _add_settings),
    "rechunk": Command(run_rechunk, _add_nothing),
}
