"""Sources added, changed and removed; what is gone is neither found nor left in the files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from retention.index import Index
from tests.index.build import Themes, add, documents, embed, entry, found, said


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.iterdir())


def test_stamps_tell_what_is_indexed(index: Index) -> None:
    assert index.stamps() == {}

    add(index, "a", "one", stamp=b"\1")
    add(index, "b", "two", stamp=b"\2")
    add(index, "a", "one", stamp=b"\3")

    assert index.stamps() == {("o", "a"): b"\3", ("o", "b"): b"\2"}
    assert index.counts()[:2] == (2, 2)


def test_unchanged_chunks_stay(index: Index) -> None:
    first, second, _ = add(index, "s", "gravel", "valve", "copper")

    index.update(entry(stamp=b"2"), documents("kettle", first=2), documents("copper", first=2))

    assert found(index, "gravel") == [("s", 0)]
    assert found(index, "kettle") == [("s", 2)]
    assert found(index, "copper") == []
    assert not index.needs_rebuild
    index.drop("o", "s", [first, second, *documents("kettle", first=2)])
    assert not index.needs_rebuild
    assert index.stamps() == {}


def test_a_chunk_takes_the_place_of_what_had_its_number(index: Index) -> None:
    add(index, "s", "gravel")
    add(index, "s", "gravel")
    assert not index.needs_rebuild

    add(index, "s", "copper")

    assert found(index, "gravel") == []
    assert found(index, "copper") == [("s", 0)]
    assert index.needs_rebuild  # the words of the other text could not be taken out


@pytest.mark.parametrize("removed", [None, [], documents("not what was added")])
def test_a_source_whose_texts_are_gone_is_hidden_until_the_rebuild(
    index: Index, removed: list | None
) -> None:
    add(index, "a", "gravel road")
    add(index, "b", "gravel pit")

    index.drop("o", "a", removed)

    assert found(index, "gravel") == found(index, "gravel absent") == [("b", 0)]
    assert index.needs_rebuild
    index.clear()
    assert not index.needs_rebuild
    assert found(index, "gravel") == []
    add(index, "b", "gravel pit")
    assert found(index, "gravel") == [("b", 0)]


def test_dropping_what_is_not_there_changes_nothing(index: Index) -> None:
    index.drop("o", "s", None)

    assert not index.needs_rebuild


def test_a_source_that_lacks_what_it_should_have_kept_asks_for_a_rebuild(index: Index) -> None:
    """The file was made anew between two updates of it."""
    index.update(entry(), documents("later", first=7))

    assert index.needs_rebuild


def test_a_text_that_is_no_utf8_comes_and_goes(index: Index) -> None:
    made = add(index, "s", "gravel \udcff \ud800 caf\udce9Noir\0")
    assert found(index, "gravel") == [("s", 0)]

    index.drop("o", "s", made)

    assert found(index, "gravel") == []
    assert not index.needs_rebuild


def test_random_changes_leave_what_a_fresh_index_has(index: Index, tmp_path: Path) -> None:
    rng = random.Random(3)
    words = [f"word{n}" for n in range(40)]
    state: dict[str, list[str]] = {}
    for step in range(120):
        id = f"s{rng.randrange(6)}"
        old = state.pop(id, [])
        if rng.random() < 0.2:
            index.drop("o", id, documents(*old))
            continue
        new = old[: rng.randrange(len(old) + 1)]
        kept = len(new)
        new += [" ".join(rng.choices(words, k=5)) for _ in range(rng.randrange(1, 4))]
        removed = documents(*old)[kept:]
        index.update(entry(id, stamp=bytes([step])), documents(*new)[kept:], removed)
        state[id] = new
    fresh = Index.open(tmp_path / "fresh")
    fresh.clear()
    for id, texts in state.items():
        add(fresh, id, *texts)

    assert not index.needs_rebuild
    for word in words:
        assert sorted(found(index, word)) == sorted(found(fresh, word))
    fresh.close()


def test_nothing_of_what_was_removed_is_left_in_the_files(dense: Index, path: Path) -> None:
    """Words, ids, digests and vectors; also what a rebuild replaced."""
    secret, other = said("river zyzzyva\n" * 40), said("hazelnut flame\n" * 40)
    dense.update(entry("kumquat"), secret)
    dense.update(entry("kept"), other)
    embed(dense, ("kumquat", secret), ("kept", other))
    assert b"zyzzyva" in bytes_of(path)
    vectors = dense.counts().vectors

    dense.drop("o", "kumquat", secret)
    assert dense.purge()

    left = bytes_of(path)
    assert not dense.needs_rebuild
    assert b"zyzzyva" not in left
    assert b"kumquat" not in left
    assert b"hazelnut" in left
    assert dense.counts().vectors < vectors
    assert [m.found for m in dense.search("sea")] == []

    dense.drop("o", "kept", None)
    dense.clear()
    assert dense.purge()
    assert b"hazelnut" not in bytes_of(path)
    assert dense.counts() == (0, 0, 0, 0, {})


def test_the_vectors_of_a_hidden_source_go_with_it(dense: Index) -> None:
    made = said("the sea")
    dense.update(entry(), made)
    embed(dense, ("s", made))

    dense.drop("o", "s", None)
    dense.purge()

    assert dense.counts().vectors == 0


def test_a_purge_gives_space_back(index: Index, path: Path) -> None:
    rng = random.Random(2)
    made = add(index, "s", *[" ".join(f"w{rng.randrange(9999)}" for _ in range(500))] * 40)
    add(index, "t", "gravel")
    index.purge()
    before = (path / "index.sqlite").stat().st_size

    index.drop("o", "s", made)
    index.purge()

    assert (path / "index.sqlite").stat().st_size < before / 2
    assert found(index, "gravel") == [("t", 0)]


def test_it_is_private(path: Path, themes: Themes) -> None:
    path.mkdir(parents=True, mode=0o755)
    index = Index.open(path, themes)
    add(index, "s", "gravel")
    index.search("gravel")

    names = {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert path.stat().st_mode & 0o777 == 0o700
    assert names.keys() >= {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm"}
    assert set(names.values()) == {0o600}
    index.close()
    (path / "index.sqlite").chmod(0o644)
    Index.open(path).close()
    assert (path / "index.sqlite").stat().st_mode & 0o777 == 0o600
