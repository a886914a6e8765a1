"""Cache marks of messages, played as conversations (rule C3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.dialects import Element, plain
from tests.helpers import Harness, Sending, message

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
U1, U2, U3 = (message(f"prompt {n}") for n in range(1, 4))
A1, A2 = plain("answer 1"), plain("answer 2")


@pytest.fixture(params=[True, False], ids=["delta", "whole"])
def chat(request: pytest.FixtureRequest) -> Harness:
    """A conversation whose user asks for a cache of messages, by deltas and by whole arrays."""
    return Harness(delta=request.param, cache="t")


def asked(element: Element, mark: dict[str, Any] = MARK) -> Element:
    """Return a user's ELEMENT as gptel marks the last message when it is to cache."""
    return element | {"content": [{"type": "text", "text": element["content"]} | mark]}


def marks(sending: Sending) -> list[int]:
    """Return the elements that carry a mark."""
    return [n for n, raw in enumerate(sending.array) if b"cache_control" in raw]


def lifetimes(sending: Sending) -> list[str]:
    """Return the lifetimes of all marks, in order."""
    blocks = [block for raw in sending.array for block in json.loads(raw)["content"]]
    found = [block["cache_control"] for block in blocks if "cache_control" in block]
    return [mark.get("ttl", "5m") for mark in found]


def test_marked_prompt_is_the_same_message_when_its_mark_has_moved_on(chat: Harness):
    """G3, C3: gptel makes a block of the newest prompt only to mark it."""
    first = chat.send(asked(U1))
    chat.end(A1)
    second = chat.send(U1, A1, asked(U2))

    assert second.plan.common == len(first.array)


def test_marks_go_when_the_user_asks_for_none_any_more(chat: Harness):
    """C3: also from what the client takes over of the array sent last."""
    chat.send(asked(U1))
    chat.end(A1)
    marked = chat.send(U1, A1, asked(U2))
    chat.end(A2)
    chat.cache = ""

    plainly = chat.send(U1, A1, U2, A2, U3)

    assert (marks(marked), marks(plainly)) == ([2], [])
