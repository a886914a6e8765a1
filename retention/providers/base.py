"""What every provider module fills in: the `Provider` record and the `Shape` of a boundary."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from retention.model import Identity, Message, Reason


class Shape(StrEnum):
    """Where a delivery may stand right after a given message (rule D4)."""

    MESSAGE = "message"  # a user message of its own: the rule
    MERGE = "merge"  # an added block in that same user message
    RESULT = "result"  # inside the text of the last tool result of that message
    NONE = "none"  # nowhere legal: wait for another boundary


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """What the core needs to know of one API.

    `parse` reads the exact JSON text of one element of the array (`InvalidPayload` if it is not of
    the API's shape); `wrap` makes the JSON text of a user message that carries a text alone;
    `shape` tells where a delivery right after a message may stand, given the identity (only for
    exceptions that the provider's refusals force); `merge` and `result` put a text into the JSON
    text of that message.  `check` names the published rules that a sequence of elements breaks.
    """

    api: str
    array: str
    parse: Callable[[bytes], Message]
    wrap: Callable[[str], bytes]
    shape: Callable[[Message, Identity], Shape]
    merge: Callable[[bytes, str], bytes]
    result: Callable[[bytes, str], bytes]
    check: Callable[[list[bytes]], tuple[Reason, ...]]
