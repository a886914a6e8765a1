"""What was learned, found again: searched, listed, expanded, explained, reloaded (V5, V6, L1-L4).

Over the store and the index.  What a model gets obeys the one cap of `rendering`; texts are exact.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from retention import learning
from retention.encoding import Json
from retention.errors import DamagedObject, InvalidParams, StoreError, UnknownObject
from retention.evidence import causes, conversations, excerpts, reloading, runs
from retention.evidence.snapshots import event_body
from retention.index import Counts, Filters, Index, Match, Mode
from retention.index.words import STOP_WORDS
from retention.model import Event, EventKind, Source
from retention.outputs import EARLIER
from retention.protocol import (
    Claim,
    EvidenceExplained,
    EvidenceSearch,
    EvidenceSourceList,
    Hit,
    SourceSummary,
)
from retention.rendering import render_result
from retention.saver import recalling
from retention.saver.excerpting import decode, legible
from retention.sources import Reading, chunk_id, conversation_source, owner_of, read_text
from retention.store import Reader, Store

MODES: dict[str, Mode] = {"combined": "combined", "lexical": "lexical", "dense": "dense"}
MAX_HITS = 100
MAX_QUERY = 4_000  # code points: a page of an error's lines
MAX_WORDS = 64  # of a query by which a place in a chunk is chosen
_WORD = re.compile(r"\w+")
LISTED = 12_000  # code points of one chunk in a listing (V5)
DIGITS = 10  # of the two places where what stands around one says how much is shown of it

EMPTY = (
    "Nothing is indexed yet, so that nothing could be found: this says nothing about whether the"
    " fact exists. Conversations are learned at the end of a turn, saved files when they are given"
    " to be learned."
)
NOTHING = (
    "Nothing that was learned matches, of {chunks} passages from {sources} sources. That does not"
    " show that the fact does not exist: it may be worded otherwise, or have never been learned."
    " Try other or fewer words{filters}."
)
UNFINISHED = (
    "The index is being made anew and has {sources} of {all} sources so far, so that what is there"
    " may not be found yet."
)
CUT = "Only the first {size} characters of the query were searched for."
LEXICAL = " Only words were searched: there are no vectors, so that other wordings are not found."


# Searching


class Found(NamedTuple):
    """Hits, the best first, and what is to be said of the search.

    `lacking` tells that the index has not all of the store.
    """

    hits: tuple[Hit, ...]
    note: str
    lacking: bool = False


def search(store: Store, index: Index, asked: EvidenceSearch) -> Found:
    """Return what matches the beginning of a query; raise InvalidParams for an unknown mode."""
    mode = MODES.get(asked.mode)
    if mode is None:
        raise InvalidParams(f"mode {asked.mode!r} is none of {', '.join(MODES)}")
    filters = Filters(
        conversation=asked.conversation, only=asked.only, tool=asked.tool, kind=asked.kind,
        since=asked.since, until=asked.until,
    )  # fmt: skip
    limit = max(1, min(asked.limit, MAX_HITS))
    query = asked.query[:MAX_QUERY]
    matches = index.search(query, filters, limit, mode)
    words = asked_words(query)
    with store.read() as reader:
        sources = _Sources(reader)
        hits = tuple(hit for match in matches if (hit := _hit(sources, match, words)))
    indexed, there_are = index.source_count(), store.source_count()
    lacking = index.needs_rebuild or indexed < there_are
    note = ""
    if lacking:
        note = UNFINISHED.format(sources=indexed, all=there_are)
    elif not hits:
        note = _note(index.counts(), filters, dense=index.dense)
    if len(query) < len(asked.query):
        note = " ".join(filter(None, (CUT.format(size=MAX_QUERY), note)))
    return Found(hits, note, lacking)


def asked_words(query: str) -> list[str]:
    """Return the words of QUERY that a place is chosen by: no words of the grammar, if others."""
    words = list(dict.fromkeys(_WORD.findall(query)))
    return ([word for word in words if word.lower() not in STOP_WORDS] or words)[:MAX_WORDS]


class _Sources:
    """Sources, each read once: several hits are often in one of them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._found: dict[tuple[str, str], Reading | None] = {}

    def get(self, owner: str, id: str) -> Reading | None:
        """Return the source, to be read in parts, or None if it is gone."""
        key = (owner, id)
        if key not in self._found:
            source = self._reader.source(owner, id)
            self._found[key] = Reading(self._reader, source) if source else None
        return self._found[key]


def _hit(sources: _Sources, match: Match, words: Sequence[str]) -> Hit | None:
    reading = sources.get(match.owner, match.id)
    if reading is None or match.number >= len(reading.source.chunks):
        return None
    source = reading.source
    chunk = source.chunks[match.number]
    try:
        body = reading.text(chunk.start, chunk.end)
        place = excerpts.find_place(body, words, match.span)
        line = reading.line(chunk.start + place.at)
    except (UnknownObject, DamagedObject):
        return None
    event = reading.event(chunk.start + place.at)
    return Hit(
        id=chunk_id(source, match.number),
        source=source.id,
        kind=source.kind,
        excerpt=legible(body[place.start : place.end]),
        found=match.found,
        at=place.at,
        begin=place.start,
        place=chunk.start + place.at,
        line=line,
        event=event.kind.value if event else "",
        tool=event.tool if event else "",
        title=source.title,
        path=source.path,
        conversation=source.owner if source.live else "",
        time=(event.at if event else 0.0) or source.at,
        words=place.words,
    )


def _note(counts: Counts, filters: Filters, *, dense: bool) -> str:
    """Return what is to be said where an index with COUNTS, which lacks nothing, has no hit."""
    if not counts.chunks:
        return EMPTY
    limited = filters.only or filters.tool or filters.kind or filters.since or filters.until
    text = NOTHING.format(
        chunks=counts.chunks, sources=counts.sources,
        filters=", or search without the filters" if limited else "",
    )  # fmt: skip
    return text if dense else text + LEXICAL


def render_hits(found: Found, query: str, cap: int) -> str:
    """Return what a model gets of a search, in at most CAP code points."""
    data: dict[str, Json] = {"query": query}
    if found.note:
        data["note"] = found.note
    if found.hits:
        data["hits"] = [_row(hit) for hit in found.hits]
        data["more"] = "expand_evidence takes an id, with offset `at` for the place of the match"
    return render_result("search", data, cap).content


def _row(hit: Hit) -> Json:
    return {
        "id": hit.id,
        "at": hit.at,
        "what": hit.tool or hit.event or hit.kind,
        "title": hit.title,
        "when": reloading.moment(hit.time),
        "line": hit.line,
        "found": hit.found,
        "excerpt": hit.excerpt,
    }


# Reading


class Text(NamedTuple):
    """The exact text of a source or a chunk, and where it stands."""

    id: str
    source: Source
    start: int
    text: str


def find_text(store: Store, id: str) -> Text:
    """Return what ID names: a source, or a chunk by its name or number; raise UnknownObject."""
    with store.read() as reader:
        return _read(reader, id)


def _read(reader: Reader, id: str) -> Text:
    source = find_source(reader, id)
    if source is not None:
        return Text(id, source, 0, read_text(reader, source))
    name, _, part = id.rpartition(":")
    source = find_source(reader, name) if name else None
    number = _number(source, part) if source else None
    if source is None or number is None:
        raise UnknownObject(f"no evidence {id!r}")
    chunk = source.chunks[number]
    text = Reading(reader, source).text(chunk.start, chunk.end)
    return Text(id, source, chunk.start, text)


def find_source(reader: Reader, id: str) -> Source | None:
    """Return the source with ID, or that of the conversation with ID."""
    source = reader.find_source(id)
    if source is None and len(id) == 32 and id.isalnum():  # a conversation's
        source = reader.source(id, conversation_source(id)) if _hex(id) else None
    return source


def learned_apart(reader: Reader, id: str) -> Source | None:
    """Return the source ID if it goes with no conversation: a file, a log, a run."""
    source = reader.find_source(id)
    return source if source and not source.live else None


def _hex(id: str) -> bool:
    return not set(id) - set("0123456789abcdef")


def _number(source: Source, part: str) -> int | None:
    """Return the number of the chunk that PART, a name or number, names in SOURCE."""
    found = (n for n, chunk in enumerate(source.chunks) if (chunk.name or str(n)) == part)
    return next(found, None)


def expand(found: Text, offset: int, limit: int) -> recalling.Recalled:
    """Return one page of FOUND from OFFSET on, exactly, in at most LIMIT code points."""
    return recalling.recall_whole(found.id, found.text, limit=limit, offset=offset)


def list_chunks(
    store: Store, id: str, first: int, count: int, limit: int
) -> tuple[Text, str, int, int]:
    """Return the source ID, the listing of its chunks from FIRST on, and where to go on, and all.

    At most COUNT of them, in at most LIMIT code points; of each at most `LISTED` (V5).
    """
    found = find_text(store, id)
    source = found.source
    if found.id not in {source.id, source.owner}:
        raise InvalidParams(f"{id!r} is one chunk: name its source, {source.id}")
    blocks: list[str] = []
    total, room = len(source.chunks), limit
    for number in range(max(0, first), min(total, max(0, first) + count)):
        block = _listed(source, number, found.text, LISTED)
        if len(block) > room:
            if blocks:
                return found, "".join(blocks), number, total
            around = len(_listed(source, number, found.text, 0)) + DIGITS
            block = _listed(source, number, found.text, max(0, room - around))[:room]
        blocks.append(block)
        room -= len(block)
    after = max(0, first) + count
    return found, "".join(blocks), after if after < total else 0, total


def _listed(source: Source, number: int, text: str, size: int) -> str:
    """Return chunk NUMBER of SOURCE, which is TEXT, in a listing: at most SIZE of it."""
    chunk, id = source.chunks[number], chunk_id(source, number)
    body = text[chunk.start : chunk.end]
    what = " ".join(filter(None, (chunk.kind.value, chunk.tool)))
    head = f"[{id}: {what}, characters {chunk.start}-{chunk.end}]\n"
    shown = legible(body[:size])
    if len(body) > size:
        hint = f"[{size} of {len(body)} characters; evidence/expand {id} {size} has the rest]"
        return f"{head}{shown}\n{hint}\n"
    return head + shown + ("" if shown.endswith("\n") else "\n")


def list_sources(store: Store, index: Index, kind: str, limit: int) -> EvidenceSourceList:
    """Return the sources of KIND, or all but outputs where it is empty, the newest first."""
    with store.read() as reader:
        found = [s for s in reader.sources() if (s.kind == kind if kind else s.kind != "output")]
    found.sort(key=lambda source: (-source.at, source.id))
    counts = index.counts()
    return EvidenceSourceList(
        sources=tuple(_summary(source) for source in found[: max(1, limit)]),
        total=len(found),
        chunks=counts.chunks,
        waiting=len(learning.waiting(store)),
        unembedded=counts.unembedded,
        dense=index.dense,
    )


def _summary(source: Source) -> SourceSummary:
    return SourceSummary(
        source=source.id, kind=source.kind, title=source.title, path=source.path,
        conversation=source.owner if source.live else "",
        time=source.at, chunks=len(source.chunks),
        chars=sum(event.chars for event in source.events),
    )  # fmt: skip


# Reloading (L1-L4)

_log = logging.getLogger(__name__)


class Reloaded(NamedTuple):
    """What was reloaded of `source`: the section, what is in it, what the user should know."""

    source: Source
    text: str
    chosen: reloading.Reloaded
    warnings: tuple[str, ...]


def reload(store: Store, id: str) -> Reloaded:
    """Return what the tools of source ID found, newest first, within the stored bounds.

    Raise UnknownObject.  Bounds that cannot be read fall back to their defaults with a warning.
    """
    warnings: list[str] = []
    with store.read() as reader:
        try:
            stored = reader.settings()
        except StoreError as error:
            warnings.append(f"the bounds cannot be read, the defaults are used ({error.code})")
            stored = {}
        bounds = reloading.bound_settings(stored)
        source = find_source(reader, id)
        if source is None:
            raise UnknownObject(f"no evidence {id!r}")
        findings = _findings(reader, source, bounds.rows)
    chosen = reloading.reload(findings, bounds)
    for warning in (*warnings, *chosen.warnings):
        _log.warning("%s", warning)
    text = reloading.render_section(chosen.items)
    return Reloaded(source, text, chosen, (*warnings, *chosen.warnings))


def _findings(reader: Reader, source: Source, rows: int) -> list[reloading.Finding]:
    """Return the newest results of the tools in SOURCE, at most ROWS, newest first (L1, L3)."""
    starts = [chunk.start for chunk in source.chunks if not chunk.name]
    places: list[tuple[float, int, Event]] = []
    at = 0
    for event in source.events:
        if event.kind is EventKind.TOOL_OUTPUT:
            places.append((event.at or source.at, at, event))
        at += event.chars
    places.sort(key=lambda place: (-place[0], -place[1]))
    outputs = {output.id: output for output in reader.outputs(source.owner, EARLIER)}
    found: list[reloading.Finding] = []
    for time, start, event in places:
        if len(found) == rows:
            break
        number = max(0, bisect_right(starts, start) - 1)
        try:
            text = decode(reader.object(event.text))
            body = _result(text, source.kind)
            name = conversations.pointed_output(body)
            output = outputs.get(name)
            if output is not None and output.excerpt is not None:
                body = decode(reader.object(output.excerpt))
        except (UnknownObject, DamagedObject):
            continue  # an item that cannot be read drops only itself
        id = name or chunk_id(source, number)
        # Of a result whose call is not known nothing says that it repeats another one.
        call = event.call if event.tool else f"{id}@{start}"
        found.append(reloading.Finding(id=id, tool=event.tool, input=call, output=body, at=time))
    return found


def _result(text: str, kind: str) -> str:
    """Return what a tool returned, of TEXT, that event of a source of KIND."""
    if kind == "file":
        from retention.evidence import chatfiles  # noqa: PLC0415 - as in learning

        return chatfiles.block_result(text)
    return event_body(text) if kind == "conversation" else text


# Root cause (V6)


def explain(store: Store, question: str) -> EvidenceExplained:
    """Return what is known of why the run that QUESTION names failed.

    A claim that the records which it cites do not contain is not made.
    """
    with store.read() as reader:
        made = causes.explain(question, _records(reader))
        cited = {id for claim in made.claims for id in claim.support}
        texts = {id: found for id in cited if (found := _cited(reader, id))}
    kept = tuple(claim for claim in made.claims if causes.is_supported(claim, texts))
    made = msgspec.structs.replace(made, claims=kept)
    return EvidenceExplained(
        claims=tuple(
            Claim(text=legible(claim.text), support=claim.support, label=claim.label)
            for claim in kept
        ),
        signature=legible(made.signature),
        anchor=made.anchor,
        refused=made.refused,
        text=legible(causes.render(made)),
    )


def _cited(reader: Reader, id: str) -> causes.Record | None:
    """Return the exact text of ID as the store has it, None if it cannot be had."""
    try:
        found = _read(reader, id)
    except (UnknownObject, DamagedObject):
        return None
    return causes.Record(found.text, found.source.id)


def _records(reader: Reader) -> causes.Records:
    """Return what was learned of runs, for quoting; a damaged text counts as absent (rule Z3)."""

    def read(source: Source) -> str | None:
        try:
            return read_text(reader, source)
        except (UnknownObject, DamagedObject):
            return None

    facts = {
        source.attributes["id"]: causes.Facts(source.attributes, text)
        for source in reader.sources()
        if source.kind == "run" and (text := read(source)) is not None
    }

    def errors(run: str) -> dict[str, str]:
        id = runs.log_id(run)
        source = reader.source(owner_of(id), id)
        text = read(source) if source else None
        if source is None or text is None:
            return {}
        return {
            chunk_id(source, number): text[chunk.start : chunk.end]
            for number, chunk in enumerate(source.chunks)
            if chunk.name.startswith("error")
        }

    return causes.Records(runs=facts, errors=errors)
