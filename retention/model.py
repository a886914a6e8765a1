"""The frozen vocabulary that the core works on.  No I/O, no clock, no provider names.

A *payload* is read into `Message` values.  The *log* of a conversation is an ordered tuple of `Row`
values.  Planning compares the two and answers with `Plan`-like values (see `planning`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from retention.digest import Digest

RowId = int  # unique within a conversation and its forks; grows; 0 stands for the start of the log
START: RowId = 0


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the vocabulary: immutable, keyword-only, compact when stored."""


class Role(StrEnum):
    """Who speaks, in the terms of every API at once."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"  # results of calls, also where an API gives them the role user


class PartKind(StrEnum):
    """What one part of a message is, neutral across APIs (adapter.md G2)."""

    TEXT = "text"
    CALL = "call"
    RESULT = "result"
    MEDIA = "media"
    EMPTY = "empty"


class Part(Struct, frozen=True):
    """One canonical part of a message; its digest is what alignment compares."""

    kind: PartKind
    digest: Digest


class Message(Struct, frozen=True):
    """One element of the payload's array, as far as the core needs it.

    `raw` is the exact JSON text, dropped once stored; `exact` is its digest (domain "message") and
    `size` its length in bytes.  `parts` holds the canonical parts in order; reasoning, ids and
    cache marks leave no part (rule I2).  A message that leaves none has one part of kind EMPTY.
    """

    role: Role
    exact: Digest
    size: int
    parts: tuple[Part, ...]
    raw: bytes = b""

    @property
    def opens(self) -> bool:
        """Whether the message ends in calls, so that results must follow it."""
        return bool(self.parts) and self.parts[-1].kind is PartKind.CALL

    @property
    def results(self) -> bool:
        """Whether the message begins with results, so that nothing may come before it."""
        return bool(self.parts) and self.parts[0].kind is PartKind.RESULT


class Face(StrEnum):
    """In which payloads a row appears."""

    BOTH = "both"  # as gptel builds it and as it was sent
    ORDINARY = "ordinary"  # only as gptel rebuilds it from the buffer
    ACTUAL = "actual"  # only as it was sent or received inside the tool loop


class SectionState(Struct, frozen=True):
    """What one delivery says of one section: the digest of its body, and whether it is inactive."""

    name: str
    body: Digest
    inactive: bool = False


class Delivery(Struct, frozen=True):
    """What one delivery carried, and where it stands.

    `text` is the digest of the whole delivery text (an object of kind "delivery").  `after` and
    `before` are the rows on either side (rule B3); `before` is START until a message follows.
    `host` tells that the text was put into the message of row `after` (rule D4) rather than into
    a message of its own.
    """

    text: Digest
    after: RowId
    before: RowId = START
    host: bool = False
    sections: tuple[SectionState, ...] = ()
    reminders: tuple[str, ...] = ()
    turn: int = 0


class Row(Struct, frozen=True):
    """One entry of a conversation's log (adapter.md G1-G3).

    `pred` is the row right after which this one was inserted; the order of the log follows from
    it (`ledger.order_rows`).  `exact` is the digest of the JSON text as sent (for a delivery: of
    the message that carried it), `size` its length in bytes.  `parts` are the digests of the
    canonical parts; `alias` those of the newest prompt as the buffer holds it, where transforms
    made it differ (adapter.md Q6).  `round` groups the ordinary and the actual rows of one provider
    response with its results; 0 means none.  `delivery` is set for a delivery and for nothing else.
    """

    id: RowId
    pred: RowId
    face: Face
    role: Role
    exact: Digest
    size: int = 0
    parts: tuple[Digest, ...] = ()
    alias: tuple[Digest, ...] = ()
    round: int = 0
    delivery: Delivery | None = None


class Identity(Struct, frozen=True):
    """Which provider a request goes to (rule I5).  Never a header, key or token."""

    api: str
    backend: str = ""
    protocol: str = ""
    host: str = ""
    endpoint: str = ""
    model: str = ""
    cache: str = ""


class Section(Struct, frozen=True):
    """A named observation with its current body (None or blank: nothing available, rule D1).

    `error` says that its body signalled an error (rule D9); the body is then ignored.
    """

    name: str
    title: str
    kind: str = "fact"  # or "guidance" (rule D3)
    body: str | None = None
    error: bool = False


class Reminder(Struct, frozen=True):
    """A piece of guidance that its policy may make due (rule D8).

    `policy` is "once", "every" (with `turns`), "while" (with `state`: a text that identifies the
    condition while it holds, None while it does not) or "on" (an event that was raised).
    """

    key: str
    body: str
    policy: str = "once"
    turns: int = 0
    state: str | None = None


class Reason(Struct, frozen=True):
    """Why something was done or left out, for explain and for tests."""

    code: str
    detail: str = ""


class RequestRecord(Struct, frozen=True):
    """One committed dispatch (rule C1): its rows are those of `parent` up to `keep`, then `rows`.

    `seq` counts the conversation's requests from 1; `parent` 0 means none.  `head` is the digest
    of the tools, system and parameters text.  `reasons` are what explain shows.
    """

    seq: int
    plan: str
    parent: int
    keep: int
    rows: tuple[RowId, ...]
    turn: int
    origin: str
    identity: Digest
    head: Digest | None = None
    at: float = 0.0  # seconds since the epoch
    delivered: tuple[RowId, ...] = ()
    changed: dict[RowId, Digest] = {}  # rows that went out with another exact text than recorded
    reasons: tuple[Reason, ...] = ()
    bytes: int = 0  # of the array as sent
    inside: tuple[RowId, ...] = ()  # of `rows`: those in the element of the row before them


class Refusal(Struct, frozen=True):
    """How far edits are held back after a provider refused one (adapter.md Z6).

    `step` 0 edits fully, 1 leaves out reasoning, 2 all fragments, 3 all edits.
    """

    identity: Digest
    step: int
    status: int = 0


class Conversation(Struct, frozen=True):
    """The head record of a conversation.

    `version` grows by one with each write and tells another process that its copy is old.
    `base` names the conversation whose rows with an id below `base_rows` this one shares (a fork).
    `conditions` holds the state at which each `while` reminder was last seen by a commit.
    """

    id: str
    version: int = 0
    next_row: RowId = 1
    next_seq: int = 1
    next_round: int = 1
    turns: int = 0
    base: str = ""
    base_rows: RowId = 0
    files: tuple[str, ...] = ()
    created: float = 0.0
    used: float = 0.0
    title: str = ""
    conditions: dict[str, str] = {}
    refusal: Refusal | None = None
    forgotten: bool = False  # rows are kept only because a fork shares them
