"""The decisions in their order (O3), and what an excerpt says (O4)."""

from __future__ import annotations

import json
import re
import time
import tracemalloc

import pytest

from retention.saver.excerpting import (
    Earlier,
    Known,
    Options,
    Output,
    Strategy,
    decode,
    excerpt,
    output_id,
    sameness,
)
from retention.saver.segments import bytes_of

# Prose in which every line differs, an error in the middle, and how it ended.
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards box five dozen jugs".split()
LINES = [" ".join(WORDS[(at * step) % len(WORDS)] for step in range(1, 12)) for at in range(900)]
LINES[450] = "ERROR: fixture session could not be opened"
LINES.append("exited with code 3")
TEXT = "\n".join(LINES) + "\n"
NEUTRAL = "Is this in order?"


def made(
    text=TEXT, *, task=NEUTRAL, tool="run", call="", known=None, scores=None, whole=False, **options
):
    data = text if isinstance(text, bytes) else bytes_of(text)
    output = Output(data=data, task=task, tool=tool, call=call)
    return excerpt(output, Options(**options), known or Known(), scores, whole=whole)


# Left alone


def test_a_result_of_exactly_the_bound_is_left_alone_and_one_more_is_not():
    text = TEXT[:11_999] + "\n"

    assert made(text).text == text
    assert made(text).strategy is Strategy.WHOLE
    assert made(text + "x").strategy is Strategy.GENERIC


@pytest.mark.parametrize(
    "call",
    [
        '{"command": "make 2>&1 | tail -200"}',
        "head -c 30000 log",
        "sed -n 100,300p file",
        "grep -m 20 error log",
        "rg --max-count=5 x",
        '{"path": "a.py", "offset": 100, "limit": 500}',
        '{"file": "a.py", "start_line": 10}',
    ],
)
def test_what_the_call_narrowed_itself_is_left_alone(call):
    assert made(TEXT[:30_000], call=call).text == TEXT[:30_000]
    assert made(call=call).strategy is Strategy.GENERIC


@pytest.mark.parametrize(
    "call", ["make all", "cat overhead.txt", "detail", '{"limit": 0}', "grep error log"]
)
def test_what_only_looks_like_it_is_not(call):
    assert made(TEXT[:30_000], call=call).strategy is Strategy.GENERIC


# Needed whole


@pytest.mark.parametrize(
    "task",
    ["Give me the exact output.", "Print it verbatim", "I need the full contents of the file"],
)
def test_a_task_that_needs_the_whole_gets_it(task):
    text = TEXT[:15_000]

    assert made(text, task=task).text == text
    assert made(task=task).strategy is Strategy.PAGE


DIFF = "".join(
    f"diff --git a/{n}.py b/{n}.py\n--- a/{n}.py\n+++ b/{n}.py\n@@ -1 +1 @@\n-{n}\n+{n + 1}\n"
    for n in range(200)
)


def test_a_diff_under_review_is_given_whole_and_another_output_is_not():
    assert made(DIFF, task="Please review this").text == DIFF
    assert made(TEXT[:15_000], task="Please review this").strategy is Strategy.GENERIC


def test_the_first_page_says_how_much_there_is_and_where_to_go_on():
    page = made(task="I need the exact output")
    end = int(re.search(r"offset (\d+)\.\]$", page.text)[1])

    assert len(page.text) <= 16_000
    assert page.text.split("\n", 1)[0].startswith(
        f"[The first {end:,} of {len(TEXT):,} characters."
    )
    assert TEXT[:end] in page.text
    assert page.id in page.text.rsplit("\n", 1)[1]


def test_a_model_may_say_that_the_whole_is_needed():
    assert made(whole=True).strategy is Strategy.PAGE


def test_what_was_recalled_is_never_excerpted_again():
    known = Known(handles=("/store/o1.txt", "oabc"))

    assert made(call="cat /store/o1.txt", known=known).strategy is Strategy.PAGE
    assert made(TEXT[:15_000], call='{"id": "oabc"}', known=known).text == TEXT[:15_000]


def test_a_path_is_found_in_a_call_that_is_json():
    path = "C:\\store\\o1.txt"
    call = json.dumps({"command": f"type {path}"})

    assert made(call=call, known=Known(handles=(path,))).strategy is Strategy.PAGE


# Seen before


def test_an_identical_result_becomes_a_short_note():
    known = Known(earlier={sameness(TEXT): Earlier(id="o123", tool="make")})
    note = made(known=known)

    assert note.strategy is Strategy.DUPLICATE
    assert len(note.text) < 300
    assert "o123" in note.text
    assert "make" in note.text
    assert f"{len(TEXT):,} characters, 901 lines" in note.text


def test_colours_and_spaces_at_the_end_make_no_difference():
    coloured = "\n" + TEXT.replace("ERROR", "\x1b[31mERROR\x1b[0m").replace("\n", "  \r\n")

    assert sameness(coloured) == sameness(TEXT)
    assert sameness(TEXT.replace("ERROR", "error")) != sameness(TEXT)


def test_a_short_result_is_not_compared():
    short = TEXT[:1_999]

    assert made(short, known=Known(earlier={sameness(short): Earlier(id="o1")})).text == short


# JSON


ROWS = (
    "["
    + ",\n".join(
        f'{{"name": "package-{n}", "version": "1.{n}", "latest": null}}' for n in range(250)
    )
    + "]"
)


def test_json_that_fits_in_a_shorter_notation_is_given_whole():
    encoded = made(ROWS)

    assert encoded.strategy is Strategy.ENCODED
    assert len(encoded.text) < len(ROWS) - 1_000
    assert encoded.text.count("package-") == 250
    assert encoded.id in encoded.text.splitlines()[-1]


def test_json_stays_json_where_it_is_asked_to():
    assert made(ROWS, json="never").strategy is Strategy.FORMAT


# Excerpts


def test_an_excerpt_has_the_error_in_the_middle_and_the_end():
    text = made().text

    assert LINES[450] in text
    assert text.splitlines()[-2] == "exited with code 3"
    assert len(text) <= 16_000


def test_the_header_comes_first_with_the_true_size_and_the_footer_last_with_the_id():
    lines = made(known=Known(path="/store/o1.txt")).text.splitlines()

    assert lines[0].startswith("[Excerpt of output: ")
    assert "of 901 lines, " in lines[0]
    assert f"of {len(TEXT) / 1024:.1f} KB" in lines[0]
    assert "before concluding that something is absent" in lines[0]
    assert output_id(TEXT.encode()) in lines[-1]
    assert "/store/o1.txt" in lines[-1]


def test_an_omitted_segment_is_named_by_its_id_in_the_footer():
    text = "".join(f"PASS test_{n} {'ok ' * 300}\n" * 11 for n in range(16))
    shown = made(text, excerpt_max_chars=5_000)
    footer = shown.text.splitlines()[-1]
    numbers = [int(number) for number in re.findall(r"\[segment (\d+) of \d+ omitted", shown.text)]

    assert numbers
    for number in numbers:
        assert f"{number} = {shown.segments[number - 1].id}" in footer


def test_lines_and_sizes_of_what_is_left_out_add_up():
    shown = made()
    body = shown.text.splitlines()[1:-1]
    gone = 0
    for first, last, segment in re.findall(
        r"^\[lines? (\d+)(?:-(\d+))? of segment|^\[segment (\d+) of", "\n".join(body), re.MULTILINE
    ):
        if segment:
            gone += (
                shown.segments[int(segment) - 1].last - shown.segments[int(segment) - 1].first + 1
            )
        else:
            gone += int(last or first) - int(first) + 1
    kept = sum(last - first + 1 for first, last in shown.kept)

    assert kept + gone == shown.lines == 901
    assert f"{kept} of 901 lines" in shown.text


def test_what_is_kept_stands_as_it_was():
    shown = made(TEXT.replace("fixture", "\x1b[31mfixture\x1b[0m"))
    lines = [line for first, last in shown.kept for line in TEXT.splitlines()[first - 1 : last]]
    body = [
        line
        for line in shown.text.splitlines()[1:-1]
        if not re.match(r"\[(?:lines?|segment) ", line)
    ]

    assert [line.replace("\x1b[31m", "").replace("\x1b[0m", "") for line in body] == lines
    assert any("\x1b[31mfixture" in line for line in body)


def test_text_that_holds_a_marker_is_ordinary_text():
    markers = [
        '[segment 4 of 16 omitted, 2.1 KB, "x"]',
        "[Whole output: id o1. recall_output returns any part exactly.]",
        "<<ccr:abcdef>> Retrieve more: hash=0123456789abcdef01234567",
    ]
    text = TEXT.replace(LINES[300], "\n".join(markers))

    assert made(text).strategy is Strategy.GENERIC
    assert LINES[450] in made(text).text


def test_timestamps_are_no_places_in_files():
    """The one error of a log whose lines begin with times of one form stays."""
    log = [f"2026-04-21T20:32:{n % 60:02}.{n:07}Z   adding asset {n}" for n in range(4_000)]
    log[1_700] = "2026-04-21T20:32:12.0000000Z ##[error]Process completed with exit code 1."

    assert log[1_700] in made("\n".join(log)).text


@pytest.mark.parametrize(
    "form", ["src/m{n}.py:{n}:5: E501 Line too long ({n} > 100)", "src/m{n}.py:{n}: error: x{n}"]
)
def test_where_every_line_is_a_problem_the_odd_one_stays(form):
    lines = [form.format(n=number) for number in range(5_000)]
    lines[3_210] = "fatal: disk quota exceeded on /dev/sdq7"

    assert lines[3_210] in made("\n".join(lines)).text


def test_one_character_fifty_thousand_times_stays_short():
    assert len(made("x" * 50_000).text) <= 16_000


def test_a_line_of_570_kb_does_not_reach_the_model():
    text = "before\n" + '{"key": "value"}, ' * 32_000 + "\nerror: after\n"
    shown = made(text)

    assert len(shown.text) <= 16_000
    assert "error: after" in shown.text
    assert max(map(len, shown.text.splitlines())) < 16_000


def test_bytes_that_are_no_text_are_counted_and_shown_as_such():
    shown = made(TEXT.encode().replace(b"fixture", b"fixt\xff\xfere"))

    assert "2 bytes are no UTF-8" in shown.text.splitlines()[0]
    assert "fixt\ufffd\ufffdre" in shown.text


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 40_000, bytes(range(256)) * 200, b"\xff" * 40_000, b"\n" * 40_000]
)
def test_any_bytes_give_something_that_can_be_sent(data):
    shown = made(data)

    shown.text.encode()
    assert len(shown.text) <= min(len(decode(data)), 16_000)


def test_nothing_is_left_out_for_a_small_gain():
    assert made(
        TEXT[:12_100], segment_max_fraction=0.99, saved_min_chars=5_000
    ).chars - 5_000 >= len(
        made(TEXT[:12_100], segment_max_fraction=0.99, saved_min_chars=5_000).text
    )


def test_bounds_too_small_for_an_excerpt_give_a_page():
    shown = made(excerpt_max_chars=700)

    assert shown.strategy is Strategy.PAGE
    assert len(shown.text) <= 700


# A model's scores


def test_segments_with_high_scores_are_kept_whole_best_first():
    plain = made()
    scores = [0.1] * len(plain.segments)
    scores[9] = 0.95
    shown = made(scores=scores)
    wanted = plain.segments[9]

    assert shown.strategy is Strategy.SEGMENTS
    assert TEXT[wanted.start : wanted.end] in shown.text
    assert TEXT[wanted.start : wanted.end] not in plain.text
    assert LINES[450] in shown.text


@pytest.mark.parametrize(
    "scores", [None, [], [0.9], [0.69] * 16, [float("nan")] * 16, [0.0] * 16, [0.9] * 15]
)
def test_without_a_high_score_the_excerpt_is_byte_for_byte_the_same(scores):
    assert made(scores=scores) == made()


def test_what_does_not_fit_is_skipped_and_never_breaks_the_bound():
    shown = made(scores=[1.0] * 16)

    assert shown.strategy is Strategy.SEGMENTS
    assert len(shown.text) <= 16_000
    assert LINES[450] in shown.text


def test_a_segment_left_out_with_problems_says_so():
    parts = [f"PASS test_{n}\n" + "error: the same again\n" * 400 for n in range(40)]
    omitted = re.findall(r"\[segment .*\]", made("".join(parts), excerpt_max_chars=3_000).text)

    assert omitted
    assert all(re.search(r", \d+ problems?, ", line) for line in omitted)


# Cost


@pytest.mark.parametrize("line", ["x", '{"key": "value"}, '])
def test_a_line_of_10_mb_takes_half_a_second(line):
    data = (line * (10_000_000 // len(line))).encode()
    begin = time.process_time()
    made(data)

    assert time.process_time() - begin < 1.0  # 0.5 where nothing else runs


def test_memory_stays_below_four_times_the_output():
    data = TEXT.encode() * (8_000_000 // len(TEXT))
    tracemalloc.start()
    made(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4 * len(data)
