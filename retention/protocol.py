"""The structs of every RPC request and result, and the method table.

Unknown fields are ignored; a missing or mistyped one is an `InvalidParams` error.  New fields get
defaults and are added at the end; a field never changes its meaning.  Payload parts cross as JSON
text in a `Text`: inline, or handed over in a private file when large (adapter.md P2).
"""

from __future__ import annotations

import msgspec

from retention.model import Continuity, Identity, Reason, Reminder, Section, Usage

PROTOCOL = 1  # grows with each incompatible change
MAX_FRAME = 64 * 1024  # bytes; the client sends at most 16 KB, answers above go into a file
MAX_INLINE = 12 * 1024  # bytes of one inline text in an answer; larger ones are handed over
MAX_FILE = 256 * 1024 * 1024  # bytes of one handed-over file; the largest known request is 32 MB
MAX_ID = 128  # characters of an id that a client chooses


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """Base of request structs."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of result structs."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A text handed over in a private file; the reader removes it."""

    file: str
    bytes: int
    sha256: str = ""


Text = str | File


class Initialize(Params, frozen=True):
    """`protocol` is the client's version; `client` names it for the log."""

    protocol: int
    client: str = ""
    handover: str = ""  # directory for files from the backend to the client


class Initialized(Result, frozen=True):
    """What the backend is: `capabilities` are the method names it answers."""

    protocol: int
    version: str
    capabilities: tuple[str, ...]
    store: str


class Empty(Params, frozen=True):
    """A request without parameters."""


class Done(Result, frozen=True):
    """An answer without content."""

    ok: bool = True


class ConversationOpen(Params, frozen=True):
    """Find or make a conversation: by `id`, else by the true name of its `file`."""

    id: str = ""
    file: str = ""
    title: str = ""


class ConversationOpened(Result, frozen=True):
    """`id` to keep beside the buffer; `forked` names the conversation it was split from."""

    id: str
    created: bool = False
    forked: str = ""
    rows: int = 0
    turns: int = 0


class ConversationFork(Params, frozen=True):
    """Make a conversation that shares the past of `id`; `file` is the true name of its own."""

    id: str
    file: str = ""
    title: str = ""


class ConversationRetire(Params, frozen=True):
    """History of `id` is to be replaced by a summary.

    It is `before`, a JSON array of ordinary messages, or all up to `row`, one of the last request.
    Without `confirm` nothing changes: the answer is what a summary is written from.  `array` and
    `identity` are as in `Prepare`.
    """

    id: str
    array: str
    identity: Identity
    before: Text | None = None
    row: int = 0
    confirm: bool = False


class ConversationRetired(Result, frozen=True):
    """What a summary is written from: `text`, or `text_file` when large.

    About `guidance`, `conversation` and `tools` tokens of it are of each kind.  `row` is the last
    ordinary row of the history, 0 if nothing of it is in the log, `rows` how many would retire.
    `retired` tells that they did.
    """

    text: str = ""
    text_file: File | None = None
    row: int = 0
    rows: int = 0
    guidance: int = 0
    conversation: int = 0
    tools: int = 0
    retired: bool = False


class ConversationExport(Params, frozen=True):
    """Write conversation `id` to `file`, an absolute name that does not exist yet."""

    id: str
    file: str


class ConversationExported(Result, frozen=True):
    """How many objects the file holds, and how many it lacks because they are damaged."""

    objects: int = 0
    missing: int = 0


class ConversationImport(Params, frozen=True):
    """Store the conversation that `file` holds, `as_new` under an id of its own."""

    file: str
    as_new: bool = False


class ConversationImported(Result, frozen=True):
    """The conversation that was imported; without `created` it was there already, and equal."""

    id: str
    created: bool = False
    rows: int = 0


class StoreCollect(Params, frozen=True):
    """Free what no record needs, or with `dry_run` only tell what that is.

    `grace` is after how many days retired history goes, `days` after how many an unused
    conversation: 0 for never, none for what the setting `keep.days` says.
    """

    grace: int = 30
    days: int | None = None
    dry_run: bool = False


class Kind(Result, frozen=True):
    """Objects of one kind: how many, and the bytes of them."""

    kind: str
    objects: int
    bytes: int


class StoreCollected(Result, frozen=True):
    """What was freed: conversations, texts of retired rows, objects, and references.

    Not `purged`: another process was reading the search index, whose file may then still hold
    words of what went.
    """

    conversations: tuple[str, ...] = ()
    rows: int = 0
    kinds: tuple[Kind, ...] = ()
    references: int = 0
    purged: bool = True


class ConversationId(Params, frozen=True):
    """Names one conversation."""

    id: str


class ConversationSummary(Result, frozen=True):
    """One line of `conversation/list`."""

    id: str
    title: str
    files: tuple[str, ...]
    turns: int
    requests: int
    rows: int
    created: float
    used: float


class ConversationList(Result, frozen=True):
    """All conversations, the last used first."""

    conversations: tuple[ConversationSummary, ...]


class Prepare(Params, frozen=True):
    """A request that is about to go out (adapter.md Q1-Q7).

    `array` names the payload's key (`messages`, `input` or `contents`).  `base` and `keep`: the
    first `keep` elements equal those of the state `base`; `tail` is a JSON array of the others.
    Without `base`, `tail` is the whole array.  `have` names the sent states whose arrays the client
    still holds.  `head` is the payload without the array, sent when it changed since `base`.
    `span`: the ordinary messages that the last round of the loop added, a JSON array.  `prompt`:
    the newest prompt parsed without transforms, a JSON array of messages.  `frozen`: the selection
    of an agent, so that nothing is stated inactive.  `shape` overrides where a delivery goes:
    "message", "merge" or "result" (rule D4).
    """

    conversation: str
    request: str
    origin: str  # "buffer" | "loop"
    array: str
    identity: Identity
    tail: Text
    base: str = ""
    keep: int = 0
    have: tuple[str, ...] = ()
    head: Text | None = None
    span: Text | None = None
    prompt: Text | None = None
    sections: tuple[Section, ...] | File = ()
    reminders: tuple[Reminder, ...] | File = ()
    frozen: bool = False
    shape: str = ""
    hooked: bool = False  # a hook changed a call of the last response before it ran (rule R2)
    context: bool = True  # context that gptel put into an earlier prompt stays there (case S16)
    marks: bool = True  # cache marks of messages are planned (rule C3)


class Edit(Result, frozen=True):
    """One step that makes the sent array: exactly one field is set.

    `keep` takes the next n elements of the payload, `drop` passes over n of them, `insert` adds
    the elements of a JSON array, `reuse` takes the first n elements of the array that was sent as
    the state named `Prepared.reuse`.
    """

    keep: int = 0
    drop: int = 0
    insert: str = ""
    reuse: int = 0


class DeliveredSection(Result, frozen=True):
    """One section of the new delivery and why it is due: new, changed, missing or inactive."""

    name: str
    reason: str


class Prepared(Result, frozen=True):
    """The plan.  `edits` empty, and no `edits_file`, means: dispatch unchanged.

    `ordinary` and `sent` name the states to use as `base` later.  `edits_file` replaces `edits`
    when they are large: a JSON array of edits.  `reused` and `total` are bytes of the array: what
    equals the last request of this conversation from its start, and all of it.
    """

    plan: str
    ordinary: str
    sent: str
    edits: tuple[Edit, ...] = ()
    edits_file: File | None = None
    reuse: str = ""
    sections: tuple[DeliveredSection, ...] = ()
    reminders: tuple[str, ...] = ()
    restored: int = 0  # earlier deliveries put back
    reused: int = 0
    total: int = 0
    reasons: tuple[Reason, ...] = ()
    replayed: int = 0  # fragments that stand for what gptel built
    continuity: Continuity | None = None
    breaches: tuple[Reason, ...] = ()  # published rules that the request breaks as it goes out
    include: tuple[str, ...] = ()  # what to ask the provider to include in its response


class PlanId(Params, frozen=True):
    """Names a plan that `request/prepare` answered."""

    plan: str


class Committed(Result, frozen=True):
    """`seq` numbers the request in its conversation; 0 for a detached one."""

    seq: int = 0


class Refused(Params, frozen=True):
    """The provider refused the plan's request with an HTTP `status` of 400 to 499."""

    plan: str
    status: int
    body: Text = ""


class RefusedStep(Result, frozen=True):
    """How far edits are held back from now on (`model.Refusal.step`)."""

    step: int


class ResponseRecord(Params, frozen=True):
    """A response has ended: `body` is all that the provider sent, undecoded.

    `plan` is that of its dispatch.  Only responses to requests that the provider accepted are
    recorded.
    """

    conversation: str
    request: str
    plan: str
    array: str
    identity: Identity
    body: Text


class ResponseRecorded(Result, frozen=True):
    """What was in the response: how many messages and calls, and the tokens that it cost."""

    elements: int = 0
    calls: int = 0
    complete: bool = False
    finish: str = ""
    error: str = ""
    usage: Usage | None = None


class TurnComplete(Params, frozen=True):
    """The end of a turn: `span` is the last piece; `whole` the whole response region if it does
    not parse into the same messages as its pieces joined (adapter.md Q3).
    """

    conversation: str
    request: str
    array: str
    identity: Identity
    span: Text
    whole: Text | None = None


class OutputLimits(Params, frozen=True):
    """Code points: `tail`, up to which a result is left alone, and `cap` of an excerpt."""

    tail: int = 12_000
    cap: int = 16_000


class OutputSave(Params, frozen=True):
    """A tool returned `body`, its exact bytes, for `call`, its arguments as JSON text.

    `task` is the latest user turn.  `scorer` is "local", or "model": then the answer may ask for
    scores.
    """

    conversation: str
    tool: str
    body: Text
    call: str = ""
    task: Text = ""
    scorer: str = "local"
    limits: OutputLimits = OutputLimits()


class OutputScore(Params, frozen=True):
    """A model's answer to the questions about output `id`, JSON text; empty if there is none."""

    conversation: str
    id: str
    answer: Text = ""
    limits: OutputLimits = OutputLimits()


class OutputSaved(Result, frozen=True):
    """What the model is to get: `text`, or `text_file` when large.

    `id` is empty if the result was not stored, because all of it is in `text`.  `ask`, or
    `ask_file`, is what to ask a model, JSON text with `prompt` and `schema`; its answer goes into
    `output/score`.
    """

    id: str = ""
    text: str = ""
    text_file: File | None = None
    strategy: str = ""
    why: str = ""
    format: str = ""
    bytes: int = 0
    chars: int = 0
    lines: int = 0
    shown: int = 0
    ask: str = ""
    ask_file: File | None = None


class OutputRecall(Params, frozen=True):
    """Part of output `id`, exactly: a `segment` by its id, lines `first` to `last`, lines that
    match `pattern` with `context` around them, else all; from code point `offset` on.

    `by` is "model", whose answers obey the one cap and are counted, or "user".
    """

    id: str
    conversation: str = ""
    segment: str = ""
    first: int = 0
    last: int = 0
    pattern: str = ""
    context: int = 2
    offset: int = 0
    by: str = "model"
    cap: int = 0  # code points; 0: the default


class OutputRecalled(Result, frozen=True):
    """One page: `more` is where the next begins, or 0; `total` counts all code points."""

    text: str = ""
    text_file: File | None = None
    more: int = 0
    total: int = 0


class OutputSearch(Params, frozen=True):
    """Lines of a conversation's outputs that have all words of `query`, from hit `offset` on."""

    conversation: str
    query: str
    offset: int = 0
    cap: int = 0


class OutputFound(Result, frozen=True):
    """The lines, each with the id of its output and its number; `more` is where to go on, or 0."""

    text: str
    more: int = 0


class OutputList(Params, frozen=True):
    """The newest outputs of a conversation."""

    conversation: str
    limit: int = 100


class EvidenceLearn(Params, frozen=True):
    """Learn one live `conversation`, or one saved file at `path`, now.

    Without `plain` a text that is no chat, log or run is left alone.
    """

    conversation: str = ""
    path: str = ""
    plain: bool = True


class LearnedSource(Result, frozen=True):
    """One source that was looked at: its id, its `chunks`, whether anything `changed`, and what
    could not be read as what it should be.
    """

    source: str
    kind: str
    title: str = ""
    chunks: int = 0
    chars: int = 0
    changed: bool = False
    warnings: tuple[str, ...] = ()


class EvidenceLearned(Result, frozen=True):
    """What was learned."""

    sources: tuple[LearnedSource, ...] = ()


class EvidenceSearch(Params, frozen=True):
    """What was learned that has to do with `query`.

    `conversation` comes first, or, with `only`, alone.  `tool` and `kind` (of an event: "user",
    "assistant", "analysis", "tool_call", "tool_output", "delivery", "text"; or of a source: "file",
    "conversation", "output", "log", "run") limit what is found, `since` and `until` (seconds since
    the epoch) when.  `by` is "model", whose answer is `text` within the one cap, or "user".
    """

    query: str
    conversation: str = ""
    only: bool = False
    tool: str = ""
    kind: str = ""
    since: float = 0.0
    until: float = 0.0
    limit: int = 10
    by: str = "user"
    cap: int = 0  # code points; 0: the default
    mode: str = "combined"  # or one of its halves alone: "lexical", "dense"


class Hit(Result, frozen=True):
    """One place that was found.

    `id` is what `evidence/expand` takes.  `at` is the offset of the match in the text of `id`, in
    code points; `place` its offset in the text of the source, `line` its line there, from 1.
    `excerpt` is a stretch of the exact text around the match, `words` the query's words that are in
    it.  `found` tells how: "words" (all of them), "some words", "meaning".
    """

    id: str
    source: str
    kind: str
    excerpt: str
    found: str
    at: int = 0
    begin: int = 0
    place: int = 0
    line: int = 1
    event: str = ""
    tool: str = ""
    title: str = ""
    path: str = ""
    conversation: str = ""
    time: float = 0.0
    words: tuple[str, ...] = ()


class EvidenceFound(Result, frozen=True):
    """The hits, the best first.  `text` is what the model gets; `note` says what was searched, and
    where nothing was found, why that does not mean that there is nothing.
    """

    hits: tuple[Hit, ...] = ()
    hits_file: File | None = None  # a JSON array of hits, in the place of `hits` when large
    text: str = ""
    note: str = ""


class EvidenceChunks(Params, frozen=True):
    """The chunks of `source` from number `first` on, `limit` of them."""

    source: str
    first: int = 0
    limit: int = 20
    by: str = "user"
    cap: int = 0


class EvidenceExpand(Params, frozen=True):
    """The exact text of a source or a chunk, by `id`, from code point `offset` of it on."""

    id: str
    offset: int = 0
    by: str = "user"
    cap: int = 0


class EvidenceText(Result, frozen=True):
    """One page of exact text: `more` is where the next begins, or 0; `total` counts code points.

    `start` is where the text of `id` begins in its source, `path` the file that it came from.
    """

    text: str = ""
    text_file: File | None = None
    more: int = 0
    total: int = 0
    source: str = ""
    start: int = 0
    path: str = ""
    title: str = ""


class EvidenceExplain(Params, frozen=True):
    """Why the run named in `question` failed (evidence.md V6): a number, or a text with one."""

    question: str
    by: str = "user"
    cap: int = 0


class Claim(Result, frozen=True):
    """One statement and the ids of the records that it is taken from; all of them contain it."""

    text: str
    support: tuple[str, ...]
    label: str = ""


class EvidenceExplained(Result, frozen=True):
    """What is known of a run: `refused` says why nothing is claimed; `text` is it in words."""

    claims: tuple[Claim, ...] = ()
    signature: str = ""
    anchor: str = ""
    refused: str = ""
    text: str = ""
    text_file: File | None = None


class EvidenceReload(Params, frozen=True):
    """What the tools of `source` (its id, or that of a conversation) found, newest first (L1-L4).

    The bounds are the stored settings `reload.budget` (code points) and `reload.rows`.
    """

    source: str


class EvidenceReloaded(Result, frozen=True):
    """The section: `items` stand in it of `lines` distinct ones among `rows` that were read.

    `skipped` did not fit.  `warnings` are for the user.
    """

    text: str = ""
    text_file: File | None = None
    items: int = 0
    lines: int = 0
    rows: int = 0
    skipped: int = 0
    warnings: tuple[str, ...] = ()


class EvidenceResume(Params, frozen=True):
    """Give `conversation` a section with the evidence of `source` from its next request on."""

    conversation: str
    source: str


class EvidenceSources(Params, frozen=True):
    """The sources, the newest first; `kind` limits them."""

    kind: str = ""
    limit: int = 1000


class SourceSummary(Result, frozen=True):
    """One line of `evidence/sources`."""

    source: str
    kind: str
    title: str = ""
    path: str = ""
    conversation: str = ""
    time: float = 0.0
    chunks: int = 0
    chars: int = 0


class EvidenceSourceList(Result, frozen=True):
    """The sources, and how far the index is: `waiting` conversations and outputs are not learned
    yet, `unembedded` texts have no vector yet.  `dense` tells whether there are vectors at all.
    """

    sources: tuple[SourceSummary, ...] = ()
    total: int = 0
    chunks: int = 0
    waiting: int = 0
    unembedded: int = 0
    dense: bool = False


class Settings(Params, frozen=True):
    """Stored settings to change; none: only ask.  A value of 0 takes the default again."""

    change: dict[str, int] = {}


class SettingsNow(Result, frozen=True):
    """The settings in use, by name."""

    settings: dict[str, int]


class InspectLog(Params, frozen=True):
    """The log of a conversation; `bodies` includes the stored texts."""

    id: str
    bodies: bool = False
    limit: int = 1000


class InspectObject(Params, frozen=True):
    """One stored object by its hexadecimal digest, or the first digits of it."""

    digest: str


class InspectStatus(Params, frozen=True):
    """The last requests of a conversation."""

    id: str
    limit: int = 20


class InspectExplain(Params, frozen=True):
    """Why requests were as they were: `request` 0 is the newest; `limit` of them, going back."""

    id: str
    request: int = 0
    limit: int = 1


class ReceiptOffer(Params, frozen=True):
    """What an engine that owns its history could be told now (rule X1).

    `boundary` is where the text would go: "prompt" (a turn begins), "results" or "compacted" (the
    engine has dropped its history).  `limit` is what the engine takes whole, in UTF-16 code units;
    0 is any length.  `wrapped`: the engine puts the text into a reminder of its own.
    """

    conversation: str
    sections: tuple[Section, ...] | File = ()
    reminders: tuple[Reminder, ...] | File = ()
    boundary: str = "prompt"
    limit: int = 0
    wrapped: bool = False


class ReceiptOffered(Result, frozen=True):
    """The exact text to give to the engine, and the id of the `offer`; neither if nothing is due.

    `waiting` is what was due and is not in it, "oversized" or "no_room": "NAME: SIZE of LIMIT".
    """

    offer: str = ""
    text: str = ""
    text_file: File | None = None
    sections: tuple[DeliveredSection, ...] = ()
    reminders: tuple[str, ...] = ()
    waiting: tuple[Reason, ...] = ()
    reasons: tuple[Reason, ...] = ()


class ReceiptAcknowledge(Params, frozen=True):
    """The engine's echo of an offer: `text` as it was recorded, `ok` whether that succeeded.

    `echo` is the engine's name of the record, if it has one: it acknowledges one offer.
    """

    conversation: str
    offer: str
    text: Text
    ok: bool = True
    echo: str = ""


class ReceiptAcknowledged(Result, frozen=True):
    """Whether the offer counts as delivered; `why` not: foreign, failed, duplicate, partial or
    altered.
    """

    accepted: bool
    why: str = ""


METHODS: dict[str, tuple[type[Params], type[Result] | None]] = {
    "initialize": (Initialize, Initialized),
    "shutdown": (Empty, Done),
    "conversation/open": (ConversationOpen, ConversationOpened),
    "conversation/fork": (ConversationFork, ConversationOpened),
    "conversation/retire": (ConversationRetire, ConversationRetired),
    "conversation/list": (Empty, ConversationList),
    "conversation/export": (ConversationExport, ConversationExported),
    "conversation/import": (ConversationImport, ConversationImported),
    "conversation/forget": (ConversationId, Done),
    "store/collect": (StoreCollect, StoreCollected),
    "request/prepare": (Prepare, Prepared),
    "request/commit": (PlanId, Committed),
    "request/abandon": (PlanId, Done),
    "request/refused": (Refused, RefusedStep),
    "response/record": (ResponseRecord, ResponseRecorded),
    "turn/complete": (TurnComplete, Done),
    "output/save": (OutputSave, OutputSaved),
    "output/score": (OutputScore, OutputSaved),
    "output/recall": (OutputRecall, OutputRecalled),
    "output/search": (OutputSearch, OutputFound),
    "output/list": (OutputList, None),
    "evidence/learn": (EvidenceLearn, EvidenceLearned),
    "evidence/search": (EvidenceSearch, EvidenceFound),
    "evidence/chunks": (EvidenceChunks, EvidenceText),
    "evidence/expand": (EvidenceExpand, EvidenceText),
    "evidence/explain": (EvidenceExplain, EvidenceExplained),
    "evidence/reload": (EvidenceReload, EvidenceReloaded),
    "evidence/resume": (EvidenceResume, EvidenceReloaded),
    "evidence/sources": (EvidenceSources, EvidenceSourceList),
    "settings/change": (Settings, SettingsNow),
    "inspect/log": (InspectLog, None),
    "inspect/object": (InspectObject, None),
    "inspect/requests": (InspectStatus, None),
    "inspect/explain": (InspectExplain, None),
    "inspect/check": (Empty, None),
    "receipt/offer": (ReceiptOffer, ReceiptOffered),
    "receipt/acknowledge": (ReceiptAcknowledge, ReceiptAcknowledged),
}
