"""The store: conversations, rows, requests and objects in LMDB.

A `Store` may be shared by threads; a thread has at most one transaction at a time.  Several
processes may use one directory at the same time (rule L4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from retention.store.checking import Problem, find_problems
from retention.store.collecting import Freed, collect
from retention.store.environment import MAP_SIZE, MAX_MAP_SIZE, Environment, Moment
from retention.store.forgetting import finish, forget, forget_sources
from retention.store.records import Reader, Writer

__all__ = ["Freed", "Problem", "Reader", "Store", "Writer"]

T = TypeVar("T")


class Store:
    """One store, opened by this process."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._sources: tuple[Moment, int] | None = None
        self.path = environment.root

    @classmethod
    def open(
        cls, path: Path, *, map_size: int = MAP_SIZE, max_map_size: int = MAX_MAP_SIZE
    ) -> Store:
        """Open the store in the directory PATH, making it if need be (0700, files 0600).

        Raise StoreVersionError for a newer format, StoreFull without space, else StoreError.
        """
        return cls(Environment(path.expanduser().resolve(), map_size, max_map_size))

    def source_count(self) -> int:
        """Return how many sources there are; counted again only when something was written."""
        with self._environment.reading() as session:
            moment = self._environment.moment(session)
            if self._sources is None or self._sources[0] != moment:
                self._sources = moment, Reader(session).source_count()
            return self._sources[1]

    def close(self) -> None:
        """Close it; a second time does nothing."""
        self._environment.close()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """Yield a reader on a snapshot that stays as it is until the block ends."""
        with self._environment.reading() as session:
            yield Reader(session)

    def write(self, apply: Callable[[Writer], T]) -> T:
        """Return what APPLY returns, its writes committed as one; none if it raises.

        APPLY may run more than once (the map was full, another process compacted the store).
        """
        return self._environment.write(lambda session: apply(Writer(session)))

    def forget(self, id: str) -> None:
        """Remove a conversation, and the objects that no other one refers to (rule Z2).

        Rows that a fork shares stay until the last fork goes.  The work is done in slices, so that
        no writer waits long.  Raise UnknownConversation.
        """
        forget(self._environment, id)

    def forget_sources(self, owner: str) -> None:
        """Remove what was learned under OWNER, which stands for no conversation."""
        forget_sources(self._environment, owner)

    def check(self) -> tuple[Problem, ...]:
        """Return every problem that a full check finds."""
        with self._environment.reading() as session:
            return tuple(find_problems(session))

    def collect(
        self, *, retired_before: float = 0.0, unused_before: float = 0.0, dry_run: bool = False
    ) -> Freed:
        """Free what no record needs, and return what that was (rule L6).

        History that was retired, and conversations that were last used, before the times go first.
        DRY_RUN only tells what would be freed.
        """
        return collect(
            self._environment, retired_before=retired_before, unused_before=unused_before,
            dry_run=dry_run,
        )  # fmt: skip

    def compact(self) -> None:
        """Give the space of removed records back to the system.  Writers wait, readers do not."""
        finish(self._environment)
        self._environment.compact()
