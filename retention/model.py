"""The frozen vocabulary that the core works on.  No I/O, no clock, no provider names.

A *payload* is read into `Message` values.  The *log* of a conversation is an ordered tuple of `Row`
values.  Planning compares the two and answers with `Plan`-like values (see `planning`).
"""

from __future__ import annotations

from collections.abc import Iterator
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

    `raw` is the exact JSON text without cache marks, dropped once stored; `exact` is its digest
    (domain "message") and `size` its length in bytes.  `parts` holds the canonical parts in order;
    reasoning, ids and cache marks leave no part (rule I2).  A message that leaves none has one part
    of kind EMPTY.  `ids` are those of its calls or results, in order.  `reasoned` tells that it
    holds reasoning or a signature.  `marks` are the lifetimes of the marks it had when it was read.
    """

    role: Role
    exact: Digest
    size: int
    parts: tuple[Part, ...]
    raw: bytes = b""
    ids: tuple[str | None, ...] = ()
    reasoned: bool = False
    marks: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[tuple[Digest, str | None], ...]:
        """The part of each of its calls or results with the id."""
        kinds = (PartKind.CALL, PartKind.RESULT)
        parts = [part.digest for part in self.parts if part.kind in kinds]
        return tuple(zip(parts, self.ids, strict=True))

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


class Origin(Struct, frozen=True):
    """Where an actual row comes from, and what must be the same for it to be sent again.

    `identity` is the digest of the provider identity (rule F2).  `prefix` digests what stood in
    front of the response, without reasoning, for models whose reasoning is bound to it (rule C4);
    `thought` is the nearest row with reasoning in front of it, START for none.
    """

    identity: Digest
    prefix: Digest | None = None
    thought: RowId = START


class Row(Struct, frozen=True):
    """One entry of a conversation's log (adapter.md G1-G3).

    `pred` is the row right after which this one was inserted; the order of the log follows from
    it (`ledger.order_rows`).  `exact` is the digest of the JSON text as sent (for a delivery: of
    the message that carried it), `size` its length in bytes.  `parts` are the digests of the
    canonical parts; `alias` those of the newest prompt as the buffer holds it, where transforms
    made it differ (adapter.md Q6).  `round` groups the ordinary and the actual rows of one provider
    response with its results; 0 means none.  `delivery` is set for a delivery and for nothing else.
    `ids` pairs the part of each of its calls or results with its id, `reasoned` is as in `Message`,
    `origin` that of an actual row.  `context` digests what gptel put into the newest prompt and
    leaves out of later payloads (case S16).  `gone` tells that its text was collected: it matches
    nothing and goes out no more, and keeps its place in the order for the rows behind it.
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
    ids: tuple[tuple[Digest, str | None], ...] = ()
    reasoned: bool = False
    origin: Origin | None = None
    context: Digest | None = None
    gone: bool = False


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


class Usage(Struct, frozen=True):
    """Tokens that a provider reports for one request; None where it says nothing (rule C2).

    `input` is all of the input, `cached` what of it was read from the provider's cache, `written`
    what was written to it.  `output` includes reasoning.
    """

    input: int | None = None
    cached: int | None = None
    written: int | None = None
    output: int | None = None


class Cause(StrEnum):
    """Why a request does not begin with the whole request before it (rule C1)."""

    NONE = "none"  # it does
    FIRST = "first_request"
    PROVIDER = "provider_changed"  # another provider, model or cache policy
    TOOLS = "tools_changed"
    SYSTEM = "system_changed"
    PARAMETER = "parameter_changed"  # `detail` names it
    EDITED = "message_edited"
    FILTERED = "history_filtered"
    DELIVERY = "delivery_lost"
    FRAGMENT = "fragment_not_replayed"  # `detail` says why
    UNKNOWN = "unknown"


class Continuity(Struct, frozen=True):
    """How a request compares with the one before of this conversation and provider (rule C1).

    `element` is the index of the first message that differs, -1 where the difference stands in
    front of them; `path` names the place, `before` and `after` are short texts of the two sides.
    `reused` of `total` bytes of the array, and about `tokens` of all tokens, repeat it.
    """

    cause: Cause = Cause.FIRST
    detail: str = ""
    element: int = -1
    path: str = ""
    before: str = ""
    after: str = ""
    reused: int = 0
    total: int = 0
    tokens: int = 0


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
    continuity: Continuity | None = None
    usage: Usage | None = None
    finish: str = ""  # why the response ended, in the provider's word
    replayed: int = 0  # fragments in it
    marked: tuple[int, ...] = ()  # indices of the elements that carry a cache mark


class Output(Struct, frozen=True):
    """One tool result kept whole (tool-output.md O1, O8).

    `number` counts the outputs of the conversation from 1.  `id` is what the model and the user
    name it by: it follows from the bytes, object `blob`.  `bytes`, `chars` (code points) and
    `lines` are the true sizes, `shown` the code points that the model got as object `excerpt`, by
    `strategy`, for the reason `why`.  `earlier` is the id of an earlier equal output.
    """

    number: int
    id: str
    blob: Digest
    tool: str
    call: str = ""  # its arguments as JSON
    task: str = ""  # the latest user turn
    same: Digest | None = None  # what a result that a reader calls the same has too
    bytes: int = 0
    chars: int = 0
    lines: int = 0
    shown: int = 0
    excerpt: Digest | None = None
    strategy: str = ""
    why: str = ""
    earlier: str = ""
    turn: int = 0
    at: float = 0.0  # seconds since the epoch
    recalls: int = 0  # by the model, of a part
    whole_recalls: int = 0  # by the model, of all of it


class EventKind(StrEnum):
    """What one stretch of a learned text is (evidence.md V1)."""

    USER = "user"
    ASSISTANT = "assistant"
    ANALYSIS = "analysis"  # reasoning that the provider showed
    TOOL_CALL = "tool_call"
    TOOL_OUTPUT = "tool_output"
    DELIVERY = "delivery"  # sections and reminders
    TEXT = "text"  # nothing says what it is


class Event(Struct, frozen=True, array_like=True):
    """One stretch of a source's text: `chars` code points, the object `text` (domain "blob").

    The events of a source join to its exact text.  `call` is the canonical JSON of a tool's
    arguments, of a call and of its output alike.  `breaks` counts the line breaks in it.
    """

    kind: EventKind
    text: Digest
    chars: int
    tool: str = ""
    call: str = ""
    row: RowId = START  # of a live conversation's log, where it came from
    at: float = 0.0  # seconds since the epoch, where it is known
    breaks: int = 0


class Chunk(Struct, frozen=True, array_like=True):
    """A span of a source's text, in code points: what is indexed and found (evidence.md V2).

    `kind` and `tool` are those of the event that it begins in; `whole` tells that it begins with
    the header of a long tool event (V3).  `name` is its role-tagged name in the source ("error1",
    V4), else it is known by its number.
    """

    start: int
    end: int
    kind: EventKind = EventKind.TEXT
    tool: str = ""
    whole: bool = False
    name: str = ""


class Source(Struct, frozen=True):
    """Something learned: its exact text as events, and the chunks that it was cut into.

    `id` is what hits name: "c..." for a live conversation, "f..." for a saved file, "o..." for an
    output, "RUN.failed" for the log of a failed run and "Run:RUN" for its facts.  `owner` is the
    conversation that it goes with, else 32 hexadecimal digits made from what it was read from.
    `learner` is the version of the code that cut it; `warnings` say what could not be read.
    """

    id: str
    owner: str
    kind: str  # "conversation" | "file" | "output" | "log" | "run"
    events: tuple[Event, ...]
    chunks: tuple[Chunk, ...]
    learner: int
    title: str = ""
    path: str = ""
    at: float = 0.0  # seconds since the epoch: of the last use, the output, the run
    warnings: tuple[str, ...] = ()
    attributes: dict[str, str] = {}  # of a run: status, commit, started, ...
    version: int = 0  # of the conversation when it was learned

    @property
    def live(self) -> bool:
        """Whether it goes with a conversation of the store."""
        return self.kind in {"conversation", "output"}


class Refusal(Struct, frozen=True):
    """How far edits are held back after a provider refused one (adapter.md Z6).

    `step` 0 edits fully, 1 leaves out reasoning, 2 all fragments, 3 all edits.
    """

    identity: Digest
    step: int
    status: int = 0


class Retirement(Struct, frozen=True):
    """A history that was compacted (rule L1), from the time `at`, seconds since the epoch.

    `rows` are ranges of row ids, first and last; `end` are the last ordinary ones, by which a
    payload that holds it all the same is known.
    """

    at: float
    rows: tuple[tuple[RowId, RowId], ...]
    end: tuple[RowId, ...]

    @property
    def ids(self) -> Iterator[RowId]:
        """The ids of the rows, one by one."""
        for first, last in self.rows:
            yield from range(first, last + 1)


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
    evidence: Digest | None = None  # the section with what an earlier conversation found (L2)
    retired: tuple[Retirement, ...] = ()
    epoch: int = 0  # grows when history is retired, comes back, or is collected


class Receipt(StrEnum):
    """What became of an offer."""

    NONE = "none"  # no echo so far
    ACKNOWLEDGED = "acknowledged"
    LOST = "lost"  # acknowledged, and dropped since by the engine


class Offer(Struct, frozen=True):
    """One text offered to an engine that owns its history (rule X1).

    `number` counts the offers of the conversation from 1, `id` is what a receipt names.  `delivery`
    is what it carries, at no place of a log; None where nothing could go.  `conditions` are the
    states of the `while` reminders in it.  `waiting` says what was due and did not go.  `echo` is
    the engine's name of the record that acknowledged it, where it has one.
    """

    number: int
    id: str
    delivery: Delivery | None = None
    conditions: dict[str, str] = {}
    waiting: tuple[Reason, ...] = ()
    boundary: str = ""
    at: float = 0.0  # seconds since the epoch
    receipt: Receipt = Receipt.NONE
    echo: str = ""
