"""A settings file with our hooks in it, and out of it again."""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retention.errors import InvalidParams
from retention.hooks import settings
from retention.hooks.settings import add_hooks, make_command, remove_hooks

EVENTS = ("UserPromptSubmit", "Stop")
COMMAND = make_command("claude-code", ["--store", "/a b"])
OTHER = {"matcher": "Bash", "hooks": [{"type": "command", "command": "mine"}]}


def written(value: object, indent: int | str | None = 2) -> bytes:
    return json.dumps(value, indent=indent, ensure_ascii=False).encode() + b"\n"


def commands(text: bytes, event: str) -> list[str]:
    entries = json.loads(text)["hooks"].get(event, [])
    return [hook["command"] for entry in entries for hook in entry["hooks"]]


def test_entries_are_added_as_a_person_would_write_them() -> None:
    assert add_hooks(b'{\n    "model": "x"\n}\n', ["Stop"], "run") == (
        b'{\n    "model": "x",\n    "hooks": {\n        "Stop": [\n            {\n'
        b'                "hooks": [\n                    {\n'
        b'                        "type": "command",\n'
        b'                        "command": "run",\n'
        b'                        "timeout": 10\n'
        b"                    }\n                ]\n            }\n        ]\n    }\n}\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        b'{\n  "b": 1.50,\n  "a": [1, 2,  3],\n  "e": "\\u00e9"\n}\n',
        b'{"b": 1e3, "hooks": {"Stop": []}, "a": {}}',
        b'{\n\t"hooks": {\n\t\t"Stop": [\n\t\t\t{"matcher": "x", "hooks": []}\n\t\t]\n\t}\n}',
        written({"hooks": {"Stop": [OTHER], "PreToolUse": [OTHER, OTHER]}, "z": None}),
        written({"hooks": {"PreToolUse": [OTHER]}}, 4).replace(b"\n", b"\r\n"),
    ],
)
def test_all_else_stays_byte_for_byte(text: bytes) -> None:
    """What is put in is one stretch for each place; without it the file is as it was."""
    installed = add_hooks(text, EVENTS, COMMAND)

    assert commands(installed, "Stop")[-1] == COMMAND
    removed = remove_hooks(installed)
    assert removed in (text, text.replace(b', "hooks": {"Stop": []}', b""))


def test_ours_alone_is_removed() -> None:
    text = add_hooks(written({"hooks": {"Stop": [OTHER]}}), EVENTS, COMMAND)
    text = text.replace(b'"mine"', b'"retention hook claude-code"')

    assert json.loads(remove_hooks(text)) == {
        "hooks": {"Stop": [OTHER | {"hooks": [
            {"type": "command", "command": "retention hook claude-code"}]}]}
    }  # fmt: skip


NAMES = st.sampled_from(["Stop", "UserPromptSubmit", "PreToolUse", "é"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
HOOKS = st.dictionaries(NAMES, st.lists(JSON.filter(bool), min_size=1), min_size=1)
SETTINGS = st.builds(
    lambda others, hooks: others | ({"hooks": hooks} if hooks else {}),
    st.dictionaries(st.text().filter(lambda key: key != "hooks"), JSON),
    st.none() | HOOKS,
)


@given(SETTINGS, st.sampled_from([None, 0, 1, 2, 4, "\t"]))
def test_any_settings_come_back(value: dict[str, Any], indent: int | str | None) -> None:
    text = written(value, indent)
    installed = add_hooks(text, EVENTS, COMMAND)

    for event in EVENTS:
        assert json.loads(installed)["hooks"][event][-1]["hooks"][0]["command"] == COMMAND
    assert list(json.loads(installed)) == [*value, *([] if "hooks" in value else ["hooks"])]
    removed = remove_hooks(installed)
    assert json.loads(removed) == value
    if value:
        assert removed == text
    assert remove_hooks(removed) == removed


# The file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".claude" / "settings.local.json"


def test_install_makes_the_file_and_a_second_time_changes_nothing(path: Path) -> None:
    assert settings.install(path, EVENTS, COMMAND)
    before = path.stat()

    assert not settings.install(path, EVENTS, COMMAND)
    assert path.stat().st_ino == before.st_ino
    assert [commands(path.read_bytes(), event) for event in EVENTS] == [[COMMAND]] * 2
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_another_command_takes_the_place_of_the_earlier_one(path: Path) -> None:
    settings.install(path, EVENTS, COMMAND)
    later = make_command("claude-code", [])

    assert settings.install(path, ["Stop"], later)
    assert commands(path.read_bytes(), "Stop") == [later]
    assert commands(path.read_bytes(), "UserPromptSubmit") == []


def test_rights_and_links_stay(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_text("{}")
    real.chmod(0o600)
    path.parent.mkdir()
    path.symlink_to(real)

    assert settings.install(path, EVENTS, COMMAND)
    assert path.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "// note\n{}", '{"hooks": []}', '{"hooks": {"Stop": {}}}', '{"hooks": null}', "1"],
)
@pytest.mark.parametrize(
    "action", [lambda path: settings.install(path, EVENTS, COMMAND), settings.uninstall]
)
def test_file_that_is_no_settings_file_is_refused_and_stays(
    path: Path, text: str, action: Callable[[Path], bool]
) -> None:
    path.parent.mkdir()
    path.write_text(text)

    with pytest.raises(InvalidParams, match="nothing was changed"):
        action(path)
    assert path.read_text() == text


def test_uninstall_without_a_file_makes_none(path: Path) -> None:
    assert not settings.uninstall(path)
    assert not path.exists()


def test_uninstall_leaves_an_empty_object(path: Path) -> None:
    settings.install(path, EVENTS, COMMAND)

    assert settings.uninstall(path)
    assert path.read_text() == "{}\n"
    assert not settings.uninstall(path)


def test_command_does_not_look_into_the_project_for_modules() -> None:
    assert shlex.split(COMMAND)[1:4] == ["-P", "-m", "retention"]
