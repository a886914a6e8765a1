"""Several processes on one store, also while one compacts it (rules L4 and Y1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from retention.errors import StoreError
from retention.store import Store, environment
from tests.store.build import A, B, C, add, dump, texts
from tests.store.peer import Peer, peer


def generations(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.name != "CURRENT")


def test_two_processes_write_and_see_each_other(store: Store) -> None:
    """Rule L4."""
    with peer(store.path) as other:
        for n in range(20):
            add(store, A, f"mine {n}")
            other.ask("add", A, f"theirs {n}")

        expected = [f"{who} {n}" for n in range(20) for who in ("mine", "theirs")]
        assert texts(store, A) == other.ask("texts", A) == expected
        assert store.check() == other.ask("check") == ()


def test_processes_that_write_at_once_lose_nothing(store: Store) -> None:
    """L4: each row is added to what the writer sees under the lock."""
    with peer(store.path) as one, peer(store.path) as two:
        for n in range(30):
            one.tell("add", A, f"one {n}")
            two.tell("add", A, f"two {n}")
            add(store, A, f"mine {n}")
        for _ in range(30):
            one.answer()
            two.answer()

    found = texts(store, A)
    assert sorted(found) == sorted(
        f"{who} {n}" for n in range(30) for who in ("one", "two", "mine")
    )
    assert store.check() == ()


def test_processes_that_make_a_store_at_once_share_it(path: Path) -> None:
    """Rule L4."""
    peers = [Peer(path) for _ in range(4)]
    try:
        for each in peers:
            each.tell("open")
        assert [each.answer() for each in peers] == ["open"] * 4
        for n, each in enumerate(peers):
            each.ask("add", A, str(n))
        assert peers[0].ask("texts", A) == ["0", "1", "2", "3"]
    finally:
        for each in peers:
            each.process.kill()
            each.process.join()
    assert sorted(p.name for p in path.iterdir()) == ["CURRENT", "gen-1"]


def test_a_store_opens_and_is_read_while_another_process_writes(store: Store) -> None:
    """L4: neither opening nor reading waits for the lock of writers."""
    add(store, A, "one")
    with peer(store.path) as other:
        other.ask("stop at", "before-commit")
        other.tell("add", A, "two")
        assert other.answer() == "before-commit"

        assert texts(store, A) == ["one"]
        with peer(store.path) as third:
            assert third.ask("texts", A) == ["one"]

        other.pipe.send("go")
        assert other.answer() is None
        assert texts(store, A) == ["one", "two"]


# Y1: compaction


def test_a_write_that_waits_for_a_compaction_lands_in_the_new_generation(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y1: the lost write.  The other process has the old generation open and wants its lock."""
    add(store, A, "one")
    with peer(store.path) as other:
        other.ask("add", A, "two")

        def checkpoint(name: str) -> None:
            if name == "compact-copied":  # what is written to the old generation now is not copied
                other.tell("add", A, "three")

        with monkeypatch.context() as patch:
            patch.setattr(environment, "checkpoint", checkpoint)
            store.compact()

        assert other.answer() is None
        assert texts(store, A) == ["one", "two", "three"]
        assert generations(store.path) == ["gen-2"]


def test_a_process_that_slept_through_compactions_reads_and_writes(store: Store) -> None:
    """Rule Y1."""
    add(store, A, "one")
    with peer(store.path) as reads, peer(store.path) as writes:
        store.compact()
        add(store, A, "two")
        store.compact()
        add(store, A, "three")

        assert reads.ask("texts", A) == ["one", "two", "three"]
        assert writes.ask("add", A, "four") is None
        assert texts(store, A) == reads.ask("texts", A) == ["one", "two", "three", "four"]
        assert store.check() == reads.ask("check") == ()


def test_processes_compact_in_turn(store: Store) -> None:
    """Rule Y1."""
    with peer(store.path) as other:
        for n in range(3):
            add(store, A, f"mine {n}")
            other.ask("compact")
            other.ask("add", A, f"theirs {n}")
            store.compact()
        assert len(texts(store, A)) == len(other.ask("texts", A)) == 6
    assert generations(store.path) == ["gen-7"]


def test_writes_and_compactions_at_once_lose_nothing(store: Store) -> None:
    """Rules Y1, L4."""
    with peer(store.path) as one, peer(store.path) as two:
        for n in range(10):
            one.tell("add", A, f"one {n}")
            one.tell("compact")
            two.tell("add", B, f"two {n}")
            add(store, C, f"mine {n}")
            store.compact()
        for _ in range(10):
            one.answer()
            one.answer()
            two.answer()

    assert texts(store, A) == [f"one {n}" for n in range(10)]
    assert texts(store, B) == [f"two {n}" for n in range(10)]
    assert texts(store, C) == [f"mine {n}" for n in range(10)]
    assert store.check() == ()


def test_a_reader_keeps_its_snapshot_while_another_process_compacts(store: Store) -> None:
    """Y1: readers do not wait, and the files that they map may be unlinked."""
    add(store, A, "one")
    with peer(store.path) as other, store.read() as reader:
        other.ask("add", A, "two")
        other.ask("compact")
        other.ask("add", A, "three")

        assert [reader.object(row.exact) for row in reader.rows(A)] == [b"one"]

    assert texts(store, A) == ["one", "two", "three"]


def test_a_killed_compactor_between_switch_and_mark_loses_no_later_write(store: Store) -> None:
    """Y1: the old generation bears no mark, and whoever has it open must still leave it."""
    add(store, A, "one")
    with peer(store.path) as other, peer(store.path) as third:
        other.ask("kill at", "compact-switched")
        other.tell("compact")
        assert other.died()

        third.ask("add", A, "two")
        assert texts(store, A) == ["one", "two"]
        add(store, A, "three")
        assert third.ask("texts", A) == ["one", "two", "three"]
        with peer(store.path) as later:
            assert later.ask("texts", A) == ["one", "two", "three"]


def test_the_mark_is_enough_where_current_looks_as_before(store: Store) -> None:
    """Y1: as with coarse times and an inode that was used again."""
    add(store, A, "one")
    with peer(store.path) as other:
        other.ask("compact")
        other.ask("add", A, "two")
        store._environment._stamp = environment._stamp(store.path / "CURRENT")

        add(store, A, "three")

        assert other.ask("texts", A) == texts(store, A) == ["one", "two", "three"]


def test_compaction_gives_space_back_and_changes_no_record(store: Store) -> None:
    add(store, A, "kept")
    before = dump(store)
    add(store, B, *(f"{n} {'x' * 10_000}" for n in range(100)))
    size = (store.path / "gen-1" / "data.mdb").stat().st_size
    store.forget(B)

    store.compact()

    assert (store.path / "gen-2" / "data.mdb").stat().st_size < size / 10
    assert dump(store) == before


def test_one_process_opens_a_store_once_also_behind_a_compaction(store: Store) -> None:
    """L4: LMDB would allow it, since two generations are two environments."""
    with peer(store.path) as other:
        other.ask("compact")

        with pytest.raises(StoreError, match="already open"):
            Store.open(store.path)

        add(store, A, "one")
        assert other.ask("texts", A) == ["one"]
