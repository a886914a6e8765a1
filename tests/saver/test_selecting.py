"""What is kept within a bound: whole segments, problems, the task's words, rare lines, ends."""

from __future__ import annotations

import re

import pytest

from retention.saver.lines import read_lines, read_pieces
from retention.saver.scoring import Evidence, weigh
from retention.saver.segments import split
from retention.saver.selecting import Selection, select

PARTS = [f"PASS part {part}\n" + "steady as it goes\n" * 50 for part in range(15)]
KINDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho".split()
PROBLEMS = [f"error: {kind} went wrong in a way of its own" for kind in KINDS]
HUGE = "FAIL huge\n" + "".join(f"{line}\n" + "steady as it goes\n" * 200 for line in PROBLEMS)
TEXT = "".join([*PARTS, HUGE, "the end\n"])


def selected(text=TEXT, *, task="", limit=16_000, **options):
    pieces = read_pieces(read_lines(text))
    segments = split(pieces)
    return select(pieces, segments, weigh(pieces, task), limit=limit, **options)


def segments(text=TEXT):
    return split(read_pieces(read_lines(text)))


def test_problems_the_beginning_and_the_end_are_kept():
    text = selected().render()

    assert text.startswith("PASS part 0\n")
    assert text.endswith("the end\n")
    assert all(line in text for line in PROBLEMS)


def test_what_stands_around_a_problem_comes_along():
    middle = PROBLEMS[8]
    assert (
        f"steady as it goes\nsteady as it goes\n{middle}\nsteady as it goes\n"
        in selected().render()
    )


def test_wanted_segments_are_kept_whole_and_leave_room_for_problems():
    wanted = [one for one in segments() if one.label.startswith("PASS")]
    kept = selected(wanted=wanted, limit=15_000)
    whole = [one for one in wanted if all(kept.kept[at] for at in kept.pieces_of(one))]

    assert 5 < len(whole) < len(wanted)
    assert whole == wanted[: len(whole)]
    assert all(line in kept.render() for line in PROBLEMS)


def test_a_wanted_segment_that_does_not_fit_is_skipped():
    wanted = sorted(segments(), key=lambda one: -one.size)
    kept = selected(wanted=wanted, limit=15_000)

    assert not all(kept.kept[at] for at in kept.pieces_of(wanted[0]))
    assert any(all(kept.kept[at] for at in kept.pieces_of(one)) for one in wanted[1:])


@pytest.mark.parametrize("task", ["", "what of the wombat?"])
def test_a_rare_line_is_kept_whatever_the_task(task):
    lines = TEXT.splitlines()
    lines.insert(2_000, "note: wombats were seen near shard 9")

    assert lines[2_000] in selected("\n".join(lines), task=task, limit=5_000).render()


def test_lines_of_a_format_come_before_the_rest():
    lines = TEXT.splitlines()
    parsed = list(range(1_500, 1_600))
    kept = selected(parsed=parsed)

    assert all(kept.kept[at] for at in parsed)
    assert lines[1_500] == "steady as it goes"


def test_a_gap_says_its_lines_its_segment_and_its_size():
    text = "".join(f"line {number:04}\n" for number in range(1, 2_001))
    pieces = read_pieces(read_lines(text))
    found = split(pieces)
    kept = Selection(pieces, found, 10_000)
    kept.keep([0, 1, 5])
    first = found[0].last
    size = sum(len(f"line {number:04}\n") for number in range(7, first + 1))

    assert kept.render().split("\n", 6)[:5] == [
        "line 0001",
        "line 0002",
        "[lines 3-5 of segment 1 omitted, 0.0 KB]",
        "line 0006",
        f"[lines 7-{first} of segment 1 omitted, {size / 1024:.1f} KB]",
    ]


def test_a_segment_of_which_nothing_is_kept_is_quoted():
    pieces = read_pieces(read_lines(TEXT))
    found = split(pieces)
    text = Selection(pieces, found, 10_000).render()

    assert text.splitlines()[1] == (
        f'[segment 2 of {len(found)} omitted, {found[1].size / 1024:.1f} KB, "{found[1].label}"]'
    )


def test_a_part_of_a_long_line_is_named_as_such():
    pieces = read_pieces(read_lines("first\n" + "x" * 9_000 + "\nlast\n"))
    kept = Selection(pieces, split(pieces), 5_000)
    kept.keep([0, 1, len(pieces.clean) - 1])

    assert re.search(
        r"^\[part of line 2 of segment \d omitted, \d\.\d KB\]$", kept.render(), re.MULTILINE
    )


def test_what_does_not_fit_changes_nothing():
    pieces = read_pieces(read_lines(TEXT))
    kept = Selection(pieces, split(pieces), 3_000)
    assert kept.keep([10, 11])
    before = kept.cost, bytes(kept.kept), kept.render()

    assert not kept.keep(range(len(pieces.clean)))
    assert (kept.cost, bytes(kept.kept), kept.render()) == before


def test_a_gap_that_its_line_would_not_shorten_is_closed():
    pieces = read_pieces(read_lines(TEXT))
    kept = Selection(pieces, split(pieces), 5_000)
    kept.keep([3, 5, 40])
    kept.close()

    assert kept.kept[4]
    assert not kept.kept[20]


def test_the_cost_is_never_less_than_the_text():
    pieces = read_pieces(read_lines(TEXT))
    for step in range(2, 40):
        kept = Selection(pieces, split(pieces), 1_000_000)
        kept.keep(range(0, len(pieces.clean), step))
        assert len(kept.render()) <= kept.cost <= 1.5 * len(kept.render())


# Outputs in which every line is a problem of a kind of its own.
ERRORS = [f"error: {a}{b} broke {c}" for a in KINDS for b in KINDS for c in KINDS[:9]]


def test_a_problem_of_each_segment_is_kept_however_clear_the_others_are():
    pieces = read_pieces(read_lines("steady as it goes\n" * 3_000))
    problems = dict.fromkeys(range(1_000), 1.0) | {1_700: 0.1}
    kept = select(pieces, split(pieces), Evidence(problems, {}, {}), limit=6_000)

    assert kept.kept[1_700]


def test_problems_leave_room_for_a_rare_line():
    lines = [*ERRORS[:1_200], "<<note>> {wombats} were seen near shard 9", *ERRORS[1_200:]]

    assert lines[1_200] in selected("\n".join(lines), limit=6_000).render()


def test_what_answers_the_task_comes_before_the_lines_of_a_format():
    steady = ["steady as it goes"] * 1_500
    answers = [f"quokka {kind} is well" for kind in KINDS * 10]
    text = "\n".join([*steady, *answers, *steady])
    kept = selected(text, task="quokka", limit=6_000, parsed=range(len(steady)))

    assert all(answer in kept.render() for answer in answers)
    assert kept.render().count("quokka") == len(answers)


def test_no_gap_is_shorter_than_the_line_that_stands_for_it():
    text = "".join(f"error: {kind}\nok\n" + "steady as it goes\n" * 100 for kind in KINDS * 20)
    kept = selected(text, parsed=range(0, 2_000, 2))
    starts = kept.pieces.starts
    shortest = min(starts[gap.after] - starts[gap.first] for gap in kept.gaps())

    assert shortest > len("[line 10 of segment 1 omitted, 0.0 KB]\n")
