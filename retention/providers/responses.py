"""OpenAI Responses (array `input`): one element is one item, a call and its output are two."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from retention.errors import InvalidPayload
from retention.model import Identity, Message, PartKind, Reason, Role
from retention.providers import openai_edits, responses_response, rules, splice, streams
from retention.providers.base import Provider, Shape
from retention.providers.canonical import (
    Element,
    Piece,
    Reader,
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
_ROLES = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}
_IDS = r"[a-zA-Z0-9_-]{1,64}"  # of calls; that of an item is another
# Items that the API takes without an id, and then without looking for the reasoning behind them.
_BY_VALUE = ("message", "function_call", "custom_tool_call")
# Models that do not reason: "Encrypted content is not supported with this model."
_PLAIN = re.compile(r"gpt-[34]|chat", re.IGNORECASE)
_UNIMPORTANT = frozenset(
    (
        "stream",
        "stream_options",
        "store",
        "metadata",
        "user",
        "safety_identifier",
        "max_output_tokens",
    )
)


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    image_url: msgspec.Raw = _NONE
    file_data: msgspec.Raw = _NONE
    file_url: msgspec.Raw = _NONE
    file_id: msgspec.Raw = _NONE
    input_audio: msgspec.Raw = _NONE


class _Item(msgspec.Struct, gc=False):
    type: str = "message"
    role: str | None = None
    content: msgspec.Raw = _NONE
    call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    output: msgspec.Raw = _NONE


class _Named(msgspec.Struct, gc=False):
    type: str = "message"
    id: str | None = None


_read_item = make_reader(_Item, "an input item")
_read_named = make_reader(_Named, "an input item")
_read_content: Reader[str | list[_Part]] = make_reader(
    str | list[_Part], "the content of an input item"
)
_read_parts = make_reader(list[msgspec.Raw], "a list of parts")


def read(raw: bytes) -> Element:
    """Read the JSON text of one item."""
    item = _read_item(raw)
    if item.type == "message":
        return _read_message(item)
    if item.type in ("function_call", "custom_tool_call"):
        return Element(Role.ASSISTANT, [_read_call(item)])
    if item.type in ("function_call_output", "custom_tool_call_output"):
        return Element(Role.TOOL, [_read_output(item)])
    return Element(Role.ASSISTANT, [empty_piece(item.type)])  # reasoning, and server tools


def _read_message(item: _Item) -> Element:
    role = _ROLES.get(item.role or "")
    if role is None:
        raise InvalidPayload(f"no role of a message item: {item.role}")
    if item.content is _NONE:
        raise InvalidPayload("a message item without content")
    content = _read_content(item.content)
    if isinstance(content, str):
        return Element(role, [text_piece(content)])
    pieces = [_read_part(item, at, role, part) for at, part in enumerate(content)]
    return Element(role, pieces)


def _read_part(item: _Item, at: int, role: Role, part: _Part) -> Piece:
    if part.text is not None:
        return text_piece(part.text)
    if part.refusal is not None:  # what gptel writes into the buffer for it
        return text_piece(f"[Refused: {part.refusal}]")
    media = _get_media(part)
    if media is not None:
        return media_piece(media)
    if role is Role.USER:  # a form that we do not know: all of it counts
        return media_piece(_read_parts(item.content)[at])
    return empty_piece(part.type)


def _get_media(part: _Part) -> msgspec.Raw | None:
    found = (part.image_url, part.file_data, part.file_url, part.file_id, part.input_audio)
    return next((media for media in found if media is not _NONE), None)


def _read_call(item: _Item) -> Piece:
    if item.name is None:
        raise InvalidPayload("a call without a name")
    if item.type == "function_call":
        return call_piece(item.name, item.arguments, item.call_id)
    text = canonical_json(item.input if item.input is not _NONE else '""')  # free text, not JSON
    return Piece(PartKind.CALL, item.name, text, (), item.call_id)


def _read_output(item: _Item) -> Piece:
    if item.output is _NONE:
        return result_piece([], item.call_id)
    output = _read_content(item.output)
    if isinstance(output, str):
        return result_piece([output], item.call_id)
    texts = [part.text for part in output if part.text is not None]
    found = (_get_media(part) for part in output)
    return result_piece(texts, item.call_id, tuple(media_digest(m) for m in found if m is not None))


def parse(raw: bytes) -> Message:
    """Return the `Message` of one element of the array."""
    return build_message(raw, read(raw))


def wrap(text: str) -> bytes:
    """Return the user message with TEXT alone, as gptel writes one."""
    return b'{"role":"user","content":' + splice.encode_string(text) + b"}"


def shape(message: Message, _identity: Identity) -> Shape:
    """Place a delivery: a message of its own, never after an item of the assistant.

    After a reasoning item: "Item 'rs_...' of type 'reasoning' was provided without its required
    following item."
    """
    return Shape.NONE if message.role is Role.ASSISTANT else Shape.MESSAGE


def merge(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a user message."""
    if read(raw).role is not Role.USER:
        raise InvalidPayload("a text goes into a user message")
    return _append(raw, "content", text)


def result(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of the output of a call."""
    if read(raw).role is not Role.TOOL:
        raise InvalidPayload("the item is not the output of a call")
    return _append(raw, "output", text)


def _append(raw: bytes, key: str, text: str) -> bytes:
    item = splice.whole(raw)
    content = splice.members(raw, item).get(key)
    if content is None:
        return splice.add_member(raw, item, key, splice.encode_string(text))
    if splice.is_string(raw, content):
        return splice.append_text(raw, content, text)
    part = b'{"type":"input_text","text":' + splice.encode_string(text) + b"}"
    return splice.append_item(raw, content, part)


def rename(raw: bytes, ids: Sequence[str | None]) -> bytes:
    """Give the call or output of an item the first of IDS; None leaves it as it is."""
    return openai_edits.set_id(raw, "call_id", ids[0] if ids else None)


def strip(raw: bytes) -> bytes:
    """Leave reasoning out of the assistant's items; b"" for reasoning, and what needs it.

    "Item 'fc_...' of type 'function_call' was provided without its required 'reasoning' item"
    holds for an item with an id.  Those of tools that the server ran must have one.
    """
    if _read_named(raw).type not in _BY_VALUE:
        return b""
    return splice.drop_members(raw, splice.whole(raw), "id")


_check_items = rules.make_check(
    read,
    rules.answer_calls,
    rules.match_ids(_IDS),
    rules.unique_ids,
)


def _follow_reasoning(items: list[_Named]) -> Iterator[Reason]:
    """A reasoning item stands before another item of the assistant's turn."""
    for at, item in enumerate(items):
        after = items[at + 1].type if at + 1 < len(items) else ""
        if item.type == "reasoning" and (not after or after.endswith("_output")):
            yield Reason(code="reasoning_alone", detail=str(at))


def _unique_items(items: list[_Named]) -> Iterator[Reason]:
    seen: set[str] = set()
    for at, item in enumerate(items):
        if item.id is not None and item.id in seen:
            yield Reason(code="item_duplicate", detail=f"{at}: {item.id}")
        elif item.id is not None:
            seen.add(item.id)


def check(array: list[bytes]) -> tuple[Reason, ...]:
    """Name the rules that ARRAY breaks."""
    reasons = _check_items(array)
    try:
        items = [_read_named(raw) for raw in array]
    except InvalidPayload:
        return reasons  # which name the unreadable element already
    return (*reasons, *_follow_reasoning(items), *_unique_items(items))


def include(identity: Identity) -> tuple[str, ...]:
    """Ask a model that may reason for its reasoning; not every server sends it unasked."""
    return () if _PLAIN.search(identity.model) else ("reasoning.encrypted_content",)


PROVIDER = Provider(
    api="responses",
    array="input",
    read=read,
    parse=parse,
    wrap=wrap,
    shape=shape,
    merge=merge,
    result=result,
    check=check,
    head=openai_edits.make_head(_UNIMPORTANT, system="instructions"),
    assemble=streams.make_assemble(responses_response.assemble, read),
    rename=rename,
    id_pattern=_IDS,
    make_id=openai_edits.make_id,
    strip=strip,
    include=include,
)
