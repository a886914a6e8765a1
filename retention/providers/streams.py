"""Read the body of a response, whatever form it has, into JSON texts and values; write values back.

A body is one JSON document, a JSON array that may be cut, JSON lines, or server-sent events; its
bytes tell.  Nothing here knows an API.  Broken text is passed on as it is: the caller finds that it
cannot be decoded, and knows that the body was cut.

JSON may hold half of a surrogate pair, as an escape.  UTF-8 cannot, Emacs does not read it, and
msgspec refuses it.  Decoders here keep such halves in their strings, since the other half may be in
the next delta; `encode` and `repair` put U+FFFD in the place of those that stayed alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from retention.errors import InvalidPayload
from retention.providers.base import Response

T = TypeVar("T")

DONE = b"[DONE]"  # the data of the event that ends a stream of the chat APIs; it is not JSON

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)  # of the two JSON decoders
_BOM = b"\xef\xbb\xbf"
_DATA = re.compile(rb"^data(?:: ?([^\n]*))?$", re.MULTILINE)
_GAP = re.compile(r"[ \t\r\n,]*")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})"  # a half
    rb"|.)",
    re.DOTALL,
)


# Splitting a body


def read_documents(body: bytes) -> list[bytes]:
    """Return the JSON texts that BODY consists of, in order, as valid UTF-8.

    Of server-sent events it is the data of each, several data lines joined with a line break, the
    closing `DONE` included; comments and other fields leave nothing.  The last text may be cut off.
    A body that is of none of the forms (HTML, nothing at all) leaves none.
    """
    text = _utf8(body.removeprefix(_BOM)).strip()
    if text[:1] == b"[" and not text.startswith(DONE):
        return _read_array(text)
    if text[:1] != b"{":
        return _read_events(text)
    if _is_json(text):
        return [text]
    return [line for line in map(bytes.strip, text.split(b"\n")) if line]


def _utf8(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError:  # cut in a character, or damaged
        return body.decode(errors="replace").encode()
    return body


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(repair(text), type=msgspec.Raw)
    except _UNREADABLE:
        return False
    return True


def _read_array(text: bytes) -> list[bytes]:
    try:
        return [bytes(item) for item in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except _UNREADABLE:
        return list(_iter_items(text.decode()))


def _iter_items(text: str) -> Iterator[bytes]:
    """Yield the items of the array that TEXT begins with, the last one perhaps cut off."""
    scan = json.JSONDecoder().raw_decode
    at = _skip_gap(text, 1)
    while at < len(text) and text[at] != "]":
        try:
            _, end = scan(text, at)
        except _UNREADABLE:
            end = len(text)
        yield text[at:end].encode()
        at = _skip_gap(text, end)


def _skip_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    assert found is not None  # it matches nothing at all, too
    return found.end()


def _read_events(text: bytes) -> list[bytes]:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events = [b"\n".join(_DATA.findall(event)) for event in text.split(b"\n\n")]
    return [data for data in events if data]


# Responses


def make_assemble(
    assemble: Callable[[bytes], Response], read: Callable[[bytes], object]
) -> Callable[[bytes], Response]:
    """Return ASSEMBLE with a promise: an incomplete response has no elements, and READ takes all.

    What READ refuses is no message of the API, however the response ended: it is not complete.
    The provider's words have no halves of surrogate pairs, either.
    """

    def takes(element: bytes) -> bool:
        try:
            read(element)
        except InvalidPayload:
            return False
        return True

    def checked(body: bytes) -> Response:
        response = assemble(body)
        sound = response.complete and all(map(takes, response.elements))
        return msgspec.structs.replace(
            response,
            elements=response.elements if sound else (),
            complete=sound,
            finish=join_text(response.finish),
            error=join_text(response.error),
        )

    return checked


# Values


def make_decoder(type_: type[T]) -> Callable[[bytes], T | None]:
    """Return a decoder of a JSON text to TYPE_, which answers None if it is not of that shape.

    TYPE_ may hold no `msgspec.Raw`, unless the texts have been through `repair`.
    """
    decode = msgspec.json.Decoder(type_).decode

    def read(text: bytes) -> T | None:
        try:
            return decode(text)
        except _UNREADABLE:
            pass  # perhaps because of half of a pair
        try:
            return msgspec.convert(json.loads(text, parse_constant=_refuse), type_)
        except _UNREADABLE:
            return None

    return read


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def encode(value: Any) -> bytes:
    """Return VALUE as compact JSON; a `msgspec.Raw` in it goes in as it is."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_join_halves(value))


def join_text(text: str) -> str:
    """Return TEXT with halves of one pair that met joined, and U+FFFD for every other half."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _join_halves(value: Any) -> Any:
    if isinstance(value, str):
        return join_text(value)
    if isinstance(value, list):
        return [_join_halves(item) for item in value]
    if isinstance(value, dict):
        return {join_text(key): _join_halves(item) for key, item in value.items()}
    return value


def repair(raw: bytes) -> bytes:
    r"""Return the JSON text RAW with the escape \ufffd for each escape of half of a pair."""
    if _HALF.search(raw) is None:
        return raw
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], raw)
