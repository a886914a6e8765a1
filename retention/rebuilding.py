"""Earlier requests, rebuilt from the log and the records of what was sent (rule C1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from retention.arrays import Item, message_of
from retention.digest import Digest
from retention.ledger import Log
from retention.model import Message, RequestRecord, Row
from retention.store import Reader


def rebuild_array(reader: Reader, log: Log, id: str, seq: int) -> list[Item]:
    """Return the array that request SEQ of conversation ID sent; its messages are without texts."""
    chain: list[RequestRecord] = []
    while seq and (record := reader.request(id, seq)) is not None:
        chain.append(record)
        seq = record.parent if record.keep else 0
    entries: list[tuple[Row, Digest, bool]] = []
    for record in reversed(chain):
        rows = [log.rows[row] for row in record.rows]
        entries = entries[: record.keep] + [
            (row, record.changed.get(row.id, row.exact), row.id in record.inside) for row in rows
        ]
    items: list[Item] = []
    for row, exact, inside in entries:
        message = message_of(row, exact)
        if inside:
            host = items.pop()
            kind = "joined" if row.delivery is None else "deliveries"
            others = (*getattr(host, kind), row.id)
            items.append(msgspec.structs.replace(host, message=message, **{kind: others}))
        elif row.delivery is None:
            items.append(Item(message=message, row=row.id, face=row.face))
        else:
            items.append(Item(message=message, deliveries=(row.id,)))
    return items


def find_prefix(arrays: Iterable[Sequence[Item]], messages: Sequence[Message]) -> list[Item]:
    """Return the longest prefix of MESSAGES that one of ARRAYS has, byte for byte, as its items."""
    best: Sequence[Item] = ()
    for items in arrays:
        length = 0
        for item, message in zip(items, messages, strict=False):
            if item.message.exact != message.exact:
                break
            length += 1
        if length > len(best):
            best = items[:length]
    return [
        msgspec.structs.replace(item, message=msgspec.structs.replace(message, raw=b""))
        for item, message in zip(best, messages, strict=False)
    ]
