"""What a summary of a conversation's history is written from (rule L1).  Pure.

A history is what stands in front of a boundary: between two turns, never inside an exchange of
calls and results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from retention.arrays import Item, Read, Sent
from retention.errors import InvalidParams
from retention.estimating import estimate_tokens
from retention.ledger import Log
from retention.matching import match_payload, sent_rows
from retention.model import START, Conversation, EventKind, Message, Row, RowId, Struct
from retention.providers import Provider
from retention.providers.transcript import Told, tell
from retention.retiring import find_hidden, find_retired
from retention.sections import Record, standing

RESULT_ROOM = 1_200  # code points of one tool's result
CALL_ROOM = 300  # code points of one call's arguments
TOOLS_ROOM = 24_000  # code points of all results, the newest first


class History(NamedTuple):
    """A history in front of a boundary: its messages with the rows that each stands for."""

    texts: list[bytes]
    owners: list[Sequence[RowId]]


class Summary(Struct, frozen=True):
    """What a summary of a history is written from: `text`, and about how many tokens its kinds are.

    `row` is the last ordinary row of the history, START if nothing of it is in the log; `rows` are
    those that retire with it.
    """

    text: str
    row: RowId
    rows: int
    guidance: int
    conversation: int
    tools: int


def find_history(
    messages: Sequence[Message], record: Conversation, log: Log, last: Sent | None
) -> History:
    """Return the history that the ordinary MESSAGES are; LAST is the array sent last.

    Raise InvalidParams if it ends between calls and their results.
    """
    if messages and messages[-1].opens:
        raise InvalidParams("the history ends between a call and its result")
    hidden = find_hidden(record.retired, messages, (), log)
    match = match_payload(messages, log, -1, (), sent_rows(last, 0, log), hidden=hidden)
    return History(texts=[message.raw for message in messages], owners=list(match.owners))


def find_history_to(row: RowId, log: Log, last: Sent | None, read: Read) -> History:
    """Return the history up to ROW, which LAST, the array sent last, has or shows otherwise.

    Raise InvalidParams if it does not, or its message ends in calls.
    """
    items = last.items if last else []
    shown = [{*item.ids, *(log.ordinary(id, last=True) for id in item.ids)} for item in items]
    at = max((n for n, ids in enumerate(shown) if row in ids), default=-1)
    if row == START or at < 0:
        raise InvalidParams(f"row {row} is not in the last request")
    if items[at].message.opens:
        raise InvalidParams("the history ends between a call and its result")
    history = History(texts=[], owners=[])
    for item in items[: at + 1]:
        for id in _own_rows(item):
            history.texts.append(read(log.rows[id].exact) or b"")
            history.owners.append((id,))
    return history


def _own_rows(item: Item) -> tuple[RowId, ...]:
    return () if item.row == START else (item.row, *item.joined)


def summarize(history: History, log: Log, provider: Provider, read: Read) -> Summary:
    """Return what a summary of HISTORY is written from (rule L1).

    That is what deliveries in it say and still applies, what the two sides said, and of what tools
    returned as much as there is room for; no ids, signatures, digests or reasoning.
    """
    rows = find_retired(history.owners, log)
    guidance = "".join(_guidance(rows, read))
    told = [each for raw in history.texts if raw for each in tell(provider.read, raw)]
    pieces = list(_displayed(told))
    ordinary = [id for ids in history.owners for id in ids]
    text = f"# What applies\n\n{guidance}" if guidance else ""
    text += f"# What was said\n\n{''.join(piece for piece, _ in pieces)}"
    return Summary(
        text=text.rstrip(),
        row=ordinary[-1] if ordinary else START,
        rows=len(rows),
        guidance=estimate_tokens(guidance, provider.api),
        conversation=sum(estimate_tokens(t, provider.api) for t, tool in pieces if not tool),
        tools=sum(estimate_tokens(t, provider.api) for t, tool in pieces if tool),
    )


def _guidance(rows: Sequence[Row], read: Read) -> Iterator[str]:
    """Yield the sections that stand at the end of ROWS, decoded."""
    for state in standing(row.delivery for row in rows if row.delivery).values():
        stored = None if state.inactive else read(state.body)
        if stored is None:
            continue
        record = msgspec.msgpack.decode(stored, type=Record)
        if record.body is not None:
            yield f"## {record.title}\n{record.body.strip()}\n\n"


_SPEAKERS = {EventKind.USER: "User", EventKind.ASSISTANT: "Assistant"}


def _displayed(told: Sequence[Told]) -> Iterator[tuple[str, bool]]:
    """Yield each stretch of TOLD as text, and whether it is of a tool."""
    shown = _results_shown(told)
    for n, each in enumerate(told):
        if each.kind in _SPEAKERS and each.text.strip():
            yield f"{_SPEAKERS[each.kind]}:\n{each.text.strip()}\n\n", False
        elif each.kind is EventKind.TOOL_CALL:
            yield f"Call of {each.tool}: {_bounded(each.text, CALL_ROOM)}\n\n", True
        elif each.kind is EventKind.TOOL_OUTPUT:
            size = len(each.text)
            text = _bounded(each.text, RESULT_ROOM) if n in shown else _left_out(size)
            yield f"Result:\n{text}\n\n", True


def _results_shown(told: Sequence[Told]) -> set[int]:
    """Return the places in TOLD of the results that there is room for, the newest first."""
    room, shown = TOOLS_ROOM, set()
    for n in range(len(told) - 1, -1, -1):
        size = min(len(told[n].text), RESULT_ROOM)
        if told[n].kind is EventKind.TOOL_OUTPUT and size <= room:
            shown.add(n)
            room -= size
    return shown


def _bounded(text: str, room: int) -> str:
    """Return TEXT, or its beginning and its end and how much is left out between them."""
    if len(text) <= room:
        return text
    end = room // 3
    start = room - end
    return f"{text[:start]}\n{_left_out(len(text) - room)}\n{text[-end:]}"


def _left_out(count: int) -> str:
    return f"[{count} characters left out]"
