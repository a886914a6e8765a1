"""A live conversation's log as the events of a snapshot (evidence.md V1).

What was really sent and received tells more than the buffer: results that gptel leaves out of the
text, reasoning, deliveries.  So a round is told by its actual rows where they are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from retention.digest import Digest
from retention.evidence.snapshots import Piece, make_event
from retention.model import EventKind, Face, Role, Row, RowId, Struct
from retention.providers.transcript import Told
from retention.sections import CLOSE, OPEN, PRIOR

OWN_TOOLS = frozenset(("search_evidence", "expand_evidence", "search_output", "recall_output"))
REPEATED = "[what was found is learned where it comes from]"
LABEL = 60  # code points of what stands beside a kind in a header


class Known(Struct, frozen=True):
    """What is needed beside the rows.

    `read` returns an object's bytes or None; `tell` reads an element as the API of its row has it;
    `at` is when a row first went out, in seconds since the epoch; `stored` maps an excerpt, without
    white space around it, to the id of the output that it is of.  `learned` returns the events
    that a row was learned as, for one whose text is no more.
    """

    read: Callable[[Digest], bytes | None]
    tell: Callable[[RowId, bytes], list[Told]]
    at: Mapping[RowId, float]
    stored: Mapping[str, str]
    learned: Callable[[RowId], Sequence[Piece]]


def chosen_rows(rows: Sequence[Row]) -> list[Row]:
    """Return those of ROWS, in log order, that tell a conversation: each exchange once."""
    told = {row.round for row in rows if row.face is Face.ACTUAL and row.round}
    return [row for row in rows if row.face is not Face.ORDINARY or row.round not in told]


def tell_rows(rows: Iterable[Row], known: Known) -> list[Piece]:
    """Return the events of ROWS, in order; a row whose text is not there, and was not learned
    before, leaves none.
    """
    pieces: list[Piece] = []
    calls: dict[str | None, Told] = {}
    waiting: list[Told] = []  # calls without an id, in order
    for row in rows:
        at = known.at.get(row.id, 0.0)
        if row.delivery is not None:
            text = known.read(row.delivery.text)
            if text is None:
                pieces += known.learned(row.id)
                continue
            body = make_event(EventKind.DELIVERY, _once(text.decode("utf-8", "replace")))
            pieces.append(Piece(EventKind.DELIVERY, body, row=row.id, at=at))
            continue
        raw = known.read(row.exact)
        if raw is None:
            pieces += known.learned(row.id)
            continue
        if row.role is Role.USER:
            waiting.clear()  # they were broken off: results come before anything is said
        for each in known.tell(row.id, raw):
            if each.kind is EventKind.TOOL_CALL:
                if each.id is None:
                    waiting.append(each)
                calls[each.id] = each
                pieces.append(_piece(each.kind, each.text, each, row, at))
            elif each.kind is EventKind.TOOL_OUTPUT:
                call = calls.get(each.id) if each.id is not None else None
                if call is None and waiting:
                    call = waiting.pop(0)
                body = REPEATED if call and call.tool in OWN_TOOLS else each.text
                pieces.append(_piece(each.kind, _pointed(body, known.stored), call, row, at))
            else:
                kind = EventKind.TEXT if row.role is Role.SYSTEM else each.kind
                pieces.append(_piece(kind, each.text, None, row, at))
    return pieces


def _piece(kind: EventKind, body: str, call: Told | None, row: Row, at: float) -> Piece:
    tool, arguments = (call.tool, call.text) if call else ("", "")
    label = f"{tool[:LABEL]} #{row.id}".strip() if tool else f"#{row.id}"
    return Piece(kind, make_event(kind, body, label), tool, arguments, row.id, at)


def _pointed(text: str, stored: Mapping[str, str]) -> str:
    """Return TEXT, or what points to the output that it is an excerpt of or was recalled from.

    The output is learned whole, under its own id: a second copy of a part of it would be a second
    hit.
    """
    stripped = text.strip()
    name = stored.get(stripped)
    if name is None and stripped[:1] == "[":  # as a page of an output begins
        name = next((id for id in stored.values() if stripped.startswith(f"[{id}:")), None)
    return text if name is None else f"[output {name}, stored whole]"


_PRIOR = re.compile(rf"({re.escape(OPEN)}\n# {PRIOR}\n)(?:(?!{re.escape(CLOSE)}).)*", re.DOTALL)


def _once(delivery: str) -> str:
    """Return the text of a DELIVERY without what another source says: it would be found twice."""
    return _PRIOR.sub(rf"\g<1>{REPEATED}\n", delivery)


_POINTER = re.compile(r"\[output (o[0-9a-f]+), stored whole\]")


def pointed_output(body: str) -> str:
    """Return the id of the output that BODY, that of a result, points to, else ""."""
    found = _POINTER.fullmatch(body)
    return found[1] if found else ""
