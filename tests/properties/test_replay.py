"""What goes out for any conversation and any edit, where providers say more than gptel keeps.

A script is played as gptel plays it: the buffer holds texts and calls with results, the loop
repeats a part of what the provider said, and a request is built from the buffer anew.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retention.digest import Digest
from retention.ledger import Log
from retention.model import Face, Role
from retention.providers import PROVIDERS
from retention.rebuilding import rebuild_array
from retention.request import NO_EDITS, NO_FRAGMENTS
from retention.store import Store
from tests.dialects import Element, looped, plain, rebuilt, translate
from tests.helpers import (
    Adapter,
    Harness,
    Prepared,
    Sending,
    assistant,
    call,
    message,
    section,
    thinking,
)

EXAMPLES = 20

# Scripts


@dataclass(frozen=True)
class Round:
    """A response with calls: its thinking blocks, whether it says something, the argument of each
    call, what of it reaches gptel's loop and the backend, and whether the user steers behind it.
    """

    thoughts: int
    text: bool
    calls: tuple[int, ...]
    streamed: bool
    captured: bool
    steered: bool


@dataclass(frozen=True)
class Turn:
    """A prompt, its rounds, and how it ends; `bodies` are those of a section at each dispatch."""

    prompt: str  # one of PROMPTS
    rounds: tuple[Round, ...]
    bodies: tuple[str | None, ...]
    ending: str  # one of ENDINGS


@dataclass(frozen=True)
class Edit:
    """A change of the buffer at a place that counts modulo its length, or of the settings."""

    kind: str  # one of KINDS or SETTINGS
    at: int


Script = list[Turn | Edit]

PROMPTS = ["own", "own", "same", "preset", "context"]
ENDED = ["answer", "thought", "thought", "uncaptured"]
ENDINGS = [*ENDED, "failure", "hidden", "abandoned", "late", "twice"]
KINDS = ["delete", "insert", "replace", "repeat", "cut", "undo", "undo"]
SETTINGS = ["restart", "model", "cache", "step", "api"]
ROUNDS = st.builds(
    Round,
    thoughts=st.sampled_from([0, 1, 1, 2]),
    text=st.booleans(),
    calls=st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple),
    streamed=st.booleans(),
    captured=st.sampled_from([True, True, True, False]),
    steered=st.sampled_from([False, False, False, True]),
)


def turns(endings: list[str], prompts: list[str]) -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn,
        prompt=st.sampled_from(prompts),
        rounds=st.lists(ROUNDS, max_size=3).map(tuple),
        bodies=st.tuples(*[st.sampled_from(["1", "1", "2", None])] * 4),
        ending=st.sampled_from(endings),
    )


EDITS = st.builds(Edit, kind=st.sampled_from(KINDS), at=st.integers(0, 30))
CHANGES = st.builds(Edit, kind=st.sampled_from(SETTINGS), at=st.integers(0, 3))
RESTARTS = st.just(Edit("restart", 0))
PLAIN = st.lists(st.one_of(*[turns(ENDED, PROMPTS)] * 4, RESTARTS), min_size=1, max_size=5)
SCRIPTS = st.lists(
    st.one_of(turns(ENDED, PROMPTS), turns(ENDINGS, PROMPTS), EDITS, EDITS, CHANGES),
    min_size=2,
    max_size=9,
)


# Playing them

WORDS = re.compile(r"\b(?:say|do|ask)\d+\b|\bqsame\b|\bqdone\b")
THOUGHTS = re.compile(r"\bthink\d+\b")
DELIVERY = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
PAIRING = {"call_unanswered", "result_orphan", "call_duplicate", "result_duplicate"}


def words(*texts: str | bytes) -> Counter[str]:
    """Return how often each word of the conversation stands in TEXTS, but for thoughts."""
    joined = "\n".join(text if isinstance(text, str) else text.decode() for text in texts)
    return Counter(WORDS.findall(DELIVERY.sub("", joined).replace(r"\n", " ")))


Piece = tuple[Element, ...]  # what the user sees as one: a prompt, a text, a call with its result


@dataclass
class Player:
    """Plays a script, and checks all that goes out.

    `buffer` is what the user sees, `sent` what was sent of it; `thoughts` are the words of the
    response and the results that belong to each thought.
    """

    chat: Harness
    buffer: list[Piece] = field(default_factory=list)
    snapshots: list[list[Piece]] = field(default_factory=list)
    sent: list[Sending] = field(default_factory=list)
    late: list[Sending] = field(default_factory=list)
    thoughts: dict[str, Counter[str]] = field(default_factory=dict)
    signatures: dict[str, tuple[str, list[Any], str]] = field(default_factory=dict)
    count: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    copies: int = 1  # of each thought in a message that has it

    def play(self, script: Script) -> Self:
        for step in script:
            held, self.late = self.late, []
            if isinstance(step, Turn):
                self.turn(step)
            elif step.kind not in SETTINGS:
                self.edit(step)
            for sending in held:
                self.chat.commit(sending)
            if isinstance(step, Edit) and step.kind in SETTINGS:
                self.change(step)
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

    # Edits and settings

    def edit(self, edit: Edit) -> None:
        if edit.kind == "undo" and self.snapshots:
            self.buffer = self.snapshots[edit.at % len(self.snapshots)].copy()
        elif self.buffer:
            at = edit.at % len(self.buffer)
            piece = self.buffer[at]
            kept = {
                "insert": [self.ask("own"), piece],
                "replace": [self.changed(piece)],
                "repeat": [piece, piece],
            }.get(edit.kind, [])
            self.buffer[0 if edit.kind == "cut" else at : at + 1] = kept

    def ask(self, kind: str) -> Piece:
        mark = "@p " if kind == "preset" else ""
        return (message(f"{mark}ask{next(self.count)}" if kind != "same" else "qsame"),)

    def changed(self, piece: Piece) -> Piece:
        """Return PIECE after an edit: another text, or another result."""
        text = f"say{next(self.count)}"
        if len(piece) == 1:
            return ({"role": piece[0]["role"], "content": text},)
        block = piece[1]["content"][0] | {"content": text}
        return (piece[0], piece[1] | {"content": [block]})

    def change(self, edit: Edit) -> None:
        chat = self.chat
        if edit.kind == "restart":
            chat.restart()
        elif edit.kind == "model":
            chat.model = chat.model.removesuffix("-b") if "-b" in chat.model else f"{chat.model}-b"
        elif edit.kind == "cache":
            chat.cache = "" if chat.cache else "t"
        elif edit.kind == "api":
            chat.api = {"anthropic": "openai", "openai": "anthropic"}.get(chat.api, chat.api)
        else:
            chat.step = edit.at

    # Turns

    def turn(self, turn: Turn) -> None:
        self.buffer.append(self.ask(turn.prompt))
        if turn.ending in {"abandoned", "late"}:
            sending = self.prepare(turn.prompt, turn.bodies[0])
            self.late += [sending] if turn.ending == "late" else []
            return
        for _ in range(2 if turn.ending == "twice" else 1):
            self.chat.commit(self.prepare(turn.prompt, turn.bodies[0]))
        start = len(self.buffer)
        for round, body in zip(turn.rounds, turn.bodies[1:], strict=False):
            if self.accepted():
                self.round(round, body)
        if turn.ending != "failure" and self.accepted():
            self.end(turn.ending, start)

    def prepare(self, kind: str, body: str | None) -> Sending:
        *history, prompt = self.elements()
        text = prompt["content"]
        if kind == "preset":
            text = "".join(text.rsplit("@p ", 1))
        elif kind == "context":
            text = f"about{next(self.count) % 3}\n\n{text}"
        content = text
        if self.chat.cache and self.chat.api == "anthropic":  # as gptel asks for it
            mark = {"cache_control": {"type": "ephemeral"}}
            content = [{"type": "text", "text": text} | mark]
        elements = [*history, prompt | {"content": content}]
        sending = self.chat.prepare(*elements, sections=[section("env", body)], prompt=prompt)
        made = self.chat.encode(elements)
        self.check(sending, made, words(*made))
        return sending

    def round(self, round: Round, body: str | None) -> None:
        captured = (round.captured or self.thinks) and self.chat.step < NO_FRAGMENTS
        # What gptel did not keep of a response that was not captured is gone for good.
        said = self.say(round.thoughts, text=round.text and captured, calls=round.calls)
        calls = [block for block in said["content"] if block["type"] == "tool_use"]
        made = ["qdone", *(f"do{next(self.count)}\n" for _ in calls)]
        results = {block["id"]: text for block, text in zip(calls, made, strict=False)}
        self.note(said, results)
        work = self.work(said, results, round.streamed)
        span = rebuilt(said, results, backwards=round.streamed)
        steer = [*self.ask("own")] if round.steered and self.steers else []
        held = self.sent[-1].array
        sending = self.chat.loop(
            *work, *steer, span=span + steer, sections=[section("env", body)],
            response=self.own(said) if captured else None,
        )  # fmt: skip
        self.check(
            sending, held + self.chat.encode([*work, *steer]),
            words(*held, json.dumps([said, results, steer])),
        )  # fmt: skip
        pieces = iter(span)
        for element in pieces:
            whole = isinstance(element["content"], str)
            self.buffer.append((element,) if whole else (element, next(pieces)))
        self.buffer += [(element,) for element in steer]

    def end(self, ending: str, start: int) -> None:
        said = self.say(ending == "thought", text=True)
        self.note(said, {})
        captured = None if ending == "uncaptured" and not self.thinks else self.own(said)
        last = plain(said["content"][-1]["text"])
        texts = [p[0]["content"] for p in self.buffer[start:] if p[0]["role"] == "assistant"]
        if ending == "hidden" and len(self.buffer) > start:
            shown = [text for text in texts if isinstance(text, str)]
            whole = plain("\n\n".join([*shown, last["content"]]))
            self.chat.end(last, whole=[whole], response=captured)
            self.buffer[start:] = [(whole,)]
        else:
            self.chat.end(last, response=captured)
            self.buffer.append((last,))

    # The provider

    @property
    def thinks(self) -> bool:
        """Whether the provider reasons in each response, which then is captured."""
        return self.chat.api == "deepseek"

    @property
    def steers(self) -> bool:
        """Whether the API takes a message of the user behind results."""
        return self.chat.api not in {"mistral", "bedrock"}

    def accepted(self) -> bool:
        """Whether the provider answers the last request."""
        return True

    def own(self, said: Element) -> list[Element] | list[bytes]:
        """Return the provider's own messages of what it SAID."""
        return [said]

    def work(self, said: Element, results: dict[str, str], streamed: bool) -> list[Element]:
        """Return what gptel's loop adds of what the provider SAID, with RESULTS."""
        return looped(said, results, streamed=streamed, api=self.chat.api)

    def say(self, thoughts: int, *, text: bool, calls: Iterable[int] = ()) -> Element:
        """Return what the provider says: thoughts, and a text, and CALLS."""
        thoughts = max(thoughts, self.thinks)
        said = [f"say{next(self.count)}"] * text
        thought = [thinking(f"think{n}", f"sig{n}") for n in itertools.islice(self.count, thoughts)]
        uses = [call(id=f"c{next(self.count):08}", n=n, w="qsame") for n in calls]
        return assistant(*thought[:1], *said, *thought[1:], *uses)

    def note(self, said: Element, results: dict[str, str]) -> None:
        """Remember which words and what prefix the thoughts in SAID belong to."""
        found = words(json.dumps([said, results]))
        self.thoughts |= dict.fromkeys(THOUGHTS.findall(json.dumps(said)), found)
        if self.signs:
            array = [json.loads(raw) for raw in self.sent[-1].array]
            for prefix, last, block in walk(array + translate(said, self.chat.api), len(array)):
                self.signatures[block] = (self.chat.model, prefix, last)

    @property
    def signs(self) -> bool:
        return self.chat.provider.bound(self.chat.identity)

    # What must hold

    def check(self, sending: Sending, made: list[bytes], due: Counter[str]) -> None:
        """Check what goes out for MADE, the array as gptel made it, which must say DUE."""
        chat, array = self.chat, sending.array
        self.sent.append(sending)
        assert words(*array) == due, "something came back, got lost or went out twice"
        thoughts = Counter(THOUGHTS.findall(b"\n".join(array).decode()))
        assert all(n <= self.copies and self.thoughts[word] <= due for word, n in thoughts.items())
        items = sending.plan.sent.items
        rows = [item.row for item in items if item.row and item.face is Face.ACTUAL]
        assert len(set(rows)) == len(rows)
        assert len(set(sending.placed)) == len(sending.placed)
        broken = {reason.code for reason in chat.provider.check(array)}
        assert broken <= {reason.code for reason in chat.provider.check(made)}
        if chat.step < NO_EDITS:
            assert not broken & PAIRING
            speaks = [item.message.role is Role.ASSISTANT for item in items]
            assert chat.provider.join is None or (True, True) not in itertools.pairwise(speaks)
        if self.signs:
            self.verify(array)

    def verify(self, array: list[bytes]) -> None:
        """Check each block of reasoning as its provider does (C4, providers.md 1.4).

        It is valid behind the very prefix that it was made for, and behind the block that stood in
        front of it then, or behind none.
        """
        for prefix, last, block in walk([json.loads(raw) for raw in array]):
            model, made, before = self.signatures[block]
            assert (model, prefix) == (self.chat.model, made)
            assert last in {"", before}


def walk(messages: list[Element], since: int = 0) -> Iterator[tuple[list[Any], str, str]]:
    """Yield (what stands in front, the block before, the signature) of the reasoning SINCE there.

    What stands in front is without reasoning; neighbours of one role are one message.
    """
    prefix: list[Any] = []
    last = ""
    for n, each in enumerate(messages):
        content = each["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            signature = signature_of(block)
            if signature:
                if n >= since:
                    yield prefix.copy(), last, signature
                last = signature
            elif "cachePoint" not in block:
                kept = {key: value for key, value in block.items() if key != "cache_control"}
                prefix.append((each["role"], kept))


def signature_of(block: Element) -> str:
    inner = block.get("reasoningContent", {}).get("reasoningText", block)
    return str(inner.get("signature", ""))


PROFILES: dict[str, dict[str, Any]] = {
    "anthropic": {},
    "bound": {"model": "claude-opus-5-5"},
    "chat": {"api": "openai", "model": "gpt"},
    "deepseek": {"api": "deepseek", "model": "v4"},
    "responses": {"api": "responses", "model": "gpt"},
    "gemini": {"api": "gemini", "model": "pro"},
    "ollama": {"api": "ollama", "model": "qwen"},
    "mistral": {"api": "mistral", "model": "large"},
    "bedrock": {"api": "bedrock", "model": "anthropic.claude-sonnet-5-5"},
    "nova": {"api": "bedrock", "model": "nova"},
}


def played(profile: str, script: Script, **options: Any) -> Player:
    return Player(Harness(**PROFILES[profile] | options)).play(script)


@pytest.mark.parametrize("profile", PROFILES)
@given(PLAIN)
@settings(max_examples=EXAMPLES, deadline=None)
def test_unedited_conversation_repeats_each_request(profile: str, script: Script):
    """R1, R3, F2, S16: in the loop and between turns, restarted or not."""
    before: list[bytes] = []
    for sending in played(profile, script).sent:
        assert sending.array[: len(before)] == before
        before = sending.array


QUIET = Turn("own", (), ("1",) * 4, "answer")
UNCAPTURED = Turn("own", (Round(0, False, (0,), True, True, False),), ("1",) * 4, "answer")


@pytest.mark.parametrize("profile", PROFILES)
@given(SCRIPTS)
@example([QUIET, Edit("step", NO_EDITS), UNCAPTURED, Edit("step", 0), QUIET])
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_goes_out_is_what_the_buffer_says_and_valid(profile: str, script: Script):
    """B2, C4, F2, F4, F7, G4, Q1, R1, Z6: the player checks it; a delta does as a whole array."""
    deltas, wholes = played(profile, script), played(profile, script, delta=False)

    assert [s.array for s in deltas.sent] == [s.array for s in wholes.sent]


@given(PLAIN)
@settings(max_examples=EXAMPLES, deadline=None)
def test_bound_reasoning_of_an_unedited_conversation_is_kept(script: Script):
    """C4, F5: all of it, where all was captured."""
    player = played("bound", [whole(step) for step in script])
    final = player.chat.prepare(*player.elements(), message("next"))
    kept = [signature for *_, signature in walk([json.loads(raw) for raw in final.array])]
    assert kept == list(player.signatures)


class Wired(Adapter):
    """A client of the service with the settings of a client of the core."""

    def __init__(self, store: Store, api: str = "anthropic", model: str = "claude-test") -> None:
        super().__init__(store, api=api, model=model)
        self.model, self.cache, self.step = model, "", 0
        self.logged: dict[int, list[Digest]] = {}  # what each request sent, without cache marks

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in {"api", "model", "cache"}:
            vars(self).get("identity", {})[name] = value

    def prepare(self, *elements: Element, **options: Any) -> Prepared:
        return super().prepare(*elements, head="{}", **options)

    def commit(self, prepared: Prepared) -> Prepared:
        parse = PROVIDERS[self.api].parse
        super().commit(prepared)
        self.logged[prepared.seq] = [parse(raw).exact for raw in prepared.array]
        return prepared


class Watched(Player):
    """A player that checks nothing but keeps what was sent."""

    signs = False  # type: ignore[assignment]

    def check(self, sending: Any, made: list[bytes], due: Counter[str]) -> None:
        self.sent.append(sending)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(Path(tmp_path_factory.mktemp("replay")) / "store")


@pytest.mark.parametrize("profile", ["anthropic", "chat", "responses", "gemini", "bedrock"])
@given(SCRIPTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_service_sends_what_the_core_plans(store: Store, profile: str, script: Script):
    """L3, Q1, R1: over the wire, from the disk, with bodies of responses, and restarted.

    C1: and each request can be rebuilt from what is stored.
    """
    script = [step for step in script if not isinstance(step, Edit) or step.kind != "step"]
    core = Watched(Harness(**PROFILES[profile])).play(script)
    chat = Wired(store, **PROFILES[profile])
    real = Watched(chat).play(script)  # type: ignore[arg-type]

    assert [sending.array for sending in real.sent] == [s.array for s in core.sent]
    with store.read() as reader:  # left before anything fails: a reader takes one of few places
        log = Log(reader.rows(chat.id))
        arrays = {seq: rebuild_array(reader, log, chat.id, seq) for seq in chat.logged}
    rebuilt = {seq: [item.message.exact for item in items] for seq, items in arrays.items()}
    assert rebuilt == chat.logged


def whole(step: Turn | Edit) -> Turn | Edit:
    """Return STEP with each response captured."""
    if isinstance(step, Edit):
        return step
    rounds = tuple(dataclasses.replace(round, captured=True) for round in step.rounds)
    return dataclasses.replace(step, rounds=rounds, ending="thought")
