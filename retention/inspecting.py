"""What the debug CLI and the Emacs views show of rows, requests and objects, as JSON values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from retention.digest import Digest, to_hex
from retention.errors import InvalidParams, UnknownObject
from retention.ledger import Log
from retention.model import Delivery, RequestRecord, Row
from retention.sections import Record
from retention.store import Reader


def shown_row(row: Row, read: Callable[[Digest], bytes | None] | None) -> dict[str, Any]:
    """Return ROW for display, with its text if READ is given (None where it cannot be read)."""
    shown: dict[str, Any] = {
        "row": row.id,
        "after": row.pred,
        "face": row.face.value,
        "role": row.role.value,
        "digest": to_hex(row.exact),
        "bytes": row.size,
    }
    if row.round:
        shown["round"] = row.round
    if row.delivery is not None:
        shown["delivery"] = _shown_delivery(row.delivery)
    if read is not None:
        text = read(row.delivery.text if row.delivery else row.exact)
        shown["body"] = None if text is None else text.decode("utf-8", "replace")
    return shown


def _shown_delivery(delivery: Delivery) -> dict[str, Any]:
    return {
        "text": to_hex(delivery.text),
        "stands_after": delivery.after,
        "stands_before": delivery.before,
        "inside": delivery.host,
        "turn": delivery.turn,
        "sections": [
            {"name": state.name, "body": to_hex(state.body), "inactive": state.inactive}
            for state in delivery.sections
        ],
        "reminders": list(delivery.reminders),
    }


def shown_request(record: RequestRecord, log: Log) -> dict[str, Any]:
    """Return one committed request for display."""
    deliveries = [log.rows[id].delivery for id in record.delivered if id in log.rows]
    return {
        "request": record.seq,
        "turn": record.turn,
        "origin": record.origin,
        "at": record.at,
        "bytes": record.bytes,
        "parent": record.parent,
        "kept": record.keep,
        "new": len(record.rows),
        "sections": [state.name for d in deliveries if d for state in d.sections],
        "reminders": [key for d in deliveries if d for key in d.reminders],
        "reasons": [{"code": reason.code, "detail": reason.detail} for reason in record.reasons],
    }


def shown_object(reader: Reader, prefix: str) -> dict[str, Any]:
    """Return the object whose digest begins with PREFIX, hexadecimal digits.

    Raise InvalidParams if several do, or PREFIX is not hexadecimal; UnknownObject if none does.
    """
    if not prefix or set(prefix) - set("0123456789abcdef"):
        raise InvalidParams(f"{prefix!r} is not hexadecimal")
    found = reader.find_objects(prefix, limit=2)
    if not found:
        raise UnknownObject(f"no object {prefix}")
    if len(found) > 1:
        raise InvalidParams(f"{prefix} begins more than one digest")
    data, kind = reader.object(found[0]), reader.object_domain(found[0])
    shown: dict[str, Any] = {"digest": to_hex(found[0]), "kind": kind, "bytes": len(data)}
    if kind == "section":
        record = msgspec.msgpack.decode(data, type=Record)
        return shown | {"section": msgspec.to_builtins(record)}
    return shown | {"text": data.decode("utf-8", "replace")}
