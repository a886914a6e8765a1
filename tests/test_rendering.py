"""One renderer and one cap for structured results (rules K1-K3)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retention.encoding import decode_from_model, encode_for_model
from retention.rendering import (
    CAP_VARIABLE,
    DEFAULT_CAP,
    render_failure,
    render_result,
    result_cap,
)

ROOT = Path(__file__).parent.parent
LARGE = {"rows": [{"id": number, "path": f"src/{number}.py"} for number in range(2_000)]}


def test_k1_the_default_is_6000_code_points() -> None:
    assert result_cap() == DEFAULT_CAP == 6_000


@pytest.mark.parametrize(
    "setting",
    [
        *["not-a-number", "0", "-1", "", " ", "NaN", "inf", "1e4", "12.5", "0x10", "1_000", "+5"],
        *["9" * 5_000, "٣", 0, -5, None, True],
    ],
    ids=lambda setting: repr(setting)[:16],
)
def test_k1_what_is_no_positive_number_gives_the_default(setting: Any) -> None:
    assert result_cap(setting) == 6_000


@pytest.mark.parametrize(
    ("settings", "cap"),
    [
        (("12000",), 12_000),
        ((" 12000\n",), 12_000),
        ((700,), 700),
        (("12000", 700), 12_000),
        (("broken", 700), 700),
        ((None, "700"), 700),
    ],
)
def test_k1_the_first_good_setting_counts(settings: Any, cap: int) -> None:
    assert result_cap(*settings) == cap


def test_k2_a_result_within_the_cap_is_the_data_and_nothing_more() -> None:
    rendered = render_result("r1", {"hits": [1, 2]}, 6_000)

    assert rendered.content == "id: r1\ndata:\n  hits[2]: 1,2"
    assert (rendered.outcome, rendered.is_error) == ("complete", False)


def test_k2_a_result_of_exactly_the_cap_is_complete() -> None:
    whole = render_result("r1", "x" * 100, 6_000)
    size = len(whole.content)

    assert render_result("r1", "x" * 100, size) == whole
    assert render_result("r1", "x" * 100, size - 1).outcome == "partial"


def test_k2_a_cut_result_says_so_first() -> None:
    whole = encode_for_model({"id": "r1", "data": LARGE})
    rendered = render_result("r1", LARGE, 6_000)
    id_line, completeness, total, instruction, excerpt, rest = rendered.content.split("\n", 5)

    assert (rendered.outcome, rendered.is_error) == ("partial", False)
    assert id_line == "id: r1"
    assert completeness == "completeness: truncated"
    assert total == f"totalCharacters: {len(whole)}"
    assert re.match(r"instruction: narrow the query .* before .* absent$", instruction)
    assert excerpt == "dataExcerpt:"
    assert whole.startswith(rest)
    assert len(rendered.content) == 6_000


def test_c7_the_length_told_is_that_of_the_whole_in_code_points() -> None:
    data = "😀" * 10_000
    rendered = render_result("r1", data, 6_000)

    assert f"totalCharacters: {len('id: r1') + 1 + len('data: ') + 10_000}\n" in rendered.content
    assert len(rendered.content) == 6_000


@given(st.integers(1, 400), st.integers(0, 400))
def test_k2_nothing_is_longer_than_the_cap(cap: int, size: int) -> None:
    rendered = render_result("r1", "x" * size, cap)

    assert len(rendered.content) <= cap
    complete = rendered.outcome == "complete"
    assert complete == (cap >= len("id: r1\ndata: ") + (size or 2))
    assert not complete or decode_from_model(rendered.content) == {"id": "r1", "data": "x" * size}


def test_bytes_that_were_no_text_are_shown_as_such() -> None:
    data = {b"k\xff".decode("utf-8", "surrogateescape"): ["a\udc80\ud800b"]}

    assert decode_from_model(render_result("r1", data, 6_000).content) == {
        "id": "r1",
        "data": {"k\ufffd": ["a\ufffd\ufffdb"]},
    }


def test_k3_a_failure_is_one_line_with_the_id_and_the_flag() -> None:
    rendered = render_failure("r1", "recall_output", 6_000)

    assert rendered.content == "recall_output failed and has no result (id r1)."
    assert (rendered.outcome, rendered.is_error) == ("unavailable", True)
    assert len(render_failure("r1", "recall_output", 20).content) == 20


def test_k1_there_is_one_cap() -> None:
    """Nothing else in the sources names the variable, its idea or its number.

    A chunk of evidence is as long by rule V2, which is no cap of a result.
    """
    files = [*(ROOT / "retention").rglob("*.py"), *(ROOT / "elisp").glob("*.el")]

    def places(pattern: str) -> set[str]:
        return {
            path.relative_to(ROOT).as_posix()
            for path in files
            if re.search(pattern, path.read_text(encoding="utf-8"))
        }

    assert places(r"RESULT_MAX|result-max") == {"retention/rendering.py"}
    assert places(r"\b6[,_]?000\b") == {"retention/rendering.py", "retention/evidence/chunking.py"}
    assert CAP_VARIABLE == "RETENTION_RESULT_MAX_CHARS"


def test_k1_there_is_one_renderer() -> None:
    """Whoever writes for a model through TOON does so through `rendering`."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "retention").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and "encode_for_model" in {alias.name for alias in node.names}
    }

    assert users == {"retention/rendering.py"}
