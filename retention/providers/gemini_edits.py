"""Changes to elements of Gemini: ids, no thoughts and signatures, one content of two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from retention.providers import splice, streams

SIGNATURES = ("thoughtSignature", "thought_signature")
CALLS = ("functionCall", "function_call")
RESPONSES = ("functionResponse", "function_response")

# What the API takes in the place of a signature that is not there, for calls that need one.
NO_SIGNATURE = b'"skip_thought_signature_validator"'


class _Outline(msgspec.Struct, gc=False):
    text: str | None = None
    thought: bool = False


_read_outline = streams.make_decoder(_Outline)
_read_keys = streams.make_decoder(dict[str, msgspec.Raw])


def is_empty(part: bytes) -> bool:
    """Whether PART has no text and nothing else, so that nothing is lost without it."""
    outline = _read_outline(part)
    if outline is None or outline.text != "":
        return False
    return set(_read_keys(part) or ()) <= {"text", "thought"}


def edit_parts(raw: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return the content RAW with each part as EDIT makes it."""
    parts = splice.members(raw, splice.whole(raw)).get("parts")
    return raw if parts is None else splice.map_items(raw, parts, edit)


def find_parts(contents: Iterable[bytes], names: Sequence[str]) -> list[bytes]:
    """Return the parts of CONTENTS that have a member of one of the NAMES."""
    found: list[bytes] = []
    for raw in contents:
        parts = splice.members(raw, splice.whole(raw)).get("parts")
        found += [raw[start:end] for start, end in splice.items(raw, parts)] if parts else []
    return [part for part in found if find_member(part, names)]


def find_member(part: bytes, names: Sequence[str]) -> splice.Span | None:
    """Return the first member of PART with one of the NAMES."""
    members = splice.members(part, splice.whole(part))
    return next((members[name] for name in names if name in members), None)


def get_id(part: bytes) -> str | None:
    """Return the id of the call in PART, None if it has none."""
    place = find_member(part, CALLS)
    id = splice.members(part, place).get("id") if place else None
    if id is None or not splice.is_string(part, id):
        return None
    return msgspec.json.decode(part[slice(*id)], type=str)


def rename(raw: bytes, ids: Iterable[str | None]) -> bytes:
    """Give the calls or responses of a content the IDS, in order; None leaves one as it is."""
    left = iter(ids)

    def edit(part: bytes) -> bytes:
        place = find_member(part, CALLS + RESPONSES)
        id = next(left, None) if place else None
        if place is None or id is None:
            return part
        return splice.set_member(part, place, "id", splice.encode_string(id))

    return edit_parts(raw, edit)


def strip(raw: bytes) -> bytes:
    """Leave thoughts and signatures out of a content; b"" if nothing else was there.

    A call that was signed says that it may not be validated: without a signature it is refused.
    """
    stripped = edit_parts(raw, _strip_part)
    parts = splice.members(stripped, splice.whole(stripped)).get("parts")
    left = parts is not None and any(splice.items(stripped, parts))
    return stripped if left or stripped == raw else b""


def _strip_part(part: bytes) -> bytes:
    outline = _read_outline(part)
    if outline is not None and outline.thought:
        return b""
    signature = find_member(part, SIGNATURES)
    if signature is None:
        return part
    if find_member(part, CALLS):
        return splice.replace(part, signature, NO_SIGNATURE)
    part = splice.drop_members(part, splice.whole(part), *SIGNATURES)
    return b"" if is_empty(part) else part


def join(first: bytes, second: bytes) -> bytes:
    """Return one content with the parts of both, which are of one role."""
    added = splice.members(second, splice.whole(second)).get("parts")
    parts = second[added[0] + 1 : added[1] - 1].strip() if added else b""
    if not parts:
        return first
    place = splice.members(first, splice.whole(first)).get("parts")
    if place is None:
        return splice.add_member(first, splice.whole(first), "parts", b"[" + parts + b"]")
    return splice.append_item(first, place, parts)
