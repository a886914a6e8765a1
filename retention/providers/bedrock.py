"""AWS Bedrock Converse (array `messages`): blocks without type names, strictly taking turns."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from retention.errors import InvalidPayload
from retention.model import Identity, Message, Role
from retention.providers import bedrock_edits, bedrock_response, rules, splice, streams
from retention.providers.anthropic import bound
from retention.providers.base import Head, Provider, Shape
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
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}
_UNRELATED = ("requestMetadata",)  # members of a payload that only the logs of the account show
_Id: TypeAlias = str | dict[str, Any] | None  # gptel writes {} where an API without ids gave none


class _ToolUse(msgspec.Struct, gc=False, rename="camel"):
    name: str
    tool_use_id: _Id = None
    input: msgspec.Raw = _NONE


class _Inner(msgspec.Struct, gc=False):
    text: str | None = None
    json: msgspec.Raw = _NONE
    image: msgspec.Raw = _NONE
    document: msgspec.Raw = _NONE
    video: msgspec.Raw = _NONE


class _ToolResult(msgspec.Struct, gc=False, rename="camel"):
    tool_use_id: _Id = None
    content: list[_Inner] = []


class _CachePoint(msgspec.Struct, gc=False):
    ttl: str = "5m"


class _Block(msgspec.Struct, gc=False, rename="camel"):
    text: str | None = None
    tool_use: _ToolUse | None = None
    tool_result: _ToolResult | None = None
    image: msgspec.Raw = _NONE
    document: msgspec.Raw = _NONE
    video: msgspec.Raw = _NONE
    audio: msgspec.Raw = _NONE
    cache_point: _CachePoint | None = None
    reasoning_content: msgspec.Raw = _NONE


class _Message(msgspec.Struct, gc=False):
    role: str
    content: list[_Block]


class _Blocks(msgspec.Struct, gc=False):
    content: list[msgspec.Raw]


_read_message = make_reader(_Message, "a Converse message")
_read_blocks = make_reader(_Blocks, "a Converse message")
_read_members = make_reader(dict[str, msgspec.Raw], "a Converse payload")
_read_block_alone = make_reader(_Block, "a Converse block")


def read(raw: bytes) -> Element:
    """Read the JSON text of one message."""
    message = _read_message(raw)
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidPayload(f"no Converse role: {message.role}")
    marks: list[str] = []
    pieces: list[Piece] = []
    for at, block in enumerate(message.content):
        if block.cache_point is not None:
            marks.append(block.cache_point.ttl)
        else:
            pieces.append(_read_block(raw, at, role, block))
    return Element(role, pieces, tuple(marks))


def _read_block(raw: bytes, at: int, role: Role, block: _Block) -> Piece:
    if block.text is not None:
        return text_piece(block.text)
    if block.tool_use is not None:
        return call_piece(block.tool_use.name, block.tool_use.input, _get_id(block.tool_use))
    if block.tool_result is not None:
        return _read_result(block.tool_result)
    for media in (block.image, block.document, block.video, block.audio):
        if media is not _NONE:
            return media_piece(media)
    if role is Role.USER:  # a form that we do not know: all of it counts
        return media_piece(_read_blocks(raw).content[at])
    return empty_piece("reasoning" if block.reasoning_content is not _NONE else "other")


def _get_id(block: _ToolUse | _ToolResult) -> str | None:
    return block.tool_use_id if isinstance(block.tool_use_id, str) else None


def _read_result(result: _ToolResult) -> Piece:
    texts: list[str] = []
    media = []
    for inner in result.content:
        if inner.text is not None:
            texts.append(inner.text)
        elif inner.json is not _NONE:
            texts.append(canonical_json(inner.json))
        else:
            found = (inner.image, inner.document, inner.video)
            media += [media_digest(value) for value in found if value is not _NONE]
    return result_piece(texts, _get_id(result), tuple(media))


def parse(raw: bytes) -> Message:
    """Return the `Message` of one element of the array."""
    element = read(raw)
    return build_message(bedrock_edits.drop_marks(raw) if element.marks else raw, element)


def wrap(text: str) -> bytes:
    """Return the user message with TEXT alone, as gptel writes one."""
    return b'{"role":"user","content":[{"text":' + splice.encode_string(text) + b"}]}"


def is_claude(identity: Identity) -> bool:
    """Whether the model is one of Anthropic's; Bedrock's ids and profiles carry the vendor."""
    model = identity.model.lower()
    return "anthropic" in model or "claude" in model


def shape(message: Message, identity: Identity) -> Shape:
    """Place a delivery: in the user's message that is there, since turns must alternate.

    Refusal of a message of its own: "A conversation must alternate between user and assistant
    roles."  Refusal of text beside results, of models other than Claude: "Conversation blocks and
    tool result blocks cannot be provided in the same turn."
    """
    if message.role is Role.ASSISTANT:
        return Shape.NONE
    if message.role is Role.TOOL and not is_claude(identity):
        return Shape.RESULT
    return Shape.MERGE


def merge(raw: bytes, text: str) -> bytes:
    """Put TEXT at the end of a user message, after its results if it has any."""
    if read(raw).role is not Role.USER:
        raise InvalidPayload("a text goes into a user message")
    content = splice.members(raw, splice.whole(raw))["content"]
    return splice.append_item(raw, content, text_block(text))


def text_block(text: str) -> bytes:
    """Return the JSON text of a text block."""
    return b'{"text":' + splice.encode_string(text) + b"}"


def result(raw: bytes, text: str) -> bytes:
    """Put TEXT into the last result of a message, as a block of its own."""
    read(raw)  # refuses what the steps below could not walk
    found: splice.Span | None = None
    for block in splice.items(raw, splice.members(raw, splice.whole(raw))["content"]):
        found = splice.members(raw, block).get("toolResult", found)
    if found is None:
        raise InvalidPayload("the message has no toolResult")
    content = splice.members(raw, found).get("content")
    if content is None:
        return splice.add_member(raw, found, "content", b"[" + text_block(text) + b"]")
    return splice.append_item(raw, content, text_block(text))


def head(raw: bytes) -> Head:
    """Take a payload without its messages apart; `toolConfig` holds the tools and more."""
    members = {key: bytes(value) for key, value in _read_members(raw).items()}
    config = members.pop("toolConfig", b"{}")
    settings = {key: bytes(value) for key, value in _read_members(config).items()}
    tools, marks = _take_marks(settings.pop("tools", b""))
    system, system_marks = _take_marks(members.pop("system", b""))
    members |= settings
    return Head(
        tools=tools,
        system=system,
        parameters={key: value for key, value in members.items() if key not in _UNRELATED},
        marks=(*marks, *system_marks),
    )


def _take_marks(raw: bytes) -> tuple[bytes, list[str]]:
    """Return the array RAW without cache points, and their lifetimes."""
    if not raw:
        return raw, []
    span = splice.whole(raw)
    blocks = [_read_block_alone(raw[start:end]) for start, end in splice.items(raw, span)]
    points = [block.cache_point for block in blocks if block.cache_point is not None]
    return splice.map_items(raw, span, bedrock_edits.drop_point), [point.ttl for point in points]


_RULES = (
    rules.pair_calls_single,
    rules.unique_ids,
    rules.match_ids(bedrock_edits.ID_PATTERN),
    rules.alternate,
    rules.first_role(Role.USER),
    rules.last_role(Role.USER),
    rules.no_empty_content,
    rules.no_empty_text,
    rules.few_marks,
)

PROVIDER = Provider(
    api="bedrock",
    array="messages",
    read=read,
    parse=parse,
    wrap=wrap,
    shape=shape,
    merge=merge,
    result=result,
    check=rules.make_check(read, *_RULES, rules.results_alone),
    head=head,
    assemble=streams.make_assemble(bedrock_response.assemble, read),
    rename=bedrock_edits.rename,
    id_pattern=bedrock_edits.ID_PATTERN,
    make_id=bedrock_edits.make_id,
    strip=bedrock_edits.strip,
    bound=bound,
    join=bedrock_edits.join,
    marks=bedrock_edits.MARKS,
)

CLAUDE = msgspec.structs.replace(PROVIDER, check=rules.make_check(read, *_RULES))
