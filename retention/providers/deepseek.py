"""DeepSeek and xAI (gptel gives both one backend): the chat shape with a rule about reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from retention.errors import InvalidPayload
from retention.model import Identity, Reason
from retention.providers import openai, openai_edits, rules, splice
from retention.providers.base import Provider
from retention.providers.canonical import make_reader

_ABSENT = msgspec.Raw(b"")
_REASONS = re.compile(r"reason|think|v[4-9]", re.IGNORECASE)  # V3.2 only if it is asked to


class _Reasoned(msgspec.Struct, gc=False):
    role: str = ""
    reasoning_content: msgspec.Raw = _ABSENT
    tool_calls: list[msgspec.Raw] | None = None


_read_reasoned = make_reader(_Reasoned, "a chat message")
_check_chat = rules.make_check(
    openai.read,
    rules.pair_calls,
    rules.unique_ids,
    rules.no_empty_content,
    openai.no_bare_reasoning,
)


def _keep_reasoning(array: list[bytes]) -> Iterator[Reason]:
    """In thinking mode each assistant message from the first call on has a string of reasoning.

    Refusal: "The `reasoning_content` in the thinking mode must be passed back to the API."  That
    the mode is on shows in the array only by one message that carries reasoning.
    """
    messages = [_read_reasoned(raw) for raw in array]
    if not any(bytes(message.reasoning_content)[:1] == b'"' for message in messages):
        return
    called = False
    for at, message in enumerate(messages):
        called = called or bool(message.tool_calls)
        told = bytes(message.reasoning_content)[:1] == b'"'
        if called and message.role == "assistant" and not told:
            yield Reason(code="reasoning_missing", detail=str(at))


def check(array: list[bytes]) -> tuple[Reason, ...]:
    """Name the rules that ARRAY breaks: those of chat, and the one about reasoning."""
    reasons = _check_chat(array)
    try:
        return reasons + tuple(_keep_reasoning(array))
    except InvalidPayload:
        return reasons  # which name the unreadable element already


def fill(raw: bytes) -> bytes:
    """Give a message of the assistant an empty text of reasoning where it has none (rule G4).

    Of null, of nothing and of "" the API takes the last alone.
    """
    if bytes(_read_reasoned(raw).reasoning_content)[:1] == b'"':
        return raw
    return splice.set_member(raw, splice.whole(raw), "reasoning_content", b'""')


def demands(identity: Identity) -> bool:
    """Whether the model reasons by default, so that also what it never wrote must have a text."""
    return _REASONS.search(identity.model) is not None


def strip(raw: bytes) -> bytes:
    """Leave reasoning out of a message of the assistant, but for the text that must be there."""
    left = openai_edits.strip(raw)
    return left and fill(left)


PROVIDER = Provider(
    api="deepseek",
    array="messages",
    read=openai.read,
    parse=openai.parse,
    wrap=openai.wrap,
    shape=openai.shape,
    merge=openai.merge,
    result=openai.result,
    check=check,
    head=openai_edits.head,
    assemble=openai.PROVIDER.assemble,
    rename=openai_edits.rename,
    id_pattern=r".+",  # its own are longer than 40 characters
    make_id=openai_edits.make_id,
    strip=strip,
    fill=fill,
    demands=demands,
)
