"""Tool outputs through the service: kept whole, shown in part, recalled exactly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retention.errors import InvalidParams, UnknownConversation, UnknownObject
from retention.service import Service
from retention.store import Store

LOG = "".join(f"2026-01-01 12:00:{n % 60:02} step {n} of the build went fine\n" for n in range(900))
BROKEN = LOG.replace("step 450 of the build went fine", "ERROR step 450: disk quota exceeded")


class Client:
    """Calls a service as Emacs does; `restart` opens the store anew, in another service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.numbers = itertools.count(1)
        self.store = Store.open(path)
        self.start()
        self.id = self.call("conversation/open").id

    def start(self) -> None:
        self.service = Service(
            self.store, clock=lambda: 1.0, random_id=lambda: f"{next(self.numbers):032x}"
        )
        self.call("initialize", protocol=1)

    def restart(self) -> None:
        self.store.close()
        self.store = Store.open(self.path)
        self.start()

    def call(self, method: str, **params: Any) -> Any:
        return self.service.call(method, json.dumps(params).encode())

    def save(self, body: str | bytes, **params: Any) -> Any:
        if isinstance(body, bytes):
            file = self.path.parent / "body"
            file.touch(mode=0o600)
            file.write_bytes(body)
            params["body"] = {"file": str(file), "bytes": len(body)}
        else:
            params["body"] = body
        return self.call("output/save", **{"conversation": self.id, "tool": "run"} | params)

    def recall(self, id: str, **params: Any) -> Any:
        return self.call("output/recall", **{"conversation": self.id, "id": id} | params)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path / "store")
    yield made
    made.store.close()


def test_short_result_is_left_alone_and_not_stored(client: Client) -> None:
    """O1: a result of exactly the limit stays as it is."""
    saved = client.save("x" * 12_000)

    assert (saved.id, saved.text, saved.strategy) == ("", "x" * 12_000, "whole")
    assert client.call("output/list", conversation=client.id)["outputs"] == []


def test_long_result_is_stored_whole_and_shown_in_part(client: Client) -> None:
    """O1, O4: the bytes are there before anything else; the error line is shown."""
    saved = client.save(BROKEN, call='{"cmd":"make"}')

    assert len(saved.text) < 16_000 < len(BROKEN)
    assert "ERROR step 450: disk quota exceeded" in saved.text
    assert saved.id in saved.text
    (listed,) = client.call("output/list", conversation=client.id)["outputs"]
    assert (listed["id"], listed["chars"], listed["shown"]) == (
        saved.id,
        len(BROKEN),
        len(saved.text),
    )
    assert client.store.check() == ()


def test_every_part_comes_back_exactly_after_a_restart(client: Client) -> None:
    """O7: pages join to the whole, each within the one cap."""
    id = client.save(BROKEN).id
    client.restart()

    pages, offset = [], 0
    while True:
        page = client.recall(id, offset=offset, by="model")
        assert len(page.text) <= 6_000
        pages.append(page.text.partition("\n")[2])
        offset = page.more
        if not offset:
            break

    assert "".join(pages) == BROKEN
    assert client.recall(id, first=451, last=451).text.endswith(BROKEN.splitlines()[450] + "\n")
    assert "ERROR step 450" in client.recall(id, pattern="quota").text


def test_bytes_that_are_no_text_are_kept_and_named(client: Client) -> None:
    """O1, S8: stored exactly; what the model gets is text."""
    data = b"\xff\xfe\x00binary " * 3_000

    saved = client.save(data)

    assert "no UTF-8" in saved.text
    saved.text.encode()
    found = client.store.read()
    with found as reader:
        assert reader.object(reader.outputs(client.id, 1)[0].blob) == data


def test_equal_result_becomes_a_note(client: Client) -> None:
    """O3: it points to the earlier one, whose id stands for the same text."""
    first = client.save(BROKEN)
    second = client.save(BROKEN)

    assert second.strategy == "duplicate"
    assert len(second.text) < 500
    assert first.id in second.text


@pytest.mark.parametrize("verdict", ["PASS", "FAIL"])
def test_results_that_differ_far_into_a_line_are_not_the_same(client: Client, verdict: str) -> None:
    """O3: minified JSON, or a line that was longer the last time."""
    line = '{"log":"' + "y" * 20_000 + '","result":"%s"}'
    client.save(line % "PASS")

    again = client.save(line % verdict)
    longer = client.save("y" * 40_000)

    assert (again.strategy == "duplicate") is (verdict == "PASS")
    assert longer.strategy != "duplicate"


def test_short_result_that_is_no_text_is_stored(client: Client) -> None:
    """O1: what the model gets has U+FFFD, so the bytes must be kept."""
    saved = client.save(b"caf\xe9 " * 10)

    assert saved.id
    with client.store.read() as reader:
        assert reader.object(reader.outputs(client.id, 1)[0].blob) == b"caf\xe9 " * 10


def test_what_was_recalled_is_not_cut_again(client: Client) -> None:
    """O7: a call that names an output's id gets what it asked for, page by page."""
    id = client.save(BROKEN).id

    again = client.save(LOG + "more\n", tool="run", call=json.dumps({"cmd": f"grep -n x {id}"}))

    assert again.strategy == "page"


def test_ledger_counts_what_was_saved_and_recalled(client: Client) -> None:
    """O8: parts and whole recalls of the model, none of the user's."""
    id = client.save(BROKEN).id
    client.save(BROKEN)
    client.recall(id, first=1)
    client.recall(id)
    client.recall(id, by="user")

    stats = client.call("output/list", conversation=client.id)["stats"]

    assert (stats["large"], stats["excerpts"], stats["duplicates"]) == (2, 1, 1)
    assert (stats["recalls"], stats["whole_recalls"]) == (2, 1)
    assert stats["chars"] == 2 * len(BROKEN)
    assert stats["token_turns"] > 0


def test_search_names_the_output_and_the_line(client: Client) -> None:
    id = client.save(BROKEN).id

    found = client.call("output/search", conversation=client.id, query="QUOTA step")
    none = client.call("output/search", conversation=client.id, query="absent word")

    assert f"{id}:451: " in found.text
    assert "no line" in none.text


def test_search_goes_on_where_it_stopped(client: Client) -> None:
    client.save(LOG)

    seen, offset = [], 0
    while True:
        page = client.call("output/search", conversation=client.id, query="step", offset=offset)
        assert len(page.text) <= 6_000
        seen += page.text.splitlines()[1:]
        offset = page.more
        if not offset:
            break

    assert len(seen) == len(set(seen)) == 900


def test_scores_of_a_model_choose_the_segments(client: Client) -> None:
    """O5: what is asked names each segment; any other answer leaves the excerpt as it was."""
    saved = client.save(BROKEN, scorer="model", task="What happened at step 800?")
    asked = json.loads(saved.ask or Path(saved.ask_file.file).read_text())
    names = [name for name in asked["schema"]["properties"] if name != "whole"]
    answer = dict.fromkeys(names, 0.1) | {"whole": 0.0, names[-1]: 0.9}

    scored = client.call(
        "output/score", conversation=client.id, id=saved.id, answer=json.dumps(answer)
    )
    unscored = client.call("output/score", conversation=client.id, id=saved.id, answer="no")

    assert scored.strategy == "segments"
    assert scored.text != saved.text
    assert "step 899" in scored.text
    assert unscored.text == saved.text


def test_nothing_is_asked_of_what_needs_no_scores(client: Client) -> None:
    assert client.save("short", scorer="model").ask == ""
    client.save(BROKEN)
    assert client.save(BROKEN, scorer="model").ask == ""


def test_bad_input_changes_nothing(client: Client) -> None:
    id = client.save(BROKEN).id

    with pytest.raises(UnknownObject):
        client.recall("o" + "0" * 12)
    with pytest.raises(InvalidParams):
        client.recall(id, segment="nosuch")
    with pytest.raises(InvalidParams):
        client.save("x", limits={"tail": 0})
    with pytest.raises(UnknownConversation):
        client.save("x", conversation="f" * 32)
    assert client.store.check() == ()


def test_forgetting_a_conversation_takes_its_outputs(client: Client) -> None:
    """Z2: with the last conversation that has it, an output is gone."""
    id = client.save(BROKEN).id
    client.call("conversation/forget", id=client.id)

    with pytest.raises(UnknownObject):
        client.recall(id)
