"""Larger outputs made of the recorded ones: their lines again, with other names and numbers.

Deterministic: the same text and size give the same result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

_NUMBER = re.compile(r"(?<![\w.\x1b\[;])\d{2,}(?!\w)")
_PART = re.compile(r"(?<=/)[a-z_-]{4,}")  # of a path
_EDGE = 10  # one part in so many, at either end, is not repeated


def grow(text: str, size: int) -> str:
    """Return TEXT grown to about SIZE code points; its beginning and its end stand once."""
    if len(text) >= size:
        return text
    if text[:1] in {"{", "["}:
        try:
            return _grow_json(json.loads(text), size, indent=2 if "\n" in text.strip() else None)
        except json.JSONDecodeError:
            pass  # lines of JSON, or a timestamp: grown like any other lines
    lines = text.splitlines(keepends=True)
    edge = max(1, len(lines) // _EDGE)
    head, body, tail = lines[:edge], lines[edge : len(lines) - edge], lines[len(lines) - edge :]
    grown = head + body
    length = len(text)
    for copy in count(1):
        if length >= size or not body:
            break
        for line in body:
            grown.append(vary(line, copy))
            length += len(grown[-1])
    return "".join(grown + tail)


def vary(line: str, copy: int) -> str:
    """Return LINE with the numbers and the parts of paths that it may have in copy number COPY."""
    line = _NUMBER.sub(lambda found: _other(found[0], copy), line)
    return _PART.sub(lambda found: f"{found[0]}{copy}", line)


def _other(number: str, copy: int) -> str:
    """Return another number of as many digits."""
    least = 10 ** (len(number) - 1)  # no leading zero, so that JSON stays JSON
    return str(least + (int(number) * 7919 + copy * 104_729) % (9 * least))


def _grow_json(value: Any, size: int, indent: int | None) -> str:
    """Return VALUE as JSON, with its longest list or object repeated until it has about SIZE."""
    longest = max(_containers(value), key=len)
    items = list(longest.items()) if isinstance(longest, dict) else list(longest)
    each = len(json.dumps(value, indent=indent))
    for copy in range(1, size // max(each, 1) + 1):
        if isinstance(longest, dict):
            longest.update(
                {f"{key}-{copy}": json.loads(vary(json.dumps(item), copy)) for key, item in items}
            )
        else:
            longest.extend(json.loads(vary(json.dumps(item), copy)) for item in items)
    return json.dumps(value, indent=indent)


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item)
