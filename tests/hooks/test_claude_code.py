"""Hook events of Claude Code and our answers, against a record written as the client does."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from retention import cli, receipts
from retention.errors import StoreFull
from retention.hooks import CLIENT, claude_code
from retention.hooks.claude_code import LIMIT, respond
from retention.hooks.settings import FILE
from retention.model import Receipt
from retention.store import Store
from tests.hooks.test_transcript import Record

SECTIONS = """
[[section]]
name = "weather"
command = "cat weather"
[[section]]
name = "rules"
text = "be brief"
"""


class Client:
    """A session in a project; what a hook answers stands in its record unless it is told not to."""

    def __init__(self, root: Path, session: str = "s") -> None:
        self.root, self.session = root, session
        self.record = Record(root / f"{session}.jsonl")

    def fire(self, name: str, *, records: bool = True, **fields: Any) -> str:
        """Call the hook of event NAME and return the text that it answers."""
        said = self.call(name, **fields)
        text = said.get("hookSpecificOutput", {}).get("additionalContext", "")
        if text and records:
            self.note(text)
        return text

    def call(self, name: str, **fields: Any) -> dict[str, Any]:
        event = {
            "session_id": self.session, "hook_event_name": name, "cwd": str(self.root),
            "transcript_path": str(self.record.path),
        }  # fmt: skip
        output, problem = respond(json.dumps(event | fields).encode(), self.open)
        assert problem == ""
        said = json.loads(output or "{}")
        if "hookSpecificOutput" in said:
            assert said["hookSpecificOutput"]["hookEventName"] == name
        return said

    def prompt(self, **more: Any) -> str:
        return self.fire("UserPromptSubmit", **more)

    def note(self, *texts: str) -> None:
        stamp = datetime.now(UTC).isoformat()
        self.record.context(*texts, sessionId=self.session, timestamp=stamp)
        self.record.add(sessionId=self.session)

    def open(self) -> Store:
        return Store.open(self.root / "store")

    @property
    def receipts(self) -> list[Receipt]:
        store = self.open()
        try:
            with store.read() as reader:
                id = receipts.name_conversation(CLIENT, self.session)
                return [offer.receipt for offer in reader.offers(id)]
        finally:
            store.close()


@pytest.fixture
def client(tmp_path: Path) -> Client:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "retention.toml").write_text(SECTIONS)
    (tmp_path / "weather").write_text("sunny")
    return Client(tmp_path)


def test_prompts_are_told_what_is_due(client: Client) -> None:
    assert "sunny" in (first := client.prompt())
    assert "be brief" in first
    assert client.prompt() == ""
    (client.root / "weather").write_text("raining")
    assert "raining" in (changed := client.prompt())
    assert "be brief" not in changed


def test_x1_text_that_was_not_recorded_is_due_again(client: Client) -> None:
    text = client.prompt(records=False)

    assert client.prompt(records=False) == text
    client.note(text + " ")
    assert client.prompt() == text
    assert client.prompt() == ""


def test_x1_record_of_another_session_acknowledges_nothing(client: Client) -> None:
    other = Client(client.root, "other")
    text = other.prompt()

    assert client.prompt(records=False) == text
    assert client.call("UserPromptSubmit", transcript_path=str(other.record.path)) != {}


def test_x1_what_was_recorded_before_the_offer_is_no_receipt(client: Client) -> None:
    text = client.prompt(records=False)
    client.record.context(text, timestamp="2020-01-01T00:00:00Z")

    assert client.prompt() == text


def test_x1_state_that_returns_needs_a_receipt_of_its_own(client: Client) -> None:
    first = client.prompt()
    (client.root / "weather").write_text("raining")
    client.prompt()
    (client.root / "weather").write_text("sunny")

    assert "sunny" in client.prompt(records=False)
    assert "sunny" in client.prompt()
    assert client.prompt() == ""
    assert "be brief" in first


def test_x2_compaction_is_told_all(client: Client) -> None:
    text = client.prompt()
    client.record.leaf = None
    client.record.add(type="system", subtype="compact_boundary")

    assert client.fire("SessionStart", source="compact") == text
    assert client.prompt() == ""


def test_x2_compaction_that_no_hook_was_told_of_is_noticed(client: Client) -> None:
    text = client.prompt()
    assert client.prompt() == ""
    client.record.leaf = None
    client.record.add(type="system", subtype="compact_boundary")

    assert client.prompt() == text


def test_a4_what_was_rewound_is_told_again(client: Client) -> None:
    client.prompt()
    fork = client.record.leaf
    (client.root / "weather").write_text("raining")
    client.prompt()
    assert client.prompt() == ""
    client.record.leaf = fork
    client.record.add()

    assert "raining" in (again := client.prompt())
    assert "be brief" not in again


@pytest.mark.parametrize("source", ["startup", "resume", "clear", "fork"])
def test_start_of_a_session_leaves_all_to_its_first_prompt(client: Client, source: str) -> None:
    assert client.fire("SessionStart", source=source) == ""
    assert client.prompt()


@pytest.mark.parametrize("name", ["Stop", "PreCompact"])
def test_other_events_only_look_at_the_record(client: Client, name: str) -> None:
    client.prompt()
    (client.root / "weather").write_text("raining")

    assert client.fire(name) == ""
    assert client.receipts == [Receipt.ACKNOWLEDGED]


def test_results_of_tools_are_told_what_changed(client: Client) -> None:
    client.prompt()
    (client.root / "weather").write_text("raining")

    assert "raining" in client.fire("PostToolBatch")
    assert client.fire("PostToolBatch") == ""


def test_d7_agent_inside_the_session_gets_nothing(client: Client) -> None:
    assert client.fire("PostToolBatch", agent_id="a1") == ""
    assert client.receipts == []


def test_x2_oversized_section_waits_and_the_user_is_told_once(client: Client) -> None:
    (client.root / "weather").write_text("x" * LIMIT)

    said = client.call("UserPromptSubmit")
    assert "be brief" in said["hookSpecificOutput"]["additionalContext"]
    assert "weather has 101" in said["systemMessage"]
    assert "systemMessage" not in client.call("UserPromptSubmit")


# Failing open


def fails(client: Client, data: bytes = b"", **fields: Any) -> str:
    event = {"session_id": "s", "hook_event_name": "UserPromptSubmit", "cwd": str(client.root)}
    output, problem = respond(data or json.dumps(event | fields).encode(), client.open)
    assert output == ""
    assert len(problem.splitlines()) == 1
    return problem


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"session_id": 1}', b"\xff"])
def test_event_of_another_form_is_answered_with_nothing(client: Client, data: bytes) -> None:
    assert fails(client, data)


def test_missing_sections_deselect_nothing(client: Client) -> None:
    """Without its file a session is told nothing, not that all of it is inactive."""
    client.prompt()
    (client.root / ".claude" / "retention.toml").unlink()

    assert "No such file" in fails(client, transcript_path=str(client.record.path))
    assert client.receipts == [Receipt.ACKNOWLEDGED]


def test_store_that_fails_is_told_in_a_line(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreFull("no space")

    monkeypatch.setattr(Store, "open", full)
    assert fails(client) == "retention: no space"


def test_error_of_our_own_is_told_in_a_line(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claude_code, "observe", lambda *_: 1 / 0)
    assert fails(client) == "retention: ZeroDivisionError"  # its message may quote (rule Z5)


def test_answer_has_a_time_bound(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code, "TIME", 0.2)
    monkeypatch.setattr(claude_code, "observe", lambda *_: time.sleep(1))
    began = time.monotonic()

    assert "no answer within" in fails(client)
    assert time.monotonic() - began < 0.9
    time.sleep(1)  # until the store is closed again


# The command


@pytest.fixture
def run(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    store = str(client.root / "store")

    def run_command(*arguments: str, data: str = "") -> tuple[int, str, str]:
        stdin = io.TextIOWrapper(io.BytesIO(data.encode()))
        monkeypatch.setattr("sys.stdin", stdin)
        status = cli.main(["hook", *arguments, "--store", store])
        return status, *capsys.readouterr()

    return run_command


def event(client: Client) -> str:
    return json.dumps(
        {"session_id": "s", "hook_event_name": "UserPromptSubmit", "cwd": str(client.root)}
    )


def test_command_answers_an_event(client: Client, run: Any) -> None:
    status, output, problem = run(CLIENT, data=event(client))

    assert (status, problem) == (0, "")
    assert "sunny" in json.loads(output)["hookSpecificOutput"]["additionalContext"]


def test_command_never_fails(run: Any) -> None:
    status, output, problem = run(CLIENT, data="no event")

    assert (status, output) == (0, "")
    assert problem.startswith("retention: ")


def test_client_names_the_project(client: Client, run: Any, monkeypatch: Any) -> None:
    """The working directory of an event follows the session's `cd`."""
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", str(client.root))
    elsewhere = event(client).replace(str(client.root), "/")

    assert "sunny" in run(CLIENT, data=elsewhere)[1]


def test_install_and_uninstall(client: Client, run: Any) -> None:
    project = ("--project", str(client.root))
    path = client.root / FILE

    assert run("install", *project) == (0, f"{path}: written\n", "")
    command = json.loads(path.read_text())["hooks"]["Stop"][0]["hooks"][0]["command"]
    assert command.endswith(f"hook claude-code --store {client.root / 'store'}")
    assert run("install", *project) == (0, f"{path}: nothing to change\n", "")
    assert run("uninstall", *project) == (0, f"{path}: written\n", "")
    assert json.loads(path.read_text()) == {}


def test_install_tells_of_sections_that_cannot_be_read(client: Client, run: Any) -> None:
    more = ("--project", str(client.root), "--sections", "/none.toml")
    status, _, problem = run("install", *more)

    assert status == 0
    assert problem == "nothing is told yet: /none.toml: No such file or directory\n"
    assert "--sections /none.toml" in (client.root / FILE).read_text()


def test_install_into_no_directory_is_refused(client: Client, run: Any) -> None:
    assert run("install", "--project", str(client.root / "none"))[0] == 2


def test_session_is_listed_and_forgotten_like_a_conversation(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.prompt()
    store = ["--store", str(client.root / "store")]
    cli.main(["conversations", "--json", *store])
    (listed,) = json.loads(capsys.readouterr().out)["conversations"]

    assert listed["title"] == f"Claude Code: {client.root}"
    assert listed["turns"] == 1
    assert cli.main(["forget", listed["id"], *store]) == 0
    assert cli.main(["check", *store]) == 0
    assert client.receipts == []
