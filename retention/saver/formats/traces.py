"""Tracebacks and panics, in whatever output they stand."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

# Frames of code that is not the user's.
_FOREIGN = (
    r"(?:node:|java\.|jdk\.|sun\.|/rustc/|/usr/|.*(?:site-packages|node_modules|dist-packages)/)"
)

TRACES: Final[tuple[Format, ...]] = (
    grammar(
        "traceback",
        marks=signs(
            r"\s*Traceback \(most recent call last\):|Exception in thread |panic: "
            r"|goroutine \d+ \[|thread '.* panicked at |Debugger entered|Error: [a-z-]+ \("
            r"|\s+at .*:\d+:\d+\)?$|\tat .*\(.*\)$",
            r"\s*File \".*\", line \d+|\s+at |\t\S+\.go:\d+|thread '|  \S*\(",
        ),
        dull=(
            rf"\s+at (?:[^(]*\()?{_FOREIGN}",
            r"\s+at async .*node:",
            r"\s+\.\.\. \d+ more",
            r"\s+\d+: (?:std|core|__rust)",
            "\t/usr/",
        ),
        hit=(
            r'\s*File "(?P<file>[^"]*)", line (?P<rule>\d+)',
            r"\s+at ",
            r"\t\S+\.go:\d+",
        ),
        head=(
            r"\s*Traceback \(most recent",  # Python
            r"Exception in thread|\s*Caused by:",  # Java
            r"panic:|goroutine \d+ \[",  # Go
            "thread '[^']*'[^:]* panicked at",  # Rust
            r"Debugger entered|Symbol.s |Wrong (?:type|number)|Error: [a-z-]+ \(",  # Emacs Lisp
            r"(?:file://)?/\S+:\d+$|(?:Uncaught )?[\w.$]*(?:Error|Exception)\b.*:",  # Node
            r"ERROR in |\[[A-Z_]+\] ",  # builds by Node
        ),
        inside=(r"^\S", r"^\s+(?:raise|throw|return)\b", r"^  \w"),
        depth=5,
        needs=("head",),
    ),
)
