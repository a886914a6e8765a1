"""The vocabulary of the loopback provider, shared by all APIs.

An `Api` is a row of functions: what it refuses (`check` raises `Refused`), what a conversation
looks like without its wire format (`steps`), and how an answer is written (`document`, `events`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tests.loopback.ids import make_id
from tests.loopback.strictness import Strictness

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A tool call that the model makes."""

    name: str
    args: Object = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the model says, or how it fails."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    status: int | None = None
    error: str | None = None
    delay: float = 0.0
    cut: int | None = None

    @property
    def is_fault(self) -> bool:
        """Whether the client gets no usable answer out of this and is expected to try again."""
        return self.status is not None or self.error is not None or self.cut is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request as it came in; `json` is the parsed body."""

    path: str
    query: dict[str, str]
    body: bytes
    json: Object


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What an answer needs besides its content."""

    request: Request
    seq: int
    strictness: Strictness

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
        """A stand-in for a tokenizer: four bytes a token."""
        return -(-len(self.request.body) // 4)

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
    check: Callable[[Request, Strictness], None]
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
    headers: Callable[[Refused], dict[str, str]] = lambda _: {}
