"""Change one place of a JSON text and leave every other byte as it was (rules F5, R3).

Works on positions in the bytes: decoding and encoding again would lose number forms, white space,
duplicate keys and escapes.  The text must have been accepted by a JSON decoder before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring

import msgspec

from retention.errors import InvalidPayload

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NESTING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]+")
_CONTROL = re.compile(r"\\u00[01][0-9a-f]")

Span = tuple[int, int]  # start and end of a value in the bytes


def encode_string(text: str) -> bytes:
    """Return TEXT as a JSON string in the form of Emacs's json-serialize.

    Non-ASCII stays as it is, control characters without a short form have upper-case hex digits.
    """
    encoded = _CONTROL.sub(lambda found: "\\u" + found[0][2:].upper(), encode_basestring(text))
    try:
        return encoded.encode()
    except UnicodeEncodeError as error:
        raise InvalidPayload("the text has half of a surrogate pair") from error


def members(raw: bytes, span: Span) -> dict[str, Span]:
    """Return the values of the object at SPAN by key; the first of equal keys counts."""
    found: dict[str, Span] = {}
    for key, _, value in _entries(raw, span):
        found.setdefault(key, value)
    return found


def _entries(raw: bytes, span: Span) -> Iterator[tuple[str, int, Span]]:
    """Yield key, start and value of each member of the object at SPAN, equal keys included."""
    at = _expect(raw, span[0], b"{")
    while raw[at : at + 1] != b"}":
        start, key_end = at, _skip(raw, at)
        key = msgspec.json.decode(raw[at:key_end], type=str)
        at = _expect(raw, _space(raw, key_end), b":")
        end = _skip(raw, at)
        yield key, start, (at, end)
        at = _next(raw, end)


def items(raw: bytes, span: Span) -> Iterator[Span]:
    """Yield the values of the array at SPAN."""
    at = _expect(raw, span[0], b"[")
    while raw[at : at + 1] != b"]":
        end = _skip(raw, at)
        yield at, end
        at = _next(raw, end)


def whole(raw: bytes) -> Span:
    """Return the span of the value that RAW consists of."""
    start = _space(raw, 0)
    return start, _skip(raw, start)


def is_string(raw: bytes, span: Span) -> bool:
    """Whether the value at SPAN is a string."""
    return raw[span[0]] == ord('"')


def is_array(raw: bytes, span: Span) -> bool:
    """Whether the value at SPAN is an array."""
    return raw[span[0]] == ord("[")


def append_text(raw: bytes, span: Span, text: str) -> bytes:
    """Append TEXT to the string at SPAN, after a blank line unless that string is empty."""
    gap = b"" if raw[span[0] : span[1]] == b'""' else rb"\n\n"
    return _insert(raw, span[1] - 1, gap + encode_string(text)[1:-1])


def append_item(raw: bytes, span: Span, item: bytes) -> bytes:
    """Append the JSON text ITEM to the array at SPAN."""
    return _insert(raw, span[1] - 1, item if _is_bare(raw, span) else b"," + item)


def add_member(raw: bytes, span: Span, key: str, value: bytes) -> bytes:
    """Append the member KEY with the JSON text VALUE to the object at SPAN."""
    member = encode_string(key) + b":" + value
    return _insert(raw, span[1] - 1, member if _is_bare(raw, span) else b"," + member)


def replace(raw: bytes, span: Span, value: bytes) -> bytes:
    """Put the JSON text VALUE in the place of the value at SPAN."""
    return raw[: span[0]] + value + raw[span[1] :]


def set_member(raw: bytes, span: Span, key: str, value: bytes) -> bytes:
    """Give the member KEY of the object at SPAN the JSON text VALUE; append it if there is none."""
    found = members(raw, span).get(key)
    if found is None:
        return add_member(raw, span, key, value)
    return replace(raw, found, value)


def drop_members(raw: bytes, span: Span, *keys: str) -> bytes:
    """Remove the members KEYS, those that are there, from the object at SPAN."""
    entries = [
        (start, end, b"" if key in keys else raw[start:end])
        for key, start, (_, end) in _entries(raw, span)
    ]
    return _rebuild(raw, entries)


def map_items(raw: bytes, span: Span, edit: Callable[[bytes], bytes]) -> bytes:
    """Put what EDIT makes of it in the place of each item of the array at SPAN; b"" removes it."""
    return _rebuild(raw, [(start, end, edit(raw[start:end])) for start, end in items(raw, span)])


def _rebuild(raw: bytes, entries: list[tuple[int, int, bytes]]) -> bytes:
    """Return RAW with the text of each (start, end, text) in its place; b"" takes a comma along."""
    if not entries:
        return raw
    end = entries[0][0]
    pieces = [raw[:end]]
    for start, stop, text in entries:
        if text:
            if len(pieces) > 1:
                pieces.append(raw[end:start])  # the comma, and white space around it
            pieces.append(text)
        end = stop
    pieces.append(raw[end:])
    return b"".join(pieces)


def _insert(raw: bytes, at: int, new: bytes) -> bytes:
    return raw[:at] + new + raw[at:]


def _is_bare(raw: bytes, span: Span) -> bool:
    return _space(raw, span[0] + 1) == span[1] - 1


def _space(raw: bytes, at: int) -> int:
    found = _SPACE.match(raw, at)
    assert found is not None  # it matches nothing at all, too
    return found.end()


def _expect(raw: bytes, at: int, char: bytes) -> int:
    """Return the position after CHAR and white space, which must be at AT."""
    if raw[at : at + 1] != char:
        raise InvalidPayload(f"no {char.decode()} at byte {at}")
    return _space(raw, at + 1)


def _next(raw: bytes, end: int) -> int:
    """Return where the next member or item, or the closing bracket, is after a value's END."""
    at = _space(raw, end)
    return _space(raw, at + 1) if raw[at : at + 1] == b"," else at


def _skip(raw: bytes, at: int) -> int:
    """Return the end of the value that begins AT, which is not white space."""
    char = raw[at : at + 1]
    if char not in (b"{", b"["):
        found = (_STRING if char == b'"' else _SCALAR).match(raw, at)
        if found is None:
            raise InvalidPayload(f"no JSON value at byte {at}")
        return found.end()
    depth = 0
    for token in _NESTING.finditer(raw, at):
        first = token[0][:1]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
    raise InvalidPayload(f"the value at byte {at} has no end")


_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[ \t\r\n]+', re.DOTALL)


def normalize(raw: bytes) -> bytes:
    """Return RAW as Emacs writes the same value: no white space, escapes only where needed.

    Emacs reads what is put into a payload and writes it anew; a text in that form is recognised
    again when it comes back.  Numbers and the order of members stay.
    """

    def write(token: re.Match[bytes]) -> bytes:
        text = token[0]
        if text[:1] != b'"':
            return b""
        return encode_string(json.loads(text)) if b"\\" in text else text

    return _TOKENS.sub(write, raw)
