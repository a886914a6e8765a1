"""The canonical form of a message (rules I2, I4, G2): what it drops and keeps, in one place.

A provider module reads the JSON text of an element into an `Element`: who speaks, and `Piece`
values in order.  `build_message` turns it into the `Message` that the core compares.  Nothing here
knows an API; the same text, call or result gives the same part digest whichever module read it.
The rules with their reasons are in docs/canonical-form.md, the vectors in fixtures/canonical/.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, overload

import msgspec

from retention.digest import Digest, digest, digest_fields, from_hex
from retention.errors import InvalidPayload
from retention.model import Message, Part, PartKind, Role

T = TypeVar("T")
Reader = Callable[[bytes | msgspec.Raw], T]

WHITE = " \t\r\n"  # what gptel's string-trim and gptel--trim-prefixes remove (S10)
MARKS = frozenset(("cache_control", "copilot_cache_control", "prompt_cache_breakpoint"))
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)  # of the two JSON decoders
_DATA_KEYS = ("data", "bytes", "url", "file_data", "fileUri", "file_uri", "uri", "file_id")
_NESTED_KEYS = ("source", "s3Location")


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One piece of an element as its API wrote it, before joining.

    TEXT: `text`.  CALL: `text` is the name, `arguments` their canonical JSON, `id` the call's id.
    RESULT: `text`, `media` and the `id` of its call.  MEDIA: one digest in `media`.  EMPTY:
    something that leaves no part (reasoning, server-side items); `text` is its type.
    """

    kind: PartKind
    text: str = ""
    arguments: str = ""
    media: tuple[Digest, ...] = ()
    id: str | None = None


class Element(msgspec.Struct, frozen=True, gc=False):
    """One element of an array, read: `marks` are the lifetimes of its cache marks, in order."""

    role: Role
    pieces: list[Piece]
    marks: tuple[str, ...] = ()


# Reading JSON


@overload
def make_reader(type_: type[T], what: str) -> Reader[T]: ...
@overload
def make_reader(type_: UnionType, what: str) -> Reader[Any]: ...
def make_reader(type_: Any, what: str) -> Reader[Any]:
    """Return a decoder of JSON text to TYPE_ that raises `InvalidPayload` naming WHAT."""
    decode = msgspec.json.Decoder(type_).decode

    def read(raw: bytes | msgspec.Raw) -> Any:
        try:
            return decode(raw)
        except _UNREADABLE as error:
            raise InvalidPayload(f"not {what}: {error}") from error

    return read


_read_any = make_reader(object, "JSON")


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keep the first of equal keys, as Emacs does (S9), and read null as {} (S9)."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key not in found:
            found[key] = _fill(value)
    return found


def _fill(value: Any) -> Any:
    """Return VALUE with each null in it as {}; dicts in it were done by `_first_wins`."""
    if value is None:
        return {}
    if type(value) is list:
        return [_fill(item) for item in value]
    return value


def _read_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("number out of range")  # Emacs and msgspec refuse it too
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_decode_value = json.JSONDecoder(
    object_pairs_hook=_first_wins, parse_float=_read_float, parse_constant=_refuse
).decode
_encode_value = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def canonical_json(raw: bytes | msgspec.Raw | str) -> str:
    """Return the canonical text of a JSON value: compact, key order kept, null as {}.

    Numbers have the shortest form that reads back the same; 1 and 1.0 stay distinct, 1e3 and
    1000.0 do not.  Raises InvalidPayload for text that is not JSON.
    """
    try:
        text = raw if isinstance(raw, str) else bytes(raw).decode()
        return _encode_value(_fill(_decode_value(text)))
    except _UNREADABLE as error:
        raise InvalidPayload(f"not a JSON value: {type(error).__name__}") from error


def canonical_arguments(raw: msgspec.Raw | bytes) -> str:
    """Return the canonical text of a call's arguments, given as an object or as a string of JSON.

    Missing ones count as {}, and so does a string that is not JSON: gptel calls the tool without
    arguments then, and writes {} into the buffer.
    """
    data = bytes(raw)
    if not data or data == b"{}":
        return "{}"
    if data[:1] != b'"':
        return canonical_json(data)
    try:
        return canonical_json(str(_read_any(data)))
    except InvalidPayload:
        return "{}"


# Making pieces


def text_piece(text: str) -> Piece:
    """Return the piece of a text."""
    return Piece(PartKind.TEXT, text)


def call_piece(name: str, arguments: msgspec.Raw | bytes, id: str | None = None) -> Piece:
    """Return the piece of a call of the tool NAME."""
    return Piece(PartKind.CALL, name, canonical_arguments(arguments), (), id)


def result_piece(texts: list[str], id: str | None = None, media: tuple[Digest, ...] = ()) -> Piece:
    """Return the piece of a result that consists of TEXTS and MEDIA."""
    return Piece(PartKind.RESULT, _join_texts(texts), "", media, id)


def media_piece(raw: bytes | msgspec.Raw) -> Piece:
    """Return the piece of the media that the JSON text RAW holds or points to."""
    return Piece(PartKind.MEDIA, media=(media_digest(raw),))


def empty_piece(kind: str) -> Piece:
    """Return the piece of something of the type KIND that leaves no part."""
    return Piece(PartKind.EMPTY, kind)


def media_digest(raw: bytes | msgspec.Raw) -> Digest:
    """Return the digest (domain "blob") of the data in the JSON text RAW, without its frame.

    The data is a base64 string, the part of a data URL after its comma, another URL or a file id;
    or {"$blob": HEX, "bytes": N} in its stead, where HEX is that same digest (adapter.md Q7).
    A frame without any of these counts as a whole, without its cache marks.
    """
    found = _find_data(_read_any(raw))
    if found is not None:
        return found
    value = json.loads(canonical_json(raw))
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key not in MARKS}
    return digest("blob", _encode_value(value).encode("utf-8", "surrogatepass"))


def _find_data(value: object) -> Digest | None:
    if isinstance(value, str):
        if value.startswith("data:"):
            value = value.partition(",")[2]
        return digest("blob", value.encode())
    if not isinstance(value, dict):
        return None
    if "$blob" in value:
        try:
            return from_hex(value["$blob"])
        except (TypeError, ValueError) as error:
            raise InvalidPayload("$blob is not a digest") from error
    for key in _DATA_KEYS:
        if isinstance(value.get(key), str | dict):
            return _find_data(value[key])
    for key in _NESTED_KEYS:
        if isinstance(value.get(key), dict):
            return _find_data(value[key])
    return None


# Building messages

_HEX = bytes.hex
_RESULT = PartKind.RESULT
_SPEAKER = {
    Role.SYSTEM: "system",
    Role.USER: "user",
    Role.TOOL: "user",
    Role.ASSISTANT: "assistant",
}


def build_message(raw: bytes, element: Element) -> Message:
    """Return the `Message` of the JSON text RAW, without marks, that was read as ELEMENT."""
    parts = canonical_parts(element.role, element.pieces)
    role = element.role
    if role is Role.USER and parts[0].kind is _RESULT:
        role = Role.TOOL
    ids: tuple[str | None, ...] = ()
    reasoned = False
    for piece in element.pieces:
        if piece.kind is PartKind.EMPTY:
            reasoned = True
        elif piece.kind is PartKind.CALL or piece.kind is _RESULT:
            ids += (piece.id,)
    return Message(
        role=role,
        exact=digest("message", raw),
        size=len(raw),
        parts=parts,
        raw=raw,
        ids=ids,
        reasoned=reasoned,
        marks=element.marks,
    )


def canonical_parts(role: Role, pieces: list[Piece]) -> tuple[Part, ...]:
    """Return the parts of a message; one of kind EMPTY if PIECES leave none."""
    parts: list[Part] = []
    run: list[Piece] = []
    for piece in pieces:
        kind = piece.kind
        if kind is PartKind.TEXT or (kind is PartKind.MEDIA and role is not Role.ASSISTANT):
            run.append(piece)
            continue
        if kind is PartKind.EMPTY:
            continue
        _close_run(parts, role, run)
        if kind is PartKind.CALL:
            value = digest_fields("part", ("call", piece.text, piece.arguments))
        else:
            name = "result" if kind is _RESULT else "media"
            value = digest_fields("part", (name, piece.text, *map(_HEX, piece.media)))
        parts.append(Part(kind=kind, digest=value))
    _close_run(parts, role, run)
    if not parts:
        value = digest_fields("part", ("empty", _SPEAKER[role]))
        parts.append(Part(kind=PartKind.EMPTY, digest=value))
    return tuple(parts)


def _close_run(parts: list[Part], role: Role, run: list[Piece]) -> None:
    """Join the texts and media of RUN to one part, and empty RUN."""
    if not run:
        return
    if role is Role.ASSISTANT:  # gptel's buffer has streamed and separate texts one after another
        text = "".join([piece.text for piece in run]).strip(WHITE)
        media: list[Digest] = []
    else:
        text, media = _join_prompt(run)
    run.clear()
    if text:
        value = digest_fields("part", ("text", _SPEAKER[role], text, *map(_HEX, media)))
        parts.append(Part(kind=PartKind.TEXT, digest=value))
    elif media:
        value = digest_fields("part", ("media", "", *map(_HEX, media)))
        parts.append(Part(kind=PartKind.MEDIA, digest=value))


def _join_prompt(run: list[Piece]) -> tuple[str, list[Digest]]:
    """Return the text and the media of a prompt, which is one unit.

    Texts are joined with a line break, as gptel joins prompts that it merges for DeepSeek; over
    media with a space, as it joins them for Ollama, where the place of the media is lost.
    """
    text, gap = "", "\n"
    media: list[Digest] = []
    for piece in run:
        if piece.media:
            media += piece.media
            gap = " "
            continue
        stripped = piece.text.strip(WHITE)
        if stripped:
            text = f"{text}{gap}{stripped}" if text else stripped
            gap = "\n"
    return text, media


def _join_texts(texts: list[str]) -> str:
    """Join the texts of a result that are not blank with a line break."""
    if len(texts) == 1:
        return texts[0].strip(WHITE)
    return "\n".join([text for text in (text.strip(WHITE) for text in texts) if text])
