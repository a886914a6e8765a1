"""Whatever happens to conversations, nothing comes back and nothing in use goes (L1, L2, L6, Z2).

A script is played over a real store: conversations that talk, are edited, forked, retired, undone
and forgotten, and collections in between.  Every text is a word of its own, so that each request
and the store can be searched for what must not be there.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.store import Reader, Store
from retention.store.records import references
from tests.dialects import Element, looped, plain, rebuilt
from tests.helpers import Adapter, assistant, call, message, section, thinking
from tests.properties.test_replay import DELIVERY
from tests.store.build import objects

EXAMPLES = 100
WORD = re.compile(r"(?:ask|say|do|think|body|sum)\d+x")
SAID = re.compile(r"(?:ask|say|do|sum)\d+x|yes")
LATER = 2.0  # seconds: behind the clock of every service here


@dataclass(frozen=True)
class Step:
    """One step for the conversation `chat`, a number modulo those that live, at a place `at`."""

    kind: str
    chat: int
    at: int


TURNS = ["turn", "turn", "same", "tool", "tool"]
KINDS = [*TURNS, "delete", "undo", "retire", "retire", "fork", "forget", "gc", "restart"]
STEPS = st.builds(Step, kind=st.sampled_from(KINDS), chat=st.integers(0, 3), at=st.integers(0, 20))
Piece = tuple[Element, ...]  # what stands together: a prompt, an answer, a call with its result


def words(pattern: re.Pattern[str], *texts: bytes | str) -> Counter[str]:
    joined = "\n".join(text.decode() if isinstance(text, bytes) else text for text in texts)
    return Counter(pattern.findall(joined))


@dataclass
class Retired:
    """The words of a retired history, and of what was delivered in it.

    `used` if any was sent since, or if it ends inside a response.
    """

    said: set[str]
    delivered: set[str]
    used: bool = False


@dataclass
class Chat:
    """A conversation: the buffer, how it was before, all words that it ever had."""

    adapter: Adapter
    buffer: list[Piece] = field(default_factory=list)
    before: list[list[Piece]] = field(default_factory=list)
    had: set[str] = field(default_factory=set)
    bodies: dict[str, str] = field(default_factory=dict)  # delivered, by what was said before it
    retired: list[Retired] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)  # words that a fork or a base has too
    sent: set[str] = field(default_factory=set)  # words of the last request

    def elements(self) -> list[Element]:
        return [element for piece in self.buffer for element in piece]


@dataclass
class Player:
    """Plays a script on a store of its own, and checks every request and every collection."""

    store: Store
    live: list[Chat] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)  # words of conversations that were forgotten
    count: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    body: str = "body0x"
    opening: set[str] = field(default_factory=set)  # words in front of a call

    def play(self, script: Iterable[Step]) -> None:
        self.live.append(Chat(Adapter(self.store)))
        for step in script:
            if not self.live:
                self.live.append(Chat(Adapter(self.store)))
            chat = self.live[step.chat % len(self.live)]
            chat.before.append(chat.buffer.copy())
            getattr(self, f"do_{step.kind}", self.do_turn)(chat, step)
        self.do_gc(None, Step("gc", 0, 1))

    def word(self, kind: str) -> str:
        return f"{kind}{next(self.count)}x"

    # Steps

    def do_turn(self, chat: Chat, step: Step) -> None:
        if step.at % 3 == 0:
            self.body = self.word("body")
        prompt = message("yes" if step.kind == "same" else self.word("ask"))
        self.send(chat, prompt)
        if step.kind == "tool":
            self.use_tool(chat)
        answer = plain(self.word("say"))
        chat.adapter.end(answer, response=[assistant(answer["content"])])
        self.add(chat, (answer,))

    def send(self, chat: Chat, prompt: Element) -> None:
        chat.buffer.append((prompt,))
        sent = chat.adapter.send(*chat.elements(), sections=[section("env", self.body)])
        self.check(chat, sent.array, words(SAID, str(chat.elements())))
        self.add(chat, ())

    def use_tool(self, chat: Chat) -> None:
        id = f"c{next(self.count)}"
        said = assistant(thinking(self.word("think")), self.word("say"), call(id=id))
        results = {id: self.word("do")}
        self.opening |= set(words(SAID, str(said)))
        span = rebuilt(said, results, backwards=False)
        held = words(SAID, *map(undelivered, chat.adapter.sent[1]))
        sent = chat.adapter.loop(
            *looped(said, results, streamed=False, api="anthropic"), span=span, response=[said],
            sections=[section("env", self.body)],
        )  # fmt: skip
        self.check(chat, sent.array, held + words(SAID, str([said, results])))
        self.add(chat, *((element,) for element in span[:-2]), tuple(span[-2:]))
        chat.had |= set(words(WORD, str(said)))

    def add(self, chat: Chat, *pieces: Piece) -> None:
        chat.buffer += [piece for piece in pieces if piece]
        chat.had |= set(words(WORD, str(chat.buffer))) | {self.body}

    def do_delete(self, chat: Chat, step: Step) -> None:
        if chat.buffer:
            del chat.buffer[step.at % len(chat.buffer)]

    def do_undo(self, chat: Chat, step: Step) -> None:
        chat.buffer = chat.before[step.at % len(chat.before)].copy()

    def do_retire(self, chat: Chat, step: Step) -> None:
        ends = [
            n + 1 for n, piece in enumerate(chat.buffer)
            if len(piece) == 1 and piece[0]["role"] == "assistant"
        ]  # fmt: skip
        if not ends:
            return
        end = ends[step.at % len(ends)]
        history = [element for piece in chat.buffer[:end] for element in piece]
        params = {
            "id": chat.adapter.id, "array": "messages", "identity": chat.adapter.identity,
            "before": chat.adapter.json(history),
        }  # fmt: skip
        offered = chat.adapter.call("conversation/retire", **params)
        assert words(SAID, offered.text) >= words(SAID, str(history)) - Counter({"yes": 99})
        if not offered.row:
            return
        chat.adapter.call("conversation/retire", **params, confirm=True)
        said = set(words(WORD, str(history)))
        spoken = spoken_in(str(history))
        delivered = {body for body, place in chat.bodies.items() if place in spoken}
        inside = not self.opening.isdisjoint(words(SAID, str(chat.buffer[end - 1])))
        chat.retired.append(Retired(said=said, delivered=delivered, used=inside))
        chat.buffer[:end] = [(message(self.word("sum")),), (plain(self.word("say")),)]
        self.body = self.word("body")

    def do_fork(self, chat: Chat, step: Step) -> None:
        made = chat.adapter.call("conversation/fork", id=chat.adapter.id)
        chat.shared |= chat.had
        fork = Chat(
            Adapter(self.store, made.id), buffer=chat.buffer.copy(), before=chat.before.copy(),
            had=chat.had.copy(), bodies=chat.bodies.copy(), retired=chat.retired.copy(),
            shared=chat.shared.copy(), sent=chat.sent.copy(),
        )  # fmt: skip
        self.live.append(fork)

    def do_forget(self, chat: Chat, step: Step) -> None:
        chat.adapter.call("conversation/forget", id=chat.adapter.id)
        self.live.remove(chat)
        self.gone |= chat.had
        self.body = self.word("body")

    def do_restart(self, chat: Chat, step: Step) -> None:
        chat.adapter.restart()

    def do_gc(self, _: Chat | None, step: Step) -> None:
        before = step.at % 2 * LATER  # half of the time retired history goes
        told = self.store.collect(retired_before=before, dry_run=True)
        held = objects(self.store)
        freed = self.store.collect(retired_before=before)
        left = objects(self.store)
        assert told == freed
        assert sum(number for number, _ in freed.objects.values()) == len(held - left)
        self.check_store(collected=bool(before))
        assert not self.store.collect(retired_before=before).objects

    # What must hold

    def check(self, chat: Chat, array: list[bytes], due: Counter[str]) -> None:
        """Check a request: it says what it must, and nothing of what was retired or forgotten."""
        text = b"\n".join(array).decode()
        said = words(SAID, undelivered(text))
        assert said == due, "something came back, got lost or went out twice"
        found_all = set(words(WORD, text))
        found = found_all - set(due)
        assert not found & (self.gone - chat.had), "something that was forgotten"
        for each in chat.retired:
            if not each.said.isdisjoint(said):
                each.used = True  # it came back, and its deliveries with it: no longer retired
            elif not each.used:
                assert not found & each.delivered, "a delivery of retired history"
        chat.sent = set(due) & found_all
        spoken: list[str] = []
        for raw in array:
            element = raw.decode().replace(r"\n", "\n")
            spoken += SAID.findall(undelivered(element))
            for body in words(WORD, *DELIVERY.findall(element)):
                chat.bodies.setdefault(body, " ".join(spoken[-2:]))

    def check_store(self, *, collected: bool) -> None:
        """Check what is stored: whole, all of it in use, and nothing that must be gone."""
        assert self.store.check() == ()
        with self.store.read() as reader:
            named = {name for record in records(reader) for name in references(record)}
            assert set(reader.find_objects("", limit=1_000_000)) <= named
        found = set(words(WORD, *(data for data in objects(self.store) if is_text(data))))
        live = set().union(*(chat.had for chat in self.live))
        assert not found & (self.gone - live), "something that was forgotten"
        for chat in self.live:
            assert chat.retired or chat.sent <= found, "something in use went"
        if collected:
            for chat in self.live:
                others = set().union(*(other.had for other in self.live if other is not chat))
                for each in chat.retired:
                    left = found & each.said - chat.shared - others
                    assert each.used or not left, "a collected text"


def spoken_in(text: str) -> str:
    """Return what is said in TEXT, in order: a place in it is known by the two words before it."""
    return " ".join(SAID.findall(text))


def undelivered(text: bytes | str) -> str:
    """Return TEXT without deliveries in it."""
    decoded = text.decode() if isinstance(text, bytes) else text
    return DELIVERY.sub("", decoded)


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def records(reader: Reader) -> Iterator[Any]:
    """Yield every record of the store."""
    for conversation in reader.conversations():
        yield conversation
        yield from reader.rows(conversation.id)
        yield from reader.requests(conversation.id, 1_000_000)
        yield from reader.outputs(conversation.id, 1_000_000)


@given(st.lists(STEPS, min_size=3, max_size=14))
@settings(max_examples=EXAMPLES, deadline=None)
def test_nothing_comes_back_and_nothing_in_use_goes(
    tmp_path_factory: pytest.TempPathFactory, script: list[Step]
):
    """L1, L2, L6, Z2."""
    store = Store.open(Path(tmp_path_factory.mktemp("lifecycle")) / "store")
    try:
        Player(store).play(script)
    finally:
        store.close()
