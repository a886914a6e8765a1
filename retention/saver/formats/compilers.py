"""Reports of compilers, type checkers and linters."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

_TSC = r"[^\s:(][^:(]*(?:\(\d+,\d+\)|:\d+:\d+)(?::|\ -)\ (?:error|warning)\ TS\d+"
_GCC = r"[^\s:][^:]*:\d+(?::\d+)?:\ (?:[Ff]atal\ )?(?:[Ee]rror|[Ww]arning):?"
_RULE = r"(?:[A-Z]+\d+|[a-z]+(?:-[a-z]+)+)"

COMPILERS: Final[tuple[Format, ...]] = (
    grammar(
        "rustc",
        signs(r"^(?:error|warning)(?:\[E\d+\])?: ", r"^\s*--> \S+:\d+:\d+$", r"^\s+Compiling|^error"),
        r"""
        (?P<sum>error:\ (?:could\ not\ compile|aborting)|warning:\ .*\ generated\ \d+\ warning
            |\ +Finished\ |Some\ errors\ have|For\ more\ information\ about)
        |(?P<head>error(?:\[E\d+\])?:)
        |(?P<hit>(?P<rule>warning(?:\[\w+\])?):)
        |(?P<dull>\ +(?:Compiling|Checking|Downloaded|Downloading|Running|Fresh)\ )
        """,
        inside=r"^\s*-->|\^|^\s*=\s(?:note|help)|^(?:help|note):|expected|found",
        depth=22,
    ),
    grammar(
        "tsc",
        signs(_TSC.replace("\\ ", " ").join(("^", ""))),
        rf"""
        (?P<sum>Found\ \d+\ errors?|Errors\ \ Files|\s+\d+\ \ \S+:\d+$)
        |(?P<hit>(?P<file>[^\s:(][^:(]*)(?:\(\d+,\d+\)|:\d+:\d+)(?::|\ -)\ (?:error|warning)\ (?P<rule>TS\d+))
        """,
        inside=r"^\s+\S.*\b(?:is|not|missing|[Tt]ype|[Pp]roperty|[Dd]id)\b",
        depth=6,
        needs=("hit",),
    ),
    grammar(
        "eslint",
        signs(r"^\s+\d+:\d+\s+(?:error|warning)\s+\S", r"^\s*✖ \d+ problems?|^\S*[/\\.]\S*$"),
        r"""
        (?P<sum>\s*✖\ \d+\ problem|\s+\d+\ errors?\ and\ \d+\ warning)
        |(?P<hit>\s+\d+:\d+\s+(?:error|warning)\s.*?\s\s+(?P<rule>[\w@/-]+)$|\s+\d+:\d+\s+(?:error|warning)\s)
        |(?P<part>\S*[/\\.]\S*$)
        """,
        depth=1,
        needs=("hit",),
    ),
    grammar(
        "javac_maven",
        signs(
            r"^[^\s:]+\.java:\d+: (?:error|warning): |^\[ERROR\] |^\[INFO\] BUILD "
            r"|^\d+ errors?$",
            r"^[^\s:]+\.java:\d+: |^\[INFO\] (?:BUILD|-{20,}|Scanning)",
        ),
        r"""
        (?P<sum>\[(?:INFO|ERROR)\]\ (?:BUILD\ |Total\ time|COMPILATION|Tests\ run:|Failures:|Errors:|Results:
            |\d+\ errors?)|\d+\ (?:errors?|warnings?)$|\[ERROR\]\ Failed\ to\ execute)
        |(?P<head>\[ERROR\]\ .*<<<\ (?:FAILURE|ERROR)!)
        |(?P<hit>(?P<file>[^\s:]+\.java):\d+:\ (?:error|warning):(?:\ (?P<rule>\[\w+\]))?
            |\[(?:ERROR|FATAL)\]\ (?=\S)|\[WARNING\]\ (?=\S))
        |(?P<part>\[INFO\]\ ---\ )
        |(?P<dull>\[(?:INFO|DEBUG)\]|\[ERROR\]\ *$|Download(?:ing|ed)\b|Progress)
        """,
        inside=r"^\s+(?:symbol|location|required|found|reason):|^\S.*(?:Error|Exception)\b|^\s+\^|\tat\ (?!java|org\.junit)",
        depth=8,
    ),
    grammar(
        "ruff_mypy",
        signs(
            rf"^[^\s:]+\.\w+:\d+(?::\d+)?: (?:error|note|warning): .*|^[^\s:]+:\d+:\d+: {_RULE}\b:? "
            rf"|^{_RULE} (?:\[\*\] )?\S.*\n *--> \S+:\d+:\d+$",
            r"\[[a-z]+(?:-[a-z]+)*\]$|^Found \d+ errors?|^Success: no issues"
            rf"|^[^\s:]+\.(?:py|pyi|ipynb):\d+:\d+: {_RULE}\b|^ *--> \S+\.pyi?:\d+:\d+$",
        ),
        rf"""
        (?P<sum>Found\ \d+|Success:|\[\*\]\ \d+\ fixable|All\ checks\ passed|No\ fixes)
        |(?P<dull>[^\s:]+:\d+(?::\d+)?:\ note:)
        |(?P<hit>(?P<file>[^\s:]+):\d+(?::\d+)?:\ (?:(?:error|warning):\ .*\[(?P<code>[a-z-]+)\]$|(?:error|warning):
            |(?P<rule>{_RULE})\b)|(?P<name>{_RULE})\ (?:\[\*\]\ )?\S)
        """,
        inside=r"^\s*-->|\^|^help:",
        depth=9,
        needs=("hit",),
    ),
    grammar(
        "gcc_clang",
        signs(rf"^{_GCC} ".replace("\\ ", " ")),
        r"""
        (?P<sum>\d+\ (?:errors?|warnings?)(?:\ and\ .*)?\ generated|compilation\ terminated|make(?:\[\d+\])?:\ \*\*\*
            |collect2:|ld:|.*undefined\ reference)
        |(?P<hit>(?P<file>[^\s:][^:]*):\d+(?::\d+)?:\ (?:[Ff]atal\ )?(?:[Ee]rror|[Ww]arning):?(?:.*\[(?P<rule>-W[\w=+-]+)\]$)?)
        |(?P<dull>[^\s:][^:]*:\d+(?::\d+)?:\ (?:note|required\ from)|make(?:\[\d+\])?:\ (?:Entering|Leaving))
        |(?P<part>[^\s:][^:]*:\ In\ |In\ file\ included\ |In\ \S.*:$)
        """,
        inside=r"\^|^\s+\d+\ \|",
        depth=3,
        needs=("hit",),
    ),
)
