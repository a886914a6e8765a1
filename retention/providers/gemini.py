"""Gemini generateContent (array `contents`): parts without type names, results without ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from retention.errors import InvalidPayload
from retention.model import Identity, Message, PartKind, Role
from retention.providers import gemini_edits, gemini_response, rules, splice, streams
from retention.providers.base import Head, Provider, Shape
from retention.providers.calls import match_calls
from retention.providers.canonical import (
    Element,
    Piece,
    build_message,
    call_piece,
    canonical_json,
    empty_piece,
    make_reader,
    media_digest,
    media_piece,
    result_piece,
    text_piece,
)

_NONE = msgspec.Raw(b"")
_ROLES = {"user": Role.USER, "model": Role.ASSISTANT, "function": Role.USER}
_SYSTEM = ("systemInstruction", "system_instruction")
_UNRELATED = ("labels",)  # members of a payload that only the bill shows
_ANSWERS = ("content", "result", "output")  # where a response object holds the result's text


class _Call(msgspec.Struct, gc=False):
    name: str
    args: msgspec.Raw = _NONE


class _Response(msgspec.Struct, gc=False):
    response: msgspec.Raw = _NONE
    parts: list[msgspec.Raw] = []


class _Part(msgspec.Struct, gc=False):
    """The API takes both spellings of each key; gptel writes inline_data, and functionCall."""

    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    thought_signature_camel: str | None = msgspec.field(default=None, name="thoughtSignature")
    function_call: _Call | None = None
    function_call_camel: _Call | None = msgspec.field(default=None, name="functionCall")
    function_response: _Response | None = None
    function_response_camel: _Response | None = msgspec.field(default=None, name="functionResponse")
    inline_data: msgspec.Raw = _NONE
    inline_data_camel: msgspec.Raw = msgspec.field(default=_NONE, name="inlineData")
    file_data: msgspec.Raw = _NONE
    file_data_camel: msgspec.Raw = msgspec.field(default=_NONE, name="fileData")


class _Content(msgspec.Struct, gc=False):
    role: str = "user"
    parts: list[_Part] = []


class _Parts(msgspec.Struct, gc=False):
    parts: list[msgspec.Raw]


_read_content = make_reader(_Content, "a Gemini content")
_read_parts = make_reader(_Parts, "a Gemini content")
_read_fields = make_reader(dict[str, msgspec.Raw], "a Gemini response")
_read_string = make_reader(str, "a string")
_read_members = make_reader(dict[str, msgspec.Raw], "a Gemini payload")


def read(raw: bytes) -> Element:
    """Read the JSON text of one content."""
    content = _read_content(raw)
    role = _ROLES.get(content.role)
    if role is None:
        raise InvalidPayload(f"no Gemini role: {content.role}")
    pieces: list[Piece] = []
    for at, part in enumerate(content.parts):
        pieces.append(_read_part(raw, at, role, part))
        if part.thought_signature or part.thought_signature_camel:
            pieces.append(empty_piece("signature"))
    return Element(role, pieces)


def _read_part(raw: bytes, at: int, role: Role, part: _Part) -> Piece:
    if part.thought:
        return empty_piece("thought")
    if part.text is not None:
        return text_piece(part.text)
    call = part.function_call_camel or part.function_call
    if call is not None:
        return call_piece(call.name, call.args)
    response = part.function_response_camel or part.function_response
    if response is not None:
        return _read_response(response)
    inline, file = (
        (part.inline_data, part.inline_data_camel),
        (part.file_data, part.file_data_camel),
    )
    for media in inline + file:
        if media is not _NONE:
            return media_piece(media)
    if role is Role.USER:  # a form that we do not know: all of it counts
        return media_piece(_read_parts(raw).parts[at])
    return empty_piece("other")  # executed code and the like, of which gptel keeps nothing


def _read_response(response: _Response) -> Piece:
    media = tuple(media_digest(part) for part in response.parts)
    if response.response is _NONE:
        return result_piece([], None, media)
    return result_piece([_read_answer(response.response)], None, media)


def _read_answer(response: msgspec.Raw) -> str:
    """Return the text of a response object: its only field but `name`, or all of it as JSON."""
    if bytes(response)[:1] != b"{":
        return canonical_json(response)
    fields = {key: value for key, value in _read_fields(response).items() if key != "name"}
    if len(fields) == 1 and next(iter(fields)) in _ANSWERS:
        answer = next(iter(fields.values()))
        return _read_string(answer) if bytes(answer)[:1] == b'"' else canonical_json(answer)
    return canonical_json(response)


def parse(raw: bytes) -> Message:
    """Return the `Message` of one element of the array."""
    return build_message(raw, read(raw))


def wrap(text: str) -> bytes:
    """Return the user content with TEXT alone, as gptel writes one."""
    return b'{"role":"user","parts":[{"text":' + splice.encode_string(text) + b"}]}"


def shape(message: Message, _identity: Identity) -> Shape:
    """Place a delivery: always a content of its own, since text beside results is refused."""
    return Shape.NONE if message.role is Role.ASSISTANT else Shape.MESSAGE


def merge(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a user content without results."""
    element = read(raw)
    if element.role is not Role.USER or any(p.kind is PartKind.RESULT for p in element.pieces):
        raise InvalidPayload("a text goes into a user content without results")
    content = splice.whole(raw)
    part = b'{"text":' + splice.encode_string(text) + b"}"
    parts = splice.members(raw, content).get("parts")
    if parts is None:
        return splice.add_member(raw, content, "parts", b"[" + part + b"]")
    return splice.append_item(raw, parts, part)


def result(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of the last result of a content."""
    element = read(raw)
    found = [at for at, piece in enumerate(element.pieces) if piece.kind is PartKind.RESULT]
    if not found:
        raise InvalidPayload("the content has no functionResponse")
    parts = list(splice.items(raw, splice.members(raw, splice.whole(raw))["parts"]))
    part = splice.members(raw, parts[found[-1]])
    place = part.get("functionResponse") or part["function_response"]
    response = splice.members(raw, place).get("response")
    if response is None:
        value = b'{"content":' + splice.encode_string(text) + b"}"
        return splice.add_member(raw, place, "response", value)
    if raw[response[0]] != ord("{"):
        raise InvalidPayload("the response is not an object")
    fields = splice.members(raw, response)
    for key in _ANSWERS:
        if key in fields and splice.is_string(raw, fields[key]):
            return splice.append_text(raw, fields[key], text)
    if "reminder" in fields:
        raise InvalidPayload("the response has no text to append to")
    return splice.add_member(raw, response, "reminder", splice.encode_string(text))


def head(raw: bytes) -> Head:
    """Take a payload without its contents apart."""
    members = {key: bytes(value) for key, value in _read_members(raw).items()}
    systems = [members.pop(key, b"") for key in _SYSTEM]
    return Head(
        tools=members.pop("tools", b""),
        system=next(filter(None, systems), b""),
        parameters={key: value for key, value in members.items() if key not in _UNRELATED},
    )


def order_results(
    results: Sequence[bytes], seen: Sequence[bytes], own: Sequence[bytes]
) -> Sequence[bytes]:
    """Put the responses in RESULTS, which answer the calls of SEEN, in the order of those of OWN.

    Each gets the id of its call, which gptel does not send (N38).
    """
    answers = gemini_edits.find_parts(results, gemini_edits.RESPONSES)
    calls = gemini_edits.find_parts(own, gemini_edits.CALLS)
    places = match_calls(_name_calls(seen), _name_calls(own))
    if places is None or not len(places) == len(calls) == len(answers):
        return results
    ordered = iter([answers[place] for place in places])
    ids = iter([gemini_edits.get_id(call) for call in calls])

    def move(part: bytes) -> bytes:
        return next(ordered) if gemini_edits.find_member(part, gemini_edits.RESPONSES) else part

    moved = [gemini_edits.edit_parts(raw, move) for raw in results]
    return [gemini_edits.rename(raw, ids) for raw in moved]


def _name_calls(elements: Iterable[bytes]) -> list[tuple[str, str]]:
    """Return name and canonical arguments of the calls of ELEMENTS."""
    pieces = [piece for raw in elements for piece in read(raw).pieces]
    return [(piece.text, piece.arguments) for piece in pieces if piece.kind is PartKind.CALL]


check = rules.make_check(
    read,
    rules.pair_calls_single,
    rules.results_alone,
    rules.place_calls,
    rules.last_role(Role.USER),
    rules.no_empty_content,
)

PROVIDER = Provider(
    api="gemini",
    array="contents",
    read=read,
    parse=parse,
    wrap=wrap,
    shape=shape,
    merge=merge,
    result=result,
    check=check,
    head=head,
    assemble=streams.make_assemble(gemini_response.assemble, read),
    rename=gemini_edits.rename,
    order_results=order_results,
    strip=gemini_edits.strip,
    join=gemini_edits.join,
)
