"""The log of a conversation, and its alignment with a realized payload.  Pure: no store, no clock.

The log is an ordered sequence of rows that only grows (adapter.md G1).  Each row names the row that
it was inserted after, and of two rows inserted after the same one the newer comes first; that alone
fixes the order, so that writers need not agree on numbers.

Alignment compares *units*: the canonical parts of messages (G2).  It takes the longest common
prefix, then the longest common suffix, then, in what is left between, a longest common subsequence
that prefers the latest rows (G3).  The prefix is first that of the array sent last: what went out
as one row is not taken for another one because something was added behind it.  Undo, Org branches
and topics are subsequences of one log.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retention.digest import Digest
from retention.model import START, Face, Role, Row, RowId, SectionState

MAX_TABLE = 1_000_000  # cells of one comparison table: about 8 MB and 0.2 s, far above real edits


class Log:
    """The rows of one conversation in log order.  Grown by `insert`; rows never move or vanish."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: dict[RowId, Row] = {}
        self.order: list[RowId] = []
        self.rounds: dict[int, list[RowId]] = {}  # ordinary rows of each round, in log order
        self.actuals: dict[int, list[RowId]] = {}  # actual rows of each round, in log order
        self.contexts: set[RowId] = set()  # prompts that carry context of gptel's own
        self.reasoned = False  # whether a provider ever sent reasoning
        self.deliveries: list[RowId] = []  # in commit order
        self.known: dict[str, tuple[RowId, SectionState]] = {}  # newest, not inactive
        self.fired: dict[str, int] = {}  # reminder key -> turn of its newest delivery
        self._positions: dict[RowId, int] = {}
        self._fronts: dict[int, list[RowId]] = {}  # deliveries by the row (or -round) behind them
        for row in order_rows(rows):
            self._note(row)
            self._positions[row.id] = len(self.order)
            self.order.append(row.id)
        self.deliveries.sort()
        for id in self.deliveries:
            self._note_front(self.rows[id])

    def insert(self, row: Row) -> None:
        """Add ROW right after its predecessor, before older rows inserted there."""
        at = 0 if row.pred == START else self._positions[row.pred] + 1
        self._note(row)
        self.order.insert(at, row.id)
        if at == len(self.order) - 1:
            self._positions[row.id] = at
        else:
            self._positions = {id: n for n, id in enumerate(self.order)}

    def replace(self, row: Row) -> None:
        """Put ROW in the place of the row with the same id (its neighbours became known)."""
        self.rows[row.id] = row
        self._note_front(row)

    def in_front_of(self, ids: Iterable[RowId]) -> list[Row]:
        """Return the deliveries that have one of the rows IDS right behind them (B3)."""
        found: list[RowId] = []
        for id in ids:
            found += self._fronts.get(id, ())
            row = self.rows[id]
            if row.round and self.rounds.get(row.round, (START,))[0] == id:
                found += self._fronts.get(-row.round, ())
        return [self.rows[id] for id in found]

    def boundary(self, id: RowId) -> int:
        """Return the place in the order of the row behind which delivery ID stands."""
        delivery = self.rows[id].delivery
        assert delivery is not None
        after = self.ordinary(delivery.after, last=True)
        return self._positions.get(after, -1)  # a fork may not have the row

    def position(self, id: RowId) -> int:
        """Return the place of row ID in the order; START is -1."""
        return -1 if id == START else self._positions[id]

    def follows(self, id: RowId, other: RowId) -> bool:
        """Return whether row ID comes right after row OTHER; drafts are followed by nothing."""
        return other >= START and self.position(id) == self.position(other) + 1

    def behind_variants(self, id: RowId) -> RowId:
        """Return the last row of the answers to the prompt that row ID belongs to.

        Each of them goes on, through rows that it was inserted after, from that same prompt.
        """
        at = self.position(id)
        start = at
        while start > 0 and not self._is_prompt(self.order[start]):
            start -= 1
        family = set(self.order[max(0, start) : at + 1])
        last = id
        for other in self.order[at + 1 :]:
            if self._is_prompt(other) or self.rows[other].pred not in family:
                break
            family.add(other)
            if self.rows[other].delivery is None:
                last = other
        return last

    def _is_prompt(self, id: RowId) -> bool:
        row = self.rows[id]
        return row.role is Role.USER and row.delivery is None

    def after(self, position: int) -> list[Row]:
        """Return the rows behind POSITION, in log order."""
        return [self.rows[id] for id in self.order[position + 1 :]]

    def ordinary(self, id: RowId, *, last: bool) -> RowId:
        """Return the row that stands for row ID in a payload built from the buffer, or START.

        An actual row is represented by the last (or first) ordinary row of its round (Q3).
        """
        row = self.rows.get(id)
        if row is None or row.face is not Face.ACTUAL:
            return id
        span = self.rounds.get(row.round, ())
        return START if not span else span[-1] if last else span[0]

    def _note_front(self, row: Row) -> None:
        behind = self.rows.get(row.delivery.before) if row.delivery else None
        if behind is not None:
            key = -behind.round if behind.face is Face.ACTUAL else behind.id
            self._fronts.setdefault(key, []).append(row.id)

    def _note(self, row: Row) -> None:
        self.rows[row.id] = row
        self.reasoned = self.reasoned or row.reasoned
        if row.context is not None:
            self.contexts.add(row.id)
        if row.round:
            faces = self.rounds if row.face is Face.ORDINARY else self.actuals
            faces.setdefault(row.round, []).append(row.id)
        if row.delivery:
            insort(self.deliveries, row.id)
            for state in row.delivery.sections:
                if not state.inactive and row.id > self.known.get(state.name, (START,))[0]:
                    self.known[state.name] = (row.id, state)
            for key in row.delivery.reminders:
                self.fired[key] = max(row.delivery.turn, self.fired.get(key, 0))


def order_rows(rows: Iterable[Row]) -> list[Row]:
    """Return ROWS in log order: each right after its predecessor, the newest insertion first."""
    children: dict[RowId, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.id):
        children.setdefault(row.pred, []).append(row)
    ordered: list[Row] = []
    stack = children.pop(START, [])
    while stack:
        row = stack.pop()
        ordered.append(row)
        stack += children.pop(row.id, [])
    return ordered


def match_rows(
    units: Sequence[Sequence[Digest]], rows: Sequence[Row], sent: Iterable[RowId] = ()
) -> list[list[RowId]]:
    """Return for each message the rows that it stands for, in order; [] where it matches none.

    UNITS are the canonical units of each message, ROWS the rows that an ordinary payload may
    show, in log order; SENT are those that the array sent last had.  A row counts only when all
    its units are found; a message counts as matched only when all its units are (an edit inside a
    message is an edit, rule F11).
    """
    payload = [unit for message in units for unit in message]
    expected = [unit for row in rows for unit in row.parts]
    same = _unify_aliases(rows)
    if same:
        payload = [same.get(unit, unit) for unit in payload]
        expected = [same.get(unit, unit) for unit in expected]
    owner = [n for n, row in enumerate(rows) for _ in row.parts]
    found = align(payload, expected, _places_of(sent, rows))
    hits = Counter(owner[at] for at in found if at >= 0)
    whole = {n for n, count in hits.items() if count == len(rows[n].parts)}
    matches: list[list[RowId]] = []
    at = 0
    for message in units:
        places = found[at : at + len(message)]
        at += len(message)
        owners = [owner[place] if place >= 0 else -1 for place in places]
        complete = bool(owners) and all(n in whole for n in owners)
        matches.append([rows[n].id for n in dict.fromkeys(owners)] if complete else [])
    return matches


def _places_of(sent: Iterable[RowId], rows: Sequence[Row]) -> list[int]:
    """Return the places of the units of the rows SENT among those of ROWS."""
    wanted = set(sent)
    places: list[int] = []
    at = 0
    for row in rows:
        if row.id in wanted:
            places += range(at, at + len(row.parts))
        at += len(row.parts)
    return places


def _unify_aliases(rows: Sequence[Row]) -> dict[Digest, Digest]:
    # A prompt whose transforms changed it comes back later as the buffer holds it (adapter.md Q6).
    # Both forms count as one unit, and with them all forms of prompts that share one: which of
    # several rows is meant is told by its place.
    leader: dict[Digest, Digest] = {}

    def lead(unit: Digest) -> Digest:
        while unit in leader:
            unit = leader[unit]
        return unit

    for row in rows:
        if len(row.alias) == 1 and len(row.parts) == 1:
            alias, part = lead(row.alias[0]), lead(row.parts[0])
            if alias != part:
                leader[part] = alias
    return {unit: lead(unit) for unit in leader}


class _Window(NamedTuple):
    """A stretch of the payload, and the stretch of the log that it may stand for."""

    lo: int
    hi: int
    log_lo: int
    log_hi: int


def align(payload: Sequence[Digest], log: Sequence[Digest], sent: Sequence[int] = ()) -> list[int]:
    """Return for each unit of PAYLOAD its place in LOG, strictly growing, or -1.

    SENT are growing places in LOG: the longest prefix that PAYLOAD has in common with the units
    there comes before all else.  Linear in the common prefix and suffix.  What is left between is
    split at units that are unique on both sides, and the rest compared by a table of at most
    MAX_TABLE cells; beyond that, units
    are matched greedily from the end, which keeps the order and prefers the latest rows.
    """
    found = [-1] * len(payload)
    head = log_head = 0
    while head < len(payload) and head < len(sent) and payload[head] == log[sent[head]]:
        found[head] = sent[head]
        head, log_head = head + 1, sent[head] + 1
    while head < len(payload) and log_head < len(log) and payload[head] == log[log_head]:
        found[head] = log_head
        head, log_head = head + 1, log_head + 1
    end, log_end = len(payload), len(log)
    while end > head and log_end > log_head and payload[end - 1] == log[log_end - 1]:
        end, log_end = end - 1, log_end - 1
        found[end] = log_end
    _align_between(payload, log, found, _Window(head, end, log_head, log_end))
    return found


def _align_between(
    payload: Sequence[Digest], log: Sequence[Digest], found: list[int], window: _Window
) -> None:
    lo, hi, log_lo, log_hi = window
    if lo >= hi or log_lo >= log_hi:
        return
    if (hi - lo) * (log_hi - log_lo) <= MAX_TABLE:
        _align_by_table(payload, log, found, window)
        return
    anchors = _unique_anchors(payload[lo:hi], log[log_lo:log_hi])
    if not anchors:
        _align_from_end(payload, log, found, window)
        return
    for at, log_at in [(lo + a, log_lo + b) for a, b in anchors]:
        found[at] = log_at
        _align_between(payload, log, found, _Window(lo, at, log_lo, log_at))
        lo, log_lo = at + 1, log_at + 1
    _align_between(payload, log, found, _Window(lo, hi, log_lo, log_hi))


def _align_by_table(
    payload: Sequence[Digest], log: Sequence[Digest], found: list[int], window: _Window
) -> None:
    # lengths[i][j]: longest common subsequence of the first i units and the first j rows.  Walking
    # back from the end and taking each equal pair at once gives the latest rows.
    lo, hi, log_lo, log_hi = window
    width = log_hi - log_lo + 1
    lengths = [[0] * width]
    for i in range(lo, hi):
        above, row, unit = lengths[-1], [0] * width, payload[i]
        for j in range(1, width):
            if unit == log[log_lo + j - 1]:
                row[j] = above[j - 1] + 1
            else:
                row[j] = max(above[j], row[j - 1])
        lengths.append(row)
    i, j = hi - lo, log_hi - log_lo
    while i and j:
        if payload[lo + i - 1] == log[log_lo + j - 1]:
            i, j = i - 1, j - 1
            found[lo + i] = log_lo + j
        elif lengths[i - 1][j] >= lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1


def _align_from_end(
    payload: Sequence[Digest], log: Sequence[Digest], found: list[int], window: _Window
) -> None:
    places: dict[Digest, list[int]] = {}
    for j in range(window.log_lo, window.log_hi):
        places.setdefault(log[j], []).append(j)
    limit = window.log_hi
    for i in range(window.hi - 1, window.lo - 1, -1):
        candidates = places.get(payload[i], [])
        at = bisect_left(candidates, limit) - 1
        if at >= 0:
            limit = candidates[at]
            found[i] = limit


def _unique_anchors(payload: Sequence[Digest], log: Sequence[Digest]) -> list[tuple[int, int]]:
    """Return the longest rising chain of pairs whose unit is unique on both sides."""
    ours, theirs = Counter(payload), Counter(log)
    places = {unit: j for j, unit in enumerate(log) if theirs[unit] == 1}
    pairs = [(i, places[u]) for i, u in enumerate(payload) if ours[u] == 1 and u in places]
    tails: list[int] = []  # smallest end of a rising chain of each length
    chain: list[tuple[int, int]] = []  # (index in pairs, its predecessor) per pair
    ends: list[int] = []
    for n, (_, j) in enumerate(pairs):
        at = bisect_left(tails, j)
        chain.append((n, ends[at - 1] if at else -1))
        if at == len(tails):
            tails.append(j)
            ends.append(n)
        else:
            tails[at], ends[at] = j, n
    picked: list[tuple[int, int]] = []
    n = ends[-1] if ends else -1
    while n >= 0:
        picked.append(pairs[n])
        n = chain[n][1]
    return picked[::-1]
