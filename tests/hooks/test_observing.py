"""Sections and reminders from a file: what they say, and what happens when they cannot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retention.errors import InvalidParams
from retention.hooks import observing
from retention.hooks.observing import observe, read_sources
from retention.model import Reminder, Section
from retention.receipts import Observed


def look(project: Path, toml: str) -> Observed:
    file = project / "retention.toml"
    file.write_text(toml, encoding="utf-8")
    return observe(read_sources(file), project)


def only(project: Path, line: str) -> Section:
    (found,) = look(project, f'[[section]]\nname = "s"\n{line}\n').sections
    return found


def test_sections_come_from_files_commands_and_text(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("in a file é\n", encoding="utf-8")
    found = look(
        tmp_path,
        """
        [[section]]
        name = "notes"
        title = "Notes"
        kind = "guidance"
        file = "notes"
        [[section]]
        name = "ls"
        command = "ls *.toml | tr a-z A-Z"
        [[section]]
        name = "rules"
        text = "be brief"
        """,
    )

    assert found.sections == (
        Section(name="notes", title="Notes", kind="guidance", body="in a file é\n"),
        Section(name="ls", title="ls", body="RETENTION.TOML\n"),
        Section(name="rules", title="rules", body="be brief"),
    )


def test_d1_file_that_is_not_there_is_nothing_available(tmp_path: Path) -> None:
    assert only(tmp_path, 'file = "none"') == Section(name="s", title="s")


@pytest.mark.parametrize("line", ['command = "echo half; exit 3"', 'file = "."'])
def test_d9_section_that_cannot_be_read_has_an_error(tmp_path: Path, line: str) -> None:
    assert only(tmp_path, line) == Section(name="s", title="s", error=True)


def test_d9_command_has_a_time_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for what it starts."""
    monkeypatch.setattr(observing, "COMMAND_TIME", 0.3)
    began = time.monotonic()

    assert only(tmp_path, 'command = "(sleep 1; touch late) & sleep 20"').error
    assert time.monotonic() - began < 5
    time.sleep(1.5)
    assert not (tmp_path / "late").exists()


def test_commands_run_at_the_same_time(tmp_path: Path) -> None:
    began = time.monotonic()
    entries = [f'[[section]]\nname = "s{n}"\ncommand = "sleep 0.5"\n' for n in range(8)]

    assert not any(section.error for section in look(tmp_path, "\n".join(entries)).sections)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("limit", "body"),
    [
        (4, "😀bcd\n\n(cut: the first 4 of 5 characters)"),
        (5, "😀bcde"),
        (0, "😀bcde"),
    ],
)
def test_limit_cuts_and_says_so(tmp_path: Path, limit: int, body: str) -> None:
    assert only(tmp_path, f'text = "😀bcde"\nlimit = {limit}').body == body


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_file_that_is_no_regular_one_is_an_error(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """D9: a pipe that nobody writes to holds nobody up."""
    make(tmp_path / "thing")

    assert only(tmp_path, 'file = "thing"').error


def test_reminders(tmp_path: Path) -> None:
    found = look(
        tmp_path,
        """
        [[reminder]]
        key = "once"
        body = "a"
        [[reminder]]
        key = "often"
        body = "b"
        policy = "every"
        turns = 5
        [[reminder]]
        key = "holds"
        body = "c"
        policy = "while"
        condition = "echo yes"
        [[reminder]]
        key = "silent"
        body = "d"
        policy = "while"
        condition = "true"
        [[reminder]]
        key = "not"
        body = "e"
        policy = "while"
        condition = "echo no; false"
        """,
    )

    assert {reminder.key: reminder.state for reminder in found.reminders} == {
        "once": None, "often": None, "holds": "yes", "silent": "it holds", "not": None,
    }  # fmt: skip
    assert found.reminders[1] == Reminder(key="often", body="b", policy="every", turns=5)


def test_condition_that_takes_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "COMMAND_TIME", 0.3)
    found = look(
        tmp_path,
        '[[reminder]]\nkey = "k"\nbody = "b"\npolicy = "while"\ncondition = "sleep 9"\n',
    )

    assert found.reminders == ()


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("[[section", "Expected"),
        ('[[section]]\nname = "a"\n', "needs one of"),
        ('[[section]]\nname = "a"\ntext = "x"\nfile = "y"\n', "needs one of"),
        ('[[section]]\nname = "a"\ntext = "x"\nkind = "rule"\n', "kind"),
        ('[[section]]\nname = "a"\ntexts = "x"\n', "texts"),
        ('[[sections]]\nname = "a"\ntext = "x"\n', "sections"),
        ('[[section]]\nname = "a"\ntext = "x"\n' * 2, "twice"),
        ('[[reminder]]\nkey = "a"\nbody = "x"\npolicy = "while"\n', "needs a condition"),
        ('[[reminder]]\nkey = "a"\nbody = "x"\ncondition = "true"\n', "needs a condition"),
    ],
)
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, toml: str, problem: str) -> None:
    with pytest.raises(InvalidParams, match=problem):
        look(tmp_path, toml)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParams, match="No such file"):
        read_sources(tmp_path / "none")
