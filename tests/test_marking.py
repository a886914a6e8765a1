"""Cache marks of messages, played as conversations (rule C3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retention.providers import Head
from retention.request import NO_EDITS
from tests.dialects import Element, plain
from tests.helpers import Harness, Sending, assistant, call, message, result, section, thinking

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
    """G3, C3, N1: gptel makes a block of the newest prompt only to mark it."""
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


# Where planned marks stand


def deliver(chat: Harness, *elements: Element, body: str = "one") -> Sending:
    return chat.send(*elements, sections=[section("env", body)])


def test_last_mark_stands_on_the_last_element(chat: Harness):
    """C3: behind the prompt that gptel marks, on what follows it."""
    assert marks(deliver(chat, asked(U1))) == [1]
    chat.end(A1)
    assert marks(deliver(chat, U1, A1, asked(U2))) == [3]


@pytest.mark.parametrize("cache", ["message", "system,message,tool"])
def test_marks_are_planned_where_the_user_asks_for_messages(chat: Harness, cache: str):
    """C3: `gptel-cache` may name what to cache."""
    chat.cache = cache

    assert marks(deliver(chat, asked(U1))) == [1]


def test_mark_moves_on_in_the_loop(chat: Harness):
    """C3, S12: gptel never marks what the loop adds."""
    chat.send(asked(U1))

    sent = chat.loop(*work(1), response=[work(1)[0]])
    again = chat.loop(*work(2), response=[work(2)[0]])

    assert (marks(sent), marks(again)) == ([2], [4])
    assert chat.provider.check(again.array) == ()


def work(n: int, calls: int = 1) -> tuple[Element, Element]:
    ids = [f"c{n}-{m}" for m in range(calls)]
    said = assistant(*(call(id=id, n=m) for m, id in enumerate(ids)))
    return said, result(*[f"result {n}"] * calls, ids=ids)


@pytest.mark.parametrize(("calls", "expected"), [(9, [4]), (10, [2, 4])])
def test_previous_end_is_marked_where_it_is_out_of_reach(
    chat: Harness, calls: int, expected: list[int]
):
    """C3, N16: a provider looks back over 20 positions for what an earlier request wrote."""
    chat.send(asked(U1))
    chat.loop(*work(1), response=[work(1)[0]])

    sent = chat.loop(*work(2, calls), response=[work(2, calls)[0]])

    assert marks(sent) == expected


def test_previous_end_is_marked_in_the_next_turn_too(chat: Harness):
    """C3: also where the elements come from the log."""
    chat.send(asked(U1))
    chat.end(A1)
    many = work(1, 15)
    chat.send(U1, A1, asked(U2))
    chat.loop(*many, response=[many[0]])
    chat.end(A2)

    near = chat.send(U1, A1, U2, *many, A2, asked(U3))
    chat.send(asked(U1))
    far = chat.send(U1, A1, U2, *many, A2, asked(U3))
    chat.send(asked(U1))
    edited = chat.send(message("edited"), A1, U2, *many, A2, asked(U3))

    assert (marks(near), marks(far), marks(edited)) == ([6], [0, 6], [6])


@pytest.mark.parametrize("head", range(6))
def test_no_more_marks_than_four_with_those_of_the_head(chat: Harness, head: int):
    """C3, N11, N12, N14: tools and system prompt come first."""
    chat.head = Head(marks=("5m",) * head)
    chat.send(asked(U1))
    chat.loop(*work(1), response=[work(1)[0]])

    sent = chat.loop(*work(2, 10), response=[work(2, 10)[0]])

    expected = {4: [], 5: [], 3: [4]}.get(head, [2, 4])
    assert marks(sent) == expected


@pytest.mark.parametrize(
    "refused",
    [
        {"role": "assistant", "content": [thinking()]},
        {"role": "assistant", "content": [{"type": "text", "text": " "}]},
        {"role": "assistant", "content": []},
    ],
    ids=["thinking", "blank", "empty"],
)
def test_no_mark_stands_where_a_block_refuses_one(chat: Harness, refused: Element):
    """C3: then on the element in front of it."""
    assert marks(chat.send(asked(U1), refused)) == [0]


@pytest.mark.parametrize("api", ["openai", "gemini"])
def test_no_marks_where_the_api_has_none(api: str):
    """C3."""
    sent = Harness(api=api, cache="t").send(U1)
    assert sent.plan.sent.marks == ()


def test_bedrock_marks_with_a_block_of_its_own(chat: Harness):
    """C3: behind all that the message says, the delivery too."""
    chat.api, chat.model = "bedrock", "anthropic.claude"

    sent = deliver(chat, U1)

    kinds = [next(iter(block)) for block in json.loads(sent.array[0])["content"]]
    assert kinds == ["text", "text", "cachePoint"]


# The user's own marks


@pytest.mark.parametrize(("cache", "planned"), [("", True), ("system", True), ("t", False)])
def test_own_marks_stay_where_no_marks_are_planned(chat: Harness, cache: str, planned: bool):
    """C3: gptel-cache does not ask for messages, or the user wants no planning."""
    chat.cache, chat.marks = cache, planned

    sent = deliver(chat, asked(U1, HOUR))
    looped = chat.loop(*work(1), response=[work(1)[0]])

    assert (marks(sent), lifetimes(sent)) == ([0], ["1h"])
    assert (marks(looped), lifetimes(looped)) == ([0], ["1h"])


def test_own_marks_are_trimmed_when_they_are_too_many(chat: Harness):
    """C3: the last ones stay; a message may carry several."""
    chat.cache = ""
    chat.head = Head(marks=("5m", "5m"))
    several = asked(U1)
    several["content"] = several["content"] * 2

    sent = chat.send(several, A1, asked(U2), A2, asked(U3))
    fewer = chat.send(several, A1, U2, A2, asked(U3))

    assert (marks(sent), marks(fewer)) == ([2, 4], [4])


def test_planned_marks_live_as_long_as_the_user_asks(chat: Harness):
    """C3: what gptel marked for an hour is marked for an hour where the mark stands now."""
    sent = deliver(chat, asked(U1, HOUR))
    looped = chat.loop(*work(1), response=[work(1)[0]])
    far = chat.loop(*work(2, 10), response=[work(2, 10)[0]])

    assert (lifetimes(sent), lifetimes(looped), lifetimes(far)) == (["1h"], ["1h"], ["1h"] * 2)


def test_marks_are_left_alone_when_nothing_may_be_edited(chat: Harness):
    """C3, Z6: at the last step they are as gptel made them, however many."""
    chat.step = NO_EDITS

    sent = chat.send(*[asked(U1), A1] * 5, asked(U2))

    assert marks(sent) == [0, 2, 4, 6, 8, 10]


def test_planning_marks_is_a_cache_policy(chat: Harness):
    """F2, C3: what was made with them is not replayed without, and is again with them."""
    chat.send(asked(U1))
    chat.end(A1, response=[assistant(thinking(), "answer 1")])
    chat.marks = False
    other = chat.send(U1, A1, asked(U2))
    chat.marks = True
    back = chat.send(U1, A1, asked(U2))

    assert "hm" not in "".join(other.texts())
    assert "hm" in back.texts()[1]
