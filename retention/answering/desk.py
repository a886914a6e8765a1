"""What the methods that hold no state work on, and the small things that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from retention import handover
from retention.digest import Digest
from retention.errors import (
    DamagedObject,
    InvalidParams,
    UnknownConversation,
    UnknownObject,
)
from retention.model import Conversation
from retention.outputs import answer_limit
from retention.protocol import File
from retention.store import Store

if TYPE_CHECKING:
    from retention.index import Index

MAX_PAGE = 4_000_000  # code points of a text that the user gets at a time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Desk:
    """The store and what is around it.

    `index` opens the search index when it is first called, `indexed` tells whether there is one.
    `hand` makes a text that is large a file for the client; `notify` says that a conversation has
    something new to learn, or, of "", that the index lacks something.
    """

    store: Store
    clock: Callable[[], float]
    index: Callable[[], Index]
    indexed: Callable[[], bool]
    hand: Callable[[str], tuple[str, File | None]]
    notify: Callable[[str], None]

    def read(self, name: Digest) -> bytes | None:
        """Return an object, or None if it is missing or damaged: it counts as absent (rule Z3)."""
        try:
            with self.store.read() as reader:
                return reader.object(name)
        except (UnknownObject, DamagedObject):
            return None

    def conversation(self, id: str) -> Conversation:
        """Return the head record of conversation ID; raise UnknownConversation."""
        with self.store.read() as reader:
            record = reader.conversation(id)
        if record is None or record.forgotten:
            raise UnknownConversation(f"no conversation {id!r}")
        return record


class Asked(Protocol):
    """The parameters of a method whose answer depends on who asked."""

    @property
    def by(self) -> str:
        """Who asked: "model" or "user"."""

    @property
    def cap(self) -> int:
        """The cap of the model's answer, 0 for the default."""


def limit_of(params: Asked) -> int:
    """Return the bound of an answer in code points: the one cap for a model (rule K1)."""
    return MAX_PAGE if params.by == "user" else answer_limit(params.cap)


def read_list(value: tuple[T, ...] | File, kind: type[T]) -> tuple[T, ...]:
    """Return VALUE, a list of KIND or the file that it was handed over in."""
    if isinstance(value, tuple):
        return value
    try:
        return msgspec.json.decode(handover.read_text(value), type=tuple[kind, ...])  # type: ignore[valid-type]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidParams(f"{kind.__name__}: {error}") from None
