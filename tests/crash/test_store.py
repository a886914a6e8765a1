"""A process is killed by SIGKILL at a named point; the store opens and is whole (rule Z4).

This shows the death of a process, not a loss of power: what was written to the page cache stays.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from retention.store import Store
from tests.store.build import A, B, add, dump, fork, objects, texts
from tests.store.peer import peer

WRITES = {"before-commit": ["one"], "after-commit": ["one", "two"]}
COMPACTS = {
    "compact-begin": "gen-1",
    "compact-copied": "gen-1",
    "compact-switched": "gen-2",
    "compact-retired": "gen-2",
    "compact-done": "gen-2",
}


def kill(path: Path, point: str, *command: str) -> None:
    with peer(path) as other:
        other.ask("kill at", point)
        other.tell(*command)
        assert other.died(), f"the process did not reach {point}"


@pytest.mark.parametrize("point", WRITES)
def test_a_killed_writer_leaves_all_or_nothing(path: Path, point: str) -> None:
    """Rule Z4."""
    with peer(path) as other:
        other.ask("add", A, "one")

    kill(path, point, "add", A, "two")

    store = Store.open(path)
    assert texts(store, A) == WRITES[point]
    assert store.check() == ()
    add(store, A, "three")
    assert texts(store, A) == [*WRITES[point], "three"]
    store.close()


@pytest.mark.parametrize("point", WRITES)
def test_a_process_that_had_the_store_open_goes_on_after_a_killed_writer(
    path: Path, point: str
) -> None:
    """Z4, L4: the lock of the dead writer is freed."""
    store = Store.open(path)
    add(store, A, "one")

    kill(path, point, "add", A, "two")

    add(store, A, "three")
    assert texts(store, A) == [*WRITES[point], "three"]
    assert store.check() == ()
    store.close()


@pytest.mark.parametrize("point", COMPACTS)
@pytest.mark.parametrize("open_before", [False, True])
def test_a_killed_compactor_loses_nothing(path: Path, point: str, *, open_before: bool) -> None:
    """Z4, Y1: also for a process that has the old generation open."""
    store = Store.open(path)
    add(store, A, "one", "two")
    before = dump(store)
    if not open_before:
        store.close()

    kill(path, point, "compact")

    assert (path / "CURRENT").read_text() == f"{COMPACTS[point]}\n"
    if not open_before:
        store = Store.open(path)
    assert dump(store) == before
    add(store, A, "three")
    with peer(path) as other:
        assert other.ask("texts", A) == texts(store, A) == ["one", "two", "three"]
        other.ask("add", A, "four")
        assert other.ask("check") == store.check() == ()
    store.compact()
    assert texts(store, A) == ["one", "two", "three", "four"]
    assert len(list(path.iterdir())) == 2, "what the dead compactor left is removed"
    store.close()


@pytest.mark.parametrize("commits", range(1, 5))
@pytest.mark.parametrize("again", ["compact", "forget"])
def test_a_killed_forget_is_taken_up_again(path: Path, commits: int, again: str) -> None:
    """Z2, Z4: after the mark, the references, the requests, the rows."""
    store = Store.open(path)
    add(store, A, "shared", "mine")
    add(store, B, "shared")
    store.close()

    with peer(path) as other:
        other.ask("kill at", "after-commit", commits)
        other.tell("forget", A)
        assert other.died()

    store = Store.open(path)
    assert [problem.code for problem in store.check()] == ["unfinished"]
    assert texts(store, B) == ["shared"]
    with store.read() as reader:
        record = reader.conversation(A)
    assert record is not None
    assert record.forgotten
    if again == "compact":
        store.compact()
    else:
        fork(store, B, "f" * 32)
        store.forget("f" * 32)
    assert objects(store) == {b"shared"}
    assert store.check() == ()
    assert not any(A.encode() in key for key in dump(store))
    store.close()


def test_a_store_whose_making_was_interrupted_is_made(path: Path) -> None:
    """Z4: the first generation is there, CURRENT is not yet."""
    with peer(path):
        pass
    (path / "CURRENT").unlink()
    (path / "CURRENT.1").write_text("gen-")

    store = Store.open(path)
    add(store, A, "one")
    assert texts(store, A) == ["one"]
    store.compact()
    assert sorted(p.name for p in path.iterdir()) == ["CURRENT", "gen-2"]
    store.close()
