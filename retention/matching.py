"""Which rows of the log the messages of a payload stand for, and drafts for new ones.  Pure.

Rows that do not exist yet have negative ids (drafts); `settling` gives them their real ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from itertools import chain

import msgspec

from retention.arrays import Item, Sent
from retention.digest import Digest, digest
from retention.ledger import Log, match_rows
from retention.model import START, Face, Message, Origin, Role, Row, RowId, Struct


def units_of(message: Message) -> tuple[Digest, ...]:
    """Return the digests of the parts of MESSAGE, by which it is matched (G2)."""
    return tuple([part.digest for part in message.parts])


def sent_rows(last: Sent | None, start: int, log: Log) -> list[RowId]:
    """Return the rows by which a payload built from the buffer shows what was sent LAST."""
    rows: list[RowId] = []
    seen: set[int] = set()
    items = last.items[start:] if last else []
    for id in chain.from_iterable(item.ids for item in items):
        row = log.rows.get(id)
        if row is None:
            continue
        if row.face is not Face.ACTUAL:
            rows.append(id)
        elif row.round not in seen:
            seen.add(row.round)
            rows += log.rounds.get(row.round, ())
    return rows


class Match(Struct, frozen=True):
    """The elements of a payload with the rows they stand for: an item and the rows of each, a draft
    for each new one, and the first and the last element that each matched row was found in.
    """

    items: list[Item]
    owners: list[list[RowId]]
    drafts: dict[RowId, Row]
    spans: dict[RowId, tuple[int, int]]


def match_payload(
    messages: Sequence[Message],
    log: Log,
    settled: int,
    prompt: Sequence[Message],
    sent: Sequence[RowId],
    *,
    hidden: Collection[RowId] = (),
) -> Match:
    """Match MESSAGES with the rows of LOG behind position SETTLED; SENT are those sent last.

    PROMPT is the newest prompt as the buffer holds it, alone in a list, or nothing.  Rows that are
    HIDDEN stand for nothing.
    """
    rows = [
        row
        for row in log.after(settled)
        if row.delivery is None and row.face != Face.ACTUAL and row.id not in hidden
    ]
    owners = match_rows([units_of(message) for message in messages], rows, sent)
    newest = max((n for n, m in enumerate(messages) if m.role is Role.USER), default=-1)
    match = Match(items=[], owners=owners, drafts={}, spans={})
    for n, (message, ids) in enumerate(zip(messages, owners, strict=True)):
        for row in ids:
            match.spans[row] = (match.spans[row][0] if row in match.spans else n, n)
        if ids:
            item = Item(message=message, row=ids[-1], face=log.rows[ids[-1]].face)
        else:
            draft = draft_row(len(match.drafts) + 1, message, Face.BOTH)
            if n == newest and prompt:
                draft = _with_prompt(draft, message, prompt[-1])
            match.drafts[draft.id] = draft
            item = Item(message=message, row=draft.id)
        match.items.append(item)
    return match


def _with_prompt(draft: Row, message: Message, prompt: Message) -> Row:
    """Return DRAFT of the newest prompt, MESSAGE, with its form in the buffer, PROMPT (Q6)."""
    alias = units_of(prompt)
    context = _inserted(prompt.raw, message.raw)
    return msgspec.structs.replace(
        draft,
        alias=alias if alias != draft.parts else (),
        context=digest("part", _BLANK.sub(b"", context)) if context else None,
    )


_BLANK = re.compile(rb"^(?:\\[nrt]| )+|(?:\\[nrt]| )+$")  # around it, in a JSON string


def _inserted(plain: bytes, full: bytes) -> bytes:
    """Return what FULL has in one place more than PLAIN, b"" if that is not all."""
    more = len(full) - len(plain)
    at = next((n for n, (a, b) in enumerate(zip(plain, full, strict=False)) if a != b), len(plain))
    return full[at : at + more] if more > 0 and full[at + more :] == plain[at:] else b""


def draft_row(n: int, message: Message, face: Face, round: int = 0) -> Row:
    """Return the Nth draft: MESSAGE as a row whose id and predecessor are still to come."""
    return Row(
        id=-n,
        pred=START,
        face=face,
        role=message.role,
        exact=message.exact,
        size=message.size,
        parts=units_of(message),
        round=round,
        ids=message.named,
        reasoned=message.reasoned,
    )


def draft_actual(round: int, origin: Origin) -> Callable[[int, Message], Row]:
    """Return a maker of drafts of what was sent or received in ROUND, which have ORIGIN."""

    def draft(n: int, message: Message) -> Row:
        row = draft_row(n, message, Face.ACTUAL, round)
        return msgspec.structs.replace(row, origin=origin)

    return draft


def recognize(tail: Sequence[Message], rest: Sequence[Item]) -> list[Item]:
    """Return the elements TAIL of a loop's payload, those that were sent before with their rows.

    Something may have changed one element in the middle of what we sent: the elements of REST
    behind it are ours all the same when they come in our order, byte for byte (B4).
    """
    items: list[Item] = []
    at = 0
    for message in tail:
        hit = next((n for n in range(at, len(rest)) if rest[n].message.exact == message.exact), -1)
        if hit >= 0 and rest[hit].last > START:
            items.append(rest[hit])
            at = hit + 1
        else:
            items.append(Item(message=message, face=Face.ACTUAL))
    return items
