"""Installs of packages by npm, pip and apt."""

from __future__ import annotations

from typing import Final

from retention.saver.formats.base import Format, grammar, signs

_NPM_RESULT = r"(?:added|removed|changed|up to date|audited)\b.*(?:packages?|in \d)"

INSTALLS: Final[tuple[Format, ...]] = (
    grammar(
        "install",
        marks=signs(
            rf"{_NPM_RESULT}"
            r"|npm (?:ERR!|error|warn|WARN|http) "
            r"| *(?:Successfully installed|Installing collected packages|Requirement already) "
            r"| *(?:Collecting|ERROR: Could not|ERROR: Cannot install) "
            r"|\d+ upgraded, \d+ newly installed"
            r"|(?:Setting up|Unpacking) \S+ \("
        ),
        hit=(
            r"npm (?:ERR!|error|warn|WARN) *(?P<rule>\S+)",
            r"\s*(?:WARNING|DEPRECATION|warning): ",
            "(?:Setting up|Removing) ",
        ),
        dull=(
            "npm ",
            r"\s*(?:Collecting|Downloading|Using cached|Preparing|Requirement already) ",
            r"\s*(?:Looking in|Building wheel|Created wheel|Stored in|Installing|Obtaining|━)",
            r"(?:Get|Hit|Ign):\d",
            r"(?:Selecting|Unpacking|Processing|\(?Reading|Building) ",
        ),
        sum=(
            _NPM_RESULT,
            r"(?:\d+|found \d+) .*\bvulnerabilit",
            r"\s*Successfully (?:installed|built|uninstalled)",
            r"\d+ upgraded, ",
            "Done in ",
            "Failed to build",
            r"\s*(?:ERROR|error): ",
            "[EW]: |dpkg: error|Errors were encountered",
        ),
        head=("The conflict is caused by", r"\s*\u00d7 "),
        inside=(r"\S",),
        depth=12,
        needs=("sum", "hit"),
    ),
)
