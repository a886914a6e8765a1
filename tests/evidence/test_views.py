"""What of a long event is embedded, and what gets a vector of its own (V3)."""

from __future__ import annotations

import re
import time

import pytest

from retention.evidence.chunking import HARD_MAX, cut_snapshot
from retention.evidence.snapshots import Piece, join_pieces, make_event
from retention.evidence.views import (
    CLIP,
    HEAD,
    HEADER,
    MOST,
    PROBLEMS,
    SEGMENT,
    SEGMENTS,
    TAIL,
    embedded_text,
    short_segments,
)
from retention.model import EventKind

WORDS = "amber birch cedar delta ember fjord grove heath inlet juniper".split()


def line(n: int) -> str:
    """A line like no other: its words, not its digits, tell them apart."""
    return "".join(f" {WORDS[int(digit)]}" for digit in f"{n:04}").strip()


def log(count: int = 800, **changes: str) -> list[str]:
    """A header and COUNT lines that are no problems; CHANGES are of lines, as in n12="..."."""
    lines = ["[tool_output bash]", *map(line, range(count))]
    for name, text in changes.items():
        lines[int(name[1:])] = text
    return lines


def view(lines: list[str]) -> str:
    return embedded_text("\n".join(lines) + "\n", whole=True)


# Which texts are reduced


def test_a_chunk_up_to_the_bound_is_embedded_as_it_stands():
    text = "x\n" * (HARD_MAX // 2)

    assert embedded_text(text, whole=True) == text
    assert embedded_text(text + "x", whole=True) != text + "x"


def test_what_begins_with_no_header_of_a_long_event_is_embedded_as_it_stands():
    """Later pieces, and a message, however long and whatever it begins with."""
    text = "\n".join(log())

    assert embedded_text(text, whole=False) == text


def test_chunks_of_a_long_message_are_embedded_as_they_stand():
    text = make_event(EventKind.ASSISTANT, "\n".join(log()))
    chunks = cut_snapshot(join_pieces([Piece(EventKind.ASSISTANT, text)]))

    assert len(chunks) > 1
    for chunk in chunks:
        own = text[chunk.start : chunk.end]
        assert embedded_text(own, whole=chunk.whole) == own


def test_the_chunk_of_a_long_tool_event_is_embedded_by_its_view():
    text = make_event(EventKind.TOOL_OUTPUT, "\n".join(log()[1:]), "bash")
    (chunk,) = cut_snapshot(join_pieces([Piece(EventKind.TOOL_OUTPUT, text, "bash")]))

    assert embedded_text(text, whole=chunk.whole) == view(log())


# The view


def test_a_view_has_the_header_the_opening_a_problem_of_the_middle_and_the_closing():
    lines = log(n400="src/a.py:3: error: no such name")
    opening, problem, closing = view(lines).split("lines omitted]\n")
    first, last = opening.split("\n")[:-1], closing.split("\n")

    assert first == lines[: len(first)]
    assert HEAD - 60 < len("\n".join(first[1:])) <= HEAD
    assert problem.startswith("src/a.py:3: error: no such name\n[... ")
    assert last == lines[-len(last) :]
    assert TAIL - 60 < len(closing) <= TAIL
    gaps = [int(part.rsplit(" ", 2)[1]) for part in (opening, problem)]
    assert gaps == [400 - len(first), len(lines) - len(last) - 401]


def test_a_gap_of_one_line_says_so():
    lines = log(n400="error: one", n402="error: two")

    assert "error: one\n[... 1 line omitted]\nerror: two\n" in view(lines)


def test_a_clean_log_is_its_opening_and_closing():
    assert view(log()).count("omitted]") == 1
    assert HEAD + TAIL - 120 < len(view(log())) < HEAD + TAIL + 60


def test_problems_of_one_shape_are_shown_once():
    """Shapes that the opening shows count as seen."""
    lines = log(
        n2="error: file 1 is bad",
        n300="error: file 2 is bad",
        n400="error: disk 0xdeadbeef01 is full",
        n500="error: disk 0xcafe00 is full",
    )
    made = view(lines)

    assert "error: file 1 is bad" in made
    assert "file 2" not in made
    assert "error: disk 0xdeadbeef01 is full" in made
    assert "0xcafe00" not in made


@pytest.mark.parametrize("where", [1, 400])
def test_three_lines_that_differ_in_digits_or_hex_ids_collapse_with_a_count(where: int):
    lines = log()
    lines[where:where] = [f"warning: block {n:06x}1 of {n} lost" for n in range(3)]
    made = view(lines)

    assert "warning: block 0000001 of 0 lost [x3 similar lines]\n" in made
    assert made.count("warning") == 1
    gaps = [int(gap) for gap in re.findall(r"\[\.\.\. (\d+) lines omitted\]", made)]
    assert sum(gaps) + 3 + (made.count("\n") + 1 - len(gaps) - 1) == len(lines)


def test_two_like_lines_of_the_opening_stand_and_like_lines_of_the_closing_collapse():
    lines = log(n2="item 1", n3="item 2")
    lines += [f"item {n}" for n in range(5)]
    made = view(lines)

    assert "\nitem 1\nitem 2\n" in made
    assert made.endswith("\nitem 0 [x5 similar lines]")


def test_a_text_of_like_lines_is_one_line():
    assert view(["[tool_output bash]", *(f"tick {n}" for n in range(2_000))]) == (
        "[tool_output bash]\ntick 0 [x2000 similar lines]"
    )


def test_long_lines_that_begin_alike_do_not_collapse():
    """They differ where no shape sees it."""
    lines = [f"{'x' * 2_100}{n}" for n in range(4)]

    assert "similar" not in view(["[tool_output bash]", *lines])


def test_problems_keep_within_their_share_and_their_number():
    long = [f"error: {line(n)} {'detail ' * 10}" for n in range(400)]
    short = [f"error {word}{other}" for word in WORDS for other in WORDS]

    for problems in (long, short):
        lines = log()
        lines[400:400] = problems
        shown = [part for part in view(lines).split("\n") if part.startswith("error")]
        assert 20 < len(shown) <= MOST
        assert len("\n".join(shown)) <= PROBLEMS
        assert shown == problems[: len(shown)]


def test_one_huge_line_keeps_its_start_and_end():
    text = "".join(map(line, range(3_000)))
    rest = len(text) - HEAD - TAIL

    made = view(["[tool_output bash]", text])

    assert made == (
        f"[tool_output bash]\n{text[:HEAD]}\n[... {rest} characters omitted]\n{text[-TAIL:]}"
    )
    # An output without a header is the same without one.
    assert view([text]) == made.removeprefix("[tool_output bash]\n")


def test_a_huge_first_and_a_huge_last_line_keep_their_own_end():
    first, last = "a" * 3_000 + "b" * 3_000, "c" * 3_000 + "d" * 3_000
    lines = ["[tool_output bash]", first, "note", "error: between", last]

    assert view(lines).split("\n") == [
        "[tool_output bash]",
        first[:HEAD],
        f"[... {6_000 - HEAD} characters omitted]",
        "[... 1 line omitted]",
        "error: between",
        f"[... {6_000 - TAIL} characters omitted]",
        last[-TAIL:],
    ]


def test_a_first_line_that_is_too_long_for_a_header_is_text():
    lines = ["x" * (HEADER + 1), *log()]

    assert len(view(lines)) < HEADER + HEAD + TAIL


def test_a_long_problem_line_is_clipped_around_what_is_wrong():
    lines = log(n400="x" * 900 + " error: no space left " + "y" * 900)

    (shown,) = (part for part in view(lines).split("\n") if "error" in part)

    assert len(shown) == CLIP
    assert "x error: no space left y" in shown


def test_only_the_line_feed_ends_a_line():
    lines = log(n400="a\x0cerror: b\u2028c\x1cd\r")

    assert "\na\x0cerror: b\u2028c\x1cd\r\n" in view(lines)


def test_a_megabyte_is_reduced_quickly():
    lines = [
        f"2026-04-21T20:32:12 worker-{n % 7} step {n} of {line(n % 10_000)} took {n / 7:.3f}s"
        for n in range(12_000)
    ]
    lines[100::97] = [f"src/a.py:{n}: error: {line(n)} is bad" for n in range(len(lines[100::97]))]
    text = "\n".join(lines)
    assert len(text) > 900_000

    def measure() -> float:
        begun = time.perf_counter()
        embedded_text(text, whole=True)
        return time.perf_counter() - begun

    # The bound is 60 ms; three times as much where the machine is busy.
    assert min(measure() for _ in range(3)) < 0.18


# Short segments


def segments(lines: list[str]) -> list[str]:
    text = "\n".join(lines) + "\n"
    return [text[start:end] for start, end in short_segments(text)]


def test_a_problem_is_a_segment_with_a_line_around_it():
    lines = log(n400="error: one", n401="error: another")

    assert segments(lines) == ["\n".join(lines[399:403]) + "\n"]


def test_a_text_without_problems_and_a_short_text_have_no_segments():
    assert segments(log()) == []
    assert segments(["error: one", "x" * (SEGMENT - 12)]) == []
    assert segments(["error: one", "x" * (SEGMENT - 11)]) != []


def test_segments_are_one_for_each_shape():
    assert len(segments(log(n300="error: file 1", n400="error: file 2", n500="fatal: no"))) == 2


def test_the_clearest_problems_come_first_where_there_are_too_many():
    warnings = {f"n{10 * n}": f"warning: {line(n)}" for n in range(1, 20)}

    found = segments(log(**warnings, n500="error: the one"))

    assert len(found) == SEGMENTS
    assert "error: the one" in found[-1]
    assert [f"warning: {line(n)}" in one for n, one in enumerate(found, 1)][:-1] == [True] * 11


def test_a_block_of_problems_is_cut_within_its_size():
    lines = log()
    lines[400:400] = [f"error: {line(n)} {'x' * 100}" for n in range(8)]

    found = segments(lines)

    assert all(len(one) <= SEGMENT for one in found)
    assert sum(one.count("error:") for one in found) >= 8
    assert all(one.endswith("\n") for one in found)


def test_a_long_problem_line_is_a_segment_around_what_is_wrong():
    lines = log(n400="x" * 450 + " error: no space left " + "y" * 450)

    (found,) = segments(lines)

    assert len(found) == SEGMENT
    assert "x error: no space left y" in found
