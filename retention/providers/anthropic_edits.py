"""Changes to elements of Anthropic Messages: other ids, no reasoning, cache marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from retention.providers import splice, streams
from retention.providers.anthropic_response import THINKING
from retention.providers.base import Marks

ID_PATTERN = r"[a-zA-Z0-9_-]+"
_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}
_MARKABLE = ("text", "image", "document", "tool_use", "tool_result")
_MARKS = {"5m": b'{"type":"ephemeral"}', "1h": b'{"type":"ephemeral","ttl":"1h"}'}


class _Outline(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""


_read_outline = streams.make_decoder(_Outline)


def _outline(block: bytes) -> _Outline:
    return _read_outline(block) or _Outline()


def _edit_blocks(raw: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return the message or block RAW with each block of its content as EDIT makes it."""
    content = splice.members(raw, splice.whole(raw)).get("content")
    if content is None or not splice.is_array(raw, content):
        return raw
    return splice.map_items(raw, content, edit)


def make_id(seed: str) -> str:
    """Return a legal id made of SEED."""
    return "toolu_" + seed[:24]


def rename(raw: bytes, ids: Sequence[str | None]) -> bytes:
    """Give the calls or results of a message the IDS, in order; None leaves one as it is."""
    left = iter(ids)

    def edit(block: bytes) -> bytes:
        key = _ID_KEYS.get(_outline(block).type)
        id = next(left, None) if key else None
        if key is None or id is None:
            return block
        return splice.set_member(block, splice.whole(block), key, splice.encode_string(id))

    return _edit_blocks(raw, edit)


def strip(raw: bytes) -> bytes:
    """Leave the thinking out of a message; b"" if it was all."""
    left = False

    def edit(block: bytes) -> bytes:
        nonlocal left
        if _outline(block).type in THINKING:
            return b""
        left = True
        return block

    stripped = _edit_blocks(raw, edit)
    return stripped if left or stripped == raw else b""


def put_mark(raw: bytes, lifetime: str) -> bytes | None:
    """Put a mark of LIFETIME on the last block that may carry one; None if none may.

    Refused on thinking ("Extra inputs are not permitted") and on a text block without text
    ("cache_control cannot be set for empty text blocks").
    """
    mark = _MARKS[lifetime]
    content = splice.members(raw, splice.whole(raw)).get("content")
    if content is None:
        return None
    if splice.is_string(raw, content):
        text = raw[slice(*content)]
        if not msgspec.json.decode(text, type=str).strip():
            return None
        block = b'[{"type":"text","text":' + text + b',"cache_control":' + mark + b"}]"
        return splice.replace(raw, content, block)
    for span in reversed(list(splice.items(raw, content))):
        outline = _outline(raw[slice(*span)])
        if outline.type in _MARKABLE and (outline.type != "text" or outline.text.strip()):
            return splice.set_member(raw, span, "cache_control", mark)
    return None


def drop_marks(raw: bytes) -> bytes:
    """Leave the cache marks out of a message, those inside of results too.

    A text that is a block only to carry a mark, alone in its message, is a string again.
    """

    def edit(block: bytes) -> bytes:
        if _outline(block).type == "tool_result":
            block = _edit_blocks(block, drop_mark)
        return drop_mark(block)

    dropped = _edit_blocks(raw, edit)
    return raw if dropped == raw else _unwrap(dropped)


def _unwrap(raw: bytes) -> bytes:
    """Return the message RAW, with the text of its only block, if it is but a text, as a string."""
    content = splice.members(raw, splice.whole(raw))["content"]
    blocks = [splice.members(raw, span) for span in splice.items(raw, content)]
    if len(blocks) != 1 or set(blocks[0]) != {"type", "text"}:
        return raw
    return splice.replace(raw, content, raw[slice(*blocks[0]["text"])])


def drop_mark(block: bytes) -> bytes:
    """Leave the cache mark out of a block or the definition of a tool."""
    return splice.drop_members(block, splice.whole(block), "cache_control")


MARKS = Marks(put=put_mark, drop=drop_marks)
