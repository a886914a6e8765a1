"""What the debug CLI and the Emacs views show of rows, requests and objects, as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from retention.arrays import Item
from retention.continuity import UNREAD, judge, sentence
from retention.digest import Digest, to_hex
from retention.errors import DamagedObject, InvalidParams, UnknownConversation, UnknownObject
from retention.ledger import Log
from retention.model import (
    Cause,
    Continuity,
    Delivery,
    Identity,
    Output,
    Reason,
    RequestRecord,
    Row,
    Usage,
)
from retention.protocol import Result
from retention.rebuilding import rebuild_array
from retention.sections import Record
from retention.store import Reader
from retention.wording import explain_reason

SHORT = 12  # hexadecimal digits of a digest that stands for what cannot be read
MAX_EXPLAINED = 1000  # requests in one answer


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


def shown_output(output: Output) -> dict[str, Any]:
    """Return an output as the list of them shows it."""
    names = (
        "id", "tool", "call", "at", "turn", "bytes", "chars", "lines", "shown", "strategy", "why",
        "recalls", "whole_recalls",
    )  # fmt: skip
    return {name: getattr(output, name) for name in names}


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


# Explaining requests


class Line(Result, frozen=True):
    """One line for display: what TEXT is about, and the text."""

    label: str
    text: str


class Explained(Result, frozen=True):
    """One request: what was kept and put in, how it compares, what it cost, and why.

    `kept` of its `messages` stood in the request before, from the start; `put_back` earlier
    deliveries stand in it, `replayed` responses as they were received, cache marks on the messages
    `marked`, counted from 0.  `judgement` compares what was predicted with the `usage` that the
    provider reports, "" where they agree.  `lines` say all of this in words.
    """

    request: int
    turn: int
    at: float
    origin: str
    provider: str
    messages: int
    kept: int
    bytes: int
    sections: tuple[str, ...]
    reminders: tuple[str, ...]
    put_back: int
    replayed: int
    marked: tuple[int, ...]
    continuity: Continuity | None
    usage: Usage | None
    finish: str
    judgement: str
    reasons: tuple[Reason, ...]
    lines: tuple[Line, ...] = ()


class Explanation(Result, frozen=True):
    """Requests of a conversation that has sent `total`, the newest of them first."""

    id: str
    total: int
    requests: tuple[Explained, ...]


def explain(reader: Reader, id: str, request: int = 0, limit: int = 1) -> Explanation:
    """Explain REQUEST of conversation ID, 0 for the newest, and those before it, LIMIT in all.

    Raise UnknownConversation, or InvalidParams if there is no such request.
    """
    conversation = reader.conversation(id)
    if conversation is None or conversation.forgotten:
        raise UnknownConversation(f"no conversation {id!r}")
    total = conversation.next_seq - 1
    if not 0 <= request <= total:
        raise InvalidParams(f"no request {request}: {total} were sent")
    newest = request or total
    log = Log(reader.rows(id))
    numbers = range(newest, max(0, newest - max(1, min(limit, MAX_EXPLAINED))), -1)
    records = [record for number in numbers if (record := reader.request(id, number))]
    return Explanation(
        id=id,
        total=total,
        requests=tuple(_explained(reader, log, id, record) for record in records),
    )


def _explained(reader: Reader, log: Log, id: str, record: RequestRecord) -> Explained:
    items = rebuild_array(reader, log, id, record.seq)
    identity = _stored_identity(reader, record.identity)
    deliveries = [log.rows[row].delivery for row in record.delivered if row in log.rows]
    placed = {row for item in items for row in item.deliveries}
    found = Explained(
        request=record.seq,
        turn=record.turn,
        at=record.at,
        origin=record.origin,
        provider=_provider_name(identity) if identity else to_hex(record.identity)[:SHORT],
        messages=len(items),
        kept=_kept_elements(items, record.keep if record.parent else 0),
        bytes=record.bytes,
        sections=tuple(state.name for d in deliveries if d for state in d.sections),
        reminders=tuple(key for d in deliveries if d for key in d.reminders),
        put_back=len(placed.difference(record.delivered)),
        replayed=record.replayed,
        marked=record.marked,
        continuity=record.continuity,
        usage=record.usage,
        finish=record.finish,
        judgement=_judgement(reader, id, record, identity),
        reasons=record.reasons,
    )
    return msgspec.structs.replace(found, lines=tuple(_lines(found)))


def _kept_elements(items: Sequence[Item], rows: int) -> int:
    """Return how many of ITEMS hold only rows of the first ROWS."""
    kept = 0
    for item in items:
        rows -= len(item.ids)
        if rows < 0:
            break
        kept += 1
    return kept


def _stored_identity(reader: Reader, name: Digest) -> Identity | None:
    try:
        return msgspec.json.decode(reader.object(name), type=Identity)
    except (UnknownObject, DamagedObject):
        return None


def _provider_name(identity: Identity) -> str:
    name = identity.backend or identity.api
    place = f"{name} ({identity.host})" if identity.host else name
    said = f"{identity.model} at {place}" if identity.model else place
    return f"{said}, cache setting {identity.cache}" if identity.cache else said


def _judgement(reader: Reader, id: str, record: RequestRecord, identity: Identity | None) -> str:
    if record.continuity is None:
        return ""
    before = _request_before(reader, id, record)
    model = identity.model if identity else ""
    return judge(record.continuity, record.usage, model, before.usage if before else None)


def _request_before(reader: Reader, id: str, record: RequestRecord) -> RequestRecord | None:
    """Return the request that RECORD was compared with: the last to the same provider."""
    for number in range(record.seq - 1, 0, -1):
        before = reader.request(id, number)
        if before is None or before.identity == record.identity:
            return before
    return None


def _lines(found: Explained) -> Iterator[Line]:
    """Yield FOUND in words: what went out, how it compares, what it cost, and why."""
    yield Line(label="Provider", text=found.provider)
    yield Line(label="Messages", text=_messages(found))
    yield Line(label="Delivered", text=_delivered(found))
    if found.put_back:
        yield Line(label="Put back", text=_counted(found.put_back, "earlier delivery", "ies"))
    if found.replayed:
        text = _counted(found.replayed, "response")
        yield Line(label="Replayed", text=f"{text} as received")
    repaired = [reason.detail for reason in found.reasons if reason.code == "repaired"]
    if repaired:
        yield Line(label="Repaired", text=", ".join(repaired))
    if found.marked:
        text = ", ".join(str(at) for at in found.marked)
        yield Line(label="Marked", text=f"for the provider's cache, messages {text}")
    if found.continuity is not None:
        yield from _comparison(found.continuity)
    yield from _costs(found)
    for reason in found.reasons:
        if reason.code != "repaired":
            yield Line(label="Reason", text=explain_reason(reason))


def _messages(found: Explained) -> str:
    kept = f", the first {found.kept} as in the request before" if found.kept else ""
    return f"{found.messages}{kept}; {_size(found.bytes)}"


def _delivered(found: Explained) -> str:
    kinds = {"": found.sections, "reminders: ": found.reminders}
    return "; ".join(f"{kind}{', '.join(names)}" for kind, names in kinds.items() if names) or "-"


def _comparison(continuity: Continuity) -> Iterator[Line]:
    yield Line(label="Compared", text=sentence(continuity))
    if continuity.path:
        yield Line(label="Changed", text=continuity.path)
        yield Line(label="  before", text=_quoted(continuity.before))
        yield Line(label="  now", text=_quoted(continuity.after))
    if continuity.cause is not Cause.FIRST:
        share = f"{_size(continuity.reused)} of {_size(continuity.total)}"
        tokens = f"about {continuity.tokens} tokens in all"
        yield Line(label="Predicted", text=f"{share} of the messages repeat, {tokens}")


def _costs(found: Explained) -> Iterator[Line]:
    usage = found.usage or Usage()
    parts = {
        "{} tokens in": usage.input,
        "{} of them from the cache": usage.cached,
        "{} written to it": usage.written,
        "{} tokens out": usage.output,
    }
    said = ", ".join(text.format(n) for text, n in parts.items() if n is not None)
    if said:
        yield Line(label="Reported", text=said)
    if found.judgement:
        yield Line(label="Judged", text=found.judgement)
    if found.finish:
        yield Line(label="Ended", text=found.finish)


def _counted(number: int, noun: str, plural: str = "s") -> str:
    """Return NUMBER with NOUN; PLURAL stands for the "y" at the end of one, or is added."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}{plural}"


def _size(size: int) -> str:
    return f"{size} bytes" if size < 1000 else f"{size / 1000:.1f} kB"


_UNQUOTED = {"": "nothing", UNREAD: "a text that is not stored"}


def _quoted(text: str) -> str:
    return _UNQUOTED.get(text) or repr(text)  # readable also where TEXT is JSON
