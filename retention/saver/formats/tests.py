"""Runs of tests."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

TESTS: Final[tuple[Format, ...]] = (
    grammar(
        "vitest_jest",
        signs(
            r"^\s*(?:[✓✔√×✗✕❯●] |FAIL |PASS )",
            r"^\s*(?:Test Files|Test Suites:|Tests:?) .*\d+ (?:passed|failed|skipped|todo|total)",
        ),
        r"""
        (?P<sum>\s*(?:Test\ Files|Test\ Suites:|Tests:?|Snapshots:?|Time:|Duration|Start\ at
            |Ran\ all\ test|Errors)\s)
        |(?P<head>\s?FAIL\ |\s*●\ .*\ [›»>]\ |⎯+\ Unhandled)
        |(?P<hit>\s*[×✗✕]\ (?P<file>\S*))
        |(?P<dull>\s*(?:[✓✔√○↓□✎]\ |PASS\ |❯\ \S+\ \(\d+\ tests?|⎯+))
        """,
        inside=r"""expected|received|actual|Error|assert|^\s*[-+>→]\s|^\s*❯\s|^\s*\^|\|\s+\^
            |^\s+at\ .*:\d+:\d+""",
        depth=18,
        needs=("sum",),
    ),
    grammar(
        "node_test",
        signs(
            r"^(?:TAP version \d+|\s*(?:not )?ok \d+|\s*[✔✖▶﹣] )",
            r"^(?:[#ℹ] (?:tests|pass|fail) \d+|\s*not ok \d+|\s*\d+\.\.\d+$)",
        ),
        r"""
        (?P<sum>[#ℹ]\ (?:tests|suites|pass|fail|cancelled|skipped|todo|duration_ms)\ [\d.]+|Bail\ out!
            |✖\ failing\ tests)
        |(?P<head>\s*not\ ok\b|\s*✖\ )
        |(?P<dull>\s*(?:ok\ \d|[✔▶﹣]\ |\#\ Subtest|\d+\.\.\d+$|test\ at\ ))
        """,
        inside=r"""error|expected|actual|failureType|\bcode:|location|stack|Error|^\s*[-+]\s|==
            |\bat\ .*[(/].*:\d+""",
        depth=20,
    ),
    grammar(
        "pytest",
        signs(
            r"^=+ (?:test session starts|.*\b(?:passed|failed|error|errors|skipped|no tests ran)\b.*) =+$"
            r"|^\d+ (?:passed|failed|errors?)\b.* in [\d.]+s",
            r"^=+ test session starts|^_{3,} .+ _{3,}$|^(?:FAILED|ERROR) |\[ *\d+%\]$"
            r"|^[.FEsxX]+$",
        ),
        r"""
        (?P<sum>=+\ .*(?:passed|failed|errors?|deselected|no\ tests\ ran)\b.*|!+\ .*\ !+$|\d+\ (?:passed|failed)\b)
        |(?P<head>_{3,}\ .+\ _{3,}$|INTERNALERROR>\ \w*Error)
        |(?P<hit>(?:FAILED|ERROR)\ (?P<file>\S+))
        |(?P<dull>=+\ .*=$|\S+::.*\s(?:PASSED|SKIPPED|XFAIL|XPASS|SUBPASS\w*)\b|\S+\ [.FEsxX,]+\s+\[\ *\d+%\]$
            |[.FEsxX]+(?:\s+\[\ *\d+%\])?$)
        |(?P<part>\S+::.*\s(?:FAILED|ERROR)\b)
        """,
        inside=r"^E\ |^>\ |^[\w./-]+:\d+:\ |Error\b|\bassert\b",
        depth=45,
        needs=("sum",),
    ),
    grammar(
        "unittest",
        signs(r"^Ran \d+ tests? in [\d.]+s$", r"^(?:OK|FAILED)(?: \(.*\))?$"),
        r"""
        (?P<sum>Ran\ \d+\ tests?\ in\ |FAILED\ \(|OK(?:\ \(|$))
        |(?P<head>(?:ERROR|FAIL|UNEXPECTED\ SUCCESS):\ )
        |(?P<hit>(?P<file>\w+)\ \(.*\)\ \.\.\.\ (?:ERROR|FAIL)$)
        |(?P<dull>={20,}$|.*\.\.\.\ (?:ok|skipped\b.*|expected\ failure)$|[.FEsxu]+$)
        """,
        inside=r"^\w[\w.]*(?::|$)|^\ \ File\ ",
        depth=30,
        needs=("sum",),
    ),
    grammar(
        "cargo_test",
        signs(r"^running \d+ tests?$", r"^test .* \.\.\. |^test result: "),
        r"""
        (?P<sum>test\ result:|error:\ test\ failed|failures:$)
        |(?P<head>----\ .*\ std(?:out|err)\ ----$|error(?:\[E\d+\])?:)
        |(?P<hit>test\ (?P<file>\S+).*\.\.\.\ (?:.*\s)?FAILED)
        |(?P<part>\ +Running\ |\ +Doc-tests\ )
        |(?P<dull>test\ .*\.\.\.\ (?:ok|ignored|bench)|running\ \d+|\ +(?:Compiling|Finished|Downloaded)\ |warning:)
        """,
        inside=r"panicked|left|right|error|assert|^\s+-->|^called|^thread",
        depth=25,
        needs=("sum", "hit"),
    ),
    grammar(
        "go_test",
        signs(
            r"^\s*--- (?:PASS|FAIL|SKIP): |^(?:ok  |FAIL|\?   )\t",
            r"^(?:ok  |FAIL|\?   )\t|^(?:PASS|FAIL)$",
        ),
        r"""
        (?P<sum>(?:FAIL|ok\ \ )(?:\t.*)?$|PASS$|exit\ status\ \d|coverage:)
        |(?P<head>--- FAIL:\ |panic:\ |\#\ \S+$|fatal\ error:|.*\bDATA\ RACE\b)
        |(?P<hit>\s+---\ FAIL:\ (?P<file>\S+)|\s+\S+_test\.go:\d+:\ )
        |(?P<part>===\ (?:RUN|NAME)\ )
        |(?P<dull>===\ |\s*---\ (?:PASS|SKIP)|\?\ \ \ \t)
        """.replace("--- FAIL:\\ |panic", "---\\ FAIL:\\ |panic"),
        inside=r"panic|got|want|expected|Error|\.go:\d+|^goroutine",
        depth=16,
    ),
)
