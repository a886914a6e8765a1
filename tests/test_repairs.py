"""What gptel's own serialization needs before an API takes it, played as conversations.

Rules F7 and G4: ids of calls, reasoning that must be there, neighbours that must be one.
"""

from __future__ import annotations

import itertools
import json

import pytest

from tests.dialects import Element, looped, plain, rebuilt
from tests.helpers import Harness, Sending, assistant, call, message, section, thinking

U1, U2, U3 = (message(f"prompt {n}") for n in range(1, 4))
ANSWERS = {"c00000001": "one", "c00000002": "two"}
SAID = assistant("look", call(id="c00000001", n=1), call(id="c00000002", n=2))
SHOWN = rebuilt(SAID, ANSWERS, backwards=False)


@pytest.fixture(params=[True, False], ids=["delta", "whole"])
def delta(request: pytest.FixtureRequest) -> bool:
    """Whether the client sends deltas, or each array whole (Q1)."""
    return request.param


def turn(chat: Harness, said: Element = SAID, response: list[Element] | None = None) -> None:
    """Play a turn with one round that is SAID, and captured as RESPONSE, and an answer."""
    chat.send(U1)
    work = looped(said, ANSWERS, streamed=True, api=chat.api)
    chat.loop(*work, span=rebuilt(said, ANSWERS, backwards=False), response=response)
    chat.end(plain("done"))


def edited(result: Element) -> Element:
    """Return RESULT as the user changed it."""
    return result | {"content": [result["content"][0] | {"content": "other"}]}


def shown(sending: Sending) -> list[Element]:
    return [json.loads(raw) for raw in sending.array]


# Reasoning that must be there (G4)


@pytest.mark.parametrize("captured", [True, False])
def test_loop_without_reasoning_gets_an_empty_one_where_it_is_demanded(captured: bool):
    """R2, G4: the model has reasoned before, and this response was not captured."""
    chat = Harness(api="deepseek", model="chat")
    chat.send(U1)
    chat.end(plain("hi"), response=[assistant(thinking("hm"), "hi")])
    chat.send(U1, plain("hi"), U2)

    said = [assistant(thinking("ah"), *SAID["content"])] if captured else None
    sent = shown(chat.loop(*looped(SAID, ANSWERS, streamed=True), response=said))

    reasons = [each.get("reasoning_content") for each in sent if each["role"] == "assistant"]
    assert reasons == ["hm", "ah" if captured else ""]


def test_history_gets_empty_reasoning_once_the_model_has_reasoned(delta: bool):
    """G4: also the part that went out without before."""
    chat = Harness(api="deepseek", model="chat", delta=delta)
    chat.send(U1)
    chat.end(plain("hi"))
    plainly = shown(chat.send(U1, plain("hi"), U2))
    chat.end(plain("ho"), response=[assistant(thinking("hm"), "ho")])
    filled = shown(chat.send(U1, plain("hi"), U2, plain("ho"), U3))

    assert "reasoning_content" not in plainly[1]
    assert filled[1]["reasoning_content"] == ""
    assert filled[3]["reasoning_content"] == "hm"


# Neighbours that must be one (G4)


@pytest.mark.parametrize("api", ["bedrock", "gemini"])
def test_text_and_calls_of_an_edited_round_are_one_message(api: str, delta: bool):
    """G4: where the API takes no two of the assistant; whoever holds the text of the first."""
    chat = Harness(api=api, model="claude", delta=delta)
    turn(chat, response=[SAID])
    chat.send(U1, *SHOWN, plain("done"), U2)

    history = [U1, *SHOWN[:-1], edited(SHOWN[-1]), plain("done"), U2]
    sent = chat.send(*history)
    again = chat.send(*history)

    roles = [each["role"] for each in shown(sent)]
    assert roles[:4] == ["user", roles[1], "user", roles[1]]
    assert len(shown(sent)[1]["parts" if api == "gemini" else "content"]) == 2
    assert chat.provider.check(sent.array) == ()
    assert again.array == sent.array


def test_delivery_in_a_result_that_only_the_client_holds(delta: bool):
    """D4, Q1: the host of a delivery is one of a round that another model made."""
    chat = Harness(api="mistral", model="large", delta=delta)
    said, answers = assistant(call(id="c00000001")), {"c00000001": "one\n"}
    span = rebuilt(said, answers, backwards=False)
    chat.send(U1)
    work = looped(said, answers, streamed=True)
    chat.loop(*work, span=span, response=[said], sections=[section()])
    chat.end(plain("done"))
    chat.send(U1, *span, plain("done"), U2, sections=[section()])
    chat.model = "other"

    sent = chat.send(U1, *span, plain("done"), U2, sections=[section()])

    assert sent.due == {}
    assert sent.texts() == ["prompt 1", "read()", "one[Env]", "done", "prompt 2"]


# Prompts that transforms change (Q6)


@pytest.mark.parametrize("shape", ["", "merge"])
def test_preset_prompt_goes_out_as_it_was_sent(shape: str, delta: bool):
    """Q6, B1: also where it hosts a delivery, and what follows it is edited."""
    chat = Harness(shape=shape, delta=delta)
    written = message("@preset prompt 1")
    first = chat.send(U1, prompt=written, sections=[section()])
    chat.end(plain("one"))
    chat.send(written, plain("one"), U2, sections=[section()])
    chat.end(plain("two"))

    sent = chat.send(written, plain("edited"), U2, plain("two"), U3, sections=[section()])

    assert sent.due == {}
    assert sent.array[: len(first.array)] == first.array


# Context that gptel puts in front of the newest prompt (case S16)


def asked(chat: Harness, history: list[Element], n: int, context: str) -> Sending:
    """Send prompt N behind HISTORY with CONTEXT in front of it; it stands in HISTORY without."""
    prompt = message(f"prompt {n}")
    told = message(f"{context}\n\nprompt {n}") if context else prompt
    sent = chat.send(*history, told, prompt=prompt)
    chat.end(plain(f"answer {n}"))
    history += [prompt, plain(f"answer {n}")]
    return sent


@pytest.fixture(params=["anthropic", "openai", "gemini", "bedrock"])
def chat(request: pytest.FixtureRequest, delta: bool) -> Harness:
    return Harness(api=request.param, model="claude", delta=delta)


def test_context_stays_at_its_first_boundary(chat: Harness):
    """S16: unchanged it is not repeated; changed it is added; gone it stays where it was."""
    history: list[Element] = []
    arrays = [
        asked(chat, history, n, context).array
        for n, context in enumerate(["one", "one", "two", "", "two", "one"], 1)
    ]

    told = ["one\n\n", "", "two\n\n", "", "", "one\n\n"]
    said = [
        each
        for n, context in enumerate(told, 1)
        for each in (message(f"{context}prompt {n}"), plain(f"answer {n}"))
    ]
    assert arrays[-1] == chat.encode(said[:-1])
    for before, after in itertools.pairwise(arrays):
        assert after[: len(before)] == before


def test_context_moves_with_the_prompt_where_the_user_wants_it(chat: Harness):
    """S16: the option is off, everything goes out as gptel has it."""
    chat.context = False
    history: list[Element] = []
    asked(chat, history, 1, "one")

    sent = asked(chat, history, 2, "one")

    texts = [U1, plain("answer 1"), message("one\n\nprompt 2")]
    assert sent.array == chat.encode(texts)


def test_context_of_a_prompt_that_was_edited_is_added_again(chat: Harness):
    """S16: it stood with what is gone."""
    history: list[Element] = []
    asked(chat, history, 1, "one")
    history[0] = message("edited")

    sent = asked(chat, history, 2, "one")

    assert sent.array == chat.encode([*history[:2], message("one\n\nprompt 2")])


def test_context_that_was_left_out_stands_nowhere(chat: Harness):
    """S16: of a prompt that went out without, since it stood further up, which is gone now."""
    history: list[Element] = []
    asked(chat, history, 1, "one")
    asked(chat, history, 2, "one")
    history[0] = message("edited")

    sent = asked(chat, history, 3, "one")

    assert sent.array == chat.encode([*history[:4], message("one\n\nprompt 3")])


def test_context_comes_back_with_its_prompt_after_a_restart(chat: Harness):
    """S16, L3: and is not added a second time."""
    history: list[Element] = []
    before = asked(chat, history, 1, "one").array
    chat.restart()

    sent = asked(chat, history, 2, "one")

    assert sent.array == [*before, *chat.encode([plain("answer 1"), U2])]


@pytest.mark.parametrize("api", ["bedrock", "gemini"])
@pytest.mark.parametrize("captured", [True, False])
def test_answers_whose_prompt_was_deleted_are_one_message(api: str, captured: bool, delta: bool):
    """G4, F2: a fragment that begins with calls replays behind the answer that is in front now."""
    chat = Harness(api=api, model="claude", delta=delta)
    said = assistant(call(id="c00000001", n=1))
    shown = rebuilt(said, ANSWERS, backwards=False)
    chat.send(U1)
    chat.end(plain("hi"), response=[assistant("hi")] if captured else None)
    chat.send(U1, plain("hi"), U2)
    work = looped(said, ANSWERS, streamed=True, api=api)
    chat.loop(*work, span=shown, response=[said])
    chat.end(plain("done"), response=[assistant("done")])
    before = chat.send(U1, plain("hi"), U2, *shown, plain("done"), U3).array

    cut = [U1, plain("hi"), *shown, plain("done"), U3]
    sent = chat.send(*cut)
    chat.end(plain("well"))
    later = chat.send(*cut, plain("well"), U1)
    undone = chat.send(U1, plain("hi"), U2, *shown, plain("done"), U3)

    assert chat.provider.check(sent.array) == ()
    assert len(shown_parts(sent, 1)) == 2
    assert sent.plan.sent.replays == ([1, 1, 3] if captured else [1, 3])
    assert later.array[: len(sent.array)] == sent.array
    assert undone.array == before


def shown_parts(sending: Sending, n: int) -> list[Element]:
    element = shown(sending)[n]
    return element.get("parts") or element["content"]
