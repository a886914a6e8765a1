"""The file: made anew when it cannot be trusted, shared by threads and processes."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from retention.errors import StoreError
from retention.index import Index, database
from retention.index.database import NAME
from tests.index.build import add, documents, entry, found


def fill(index: Index, count: int = 300) -> None:
    rng = random.Random(5)
    for n in range(count):
        add(index, f"s{n}", *[" ".join(f"w{rng.randrange(3000)}" for _ in range(80))] * 2)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an index that was closed."""
    path = tmp_path_factory.mktemp("sound")
    index = Index.open(path)
    index.clear()
    fill(index)
    index.close()
    return path


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def test_it_is_there_when_opened_again(copy: Path) -> None:
    index = Index.open(copy)

    assert not index.needs_rebuild
    assert index.counts()[:2] == (300, 600)
    assert found(index, "w7")
    index.close()


def test_a_new_one_needs_what_it_should_have(path: Path) -> None:
    index = Index.open(path)

    assert index.needs_rebuild
    index.close()


def is_new_and_usable(path: Path) -> bool:
    index = Index.open(path)
    new = index.needs_rebuild and index.stamps() == {}
    index.clear()
    add(index, "s", "gravel")
    usable = found(index, "gravel") == [("s", 0)] and index.check()
    index.close()
    return new and usable


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_made_anew(copy: Path, share: float) -> None:
    file = copy / NAME
    os.truncate(file, int(file.stat().st_size * share))

    assert is_new_and_usable(copy)


@pytest.mark.parametrize("place", ["head", "second page", "page in the middle", "all"])
def test_a_garbled_file_is_made_anew(copy: Path, place: str) -> None:
    file = copy / NAME
    data = bytearray(file.read_bytes())
    middle = len(data) // 8192 * 4096
    start, stop = {
        "head": (0, 16), "second page": (4096, 8192), "page in the middle": (middle, middle + 4096),
        "all": (0, len(data)),
    }[place]  # fmt: skip
    data[start:stop] = random.Random(1).randbytes(stop - start)
    file.write_bytes(data)

    assert is_new_and_usable(copy)


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, b"SQLite format 3\0"])
def test_what_is_no_database_is_made_anew(path: Path, content: bytes) -> None:
    path.mkdir(parents=True)
    (path / NAME).write_bytes(content)

    assert is_new_and_usable(path)


@pytest.mark.parametrize("sql", ["PRAGMA user_version = 999", "PRAGMA application_id = 1"])
def test_a_file_of_another_version_or_program_is_made_anew(copy: Path, sql: str) -> None:
    with sqlite3.connect(copy / NAME) as other:
        other.execute(sql)
    other.close()

    assert is_new_and_usable(copy)


def test_a_half_made_file_is_made_anew(path: Path) -> None:
    """Killed while the tables were made."""
    path.mkdir(parents=True)
    with sqlite3.connect(path / NAME) as other:
        other.execute("CREATE TABLE sources (id)")
    other.close()

    assert is_new_and_usable(path)


@pytest.mark.parametrize("seed", range(6))
def test_damage_while_it_is_open_leads_to_an_empty_one(copy: Path, seed: int) -> None:
    """Whatever is met first, a reader or a writer: no error, no wrong answer, a rebuild."""
    index = Index.open(copy)
    file = copy / NAME
    rng = random.Random(seed)
    size = file.stat().st_size
    with file.open("r+b") as handle:
        for page in range(1, size // 4096):
            handle.seek(page * 4096)
            handle.write(rng.randbytes(4096))

    for n in rng.sample(range(300), 20):
        found(index, f"w{n}")
        add(index, f"s{n}", f"gravel{n}")
        index.drop("o", f"s{n}", None)
    index.check()

    assert index.needs_rebuild
    index.clear()
    fill(index, 10)
    assert index.check()
    assert not index.needs_rebuild
    assert index.counts()[:2] == (10, 20)
    index.close()


def test_damage_to_the_words_alone_is_found_by_a_check(copy: Path) -> None:
    with sqlite3.connect(copy / NAME) as other:
        other.execute("UPDATE words_data SET block = zeroblob(30) WHERE id > 1000")
    other.close()
    index = Index.open(copy)

    assert not index.check()
    assert index.needs_rebuild
    assert index.stamps() == {}
    index.close()


def test_a_removed_file_is_made_anew_while_it_is_open(copy: Path) -> None:
    index = Index.open(copy)
    shutil.rmtree(copy)
    copy.mkdir()

    assert index.search("w7") == []
    assert index.needs_rebuild
    index.clear()
    add(index, "s", "gravel")
    assert found(index, "gravel") == [("s", 0)]
    index.close()


def test_another_opener_goes_over_to_the_new_file(copy: Path) -> None:
    one, other = Index.open(copy), Index.open(copy)
    assert found(other, "w7")
    file = copy / NAME
    file.write_bytes(b"x" * file.stat().st_size)

    assert not one.check()
    one.clear()
    add(one, "s", "gravel")

    assert found(other, "gravel") == [("s", 0)]
    add(other, "t", "gravel")
    other.close()
    assert len(found(one, "gravel")) == 2
    one.close()
    again = Index.open(copy)
    assert len(found(again, "gravel")) == 2
    again.close()


def test_two_openers_see_each_others_sources(path: Path) -> None:
    one, other = Index.open(path), Index.open(path)
    one.clear()
    made = add(one, "a", "gravel")
    add(other, "b", "gravel")

    assert sorted(found(one, "gravel")) == sorted(found(other, "gravel")) == [("a", 0), ("b", 0)]
    other.drop("o", "a", made)
    assert found(one, "gravel") == [("b", 0)]
    assert one.stamps() == other.stamps()
    one.close()
    other.close()


def test_a_full_disk_is_an_error_of_the_store(index: Index) -> None:
    opened = index._database._opened
    pages = opened.writer.execute("PRAGMA page_count").fetchone()[0]
    opened.writer.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(StoreError, match="full"):
        add(index, "s", *[f"gravel {n} " * 900 for n in range(40)])

    assert index.stamps() == {}
    assert not index.needs_rebuild


def test_a_directory_that_cannot_be_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError):
        Index.open(tmp_path / "file" / "index")


def test_a_directory_that_went_away_is_an_error_of_the_store(index: Index, path: Path) -> None:
    shutil.rmtree(path)

    with pytest.raises(StoreError):
        index.search("gravel")


def test_a_file_that_is_held_by_another_program_is_left_as_it_is(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.05)
    other = sqlite3.connect(copy / NAME, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")

    with pytest.raises(StoreError, match="locked"):
        Index.open(copy)

    other.execute("COMMIT")
    other.close()
    index = Index.open(copy)
    assert not index.needs_rebuild
    index.close()


def test_a_closed_one_stays_closed(copy: Path) -> None:
    index = Index.open(copy)
    index.close()
    index.close()

    with pytest.raises(StoreError, match="closed"):
        index.search("w7")


def test_a_search_does_not_wait_for_a_writer(index: Index) -> None:
    add(index, "s", "gravel")
    entered, leave = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        entered.set()
        leave.wait(10)

    writer = threading.Thread(target=index._database.write, args=(hold, None))
    writer.start()
    entered.wait(10)
    start = time.perf_counter()

    assert found(index, "gravel") == [("s", 0)]

    took = time.perf_counter() - start
    leave.set()
    writer.join()
    assert took < 1


def test_threads_and_processes_at_once(path: Path) -> None:
    """Two threads and two processes add; all of it is there, and nothing was made anew."""
    code = """if True:
        import sys
        from pathlib import Path
        from retention.index import Index, database
        from tests.index.build import add
        index = Index.open(Path(sys.argv[1]))
        for n in range(40):
            add(index, f"{sys.argv[2]}{n}", f"gravel {sys.argv[2]}")
            index.search("gravel")
        index.close()
    """
    index = Index.open(path)
    index.clear()
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("p", "q")
    ]

    def work(name: str) -> None:
        for n in range(40):
            index.update(entry(f"{name}{n}"), documents(f"gravel {name}"))
            index.search("gravel")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(60) for other in others] == [0, 0]

    assert len(index.stamps()) == 160
    assert not index.needs_rebuild
    assert index.check()
    index.close()
