"""Where earlier deliveries stand in a payload (rules B1, B3).  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from retention.arrays import Item
from retention.fragments import Fragment
from retention.ledger import Log
from retention.model import START, Delivery, Row, RowId


def find_places(
    items: Sequence[Item],
    cut: int,
    found: Mapping[RowId, tuple[int, int]],
    candidates: Iterable[Row],
    log: Log,
) -> dict[int, list[Row]]:
    """Return where the deliveries among CANDIDATES stand: index of the element before which,
    deliveries in the order of their commits (rules B1, B3).

    Those that stand in front of CUT are placed already.  FOUND are the rows behind it, each with
    the first and the last element that shows it.
    """
    where = dict(found)
    if cut:
        where[items[cut - 1].row] = (cut - 1, cut - 1)
    places: dict[int, list[Row]] = {}
    for row in {row.id: row for row in candidates}.values():
        if row.delivery is None:
            continue
        at = _place(row.delivery, where, items, cut, log)
        if at is None or at < cut:
            continue
        while at < len(items) and items[at].message.results:
            at += 1  # never between a call and its result (D4)
        places.setdefault(at, []).append(row)
    for rows in places.values():
        rows.sort(key=lambda row: row.id)
    return places


def move_out(
    places: Mapping[int, list[Row]], fragments: Mapping[int, Fragment]
) -> dict[int, list[Row]]:
    """Return PLACES with what would stand inside one of FRAGMENTS behind it."""
    behind = {n: f.last + 1 for f in fragments.values() for n in range(f.first + 1, f.last + 1)}
    moved: dict[int, list[Row]] = {}
    for at in sorted(places):
        moved.setdefault(behind.get(at, at), []).extend(places[at])
    return {at: sorted(rows, key=lambda row: row.id) for at, rows in moved.items()}


def _place(
    delivery: Delivery,
    where: Mapping[RowId, tuple[int, int]],
    items: Sequence[Item],
    cut: int,
    log: Log,
) -> int | None:
    after = log.ordinary(delivery.after, last=True)
    if after in where:
        return where[after][1] + 1
    before = log.ordinary(delivery.before, last=False)
    if before == START or before not in where:
        return None
    if any(items[n].row == after for n in range(cut)):
        return None  # behind an element that was taken over: there it stands already
    return where[before][0]
