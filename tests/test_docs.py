"""The pages name everything that the code offers, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retention import cli, errors, protocol, server
from retention.framing import MAX_HEADER
from tests import examples

DOCS = Path(__file__).parent.parent / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text(encoding="utf-8")
DEBUGGING = (DOCS / "debugging.md").read_text(encoding="utf-8")

ERROR_ROW = re.compile(r"^\| (-\d+) \| `(\w+)` \|", re.MULTILINE)
COMMAND_ROW = re.compile(r"^\| `([\w-]+)[^|]*` \|", re.MULTILINE)


def tree(error: type[errors.RetentionError]) -> list[type[errors.RetentionError]]:
    return [error, *(found for sub in error.__subclasses__() for found in tree(sub))]


def sections() -> dict[str, str]:
    """Return the text below each method's heading."""
    parts = re.split(r"^### (.+)\n", PROTOCOL.split("\n## Changing")[0], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_method_has_a_section_and_every_section_a_method() -> None:
    assert sorted(sections()) == sorted(protocol.METHODS)


@pytest.mark.parametrize("method", protocol.METHODS)
def test_every_method_shows_an_example_of_a_result(method: str) -> None:
    shown = [name for name, _ in examples.blocks(sections()[method])]
    own = [name for name in shown if examples.method(name) == method]
    assert any("result" in examples.load(name) for name in own)


@pytest.mark.parametrize("method", protocol.METHODS)
def test_every_parameter_is_named_in_the_section_of_its_method(method: str) -> None:
    params, result = protocol.METHODS[method]
    fields = params.__struct_fields__ + (result.__struct_fields__ if result else ())
    text = sections()[method]
    assert [name for name in fields if f"`{name}`" not in text and f'"{name}"' not in text] in (
        [],
        ["ok"],  # described once for all answers without content
    )


def test_every_error_code_has_a_row_with_the_number_it_crosses_with() -> None:
    numbers = {code: int(number) for number, code in ERROR_ROW.findall(PROTOCOL)}
    expected = {error.code: server.FAILED for error in tree(errors.RetentionError)}
    expected |= {
        "invalid_params": server.INVALID_PARAMS,
        "internal": server.INTERNAL_ERROR,
        "framing": server.PARSE_ERROR,
        "parse_error": server.PARSE_ERROR,
        "invalid_request": server.INVALID_REQUEST,
        "unknown_method": server.UNKNOWN_METHOD,
    }
    assert numbers == expected


def test_limits_are_stated_as_they_are() -> None:
    assert f"at most {MAX_HEADER} bytes" in PROTOCOL
    assert f"at most {protocol.MAX_FRAME} bytes" in PROTOCOL
    assert f"version\n**{protocol.PROTOCOL}**" in PROTOCOL
    assert f"at most {protocol.MAX_ID} bytes" in PROTOCOL
    assert f"at most {server.MAX_DEPTH} deep" in PROTOCOL
    assert f"above {protocol.MAX_INLINE // 1024} KB" in PROTOCOL
    assert f"A result above {server.MAX_RESULT // 1024} KB" in PROTOCOL
    assert f"at most {protocol.MAX_FILE // 1024**2} MB" in PROTOCOL


def test_examples_are_shown_as_their_fixtures_have_them() -> None:
    assert examples.render(PROTOCOL) == PROTOCOL


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    assert COMMAND_ROW.findall(DEBUGGING) == list(cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_of_a_command_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    row = next(line for line in DEBUGGING.splitlines() if line.startswith(f"| `{name}"))
    common = {"--help", "--store", "--json"}

    options = set(re.findall(r"--\w+", capsys.readouterr().out)) - common

    assert options == set(re.findall(r"--\w+", row))


def test_every_command_has_help() -> None:
    for name, command in cli.COMMANDS.items():
        assert (command.run.__doc__ or "").endswith("."), name


def test_shown_frames_have_the_length_that_they_say() -> None:
    shown = re.findall(r"Content-Length: (\d+)(?:\\r\\n\s*){2}(\{.*\})", PROTOCOL + DEBUGGING)
    assert [(int(length), len(body)) for length, body in shown] == [(65, 65), (70, 70)]


@pytest.mark.parametrize("page", [PROTOCOL, DEBUGGING], ids=["protocol", "debugging"])
def test_links_lead_to_pages(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page):
        assert (DOCS / target).exists(), target
