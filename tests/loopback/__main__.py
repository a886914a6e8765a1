"""Run the provider as a process.

It prints `{"port": N}` when it listens and ends on SIGTERM, SIGINT or the end of its input.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from dataclasses import fields
from pathlib import Path

from tests.loopback.server import CHUNK, Loopback
from tests.loopback.strictness import THINKING, Strictness


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.loopback", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="keep each request as files in DIR"
    )
    parser.add_argument(
        "--script", type=Path, metavar="FILE", help="what to answer (see script.py)"
    )
    parser.add_argument(
        "--chunk",
        type=int,
        default=CHUNK,
        metavar="N",
        help="bytes a write of a stream; 0: all at once",
    )
    parser.add_argument("--ignore-input", action="store_true", help="do not end with the input")
    for flag in fields(Strictness):
        name = "--" + flag.name.replace("_", "-")
        if isinstance(flag.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=flag.default)
        else:
            parser.add_argument(name, choices=THINKING, default=flag.default)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_arguments()
    script = json.loads(options.script.read_text(encoding="utf-8")) if options.script else []
    strictness = Strictness(
        **{flag.name: getattr(options, flag.name) for flag in fields(Strictness)}
    )
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    if not options.ignore_input:
        threading.Thread(target=wait_for_end, args=(done,), daemon=True).start()
    with Loopback(
        script,
        strictness=strictness,
        chunk=options.chunk or None,
        record=options.record,
        port=options.port,
    ) as server:
        print(json.dumps({"port": server.port}), flush=True)
        done.wait()


def wait_for_end(done: threading.Event) -> None:
    """Read the input to its end.  Unbuffered, so that the thread holds no lock when we exit."""
    while sys.stdin.fileno() >= 0 and sys.stdin.buffer.raw.read(4096):  # type: ignore[union-attr]
        pass
    done.set()


if __name__ == "__main__":
    main()
