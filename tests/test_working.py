"""Learning in the background: by itself, out of the way, and again after a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retention import learning, working
from retention.errors import StoreError
from retention.index import Index
from retention.store import Store
from retention.store.tables import OBJECTS
from retention.working import Worker
from tests.helpers import Adapter, assistant, message

SOON = 10.0  # seconds that a step may take on a loaded machine


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "WAIT", 0.05)


def say(chat: Adapter, text: str) -> None:
    chat.send(message(text))
    chat.end(assistant("noted"))


def until(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def found(chat: Adapter, words: str) -> bool:
    return bool(chat.service.index().search(words))


def test_what_an_earlier_process_left_is_learned(store: Store, chat: Adapter) -> None:
    say(chat, "the numbat escaped")
    worker = Worker(store, chat.service.index, lambda: 0.0)
    worker.start()

    assert until(lambda: found(chat, "numbat"))
    worker.stop()


def test_a_turn_is_learned_when_it_ends(store: Store, chat: Adapter) -> None:
    worker = Worker(store, chat.service.index, lambda: 0.0)
    chat.service.notify = worker.notify
    worker.start()
    say(chat, "the numbat escaped")

    assert until(lambda: found(chat, "numbat"))
    assert until(lambda: learning.waiting(store) == [])
    worker.stop()


def test_vectors_are_made_in_the_background(store: Store, chat: Adapter) -> None:
    if not chat.service.index().dense:
        pytest.skip("the extra `dense` is not installed")
    say(chat, "the numbat escaped")
    worker = Worker(store, chat.service.index, lambda: 0.0)
    worker.start()

    counts = chat.service.index().counts
    assert until(lambda: counts().chunks and not counts().unembedded)
    worker.stop()


def test_nothing_is_learned_while_requests_are_answered(store: Store, chat: Adapter) -> None:
    """A step begins only when nothing was asked for a moment."""
    say(chat, "the numbat escaped")
    busy = True
    worker = Worker(store, chat.service.index, lambda: time.monotonic() if busy else 0.0)
    worker.start()
    time.sleep(0.5)
    assert learning.waiting(store) == [chat.id]
    busy = False

    assert until(lambda: learning.waiting(store) == [])
    worker.stop()


def test_requests_that_keep_coming_do_not_keep_it_for_ever(
    store: Store, chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "PATIENCE", 0.1)
    say(chat, "the numbat escaped")
    worker = Worker(store, chat.service.index, time.monotonic)
    worker.start()

    assert until(lambda: learning.waiting(store) == [])
    worker.stop()


def test_a_failure_is_not_the_end(store: Store, chat: Adapter) -> None:
    """An index that cannot be opened now may be later."""
    say(chat, "the numbat escaped")
    attempts: list[int] = []

    def open_index() -> Index:
        attempts.append(1)
        if len(attempts) < 3:
            raise StoreError("no space")
        return chat.service.index()

    worker = Worker(store, open_index, lambda: 0.0)
    worker.start()

    assert until(lambda: found(chat, "numbat"))
    assert len(attempts) == 3
    worker.stop()


@pytest.fixture
def worker(store: Store, chat: Adapter) -> Iterator[Worker]:
    made = Worker(store, chat.service.index, lambda: 0.0)
    chat.service.notify = made.notify
    made.start()
    yield made
    made.stop()


@pytest.mark.usefixtures("worker")
def test_an_index_that_breaks_while_it_is_used_is_made_anew(store: Store, chat: Adapter) -> None:
    """V9: in the same process, as soon as a search finds that out."""
    say(chat, "the numbat escaped")
    assert until(lambda: found(chat, "numbat"))
    for file in (store.path / "index").glob("index.sqlite*"):
        file.write_bytes(b"torn" * 1_000)
    lost = chat.call("evidence/search", query="numbat")

    assert (lost.hits, "0 of 1 sources" in lost.note) == ((), True)
    assert until(lambda: found(chat, "numbat"))


@pytest.mark.usefixtures("worker")
def test_what_could_not_be_indexed_is_indexed_later(
    chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V9: a moment without space costs no source."""
    real, failed = Index.update, threading.Event()

    def update(*arguments: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise StoreError("no space")
        real(*arguments)

    monkeypatch.setattr(Index, "update", update)
    say(chat, "the numbat escaped")

    assert until(lambda: found(chat, "numbat"))
    assert failed.is_set()


@pytest.mark.usefixtures("worker")
def test_a_damaged_output_keeps_nothing_else_from_being_learned(
    store: Store, chat: Adapter
) -> None:
    saved = chat.call("output/save", conversation=chat.id, tool="make", body="word\n" * 9_000)
    with store.read() as reader:
        [output] = reader.outputs(chat.id, 1)
    store._environment.write(lambda session: session.put(OBJECTS, output.blob, b"\x08?"))
    say(chat, "the numbat escaped")

    assert saved.id
    assert until(lambda: found(chat, "numbat"))


def test_a_forgotten_conversation_is_passed_over(store: Store, chat: Adapter) -> None:
    other = Adapter(store)
    say(other, "the quokka smiles")
    worker = Worker(store, chat.service.index, lambda: 0.0)
    worker.notify("f" * 32)
    worker.start()

    assert until(lambda: found(chat, "quokka"))
    worker.stop()
    other.service.close()


def test_it_ends_when_it_is_told_to(store: Store, chat: Adapter) -> None:
    worker = Worker(store, chat.service.index, lambda: 0.0)
    worker.start()
    began = time.monotonic()
    worker.stop()

    assert time.monotonic() - began < SOON / 2
    assert "learning" not in [thread.name for thread in threading.enumerate()]
