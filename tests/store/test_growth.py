"""The map grows until the largest allowed size; a full store or disk loses nothing (Z4, L4)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from retention.errors import StoreError, StoreFull
from retention.store import Store, environment
from tests.store.build import A, B, add, dump, texts
from tests.store.peer import peer

SMALL = 128 * 1024  # bytes of map: full after a few objects
LARGE = "x" * 50_000


def test_a_full_map_grows_and_the_transaction_runs_again(path: Path) -> None:
    store = Store.open(path, map_size=SMALL)
    written = [f"{n} {LARGE}" for n in range(20)]

    add(store, A, *written)

    assert texts(store, A) == written
    assert store.check() == ()
    store.close()


def test_the_largest_map_is_a_full_store_that_still_works(path: Path) -> None:
    """Z4: nothing of the transaction that was too large is there."""
    store = Store.open(path, map_size=SMALL, max_map_size=4 * SMALL)
    add(store, A, "one")
    before = dump(store)

    with pytest.raises(StoreFull, match=str(4 * SMALL)):
        add(store, A, *(f"{n} {LARGE}" for n in range(20)))

    assert dump(store) == before
    add(store, A, "two")
    store.close()
    again = Store.open(path)
    assert texts(again, A) == ["one", "two"]
    assert again.check() == ()
    again.close()


def test_a_full_store_can_forget_compact_and_go_on(path: Path) -> None:
    """Rule Z4."""
    store = Store.open(path, map_size=SMALL, max_map_size=4 * SMALL)
    add(store, A, *(f"{n} {LARGE}" for n in range(6)))
    with pytest.raises(StoreFull):
        add(store, B, *(f"{n} other {LARGE}" for n in range(6)))

    store.forget(A)
    store.compact()
    add(store, B, *(f"{n} other {LARGE}" for n in range(6)))

    assert len(texts(store, B)) == 6
    assert store.check() == ()
    store.close()


def test_a_store_that_outgrew_the_size_it_is_opened_with_opens(path: Path) -> None:
    store = Store.open(path, map_size=SMALL)
    add(store, A, *(f"{n} {LARGE}" for n in range(20)))
    store.close()

    again = Store.open(path, map_size=SMALL)
    add(again, A, "more")
    assert len(texts(again, A)) == 21
    again.close()


def test_growth_by_another_process_is_followed_by_reads_and_writes(path: Path) -> None:
    """L4, Y1: MapResizedError comes on reads too."""
    store = Store.open(path, map_size=SMALL)
    size = store._environment._env.info()["map_size"]
    written = [f"{n} {LARGE}" for n in range(20)]

    with peer(path, map_size=SMALL) as other:
        other.ask("add", A, *written)
        with pytest.raises(lmdb.MapResizedError):
            store._environment._env.begin()
        assert texts(store, A) == written
        assert store._environment._env.info()["map_size"] > size

        other.ask("add", A, *(f"again {text}" for text in written))
        add(store, A, "mine")
        assert other.ask("texts", A)[-1] == "mine"
        assert len(texts(store, A)) == 41
        assert store.check() == ()
    store.close()


def test_two_processes_that_grow_the_map_in_turn_keep_everything(path: Path) -> None:
    """Rule L4."""
    store = Store.open(path, map_size=SMALL)
    with peer(path, map_size=SMALL) as other:
        for n in range(12):
            add(store, A, f"mine {n} {LARGE}")
            other.ask("add", B, f"theirs {n} {LARGE}")
        assert len(texts(store, A)) == len(texts(store, B)) == 12
        assert other.ask("check") == store.check() == ()
    store.close()


def test_pages_that_a_killed_reader_held_are_used_again(path: Path) -> None:
    """Z4: a dead reader must not make the file grow for ever."""
    store = Store.open(path, map_size=8 * SMALL, max_map_size=8 * SMALL)
    add(store, A, LARGE)
    with peer(path) as other:
        assert other.ask("hold") == "held"
        other.process.kill()
        assert other.died()

    for n in range(60):  # 3 MB through a map of 1 MB
        add(store, B, f"{n} {LARGE}")
        store.forget(B)

    assert texts(store, A) == [LARGE]
    store.close()


# The disk


def test_a_write_that_the_system_cuts_short_changes_nothing(path: Path) -> None:
    """Z4: a real failure in the middle of a commit, by the limit on the size of files."""
    store = Store.open(path)
    add(store, A, "one")
    before = dump(store)

    with peer(path) as other:
        other.ask("file size", 256 * 1024)
        code, _ = other.ask("add", A, *(f"{n} {LARGE}" for n in range(20)))
        assert code in {"store", "store_full"}
        assert other.ask("texts", A) == ["one"]
        assert dump(store) == before
        other.ask("add", A, "two")

    add(store, A, "three")
    assert texts(store, A) == ["one", "two", "three"]
    assert store.check() == ()
    store.close()


def test_a_file_that_may_not_grow_at_all_is_a_full_store(path: Path) -> None:
    """Z4: EFBIG on the first byte, as ENOSPC on a full disk."""
    store = Store.open(path)
    add(store, A, "one")
    with peer(path) as other:
        other.ask("file size", 1)

        code, _ = other.ask("add", A, LARGE)

        assert code == "store_full"
    assert texts(store, A) == ["one"]
    store.close()


@pytest.mark.parametrize(
    "error",
    [
        lmdb.DiskError("mdb_txn_commit: No space left on device"),  # also what fdatasync says
        lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EDQUOT)}"),
    ],
)
def test_a_commit_that_fails_for_space_is_a_full_store_and_is_undone(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: lmdb.Error
) -> None:
    """Z4: what LMDB raises is put in at the point before the commit."""
    add(store, A, "one")
    before = dump(store)
    with monkeypatch.context() as patch:
        patch.setattr(environment, "checkpoint", _raise(error))
        with pytest.raises(StoreFull):
            add(store, A, "two")

    assert dump(store) == before
    add(store, A, "three")
    assert texts(store, A) == ["one", "three"]


def test_an_environment_that_lmdb_gave_up_is_opened_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Z4: after a failed write of a meta page LMDB refuses everything until it is reopened."""
    add(store, A, "one")
    left = store._environment._env
    with monkeypatch.context() as patch:
        patch.setattr(environment, "checkpoint", _raise(lmdb.PanicError("mdb_txn_begin", -30795)))
        with pytest.raises(StoreError):
            add(store, A, "two")

    add(store, A, "three")
    assert texts(store, A) == ["one", "three"]
    assert store._environment._env is not left


def test_a_compaction_without_space_leaves_the_store_as_it_was(path: Path) -> None:
    """Rules Z4, Y1."""
    store = Store.open(path)
    add(store, A, *(f"{n} {LARGE}" for n in range(10)))
    before = dump(store)
    with peer(path) as other:
        other.ask("file size", 100_000)

        code, _ = other.ask("compact")

        assert code in {"store", "store_full"}
        assert sorted(p.name for p in path.iterdir()) == ["CURRENT", "gen-1"]
        assert other.ask("texts", A) == texts(store, A)
    assert dump(store) == before
    store.compact()
    assert dump(store) == before
    store.close()


def _raise(error: Exception) -> Callable[[str], None]:
    def checkpoint(_: str) -> None:
        raise error

    return checkpoint
