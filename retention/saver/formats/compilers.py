"""Reports of compilers, type checkers and linters."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

_FILE = r"(?P<file>[^\s:(][^:(\n]*)"
_PLACE = r":\d+(?::\d+)?: "  # line and column
_LEVEL = "(?:[Ff]atal )?(?:[Ee]rror|[Ww]arning)"
_CODE = r"(?:[A-Z]+\d+|[a-z]+(?:-[a-z]+)+)"  # of a rule of ruff
_MYPY = r"(?:error|warning): (?:.*\[(?P<rule>[a-z-]+)\]$)?"
_TSC = rf"{_FILE}(?:\(\d+,\d+\)|:\d+:\d+)(?::| -) (?:error|warning) (?P<rule>TS\d+)"

COMPILERS: Final[tuple[Format, ...]] = (
    grammar(
        "rustc",
        marks=signs(
            r"(?:error|warning)(?:\[E\d+\])?: ", r"\s*--> \S+:\d+:\d+$", r"\s+Compiling|error"
        ),
        dull=(" +(?:Compiling|Checking|Downloaded|Downloading|Running|Fresh) ",),
        sum=(
            "error: (?:could not compile|aborting)",
            r"warning: .* generated \d+ warning",
            " +Finished ",
            "Some errors have|For more information about",
        ),
        head=(r"error(?:\[E\d+\])?:",),
        hit=(r"(?P<rule>warning(?:\[\w+\])?):",),
        inside=(r"^\s*(?:-->|= (?:note|help))", "^(?:help|note):", r"\^|expected|found"),
        depth=22,
    ),
    grammar(
        "tsc",
        marks=signs(f"{_TSC}"),
        sum=(r"Found \d+ errors?", "Errors  Files", r"\s+\d+  \S+:\d+$"),
        hit=(_TSC,),
        inside=(r"^\s+\S.*\b(?:is|not|missing|[Tt]ype|[Pp]roperty|[Dd]id)\b",),
        depth=6,
        needs=("hit",),
    ),
    grammar(
        "eslint",
        marks=signs(
            r"\s+\d+:\d+\s+(?:error|warning)\s+\S", r"\s*✖ \d+ problems?|(?=\S*[/\\.])\S+$"
        ),
        hit=(r"\s+\d+:\d+\s+(?:error|warning)\s+(?:\S.*\s\s(?P<rule>[\w@/-]+)$)?",),
        sum=(r"\s*✖ \d+ problem", r"\s+\d+ errors? and \d+ warning"),
        part=(r"(?=\S*[/\\.])\S+$",),
        depth=1,
        needs=("hit",),
    ),
    grammar(
        "javac_maven",
        marks=signs(
            r"[^\s:]+\.java:\d+: (?:error|warning): |\[ERROR\] |\[INFO\] BUILD |\d+ errors?$",
            r"[^\s:]+\.java:\d+: |\[INFO\] (?:BUILD|-{20,}|Scanning)",
        ),
        sum=(
            r"\[(?:INFO|ERROR)\] (?:BUILD |Total time|COMPILATION|Tests run:|\d+ errors?)",
            r"\[(?:INFO|ERROR)\] (?:Failures|Errors|Results):",
            r"\[ERROR\] Failed to execute",
            r"\d+ (?:errors?|warnings?)$",
        ),
        head=(r"\[ERROR\] .*<<< (?:FAILURE|ERROR)!",),
        hit=(
            r"(?P<file>[^\s:]+\.java):\d+: (?:error|warning):(?: (?P<rule>\[\w+\]))?",
            r"\[(?:ERROR|FATAL|WARNING)\] +(?=\S)",
        ),
        part=(r"\[INFO\] --- ",),
        dull=(r"\[(?:INFO|DEBUG)\]", r"\[ERROR\] *$", r"Download(?:ing|ed)\b", "Progress"),
        inside=(
            r"^\s+(?:symbol|location|required|found|reason):",
            r"^\s+\^",
            r"^\S.*(?:Error|Exception)\b",
            r"^\tat (?!java|org\.junit)",
        ),
        depth=8,
    ),
    grammar(
        "ruff_mypy",
        marks=signs(
            rf"[^\s:]+\.\w+:\d+(?::\d+)?: (?:error|note|warning): |[^\s:]+:\d+:\d+: {_CODE}\b:? "
            rf"|{_CODE} (?:\[\*\] )?\S.*\n *--> \S+:\d+:\d+$",
            rf".*\[[a-z]+(?:-[a-z]+)*\]$|[^\s:]+\.(?:pyi?|ipynb):\d+:\d+: {_CODE}\b"
            r"| *--> \S+\.pyi?:\d+:\d+$",
        ),
        dull=(rf"[^\s:]+{_PLACE}note:",),
        hit=(
            rf"(?P<file>[^\s:]+){_PLACE}(?:{_MYPY}|(?P<rule_ruff>{_CODE})\b)",
            rf"(?P<rule_full>{_CODE}) (?:\[\*\] )?\S",
        ),
        sum=(r"Found \d+", "Success:", r"\[\*\] \d+ fixable", "All checks passed", "No fixes"),
        inside=(r"^\s*-->|\^|^help:",),
        depth=9,
        needs=("hit",),
    ),
    grammar(
        "gcc_clang",
        marks=signs(rf"{_FILE}{_PLACE}{_LEVEL}: "),
        hit=(rf"{_FILE}{_PLACE}{_LEVEL}:(?:.*\[(?P<rule>-W[\w=+-]+)\]$)?",),
        dull=(
            rf"[^\s:][^:]*{_PLACE}(?:note|required from)",
            r"make(?:\[\d+\])?: (?:Entering|Leaving)",
        ),
        sum=(
            r"\d+ (?:errors?|warnings?)(?: and .*)? generated",
            "compilation terminated",
            r"make(?:\[\d+\])?: \*\*\*",
            "collect2:|ld:|.*undefined reference",
        ),
        part=(r"[^\s:][^:]*: In ", "In file included ", r"In \S.*:$"),
        inside=(r"\^|^\s+\d+ \|",),
        depth=3,
        needs=("hit",),
    ),
)
