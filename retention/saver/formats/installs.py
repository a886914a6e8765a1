"""Installs of packages by npm, pip and apt."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

INSTALLS: Final[tuple[Format, ...]] = (
    grammar(
        "install",
        signs(
            r"^(?:added|removed|changed|up to date|audited)\b.* (?:packages?|in \d+)|^npm (?:ERR!|error|warn|WARN|http) "
            r"|^ *(?:Successfully installed|Installing collected packages|Requirement already|Collecting|ERROR: Could not"
            r"|ERROR: Cannot install) |^\d+ upgraded, \d+ newly installed|^(?:Reading package lists|E: )"
            r"|^(?:Setting up|Unpacking) \S+ \(",
        ),
        r"""
        (?P<sum>(?:added|removed|changed|up\ to\ date|audited)\b.*(?:packages?|in\ \d)|.*\bvulnerabilit
            |\s*Successfully\ (?:installed|built|uninstalled)|\d+\ upgraded,\ |Done\ in\ |Failed\ to\ build
            |\s*(?:ERROR|error):\ |[EW]:\ |dpkg:\ error|Errors\ were\ encountered)
        |(?P<head>The\ conflict\ is\ caused\ by|\s*×\ )
        |(?P<hit>npm\ (?:ERR!|error|warn|WARN)\ *(?P<rule>\S+)|\s*(?:WARNING|DEPRECATION|warning):\ )
        |(?P<part>(?:Setting\ up|Removing)\ )
        |(?P<dull>npm\ |\s*(?:Collecting|Downloading|Using\ cached|Preparing|Requirement\ already|Looking\ in
            |Building\ wheel|Created\ wheel|Stored\ in|Installing|Obtaining|━)|Get:\d|Hit:\d|Ign:\d|Selecting\ |Unpacking\ |Preparing\ |Processing\ 
            |\(Reading\ |Reading\ |Building\ )
        """,
        inside=r"\S",
        depth=12,
        needs=("sum", "hit"),
    ),
)
