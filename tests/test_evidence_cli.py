"""The commands that learn, search and explain, as a user runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retention import cli
from retention.store import Store
from tests.helpers import Adapter, assistant, message

ROOT = Path(__file__).parent.parent
CHATS = ROOT / "fixtures" / "chats"
RUNS = ROOT / "fixtures" / "runs"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["--store", str(tmp_path / "store"), *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_command


def test_a_directory_is_learned_with_progress_and_again_without_change(run: Run) -> None:
    status, out, _ = run("learn", str(CHATS))
    again = run("learn", str(CHATS))[1]

    assert status == 0
    assert "[1/3]" in out
    assert "3 sources, 3 changed, 0 not readable" in out
    assert "3 sources, 0 changed, 0 not readable" in again


def test_files_that_cannot_be_read_do_not_end_it(run: Run, tmp_path: Path) -> None:
    status, out, err = run("learn", str(tmp_path / "absent.org"), str(CHATS / "stream.org"))

    assert status == 2
    assert "absent.org" in err
    assert "1 sources, 1 changed, 1 not readable" in out


def test_files_with_odd_names_do_not_end_it(run: Run, tmp_path: Path) -> None:
    """A name that is no UTF-8, a link to itself, a pipe."""
    directory = tmp_path / "d"
    directory.mkdir()
    chat = (CHATS / "stream.org").read_bytes()
    (directory / "a\udcff.org").write_bytes(chat)
    (directory / "b.org").write_bytes(chat)
    (directory / "c.org").symlink_to("c.org")
    os.mkfifo(directory / "d.org")
    status, out, err = run("learn", str(directory), str(directory / "c.org"))

    assert status == 2
    assert r"a\udcff.org" in err
    assert "c.org" in err
    assert "1 sources, 1 changed, 2 not readable" in out
    assert run("expand", "\udcff")[0] == 2


def test_other_files_of_a_directory_are_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "notes.txt").write_text("no chat\n")
    (tmp_path / "d" / "data.json").write_text("{}\n")
    (tmp_path / "d" / ".hidden").mkdir()
    (tmp_path / "d" / ".hidden" / "chat.org").write_bytes((CHATS / "stream.org").read_bytes())

    assert "0 sources, 0 changed, 0 not readable" in run("learn", str(tmp_path / "d"))[1]


def test_live_conversations_are_learned_with_vectors(run: Run, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    chat = Adapter(store)
    chat.send(message("the numbat escaped"))
    chat.end(assistant("noted"))
    chat.service.close()
    store.close()
    status, out, _ = run("learn", "--live", "--vectors")
    found = json.loads(run("sources", "--json")[1])

    assert status == 0
    assert "1 sources, 1 changed" in out
    assert (found["total"], found["waiting"], found["unembedded"]) == (1, 0, 0)


def test_what_is_found_can_be_expanded(run: Run) -> None:
    run("learn", str(CHATS / "stream.org"))
    out = run("search", "contents", "of", "Makefile")[1]
    hit = json.loads(run("search", "contents", "of", "Makefile", "--json")[1])["hits"][0]
    expanded = run("expand", hit["id"], "--offset", str(hit["at"]))[1]

    assert hit["id"] in out
    assert f"retention expand {hit['id']} --offset {hit['at']}" in out
    assert "   | " in out
    assert expanded.startswith("contents of Makefile")


def test_an_empty_answer_is_no_proof(run: Run) -> None:
    run("learn", str(CHATS / "stream.org"))
    status, out, _ = run("search", "zyzzyva", "--mode", "lexical")

    assert status == 0
    assert "does not show that the fact does not exist" in out


def test_a_search_makes_a_torn_index_anew(run: Run, tmp_path: Path) -> None:
    run("learn", str(CHATS / "stream.org"))
    for file in (tmp_path / "store" / "index").glob("index.sqlite*"):
        file.write_bytes(b"torn" * 1_000)
    status, out, err = run("search", "Makefile")

    assert (status, "made anew" in err) == (0, True)
    assert "stream" in out or "How is this built?" in out


def test_filters_reach_the_search(run: Run) -> None:
    run("learn", str(CHATS / "stream.org"))

    def ids(*options: str) -> list[str]:
        found = json.loads(run("search", "Makefile", "--json", *options)[1])
        return [hit["id"] for hit in found["hits"]]

    assert ids()
    assert ids("--until", "2001-01-01") == []
    assert ids("--kind", "log") == []
    assert ids("--since", "2001-01-01", "--kind", "file") == ids()


def test_chunks_and_sources_are_listed(run: Run) -> None:
    run("learn", str(CHATS / "stream.org"))
    source = json.loads(run("sources", "--json")[1])["sources"][0]["source"]

    assert source in run("sources")[1]
    assert f"[{source}:" in run("chunks", source)[1]
    assert run("chunks", "nothing")[0] == 2


def test_a_failed_run_is_explained_from_what_was_learned(run: Run) -> None:
    run("learn", str(RUNS))
    status, out, _ = run("explain-run", "30531877402")
    refused = run("explain-run", "99999999999")

    assert (status, refused[0]) == (0, 1)
    assert "Signature: " in out
    assert "[Run:30531877402]" in out
    assert "not known" in refused[1]


def test_settings_are_shown_changed_and_refused(run: Run) -> None:
    assert run("settings", "reload.budget=5000")[0] == 0
    assert "5000" in run("settings")[1]
    assert run("settings", "reload.budget=five")[0] == 2
    assert run("settings", "reload.other=5")[0] == 2


def test_reload_prints_what_a_resumed_chat_gets(run: Run) -> None:
    run("learn", str(CHATS / "stream.org"))
    source = json.loads(run("sources", "--json")[1])["sources"][0]["source"]
    status, out, err = run("reload", source)

    assert status == 0
    assert "read says: contents of notes.txt" in out
    assert "2 of 2 distinct findings" in err


def test_rechunk_shows_old_beside_new(run: Run) -> None:
    run("learn", str(CHATS))
    status, out, _ = run("rechunk")

    assert status == 0
    assert "snapshots rebuilt 3 3" in " ".join(out.split())


def test_a_source_can_be_forgotten_and_checked(run: Run) -> None:
    run("learn", str(CHATS / "stream.org"))
    source = json.loads(run("sources", "--json")[1])["sources"][0]["source"]

    assert run("forget", source)[0] == 0
    assert json.loads(run("sources", "--json")[1])["sources"] == []
    assert run("check")[:2] == (0, "no problems\n")
