"""OpenAI Responses: the items of a response, whole or streamed, as they go back (rules F5, F8, R1).

An item stands whole in the event that ends it, so that deltas need not be read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from retention.errors import InvalidResponse
from retention.model import Usage
from retention.providers import splice, streams
from retention.providers.base import Response
from retention.providers.openai_response import describe_error

_NONE = msgspec.Raw(b"")

# Items whose `status` is the server's ("Unknown parameter: 'input[1].status'").  Those of tools
# that the server ran need theirs: the published types of input items say so.
_STATUS_DROPPED = ("message", "reasoning", "function_call", "custom_tool_call")
_CALLS = ("function_call", "custom_tool_call")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class _Kind(msgspec.Struct, gc=False):
    type: str = ""


class _Why(msgspec.Struct, gc=False):
    reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, gc=False):
    """The response object: the whole body, or a part of the events that begin and end it."""

    output: list[msgspec.Raw] | None = None
    status: str = "completed"
    error: Any = None
    incomplete_details: _Why | None = None
    usage: _Usage | None = None
    store: bool | None = None


class _Event(msgspec.Struct, gc=False):
    """What the events that matter hold."""

    output_index: int | None = None
    item: msgspec.Raw = _NONE
    response: _Answer | None = None
    error: Any = None
    message: Any = None
    code: Any = None


class _Item(msgspec.Struct, gc=False):
    type: str = "message"
    status: str | None = None
    encrypted_content: str | None = None
    content: Any = None


_read_kind = streams.make_decoder(_Kind)
_read_event = streams.make_decoder(_Event)
_read_answer = streams.make_decoder(_Answer)
_read_item = streams.make_decoder(_Item)


def assemble(body: bytes) -> Response:
    """Return the response in BODY: the response object, or server-sent events."""
    items: dict[int, bytes] = {}
    answer: _Answer | None = None
    error, streamed = "", False
    for text in streams.read_documents(body):
        kind = _read_kind(text)
        if kind is None:  # cut off
            break
        if not kind.type:
            whole = _read_answer(streams.repair(text))
            answer = whole if whole is not None and whole.output is not None else answer
            break
        streamed = streamed or kind.type.startswith("response.")
        if kind.type not in (*_ENDS, "response.output_item.done", "error"):
            continue
        event = _read_event(streams.repair(text))
        if event is None:
            break
        if kind.type == "error":
            error = describe_error(event.error or event.message or event.code or "error")
        answer = event.response or answer
        if event.item is not _NONE:
            at = len(items) if event.output_index is None else event.output_index
            items[at] = bytes(event.item)
    if answer is None and not streamed:
        raise InvalidResponse(f"no response object or event in these {len(body)} bytes")
    return _make_response([items[at] for at in sorted(items)], answer, error)


def _make_response(items: list[bytes], answer: _Answer | None, error: str) -> Response:
    """Return the response of ITEMS, or of those in ANSWER if they did not come one by one."""
    if answer is None:
        return Response(elements=_make_elements(items, stored=False), error=error)
    error = error or describe_error(answer.error)
    items = items or [bytes(item) for item in answer.output or ()]
    cut = any(map(_is_cut_call, items))
    why = answer.incomplete_details or _Why()
    return Response(
        elements=_make_elements(items, stored=answer.store is True),
        complete=answer.status in ("completed", "incomplete") and not error and not cut,
        finish=why.reason or answer.status,
        error=error,
        usage=_read_usage(answer.usage),
    )


def _is_cut_call(item: bytes) -> bool:
    known = _read_item(item)
    return known is not None and known.type in _CALLS and known.status == "incomplete"


def _make_elements(items: list[bytes], *, stored: bool) -> tuple[bytes, ...]:
    """Return ITEMS without what the API does not take back.

    That is `status`; reasoning at the end, where the response ended before what it was for
    ("provided without its required following item"); and, unless the server has STORED it,
    reasoning that came without its content ("Items are not persisted"), with the ids of what
    follows, by which the API would miss it.
    """
    elements: list[bytes] = []
    kinds: list[str] = []
    lost = False
    for item in items:
        known = _read_item(item) or _Item()
        if known.type == "reasoning" and not (stored or known.encrypted_content or known.content):
            lost = True
            continue
        dropped: tuple[str, ...] = ()
        if known.type in _STATUS_DROPPED:
            dropped = ("status", "id") if lost else ("status",)
        kinds.append(known.type)
        elements.append(splice.drop_members(item, splice.whole(item), *dropped))
    while kinds and kinds[-1] == "reasoning":
        kinds.pop()
    return tuple(elements[: len(kinds)])


def _read_usage(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.input_tokens_details or _Details()
    return Usage(
        input=usage.input_tokens,
        cached=details.cached_tokens,
        written=details.cache_write_tokens,
        output=usage.output_tokens,
    )
