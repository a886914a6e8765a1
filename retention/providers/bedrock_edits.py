"""Changes to elements of Bedrock Converse: other ids, no reasoning, cache points, one of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from retention.providers import splice, streams
from retention.providers.base import Marks

ID_PATTERN = r"[a-zA-Z0-9_-]{1,64}"
_NAMED = ("toolUse", "toolResult")  # the blocks with a toolUseId
_POINTS = {
    "5m": b'{"cachePoint":{"type":"default"}}',
    "1h": b'{"cachePoint":{"type":"default","ttl":"1h"}}',
}

_read_keys = streams.make_decoder(dict[str, msgspec.Raw])


def _edit_blocks(raw: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return the message RAW with each block as EDIT makes it."""
    return splice.map_items(raw, _content(raw), edit)


def _content(raw: bytes) -> splice.Span:
    return splice.members(raw, splice.whole(raw))["content"]


def _holds(block: bytes, key: str) -> bool:
    return key in (_read_keys(block) or ())


def make_id(seed: str) -> str:
    """Return a legal id made of SEED."""
    return "tooluse_" + seed[:22]


def rename(raw: bytes, ids: Sequence[str | None]) -> bytes:
    """Give the calls or results of a message the IDS, in order; None leaves one as it is."""
    left = iter(ids)

    def edit(block: bytes) -> bytes:
        members = splice.members(block, splice.whole(block))
        place = next((members[key] for key in _NAMED if key in members), None)
        id = next(left, None) if place else None
        if place is None or id is None:
            return block
        return splice.set_member(block, place, "toolUseId", splice.encode_string(id))

    return _edit_blocks(raw, edit)


def strip(raw: bytes) -> bytes:
    """Leave the reasoning out of a message; b"" if it was all."""
    stripped = _edit_blocks(raw, lambda block: b"" if _holds(block, "reasoningContent") else block)
    left = any(splice.items(stripped, _content(stripped)))
    return stripped if left or stripped == raw else b""


def join(first: bytes, second: bytes) -> bytes:
    """Return one message with the blocks of both, which are of one role."""
    start, end = _content(second)
    blocks = second[start + 1 : end - 1].strip()
    return splice.append_item(first, _content(first), blocks) if blocks else first


def put_mark(raw: bytes, lifetime: str) -> bytes | None:
    """Put a cache point of LIFETIME behind the last block that is not reasoning; None if all is."""
    for start, end in reversed(list(splice.items(raw, _content(raw)))):
        if not _holds(raw[start:end], "reasoningContent"):
            return raw[:end] + b"," + _POINTS[lifetime] + raw[end:]
    return None


def drop_marks(raw: bytes) -> bytes:
    """Leave the cache points out of a message."""
    return _edit_blocks(raw, drop_point)


def drop_point(block: bytes) -> bytes:
    """Return BLOCK, b"" if it is a cache point."""
    return b"" if _holds(block, "cachePoint") else block


MARKS = Marks(put=put_mark, drop=drop_marks)
