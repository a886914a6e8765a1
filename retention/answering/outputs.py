"""The methods of tool outputs (tool-output.md O1-O8)."""

from __future__ import annotations

from typing import Any

import msgspec

from retention import handover, outputs
from retention.answering.desk import Desk, limit_of
from retention.errors import InvalidParams
from retention.inspecting import shown_output
from retention.protocol import (
    OutputFound,
    OutputLimits,
    OutputList,
    OutputRecall,
    OutputRecalled,
    OutputSave,
    OutputSaved,
    OutputScore,
    OutputSearch,
)
from retention.saver.excerpting import Excerpt, Options


def save(desk: Desk, params: OutputSave) -> OutputSaved:
    """Keep a tool result whole, and answer what the model gets of it (tool-output.md O1-O6)."""
    desk.conversation(params.conversation)
    tool = outputs.Tool(
        name=params.tool, call=params.call,
        task=handover.read_text(params.task).decode("utf-8", "replace"), at=desk.clock(),
    )  # fmt: skip
    data = handover.read_text(params.body)
    made, stored = outputs.save_output(
        desk.store, params.conversation, data, tool, _options(params.limits)
    )
    saved = _saved(desk, made, stored)
    if stored:
        desk.notify(params.conversation)
    if params.scorer != "model" or made.strategy not in outputs.JUDGED:
        return saved
    inquiry = outputs.ask_about(desk.store, params.conversation, made.id)
    asked, file = desk.hand(msgspec.json.encode(inquiry).decode())
    return msgspec.structs.replace(saved, ask=asked, ask_file=file)


def score(desk: Desk, params: OutputScore) -> OutputSaved:
    """Answer what the model gets of an output by another model's scores of its segments."""
    made = outputs.score_output(
        desk.store, params.conversation, params.id,
        handover.read_text(params.answer).decode("utf-8", "replace"), _options(params.limits),
    )  # fmt: skip
    return _saved(desk, made, stored=True)


def _saved(desk: Desk, made: Excerpt, stored: bool) -> OutputSaved:
    text, file = desk.hand(made.text)
    return OutputSaved(
        id=made.id if stored else "", text=text, text_file=file,
        strategy=made.strategy, why=made.why,
        format=made.format, bytes=made.size, chars=made.chars, lines=made.lines,
        shown=len(made.text),
    )  # fmt: skip


def recall(desk: Desk, params: OutputRecall) -> OutputRecalled:
    """Answer a part of a stored output, exactly as it is, with a place to go on (O7)."""
    part = outputs.Part(
        segment=params.segment, first=params.first, last=params.last, pattern=params.pattern,
        context=params.context, offset=params.offset,
    )  # fmt: skip
    page, total = outputs.recall_output(desk.store, params.id, part, limit_of(params))
    if params.by == "model" and params.conversation:
        outputs.note_recall(desk.store, params.conversation, params.id, part)
    text, file = desk.hand(page.answer)
    return OutputRecalled(text=text, text_file=file, more=page.resume or 0, total=total)


def search(desk: Desk, params: OutputSearch) -> OutputFound:
    """Answer the lines of a conversation's outputs that have all words of a query."""
    text, more = outputs.search_outputs(
        desk.store, params.conversation, params.query, outputs.answer_limit(params.cap),
        params.offset,
    )  # fmt: skip
    return OutputFound(text=text, more=more)


def list_outputs(desk: Desk, params: OutputList) -> dict[str, Any]:
    """The newest outputs of a conversation, and the ledger over them (O8)."""
    record = desk.conversation(params.conversation)
    with desk.store.read() as reader:
        found = reader.outputs(params.conversation, max(1, min(params.limit, 1000)))
    stats = outputs.count_outputs(found, record.turns, OutputLimits().tail)
    return {
        "id": params.conversation,
        "outputs": [shown_output(output) for output in found],
        "stats": msgspec.to_builtins(stats),
        "high_rate": outputs.HIGH_RATE,
    }


def _options(limits: OutputLimits) -> Options:
    if limits.tail < 1 or limits.cap < 1:
        raise InvalidParams(f"limits of {limits.tail} and {limits.cap} code points")
    return Options(tail_min_chars=limits.tail, excerpt_max_chars=limits.cap)
