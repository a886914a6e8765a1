"""What every provider module fills in: the `Provider` record and the `Shape` of a boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from retention.errors import InvalidResponse
from retention.model import Identity, Message, Reason, Usage
from retention.providers.canonical import Element


class Shape(StrEnum):
    """Where a delivery may stand right after a given message (rule D4)."""

    MESSAGE = "message"  # a user message of its own: the rule
    MERGE = "merge"  # an added block in that same user message
    RESULT = "result"  # inside the text of the last tool result of that message
    NONE = "none"  # nowhere legal: wait for another boundary


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """One response as the provider sent it, whatever the transport cut it into.

    `elements` are the provider's own message(s) as JSON texts that the API takes as input, in
    order: unknown fields, null, absent and "" kept apart, arguments verbatim (rule F5).  `finish`
    is the provider's word for why it stopped, `error` what it said went wrong after it had begun.
    `complete` says that the provider ended the response itself: not so for a cut transfer or an
    error in the middle, of which nothing is ever replayed (rule F8).  `usage` as reported.
    """

    elements: tuple[bytes, ...] = ()
    complete: bool = False
    finish: str = ""
    error: str = ""
    usage: Usage | None = None


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A payload without its array, taken apart: JSON texts (rule C1).

    `tools` and `system` are b"" when there are none; `system` is also empty where the API has the
    system prompt as an element of the array.  `parameters` are the other members that matter to
    the provider's cache or the answer, by name; those that do not (stream, metadata) are left out.
    `marks` are the lifetimes of the cache marks in it, in processing order.
    """

    tools: bytes = b""
    system: bytes = b""
    parameters: dict[str, bytes] = {}
    marks: tuple[str, ...] = ()


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """How an API marks the end of a cacheable prefix in a message (rule C3).

    `put` adds a mark of a lifetime ("5m" or "1h") to the last block of a message that may carry
    one, and returns None where no block may; `drop` removes all marks of a message.
    """

    put: Callable[[bytes, str], bytes | None]
    drop: Callable[[bytes], bytes]


# What an API does not need


def no_head(_raw: bytes) -> Head:
    """Return nothing: the payload is not taken apart."""
    return Head()


def no_response(body: bytes) -> Response:
    """Refuse BODY: the API's responses are not read."""
    raise InvalidResponse(f"no reader for these {len(body)} bytes")


def no_change(raw: bytes) -> bytes:
    """Return RAW: the API knows nothing of the kind."""
    return raw


def no_rename(raw: bytes, _ids: Sequence[str | None]) -> bytes:
    """Return RAW: the API's calls and results have no ids."""
    return raw


def no_id(_seed: str) -> str:
    """Return no id."""
    return ""


def keep_results(
    results: Sequence[bytes], _seen: Sequence[bytes], _own: Sequence[bytes]
) -> Sequence[bytes]:
    """Return RESULTS as they are: the API matches them to calls by id."""
    return results


def never(_identity: Identity) -> bool:
    """No model of the API is so."""
    return False


def nothing(_identity: Identity) -> tuple[str, ...]:
    """Ask for nothing: the API sends all that it takes back."""
    return ()


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """What the core needs to know of one API.  JSON texts are exact bytes everywhere.

    `read` reads the JSON text of one element of the array (`InvalidPayload` if it is not of the
    API's shape), and `parse` makes of it what the core compares; `wrap` makes the JSON text of a
    user message that carries a text alone; `shape` tells where a delivery right after a message may
    stand, given the identity (only for exceptions that the provider's refusals force); `merge` and
    `result` put a text into the JSON text of that message.  `check` names the published rules that
    a sequence of elements breaks.

    `head` takes a payload without its array apart.  `assemble` reads the whole body of a response
    (`InvalidResponse` if it is none).

    `rename` gives the calls or results of an element other ids, in their order, None leaving one as
    it is; `id_pattern` is what a legal id matches as a whole, "" where calls have no ids; `make_id`
    makes a legal one of a hexadecimal seed of at least 32 digits.

    `order_results` puts the elements RESULTS, which answer the calls of the elements SEEN one by
    one in their order, in the order of the calls of the elements OWN, the same calls.

    `strip` leaves reasoning and signatures out of an element of the assistant, b"" if nothing is
    left; `fill` adds what the API demands of an element of the assistant that was not recorded,
    once the model has sent reasoning or where it `demands` it from the start.  `bound` tells
    whether reasoning of a model is valid only behind the prefix that it was made for.  `join` makes
    one element of two neighbours of the assistant, None where the API takes them apart.  `include`
    names what to ask a model for, so that its responses can be sent back.
    """

    api: str
    array: str
    read: Callable[[bytes], Element]
    parse: Callable[[bytes], Message]
    wrap: Callable[[str], bytes]
    shape: Callable[[Message, Identity], Shape]
    merge: Callable[[bytes, str], bytes]
    result: Callable[[bytes, str], bytes]
    check: Callable[[list[bytes]], tuple[Reason, ...]]
    head: Callable[[bytes], Head] = no_head
    assemble: Callable[[bytes], Response] = no_response
    rename: Callable[[bytes, Sequence[str | None]], bytes] = no_rename
    id_pattern: str = ""
    make_id: Callable[[str], str] = no_id
    order_results: Callable[
        [Sequence[bytes], Sequence[bytes], Sequence[bytes]], Sequence[bytes]
    ] = keep_results
    strip: Callable[[bytes], bytes] = no_change
    fill: Callable[[bytes], bytes] = no_change
    demands: Callable[[Identity], bool] = never
    bound: Callable[[Identity], bool] = never
    join: Callable[[bytes, bytes], bytes] | None = None
    marks: Marks | None = None
    include: Callable[[Identity], tuple[str, ...]] = nothing
