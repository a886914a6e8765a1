"""The commands that fork, move and collect conversations."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from retention import cli
from retention.service import INDEX
from retention.store import Store
from retention.terminal import HELD
from tests.helpers import Adapter, message, section
from tests.store.build import dump

Run = Callable[..., tuple[int, str, str]]
ID = "aaaa1111" + "0" * 24


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one conversation that sent one request."""
    path = tmp_path / "store"
    opened = Store.open(path)
    Adapter(opened, ID).send(message("hello there"), sections=[section()])
    opened.close()
    return path


@pytest.fixture
def run(store: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str, at: Path = store) -> tuple[int, str, str]:
        status = cli.main(["--store", str(at), *arguments])
        return status, *capsys.readouterr()

    return run_command


def test_fork_prints_the_new_id(run: Run):
    """L2."""
    status, out, _ = run("fork", "aaaa", "--title", "another way")
    assert status == cli.EXIT_FINE
    assert out.endswith(f"shares 2 rows of {ID}\n")

    listed = json.loads(run("conversations", "--json")[1])["conversations"]
    assert [item["title"] for item in listed if item["id"] == out.split()[0]] == ["another way"]


def test_export_and_import_move_a_conversation(run: Run, tmp_path: Path):
    """L5: also into a store that is only made."""
    file, other = str(tmp_path / "chat.zip"), tmp_path / "other"

    assert "objects" in run("export", "aaaa", file)[1]
    assert run("import", file, at=other)[1] == f"{ID} imported, 2 rows\n"
    assert run("import", file, at=other)[1] == f"{ID} is there already\n"
    assert not json.loads(run("import", file, "--json", at=other)[1])["created"]
    copied = run("import", file, "--as-new", at=other)[1].split()
    assert copied[0] != ID
    assert copied[1:] == ["imported,", "2", "rows"]


def test_bad_input_is_told_and_changes_nothing(run: Run, store: Path, tmp_path: Path):
    bad = tmp_path / "bad.zip"
    bad.write_bytes(b"no archive")

    for arguments in (["export", "aaaa", str(bad)], ["import", str(bad)], ["fork", "ffff"]):
        status, out, err = run(*arguments)
        assert (status, out) == (cli.EXIT_BAD_INPUT, "")
        assert err.startswith("retention: ")
    with pytest.raises(SystemExit):
        run("gc", "--older-than", "-1")
    assert bad.read_bytes() == b"no archive"


def test_gc_tells_what_it_would_free_and_then_frees_it(run: Run, store: Path):
    """L6: the conversation was last used in 1970."""
    before = content(store)

    told = run("gc", "--older-than", "1", "--dry-run")[1]
    assert content(store) == before
    status, out, _ = run("gc", "--older-than", "1")

    assert status == cli.EXIT_FINE
    assert told.splitlines()[:-1] == out.splitlines()[:-1]
    assert told.splitlines()[0] == f"conversation {ID}"
    assert told.splitlines()[-1] == "nothing was changed"
    kinds = {line.split()[0]: line.split()[1] for line in out.splitlines()[3:-1]}
    assert kinds == {"delivery": "1", "identity": "1", "message": "2", "section": "1"}
    assert set(content(store)) == {b"mformat"}
    assert b"hello there" not in b"".join(file.read_bytes() for file in store.rglob("data.mdb"))


def test_gc_keeps_what_is_in_use(run: Run, store: Path):
    """L6: conversations go only where somebody says so."""
    before = content(store)

    out = run("gc", "--grace", "0")[1]

    assert out.splitlines()[0] == "0 texts of retired history, 0 references"
    assert content(store) == before
    freed = json.loads(run("gc", "--older-than", "0", "--json")[1])
    assert (freed["conversations"], freed["kinds"]) == ([], [])
    assert freed["before"] >= freed["after"] > 0


def test_gc_says_where_the_index_could_not_be_cleaned(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
):
    """L6, Z2: another process was reading it."""
    monkeypatch.setattr("retention.index.database.PATIENCE", 0.1)
    run("learn", "--live")
    with sqlite3.connect(store / INDEX / "index.sqlite", isolation_level=None) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM sources").fetchall()
        held = run("gc", "--older-than", "1")[1]
    other.close()

    assert held.splitlines()[-1] == HELD
    assert HELD not in run("gc", "--older-than", "1")[1]


def content(path: Path) -> dict[bytes, bytes]:
    opened = Store.open(path)
    try:
        return dump(opened)
    finally:
        opened.close()
