"""Replay of what the provider said, played as conversations (rules F1-F11, R1-R3, C4)."""

from __future__ import annotations

import json

import pytest

from tests.dialects import Element, looped, plain, rebuilt
from tests.helpers import Harness, Sending, assistant, call, message, thinking

U1, U2, U3 = (message(f"prompt {n}") for n in range(1, 4))
ANSWERS = {"c00000001": "one\n", "c00000002": "two"}
SAID = assistant(thinking(), "look", call(id="c00000001", n=1), call(id="c00000002", n=2))
SHOWN = rebuilt(SAID, ANSWERS, backwards=False)
DONE = assistant(thinking("so", "sig2"), "done")


@pytest.fixture(params=[True, False], ids=["delta", "whole"])
def chat(request: pytest.FixtureRequest) -> Harness:
    """A conversation of a client that sends deltas, and of one that sends each array whole (Q1)."""
    return Harness(delta=request.param)


def worked(chat: Harness, *history: Element) -> None:
    """Play a turn behind HISTORY with one round that is SAID, and DONE in the end."""
    chat.send(*history, U1)
    chat.loop(*looped(SAID, ANSWERS, streamed=True, api=chat.api), span=SHOWN, response=[SAID])
    chat.end(plain("done"), response=[DONE])


def ids(sending: Sending) -> list[str]:
    """Return the ids of the calls in an array of Anthropic's, in order."""
    contents = [json.loads(raw)["content"] for raw in sending.array]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [block["id"] for block in blocks if block["type"] == "tool_use"]


# Ids (F7)


def test_copy_of_a_call_in_front_of_its_fragment_gets_another_id(chat: Harness):
    """F7: the recorded one is the fragment's, which comes later."""
    worked(chat)
    copy = SHOWN[3:5]

    sent = chat.send(*copy, U1, *SHOWN, plain("done"), U2)

    assert len(set(ids(sent))) == 3
    assert ids(sent)[1:] == ["c00000001", "c00000002"]
    assert chat.provider.check(sent.array[2:]) == ()
