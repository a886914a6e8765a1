"""A store may be shared by threads; a thread has one transaction at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retention.store import Store
from tests.store.build import A, B, add, texts

DEADLINE = 60  # seconds


def test_a_transaction_inside_another_is_a_mistake_and_does_not_hang(store: Store) -> None:
    add(store, A, "one")
    for inner in (lambda: texts(store, A), lambda: add(store, A, "two"), store.compact):
        with store.read(), pytest.raises(AssertionError, match="one transaction"):
            inner()
        with pytest.raises(AssertionError, match="one transaction"):
            store.write(lambda writer, inner=inner: inner())

    assert texts(store, A) == ["one"]


def test_threads_read_while_one_writes_grows_and_compacts(path: Path) -> None:
    store = Store.open(path, map_size=128 * 1024)
    add(store, A, "one")
    stop = threading.Event()

    def read() -> int:
        count = 0
        while not stop.is_set() or not count:
            assert texts(store, A) == ["one"]
            count += 1
        return count

    def write(name: str) -> None:
        for n in range(30):
            add(store, name, f"{n} {'x' * 20_000}")
            if n % 10 == 0:
                store.compact()

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        writers = [pool.submit(write, B) for _ in range(2)]
        try:
            for each in writers:
                each.result(DEADLINE)
        finally:
            stop.set()
        assert all(each.result(DEADLINE) for each in readers)

    assert len(texts(store, B)) == 60
    assert store.check() == ()
    store.close()


def test_closing_waits_for_the_reader_of_another_thread(store: Store) -> None:
    add(store, A, "one")
    inside, leave = threading.Event(), threading.Event()

    def read() -> list[str]:
        with store.read() as reader:
            inside.set()
            assert leave.wait(DEADLINE)
            return [reader.object(row.exact).decode() for row in reader.rows(A)]

    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(read)
        assert inside.wait(DEADLINE)
        closing: Callable[[], None] = store.close
        closed = pool.submit(closing)
        leave.set()

        assert reading.result(DEADLINE) == ["one"]
        closed.result(DEADLINE)
