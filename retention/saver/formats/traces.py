"""Tracebacks and panics, in whatever output they stand."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

_FOREIGN = r"(?:node:|java\.|jdk\.|sun\.|/rustc/|/usr/|.*(?:site-packages|node_modules|dist-packages)/)"

TRACES: Final[tuple[Format, ...]] = (
    grammar(
        "traceback",
        signs(
            r"^\s*Traceback \(most recent call last\):|^Exception in thread |^panic: |^goroutine \d+ \["
            r"|\bpanicked at |^Debugger entered|^Error: [a-z-]+ \(|^\s+at .*:\d+:\d+\)?$|^\tat .*\(.*\)$",
            r'^\s*File ".*", line \d+|^\s+at |^\t\S+\.go:\d+|panicked at|^  \S*\(',
        ),
        rf"""
        (?P<head>\s*Traceback\ \(most\ recent|Exception\ in\ thread|\s*Caused\ by:|panic:|goroutine\ \d+\ \[
            |thread\ '.*'.*\ panicked\ at|Debugger\ entered|Error:\ [a-z-]+\ \(|(?:file://)?/\S+:\d+$
            |(?:Uncaught\ )?(?:[\w.$]*(?:Error|Exception))\b.*:|ERROR\ in\ |\[[A-Z_]+\]\ )
        |(?P<dull>\s+at\ (?:.*\()?{_FOREIGN}|\s+at\ async\ .*node:|\s+\.\.\.\ \d+\ more|\s+\d+:\ (?:std|core|__rust)
            |\t/usr/)
        |(?P<hit>\s*File\ "(?P<file>[^"]*)",\ line\ (?P<rule>\d+)|\s+at\ |\t\S+\.go:\d+)
        """,
        inside=r"^\S|^\s+(?:raise|throw|return)\b|^\s\s\w",
        depth=5,
        needs=("head",),
    ),
)
