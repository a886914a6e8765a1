"""The bytes on disk: known answers, versions, files and their modes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from retention.errors import StoreError, StoreVersionError
from retention.model import Conversation
from retention.store import Store
from tests.store.build import A, add, data_file, dump, row, set_format, set_raw, texts


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    found = {str(p.relative_to(path)): p.stat().st_mode & 0o7777 for p in path.rglob("*")}
    return found | {".": path.stat().st_mode & 0o7777}


def test_keys_and_values_are_what_the_page_says(store: Store) -> None:
    """Known answers, so that we notice if the encoding ever changes: docs/store-format.md."""
    exact = bytes(range(32))
    store.write(
        lambda writer: (
            writer.put_conversation(Conversation(id=A, next_row=2)),
            writer.put_row(A, row(1, exact=exact, size=0, parts=())),
        )
    )
    name = store.write(lambda writer: writer.put_object("section", b"body"))

    assert dump(store) == {
        b"mformat": b"\x01",
        b"c" + b"a" * 32: b"\xde\0\x02\xa2id\xd9 " + b"a" * 32 + b"\xa8next_row\x02",
        b"r" + b"a" * 32 + bytes(7) + b"\x01": (
            b"\x85\xa2id\x01\xa4pred\x00\xa4face\xa4both\xa4role\xa4user\xa5exact\xc4 " + exact
        ),
        b"x" + exact + b"a" * 32: b"",
        b"o" + name: b"\x05body",
    }
    assert name.hex() == "5eb565b6c39b1b09334749eb1b2e0c4b3b20f82dd0fb4fab19948dec70735721"


def test_a_newer_format_is_refused_and_left_alone(path: Path) -> None:
    Store.open(path).close()
    set_format(path, 2)
    before = data_file(path).read_bytes()

    with pytest.raises(StoreVersionError, match=r"format 2.*reads format 1: update"):
        Store.open(path)

    assert data_file(path).read_bytes() == before


def test_a_store_without_a_version_is_refused(path: Path) -> None:
    Store.open(path).close()
    set_format(path, None)

    with pytest.raises(StoreVersionError, match="no version record"):
        Store.open(path)


@pytest.mark.parametrize(
    "text", ["", "gen-0\n", "gen-1x\n", "../gen-1\n", "\xff", "gen-1\ngen-2\n"]
)
def test_a_current_file_that_names_no_generation_is_refused(path: Path, text: str) -> None:
    Store.open(path).close()
    (path / "CURRENT").write_text(text, encoding="latin-1")

    with pytest.raises(StoreError, match="names no generation"):
        Store.open(path)


def test_a_missing_generation_is_an_error_and_not_made_anew(path: Path) -> None:
    Store.open(path).close()
    (path / "CURRENT").write_text("gen-7\n")

    with pytest.raises(StoreError, match="gen-7"):
        Store.open(path)

    assert not (path / "gen-7").exists()


def test_a_generation_that_was_replaced_is_an_error_when_current_names_it(path: Path) -> None:
    """A CURRENT restored from a backup must not lead into an endless change of generations."""
    Store.open(path).close()
    set_raw(path, b"mretired", b"\xa5gen-2")

    with pytest.raises(StoreError, match="was replaced"):
        Store.open(path)


def test_a_directory_with_other_files_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.org").write_text("mine")
    tmp_path.chmod(0o755)

    with pytest.raises(StoreError, match=r"notes\.org"):
        Store.open(tmp_path)

    assert modes(tmp_path)["."] == 0o755


@pytest.mark.usefixtures("umask")
def test_everything_is_private_also_without_a_umask(path: Path) -> None:
    """Rule Z2."""
    store = Store.open(path)
    add(store, A, "one")
    first = modes(path)
    store.compact()
    add(store, A, "two")
    second = modes(path)
    store.close()

    private = {"CURRENT": 0o600, ".": 0o700}
    files = {"data.mdb": 0o600, "lock.mdb": 0o600}
    for number, found in ((1, first), (2, second)):
        assert found == private | {f"gen-{number}": 0o700} | {
            f"gen-{number}/{name}": mode for name, mode in files.items()
        }


def test_opening_makes_a_store_private_again(path: Path) -> None:
    """Z2: as after it was copied."""
    Store.open(path).close()
    for found in (path, path / "gen-1", path / "gen-1" / "data.mdb", path / "gen-1" / "lock.mdb"):
        found.chmod(0o777 if found.is_dir() else 0o666)

    Store.open(path).close()

    found = modes(path)
    assert {found["."], found["gen-1"]} == {0o700}
    assert {found["gen-1/data.mdb"], found["gen-1/lock.mdb"]} == {0o600}


def test_a_reopened_store_is_as_it_was(path: Path) -> None:
    """Rule L3."""
    store = Store.open(path)
    add(store, A, "one", "two")
    before = dump(store)
    store.close()

    again = Store.open(path)
    assert dump(again) == before
    assert texts(again, A) == ["one", "two"]
    again.close()


def test_one_process_opens_a_store_once(store: Store) -> None:
    """LMDB's locks belong to the process: a second open would drop the first one's."""
    link = store.path.parent / "link"
    link.symlink_to(store.path)

    for path in (store.path, link):
        with pytest.raises(StoreError, match="already open"):
            Store.open(path)

    add(store, A, "one")
    assert texts(store, A) == ["one"]


def test_a_closed_store_says_so(path: Path) -> None:
    store = Store.open(path)
    store.close()
    store.close()

    with pytest.raises(StoreError, match="closed"), store.read():
        pass
    with pytest.raises(StoreError, match="closed"):
        add(store, A, "one")
    with pytest.raises(StoreError, match="closed"):
        store.compact()


def test_a_store_that_was_moved_away_is_an_error_until_it_is_back(store: Store) -> None:
    """L3, Z1: scenario 7."""
    add(store, A, "one")
    store.path.rename(store.path.with_name("away"))

    with pytest.raises(StoreError), store.read():
        pass
    with pytest.raises(StoreError):
        add(store, A, "two")

    store.path.with_name("away").rename(store.path)
    add(store, A, "two")
    assert texts(store, A) == ["one", "two"]
