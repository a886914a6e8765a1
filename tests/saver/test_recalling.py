"""Parts of an output, exactly: by segment, lines and pattern, page by page."""

from __future__ import annotations

import pytest

from retention.errors import InvalidParams
from retention.saver.lines import read_lines, read_pieces
from retention.saver.recalling import recall_lines, recall_pattern, recall_segment, recall_whole
from retention.saver.segments import split

TEXT = "".join(
    f"line {number} says {'error' if number % 100 == 0 else 'nothing'}\n"
    for number in range(1, 1_001)
)


def test_a_part_within_the_bound_is_one_page():
    page = recall_lines("o1", TEXT, 3, 5, limit=6_000)

    assert (
        page.answer.split("\n", 1)[1]
        == "line 3 says nothing\nline 4 says nothing\nline 5 says nothing\n"
    )
    assert page.resume is None
    assert "go on" not in page.answer


def test_a_page_ends_with_a_line_and_says_where_to_go_on():
    page = recall_whole("o1", TEXT, limit=1_000)
    head, body = page.answer.split("\n", 1)

    assert len(page.answer) <= 1_000
    assert body.endswith("\n")
    assert f"go on with offset {page.resume}" in head
    assert recall_whole("o1", TEXT, limit=1_000, offset=page.resume).spans[0][0] == len(body)


def test_a_long_line_never_gives_an_empty_page():
    page = recall_lines("o1", "x" * 600_000, 1, 1, limit=2_000)

    assert page.answer.count("x") > 1_800
    assert page.resume is not None


def test_the_last_line_may_lie_beyond_the_end():
    assert recall_lines("o1", TEXT, 1_000, 5_000, limit=6_000).answer.endswith(
        "line 1000 says error\n"
    )


@pytest.mark.parametrize(("first", "last"), [(0, 3), (5, 4), (1_001, 1_002), (-1, 5)])
def test_lines_that_are_not_there_are_refused(first, last):
    with pytest.raises(InvalidParams, match="1 to 1000"):
        recall_lines("o1", TEXT, first, last, limit=6_000)


def test_a_segment_is_recalled_by_its_id_and_not_by_its_number():
    segments = split(read_pieces(read_lines(TEXT)))
    third = segments[2]
    page = recall_segment("o1", TEXT, segments, third.id, limit=10_000)

    assert page.answer.split("\n", 1)[1] == TEXT[third.start : third.end]
    with pytest.raises(InvalidParams, match="no segment 3"):
        recall_segment("o1", TEXT, segments, "3", limit=6_000)


def test_a_pattern_gives_each_line_with_context():
    page = recall_pattern("o1", TEXT, "error", limit=6_000, context=1)

    assert page.answer.startswith(
        "[o1: 10 matches from here on]\n[lines 99-101]\nline 99 says nothing\n"
    )
    assert page.answer.count("says error") == 10
    assert page.resume is None


def test_neighbours_share_one_region():
    page = recall_pattern("o1", TEXT, r"line 1[0-2] ", limit=6_000, context=2)

    assert page.answer.count("[lines ") == 1
    assert "[lines 8-14]" in page.answer


def test_a_pattern_goes_on_where_a_page_ended():
    first = recall_pattern("o1", TEXT, "error", limit=300, context=0)
    second = recall_pattern("o1", TEXT, "error", limit=300, context=0, offset=first.resume)

    assert len(first.answer) <= 300
    assert "line 100 says error" in first.answer
    assert "line 100 says error" not in second.answer
    assert first.answer.count("says error") + second.answer.count("says error") > 6


def test_a_pattern_in_a_long_line_gives_the_pieces_around_it():
    text = "x" * 300_000 + "NEEDLE" + "y" * 300_000
    page = recall_pattern("o1", text, "needle", limit=6_000)

    assert "NEEDLE" in page.answer
    assert len(page.answer) < 6_000


def test_a_match_over_the_edge_of_two_pieces_is_found():
    for shift in range(12):
        text = "x" * (4_994 + shift) + "NEEDLE" + "y" * 4_000
        assert recall_pattern("o1", text, "NEEDLE", limit=6_000).spans


def test_a_capital_letter_makes_the_case_matter():
    assert recall_pattern("o1", TEXT, "ERROR", limit=6_000).spans == ()
    assert recall_pattern("o1", TEXT, r"\Derror", limit=6_000).spans


def test_no_match_says_so():
    page = recall_pattern("o1", TEXT, "absent", limit=6_000)

    assert page.answer == "[o1: no line matches absent, from offset 0]\n"
    assert page.resume is None


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "((ab)*)*", "(a|b|ab)*c", r"(\w+)\s\1", "a*b*c*d*e*", "(", "[z-a]"]
)
def test_a_pattern_that_may_take_for_ever_or_is_none_is_refused(pattern):
    with pytest.raises(InvalidParams, match=r"pattern|expression"):
        recall_pattern("o1", TEXT, pattern, limit=6_000)


@pytest.mark.parametrize(
    "pattern",
    [r"line \d+ says", "foo|bar", "[*+(]", r"\(x\)+", "(?:ab)+", "(error|nothing)$", "a.*b.*c"],
)
def test_ordinary_patterns_are_taken(pattern):
    recall_pattern("o1", TEXT, pattern, limit=6_000)


def test_bytes_that_are_no_text_are_shown_as_such():
    text = b"caf\xe9 \xff\n".decode("utf-8", "surrogateescape")

    assert recall_whole("o1", text, limit=6_000).answer.endswith("caf\ufffd \ufffd\n")
