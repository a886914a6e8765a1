"""Which rows a compaction takes out of use, and which payloads hold them all the same (L1).  Pure.

A retired row is not matched, replayed or placed in a payload without its history, so that a new
message which says the same never brings it back.  When that history is back in the buffer (undo),
its rows count again, and a commit ends the retirement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retention.arrays import Item
from retention.digest import Digest
from retention.ledger import Log
from retention.matching import units_of
from retention.model import Face, Message, Retirement, Role, Row, RowId

END = 2  # rows at the end of a retired history by which a payload that holds it is known


def find_hidden(
    retirements: Sequence[Retirement], messages: Sequence[Message], taken: Sequence[Item], log: Log
) -> frozenset[RowId]:
    """Return the rows of those of RETIREMENTS whose history a payload does not hold.

    MESSAGES are compared with the end of that history; TAKEN are the elements in front of them,
    whose rows are known.
    """
    if not retirements:
        return frozenset()
    units = [unit for message in messages for unit in units_of(message)]
    known = {item.row for item in taken}
    return frozenset(
        id
        for each in retirements
        if known.isdisjoint(each.end) and not _stands([log.rows[id] for id in each.end], units)
        for id in each.ids
    )


def _stands(rows: Sequence[Row], units: Sequence[Digest]) -> bool:
    """Whether UNITS hold those of ROWS, one behind the other; a prompt has two forms (Q6)."""
    places = set(range(len(units)))
    for row in rows:
        forms = [list(form) for form in (row.parts, row.alias) if form]
        places = {
            at + len(form) for at in places for form in forms if units[at : at + len(form)] == form
        }
    return bool(places)


def find_retired(owners: Iterable[Sequence[RowId]], log: Log) -> list[Row]:
    """Return the rows of a history in log order, given the rows that each message stands for.

    With an ordinary row go the others and the actual ones of its round, and deliveries behind any
    of them; but not what may stand behind the history, where it ends inside a round.  A system
    prompt stays: the payload that follows has it too.
    """
    ids = [id for each in owners for id in each]
    own = {id for id in ids if log.rows[id].role is not Role.SYSTEM}
    for round in {log.rows[id].round for id in ids} - {0}:
        span: Sequence[RowId] = log.rounds.get(round, ())
        if ids[-1] not in span or ids[-1] == span[-1]:
            own.update(span, log.actuals.get(round, ()))
    return [
        row
        for id in log.order
        if (row := log.rows[id]).id in own or (row.delivery and row.delivery.after in own)
    ]


def make_retirement(rows: Sequence[Row], at: float) -> Retirement:
    """Return the retirement of ROWS, in log order, at the time AT."""
    shown = [row.id for row in rows if row.delivery is None and row.face is not Face.ACTUAL]
    ranges = _ranges(sorted(row.id for row in rows))
    return Retirement(at=at, rows=ranges, end=tuple(shown[-END:]))


def _ranges(ids: Sequence[RowId]) -> tuple[tuple[RowId, RowId], ...]:
    ranges: list[tuple[RowId, RowId]] = []
    for id in ids:
        if ranges and ranges[-1][1] == id - 1:
            ranges[-1] = (ranges[-1][0], id)
        else:
            ranges.append((id, id))
    return tuple(ranges)


def keep_retired(retirements: Sequence[Retirement], sent: Iterable[Item]) -> tuple[Retirement, ...]:
    """Return those of RETIREMENTS of which nothing was SENT."""
    if not retirements:
        return ()
    ids = {id for item in sent for id in item.ids}
    return tuple(each for each in retirements if ids.isdisjoint(each.ids))
