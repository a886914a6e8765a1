"""What of earlier evidence is given again (L1-L4, T5)."""

from __future__ import annotations

import json

import pytest

from retention.encoding import encode_for_model
from retention.evidence.reloading import (
    HEADING,
    SEPARATOR,
    Bounds,
    Finding,
    bound_settings,
    reload,
    render_block,
    render_section,
)

AMPLE = Bounds(budget=24_000, rows=1_000)
NOON = 1_764_504_000.0  # 2025-11-30T12:00:00Z


def finding(id: str = "f1", tool: str = "bash", input: str = "", output: str = "done") -> Finding:
    return Finding(
        id=id, tool=tool, input=input or json.dumps({"command": id}), output=output, at=NOON
    )


def ids(findings: list[Finding], bounds: Bounds = AMPLE) -> list[str]:
    return [item.id for item in reload(findings, bounds).items]


def cost(*findings: Finding) -> int:
    return len(render_section(findings))


# L1


def test_the_newest_of_repeats_stands_where_others_lie_between_them():
    first, other, again = finding("new", input="{}"), finding("other"), finding("old", input="{}")

    made = reload([first, other, again], AMPLE)

    assert made.items == (first, other)
    assert (made.lines, made.rows, made.skipped) == (2, 3, 0)


def test_the_order_of_findings_is_kept():
    """Newest first; of equal times the order that they came in."""
    assert ids([finding("f2"), finding("f9"), finding("f1")]) == ["f2", "f9", "f1"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": {"c": 2, "d": 3}}', '{"b":{"d":3,"c":2},"a":1}'),
        ('{"n": 123456789012345678901234567890}', '{"n":123456789012345678901234567890}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ("not json", "not json"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_inputs_that_say_the_same_are_one(one: str, other: str):
    bounds = Bounds(budget=300_000, rows=10)

    assert ids([finding("new", input=one), finding("old", input=other)], bounds) == ["new"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"n": 12345678901234567890}', '{"n": 12345678901234567891}'),
        ('{"a": 1}', '{"a": "1"}'),
        ("not json", "not  json"),
    ],
)
def test_inputs_that_differ_are_two(one: str, other: str):
    assert ids([finding("new", input=one), finding("old", input=other)]) == ["new", "old"]


def test_the_same_input_of_another_tool_is_another():
    assert ids([finding("f1", "read", "{}"), finding("f2", "list", "{}")]) == ["f1", "f2"]


# L2


def test_what_does_not_fit_is_skipped_and_smaller_older_ones_are_kept():
    small, large, older = finding("f3"), finding("f2", output="x" * 9_000), finding("f1")
    bounds = Bounds(budget=cost(small, older), rows=1_000)

    made = reload([small, large, older], bounds)

    assert made.items == (small, older)
    assert made.skipped == 1
    assert ids([small, large, older], Bounds(budget=bounds.budget - 1, rows=1_000)) == ["f3"]


def test_the_budget_is_that_of_the_whole_section():
    """Heading and separators count: there is no constant that is not paid for."""
    items = [finding(f"f{n}", output="é" * 50) for n in range(300)]
    made = reload(items, AMPLE)

    assert made.skipped > 0
    assert AMPLE.budget - cost(items[0]) < cost(*made.items) <= AMPLE.budget


def test_the_budget_is_measured_as_a_model_reads_it():
    rows = json.dumps([{"name": f"file{n}", "size": n} for n in range(100)])
    item = finding(output=rows)
    budget = cost(item)

    assert budget < len(HEADING) + len(rows)
    assert ids([item], Bounds(budget=budget, rows=10)) == ["f1"]
    assert ids([item], Bounds(budget=budget - 1, rows=10)) == []


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -float("inf"), 1e18, 6.8e16])
def test_one_that_cannot_be_shown_drops_only_itself(at: float):
    broken = Finding(id="f2", tool="bash", input="{}", output="x", at=at)

    made = reload([finding("f3"), broken, finding("f1")], AMPLE)

    assert [item.id for item in made.items] == ["f3", "f1"]
    assert made.skipped == 1
    assert made.warnings[0].startswith("f2 cannot be shown: ")


def test_nothing_gives_no_section():
    assert reload([], AMPLE).items == ()
    assert render_section(()) == ""
    assert ids([finding()], Bounds(budget=len(HEADING), rows=10)) == []


# L3


def test_reaching_the_row_bound_is_said_each_time():
    """Repeats fill the rows, an older result is not read, and most of the budget is unspent."""
    repeats = [finding(f"f{n}", input="{}") for n in range(300)]
    bounds = Bounds(budget=24_000, rows=300)

    made = reload(repeats, bounds)

    assert (made.rows, made.lines, len(made.items)) == (300, 1, 1)
    shortest = len(SEPARATOR) + len("Evidence :  () @ unknown time\n")
    payable = (24_000 - len(HEADING)) // shortest
    (warning,) = made.warnings
    assert "300 results were read" in warning
    assert "1 of them differ" in warning
    assert warning.endswith(f"at most {payable}")
    assert reload(repeats, bounds).warnings == made.warnings


def test_staying_below_the_row_bound_says_nothing():
    assert reload([finding()], Bounds(budget=24_000, rows=2)).warnings == ()


@pytest.mark.parametrize("output", ["", "{}", "[]", "null", "0", '""', '{"a":{}}', "[[]]", " "])
@pytest.mark.parametrize("at", [0.0, NOON, -1.0, 253_402_300_799.0])
def test_no_block_is_shorter_than_the_shortest(output: str, at: float):
    block = render_block(Finding(id="", tool="", input="", output=output, at=at))

    assert len(block) >= len("Evidence :  () @ unknown time\n")


# L4


@pytest.mark.parametrize(
    ("stored", "budget", "rows"),
    [
        ({}, 24_000, 1_000),
        ({"reload.budget": 83, "reload.rows": 289}, 83, 289),
        ({"reload.budget": 200_000, "reload.rows": 10_000}, 200_000, 10_000),
        ({"reload.budget": 82, "reload.rows": 288}, 24_000, 1_000),
        ({"reload.budget": 200_001, "reload.rows": 10_001}, 24_000, 1_000),
        ({"reload.budget": -5, "reload.rows": 500}, 24_000, 500),
        ({"other": 7}, 24_000, 1_000),
    ],
)
def test_bounds_are_those_stored_where_they_are_in_range(
    stored: dict[str, int], budget: int, rows: int
):
    assert bound_settings(stored) == Bounds(budget=budget, rows=rows)


# What a model reads


def test_a_block_says_what_was_called_and_when():
    item = Finding(id="o12", tool="read", input='{"path":"a.py"}', output="x = 1\n", at=NOON + 0.9)

    assert render_block(item) == (
        'Evidence o12: read ({"path":"a.py"}) @ 2025-11-30T12:00:00Z\nx = 1\n'
    )


def test_a_time_that_is_not_known_is_not_made_up():
    item = Finding(id="o12", tool="read", input="{}", output="x")

    assert render_block(item) == "Evidence o12: read ({}) @ unknown time\nx"


def test_json_is_given_as_toon_whatever_its_shape_and_other_text_as_it_is():
    nested = {"a": [{"b": {"c": [1, {"d": 2}]}}, "x"], "n": 123456789012345678901234567890}

    def body(output: str) -> str:
        return render_block(finding(output=output)).split("\n", 1)[1]

    assert body(json.dumps(nested)) == encode_for_model(nested)
    for text in ('{"a": 1} and more', "plain\ntext", '{"a": 1, "a": 2}', '{"a": "\\ud800"}'):
        assert body(text) == text


def test_bytes_that_were_no_text_are_marked():
    assert render_block(finding(output="a\udcffb")).endswith("\na\ufffdb")


def test_a_section_says_that_it_is_a_selection_to_be_used_and_how_to_get_more():
    items = [finding("f2"), finding("f1")]

    section = render_section(items)

    assert section == "\n\n".join([HEADING, *map(render_block, items)])
    for words in ("newest first", "not all of them", "rather than repeat", "search_evidence"):
        assert words in HEADING
