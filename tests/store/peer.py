"""A second process that has the same store open, driven over a pipe.

`Peer.ask` waits for the answer with a deadline; `Peer.tell` does not wait.  A peer can be made to
stop at a checkpoint of the store, or to be killed by SIGKILL there.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from retention.errors import RetentionError
from retention.store import Store, environment
from tests.store import build

DEADLINE = 60  # seconds; a machine under load needs a few to start a Python process


class Peer:
    def __init__(self, path: Path, **options: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, path, options), daemon=True)
        self.process.start()
        other.close()

    def tell(self, name: str, *args: Any) -> None:
        self.pipe.send((name, args))

    def answer(self) -> Any:
        assert self.pipe.poll(DEADLINE), "the peer does not answer"
        return self.pipe.recv()

    def ask(self, name: str, *args: Any) -> Any:
        self.tell(name, *args)
        return self.answer()

    def died(self) -> bool:
        """Wait for the end of the process; return whether SIGKILL ended it."""
        self.process.join(DEADLINE)
        return self.process.exitcode == -signal.SIGKILL


@contextmanager
def peer(path: Path, **options: int) -> Iterator[Peer]:
    """Yield a peer that has opened the store."""
    other = Peer(path, **options)
    try:
        assert other.ask("open") == "open"
        yield other
    finally:
        other.process.kill()
        other.process.join()
        other.pipe.close()


def _serve(pipe: Connection, path: Path, options: dict[str, int]) -> None:
    store: Store | None = None
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        try:
            if name == "open":
                store = Store.open(path, **options)
                pipe.send("open")
            else:
                assert store is not None
                pipe.send(_act(store, pipe, name, args))
        except RetentionError as error:
            pipe.send((error.code, str(error)))


def _act(store: Store, pipe: Connection, name: str, args: tuple[Any, ...]) -> Any:
    if name == "add":
        return build.add(store, *args)
    if name == "texts":
        return build.texts(store, *args)
    if name == "compact":
        return store.compact()
    if name == "forget":
        return store.forget(*args)
    if name == "check":
        return store.check()
    if name == "file size":
        return resource.setrlimit(resource.RLIMIT_FSIZE, (args[0], resource.RLIM_INFINITY))
    if name == "kill at":
        return _at(args[0], lambda: os.kill(os.getpid(), signal.SIGKILL), *args[1:])
    if name == "stop at":
        return _at(args[0], lambda: (pipe.send(args[0]), pipe.recv()))
    if name == "hold":  # keep a read transaction open until told
        with store.read():
            pipe.send("held")
            pipe.recv()
        return "released"
    raise AssertionError(name)


def _at(point: str, action: Callable[[], object], count: int = 1) -> None:
    """Run ACTION when the store passes POINT for the COUNTth time."""
    passed = 0

    def checkpoint(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == count:
            action()

    environment.checkpoint = checkpoint
