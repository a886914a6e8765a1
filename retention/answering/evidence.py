"""The methods of evidence, and of the settings that the store keeps."""

from __future__ import annotations

from pathlib import Path

import msgspec

from retention import finding, learning, settings
from retention.answering.desk import Desk, limit_of
from retention.errors import InvalidParams, UnknownConversation
from retention.protocol import (
    MAX_INLINE,
    EvidenceChunks,
    EvidenceExpand,
    EvidenceExplain,
    EvidenceExplained,
    EvidenceFound,
    EvidenceLearn,
    EvidenceLearned,
    EvidenceReload,
    EvidenceReloaded,
    EvidenceResume,
    EvidenceSearch,
    EvidenceSourceList,
    EvidenceSources,
    EvidenceText,
    Settings,
    SettingsNow,
)
from retention.rendering import render_text
from retention.sources import encode
from retention.store import Writer


def learn(desk: Desk, params: EvidenceLearn) -> EvidenceLearned:
    """Learn a live conversation with its outputs, or a file, now; unchanged ones stay (V1)."""
    if params.conversation:
        learned = learning.learn_outputs(desk.store, desk.index(), params.conversation)
        learned.append(learning.learn_conversation(desk.store, desk.index(), params.conversation))
        return EvidenceLearned(sources=tuple(learned))
    path = Path(params.path)
    if not path.is_absolute():
        raise InvalidParams(f"{params.path!r} is no absolute file name")
    try:
        path = path.resolve()  # one file under two names is one source
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidParams(f"{params.path!r}: {error}") from None
    return EvidenceLearned(
        sources=tuple(learning.learn_file(desk.store, desk.index(), path, chosen=params.plain))
    )


def search(desk: Desk, params: EvidenceSearch) -> EvidenceFound:
    """Find what was learned (V5)."""
    found = finding.search(desk.store, desk.index(), params)
    if found.lacking:
        desk.notify("")
    if params.by == "model":
        text = finding.render_hits(found, params.query, limit_of(params))
        return EvidenceFound(text=text, note=found.note)
    hits = msgspec.json.encode(found.hits)
    if len(hits) <= MAX_INLINE:
        return EvidenceFound(hits=found.hits, note=found.note)
    _, file = desk.hand(hits.decode())
    return EvidenceFound(hits=() if file else found.hits, hits_file=file, note=found.note)


def chunks(desk: Desk, params: EvidenceChunks) -> EvidenceText:
    """List the chunks of a source, each within a bound, from one number on."""
    found, listing, more, total = finding.list_chunks(
        desk.store, params.source, params.first, max(1, params.limit), limit_of(params)
    )
    return _page(desk, found, listing, more, total)


def expand(desk: Desk, params: EvidenceExpand) -> EvidenceText:
    """Answer a page of exact text, with a place to go on."""
    found = finding.find_text(desk.store, params.id)
    page = finding.expand(found, params.offset, limit_of(params))
    return _page(desk, found, page.answer, page.resume or 0, len(found.text))


def _page(desk: Desk, found: finding.Text, text: str, more: int, total: int) -> EvidenceText:
    inline, file = desk.hand(text)
    return EvidenceText(
        text=inline, text_file=file, more=more, total=total, source=found.source.id,
        start=found.start, path=found.source.path, title=found.source.title,
    )  # fmt: skip


def explain(desk: Desk, params: EvidenceExplain) -> EvidenceExplained:
    """Tell why a run failed, as far as what was learned of it says so (V6)."""
    made = finding.explain(desk.store, params.question)
    text, file = desk.hand(render_text("explain", made.text, limit_of(params)))
    claims = () if params.by != "user" or file else made.claims
    return msgspec.structs.replace(made, text=text, text_file=file, claims=claims)


def reload(desk: Desk, params: EvidenceReload) -> EvidenceReloaded:
    """Answer what the tools of a source found, newest first, within the stored bounds."""
    return _reloaded(desk, finding.reload(desk.store, params.source))


def _reloaded(desk: Desk, made: finding.Reloaded) -> EvidenceReloaded:
    text, file = desk.hand(made.text)
    chosen = made.chosen
    return EvidenceReloaded(
        text=text, text_file=file, items=len(chosen.items), lines=chosen.lines, rows=chosen.rows,
        skipped=chosen.skipped, warnings=made.warnings,
    )  # fmt: skip


def resume(desk: Desk, params: EvidenceResume) -> EvidenceReloaded:
    """Keep the evidence of a source as a section of a conversation, for its next request."""
    made = finding.reload(desk.store, params.source)
    if made.source.owner == params.conversation:
        raise InvalidParams("a conversation has its own evidence already")

    def apply(writer: Writer) -> None:
        record = writer.conversation(params.conversation)
        if record is None or record.forgotten:
            raise UnknownConversation(f"no conversation {params.conversation!r}")
        evidence = writer.put_object("blob", encode(made.text)) if made.text else None
        writer.put_conversation(
            msgspec.structs.replace(record, version=record.version + 1, evidence=evidence)
        )

    desk.store.write(apply)
    return _reloaded(desk, made)


def sources(desk: Desk, params: EvidenceSources) -> EvidenceSourceList:
    """List the sources, the newest first, and how far the index is."""
    return finding.list_sources(desk.store, desk.index(), params.kind, params.limit)


def change_settings(desk: Desk, params: Settings) -> SettingsNow:
    """Change stored settings, and answer those in use (L4)."""
    if params.change:
        desk.store.write(
            lambda writer: writer.put_settings(settings.changed(writer.settings(), params.change))
        )
    with desk.store.read() as reader:
        return SettingsNow(settings=settings.in_use(reader.settings()))
