"""Anthropic Messages (array `messages`): content blocks; results stand in user messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from retention.errors import InvalidPayload
from retention.model import Identity, Message, PartKind, Reason, Role
from retention.providers import anthropic_edits, anthropic_response, rules, splice, streams
from retention.providers.base import Head, Provider, Shape
from retention.providers.canonical import (
    Element,
    Piece,
    Reader,
    build_message,
    call_piece,
    empty_piece,
    make_reader,
    media_digest,
    media_piece,
    result_piece,
    text_piece,
)

_NONE = msgspec.Raw(b"")
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_MEDIA = ("image", "document")

# Members of a payload on which the cache does not depend, nor what the model reads.
_UNRELATED = ("stream", "metadata", "max_tokens", "cache_control", "diagnostics")

# Models whose thinking is bound to what stands in front of it, since August 2026.
_BOUND = re.compile(r"(?:(?:fable|mythos)-5[.-]1|(?:opus|sonnet)-5[.-]5)(?!\d)")


class _Mark(msgspec.Struct, gc=False):
    ttl: str = "5m"


class _Marked(msgspec.Struct, gc=False):
    cache_control: _Mark | None = None


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = _NONE
    tool_use_id: str | None = None
    content: msgspec.Raw = _NONE
    source: msgspec.Raw = _NONE
    cache_control: _Mark | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[_Block] = ""


class _Blocks(msgspec.Struct, gc=False):
    content: list[msgspec.Raw]


_read_message = make_reader(_Message, "an Anthropic message")
_read_result: Reader[str | list[_Block]] = make_reader(
    str | list[_Block], "the content of a tool_result"
)
_read_blocks = make_reader(_Blocks, "an Anthropic message")
_read_head = make_reader(dict[str, msgspec.Raw], "an Anthropic payload")
_read_marked = make_reader(_Marked, "an Anthropic block")


def read(raw: bytes) -> Element:
    """Read the JSON text of one message."""
    message = _read_message(raw)
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidPayload(f"no Anthropic role: {message.role}")
    if isinstance(message.content, str):
        return Element(role, [text_piece(message.content)] if message.content else [])
    marks: list[str] = []
    pieces = [_read_block(raw, at, role, block, marks) for at, block in enumerate(message.content)]
    return Element(role, pieces, tuple(marks))


def _read_block(raw: bytes, at: int, role: Role, block: _Block, marks: list[str]) -> Piece:
    kind = block.type
    if kind == "tool_result":
        piece = _read_tool_result(block, marks)
    elif kind == "text":
        if block.text is None:
            raise InvalidPayload("a text block without text")
        piece = text_piece(block.text)
    elif kind == "tool_use":
        if block.name is None:
            raise InvalidPayload("a tool_use block without a name")
        piece = call_piece(block.name, block.input, block.id)
    elif kind in _MEDIA:
        piece = media_piece(
            block.source if block.source is not _NONE else _read_blocks(raw).content[at]
        )
    elif role is Role.USER:  # what the user gave in a form that we do not know: all of it counts
        piece = media_piece(_read_blocks(raw).content[at])
    else:  # thinking, and server tools, of which gptel keeps nothing
        piece = empty_piece(kind)
    if block.cache_control is not None:
        marks.append(block.cache_control.ttl)
    return piece


def _read_tool_result(block: _Block, marks: list[str]) -> Piece:
    if block.content is _NONE:
        return result_piece([], block.tool_use_id)
    content = _read_result(block.content)
    if isinstance(content, str):
        return result_piece([content], block.tool_use_id)
    texts = [inner.text for inner in content if inner.text is not None]
    media = tuple(media_digest(inner.source) for inner in content if inner.source is not _NONE)
    marks += [inner.cache_control.ttl for inner in content if inner.cache_control is not None]
    return result_piece(texts, block.tool_use_id, media)


def parse(raw: bytes) -> Message:
    """Return the `Message` of one element of the array."""
    element = read(raw)
    return build_message(anthropic_edits.drop_marks(raw) if element.marks else raw, element)


def wrap(text: str) -> bytes:
    """Return the user message with TEXT alone, as gptel writes one."""
    return b'{"role":"user","content":' + splice.encode_string(text) + b"}"


def shape(message: Message, _identity: Identity) -> Shape:
    """Place a delivery: user messages in a row are combined, so no exception is needed."""
    return Shape.NONE if message.role is Role.ASSISTANT else Shape.MESSAGE


def merge(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a user message, after its results if it has any."""
    if read(raw).role is not Role.USER:
        raise InvalidPayload("a text goes into a user message")
    message = splice.whole(raw)
    content = splice.members(raw, message).get("content")
    if content is None:
        return splice.add_member(raw, message, "content", splice.encode_string(text))
    if splice.is_string(raw, content):
        return splice.append_text(raw, content, text)
    return splice.append_item(raw, content, text_block(text))


def text_block(text: str) -> bytes:
    """Return the JSON text of a text block."""
    return b'{"type":"text","text":' + splice.encode_string(text) + b"}"


def result(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of the last result of a message."""
    element = read(raw)
    last = max(
        (at for at, piece in enumerate(element.pieces) if piece.kind is PartKind.RESULT), default=-1
    )
    if last < 0:
        raise InvalidPayload("the message has no tool_result")
    blocks = list(splice.items(raw, splice.members(raw, splice.whole(raw))["content"]))
    content = splice.members(raw, blocks[last]).get("content")
    if content is None:
        return splice.add_member(raw, blocks[last], "content", splice.encode_string(text))
    if splice.is_string(raw, content):
        return splice.append_text(raw, content, text)
    return splice.append_item(raw, content, text_block(text))


def head(raw: bytes) -> Head:
    """Take a payload without its messages apart.

    A mark of the request as a whole takes one of the four places, and stands behind the others.
    """
    members = {key: bytes(value) for key, value in _read_head(raw).items()}
    tools, marks = _take_marks(members.pop("tools", b""))
    system, system_marks = _take_marks(members.pop("system", b""))
    own = _read_marked(raw).cache_control
    return Head(
        tools=tools,
        system=system,
        parameters={key: value for key, value in members.items() if key not in _UNRELATED},
        marks=(*marks, *system_marks, *([own.ttl] if own else [])),
    )


def _take_marks(raw: bytes) -> tuple[bytes, list[str]]:
    """Return the array RAW without marks, and their lifetimes; a string has none."""
    if raw[:1] != b"[":
        return raw, []
    span = splice.whole(raw)
    marks = [_read_marked(raw[start:end]).cache_control for start, end in splice.items(raw, span)]
    return (
        splice.map_items(raw, span, anthropic_edits.drop_mark),
        [mark.ttl for mark in marks if mark is not None],
    )


def bound(identity: Identity) -> bool:
    """Whether thinking of the model is valid only behind the prefix that it was made for."""
    return _BOUND.search(identity.model.lower()) is not None


def _thinking_not_last(elements: list[Element]) -> Iterator[Reason]:
    """No assistant message ends in thinking."""
    for at, element in enumerate(elements):
        last = element.pieces[-1] if element.pieces else None
        if last and last.kind is PartKind.EMPTY and last.text.endswith("thinking"):
            yield Reason(code="thinking_last", detail=str(at))


def _system_placed(elements: list[Element]) -> Iterator[Reason]:
    """A run of system messages stands before an assistant message or ends the array."""
    for at, element in enumerate(elements[:-1]):
        after = elements[at + 1].role
        if element.role is Role.SYSTEM and after not in (Role.SYSTEM, Role.ASSISTANT):
            yield Reason(code="system_place", detail=str(at))


check = rules.make_check(
    read,
    rules.pair_calls_merged,
    rules.unique_ids,
    rules.match_ids(anthropic_edits.ID_PATTERN),
    rules.first_role(Role.USER),
    rules.last_role(Role.USER, Role.SYSTEM),
    rules.no_empty_content,
    rules.no_empty_text,
    rules.few_marks,
    _thinking_not_last,
    _system_placed,
)

PROVIDER = Provider(
    api="anthropic",
    array="messages",
    read=read,
    parse=parse,
    wrap=wrap,
    shape=shape,
    merge=merge,
    result=result,
    check=check,
    head=head,
    assemble=streams.make_assemble(anthropic_response.assemble, read),
    rename=anthropic_edits.rename,
    id_pattern=anthropic_edits.ID_PATTERN,
    make_id=anthropic_edits.make_id,
    strip=anthropic_edits.strip,
    bound=bound,
    marks=anthropic_edits.MARKS,
)
