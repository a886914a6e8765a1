"""Give a dispatched plan its rows in the log, and a finished turn its ordinary messages.  Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from retention.arrays import LOWEST, Item, Sent
from retention.ledger import Log, match_rows
from retention.matching import draft_actual, draft_row
from retention.model import START, Face, Message, Origin, Row, RowId, Struct
from retention.planning import Plan, last_row

END: RowId = 1 << 62  # behind the last row


class Settled(Struct, frozen=True):
    """The rows of a committed plan with their ids, and the deliveries whose neighbour is known."""

    ids: dict[RowId, RowId]
    rows: tuple[Row, ...]
    replaced: tuple[Row, ...]

    def real(self, id: RowId) -> RowId:
        """Return the id of the row that ID, perhaps a draft, stands for."""
        return self.ids.get(id, id)


def settle(plan: Plan, log: Log, next_row: RowId, round: int, since: RowId) -> Settled:
    """Give the drafts of PLAN the ids from NEXT_ROW and the number ROUND (adapter.md G5).

    Rows from SINCE on came into LOG after the plan was made: a draft that equals one of them is
    that row (the same prompt was logged by another commit).
    """
    ids = _find_logged(plan, log, since) if since < next_row else {}
    fresh = [draft for draft in plan.drafts if draft.id not in ids]
    ids |= {draft.id: next_row + n for n, draft in enumerate(fresh)}
    rows = tuple(_settled_row(draft, ids, round) for draft in fresh)
    replaced = [
        msgspec.structs.replace(
            row, delivery=msgspec.structs.replace(row.delivery, before=ids.get(before, before))
        )
        for id, before in plan.befores.items()
        if (row := log.rows.get(id)) is not None and row.delivery is not None
    ]
    return Settled(ids=ids, rows=rows, replaced=tuple(replaced))


def _find_logged(plan: Plan, log: Log, since: RowId) -> dict[RowId, RowId]:
    """Return the drafts that are rows from SINCE on, between the same neighbours in the log."""
    drafts = {draft.id: draft for draft in plan.drafts if draft.face is Face.BOTH}
    if not drafts:  # as in the loop, whose rows are its own
        return {}
    later = [
        row for row in log.after(-1)
        if row.id >= since and row.delivery is None and row.face is not Face.ACTUAL
    ]  # fmt: skip
    found: dict[RowId, RowId] = {}
    run: list[Row] = []
    low = log.position(plan.items[plan.cut - 1].row) if plan.cut else -1
    for id in (*(item.row for item in plan.items[plan.cut :]), END):
        if id in drafts:
            run.append(drafts[id])
            continue
        high = len(log.order) if id == END else log.position(id)
        between = [row for row in later if low < log.position(row.id) < high]
        matches = match_rows([draft.parts for draft in run], between) if between else []
        found |= {draft.id: ids[-1] for draft, ids in zip(run, matches, strict=False) if ids}
        run, low = [], high
    return found


def _settled_row(draft: Row, ids: Mapping[RowId, RowId], round: int) -> Row:
    delivery = draft.delivery
    if delivery is not None:
        delivery = msgspec.structs.replace(delivery, after=ids.get(delivery.after, delivery.after))
    return msgspec.structs.replace(
        draft,
        id=ids[draft.id],
        pred=ids.get(draft.pred, draft.pred),
        round=round if draft.round else 0,
        delivery=delivery,
    )


def apply_ids(plan: Plan, settled: Settled) -> None:
    """Put the real ids into the arrays of PLAN, in place, and drop the texts that are stored now.

    States of later deltas share these lists and their elements by identity.
    """
    plan.texts.clear()
    renewed: dict[int, Item] = {}
    for items, start in ((plan.sent.items, plan.start), (plan.items, plan.cut)):
        for n in range(start, len(items)):
            old = items[n]
            if id(old) not in renewed:
                renewed[id(old)] = msgspec.structs.replace(
                    old,
                    message=msgspec.structs.replace(old.message, raw=b""),
                    row=settled.real(old.row),
                    deliveries=tuple(settled.real(d) for d in old.deliveries),
                    joined=tuple(settled.real(row) for row in old.joined),
                )
            items[n] = renewed[id(old)]
    placed = plan.sent.placed
    for n in range(bisect_left(placed, (plan.start, LOWEST)), len(placed)):
        placed[n] = (placed[n][0], settled.real(placed[n][1]))


class TurnEnd(Struct, frozen=True):
    """The rows that the end of a turn adds, and the deliveries whose neighbours it changes."""

    rows: tuple[Row, ...]
    replaced: tuple[Row, ...]


class Ending(Struct, frozen=True):
    """The end of a turn: the messages of its last piece, those of the whole response region if it
    does not parse into its pieces joined, and the rounds that the turn has logged.  `own` are the
    provider's own messages of the last response, none if they may not be sent again.
    """

    span: Sequence[Message]
    whole: Sequence[Message] = ()
    rounds: Sequence[int] = ()
    own: Sequence[Message] = ()
    origin: Origin | None = None


def plan_turn_end(
    log: Log, sent: Sent | None, ending: Ending, next_row: RowId, round: int
) -> TurnEnd:
    """Plan the ordinary rows of a turn's last piece, behind what was SENT.

    Where hidden results let texts merge, the whole region stands for all rounds of the turn, and
    the deliveries made inside it move behind it (adapter.md Q3).
    """
    last = last_row(sent.items, log) if sent else log.order[-1] if log.order else START
    if ending.whole and ending.rounds:
        # In front of the rounds, so that they are passed over and nothing equal is found first.
        last = next(row.pred for row in log.after(-1) if row.round in ending.rounds)
    rows: list[Row] = []
    for n, message in enumerate(ending.whole or ending.span):
        draft = draft_row(0, message, Face.ORDINARY, round)
        rows.append(msgspec.structs.replace(draft, id=next_row + n, pred=last))
        last = rows[-1].id
    if not rows or sent is None:
        return TurnEnd(rows=tuple(rows), replaced=())
    first = rows[0].id
    if ending.origin is not None and not ending.whole:
        make = draft_actual(round, ending.origin)
        for n, message in enumerate(ending.own, len(rows)):
            rows.append(msgspec.structs.replace(make(0, message), id=next_row + n, pred=last))
            last = rows[-1].id
    replaced = []
    follower = START
    at = len(sent.items)
    for place, id in reversed(sent.placed):
        while at > place + 1:
            at -= 1
            follower = sent.items[at].row or follower
        row = log.rows[id]
        delivery = row.delivery
        inside = log.rows.get(delivery.after) if delivery else None
        if delivery is None or inside is None:
            break
        if ending.whole and inside.round in ending.rounds:
            moved = msgspec.structs.replace(delivery, after=last, before=START)
        elif delivery.before == START and follower == START:
            moved = msgspec.structs.replace(delivery, before=first)
        else:
            break
        replaced.append(msgspec.structs.replace(row, delivery=moved))
    return TurnEnd(rows=tuple(rows), replaced=tuple(replaced))
