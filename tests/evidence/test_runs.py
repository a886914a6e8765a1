"""Logs of runs, cut at their errors, and the facts of runs (V4)."""

from __future__ import annotations

import time

import msgspec
import pytest

from retention.errors import InvalidParams
from retention.evidence.runs import (
    Run,
    clean_log,
    clean_message,
    is_log,
    log_id,
    parse_log,
    parse_run,
    parse_time,
    row_id,
    run_row,
    started_at,
)
from retention.model import EventKind
from tests.evidence.gold import RUNS, chunks, log_text

PAGES, RUFF, STRAY = "30524190877", "30513550918", "30617704459"
LOGS = sorted(path.name.split(".")[0] for path in (RUNS / "logs").iterdir())

AT = "2026-03-05T06:33:20.1234567Z"
FAILED = {"databaseId": 30524190877, "conclusion": "failure"}


def log(*lines, job="build", step="Test"):
    """Return a log of one group with LINES."""
    return "".join(f"{job}\t{step}\t{AT} {line}\n" for line in lines)


def names(text, **more):
    return [chunk.name for chunk in parse_log(text, **more)]


def spans(text, **more):
    """Return the chunks of TEXT with their first and last lines, counted from 1."""
    return [
        (chunk.name, text.count("\n", 0, chunk.start) + 1, text.count("\n", 0, chunk.end))
        for chunk in parse_log(text, **more)
    ]


@pytest.fixture
def tokyo(monkeypatch):
    """Set the machine's zone, which no result may depend on."""
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


# The committed logs


def test_the_pages_log_is_its_preamble_and_its_error():
    assert spans(log_text(PAGES)) == [("chunk1", 1, 46), ("error1", 47, 60)]

    error = chunks(PAGES)[f"{PAGES}.failed:error1"]
    assert "HttpError: Not Found" in error
    assert "status: 404" in error
    assert "Ensure GitHub Pages has been enabled" in error


def test_the_formatter_keeps_its_files_and_its_exit_code_in_the_error():
    error = clean_log(chunks(RUFF)[f"{RUFF}.failed:error1"])

    assert "Would reformat: ledger/importer/card.py" in error
    assert error.rstrip().endswith("##[error]Process completed with exit code 1.")


def test_lines_before_any_step_are_a_chunk_and_lines_without_a_prefix_go_with_theirs():
    assert spans(log_text(STRAY)) == [
        ("chunk1", 1, 1),
        ("chunk2", 2, 4),
        ("error1", 5, 10),
        ("chunk3", 11, 13),
        ("error2", 14, 15),
    ]
    assert "\tand 41 files\tof 1.2 MB\n" in chunks(STRAY)[f"{STRAY}.failed:error1"]


@pytest.mark.parametrize("run", LOGS)
def test_the_chunks_of_a_log_join_to_it_and_are_the_same_each_time(run):
    text = log_text(run)

    assert is_log(text)
    assert "".join(text[chunk.start : chunk.end] for chunk in parse_log(text)) == text
    assert parse_log(text) == parse_log(text)


def test_a_dozen_failed_jobs_are_a_dozen_errors_in_order():
    found = [chunk for chunk in parse_log(log_text("30597750384")) if "error" in chunk.name]

    assert [chunk.name for chunk in found] == [f"error{n}" for n in range(1, 13)]
    assert found[10].tool == "test (3.12, macos-15) / Run the lock tests"
    assert {chunk.kind for chunk in found} == {EventKind.TOOL_OUTPUT}


# How a log is cut


def test_a_group_is_cut_three_lines_before_its_first_error():
    text = log(*"abcdef", "##[error]x", "g", "##[error]y", "h")

    assert spans(text) == [("chunk1", 1, 3), ("error1", 4, 10)]
    assert spans(text, context=0) == [("chunk1", 1, 6), ("error1", 7, 10)]


def test_an_error_with_no_more_than_its_context_before_it_has_no_preamble():
    assert spans(log("a", "b", "c", "##[error]x")) == [("error1", 1, 4)]
    assert spans(log("##[error]x", *"abcdefgh")) == [("error1", 1, 9)]


def test_the_context_does_not_reach_into_the_group_before():
    text = log("a", "b") + log("c", "##[error]x", step="Next")

    assert spans(text) == [("chunk1", 1, 2), ("error1", 3, 4)]


def test_a_group_without_an_error_is_one_chunk():
    assert spans(log(*"abcdef")) == [("chunk1", 1, 6)]


def test_only_lines_that_follow_one_another_make_a_group():
    text = log("a") + log("b", job="lint") + log("c") + log("d", step="Next")

    assert names(text) == ["chunk1", "chunk2", "chunk3", "chunk4"]
    assert [chunk.tool for chunk in parse_log(text)] == [
        "build / Test", "lint / Test", "build / Test", "build / Next",
    ]  # fmt: skip


def test_errors_and_other_chunks_are_counted_apart():
    failed, fine = log(*"abcd", "##[error]x"), log("e", step="Next")

    assert names(failed + fine + failed) == ["chunk1", "error1", "chunk2", "chunk3", "error2"]


def test_a_marker_may_stand_anywhere_in_a_message_but_not_in_the_name_of_a_step():
    assert names(log("the bot says \x1b[31m##[error]x")) == ["error1"]
    assert names(log("x", step="Print ##[error]")) == ["chunk1"]


def test_a_marker_beyond_what_patterns_see_of_a_line_counts():
    assert names(log("x" * 5_000 + "##[error]late")) == ["error1"]


def test_a_line_without_a_prefix_goes_on_with_its_group():
    text = log("a") + "no tab\n\none\ttab\ntwo\ttabs\tbut no time\n" + log("b")

    assert spans(text) == [("chunk1", 1, 6)]


def test_lines_before_any_group_are_one_chunk_even_with_a_marker():
    assert spans("a\nb\nc\nd\n##[error]e\n" + log("f")) == [("chunk1", 1, 5), ("chunk2", 6, 6)]


def test_byte_order_marks_stand_where_services_put_them():
    first, step = "\ufeff" + log("a"), log("b").replace("\t2026", "\t\ufeff2026")

    assert spans(first + step) == [("chunk1", 1, 2)]
    assert clean_message(step) == "b"
    assert is_log(first)


def test_only_the_line_feed_ends_a_line():
    text = log("a\x0cb\u2028c\x1cd", *"ef", "##[error]x\r", "g")

    assert spans(text) == [("error1", 1, 5)]


def test_offsets_are_code_points():
    text = log("😀" * 10, *"bcde", "##[error]x")
    chunk, error = parse_log(text)

    assert text[error.start : error.end] == log(*"cde", "##[error]x")
    assert chunk.end == error.start


def test_a_last_line_needs_no_end():
    text = log("a", "##[error]x").rstrip("\n")

    assert [text[one.start : one.end] for one in parse_log(text)] == [text]


def test_no_text_has_no_chunks():
    assert parse_log("") == ()


def test_less_context_than_none_is_refused():
    with pytest.raises(InvalidParams, match="-1"):
        parse_log(log("a"), context=-1)


def test_a_large_log_is_read_in_linear_time():
    text = log(*["x" * 80] * 100_000, "##[error]x") + "\ufeff" * 20_000 + "a" * 1_000_000
    began = time.perf_counter()

    assert names(text) == ["chunk1", "error1"]
    assert is_log(text)
    assert time.perf_counter() - began < 3


# What a line says


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"build\tTest\t{AT} \x1b[1;31m##[error]\x1b[0mno  \r", "##[error]no"),
        (f"build\tUNKNOWN STEP\t{AT}", ""),
        (f"build\tTest\t{AT}   two\tmore\ttabs", "  two\tmore\ttabs"),
        (f"build\tTest\t{AT} {AT} twice", f"{AT} twice"),
        ("going on\r", "going on"),
    ],
)
def test_a_line_says_its_message(line, said):
    assert clean_message(line) == said


@pytest.mark.parametrize(
    "text",
    ["", "a\tb\tc\n", "* Notes\n" + log("a"), "".join(f"{n},x,y\n" for n in range(99)), AT],
)
def test_other_texts_are_no_log(text):
    assert not is_log(text + "\nand\nother\nlines\n")


# Facts of runs


def test_the_row_states_what_is_known():
    run = parse_run((RUNS / "runs" / f"{PAGES}.json").read_bytes())

    assert run == Run(
        id=PAGES,
        workflow="Publish handbook",
        event="push",
        branch="main",
        commit="07f248b8d2a73d172840f849143b95813acb06af",
        started="2026-03-03T16:40:55Z",
        title="Mend the tide tables",
        status="failed",
        failed_job="deploy",
        failed_step="Deploy to GitHub Pages",
    )
    assert run_row(run) == (
        f"Run: {PAGES}\nStatus: failed\nFailing step: Deploy to GitHub Pages\n"
        "Failing job: deploy\nWorkflow: Publish handbook\nEvent: push\nBranch: main\n"
        "Commit: 07f248b8d2a73d172840f849143b95813acb06af\nStarted: 2026-03-03T16:40:55Z\n"
        "Title: Mend the tide tables\n"
    )
    assert (log_id(run.id), row_id(run.id)) == (f"{PAGES}.failed", f"Run:{PAGES}")


@pytest.mark.parametrize(
    ("conclusion", "status"),
    [
        ("failure", "failed"),
        ("success", "passed"),
        ("timed_out", "timed_out"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_status_is_failed_passed_or_what_the_service_says(conclusion, status):
    assert parse_run(msgspec.json.encode(FAILED | {"conclusion": conclusion})).status == status


def test_the_first_job_that_failed_counts_and_its_first_failed_step():
    jobs = [
        {"name": "a", "conclusion": "success", "steps": [{"name": "s", "conclusion": "failure"}]},
        {
            "name": "b",
            "conclusion": "failure",
            "steps": [
                {"name": "t", "conclusion": None},
                {"name": "u", "conclusion": "failure"},
                {"name": "v", "conclusion": "failure"},
            ],
        },
        {"name": "c", "conclusion": "failure", "steps": None},
    ]

    def failed(some):
        run = parse_run(msgspec.json.encode(FAILED | {"jobs": some}))
        return run.failed_job, run.failed_step

    assert failed(jobs) == ("b", "u")
    assert failed(jobs[2:]) == ("c", "")
    assert failed(jobs[:1]) == ("", "")


def test_what_is_not_known_has_no_line():
    assert run_row(parse_run(b'{"databaseId": 30524190877}')) == "Run: 30524190877\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"databaseId": null}',
        b'{"databaseId": 1234567}',
        b'{"databaseId": -30524190877}',
        b'{"databaseId": "../30524190877"}',
        b'{"databaseId": 30524190877, "jobs": 3}',
        b'{"databaseId": 30524190877, "displayTitle": "\xff"}',
    ],
)
def test_what_are_no_facts_of_a_run_is_refused(data):
    with pytest.raises(InvalidParams):
        parse_run(data)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-03-03T16:40:55Z", 1772556055.0),
        ("2026-03-03T17:40:55+01:00", 1772556055.0),
        ("2026-03-03T16:40:55", 1772556055.0),
        ("yesterday", None),
        ("", None),
    ],
)
def test_times_are_read_with_their_zone(text, seconds, tokyo):
    assert parse_time(text) == seconds
    assert started_at(Run(id=PAGES, started=text)) == (seconds or 0.0)
