"""Runs of tests."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

# Marks of runners, some of which look like letters: \u00d7 and \u276f, \u203a and \u2139.
TESTS: Final[tuple[Format, ...]] = (
    grammar(
        "vitest_jest",
        marks=signs(
            r"\s*(?:[✓✔√\u00d7✗✕\u276f●] |FAIL |PASS )",
            r"\s*(?:Test Files|Test Suites:|Tests:?) .*\d+ (?:passed|failed|skipped|todo|total)",
        ),
        dull=(r"\s*(?:[✓✔√○↓□✎] |PASS |\u276f \S+ \(\d+ tests?|⎯++(?! Unhandled))",),
        sum=(
            r"\s*(?:Test Files|Test Suites:|Tests:?|Snapshots:?|Time:|Duration|Errors) ",
            "Ran all test",
        ),
        head=(r"\s?FAIL ", r"\s*● .* [\u203a»>] ", "⎯+ Unhandled"),
        hit=(r"\s*[\u00d7✗✕] (?P<file>\S*)",),
        inside=(
            r"^\s*[-+>→^\u276f] ",
            r"^\s*\| +\^",
            r"^\s+at .*:\d+:\d+",
            r"^\s*\S*(?:Error|[Ee]xpect|[Rr]eceived|[Aa]ctual)",
        ),
        depth=18,
        needs=("sum",),
    ),
    grammar(
        "node_test",
        marks=signs(
            r"(?:TAP version \d+|\s*(?:not )?ok \d+|\s*[✔✖▶﹣] )",
            r"(?:[#\u2139] (?:tests|pass|fail) \d+|\s*not ok \d+|\s*\d+\.\.\d+$)",
        ),
        dull=(r"\s*(?:ok \d|[✔▶﹣] |# Subtest|\d+\.\.\d+$|test at )",),
        sum=(
            r"[#\u2139] (?:tests|suites|pass|fail|cancelled|skipped|todo|duration_ms) [\d.]+",
            "Bail out!",
            "✖ failing tests",
        ),
        head=(r"\s*not ok\b", r"\s*✖ "),
        inside=(
            r"^\s*(?:error|expected|actual|failureType|code|location|stack)\b",
            r"^\s*[-+] |^\s*\w*Error\b|[!=]==",
            r"^\s+at .*:\d+:\d+",
        ),
        depth=20,
    ),
    grammar(
        "pytest",
        marks=signs(
            "=+ (?:test session starts"
            r"|.*\b(?:passed|failed|errors?|skipped|no tests ran)\b.*) =+$"
            r"|\d+ (?:passed|failed|errors?)\b.* in [\d.]+s",
            r"=+ test session starts|_{3,} .+ _{3,}$|(?:FAILED|ERROR) |.*\[ *\d+%\]$"
            r"|[.FEsxX]+$",
        ),
        dull=(
            r"\S+::.*\s(?:PASSED|SKIPPED|XFAIL|XPASS|SUBPASS\w*)\b",
            r"(?:\S+ )?[.FEsxX,]+(?:\s+\[ *\d+%\])?$",
            r"=+ (?:test session starts|FAILURES|ERRORS|short test summary info) =+$",
        ),
        sum=(
            r"=+ .*(?:passed|failed|errors?|deselected|no tests ran)\b",
            r"!+ .* !+$",
            r"\d+ (?:passed|failed)\b",
        ),
        head=(r"_{3,} .+ _{3,}$", r"INTERNALERROR> \w*Error"),
        hit=(r"(?:FAILED|ERROR) (?P<file>\S+)", r"\S+::.*\s(?:FAILED|ERROR)\s+\["),
        inside=(r"^E ", "^> ", r"^[\w./-]+:\d+: "),
        depth=45,
        needs=("sum",),
    ),
    grammar(
        "unittest",
        marks=signs(r"Ran \d+ tests? in [\d.]+s$", r"(?:OK|FAILED)(?: \(.*\))?$"),
        dull=(
            r"={20,}$",
            r".*\.\.\. (?:ok|skipped\b.*|expected failure)$",
            r"[.FEsxu]+$",
        ),
        sum=(r"Ran \d+ tests? in ", r"FAILED \(", r"OK(?: \(|$)"),
        head=("(?:ERROR|FAIL|UNEXPECTED SUCCESS): ",),
        hit=(r"(?P<file>\w+) \(.*\) \.\.\. (?:ERROR|FAIL)$",),
        inside=(r"^\w[\w.]*(?::|$)", "^  File "),
        depth=30,
        needs=("sum",),
    ),
    grammar(
        "cargo_test",
        marks=signs(r"running \d+ tests?$", r"test .* \.\.\. |test result: "),
        dull=(
            r"test \S+(?: - should panic)? \.\.\. (?:ok|ignored|bench)",
            r"running \d+",
            " +(?:Compiling|Finished|Downloaded) ",
            "warning:",
        ),
        sum=("test result:", "error: test failed", "failures:$"),
        head=("---- .* std(?:out|err) ----$", r"error(?:\[E\d+\])?:"),
        hit=(r"test (?P<file>\S+)(?: - should panic)? \.\.\. FAILED",),
        part=(" +Running ", " +Doc-tests "),
        inside=(r"panicked at|^\s*(?:left|right|error|assert|-->|called|thread)",),
        depth=25,
        needs=("sum", "hit"),
    ),
    grammar(
        "go_test",
        marks=signs(
            r"\s*--- (?:PASS|FAIL|SKIP): |(?:ok  |FAIL|\?   )\t",
            r"(?:ok  |FAIL|\?   )\t|(?:PASS|FAIL)$",
        ),
        part=("=== (?:RUN|NAME) ",),
        dull=("=== ", r"\s*--- (?:PASS|SKIP)", r"\?   \t"),
        sum=(r"FAIL(?:\t.*)?$", "PASS$", r"exit status \d"),
        head=("--- FAIL: ", "panic: ", r"# \S+$", "fatal error:", "WARNING: DATA RACE"),
        hit=(r"\s+--- FAIL: (?P<file>\S+)", r"\s+\S+_test\.go:\d+: ", "(?P<rule>ok  |coverage:)"),
        inside=(r"\.go:\d+|^goroutine|^\s*\S*(?:panic|got|want|expected|Error)",),
        depth=16,
    ),
)
