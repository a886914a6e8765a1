"""Learning in the background, in one thread that waits while requests are answered.

It only begins a step when nothing has been asked for a moment, and its steps are short, so that an
answer waits for at most a part of one.  What it has not done yet, the next process finds.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from retention import indexing, learning, sources
from retention.errors import DamagedObject, RetentionError, UnknownConversation, UnknownObject
from retention.index import Index
from retention.store import Store

QUIET = 0.05  # seconds without a request before a step begins: prepare and commit stand together
PATIENCE = 5.0  # seconds after which a step begins although requests keep coming
SWITCH = 0.0005  # seconds after which this thread lets another one run
BATCH = 16  # texts that get vectors in one step: about 60 ms, most of it outside of Python
WAIT, MAX_WAIT = 5.0, 600.0  # seconds after a failure, doubled up to the greater
LEAVE = 5.0  # seconds that the end of the process waits for a step

_log = logging.getLogger(__name__)


class Worker:
    """One thread.  `open_index` is called in it; `asked` returns when a request was last served."""

    def __init__(
        self, store: Store, open_index: Callable[[], Index], asked: Callable[[], float]
    ) -> None:
        self._store = store
        self._open_index = open_index
        self._asked = asked
        self._due: dict[str, None] = {}  # conversations, in the order in which they came
        self._wake = threading.Condition()
        self._behind = False  # whether the index may lack what is in the store
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="learning", daemon=True)

    def start(self) -> None:
        """Begin; what was left by an earlier process comes first."""
        sys.setswitchinterval(SWITCH)
        self._thread.start()

    def notify(self, conversation: str) -> None:
        """Say that CONVERSATION has something new to learn; "" says that the index lacks some."""
        with self._wake:
            if conversation:
                self._due[conversation] = None
            else:
                self._behind = True
            self._wake.notify()

    def stop(self) -> None:
        """End after the step under way."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self._thread.join(LEAVE)

    def _run(self) -> None:
        wait = WAIT
        while not self._ended:
            try:
                for _ in self._work(self._open_index()):
                    wait = WAIT
                    if not self._pause():
                        return
            except RetentionError as error:
                _log.warning("learning: %s", error)
            except Exception as error:  # noqa: BLE001 - requests are answered whatever happens here
                _log.warning("learning: %s", type(error).__name__)
            with self._wake:
                self._wake.wait_for(lambda: self._ended, wait)
            wait = min(2 * wait, MAX_WAIT)

    def _work(self, index: Index) -> Iterator[None]:
        yield from self._catch_up(index)
        yield from self._follow(index)

    def _catch_up(self, index: Index) -> Iterator[None]:
        yield from indexing.reconcile(self._store, index)
        for id in learning.waiting(self._store):
            yield from self._learn(index, id)

    def _follow(self, index: Index) -> Iterator[None]:
        while True:
            while id := self._next(block=False):
                yield from self._learn(index, id)
            if self._behind or index.needs_rebuild:
                self._behind = False
                yield from indexing.reconcile(self._store, index)
            elif index.embed_some(self._read, BATCH):
                yield
            elif id := self._next(block=True):
                yield from self._learn(index, id)
            elif self._ended:
                return

    def _read(self, owner: str, id: str, number: int) -> str | None:
        return sources.read_chunk(self._store, owner, id, number)

    def _learn(self, index: Index, id: str) -> Iterator[None]:
        try:
            for output in learning.outputs_to_learn(self._store, id):
                yield
                with suppress(UnknownObject, DamagedObject):  # `check` names it
                    learning.learn_output(self._store, index, id, output)
            yield
            learning.learn_conversation(self._store, index, id)
        except UnknownConversation:
            pass  # forgotten meanwhile
        except RetentionError as error:
            self._behind = True
            _log.warning("learning %s: %s", id, error)

    def _next(self, *, block: bool) -> str:
        """Return the next conversation that is due, "" for none; BLOCK waits until one is."""
        with self._wake:
            if block:
                self._wake.wait_for(lambda: self._ended or self._due or self._behind)
            if self._ended or not self._due:
                return ""
            id = next(iter(self._due))
            del self._due[id]
            return id

    def _pause(self) -> bool:
        """Wait until nothing was asked for a moment; return False at the end."""
        deadline = time.monotonic() + PATIENCE
        while not self._ended:
            now = time.monotonic()
            rest = self._asked() + QUIET - now
            if rest <= 0 or now >= deadline:
                return True
            time.sleep(min(rest, QUIET))
        return False
