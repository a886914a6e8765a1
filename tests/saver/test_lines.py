"""Lines as a terminal shows them, what counts as a problem, shapes and sizes."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from retention.saver.lines import (
    MATCHED,
    PIECE,
    WHOLE,
    clean,
    is_problem_line,
    line_shape,
    read_lines,
    read_pieces,
    size_words,
)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[1;31mFAILED\x1b[0m tests/a.py", "FAILED tests/a.py"),
        ("\x1b]8;;http://x.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        (" 10%\r 50%\r100% done\r", "100% done"),
        ("12%\r\x1b[K", "12%"),
        ("done\r", "done"),
        ("ab\bc", "ac"),
        ("plain", "plain"),
    ],
)
def test_a_line_is_what_a_terminal_leaves(line, shown):
    assert clean(line) == shown


def test_only_the_line_feed_ends_a_line():
    text = "a\r\nb\x0cc\u2028d\n\ne"
    lines = read_lines(text)

    assert lines.clean == ["a", "b\x0cc\u2028d", "", "e"]
    assert [text[a:b] for a, b in pairwise(lines.starts)] == ["a\r\n", "b\x0cc\u2028d\n", "\n", "e"]


def test_no_pattern_meets_more_than_the_beginning_of_a_line():
    assert len(read_lines("x" * 10_000).clean[0]) == MATCHED
    assert len(clean("\x1b[0m" + "x" * 10_000)) == MATCHED


def test_a_long_line_is_cut_into_pieces_after_its_commas():
    text = "first\n" + '{"key": 1},' * 200 + "\nlast"
    pieces = read_pieces(read_lines(text))

    assert pieces.clean[0] == "first"
    assert pieces.clean[-1] == "last"
    assert set(pieces.owners) == {0, 1, 2}
    assert all(piece.endswith("},") for piece in pieces.clean[1:-2])
    assert all(len(piece) <= PIECE for piece in pieces.clean)


def test_a_line_up_to_the_bound_is_one_piece():
    assert len(read_pieces(read_lines("x" * WHOLE)).clean) == 1
    assert len(read_pieces(read_lines("x" * (WHOLE + 2))).clean) > 1


@pytest.mark.parametrize(
    "line",
    [
        "ERROR could not open the store",
        "src/a.c:3:1: error: expected ';'",
        "ValueError: 3",
        "java.lang.NullPointerException: x",
        "FAILED tests/a.py::test_x - assert 1 == 2",
        "not ok 3 - adds",
        "##[error]Process completed with exit code 1.",
        "thread 'main' panicked at src/main.rs:3:5:",
        "make: *** [all] Segmentation fault (core dumped)",
        "bash: foo: command not found",
        "cp: cannot stat 'x': No such file or directory",
        "npm warn deprecated x@1",
        "3 failed, 20 passed",
        "2 errors, 0 warnings",
    ],
)
def test_a_line_that_says_what_went_wrong_is_a_problem(line):
    assert is_problem_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "0 errors, 0 warnings",
        "found 0 vulnerabilities, no errors",
        "src/errors.py: formatted",
        "  include/error.h",
        "test_error_handling PASSED",
        "on-error: continue",
        "Compiling failure-derive v0.1",
        "ok",
        "",
    ],
)
def test_a_name_and_a_count_of_none_are_no_problem(line):
    assert not is_problem_line(line)


def test_lines_of_one_statement_have_one_shape():
    first = line_shape("12:03:04 worker 17 wrote 0x7ffe00 to a1b2c3d4e5f6 in 12.5 ms")
    second = line_shape("12:03:09 worker  3 wrote 0x55aa10 to 99ffee001122 in 7.25 ms")

    assert first == second
    assert line_shape("worker 3 read") != line_shape("worker 3 wrote")


def test_sizes_are_in_kilobytes_of_1024_bytes():
    assert size_words(48_000) == "46.9 KB"
    assert size_words(0) == "0.0 KB"
    assert size_words(3_000_000) == "2,929.7 KB"


@pytest.mark.parametrize(
    "text", ["\r" * 1_000_000, "\x1b[" * 500_000, "a\b" * 500_000, "-" * 1_000_000]
)
def test_no_line_takes_long(text):
    begin = time.process_time()
    lines = read_lines(text)
    read_pieces(lines)
    is_problem_line(lines.clean[0])

    assert time.process_time() - begin < 1.0
