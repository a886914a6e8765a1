"""TOON, the form in which a model reads structured data (rules T1-T7).

The only module that knows a TOON library.  It stands on two: `toons` is fast and writes some large
floats, and a document that begins with a byte order mark, so that they do not come back;
`toon_format` is slow and exact.  Every document is therefore read back before it is used, and
written by the exact one where the fast one failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import toons

# A str, int, finite float, bool, None, or a list or a dict (with str keys) of such values.
Json: TypeAlias = Any
Mode = Literal["auto", "always", "never"]
Form = Literal["toon", "json"]

# Both sides must agree, since depth is leading spaces divided by this width.  Never an option: at
# 2 the fields of a list item stand under its first one, behind the two columns of "- ".
INDENT: Final = 2

# Code points of JSON that are read at most.  As a value it takes up to sixteen times its memory and
# 0.1 s per million, and what is longer is cut down to an excerpt in either form.
LARGEST: Final = 1_000_000

# How a model is told to read it, in the description of our tools and nowhere else (rule T6).
HOW_TO_READ: Final = """\
Structured results are in TOON: `key: value`, two spaces of indentation for each level.
`key[3]: a,b,c` is a list of 3 values.  `key[3]:` starts a list of 3 items, each behind `- `.
`key[3]{a,b}:` starts a table of 3 rows: the columns are a and b, each row is one indented line.
A column `c{x,y}` stands for an object c with the fields x and y, each a column of its own.
`key[3:]{a,b}:` starts a table whose 3 rows each begin with a key of their own and a colon.
`key:` with nothing below it is an empty object, `key: []` an empty list."""

# What the marks of each form cost, in quarters of a token; all else costs the same in both.
_JSON_COST: Final[Mapping[str, int]] = MappingProxyType({'"': 1, '":': 8})
_TOON_COST: Final[Mapping[str, int]] = MappingProxyType(
    {'"': 2, "\n": 8, "\n" + INDENT * " ": 4, ": ": 4, "[": 6, "}:\n": 12}
)


def encode_for_model(value: Json) -> str:
    """Return VALUE as TOON; `decode_from_model` gives it back.

    The text has no final newline and is empty for an empty object.  Raise ValueError for what is
    no JSON value (NaN, other types, keys that are no strings) and for what TOON cannot carry:
    an unpaired surrogate, or some hundred levels of nesting.
    """
    reason: Exception | None = None
    for write in (_write_fast, _write_exact):
        try:
            text = write(value)
            if decode_from_model(text) == value:
                return text
        except (TypeError, ValueError, RecursionError) as error:
            reason = error
    raise ValueError("not a value that TOON carries") from reason


def decode_from_model(text: str) -> Json:
    """Return the value that the TOON document TEXT writes; raise ValueError if it is none."""
    return toons.loads(text, indent_size=INDENT)


def shorter(json_text: str, mode: Mode) -> tuple[str, Form]:
    """Return the form in which a model reads JSON_TEXT, which another's tool printed (rule T5).

    `auto` takes TOON where it costs fewer tokens than compact JSON, and compact JSON elsewhere;
    `always` takes TOON.  JSON_TEXT itself comes back under `never`, beyond LARGEST, and whenever
    reading it would lose something: if it is no JSON object or array with something in it, repeats
    a key, or has a number with more digits than a float holds.
    """
    if mode == "never" or len(json_text) > LARGEST:
        return json_text, "json"
    try:
        value = json.loads(json_text, object_pairs_hook=_object, parse_float=_number)
        if not (isinstance(value, dict | list) and value):
            return json_text, "json"
        text = encode_for_model(value)
    except (ValueError, ArithmeticError, RecursionError):
        return json_text, "json"
    if mode == "always" or _cost(text, _TOON_COST) < _cost(json_text, _JSON_COST):
        return text, "toon"
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return min(compact, json_text, key=len), "json"


def _write_fast(value: Json) -> str:
    return toons.dumps(value, indent_size=INDENT)


def _write_exact(value: Json) -> str:
    import toon_format  # noqa: PLC0415 - 40 ms that hardly any process spends

    return toon_format.encode(value, indent_size=INDENT)


def _cost(text: str, costs: Mapping[str, int]) -> int:
    """Estimate the tokens of the marks in TEXT, in quarters.

    Only the difference of two forms of one value means anything.  The costs are a least-squares
    fit to the difference that three vocabularies (o200k, cl100k, Qwen's) count over 1,641 real
    documents of 150 bytes to 300 KB, rounded.  The choice that they lead to is that of o200k,
    cl100k and Qwen for 92, 91 and 92 % of the documents; where it differs, 0.04, 0.02 and 0.02 %
    of all tokens are lost.  Choosing for Qwen by o200k agrees for 92 % and loses 0.11 %: a real
    tokenizer, half a second to load, would serve the model that happens to read this no better.
    """
    return sum(text.count(mark) * cost for mark, cost in costs.items())


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Make an object; raise ValueError if a key is there twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is there twice")
    return value


def _number(text: str) -> float:
    """Read TEXT, which has a fraction or an exponent; raise ValueError if a digit would be lost."""
    value = float(text)
    # Fifteen digits and a point always survive.
    if (len(text) > 16 or "e" in text.lower()) and Decimal(text) != Decimal(repr(value)):
        raise ValueError(f"{text} has more digits than a float holds")
    return value
