"""The command that answers a client's hooks, and puts them into its settings or takes them out."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from retention.errors import InvalidParams
from retention.hooks import CLIENT
from retention.terminal import EXIT_FINE, Command, open_store, store_path

ACTIONS = (CLIENT, "install", "uninstall")


def run_hook(options: argparse.Namespace) -> int:
    """Answer a hook of Claude Code, or put hooks into a project's settings or take them out."""
    if options.action == CLIENT:
        return _answer(options)
    from retention.hooks import settings  # noqa: PLC0415 - as in terminal.open_store
    from retention.hooks.claude_code import EVENTS  # noqa: PLC0415

    project = Path(options.project or ".").absolute()
    if not project.is_dir():
        raise InvalidParams(f"{project}: no directory")
    path = project / settings.FILE
    if options.action == "uninstall":
        changed = settings.uninstall(path)
    else:
        changed = settings.install(path, EVENTS, settings.make_command(CLIENT, _passed(options)))
        _warn(project, options)
    sys.stdout.write(f"{path}: {'written' if changed else 'nothing to change'}\n")
    return EXIT_FINE


def _answer(options: argparse.Namespace) -> int:
    from retention.hooks.claude_code import respond  # noqa: PLC0415 - likewise

    text, problem = respond(
        sys.stdin.buffer.read(),
        partial(open_store, options, make=True),
        project=options.project or os.environ.get("CLAUDE_PROJECT_DIR", ""),
        sections=options.sections,
    )
    if problem:
        sys.stderr.write(f"{' '.join(problem.split())}\n")
    sys.stdout.write(text)
    return EXIT_FINE  # another status would be shown, and 2 would hold the prompt back


def _passed(options: argparse.Namespace) -> list[str]:
    """Return the arguments for the command in the settings: what was given here."""
    given = {"--sections": _sections(options)}
    if options.store is not None:
        given["--store"] = str(store_path(options))
    return [each for name, value in given.items() if value for each in (name, value)]


def _sections(options: argparse.Namespace) -> str:
    return str(Path(options.sections).absolute()) if options.sections else ""


def _warn(project: Path, options: argparse.Namespace) -> None:
    from retention.hooks.observing import FILE, read_sources  # noqa: PLC0415 - likewise

    try:
        read_sources(project / (_sections(options) or FILE))
    except InvalidParams as error:
        sys.stderr.write(f"nothing is told yet: {error}\n")


def _add_hook(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="the client that asks, or what to do")
    parser.add_argument("--client", choices=(CLIENT,), default=CLIENT, help="whose settings")
    parser.add_argument("--project", default="", metavar="DIR", help="the project's directory")
    parser.add_argument("--sections", default="", metavar="FILE", help="what to tell (TOML)")


COMMANDS: dict[str, Command] = {"hook": Command(run_hook, _add_hook)}
