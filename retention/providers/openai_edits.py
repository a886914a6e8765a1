"""Changes to chat messages: other ids, no reasoning; and a chat payload without its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retention.providers import splice
from retention.providers.base import Head

CALL_IDS = r".{1,40}"

# Members with reasoning or a signature: DeepSeek and many servers; OpenRouter (two); Copilot (two);
# Gemini's compatible endpoint.
REASONING = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "reasoning_text",
    "reasoning_opaque",
    "extra_content",
)
NOTHING = (b"", b"null", b'""', b"[]", b"{}")
_CONTENT = ("content", "tool_calls", "function_call", "refusal", "audio", "images")
# Gemini's documented value for a call that has no signature of its own.
_NO_SIGNATURE = b'"skip_thought_signature_validator"'

# Members of a payload that neither belong to the cached prefix nor change an answer, other than
# where it ends.
_UNIMPORTANT = frozenset(
    (
        "stream",
        "stream_options",
        "store",
        "metadata",
        "user",
        "safety_identifier",
        "max_tokens",
        "max_completion_tokens",
    )
)


# Messages


def rename(raw: bytes, ids: Sequence[str | None]) -> bytes:
    """Give the calls, or the result, of a message the IDS in their order; None leaves one as is."""
    role = splice.members(raw, splice.whole(raw)).get("role")
    if role is not None and raw[slice(*role)] == b'"tool"':
        return set_id(raw, "tool_call_id", ids[0] if ids else None)
    rest = iter(ids)
    return edit_items(raw, "tool_calls", lambda call: set_id(call, "id", next(rest, None)))


def set_id(raw: bytes, key: str, id: str | None) -> bytes:
    """Give the member KEY of the object RAW the value ID; None leaves it as it is."""
    if id is None:
        return raw
    return splice.set_member(raw, splice.whole(raw), key, splice.encode_string(id))


def make_id(seed: str) -> str:
    """Return an id of the form of OpenAI's."""
    return f"call_{seed[:24]}"


def strip(raw: bytes) -> bytes:
    """Leave reasoning and signatures out of a message of the assistant; b"" if nothing is left."""
    raw = splice.drop_members(raw, splice.whole(raw), *REASONING)
    raw = edit_items(raw, "content", _strip_chunk)
    raw = edit_items(raw, "tool_calls", _strip_call)
    return drop_empty(raw)


def drop_empty(raw: bytes) -> bytes:
    """Return the message RAW, or b"" if it says nothing."""
    found = splice.members(raw, splice.whole(raw))
    left = [raw[slice(*found[key])] for key in _CONTENT if key in found]
    return raw if any(value not in NOTHING for value in left) else b""


def edit_items(raw: bytes, key: str, edit: Callable[[bytes], bytes]) -> bytes:
    """Put what EDIT makes of it in the place of each item of the member KEY, if that is a list.

    A list that loses all of its items becomes "": a content has to be there beside calls.
    """
    found = splice.members(raw, splice.whole(raw)).get(key)
    if found is None or not splice.is_array(raw, found):
        return raw
    items = raw[slice(*found)]
    edited = splice.map_items(items, (0, len(items)), edit)
    return splice.replace(raw, found, b'""' if edited == b"[]" != items else edited)


def _strip_chunk(chunk: bytes) -> bytes:
    """Return b"" for a chunk of Mistral's thinking."""
    kind = splice.members(chunk, splice.whole(chunk)).get("type")
    return b"" if kind is not None and chunk[slice(*kind)] == b'"thinking"' else chunk


def _strip_call(call: bytes) -> bytes:
    """Replace the signature of a call by Gemini, which insists on one (N33)."""
    at: splice.Span | None = splice.whole(call)
    for key in ("extra_content", "google", "thought_signature"):
        if at is None or call[at[0]] != ord("{"):
            return call
        at = splice.members(call, at).get(key)
    return call if at is None else splice.replace(call, at, _NO_SIGNATURE)


# Payloads


def make_head(unimportant: frozenset[str], system: str = "") -> Callable[[bytes], Head]:
    """Return the `head` of a provider, given the member with the system prompt, if there is one."""

    def head(raw: bytes) -> Head:
        found = splice.members(raw, splice.whole(raw))
        texts = {key: raw[slice(*span)] for key, span in found.items()}
        return Head(
            tools=_take(texts, "tools"),
            system=_take(texts, system) if system else b"",
            parameters={key: text for key, text in texts.items() if key not in unimportant},
        )

    return head


def _take(texts: dict[str, bytes], key: str) -> bytes:
    text = texts.pop(key, b"")
    return b"" if text in NOTHING else text


head = make_head(_UNIMPORTANT)
