"""Alignment and placement for any log, any edit and any course of a conversation.

Rules A3, B1-B5, D2, D4, D5, G1, G3, L3 and Q1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retention import ledger
from retention.ledger import Log, align
from retention.model import START, Role, Row, RowId
from tests.helpers import Element, Harness, Sending, assistant, call, message, result, section
from tests.helpers import row as build_row

UNITS = st.lists(st.sampled_from("abcyyy"), max_size=12)


# Alignment


def longest_common(payload: list[str], log: list[str]) -> int:
    best = [0] * (len(log) + 1)
    for unit in payload:
        above = best[:]
        for j, other in enumerate(log):
            best[j + 1] = above[j] + 1 if unit == other else max(above[j + 1], best[j])
    return best[-1]


def common_prefix(payload: list[str], log: list[str]) -> int:
    pairs = enumerate(zip(payload, log, strict=False))
    return next((n for n, (ours, theirs) in pairs if ours != theirs), min(len(payload), len(log)))


@pytest.mark.parametrize("table", [0, 20, ledger.MAX_TABLE])
@given(payload=UNITS, log=UNITS)
@settings(max_examples=150, deadline=None)
def test_align_is_a_rising_match_of_equal_units_that_prefers_the_latest(
    table: int, payload: list[str], log: list[str]
):
    """B2, G3: whatever the size of the table; with one that suffices nothing is missed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "MAX_TABLE", table)
        found = align(payload, log)  # type: ignore[arg-type]

    places = [place for place in found if place >= 0]
    assert len(found) == len(payload)
    assert places == sorted(set(places))
    assert all(log[place] == payload[n] for n, place in enumerate(found) if place >= 0)
    head = common_prefix(payload, log)
    assert found[:head] == list(range(head))
    for place, end in list(zip(places, [*places[1:], len(log)], strict=False))[head:]:
        assert log[place] not in log[place + 1 : end], "a later equal row was free"
    if table:
        tiny = len(payload) * len(log) <= table
        assert not tiny or len(places) == longest_common(payload, log)


@given(st.lists(st.integers(min_value=0, max_value=100), max_size=30))
def test_log_has_one_order_however_it_grew(preds: list[int]):
    """G1, L3: a log that was read again is the log that grew."""
    grown = Log()
    rows: list[Row] = []
    for id, pred in enumerate(preds, 1):
        rows.append(build_row(id, str(id), pred % id))
        grown.insert(rows[-1])

    read = Log(reversed(rows))

    assert read.order == grown.order
    assert [read.position(id) for id in read.order] == list(range(len(rows)))
    for one in rows:
        assert one.pred == START or grown.position(one.pred) < grown.position(one.id)


# Conversations

TEXTS = st.sampled_from(["yes", "yes", "yes ", "go", "a", "b"])
BODIES = st.sampled_from(["1", "1", "1", "2", None])


@dataclass(frozen=True)
class Turn:
    """A prompt, its rounds with the body of a section at each dispatch, and how it ended."""

    prompt: str
    bodies: tuple[str | None, ...]
    ending: str  # one of ENDINGS


@dataclass(frozen=True)
class Edit:
    """A change of the buffer at a place that counts modulo its length."""

    kind: str  # one of KINDS
    at: int
    text: str


ENDINGS = ["answer", "answer", "answer", "failure", "hidden", "abandoned", "late", "twice"]
KINDS = ["delete", "insert", "replace", "repeat", "cut", "undo", "undo", "restart"]
EDITS = st.builds(Edit, kind=st.sampled_from(KINDS), at=st.integers(0, 30), text=TEXTS)
RESTARTS = st.just(Edit(kind="restart", at=0, text=""))


def turns(endings: list[str]) -> st.SearchStrategy[Turn]:
    bodies = st.lists(BODIES, min_size=1, max_size=3).map(tuple)
    return st.builds(Turn, prompt=TEXTS, bodies=bodies, ending=st.sampled_from(endings))


SCRIPTS = st.lists(st.one_of(turns(ENDINGS), turns(ENDINGS), EDITS), min_size=2, max_size=12)


Script = list[Turn | Edit]


@dataclass
class Player:
    """Plays a script: the buffer as a list of messages, and what was sent of it."""

    chat: Harness
    buffer: list[Element] = field(default_factory=list)
    snapshots: list[list[Element]] = field(default_factory=list)
    sent: list[Sending] = field(default_factory=list)
    late: list[Sending] = field(default_factory=list)
    count: int = 0

    def play(self, script: Script) -> Self:
        for step in script:
            held, self.late = self.late, []
            if isinstance(step, Turn):
                self.turn(step)
            elif step.kind != "restart":
                self.edit(step)
            for sending in held:
                self.chat.commit(sending)
            if isinstance(step, Edit) and step.kind == "restart":
                self.chat.restart()
            self.snapshots.append(self.buffer.copy())
        return self

    def edit(self, edit: Edit) -> None:
        if edit.kind == "undo" and self.snapshots:
            self.buffer = self.snapshots[edit.at % len(self.snapshots)].copy()
        elif self.buffer:
            at = edit.at % len(self.buffer)
            kept = {
                "insert": [message(edit.text), self.buffer[at]],
                "replace": [message(edit.text)],
                "repeat": [self.buffer[at], self.buffer[at]],
            }
            self.buffer[at if edit.kind != "cut" else 0 : at + 1] = kept.get(edit.kind, [])

    def turn(self, turn: Turn) -> None:
        self.buffer.append(message(turn.prompt))
        sections = [section("env", turn.bodies[0])]
        if turn.ending in {"abandoned", "late"}:
            sending = self.chat.prepare(*self.buffer, sections=sections)
            self.sent.append(sending)
            if turn.ending == "late":
                self.late.append(sending)
            return
        for _ in range(2 if turn.ending == "twice" else 1):
            self.sent.append(self.chat.send(*self.buffer, sections=sections))
        shown: list[Element] = []
        for body in turn.bodies[1:]:
            self.count += 1
            id = f"c{self.count:08}"
            work = [assistant(call(id=id)), result(turn.prompt, ids=[id])]
            self.sent.append(self.chat.loop(*work, sections=[section("env", body)]))
            shown += work
        answer = assistant(f"{turn.prompt}!")
        if turn.ending == "failure":
            self.buffer += shown
        elif turn.ending == "hidden":
            self.chat.end(answer, whole=[answer] if shown else [])
            self.buffer.append(answer)
        else:
            self.chat.end(answer)
            self.buffer += [*shown, answer]


def check_boundaries(chat: Harness, sending: Sending) -> None:
    """Check B1, B3 and D4 of every delivery in the log, by its neighbours alone."""
    own = [item for item in sending.plan.sent.items if item.row]
    rows = [item.row for item in own]
    stands = {
        id: sum(1 for item in sending.plan.sent.items[: at + 1] if item.row)
        for at, id in sending.plan.sent.placed
    }
    for id in chat.log.deliveries:
        delivery = chat.log.rows[id].delivery
        assert delivery is not None
        after = places_of(chat, rows, delivery.after, last=True)
        before = places_of(chat, rows, delivery.before, last=False)
        expected = None
        if after:
            expected = after[-1] + 1
        elif before:
            expected = before[0]
        while expected is not None and own[expected : expected + 1]:
            if not own[expected].message.results:
                break
            expected += 1
        if id in stands:
            assert stands[id] == expected
        elif expected:
            assert own[expected - 1].message.role is Role.ASSISTANT, "dropped at a legal place"


def places_of(chat: Harness, rows: list[RowId], id: RowId, *, last: bool) -> list[int]:
    """Return where ROWS, those of an array, show row ID: itself, or its round in the other form."""
    row = chat.log.rows.get(id)
    if row is None or row.round == 0:
        return [n for n, each in enumerate(rows) if each == id]
    ordinary = chat.log.ordinary(id, last=last)
    replayed = set(chat.log.actuals.get(row.round, ()))
    return [n for n, each in enumerate(rows) if each == ordinary or each in replayed]


PROVIDERS = {
    "anthropic": {},
    "merged": {"shape": "merge"},
    "chat": {"api": "openai", "model": "gpt"},
    "gemma": {"api": "openai", "model": "gemma"},
    "mistral": {"api": "mistral", "model": "large"},
    "bedrock": {"api": "bedrock", "model": "anthropic.claude"},
    "nova": {"api": "bedrock", "model": "nova"},
}


def turn(prompt: str = "yes", *bodies: str, ending: str = "answer") -> Turn:
    return Turn(prompt=prompt, bodies=bodies or ("1",), ending=ending)


# Commits of requests in flight must not put a row in front of one that it follows.
LATE: Script = [
    turn("go", ending="failure"),
    Edit("insert", 0, "yes"),
    turn("yes", ending="late"),
    turn("go", ending="late"),
    Edit("delete", 3, ""),
    turn("yes"),
]
# A delivery moves behind results that were repeated; a dropped branch has an equal answer.
REPEATED: Script = [
    turn("yes", "1", "2", ending="failure"),
    Edit("repeat", 2, ""),
    turn("yes"),
    Edit("undo", 1, ""),
    turn("next"),
]
BRANCH: Script = [
    turn("yes"),
    Edit("delete", 1, ""),
    turn("go"),
    Edit("delete", 0, ""),
    turn("yes", "1", "1", ending="hidden"),
    turn("yes"),
]
ORPHANS: Script = [
    turn("yes", "1", "1"),
    Edit("delete", 1, ""),
    turn("yes"),
    Edit("delete", 2, ""),
    turn("yes"),
]


@pytest.mark.parametrize("provider", PROVIDERS)
@given(SCRIPTS)
@example(LATE)
@example(REPEATED)
@example(BRANCH)
@example(ORPHANS)
@settings(max_examples=40, deadline=None)
def test_delta_sends_what_whole_arrays_send(provider: str, script: Script):
    """Q1, B2: with any edits, abandoned requests, late commits, failures and restarts."""
    deltas = Player(Harness(**PROVIDERS[provider])).play(script)
    wholes = Player(Harness(**PROVIDERS[provider], delta=False)).play(script)

    assert [sending.array for sending in deltas.sent] == [s.array for s in wholes.sent]
    assert [sending.due for sending in deltas.sent] == [s.due for s in wholes.sent]


@given(SCRIPTS)
@example(REPEATED)
@settings(max_examples=100, deadline=None)
def test_restart_changes_nothing(script: Script):
    """A3, L3: what is in memory is a cache."""
    ever = Player(Harness()).play(script)
    again = Player(Harness())
    for step in script:
        again.play([step])
        if not isinstance(step, Turn) or step.ending != "late":
            again.chat.restart()

    final = message("next")
    assert again.chat.send(*again.buffer, final).array == ever.chat.send(*ever.buffer, final).array


@pytest.mark.parametrize("provider", ["anthropic", "chat", "merged"])
@given(SCRIPTS)
@settings(max_examples=60, deadline=None)
def test_deliveries_stand_at_their_boundaries(provider: str, script: Script):
    """B1, B3, D4: a delivery stands while either of its sides does, and nowhere else."""
    player = Player(Harness(**PROVIDERS[provider])).play(script)

    sending = player.chat.prepare(*player.buffer, message("next"))

    check_boundaries(player.chat, sending)
    boundaries: dict[int, list[int]] = {}
    for at, id in sending.plan.sent.placed:
        behind = sum(1 for item in sending.plan.sent.items[: at + 1] if item.row)
        boundaries.setdefault(behind, []).append(id)
    assert all(ids == sorted(ids) for ids in boundaries.values()), "not in the order of commits"


@pytest.mark.parametrize("provider", PROVIDERS)
@given(st.lists(st.one_of(turns(["answer", "failure", "twice"]), RESTARTS), max_size=8))
@settings(max_examples=40, deadline=None)
def test_unedited_conversation_is_told_each_change_once(provider: str, script: Script):
    """D2, B1: nothing unchanged is delivered again, and each array begins with the one before.

    Between two turns the actual messages of the last one give way to the ordinary ones, which
    are the same here.
    """
    if provider in {"mistral", "bedrock", "nova"}:  # a prompt after results or a prompt is refused
        script = [
            dataclasses.replace(s, ending="answer") if isinstance(s, Turn) else s for s in script
        ]
    player = Player(Harness(**PROVIDERS[provider])).play(script)

    told: list[object] = []
    before: list[bytes] = []
    bodies = iter(doubled(script))
    for sending in player.sent:
        body = next(bodies)
        assert bool(sending.due) == (body not in told[-1:])
        told.append(body)
        if not sending.due or provider not in {"merged", "gemma", "bedrock", "nova", "mistral"}:
            assert sending.array[: len(before)] == before
        before = sending.array
        assert player.chat.provider.check(sending.array) == ()


def doubled(script: Script) -> Iterator[str | None]:
    """Yield the body of the section at each dispatch of SCRIPT."""
    for step in script:
        if isinstance(step, Turn):
            yield step.bodies[0]
            if step.ending == "twice":
                yield step.bodies[0]
            yield from step.bodies[1:]
