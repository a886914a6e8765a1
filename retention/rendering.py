"""What a model gets of a structured result, within the one cap (rules K1-K3).

Lengths are Unicode code points.  What is cut here was stored before.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import msgspec

from retention.encoding import Json, encode_for_model

Outcome: TypeAlias = Literal["complete", "partial", "unavailable"]

DEFAULT_CAP: Final = 6_000  # code points
CAP_VARIABLE: Final = "RETENTION_RESULT_MAX_CHARS"

_POSITIVE = re.compile(r"\s*0*[1-9][0-9]{0,17}\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Rendered(msgspec.Struct, frozen=True):
    """What the model gets, and whether that is all there is."""

    content: str
    outcome: Outcome

    @property
    def is_error(self) -> bool:
        """Whether the API should be told that the call failed."""
        return self.outcome == "unavailable"


def result_cap(*settings: str | int | None) -> int:
    """Return the first of SETTINGS that is a positive whole number, else the default.

    SETTINGS are what `RETENTION_RESULT_MAX_CHARS` and the option say, in order of precedence.
    """
    for setting in map(str, settings):
        if _POSITIVE.fullmatch(setting):
            return int(setting)
    return DEFAULT_CAP


def render_result(result_id: str, data: Json, cap: int) -> Rendered:
    """Render DATA, the answer with the id RESULT_ID, in at most CAP code points.

    A longer rendering is cut behind a header which says that it was, how long it is and what to
    do; a cut one is no readable TOON.  Bytes that were no text show as U+FFFD.  Raise ValueError
    if DATA is no JSON value.
    """
    text = encode_for_model(_readable({"id": result_id, "data": data}))
    whole = len(text) <= cap
    return Rendered(render_text(result_id, text, cap), "complete" if whole else "partial")


def render_text(result_id: str, text: str, cap: int) -> str:
    """Return TEXT, the answer with the id RESULT_ID, in at most CAP code points.

    A longer one is cut behind a header, as that of `render_result`.
    """
    if len(text) <= cap:
        return text
    header = (
        f"id: {result_id}\n"
        "completeness: truncated\n"
        f"totalCharacters: {len(text)}\n"
        "instruction: narrow the query or lower its limit before concluding that something is"
        " absent\n"
        "dataExcerpt:\n"
    )
    return (header + text)[:cap]


def render_failure(result_id: str, tool: str, cap: int) -> Rendered:
    """Render that TOOL, one of ours, failed: one line without the error, which is for the log."""
    return Rendered(f"{tool} failed and has no result (id {result_id})."[:cap], "unavailable")


def _readable(value: Json) -> Json:
    """Copy VALUE with U+FFFD for each surrogate, which no request can carry."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return value
