"""Formats are recognised by their structure, and their parsers keep what matters of them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.saver.formats import FORMATS, Format, Parsed, parse
from retention.saver.formats.base import ROOM, sample
from retention.saver.lines import Lines, read_lines
from tests.outputs import OUTPUTS
from tests.outputs.confusion import read_recording, takers
from tests.outputs.labels import label_all
from tests.outputs.large import grow
from tests.outputs.recordings import RECORDINGS, Recording

BY_NAME = {format.name: format for format in FORMATS}
RECOGNISED = [recording for recording in RECORDINGS if recording.format]
NAMES = [recording.name for recording in RECORDINGS]

# What a second format would take as well: the first one in the order of detection has it.
SHARED = {
    "cargo_test": {"rustc", "traceback"},  # it compiles before, and tests panic
    "ci_log": {"csv"},  # its columns
    "git_log": {"git_diff"},  # with -p
    "go_test": {"traceback"},
    "javac_maven": {"gcc_clang", "traceback"},
    "ruff_mypy": {"gcc_clang", "search"},
    "unittest": {"traceback"},
}


def parsed_of(text: str) -> tuple[str, Parsed]:
    """Return the format of TEXT and what its parser found; there must be one."""
    result = parse(read_lines(text))
    assert result is not None
    return result


def kept_lines(text: str) -> list[str]:
    """Return the lines that the parser of TEXT's format keeps."""
    clean = read_lines(text).clean
    return [clean[at] for at in parsed_of(text)[1].kept]


# The corpus


def test_labels_are_up_to_date() -> None:
    assert json.loads((OUTPUTS / "labels.json").read_text(encoding="utf-8")) == label_all()


def test_each_recording_has_a_row_and_each_row_a_recording() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in OUTPUTS.glob("*.txt"))


def test_the_corpus_is_large_enough_and_small_enough_to_commit() -> None:
    sizes = [path.stat().st_size for path in OUTPUTS.glob("*.txt")]

    assert len(sizes) >= 40
    assert max(sizes) <= 60_000
    assert sum(sizes) <= 1_500_000


@pytest.mark.parametrize("name", NAMES)
def test_recordings_name_no_machine_and_no_registry(name: str) -> None:
    data = (OUTPUTS / f"{name}.txt").read_bytes()

    assert str(Path.home()).encode() + b"/" not in data
    assert re.search(rb"/tmp/|npmjs\.org|pypi\.org|pythonhosted|debian\.org", data) is None
    assert re.search(rb"@(?!example\.com)[\w-]+\.(?:com|org|net)\b", data) is None


@pytest.mark.parametrize("name", NAMES)
def test_grown_outputs_have_the_wanted_size_and_are_the_same_each_time(name: str) -> None:
    text = read_recording(name).text

    grown = grow(text, 200_000)

    assert grown == grow(text, 200_000)
    assert len(grown) >= len(text)
    if "\n" in text and text[0] not in "{[":
        assert 200_000 <= len(grown) <= 200_000 + 2 * len(text)


# Detection


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_each_recording_has_its_format(recording: Recording) -> None:
    result = parse(read_recording(recording.name))

    assert (result[0] if result else None) == recording.format


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_formats_take_no_recordings_of_others(recording: Recording) -> None:
    others = set(takers(read_recording(recording.name))) - {recording.format}

    assert others <= SHARED.get(recording.format or "", set())


def test_each_format_has_recordings() -> None:
    assert {recording.format for recording in RECOGNISED} == set(BY_NAME)


@pytest.mark.parametrize(
    "recording",
    [recording for recording in RECOGNISED if recording.format != "json"],  # which has none
    ids=lambda recording: recording.name,
)
def test_colours_and_progress_do_not_hide_a_format(recording: Recording) -> None:
    """A line in colour over which a progress line was written reads like the line alone."""
    lines = read_recording(recording.name)
    plain = "".join(f"{line}\n" for line in lines.clean)
    text = re.sub("(.+)\n", "  0% [....]\r\x1b[1;31m\\1\x1b[0m\n", plain)

    assert parsed_of(text) == parsed_of(plain)


NEAR_MISSES = {
    "vitest_jest": "Tests: see below\n✓ milk\n✓ bread\n3 tests passed, I think\n",
    "node_test": "TAP is a protocol\nit is not ok 7 times out of 8\n# tests are good\n",
    "pytest": "===== my notes =====\nall 9 passed the exam\n____ _ ____\n",
    "unittest": "Ran 4 tests in 2 rooms\nOK then\n",
    "cargo_test": "running 4 tests a day\ntest result: pending\n",
    "go_test": "--- PASS: the salt\nok  then\nFAIL to plan\n",
    "rustc": "error: the printer is out of paper\n --> ask Ann\n",
    "tsc": "order.ts(20,12): an odd line\nTS2532 is a code\nFound 3 errors\n",
    "eslint": "  10:23  lunch\n✖ 3 problems\n",
    "javac_maven": "Orders.java was changed\n[INFO] all is well\n2 errors\n",
    "ruff_mypy": "shop.py:3 is wrong\nE711 is a rule\nFound 3 errors.\n",
    "gcc_clang": "shop.c: error of mine\nIn file included from memory\nwarning: hot\n",
    "install": "I added two packages\nnpm is a tool\nCollect the post\n",
    "git_log": "commit 1234567 was bad\nAuthor: somebody\n",
    "git_diff": "diff of opinions\n@@ home\n- milk\n+ bread\n",
    "git_status": "On branch offices we agree\n\tthat is\nchanges are hard\n",
    "search": "see chapter 3: results\nit is 12:30:45 now\n",
    "listing": "total: 12\n-rw is a mode\n./ is here\n",
    "traceback": "Traceback (most recent first)\nat home: 3:4\npanic: not allowed\n",
    "json": '{"unclosed": [1, 2\n',
    "csv": "one, two\nthree, four, five\nsix\nseven, eight\nnine, ten, eleven\n",
    "ci_log": "2026-03-14T09:26:53Z ##[error] quoted\none\ntwo\nthree\njob\tstep\tmessage\n",
}


@pytest.mark.parametrize("name", BY_NAME)
def test_without_its_marks_a_text_is_of_no_format(name: str) -> None:
    assert name not in takers(read_lines(NEAR_MISSES[name]))


@pytest.mark.parametrize(
    "line",
    [
        "2026-04-21T20:32:12.123Z building project",
        "2026-04-21T20:32:12 src/main.c compiled",
        "2026/04/21T20:32:12 src/main.c compiled",
        "21.04.2026T20:32:12 src/main.c compiled",
        "20:32:12 src/main.c compiled",
        "[20:32:12] src/main.c compiled",
        "20:32:12.123 INFO src/main.c",
    ],
)
def test_times_are_no_search_results(line: str) -> None:
    """The failure that reads a runner's log as hits of a search."""
    text = "".join(f"{line} {number}\n" for number in range(200))

    assert "search" not in takers(read_lines(text))


def test_hours_are_no_numbers_of_lines() -> None:
    text = "".join(f"{hour:02}:15:00 backup of src/main.c done\n" for hour in range(1, 24))

    assert "search" not in takers(read_lines(text))


def test_numbers_that_do_not_grow_are_no_numbers_of_lines() -> None:
    text = "".join(f"{number * 7 % 50}: so many apples\n" for number in range(1, 50))

    assert "search" not in takers(read_lines(text))


def test_blank_lines_between_do_not_hide_a_format() -> None:
    text = read_recording("grep_rn").text.replace("\n", "\n\n  \n\n\n")

    assert parsed_of(text)[0] == "search"


@pytest.mark.parametrize(
    "marker",
    [
        '[segment 4 of 16 omitted, 2.1 KB, "PASS src/auth/login.test.ts"]',
        "[Excerpt of pytest output: 3 of 900 lines]",
        "[5 lines omitted. Retrieve more: hash=0123456789abcdef01234567]",
    ],
)
def test_markers_in_a_text_are_ordinary_text(marker: str) -> None:
    clean = read_recording("grep_rn").clean
    half = len(clean) // 2
    lines = [*clean[:half], f"./notes.txt:7:{marker}", *clean[half:]]

    name, parsed = parsed_of("\n".join(lines))

    assert name == "search"
    assert half in parsed.kept  # the first result of its file, like any other


def test_bare_logs_of_git_are_recognised_and_keep_their_newest_subjects() -> None:
    for name in ("git_log", "git_log_oneline", "git_log_stat", "git_log_patch"):
        lines = read_recording(name)

        result = parse(lines)

        assert result is not None
        assert result[0] == "git_log"
        shown = [lines.clean[at] for at in result[1].kept]
        assert any("README: Add better image descriptions" in line for line in shown)
        assert len(result[1].boundaries) > 10


# Parsing


@pytest.mark.parametrize("recording", RECOGNISED, ids=lambda recording: recording.name)
def test_what_a_parser_names_are_lines_of_the_output(recording: Recording) -> None:
    lines = read_recording(recording.name)

    result = parse(lines)

    assert result is not None
    check(lines, result[1])


def check(lines: Lines, parsed: Parsed) -> None:
    """Fail unless PARSED names LINES in order, and no more than there is room for."""
    everything = range(len(lines.clean))
    for numbers in (parsed.kept, parsed.boundaries):
        assert list(numbers) == sorted(set(numbers))
        assert set(numbers) <= set(everything)
    assert set(parsed.weights) <= set(everything)
    assert all(0 < weight <= 1 for weight in parsed.weights.values())
    assert sum(len(lines.clean[at]) for at in parsed.kept) <= ROOM


# Of these, the format alone shows all that the task needs.
SUFFICIENT = [
    *("vitest_fail", "vitest_default", "jest_fail", "jest_pass", "node_test_spec"),
    *("node_test_tap", "pytest_fail", "pytest_colour", "pytest_pass", "unittest_fail"),
    *("cargo_test", "go_test", "tsc", "tsc_pretty", "eslint", "ruff_full", "gcc_warnings"),
    *("gpp_templates", "emacs_compile", "rustc", "javac", "maven", "maven_test", "git_status"),
    *("npm_install", "npm_install_fail", "pip_install", "pip_install_fail", "pip_build_fail"),
    *("apt_install", "python_chained", "python_recursion", "node_crash", "java_crash"),
    *("rust_panic", "emacs_backtrace", "go_panic", "webpack", "ci_log"),
]


@pytest.mark.parametrize("name", SUFFICIENT)
def test_parsers_keep_the_lines_that_a_task_needs(name: str) -> None:
    label = label_all()[f"{name}.txt"]
    result = parse(read_recording(name))

    assert result is not None
    assert set(label["needs"]) <= set(result[1].kept)


@pytest.mark.parametrize(
    "name",
    ["jest_fail", "vitest_fail", "node_test_tap", "pytest_fail", "unittest_fail", "go_test"],
)
def test_parsers_of_tests_leave_out_what_passed(name: str) -> None:
    lines = read_recording(name)
    result = parse(lines)

    assert result is not None
    shown = [lines.clean[at] for at in result[1].kept]
    passed = re.compile(r"^\s*(?:✓|ok \d)|PASSED +\[|\.\.\. ok$|--- PASS")
    assert sum(1 for line in lines.clean if passed.search(line)) > 3
    assert not any(passed.search(line) for line in shown)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mypy", "lib/http/rare.py:9: error: Incompatible return value  [return-value]"),
        ("ruff_concise", "lib/http/rare.py:9:1: PLE0101 Explicit return in `__init__`"),
        ("grep_rn", "./rare/only.h:9:#define RARELY EINVAL"),
        ("eslint_library", "  9:1   error    Unreachable code    no-unreachable"),
        ("gcc_colour", "rare.c:9:1: warning: control reaches end [-Wreturn-type]"),
        ("tsc", "rare.ts(9,1): error TS1005: ';' expected."),
    ],
)
def test_among_findings_a_rare_one_is_kept_wherever_it_stands(name: str, line: str) -> None:
    """The failure that shows the first so many where every line is an error."""
    lines = grow(read_recording(name).text, 400_000).split("\n")
    for part in (1, 2, 3):
        at = len(lines) * part // 4
        text = "\n".join([*lines[:at], line, *lines[at:]])

        assert line in kept_lines(text)


def test_of_findings_of_one_rule_each_file_shows_some() -> None:
    text = "".join(
        f"src/{name}.py:{line}:1: F401 `x` imported but unused\n"
        for name in ("a", "b", "c", "d")
        for line in range(1, 500)
    )

    shown = kept_lines(text)

    assert {line[: len("src/a.py")] for line in shown} >= {
        "src/a.py",
        "src/b.py",
        "src/c.py",
        "src/d.py",
    }


def test_a_search_result_unlike_all_others_comes_before_the_first_of_each_kind() -> None:
    results = [
        f"src/{file}.c:{kind + 1}: {chr(97 + kind % 26) * (1 + kind // 26)}()"
        for file in range(20)
        for kind in range(700)
    ]
    results.append("src/19.c:701: only here")

    assert results[-1] in kept_lines("\n".join(results))


def test_results_are_kept_with_the_heading_that_names_their_file() -> None:
    assert "gptel-anthropic.el" in kept_lines(read_recording("rg_heading").text)


def test_findings_that_are_like_many_others_have_no_weight() -> None:
    lines = read_lines(grow(read_recording("ruff_concise").text, 400_000))

    result = parse(lines)

    assert result is not None
    assert len(result[1].weights) < len(lines.clean) / 2


def test_lines_that_say_what_went_wrong_have_weight() -> None:
    lines = read_recording("pytest_fail")

    result = parse(lines)

    assert result is not None
    errors = [at for at, line in enumerate(lines.clean) if line.startswith("E  ")]
    assert all(result[1].weights[at] >= 0.5 for at in errors)


def test_a_report_ends_where_the_next_test_passes() -> None:
    text = (
        "TAP version 13\nnot ok 1 - sums\n  ---\n  error: wrong\n  ...\nok 2 - parses\n"
        "chatter of test 3\nok 3 - prints\n# tests 3\n# fail 1\n"
    )

    shown = kept_lines(text)

    assert "  error: wrong" in shown
    assert "chatter of test 3" not in shown


def test_each_file_of_a_diff_shows_its_first_change() -> None:
    lines = read_recording("git_diff")
    parsed = parsed_of(lines.text)[1]
    change = re.compile(r"[-+](?!--|\+\+)")

    assert len(parsed.boundaries) > 10
    for file in parsed.boundaries:
        after = range(file, len(lines.clean))
        assert next(at for at in after if change.match(lines.clean[at])) in parsed.kept


def test_files_of_a_commit_are_kept_as_far_as_there_is_room() -> None:
    assert any(
        line.startswith(" README.org | ")
        for line in kept_lines(read_recording("git_log_stat").text)
    )


def test_a_problem_that_repeats_in_a_runners_log_counts_once() -> None:
    head = "build\tTest\t2026-03-14T09:26:53.1Z "
    lines = [f"{head}warning: slot {number} is full" for number in range(600)]
    lines.append(f"{head}error: disk quota exceeded")

    parsed = parsed_of("\n".join(lines))[1]

    assert parsed.weights[600] > 0.5
    assert len(parsed.weights) < 20


def test_packages_that_pass_leave_room_for_one_that_fails() -> None:
    packages = [f"ok  \texample.com/shop/{number}\t0.01s" for number in range(2000)]
    packages.insert(1500, "FAIL\texample.com/shop/stock\t0.02s")

    shown = kept_lines("\n".join([*packages, "FAIL"]))

    assert packages[1500] in shown
    assert packages[0] in shown


def test_findings_are_kept_with_their_file() -> None:
    shown = kept_lines(read_recording("eslint").text)

    assert sum(1 for line in shown if line.startswith("/home/user/app/js/")) == 4


def test_few_changes_of_one_kind_are_kept_among_many_of_another() -> None:
    changes = [f"\tmodified:   src/{number}.c\n" for number in range(3000)]
    changes.insert(2000, "\tdeleted:    src/gone.c\n")
    text = "On branch main\nChanges not staged for commit:\n" + "".join(changes)

    assert "\tdeleted:    src/gone.c" in kept_lines(text)


def test_errors_outside_of_tests_are_kept() -> None:
    text = read_recording("vitest_fail").text
    at = text.index(" Test Files ")
    error = "⎯⎯⎯⎯⎯ Unhandled Rejection ⎯⎯⎯⎯⎯\nError: socket closed\n    at net.js:3:1\n"

    shown = kept_lines(text[:at] + error + text[at:])

    assert "⎯⎯⎯⎯⎯ Unhandled Rejection ⎯⎯⎯⎯⎯" in shown
    assert "Error: socket closed" in shown


def test_a_stack_overflow_keeps_each_frame_once_before_it_keeps_more() -> None:
    result = parse(read_recording("python_recursion"))

    assert result is not None
    clean = read_recording("python_recursion").clean
    heavy = [clean[at] for at, weight in result[1].weights.items() if weight >= 0.5]
    frames = [line for line in heavy if line.lstrip().startswith("File ")]
    assert len(frames) <= 12
    assert any("in walk" in line for line in frames)


def test_segments_of_a_runners_log_begin_at_steps_and_before_their_first_error() -> None:
    lines = read_recording("ci_log")

    result = parse(lines)

    assert result is not None
    boundaries = result[1].boundaries
    steps = {lines.clean[at].split("\t")[1] for at in boundaries}
    assert steps == {"Set up Python", "Install", "Test", "Ruff"}
    errors = [at for at, line in enumerate(lines.clean) if "##[error]" in line]
    assert errors[0] - 3 in boundaries


def test_parts_of_json_are_its_outer_members() -> None:
    text = json.dumps({"name": "x", "items": [{"id": n, "of": [n]} for n in range(30)]}, indent=1)

    name, parsed = parsed_of(text)

    assert name == "json"
    clean = read_lines(text).clean
    assert {clean[at].strip()[:7] for at in parsed.boundaries} == {'"name":', '"items"'}


def test_lines_of_json_are_json() -> None:
    assert parsed_of('{"a": 1}\n{"a": 2}\n')[0] == "json"
    assert parse(read_lines('{"a": 1}\n{"a": 2\n')) is None
    assert BY_NAME["json"].parse(read_lines(" \n")) is None


def test_deep_nesting_is_no_json() -> None:
    assert parse(read_lines("[" * 200_000 + "]" * 200_000)) is None


def test_rows_with_another_number_of_cells_are_kept() -> None:
    rows = ["id,name,size", *(f'{n},"a, b",{n * 7}' for n in range(300))]
    rows[200] = "200,broken"

    assert parsed_of("\n".join(rows))[0] == "csv"
    assert kept_lines("\n".join(rows)) == [rows[0], rows[200]]


# Any text


@st.composite
def mixed_lines(draw: st.DrawFn) -> str:
    """Lines of recordings in any mixture, with other text in between."""
    sources = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    lines = [line for name in sources for line in read_recording(name).clean[:80]]
    chosen = draw(st.lists(st.sampled_from(lines), max_size=60))
    noise = draw(st.lists(st.text(max_size=40), max_size=10))
    return "\n".join(draw(st.permutations(chosen + noise)))


@settings(deadline=None, max_examples=60)
@given(
    st.one_of(
        st.text(), mixed_lines(), st.binary().map(lambda b: b.decode("utf-8", "surrogateescape"))
    )
)
def test_parsers_read_any_text(text: str) -> None:
    lines = read_lines(text)
    for format in FORMATS:
        format.marks(sample(lines.clean))
        parsed = format.parse(lines)
        if parsed is not None:
            check(lines, parsed)


# Time


def seconds_of(lines: Lines) -> float:
    """Return the processor time that it takes to parse LINES: the best of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        parse(lines)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize(
    "name", ["ci_log", "find", "git_status", "eslint", "ruff_concise", "log_plain", "strace"]
)
def test_a_megabyte_takes_at_most_a_tenth_of_a_second(name: str) -> None:
    lines = read_lines(grow(read_recording(name).text, 1_000_000))

    assert seconds_of(lines) <= 0.1


UNITS = [" ... ", "a/", "a:", "((", "1:", "- ", "T1", "::", "Error", "│", "* ", "'", "a  ", ".py:1"]
STARTS = ["", "test a", "error: ", "    at ", "  1:1  error  ", "thread '", "✖ ", "./a", "| "]


@pytest.mark.parametrize("format", FORMATS, ids=list(BY_NAME))
def test_no_pattern_runs_away_on_long_lines(format: Format) -> None:
    """Half a megabyte of the longest lines that patterns see, made to be almost matched."""
    text = "".join(
        f"{start}{(unit * 2000)[:1900]} !\n" for unit in UNITS for start in STARTS for _ in (1, 2)
    )
    lines = read_lines(text)
    start = time.process_time()

    format.marks(sample(lines.clean))
    format.parse(lines)

    assert time.process_time() - start <= 0.5
