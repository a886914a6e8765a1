"""What goes out for any conversation and any edit, when providers say more than gptel keeps.

Rules B2, C4, F1-F11, R1-R3, G3, G4 and Q1, over the APIs.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.model import Face
from tests.dialects import Element, looped, plain, rebuilt
from tests.helpers import Harness, Sending, assistant, call, message, section, thinking

# Scripts

Bodies = tuple[str | None, ...]


@dataclass(frozen=True)
class Round:
    """A response with calls: its thinking blocks, whether it says something, the argument of each
    call, and what of it reaches gptel's loop and the backend.
    """

    thoughts: int
    text: bool
    calls: tuple[int, ...]
    streamed: bool
    captured: bool


@dataclass(frozen=True)
class Turn:
    """A prompt, its rounds, and how it ends; `bodies` are those of a section at each dispatch."""

    prompt: bool  # whether it is a text of its own
    rounds: tuple[Round, ...]
    bodies: Bodies
    ending: str  # "answer" | "thought" | "uncaptured" | "failure"


@dataclass(frozen=True)
class Edit:
    """A change of the buffer at a place that counts modulo its length, or of the settings."""

    kind: str  # one of KINDS
    at: int


KINDS = ["delete", "insert", "replace", "repeat", "cut", "undo", "undo", "restart"]
KINDS += ["model", "cache"]
ROUNDS = st.builds(
    Round,
    thoughts=st.sampled_from([0, 1, 1, 2]),
    text=st.booleans(),
    calls=st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple),
    streamed=st.booleans(),
    captured=st.sampled_from([True, True, True, False]),
)


def turns(*endings: str) -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn,
        prompt=st.sampled_from([True, True, False]),
        rounds=st.lists(ROUNDS, max_size=3).map(tuple),
        bodies=st.tuples(*[st.sampled_from(["1", "1", "2", None])] * 4),
        ending=st.sampled_from(endings),
    )


ENDED = turns("answer", "thought", "thought", "uncaptured")
TURNS = turns("answer", "thought", "thought", "uncaptured", "failure")
EDITS = st.builds(Edit, kind=st.sampled_from(KINDS), at=st.integers(0, 30))
RESTARTS = st.just(Edit("restart", 0))
PLAIN = st.lists(st.one_of(ENDED, ENDED, ENDED, RESTARTS), min_size=1, max_size=5)
SCRIPTS = st.lists(st.one_of(TURNS, TURNS, EDITS), min_size=2, max_size=9)

Script = list[Turn | Edit]


# Playing them

WORDS = re.compile(r"\b(?:say|do|ask)\d+\b|\bqyes\b|\bqdone\b")
THOUGHTS = re.compile(r"\bthink\d+\b")
SECTION = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


def words(*texts: str | bytes) -> Counter[str]:
    """Return how often each word of the conversation, but for thoughts, stands in TEXTS."""
    joined = "\n".join(t if isinstance(t, str) else t.decode() for t in texts)
    return Counter(WORDS.findall(SECTION.sub("", joined)))


Piece = tuple[Element, ...]  # what the user sees as one: a prompt, a text, a call with its result


@dataclass
class Player:
    """Plays a script as gptel would: the buffer as a list of pieces, and what was sent of it.

    Each sending stands beside the words that it must hold, and the array that the client made.
    """

    chat: Harness
    buffer: list[Piece] = field(default_factory=list)
    snapshots: list[list[Piece]] = field(default_factory=list)
    sent: list[Sending] = field(default_factory=list)
    made: list[list[bytes]] = field(default_factory=list)
    due: list[Counter[str]] = field(default_factory=list)
    thoughts: dict[str, Counter[str]] = field(default_factory=dict)
    count: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def play(self, script: Script) -> Self:
        for step in script:
            if isinstance(step, Turn):
                self.turn(step)
            else:
                self.edit(step)
            self.snapshots.append(self.buffer.copy())
        return self

    def elements(self) -> list[Element]:
        """Return what gptel builds of the buffer: neighbouring texts of one role are one."""
        elements: list[Element] = []
        for element in itertools.chain.from_iterable(self.buffer):
            last = elements[-1] if elements else element
            texts = [e["content"] for e in (last, element) if isinstance(e["content"], str)]
            if elements and last["role"] == element["role"] and len(texts) == 2:
                elements[-1] = element | {"content": "\n\n".join(texts)}
            else:
                elements.append(element)
        return elements

    # Edits

    def edit(self, edit: Edit) -> None:
        chat = self.chat
        if edit.kind == "restart":
            chat.restart()
        elif edit.kind == "model":
            chat.model = chat.model.removesuffix("-b") if "-b" in chat.model else f"{chat.model}-b"
        elif edit.kind == "cache":
            chat.cache = "" if chat.cache else "t"
        elif edit.kind == "undo" and self.snapshots:
            self.buffer = self.snapshots[edit.at % len(self.snapshots)].copy()
        elif self.buffer:
            at = edit.at % len(self.buffer)
            kept = {
                "insert": lambda piece: [self.prompt(), piece],
                "replace": lambda piece: [self.changed(piece)],
                "repeat": lambda piece: [piece, piece],
            }.get(edit.kind, lambda piece: [])(self.buffer[at])
            self.buffer[at if edit.kind != "cut" else 0 : at + 1] = kept

    def prompt(self, *, own: bool = True) -> Piece:
        return (message(f"ask{next(self.count)}" if own else "qyes"),)

    def changed(self, piece: Piece) -> Piece:
        """Return PIECE after an edit: another text, or another result."""
        text = f"say{next(self.count)}"
        if len(piece) == 1:
            return ({"role": piece[0]["role"], "content": text},)
        block = piece[1]["content"][0] | {"content": text}
        return (piece[0], piece[1] | {"content": [block]})

    # Turns

    def turn(self, turn: Turn) -> None:
        self.buffer.append(self.prompt(own=turn.prompt))
        bodies = iter(turn.bodies)
        elements = self.elements()
        payload = self.chat.encode(elements)
        sending = self.chat.send(*elements, sections=[section("env", next(bodies))])
        self.note(sending, payload, words(*payload))
        for round in turn.rounds:
            self.round(round, next(bodies))
        if turn.ending == "failure":
            return
        said = self.say(turn.ending == "thought", text=True)
        captured = None if turn.ending == "uncaptured" and not self.thinks else [said]
        last = plain(said["content"][-1]["text"])
        self.chat.end(last, response=captured)
        self.buffer.append((last,))

    def round(self, round: Round, body: str | None) -> None:
        # What gptel did not keep of a response that was not captured is gone for good.
        captured = round.captured or self.thinks
        text = round.text and captured
        said = self.say(round.thoughts, text=text, calls=round.calls)
        calls = [block for block in said["content"] if block["type"] == "tool_use"]
        made = ["qdone", *(f"do{next(self.count)}\n" for _ in calls)]
        results = {block["id"]: text for block, text in zip(calls, made, strict=False)}
        work = looped(said, results, streamed=round.streamed, api=self.chat.api)
        span = rebuilt(said, results, backwards=round.streamed)
        held = self.sent[-1].array
        sending = self.chat.loop(
            *work, span=span, sections=[section("env", body)],
            response=[said] if captured else None,
        )  # fmt: skip
        self.note(sending, held + self.chat.encode(work), words(*held, json.dumps([said, results])))
        pieces = iter(span)
        for element in pieces:
            self.buffer.append(
                (element,) if isinstance(element["content"], str) else (element, next(pieces))
            )

    @property
    def thinks(self) -> bool:
        """Whether the provider reasons in each response, which then is captured."""
        return self.chat.api == "deepseek"

    def say(self, thoughts: int, *, text: bool, calls: Iterable[int] = ()) -> Element:
        """Return what the provider says: thoughts, and a text, and CALLS."""
        thoughts = max(thoughts, self.thinks)
        said = [f"say{next(self.count)}"] * text
        thought = [thinking(f"think{n}", f"sig{n}") for n in itertools.islice(self.count, thoughts)]
        uses = [call(id=f"c{next(self.count):08}", n=n, w="qyes") for n in calls]
        return assistant(*thought[:1], *said, *thought[1:], *uses)

    def note(self, sending: Sending, made: list[bytes], due: Counter[str]) -> None:
        self.sent.append(sending)
        self.made.append(made)
        self.due.append(due)


PROFILES: dict[str, dict[str, Any]] = {
    "anthropic": {},
    "bound": {"model": "claude-opus-5-5"},
    "chat": {"api": "openai", "model": "gpt"},
    "deepseek": {"api": "deepseek", "model": "v4"},
    "responses": {"api": "responses", "model": "gpt"},
    "gemini": {"api": "gemini", "model": "pro"},
    "ollama": {"api": "ollama", "model": "qwen"},
    "mistral": {"api": "mistral", "model": "large"},
    "bedrock": {"api": "bedrock", "model": "anthropic.claude"},
    "nova": {"api": "bedrock", "model": "nova"},
}


def played(profile: str, script: Script, **options: Any) -> Player:
    return Player(Harness(**PROFILES[profile] | options)).play(script)


@pytest.mark.parametrize("profile", PROFILES)
@given(PLAIN)
@settings(max_examples=30, deadline=None)
def test_unedited_conversation_repeats_each_request(profile: str, script: Script):
    """R1, R3, F2: in the loop and between turns, restarted or not."""
    before: list[bytes] = []
    for sending in played(profile, script).sent:
        assert sending.array[: len(before)] == before
        before = sending.array


@pytest.mark.parametrize("profile", PROFILES)
@given(SCRIPTS)
@settings(max_examples=30, deadline=None)
def test_what_the_buffer_says_goes_out_once(profile: str, script: Script):
    """F2, F4: nothing that was removed comes back, nothing is lost, nothing is sent twice."""
    player = played(profile, script)
    for sending, due in zip(player.sent, player.due, strict=True):
        assert words(*sending.array) == due


PAIRING = {"call_unanswered", "result_orphan", "call_duplicate", "result_duplicate"}


@pytest.mark.parametrize("profile", PROFILES)
@given(SCRIPTS)
@settings(max_examples=30, deadline=None)
def test_no_rule_is_broken_that_gptel_kept(profile: str, script: Script):
    """F7, R1, D4: calls and results pair up, and no edit breaks a published rule."""
    player = played(profile, script)
    check = player.chat.provider.check
    for sending, made in zip(player.sent, player.made, strict=True):
        broken = {reason.code for reason in check(sending.array)}
        assert not broken & PAIRING
        assert broken <= {reason.code for reason in check(made)}


@pytest.mark.parametrize("profile", PROFILES)
@given(SCRIPTS)
@settings(max_examples=30, deadline=None)
def test_rows_and_deliveries_stand_once(profile: str, script: Script):
    """F2, B4: of actual messages and of deliveries."""
    for sending in played(profile, script).sent:
        items = sending.plan.sent.items
        actual = [item.row for item in items if item.row and item.face is Face.ACTUAL]
        assert len(set(actual)) == len(actual)
        assert len(set(sending.placed)) == len(sending.placed)


@pytest.mark.parametrize("profile", PROFILES)
@given(SCRIPTS)
@settings(max_examples=30, deadline=None)
def test_delta_sends_what_a_whole_array_sends(profile: str, script: Script):
    """Q1, B2: whatever was said and edited."""
    deltas, wholes = played(profile, script), played(profile, script, delta=False)

    assert [s.array for s in deltas.sent] == [s.array for s in wholes.sent]
