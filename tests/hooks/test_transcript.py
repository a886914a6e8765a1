"""The client's record of a session: which texts of hooks it holds, and which the model gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retention.hooks.transcript import Echo, read_echoes


class Record:
    """A session's file, written as the client does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.leaf: str | None = None
        self.count = 0

    def add(self, **fields: Any) -> str:
        self.count += 1
        entry = {
            "parentUuid": self.leaf, "isSidechain": False, "type": "user", "sessionId": "s",
            "uuid": f"u{self.count}", "timestamp": f"2026-11-30T12:00:{self.count:02}.500Z",
        }  # fmt: skip
        with self.path.open("a") as file:
            file.write(json.dumps(entry | fields) + "\n")
        self.leaf = entry["uuid"]
        return self.leaf

    def context(self, *texts: str, **fields: Any) -> str:
        attachment = {"type": "hook_additional_context", "content": texts, "hookEvent": "Stop"}
        return self.add(type="attachment", attachment=attachment, **fields)

    def live(self) -> list[str]:
        return [echo.text for echo in read_echoes(self.path, "s") if echo.live]

    def all(self) -> list[str]:
        return [echo.text for echo in read_echoes(self.path, "s")]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "s.jsonl")


def test_texts_come_in_order_with_their_time(record: Record) -> None:
    record.add()
    record.context("a", "b é")
    record.add()

    at = 1796040002.5
    assert read_echoes(record.path, "s") == [
        Echo(id="u2/0", text="a", at=at, live=True),
        Echo(id="u2/1", text="b é", at=at, live=True),
    ]


def test_session_without_a_file_has_none(record: Record) -> None:
    assert read_echoes(record.path, "s") == []


def test_other_sessions_and_agents_do_not_count(record: Record) -> None:
    record.context("other", sessionId="t")
    record.context("agent", isSidechain=True)
    record.context("mine")

    assert record.all() == ["mine"]


def test_lines_of_another_form_are_passed_over(record: Record) -> None:
    record.context("a")
    record.add(attachment={"type": "hook_additional_context", "content": {"odd": 1}})
    record.add(attachment={"type": "hook_success", "content": "x"})
    record.add(timestamp="yesterday", attachment={"type": "hook_additional_context",
                                                  "content": ["x"]})  # fmt: skip
    record.add()
    with record.path.open("ab") as file:
        file.write(b'[1]\n\xff\n{"type": "summary"}\n{"uuid": "u9", "attach')

    assert record.all() == record.live() == ["a"]


def test_what_stands_before_a_compaction_is_not_live(record: Record) -> None:
    record.context("before")
    kept = record.leaf
    record.leaf = None
    record.add(type="system", subtype="compact_boundary")
    record.leaf = kept  # as where the last messages are kept
    record.context("after")
    record.add()

    assert record.live() == ["after"]
    assert record.all() == ["before", "after"]


def test_what_was_rewound_is_not_live(record: Record) -> None:
    record.context("kept")
    fork = record.leaf
    record.context("left")
    assert record.live() == ["kept", "left"]
    record.leaf = fork
    record.add()

    assert record.live() == ["kept"]


def test_results_of_one_round_that_stand_side_by_side_hide_nothing(record: Record) -> None:
    record.context("before")
    call = record.leaf
    record.add()
    record.leaf = call
    record.add()
    record.context("after")

    assert record.live() == ["before", "after"]


def test_entries_that_follow_each_other_in_a_circle_end(record: Record) -> None:
    record.add(parentUuid="u2")
    record.context("a", parentUuid="u1")

    assert record.live() == ["a"]
