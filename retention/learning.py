"""What is learned, as sources over the store: conversations, outputs, files, and when they changed.

A source is cut only when its text has changed, and indexed after it was stored (V1, V2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

import msgspec

from retention.digest import Digest, digest
from retention.errors import (
    DamagedObject,
    InvalidParams,
    InvalidPayload,
    StoreError,
    UnknownConversation,
    UnknownObject,
    UnsupportedProvider,
)
from retention.evidence import chunking, conversations, runs
from retention.evidence.snapshots import Piece, Snapshot, Span, join_pieces
from retention.index import Index
from retention.indexing import drop_sources, index_source
from retention.ledger import Log
from retention.model import (
    Chunk,
    Conversation,
    Event,
    EventKind,
    Identity,
    Output,
    Row,
    RowId,
    Source,
)
from retention.protocol import MAX_FILE, LearnedSource
from retention.providers import PROVIDERS, Provider, choose
from retention.providers.canonical import make_reader
from retention.providers.transcript import Told, tell
from retention.saver.excerpting import decode
from retention.settings import in_use
from retention.sources import conversation_source, encode, owner_of
from retention.store import Reader, Store, Writer

CHATS = (".org", ".md", ".markdown", ".txt")  # files that a directory is searched for
RECORDS = (".log", ".json")  # of runs of CI

MAX_REQUESTS = MAX_OUTPUTS = 1_000_000  # of one conversation that are looked at: all of them

ARRAYS = dict.fromkeys(provider.array for provider in PROVIDERS.values())  # of all payloads


def learn_conversation(store: Store, index: Index, id: str) -> LearnedSource:
    """Learn conversation ID as its log has it now; raise UnknownConversation."""
    with store.read() as reader:
        record = reader.conversation(id)
        if record is None or record.forgotten:
            raise UnknownConversation(f"no conversation {id!r}")
        log = Log(reader.rows(id))
        rows = conversations.chosen_rows([log.rows[row] for row in log.order])
        before = reader.source(id, conversation_source(id))
        unread: list[RowId] = []
        pieces = conversations.tell_rows(rows, _known(reader, record, rows, before, unread))
    home = record.files[-1] if record.files else ""
    warnings = [_UNREAD.format(len(unread))] if unread else []
    snapshot = join_pieces(pieces, record.title or Path(home).name, warnings)
    draft = Source(
        id=conversation_source(id), owner=id, kind="conversation", events=(), chunks=(),
        learner=chunking.LEARNER, title=snapshot.title, path=home, at=record.used,
        version=record.version, warnings=snapshot.warnings,
    )  # fmt: skip
    return _learn(store, index, draft, snapshot)


_UNREAD = "{} messages are of no form that this conversation's providers have: they are plain text."


def _known(
    reader: Reader,
    record: Conversation,
    rows: Sequence[Row],
    before: Source | None,
    unread: list[RowId],
) -> conversations.Known:
    """Return how the messages of ROWS are read: each as the API has it that it is of.

    BEFORE is how the conversation was learned last: what has been collected since is told as it was
    then.  UNREAD gets the rows that no API of the conversation reads.
    """
    events: dict[RowId, list[Event]] = {}
    for event in before.events if before else ():
        events.setdefault(event.row, []).append(event)

    def read(name: Digest) -> bytes | None:
        try:
            return reader.object(name)
        except (UnknownObject, DamagedObject):
            return None

    def learned(row: RowId) -> list[Piece]:
        return [
            Piece(e.kind, decode(text), e.tool, e.call, e.row, e.at)
            for e in events.get(row, ())
            if (text := read(e.text)) is not None
        ]

    at: dict[RowId, float] = {}
    whose = {row.id: row.origin.identity for row in rows if row.origin is not None}
    newest: Digest | None = None
    spoken: dict[Digest, None] = {}
    for owner, _ in reversed(reader.chain(record.id)):  # rows of a base went out with its requests
        for request in reversed(reader.requests(owner, MAX_REQUESTS)):
            for row in request.rows:
                at.setdefault(row, request.at)
                # What went out in another form was recorded in the one of the API before.
                other = newest is not None and row in request.changed
                whose.setdefault(row, newest if other and newest else request.identity)
            newest = request.identity
            spoken[newest] = None
    stored = {
        decode(text).strip(): output.id
        for output in reader.outputs(record.id, MAX_OUTPUTS)
        if output.excerpt is not None
        and output.shown < output.chars
        and (text := read(output.excerpt)) is not None
    }
    providers = {name: _providers(read(name)) for name in {*spoken, *whose.values()}}

    def tell_row(row: RowId, raw: bytes) -> list[Told]:
        first = whose.get(row, newest)
        for name in dict.fromkeys([first, *reversed(spoken)] if first else ()):
            with suppress(InvalidPayload):
                return tell(_provider_of(raw, providers[name]).read, raw)
        unread.append(row)
        return [Told(EventKind.TEXT, decode(raw))]

    return conversations.Known(read=read, tell=tell_row, at=at, stored=stored, learned=learned)


def _provider_of(raw: bytes, providers: Sequence[Provider]) -> Provider:
    """Return the one of PROVIDERS whose array can hold RAW; raise InvalidPayload if none does."""
    of_items = _read_type(raw).type is not None
    for provider in providers:
        if len(providers) == 1 or of_items == (provider.array == "input"):
            return provider
    raise InvalidPayload("no API is known that has such a message")


class _Typed(msgspec.Struct):
    """What tells an item of Responses from a message of chat completions."""

    type: str | None = None


_read_type = make_reader(_Typed, "an element")


def _providers(identity: bytes | None) -> list[Provider]:
    """Return the APIs that a request to IDENTITY, an object, may have spoken."""
    if identity is None:
        return []
    who = msgspec.json.decode(identity, type=Identity)
    found: list[Provider] = []
    for array in ARRAYS:
        with suppress(UnsupportedProvider):
            found.append(choose(who, array))
    return found


def learn_outputs(store: Store, index: Index, id: str) -> list[LearnedSource]:
    """Learn the outputs of conversation ID that are not learned yet, each whole."""
    learned: list[LearnedSource] = []
    for output in outputs_to_learn(store, id):
        with suppress(UnknownObject, DamagedObject):  # `check` names it
            learned.append(learn_output(store, index, id, output))
    return learned


def outputs_to_learn(store: Store, id: str) -> list[Output]:
    """Return the outputs of conversation ID that are not learned yet, each once."""
    with store.read() as reader:
        waiting = {
            output.id: output
            for output in reader.outputs(id, MAX_OUTPUTS)
            if not _is_learned(reader.source(id, output.id))
        }
    return list(waiting.values())


def _is_learned(source: Source | None) -> bool:
    """Tell whether SOURCE is there, cut as it would be now."""
    return source is not None and source.learner == chunking.LEARNER


def learn_output(store: Store, index: Index, id: str, output: Output) -> LearnedSource:
    """Learn OUTPUT of conversation ID whole, under its own id (V1)."""
    with store.read() as reader:
        text = decode(reader.object(output.blob))
    span = Span(0, len(text), EventKind.TOOL_OUTPUT, output.tool, output.call, at=output.at)
    draft = Source(
        id=output.id, owner=id, kind="output", events=(), chunks=(), learner=chunking.LEARNER,
        title=_call_title(output), at=output.at,
    )  # fmt: skip
    snapshot = Snapshot(text=text, spans=(span,) if text else ())
    return _learn(store, index, draft, snapshot)


def _call_title(output: Output) -> str:
    return f"{output.tool} {output.call}"[:80].strip()


def cut(kind: str, snapshot: Snapshot, context: int) -> tuple[Chunk, ...]:
    """Return the chunks of SNAPSHOT, the text of a source of KIND (V2, V4).

    CONTEXT is how many lines in front of an error go with it in a CI log.
    """
    match kind:
        case "output":
            return _cut_output(snapshot, context)
        case "log":
            return runs.parse_log(snapshot.text, context)
        case "run":
            return (Chunk(0, len(snapshot.text)),)
        case _:
            return chunking.cut_snapshot(snapshot)


def log_context(reader: Reader) -> int:
    """Return the stored setting of how many lines go with an error; the default if unreadable."""
    with suppress(StoreError):
        return in_use(reader.settings())["log.context"]
    return runs.CONTEXT


def _cut_output(snapshot: Snapshot, context: int) -> tuple[Chunk, ...]:
    text, tool = snapshot.text, snapshot.spans[0].tool if snapshot.spans else ""
    if not runs.is_log(text):
        return chunking.cut_output(text, tool)
    named = runs.parse_log(text, context)
    errors = [chunk for chunk in named if chunk.name.startswith("error")]
    whole = [chunk for chunk in chunking.cut_output(text, tool) if not chunk.name]
    return (*whole, *(msgspec.structs.replace(chunk, tool=tool) for chunk in errors))


def learn_file(store: Store, index: Index, path: Path, *, chosen: bool) -> list[LearnedSource]:
    """Learn the file PATH: a saved chat, the log of a failed run, or the facts of a run.

    A text that is none of these is learned as it is if it was CHOSEN, else left alone.  Raise
    InvalidParams if it cannot be read.
    """
    try:
        stat = path.stat()
        if not S_ISREG(stat.st_mode):  # another one might be read for ever
            raise InvalidParams(f"{path} is no file")
        if stat.st_size > MAX_FILE:
            raise InvalidParams(f"{path} has {stat.st_size} bytes, more than {MAX_FILE}")
        data = path.read_bytes()
    except OSError as error:
        raise InvalidParams(f"{path}: {error.strerror}") from None
    except ValueError as error:  # of a name that no file can have
        raise InvalidParams(f"{str(path)!r}: {error}") from None
    if path.suffix == ".json":
        return _learn_run(store, index, path, data, chosen=chosen)
    text = decode(data)
    if runs.is_log(text):
        return [_learn_log(store, index, path, text)]
    from retention.evidence import chatfiles  # noqa: PLC0415 - what a backend's start can do without

    chat = chatfiles.read_chat(data, path.name)
    if not chat.is_chat and not chosen:
        return []
    with store.read() as reader:
        live = reader.conversation(chat.conversation) if chat.conversation else None
    owner = owner_of(str(path))
    if live is not None and not live.forgotten and live.next_seq > 1:
        drop_sources(store, index, owner)  # learned before the mode was on, it would be found twice
        store.forget_sources(owner)
        return [*learn_outputs(store, index, live.id), learn_conversation(store, index, live.id)]
    draft = Source(
        id=f"f{owner[:12]}", owner=owner, kind="file", events=(), chunks=(),
        learner=chunking.LEARNER, title=chat.snapshot.title, path=str(path), at=stat.st_mtime,
        warnings=chat.snapshot.warnings,
    )  # fmt: skip
    return [_learn(store, index, draft, chat.snapshot)]


def _learn_run(
    store: Store, index: Index, path: Path, data: bytes, *, chosen: bool
) -> list[LearnedSource]:
    try:
        run = runs.parse_run(data)
    except InvalidParams:
        if chosen:
            raise
        return []
    id = runs.row_id(run.id)
    row = runs.run_row(run)
    attributes: dict[str, str] = msgspec.to_builtins(run)
    draft = Source(
        id=id, owner=owner_of(id), kind="run", events=(), chunks=(), learner=chunking.LEARNER,
        title=run.title, path=str(path), at=runs.started_at(run), attributes=attributes,
    )  # fmt: skip
    return [_learn(store, index, draft, join_pieces([Piece(EventKind.TEXT, row)]))]


def _learn_log(store: Store, index: Index, path: Path, text: str) -> LearnedSource:
    number = runs.named_run(path.name) or owner_of(str(path))[:12]
    id, row = runs.log_id(number), runs.row_id(number)
    owner = owner_of(id)
    with store.read() as reader:
        run = reader.source(owner_of(row), row)
    draft = Source(
        id=id, owner=owner, kind="log", events=(), chunks=(), learner=chunking.LEARNER,
        title=f"failed run {number}", path=str(path), at=run.at if run else path.stat().st_mtime,
    )  # fmt: skip
    snapshot = join_pieces([Piece(EventKind.TOOL_OUTPUT, text)])
    return _learn(store, index, draft, snapshot)


def _learn(store: Store, index: Index, draft: Source, snapshot: Snapshot) -> LearnedSource:
    """Store and index what is new in SNAPSHOT, the text of DRAFT; cut it only if it changed.

    What another process has learned meanwhile of a later state stays.
    """
    texts = [encode(snapshot.text[span.start : span.end]) for span in snapshot.spans]
    events = tuple(
        Event(
            span.kind, digest("blob", data), span.end - span.start, span.tool, span.call, span.row,
            span.at, data.count(b"\n"),
        )
        for span, data in zip(snapshot.spans, texts, strict=True)
    )  # fmt: skip
    objects = dict(zip((event.text for event in events), texts, strict=True))
    while True:
        with store.read() as reader:
            before = reader.source(draft.owner, draft.id)
            context = log_context(reader)
        if before is not None and before.version > draft.version:
            return _learned(before, changed=False)
        same = before is not None and before.events == events and before.learner == draft.learner
        chunks = (
            before.chunks if before is not None and same else cut(draft.kind, snapshot, context)
        )
        source = msgspec.structs.replace(draft, events=events, chunks=chunks)
        if source == before or _put(store, source, before, objects):
            break
    index_source(store, index, source, before)
    return _learned(source, changed=not same)


def _learned(source: Source, *, changed: bool) -> LearnedSource:
    return LearnedSource(
        source=source.id, kind=source.kind, title=source.title, chunks=len(source.chunks),
        chars=sum(event.chars for event in source.events), changed=changed,
        warnings=source.warnings,
    )  # fmt: skip


def _put(
    store: Store, source: Source, before: Source | None, objects: Mapping[Digest, bytes]
) -> bool:
    """Store SOURCE and those of OBJECTS that BEFORE has not; False if that is there no more."""
    known = {event.text for event in before.events} if before else set[Digest]()

    def apply(writer: Writer) -> bool:
        _must_live(writer, source)
        if writer.source(source.owner, source.id) != before:
            return False
        for name, data in objects.items():
            if name not in known:
                writer.put_object("blob", data)
        writer.put_source(source)
        return True

    return store.write(apply)


def _must_live(writer: Writer, source: Source) -> None:
    if source.live:
        record = writer.conversation(source.owner)
        if record is None or record.forgotten:
            raise UnknownConversation(f"no conversation {source.owner}")


def waiting(store: Store) -> list[str]:
    """Return the conversations that have something to learn, the last used first.

    They have changed since they were learned, or what learns has; or an output was saved since.
    """
    with store.read() as reader:
        learned = {
            source.owner: source.version
            for source in reader.sources()
            if source.kind == "conversation" and _is_learned(source)
        }
        records = [
            record
            for record in reader.conversations()
            if not record.forgotten
            and (
                (record.next_seq > 1 and learned.get(record.id) != record.version)
                or any(
                    not _is_learned(reader.source(record.id, output.id))
                    for output in reader.outputs(record.id, 1)
                )
            )
        ]
    return [record.id for record in sorted(records, key=lambda record: -record.used)]
