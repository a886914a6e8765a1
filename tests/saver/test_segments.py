"""Where segments begin, how many there are, and what names them."""

from __future__ import annotations

import pytest

from retention.saver.lines import read_lines, read_pieces
from retention.saver.segments import LABEL, MOST, split

FILLER = "".join(f"line {number} of the part\n" for number in range(120))  # 2,500 characters or so


def segments(text, boundaries=()):
    return split(read_pieces(read_lines(text)), boundaries)


def labels(text):
    return [segment.label for segment in segments(text)]


@pytest.mark.parametrize(
    "header",
    [
        "diff --git a/{n} b/{n}",
        "PASS src/{n}.test.ts",
        "not ok {n} - adds",
        "=== RUN Test{n}",
        "________ test_{n} ________",
        "Traceback (most recent call last): {n}",
        "panic: {n}",
    ],
)
def test_a_segment_begins_at_each_header(header):
    headers = [header.format(n=number) for number in range(4)]

    assert labels("".join(f"{line}\n{FILLER}" for line in headers)) == headers


def test_a_pause_of_a_log_parts_it_and_steady_lines_do_not():
    steady = "".join(f"[12:00:{second:02}] step {second}\n" for second in range(60)) * 3
    log = steady + "[12:05:00] later\n" + steady.replace("12:00", "12:05")
    assert "[12:05:00] later" in labels(log)
    assert [one.first for one in segments(log) if one.label == "[12:00:07] step 7"] == []


def test_diffs_part_an_output_before_blank_lines_do():
    part = "diff --git a/{n} b/{n}\n" + "+x\n\n" * 800
    text = "".join(part.format(n=number) for number in range(20))

    assert all(label.startswith("diff --git") for label in labels(text))
    assert len(segments(text)) == MOST


def test_blank_lines_part_an_output_without_headers():
    assert [one.first for one in segments(f"{FILLER}\n\n{FILLER}")] == [1, 123]


def test_without_structure_segments_are_of_equal_size_and_end_with_lines():
    text = FILLER * 20
    sizes = [one.end - one.start for one in segments(text)]

    assert len(sizes) == MOST
    assert max(sizes) - min(sizes) < 100
    assert all(text[one.end - 1] == "\n" for one in segments(text))


def test_one_long_line_is_cut_too():
    found = segments("x" * 50_000)

    assert len(found) == MOST
    assert {(one.first, one.last) for one in found} == {(1, 1)}


def test_the_boundaries_of_a_format_come_first():
    text = f"{FILLER}\n\n{FILLER}"

    assert [one.first for one in segments(text, [5, 50])][:3] == [1, 6, 51]


def test_too_many_parts_are_joined_where_they_are_smallest():
    text = "".join(
        f"diff --git a/{n} b/{n}\n" + "+x\n" * (5 if n < 40 else 1_500) for n in range(50)
    )
    found = segments(text)

    assert len(found) == MOST
    assert sum(int(one.label.rpartition("/")[2]) >= 40 for one in found) == 10


def test_a_huge_part_is_cut_while_segments_are_left():
    text = "PASS a\nok\n" + "FAIL b\n" + FILLER * 30
    found = segments(text)

    assert len(found) > 10
    assert max(one.end - one.start for one in found) < len(text) // 8


def test_a_short_output_has_few_segments():
    assert len(segments("a\n\n" * 900)) == 2


def test_an_id_names_the_bytes_and_the_number_the_place():
    twice = segments(f"PASS a\n{FILLER}PASS b\n{FILLER}PASS a\n{FILLER}")

    assert [one.number for one in twice] == [1, 2, 3]
    assert twice[0].id == twice[2].id != twice[1].id
    moved = segments(f"FAIL z\n{FILLER}PASS a\n{FILLER}")
    assert moved[1].id == twice[0].id


def test_a_label_is_the_first_line_that_is_not_blank_clipped():
    text = f"\n   {'long ' * 40}\n{FILLER}"
    label = segments(text)[0].label

    assert label.startswith("long long")
    assert len(label) == LABEL


def test_nothing_has_no_segments():
    assert segments("") == ()
