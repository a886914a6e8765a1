"""The methods that look: what the CLI and the Emacs views show."""

from __future__ import annotations

from typing import Any

import msgspec

from retention import rechunking
from retention.answering.desk import Desk
from retention.inspecting import Explanation, explain, shown_object, shown_request, shown_row
from retention.ledger import Log
from retention.protocol import Empty, InspectExplain, InspectLog, InspectObject, InspectStatus


def show_log(desk: Desk, params: InspectLog) -> dict[str, Any]:
    """The newest rows of a log in log order, with their texts if `bodies` says so."""
    desk.conversation(params.id)
    with desk.store.read() as reader:
        log = Log(reader.rows(params.id))
    read = desk.read if params.bodies else None
    rows = [shown_row(log.rows[id], read) for id in log.order[-max(1, params.limit) :]]
    return {"id": params.id, "total": len(log.order), "rows": rows}


def show_object(desk: Desk, params: InspectObject) -> dict[str, Any]:
    """One object by its digest, or by the first digits that only it has."""
    with desk.store.read() as reader:
        return shown_object(reader, params.digest.lower())


def show_requests(desk: Desk, params: InspectStatus) -> dict[str, Any]:
    """The newest requests of a conversation, the newest first."""
    record = desk.conversation(params.id)
    with desk.store.read() as reader:
        log = Log(reader.rows(params.id))
        records = reader.requests(params.id, max(1, min(params.limit, 1000)))
    refusal = record.refusal
    return {
        "id": params.id,
        "turns": record.turns,
        "refusal": {"step": refusal.step, "status": refusal.status} if refusal else None,
        "requests": [shown_request(request, log) for request in records],
    }


def explain_requests(desk: Desk, params: InspectExplain) -> Explanation:
    """What was kept, put in and marked in requests, why they differ, and what they cost."""
    with desk.store.read() as reader:
        return explain(reader, params.id, params.request, params.limit)


def check(desk: Desk, _: Empty) -> dict[str, Any]:
    """Every problem that a full check finds, and of which views the vectors are (V3)."""
    problems = [msgspec.to_builtins(problem) for problem in desk.store.check()]
    problems += [
        {"code": "source", "where": id, "detail": fault}
        for id, fault in rechunking.find_faults(desk.store)
    ]
    views = desk.index().counts().views if desk.indexed() else {}
    return {"problems": problems, "views": {str(view): n for view, n in views.items()}}
