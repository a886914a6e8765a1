"""The vocabulary of the loopback provider, shared by all APIs.

An `Api` is a row of functions: what it refuses (`check` raises `Refused`), what a conversation
looks like without its wire format (`steps`), how an answer is written (`document`, `events`) and
how a client that loses nothing gives it back (`said`, `normal`, `atoms`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from tests.loopback.ids import make_id
from tests.loopback.strictness import Strictness

if TYPE_CHECKING:
    from tests.loopback.cache import Cached, Entry
    from tests.loopback.issued import Issued, Response

Json: TypeAlias = Any
Object: TypeAlias = dict[str, Any]


class Refused(Exception):
    """The API refuses a request; the fields are those that any of the envelopes can show."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A message, or the part of one that matters to the script.

    A step of results has one entry in `texts` for each tool result.
    """

    kind: Literal["user", "assistant", "results"]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning; without text it still has its signature, where the API signs."""

    text: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """Reasoning that the API shows to nobody."""


@dataclass(frozen=True, slots=True)
class Text:
    """Ordinary text."""

    text: str


@dataclass(frozen=True, slots=True)
class EmptyText:
    """A text part without text that is there for its signature (Gemini)."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is JSON exactly as the model wrote it, "" for no arguments."""

    name: str
    arguments: str = "{}"

    @property
    def args(self) -> Object:
        """The arguments as a value."""
        parsed: Object = json.loads(self.arguments or "{}")
        return parsed


Block: TypeAlias = Thinking | Redacted | Text | EmptyText | Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the model says, block by block, or how it fails."""

    blocks: tuple[Block, ...] = ()
    status: int | None = None
    error: str | None = None
    delay: float = 0.0
    cut: int | None = None
    quirks: tuple[str, ...] = ()
    """What its stream looks like, see `quirks.py`."""

    @property
    def text(self) -> str:
        """All text."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def reasoning(self) -> str:
        """All reasoning that has text."""
        return "".join(block.text for block in self.blocks if isinstance(block, Thinking))

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls."""
        return tuple(block for block in self.blocks if isinstance(block, Call))

    @property
    def hidden(self) -> tuple[Block, ...]:
        """The blocks that are reasoning, or there for the sake of reasoning."""
        return tuple(b for b in self.blocks if isinstance(b, Thinking | Redacted | EmptyText))

    @property
    def thinks(self) -> bool:
        """Whether there is any reasoning."""
        return bool(self.hidden)

    @property
    def is_fault(self) -> bool:
        """Whether the client gets no usable answer out of this and is expected to try again."""
        return self.status is not None or self.error is not None or self.cut is not None


class Atom(NamedTuple):
    """One thing in an issued element that a client must not change.

    `seal` is a signature or encrypted content, `reasoning` the text that goes with one or stands
    alone, `id` what the provider named, `call` a call that has no id, `arguments` those of a call.
    """

    kind: Literal["seal", "reasoning", "id", "call", "arguments", "text"]
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request as it came in; `json` is the parsed body, an object before any API sees it."""

    path: str
    query: dict[str, str]
    body: bytes
    json: Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What an answer needs besides its content."""

    request: Request
    seq: int
    strictness: Strictness
    issued: Issued
    cached: Cached

    @property
    def model(self) -> str:
        """The model that the body names."""
        return str(self.request.json.get("model", ""))

    @property
    def created(self) -> int:
        """Seconds since the epoch, one apart for each request: no clock, so runs are equal."""
        return 1_790_000_000 + self.seq

    @property
    def input_tokens(self) -> int:
        """A stand-in for a tokenizer: four bytes a token.  Cached ones are among them."""
        return max(-(-len(self.request.body) // 4), self.cached.read + self.cached.written)

    @property
    def fresh_tokens(self) -> int:
        """Those that were neither read from the cache nor written to it."""
        return self.input_tokens - self.cached.read - self.cached.written

    def id(self, prefix: str, length: int, index: int = 0) -> str:
        """An id that no other request, and no other INDEX of this one, gets."""
        return prefix + make_id(length, self.request.body, self.seq, prefix, index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A request and what became of it.  Headers are never kept: they carry credentials."""

    seq: int
    path: str
    api: str | None
    body: bytes
    json: Json
    status: int
    refusal: str | None
    issued: tuple[Object, ...] = ()
    """The answer as elements of the array, as a client that loses nothing sends them back."""

    @property
    def meta(self) -> Object:
        """What is told about a request without its body."""
        return {
            "seq": self.seq,
            "path": self.path,
            "api": self.api,
            "status": self.status,
            "refusal": self.refusal,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Api:
    """One provider API."""

    name: str
    route: re.Pattern[str]
    """Matches the whole path."""
    check: Callable[[Request, Strictness, Issued], None]
    """Raises `Refused`, or `ShapeError` for a value of the wrong type."""
    misshapen: Callable[[str, str], Refused]
    """The refusal for PATH, which should have been of TYPE; "" as TYPE: it is missing."""
    steps: Callable[[Object], list[Step]]
    streams: Callable[[Request], bool]
    document: Callable[[Answer, Context], Json]
    events: Callable[[Answer, Context], Iterator[bytes]]
    stream_type: Callable[[Request], str]
    fault: Callable[[int, str], Refused]
    """The refusal for a scripted STATUS and MESSAGE."""
    envelope: Callable[[Refused, Request], Json]
    array: str
    """The member of a body that holds the conversation."""
    said: Callable[[Answer, Context], tuple[Object, ...]]
    """The answer as elements of the array."""
    normal: Callable[[Object], Object]
    """An element without what a client may write otherwise; objects that the model wrote as JSON
    text, so that the order of their keys counts."""
    atoms: Callable[[Object], Iterable[Atom]]
    """What the provider can know an element of the assistant by; nothing for other elements."""
    entries: Callable[[Object], Sequence[Entry]]
    """The parts of a body that its prompt cache knows."""
    returnable: Callable[[Response], Sequence[Object | None]] = lambda response: response.elements
    """The elements of a response as they can come back; None for one that cannot."""
    model: Callable[[Request], str] = lambda request: str(request.json.get("model", ""))
    headers: Callable[[Refused], dict[str, str]] = lambda _: {}
