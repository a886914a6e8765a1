"""One function per RPC method: the only place that opens a store transaction.

A method decodes its parameters, reads what planning needs, calls the core, applies the writes of
the plan in one transaction, and answers.  What stands in memory (states of arrays, prepared plans,
loaded logs) is a cache that a restart may lose: a lost state answers `resync`, a lost plan
`unknown_plan`, and a log that another process has written to is loaded again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

import retention
from retention import (
    answering,
    handover,
    lifecycle,
    planning,
    settling,
    summarizing,
)
from retention.arrays import (
    Item,
    Sent,
    State,
    Step,
    UnheldText,
    common_length,
    make_sent,
    shared_length,
)
from retention.continuity import Compared, compare
from retention.digest import Digest, digest
from retention.errors import (
    InvalidParams,
    InvalidPayload,
    NotInitialized,
    StoreError,
    UnknownConversation,
    UnknownPlan,
    UnknownState,
    UnsupportedProtocol,
)
from retention.fragments import LOOP_REPAIRED, calls_of
from retention.ledger import Log
from retention.marking import wants_marks
from retention.model import (
    START,
    Continuity,
    Conversation,
    Face,
    Identity,
    Message,
    Origin,
    Reason,
    Refusal,
    Reminder,
    RequestRecord,
    Role,
    Row,
    RowId,
    Section,
)
from retention.planning import Plan
from retention.protocol import (
    MAX_ID,
    MAX_INLINE,
    METHODS,
    PROTOCOL,
    Committed,
    ConversationExport,
    ConversationExported,
    ConversationFork,
    ConversationId,
    ConversationImport,
    ConversationImported,
    ConversationList,
    ConversationOpen,
    ConversationOpened,
    ConversationRetire,
    ConversationRetired,
    ConversationSummary,
    DeliveredSection,
    Done,
    Edit,
    Empty,
    File,
    Initialize,
    Initialized,
    Kind,
    PlanId,
    Prepare,
    Prepared,
    Refused,
    RefusedStep,
    ResponseRecord,
    ResponseRecorded,
    StoreCollect,
    StoreCollected,
    Text,
    TurnComplete,
)
from retention.providers import Head, Provider, Response, choose, splice
from retention.rebuilding import find_prefix, rebuild_array
from retention.request import NO_EDITS, NO_FRAGMENTS, NO_REASONING, Request, View
from retention.retiring import keep_retired
from retention.sections import PRIOR, update_conditions
from retention.settling import Settled
from retention.store import Store, Writer

if TYPE_CHECKING:
    from retention.index import Index
    from retention.index.embedding import Embedder

EVIDENCE = "prior-evidence"  # the section with the evidence of an earlier conversation
INDEX = "index"  # below the store's directory
MAX_STATES = 64  # arrays that deltas may refer to; a turn with tools uses one per dispatch
MAX_PLANS = 256  # prepared and not yet committed, or committed and possibly still refused
MAX_LOGS = 32  # conversations whose log is kept in memory
RECOVER = 8  # requests looked at when an array of an unknown state must be recognised
MAX_HEADS = 32  # payload heads kept taken apart
MAX_SEARCHED = 64  # newest requests among which the last one to a provider is looked for
MAX_CHECKED = 256  # newest elements that are checked against the published rules
MAX_PAGE = 4_000_000  # code points of an output that the user gets at a time
MAX_TRIES = 8  # of a commit whose conversation another process keeps writing to

_log = logging.getLogger(__name__)
_K = TypeVar("_K")
_T = TypeVar("_T")


class Loaded(msgspec.Struct):
    """A conversation in memory.  `last` is the array it sent last, under the name `last_name`."""

    record: Conversation
    log: Log
    last: Sent | None = None
    last_name: str = ""
    last_seq: int = 0
    before: dict[Digest, Compared] = msgspec.field(default_factory=dict)  # newest, by identity


class Pending(msgspec.Struct):
    """A prepared plan, and what its commit needs beside it.  `next_row` is the conversation's at
    that time, `created` tells it from a later one of the same id, `seq` is the number of the
    request once it is committed.
    """

    name: str
    plan: Plan
    conversation: str
    request: str
    origin: str
    identity: Digest
    head: Digest | None
    next_row: RowId
    created: float
    ordinary: str
    sent: str
    who: Identity
    compared: Compared
    continuity: Continuity
    breaches: tuple[Reason, ...]
    head_text: bytes | None = None
    include: tuple[str, ...] = ()
    edited: bool = False
    seq: int = 0


class Turn(msgspec.Struct):
    """What is known of a request under way: the array it sent last, the rounds that it logged, the
    response to the dispatch of plan `answered`, and whether the provider's own messages were put
    into its loop.
    """

    conversation: str
    sent: Sent | None = None
    plan: str = ""
    rounds: list[int] = msgspec.field(default_factory=list)
    answered: str = ""
    response: Response | None = None
    completed: bool = False
    spoken: bool = False


class Service:
    """The RPC methods over one store.  Not thread-safe: the server calls it from one thread."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        random_id: Callable[[], str],
        embedder: Callable[[], Embedder | None] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.random_id = random_id
        self.handover = ""
        self.initialized = False
        self.asked = 0.0  # when the last request was answered, by the monotonic clock
        self.notify: Callable[[str], None] = lambda _: None  # of a conversation with something new
        self._index: Index | None = None
        self._embedder = embedder
        self._opening = threading.Lock()
        self._conversations: OrderedDict[str, Loaded] = OrderedDict()
        self._states: OrderedDict[str, State] = OrderedDict()
        self._plans: OrderedDict[str, Pending] = OrderedDict()
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._heads: OrderedDict[tuple[str, Digest], Head] = OrderedDict()
        self._session = random_id()[:8]  # names of an earlier process are never mistaken for ours
        self._counter = 0
        self._desk = answering.Desk(
            store=store, clock=clock, index=self.index, indexed=self._indexed, hand=self._handed,
            notify=self._note,
        )  # fmt: skip
        self._methods: dict[str, Callable[[Any], Any]] = {
            "initialize": self.initialize,
            "shutdown": lambda _: Done(),
            "conversation/open": self.conversation_open,
            "conversation/fork": self.conversation_fork,
            "conversation/retire": self.conversation_retire,
            "conversation/list": self.conversation_list,
            "conversation/export": self.conversation_export,
            "conversation/import": self.conversation_import,
            "conversation/forget": self.conversation_forget,
            "store/collect": self.store_collect,
            "request/prepare": self.request_prepare,
            "request/commit": self.request_commit,
            "request/abandon": self.request_abandon,
            "request/refused": self.request_refused,
            "response/record": self.response_record,
            "turn/complete": self.turn_complete,
            **{name: partial(method, self._desk) for name, method in answering.METHODS.items()},
        }

    def call(self, method: str, params: bytes) -> Any:
        """Answer METHOD with the raw JSON PARAMS; raise a RetentionError."""
        if method != "initialize" and not self.initialized:
            raise NotInitialized(f"{method} before initialize")
        try:
            decoded = msgspec.json.decode(params or b"{}", type=METHODS[method][0])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidParams(f"{method}: {error}") from None
        try:
            return self._methods[method](decoded)
        finally:
            self.asked = time.monotonic()

    def close(self) -> None:
        """Let go of the index; the store is the caller's."""
        if self._index is not None:
            self._index.close()
            self._index = None

    # Session

    def initialize(self, params: Initialize) -> Initialized:
        """Agree on the protocol version and on where large answers are handed over."""
        if params.protocol != PROTOCOL:
            raise UnsupportedProtocol(
                f"the client speaks protocol {params.protocol}, this backend {PROTOCOL}"
            )
        self.handover = params.handover
        self.initialized = True
        return Initialized(
            protocol=PROTOCOL,
            version=retention.__version__,
            capabilities=tuple(METHODS),
            store=str(self.store.path),
        )

    # Conversations

    def conversation_open(self, params: ConversationOpen) -> ConversationOpened:
        """Find a conversation by id, else by file, else make one; fork one that two files name."""
        _check_id(params.id)
        opening = lifecycle.Opening(id=params.id, file=params.file, title=params.title)
        found = lifecycle.open_conversation(self.store, opening, self.clock(), self.random_id)
        self._adopt(found.record)
        return self._opened(found.record, created=found.created, forked=found.forked)

    def conversation_fork(self, params: ConversationFork) -> ConversationOpened:
        """Make a conversation that shares the past of another and goes its own way (rule L2)."""
        opening = lifecycle.Opening(id=self.random_id(), file=params.file, title=params.title)
        fork = lifecycle.fork_conversation(self.store, params.id, opening, self.clock())
        return self._opened(fork, forked=params.id)

    def conversation_retire(self, params: ConversationRetire) -> ConversationRetired:
        """Answer what a summary of a history is written from, or retire that history (rule L1)."""
        provider = choose(params.identity, params.array)
        before = None if params.before is None else self._messages(params.before, provider)
        for _ in range(MAX_TRIES):
            loaded = self._load(params.id)
            history = (
                summarizing.find_history_to(params.row, loaded.log, loaded.last, self._desk.read)
                if before is None
                else summarizing.find_history(before, loaded.record, loaded.log, loaded.last)
            )
            if not params.confirm:
                offer = summarizing.summarize(history, loaded.log, provider, self._desk.read)
                text, file = self._handed(offer.text)
                return ConversationRetired(
                    text=text, text_file=file, row=offer.row, rows=offer.rows,
                    guidance=offer.guidance, conversation=offer.conversation, tools=offer.tools,
                )  # fmt: skip
            record = lifecycle.retire(self.store, history, loaded.record, loaded.log, self.clock())
            if record is not None:
                self._adopt(record)
                return ConversationRetired(retired=True)
        raise StoreError(f"conversation {params.id} kept moving while it was retired")

    def _adopt(self, record: Conversation) -> None:
        """Take over RECORD of a conversation in memory, whose log has not changed."""
        loaded = self._conversations.get(record.id)
        if loaded is not None and loaded.record.version == record.version - 1:
            loaded.record = record

    def _opened(
        self, record: Conversation, *, created: bool = False, forked: str = ""
    ) -> ConversationOpened:
        with self.store.read() as reader:
            rows = reader.row_count(record.id)
        return ConversationOpened(
            id=record.id, created=created, forked=forked, rows=rows, turns=record.turns
        )

    def conversation_list(self, _: Empty) -> ConversationList:
        """All conversations, the last used first."""
        with self.store.read() as reader:
            summaries = [
                ConversationSummary(
                    id=record.id, title=record.title, files=record.files, turns=record.turns,
                    requests=record.next_seq - 1, rows=reader.row_count(record.id),
                    created=record.created, used=record.used,
                )
                for record in reader.conversations()
                if not record.forgotten
            ]  # fmt: skip
        summaries.sort(key=lambda summary: -summary.used)
        return ConversationList(conversations=tuple(summaries))

    def conversation_forget(self, params: ConversationId) -> Done:
        """Remove a conversation's records and its unshared objects (rule Z2)."""
        from retention.finding import learned_apart  # noqa: PLC0415 - as in `index`

        with self.store.read() as reader:
            source = learned_apart(reader, params.id)
        if source is not None:
            self._unindex(source.owner)
            self.store.forget_sources(source.owner)
            self._unindex(source.owner)
            return Done()
        self._load(params.id)
        self._leave(params.id)
        self.store.forget(params.id)
        self._unindex(params.id)
        return Done()

    def _leave(self, id: str) -> None:
        """Drop what the index and the memory hold of a conversation that is about to go."""
        self._unindex(id)
        self._conversations.pop(id, None)
        for cache in (self._states, self._plans, self._turns):
            for key in [k for k, v in cache.items() if v.conversation == id]:
                del cache[key]

    def conversation_export(self, params: ConversationExport) -> ConversationExported:
        """Write a conversation to one file (rule L5)."""
        from retention import archives  # noqa: PLC0415 - as in `index`

        _check_file(params.file)
        made = archives.export_conversation(self.store, params.id, Path(params.file))
        return ConversationExported(objects=made.objects, missing=made.missing)

    def conversation_import(self, params: ConversationImport) -> ConversationImported:
        """Store the conversation in a file; one that is there is never overwritten (rule L5)."""
        from retention import archives, indexing  # noqa: PLC0415 - as in `index`

        _check_file(params.file)
        found = archives.import_conversation(
            self.store, Path(params.file), self.clock(),
            as_new=self.random_id if params.as_new else None,
        )  # fmt: skip
        if self._indexed():
            with _tolerated():
                indexing.index_sources(self.store, self.index(), found.record.id)
        self._note(found.record.id)
        return ConversationImported(id=found.record.id, created=found.created, rows=found.rows)

    def store_collect(self, params: StoreCollect) -> StoreCollected:
        """Free what no record needs, and give its space back to the system (rule L6)."""
        from retention import indexing  # noqa: PLC0415 - as in `index`

        if params.grace < 0 or (params.days or 0) < 0:
            raise InvalidParams(f"{params.grace} and {params.days} days")
        limits = lifecycle.make_limits(
            self.store, self.clock(), days=params.days, grace=params.grace
        )
        told = freed = lifecycle.collect(self.store, limits, dry_run=True)
        purged = True
        if not params.dry_run:
            for id in told.conversations:
                self._leave(id)
            freed = lifecycle.collect(self.store, limits)
            if self._indexed():
                purged = False
                with _tolerated():
                    for id in told.conversations:
                        self._unindex(id)  # what was learned in between
                        indexing.index_sources(self.store, self.index(), id)  # of those used since
                    purged = self.index().purge()
        kinds = (
            Kind(kind=kind, objects=count, bytes=size)
            for kind, (count, size) in sorted(freed.objects.items())
        )
        return StoreCollected(
            conversations=freed.conversations, rows=freed.rows, kinds=tuple(kinds),
            references=freed.references, purged=purged,
        )  # fmt: skip

    # Requests

    def request_prepare(self, params: Prepare) -> Prepared:
        """Plan the edits of a request that is about to go out.  Writes nothing (rule D5)."""
        for name in (params.conversation, params.request, params.base):
            _check_id(name)
        if params.origin not in {"buffer", "loop"} or params.keep < 0:
            raise InvalidParams(f"origin {params.origin!r} or keep {params.keep} is out of range")
        provider = choose(params.identity, params.array)
        loaded = self._load(params.conversation)
        base = self._base(params, loaded.record)
        head_text = None if params.head is None else handover.read_text(params.head)
        head = digest("head", head_text) if head_text is not None else base.head if base else None
        known = self._head(provider, head, head_text)
        request = self._request(params, provider, known, loaded.record.evidence)
        if base is None and params.origin == "loop":
            base = self._recover(loaded, request)
            if base is not None:
                keep = len(base.items)
                request = msgspec.structs.replace(request, keep=keep, tail=request.tail[keep:])
        turn = self._turns.get(params.request)
        view = View(
            conversation=loaded.record,
            log=loaded.log,
            provider=provider,
            read=self._desk.read,
            base=base,
            last=loaded.last,
            reusable=bool(loaded.last_name) and loaded.last_name in params.have,
            step=_step(loaded.record, request.who),
            response=turn.response if turn and turn.answered == turn.plan else None,
        )
        loop = params.origin == "loop"
        try:
            plan = (
                planning.plan_loop(request, view, loaded.record.next_round)
                if loop
                else planning.plan_buffer(request, view)
            )
        except UnheldText:
            raise UnknownState("the text of an element is needed: send the whole array") from None
        self._hold(plan)
        compared = Compared(
            identity=request.who, head=request.head, sent=plan.sent, reasons=plan.reasons
        )
        pending = Pending(
            compared=compared,
            continuity=self._compare(loaded, plan, compared, provider),
            breaches=self._breaches(plan, provider),
            plan=plan, conversation=params.conversation, request=params.request,
            origin=params.origin, identity=request.who, head=head, head_text=head_text,
            name=self._name("p"), next_row=loaded.record.next_row, created=loaded.record.created,
            ordinary="" if loop else self._name("o"), sent=self._name("s"),
            edited=bool(plan.steps), who=request.identity,
            include=provider.include(request.identity) if view.step < NO_REASONING else (),
        )  # fmt: skip
        self._remember(pending, _epoch(loaded.record))
        _bound(self._plans, pending.name, pending, MAX_PLANS)
        return self._prepared(pending, loaded)

    def _hold(self, plan: Plan) -> None:
        """Have the texts of new rows at hand until the commit: what else names them may go.

        An element that was taken over stands for a new row when its own was retired or collected.
        """
        for draft in plan.drafts:
            if draft.face is Face.ORDINARY or draft.exact in plan.texts:
                continue
            text = self._desk.read(draft.exact)
            if text is None:
                raise UnknownState("the text of an element is needed: send the whole array")
            plan.texts[draft.exact] = text

    def _compare(
        self, loaded: Loaded, plan: Plan, after: Compared, provider: Provider
    ) -> Continuity:
        """Compare a plan with the last request to its provider, else with the last one (C1)."""
        before = self._before(loaded, after.identity, provider)
        common = plan.common
        if before is not None and before.sent is not loaded.last:
            common = common_length(plan.sent.items, before.sent.items)
        return compare(
            before, after, common=common, array=provider.array,
            read=lambda name: plan.texts.get(name) or self._desk.read(name),
        )  # fmt: skip

    def _before(self, loaded: Loaded, identity: Digest, provider: Provider) -> Compared | None:
        """Return the newest request of a conversation to IDENTITY, else its newest request."""
        if identity in loaded.before or loaded.last is None:
            return loaded.before.get(identity)
        id = loaded.record.id
        with self.store.read() as reader:
            # Not those that another process has committed since the log was loaded.
            records = [r for r in reader.requests(id, MAX_SEARCHED) if r.seq <= loaded.last_seq]
            record = next((r for r in records if r.identity == identity), None)
            if record is None:
                return (
                    Compared(identity=records[0].identity, head=None, sent=loaded.last)
                    if records
                    else None
                )
            items = rebuild_array(reader, loaded.log, id, record.seq)
        sent = loaded.last if record.seq == loaded.last_seq else make_sent(items)
        head = self._head(provider, record.head, None)
        loaded.before[identity] = Compared(identity=identity, head=head, sent=sent)
        return loaded.before[identity]

    def _request(
        self, params: Prepare, provider: Provider, head: Head | None, evidence: Digest | None
    ) -> Request:
        identity = params.identity
        planned = params.marks and wants_marks(identity.cache)
        if planned:  # that is part of the cache policy (rule F2)
            identity = msgspec.structs.replace(identity, cache=f"{identity.cache} planned")
        who = identity_digest(identity)
        bound = head is not None and provider.bound(identity)
        return Request(
            tail=self._messages(params.tail, provider),
            identity=identity,
            who=who,
            keep=params.keep if params.base else 0,
            span=tuple(self._messages(params.span, provider)) if params.span else (),
            prompt=tuple(self._messages(params.prompt, provider)) if params.prompt else (),
            sections=self._sections(params, evidence),
            reminders=answering.read_list(params.reminders, Reminder),
            frozen=params.frozen,
            shape=params.shape,
            hooked=params.hooked,
            context=params.context,
            marks=planned,
            head=head,
            seed=digest("prefix", head.system + b"\0" + head.tools) if bound and head else None,
        )

    def _sections(self, params: Prepare, evidence: Digest | None) -> tuple[Section, ...]:
        """Return the client's sections, and what an earlier conversation found if it is resumed."""
        listed = answering.read_list(params.sections, Section)
        text = None if evidence is None else self._desk.read(evidence)
        if text is None or any(section.name == EVIDENCE for section in listed):
            return listed
        body = text.decode("utf-8", "replace")
        return (*listed, Section(name=EVIDENCE, title=PRIOR, body=body))

    def _head(self, provider: Provider, name: Digest | None, text: bytes | None) -> Head | None:
        """Return the head NAME taken apart; TEXT is it if it came just now."""
        if name is None:
            return None
        key = (provider.api, name)
        if key not in self._heads:
            text = text if text is not None else self._desk.read(name)
            if text is None:
                return None
            _bound(self._heads, key, provider.head(text), MAX_HEADS)
        return self._heads[key]

    def _messages(self, text: Text, provider: Provider) -> list[Message]:
        try:
            elements = msgspec.json.decode(handover.read_text(text), type=list[msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidPayload(f"not a JSON array of messages: {error}") from None
        return [provider.parse(bytes(element)) for element in elements]

    def _base(self, params: Prepare, record: Conversation) -> State | None:
        if not params.base:
            return None
        state = self._states.get(params.base)
        known = state is not None and state.conversation == params.conversation
        if state is None or not known or state.epoch != _epoch(record):
            raise UnknownState(f"state {params.base} is not known: send the whole array")
        if params.keep > len(state.items):
            raise InvalidParams(f"keep {params.keep} of {len(state.items)} elements")
        self._states.move_to_end(params.base)
        return state

    def _recover(self, loaded: Loaded, request: Request) -> State | None:
        """Recognise an array sent before a restart among the newest requests (rule B4)."""
        newest = loaded.record.next_seq
        with self.store.read() as reader:
            arrays = [
                rebuild_array(reader, loaded.log, loaded.record.id, seq)
                for seq in range(newest - 1, max(0, newest - 1 - RECOVER), -1)
            ]
        items = find_prefix(arrays, request.tail)
        if not items:
            return None
        marks = tuple([n for n, item in enumerate(items) if item.message.marks])
        sent = msgspec.structs.replace(make_sent(items), marks=marks)
        return State(
            conversation=loaded.record.id, items=items, sent=sent, settled=len(items),
            epoch=_epoch(loaded.record),
        )  # fmt: skip

    def _prepared(self, pending: Pending, loaded: Loaded) -> Prepared:
        plan, name = pending.plan, pending.name
        edits = tuple(_edit(step) for step in plan.steps)
        result = Prepared(
            plan=name,
            ordinary=pending.ordinary,
            sent=pending.sent,
            edits=edits,
            reuse=loaded.last_name if any(edit.reuse for edit in edits) else "",
            sections=tuple(
                DeliveredSection(name=due.state.name, reason=due.reason) for due in plan.due
            ),
            reminders=plan.reminders,
            restored=len(plan.sent.placed) - (1 if plan.due or plan.reminders else 0),
            reused=plan.sent.ends[plan.common - 1] if plan.common else 0,
            total=plan.sent.ends[-1] if plan.sent.ends else 0,
            reasons=plan.reasons,
            replayed=len(plan.sent.replays),
            continuity=pending.continuity,
            breaches=pending.breaches,
            include=pending.include,
        )
        if sum(len(edit.insert) for edit in edits) > MAX_INLINE and self.handover:
            file = handover.write_file(self.handover, msgspec.json.encode(edits), name)
            result = msgspec.structs.replace(result, edits=(), edits_file=file)
        return result

    def _breaches(self, plan: Plan, provider: Provider) -> tuple[Reason, ...]:
        """Return the published rules that the newest elements break, from the last prompt on."""
        items = plan.sent.items
        at = max(plan.start, len(items) - MAX_CHECKED, 0)
        while at and (at >= len(items) or items[at].message.role is not Role.USER):
            at -= 1
        texts = [each.message.raw or self._desk.read(each.message.exact) for each in items[at:]]
        found = provider.check([text for text in texts if text is not None])
        if None in texts:
            return ()
        return tuple(Reason(code=each.code, detail=_shift(each.detail, at)) for each in found)

    def _remember(self, pending: Pending, epoch: tuple[float, int]) -> None:
        """Keep the arrays of a plan as states that later deltas may refer to."""
        plan = pending.plan
        sent = State(
            conversation=pending.conversation, items=plan.sent.items, sent=plan.sent,
            settled=len(plan.sent.items) if pending.seq else plan.start, head=pending.head,
            epoch=epoch,
        )  # fmt: skip
        _bound(self._states, pending.sent, sent, MAX_STATES)
        if pending.ordinary:
            ordinary = msgspec.structs.replace(
                sent, items=plan.items, sent_at=plan.sent_at, mode=plan.mode,
                settled=len(plan.items) if pending.seq else plan.cut,
            )  # fmt: skip
            _bound(self._states, pending.ordinary, ordinary, MAX_STATES)

    def request_commit(self, params: PlanId) -> Committed:
        """Log a dispatched plan in one transaction (rule D6).  A second time it changes nothing."""
        pending = self._pending(params.plan)
        if pending.seq:
            return Committed(seq=pending.seq)
        for _ in range(MAX_TRIES):
            loaded = self._load(pending.conversation)
            if loaded.record.created != pending.created:
                raise UnknownPlan(f"plan {params.plan!r} is of a conversation that was forgotten")
            settled = settling.settle(
                pending.plan, loaded.log, loaded.record.next_row, loaded.record.next_round,
                pending.next_row,
            )  # fmt: skip
            record = self._advanced(loaded.record, pending, settled)
            request = self._request_record(loaded, pending, settled)
            if self._write_commit(pending, record, request, settled):
                self._committed(loaded, pending, record, settled)
                return Committed(seq=request.seq)
            self._conversations.pop(pending.conversation, None)
        raise StoreError(f"conversation {pending.conversation} kept moving during a commit")

    def _advanced(self, record: Conversation, pending: Pending, settled: Settled) -> Conversation:
        refusal = record.refusal
        if refusal is not None and refusal.identity != pending.identity:
            refusal = None  # kept until the provider identity changes (adapter.md Z6)
        retired = keep_retired(record.retired, pending.plan.sent.items)
        return msgspec.structs.replace(
            record,
            version=record.version + 1,
            epoch=record.epoch + (retired != record.retired),
            next_row=record.next_row + len(settled.rows),
            next_seq=record.next_seq + 1,
            next_round=record.next_round + (1 if pending.origin == "loop" else 0),
            turns=record.turns + (1 if pending.origin == "buffer" else 0),
            used=self.clock(),
            conditions=update_conditions(record.conditions, pending.plan.seen),
            refusal=refusal,
            retired=retired,
        )

    def _request_record(self, loaded: Loaded, pending: Pending, settled: Settled) -> RequestRecord:
        plan, log = pending.plan, loaded.log
        common = _repeated(plan.sent.items, loaded.last.items) if loaded.last else 0
        # Of a host also the text without its delivery: it is read when the delivery moves.
        hosts = {item.row for item in plan.sent.items[common:] if len(item.ids) > 1}
        texts = [
            (item.row, item.message.exact)
            for item in plan.items[plan.cut :]
            if item.row in hosts and not item.block
        ]
        texts += [(item.last, item.message.exact) for item in plan.sent.items[common:]]
        # A text that was collected since the request was prepared is nowhere any more.
        changed = {
            id: exact
            for id, exact in texts
            if (row := log.rows.get(id)) and row.exact != exact and not row.gone
        }
        new = planning.NEW
        return RequestRecord(
            seq=loaded.record.next_seq,
            plan=pending.name,
            parent=loaded.last_seq if common else 0,
            keep=sum(len(item.ids) for item in plan.sent.items[:common]),
            rows=tuple(settled.real(id) for item in plan.sent.items[common:] for id in item.ids),
            turn=plan.turn,
            origin=pending.origin,
            identity=pending.identity,
            head=pending.head,
            at=self.clock(),
            delivered=(settled.real(new),) if plan.due or plan.reminders else (),
            changed=changed,
            inside=tuple(
                settled.real(id) for item in plan.sent.items[common:] for id in item.ids[1:]
            ),
            reasons=(*plan.reasons, *map(_breach, pending.breaches)),
            bytes=plan.sent.ends[-1] if plan.sent.ends else 0,
            continuity=pending.continuity,
            replayed=len(plan.sent.replays),
            marked=plan.sent.marks,
        )

    def _write_commit(
        self, pending: Pending, record: Conversation, request: RequestRecord, settled: Settled
    ) -> bool:
        """Write everything of one commit; return False if the conversation moved meanwhile."""
        wanted = {row.exact for row in settled.rows} | set(request.changed.values())

        def apply(writer: Writer) -> bool:
            current = writer.conversation(record.id)
            if current is None or current.version != record.version - 1:
                return False
            for exact, text in pending.plan.texts.items():
                if exact in wanted:  # nothing else would go when the conversation is forgotten
                    writer.put_object("message", text)
            writer.put_object("identity", msgspec.json.encode(pending.who))
            for domain, data in pending.plan.objects:
                writer.put_object(domain, data)
            if pending.head_text is not None:
                writer.put_object("head", pending.head_text)
            for row in (*settled.rows, *settled.replaced):
                writer.put_row(record.id, row)
            writer.put_request(record.id, request)
            writer.put_conversation(record)
            return True

        return self.store.write(apply)

    def _committed(
        self, loaded: Loaded, pending: Pending, record: Conversation, settled: Settled
    ) -> None:
        self._grow(loaded, record, settled.rows, settled.replaced)
        settling.apply_ids(pending.plan, settled)
        pending.seq = record.next_seq - 1
        self._remember(pending, _epoch(record))
        loaded.last, loaded.last_name = pending.plan.sent, pending.sent
        loaded.last_seq = pending.seq
        loaded.before[pending.identity] = pending.compared
        turn = self._turns.get(pending.request) or Turn(conversation=pending.conversation)
        turn.sent, turn.plan = pending.plan.sent, pending.name
        turn.spoken = turn.spoken or _speaks(pending.plan)
        if pending.origin == "loop":
            turn.rounds.append(record.next_round - 1)
        _bound(self._turns, pending.request, turn, MAX_PLANS)

    def request_abandon(self, params: PlanId) -> Done:
        """Drop a plan that was not dispatched: everything in it stays due (rule D5)."""
        if not self._pending(params.plan).seq:
            del self._plans[params.plan]
        return Done()

    def request_refused(self, params: Refused) -> RefusedStep:
        """Hold back edits after the provider refused an edited request (adapter.md Z6)."""
        if not 400 <= params.status < 500:
            raise InvalidParams(f"status {params.status} is not a refusal")
        pending = self._pending(params.plan)
        handover.read_text(params.body)  # not kept: it may quote the conversation
        record = self._load(pending.conversation).record
        step = _step(record, pending.identity)
        turn = self._turns.get(pending.request)
        spoken = _speaks(pending.plan) or (turn is not None and turn.spoken)
        following = _next_step(pending, step, spoken=spoken)
        if following > step:
            refusal = Refusal(identity=pending.identity, step=following, status=params.status)
            self._update(pending.conversation, refusal=refusal)
        return RefusedStep(step=following)

    def response_record(self, params: ResponseRecord) -> ResponseRecorded:
        """Read what the provider sent; it is kept until the next dispatch or the turn's end."""
        provider = choose(params.identity, params.array)
        body = handover.read_text(params.body)
        pending = self._pending(params.plan)
        if pending.conversation != params.conversation or pending.request != params.request:
            raise UnknownPlan(f"plan {params.plan!r} belongs to another request")
        response = provider.assemble(body)
        elements = tuple([splice.normalize(raw) for raw in response.elements])
        response = msgspec.structs.replace(response, elements=elements)
        turn = self._turns.get(params.request) or Turn(conversation=params.conversation)
        turn.answered, turn.response = params.plan, response
        _bound(self._turns, params.request, turn, MAX_PLANS)
        if pending.seq and (response.usage or response.finish):
            self._note_usage(pending, response)
        return ResponseRecorded(
            elements=len(response.elements), calls=calls_of(response, provider),
            complete=response.complete, finish=response.finish, error=response.error,
            usage=response.usage,
        )  # fmt: skip

    def _note_usage(self, pending: Pending, response: Response) -> None:
        def apply(writer: Writer) -> None:
            record = writer.request(pending.conversation, pending.seq)
            if record is not None:
                writer.put_request(
                    pending.conversation,
                    msgspec.structs.replace(record, usage=response.usage, finish=response.finish),
                )

        self.store.write(apply)

    def turn_complete(self, params: TurnComplete) -> Done:
        """Log the ordinary messages of a turn's end, so that its boundaries are found (Q3)."""
        provider = choose(params.identity, params.array)
        turn = self._turns.get(params.request)
        if turn is None or turn.conversation != params.conversation:
            turn = Turn(conversation=params.conversation)
        if turn.completed:
            return Done()
        span = self._messages(params.span, provider)
        whole = self._messages(params.whole, provider) if params.whole else []
        loaded = self._load(params.conversation)
        own, origin = self._own(turn, provider)
        plan = settling.plan_turn_end(
            loaded.log, turn.sent or loaded.last,
            settling.Ending(span=span, whole=whole, rounds=turn.rounds, own=own, origin=origin),
            loaded.record.next_row, loaded.record.next_round,
        )  # fmt: skip
        turn.completed = True
        if not plan.rows and not plan.replaced:
            return Done()
        record = msgspec.structs.replace(
            loaded.record,
            version=loaded.record.version + 1,
            next_row=loaded.record.next_row + len(plan.rows),
            next_round=loaded.record.next_round + 1,
            used=self.clock(),
        )

        def apply(writer: Writer) -> bool:
            current = writer.conversation(record.id)
            if current is None or current.version != record.version - 1:
                return False
            wanted = {row.exact for row in plan.rows}
            for message in (*(whole or span), *own):
                if message.exact in wanted:
                    writer.put_object("message", message.raw)
            for row in (*plan.rows, *plan.replaced):
                writer.put_row(record.id, row)
            writer.put_conversation(record)
            return True

        if not self.store.write(apply):
            self._conversations.pop(params.conversation, None)
            turn.completed = False
            return self.turn_complete(params)
        self._grow(loaded, record, plan.rows, plan.replaced)
        self._note(params.conversation)
        return Done()

    def _own(self, turn: Turn, provider: Provider) -> tuple[list[Message], Origin | None]:
        """Return the provider's last messages in TURN, if it ended with them (G4, rule F8)."""
        response, pending = turn.response, self._plans.get(turn.plan)
        if response is None or pending is None or turn.answered != turn.plan:
            return [], None
        if not response.complete or calls_of(response, provider):
            return [], None
        own = [provider.parse(raw) for raw in response.elements]
        sent = pending.plan.sent
        thought = next((i.row for i in reversed(sent.items) if i.message.reasoned), START)
        bound = sent.seed is not None
        return own, Origin(
            identity=pending.identity, prefix=sent.prefix, thought=thought if bound else START
        )

    # Memory and store

    def index(self) -> Index:
        """Return the search index beside the store, opened when it is first needed."""
        # A backend that has just been started has a request to prepare, and needs no index for it.
        from retention import indexing  # noqa: PLC0415
        from retention.index import Index, embedding  # noqa: PLC0415

        with self._opening:
            if self._index is None:
                found = self._embedder() if self._embedder else embedding.load_wordllama().embedder
                index = Index.open(self.store.path / INDEX, found)
                indexing.begin(self.store, index)
                self._index = index
            return self._index

    def _note(self, conversation: str) -> None:
        self.notify(conversation)

    def _indexed(self) -> bool:
        """Tell whether there is an index, which who only looks does not make."""
        return (self.store.path / INDEX).exists()

    def _unindex(self, owner: str) -> None:
        """Take what was learned under OWNER out of the index: before the store forgets it, and once
        more afterwards, for what was learned in between.
        """
        from retention import indexing  # noqa: PLC0415 - as in `index`

        if self._indexed():
            with _tolerated():
                indexing.drop_sources(self.store, self.index(), owner)

    def _handed(self, text: str) -> tuple[str, File | None]:
        """Return TEXT for an answer, or the file that it is handed over in when it is large."""
        data = text.encode()
        if len(data) <= MAX_INLINE or not self.handover:
            return text, None
        return "", handover.write_file(self.handover, data, self._name("t"))

    def _load(self, id: str) -> Loaded:
        """Return conversation ID; read its log again if another process has written to it."""
        with self.store.read() as reader:
            record = reader.conversation(id)
            if record is None or record.forgotten:
                raise UnknownConversation(f"no conversation {id!r}")
            loaded = self._conversations.get(id)
            # A version alone may be that of one forgotten since, and made or imported anew.
            if loaded is not None and loaded.record == record:
                self._conversations.move_to_end(id)
                return loaded
            loaded = Loaded(record=record, log=Log(reader.rows(id)))
            if record.next_seq > 1:
                loaded.last_seq = record.next_seq - 1
                items = rebuild_array(reader, loaded.log, id, loaded.last_seq)
                newest = reader.request(id, loaded.last_seq)
                marks = newest.marked if newest else ()
                loaded.last = msgspec.structs.replace(make_sent(items), marks=marks)
        _bound(self._conversations, id, loaded, MAX_LOGS)
        return loaded

    def _grow(
        self, loaded: Loaded, record: Conversation, rows: Iterable[Row], replaced: Iterable[Row]
    ) -> None:
        for row in rows:
            loaded.log.insert(row)
        for row in replaced:
            loaded.log.replace(row)
        loaded.record = record

    def _update(self, id: str, **changes: object) -> Conversation:
        def apply(writer: Writer) -> Conversation:
            current = writer.conversation(id)
            if current is None:
                raise UnknownConversation(f"no conversation {id!r}")
            record = msgspec.structs.replace(current, version=current.version + 1, **changes)
            writer.put_conversation(record)
            return record

        record = self.store.write(apply)
        self._adopt(record)
        return record

    def _pending(self, plan: str) -> Pending:
        try:
            return self._plans[plan]
        except KeyError:
            raise UnknownPlan(f"no plan {plan!r}") from None

    def _name(self, kind: str) -> str:
        self._counter += 1
        return f"{kind}{self._counter}-{self._session}"


# Small translations


def identity_digest(identity: Identity) -> Digest:
    """Return the digest of a provider identity (rule I5), that of its object in the store."""
    return digest("identity", msgspec.json.encode(identity))


def _epoch(record: Conversation) -> tuple[float, int]:
    """Return what a state is of: one forgotten conversation is not the next with its id."""
    return record.created, record.epoch


@contextmanager
def _tolerated() -> Iterator[None]:
    """Let an index that cannot be used keep nothing from the store: it agrees at the next start."""
    try:
        yield
    except StoreError as error:
        _log.warning("%s", error)


def _step(record: Conversation, identity: Digest) -> int:
    refusal = record.refusal
    return refusal.step if refusal is not None and refusal.identity == identity else 0


def _speaks(plan: Plan) -> bool:
    """Whether PLAN puts the provider's own message into the loop."""
    return any(reason == LOOP_REPAIRED for reason in plan.reasons)


def _next_step(pending: Pending, step: int, *, spoken: bool) -> int:
    """Return the step after STEP that would have changed the request of PENDING (adapter.md Z6).

    SPOKEN: the provider's own messages stand in its loop.
    """
    sent = pending.plan.sent
    reasoned = any(item.message.reasoned for item in sent.items)
    changes = {
        NO_REASONING: reasoned or bool(pending.include),
        NO_FRAGMENTS: spoken or bool(sent.replays),
        NO_EDITS: spoken or pending.edited or bool(sent.placed),
    }
    return next((each for each, differs in changes.items() if each > step and differs), step)


def _breach(reason: Reason) -> Reason:
    """Return the breach of a published rule as the reason that a record keeps."""
    return Reason(code="breach", detail=f"{reason.code}: {reason.detail}")


def _repeated(ours: list[Item], theirs: list[Item]) -> int:
    """Return how many elements are the same from the start, each of as many rows.

    A text that was one message may be two that were made one now.
    """
    common = common_length(ours, theirs)
    places = range(shared_length(ours, theirs), common)
    return next((n for n in places if len(ours[n].ids) != len(theirs[n].ids)), common)


def _shift(detail: str, by: int) -> str:
    """Return DETAIL, which begins with an index, with that one raised."""
    index, colon, rest = detail.partition(":")
    return f"{int(index) + by}{colon}{rest}"


def _edit(step: Step) -> Edit:
    if step.kind == "insert":
        return Edit(insert="[" + ",".join(text.decode() for text in step.texts) + "]")
    counts = {step.kind: step.count}
    return Edit(
        keep=counts.get("keep", 0), drop=counts.get("drop", 0), reuse=counts.get("reuse", 0)
    )


def _check_file(file: str) -> None:
    if not file.startswith("/"):
        raise InvalidParams(f"{file[:80]!r} is not an absolute file name")


def _check_id(id: str) -> None:
    if len(id) > MAX_ID or not id.isascii() or not (id == "" or id.replace("-", "").isalnum()):
        raise InvalidParams(f"an id has at most {MAX_ID} letters, digits and hyphens: {id[:40]!r}")


def _bound(cache: OrderedDict[_K, _T], key: _K, value: _T, limit: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > limit:
        cache.popitem(last=False)
