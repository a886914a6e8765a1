"""Replay of what the provider said, played as conversations (rules F1-F11, R1-R3, C4, Z6)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest

from retention.digest import digest
from retention.fragments import Rules, find_fragments
from retention.ledger import Log
from retention.model import Face
from retention.providers import Head, Response
from retention.request import NO_EDITS, NO_FRAGMENTS, NO_REASONING
from tests.dialects import Element, answer, looped, plain, rebuilt
from tests.helpers import (
    Harness,
    Sending,
    assistant,
    call,
    encode,
    identity,
    message,
    row,
    section,
    thinking,
)

U1, U2, U3, U4 = (message(f"prompt {n}") for n in range(1, 5))
ANSWERS = {"c00000001": "alpha\n", "c00000002": "beta"}
SAID = assistant(
    thinking("first", "sig1"), "look", call(id="c00000001", n=1), call(id="c00000002", n=2)
)
MORE = {"c00000003": "gamma"}
AGAIN = assistant(thinking("second", "sig2"), call(id="c00000003", n=3))
DONE = assistant(thinking("third", "sig3"), "done")
SHOWN = (*rebuilt(SAID, ANSWERS, backwards=False), *rebuilt(AGAIN, MORE, backwards=False))
TURN = (U1, *SHOWN, plain("done"))  # as gptel builds it from the buffer

MODELS = {"anthropic": "claude", "openai": "gpt", "responses": "gpt", "gemini": "pro"}


@pytest.fixture(params=[True, False], ids=["delta", "whole"])
def delta(request: pytest.FixtureRequest) -> bool:
    """Whether the client sends deltas, or each array whole (Q1)."""
    return request.param


@pytest.fixture
def chat(delta: bool) -> Harness:
    """A conversation with Anthropic."""
    return Harness(delta=delta)


@pytest.fixture(params=MODELS)
def any_chat(request: pytest.FixtureRequest, delta: bool) -> Harness:
    """A conversation with each of the APIs that differ most."""
    return Harness(api=request.param, model=MODELS[request.param], delta=delta)


def worked(chat: Harness, *history: Element) -> None:
    """Play a turn behind HISTORY: SAID and AGAIN with their results, and DONE."""
    chat.send(*history, U1)
    for said, answers in ((SAID, ANSWERS), (AGAIN, MORE)):
        work = looped(said, answers, streamed=True, api=chat.api)
        chat.loop(*work, span=rebuilt(said, answers, backwards=False), response=[said])
    chat.end(plain("done"), response=[DONE])


def actual(chat: Harness) -> list[Element]:
    """Return that turn as it really was; results stand in the order of gptel's loop or of calls."""
    first = [ANSWERS] if chat.api == "gemini" else [dict(reversed(ANSWERS.items()))]
    results = [answer([call(id=id) for id in each], each) for each in (*first, MORE)]
    return [U1, SAID, results[0], AGAIN, results[1], DONE]


def replayed(chat: Harness, sending: Sending) -> list[str]:
    """Return which responses of that turn SENDING holds as the provider sent them."""
    named = {"said": SAID, "again": AGAIN, "done": DONE}
    whole = b"".join(sending.array)
    return [name for name, said in named.items() if parts(chat, said) in whole]


def parts(chat: Harness, said: Element) -> bytes:
    """Return the JSON text of SAID, without the frame where the API may have it in a larger one."""
    text = b"".join(chat.encode([said]))
    return text[text.index(b"[") + 1 : -2] if chat.api == "gemini" else text


def why(sending: Sending, code: str = "not_replayed") -> list[str]:
    return [reason.detail for reason in sending.plan.reasons if reason.code == code]


def changed(shown: Sequence[Element], n: int) -> list[Element]:
    """Return SHOWN with an edit in the result at place N."""
    block = shown[n]["content"][0] | {"content": "edited"}
    return [*shown[:n], shown[n] | {"content": [block]}, *shown[n + 1 :]]


# What goes back (F1, F5, F6, R1, R3)


def test_turn_goes_back_as_it_was(any_chat: Harness):
    """F1, R1, R3: each response with its results, and the last one, in the loop and later."""
    worked(any_chat)
    looped_array = any_chat._last[1]

    sent = any_chat.send(*TURN, U2)

    expected = any_chat.encode([*actual(any_chat), U2])
    assert sent.array == expected
    assert looped_array == expected[: len(looped_array)]
    assert sent.plan.reasons == ()


def test_deliveries_of_the_turn_stand_between_its_fragments(any_chat: Harness):
    """F1: the delivery that followed the results is of the fragment."""
    any_chat.send(U1, sections=[section("env", "1")])
    work = looped(SAID, ANSWERS, streamed=True, api=any_chat.api)
    shown = rebuilt(SAID, ANSWERS, backwards=False)
    before = any_chat.loop(*work, span=shown, response=[SAID], sections=[section("env", "2")]).array
    any_chat.end(plain("done"), response=[DONE])

    sent = any_chat.send(U1, *shown, plain("done"), U2, sections=[section("env", "2")])

    assert sent.due == {}
    assert sent.array == [*before, *any_chat.encode([DONE, U2])]


NATIVE = {
    "anthropic": r"""
        {"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s="},
        {"type":"redacted_thinking","data":"x"},{"type":"text","text":"look","citations":null},
        {"type":"tool_use","id":"c00000001","name":"read","input":{"b":1,"a":null},"caller":{}}]}
    """,
    "openai": r"""
        {"role":"assistant","content":"look","refusal":null,"annotations":[],"tool_calls":[
        {"id":"c00000001","type":"function","function":{"name":"read","arguments":
        "{ \"b\": 1, \"a\":null}"},"extra_content":{"google":{"thought_signature":"s"}}}],
        "reasoning_details":[{"type":"reasoning.encrypted","data":"x","id":null,"index":0}]}
    """,
    "responses": r"""
        {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}

        {"type":"message","id":"msg_1","role":"assistant","phase":"commentary","content":[
        {"type":"output_text","text":"look","annotations":[],"logprobs":[]}]}

        {"type":"function_call","id":"fc_1","call_id":"c00000001","name":"read",
        "arguments":"{ \"b\": 1, \"a\":null}"}
    """,
    "gemini": r"""
        {"role":"model","parts":[{"text":"hm","thought":true},{"text":"look"},{"functionCall":
        {"id":"f1","name":"read","args":{"b":1,"a":null}},"thoughtSignature":"s="},
        {"text":"","thoughtSignature":"t="}]}
    """,
}


def native(api: str) -> list[bytes]:
    """Return elements of API that gptel keeps little of."""
    return [
        "".join(line.strip() for line in text.splitlines()).encode()
        for text in NATIVE[api].split("\n\n")
    ]


def test_provider_gets_back_every_byte_that_it_sent(any_chat: Harness):
    """F5: signatures, empty signed blocks, unknown fields, null, arguments as they were written."""
    own = native(any_chat.api)
    said = assistant("look", call(id="c00000001", b=1, a={}))
    answers = {"c00000001": "one"}
    any_chat.send(U1)
    sent = any_chat.loop(
        *looped(said, answers, streamed=True, api=any_chat.api),
        span=rebuilt(said, answers, backwards=False),
        response=own,
    )
    any_chat.end(plain("done"))

    later = any_chat.send(U1, *rebuilt(said, answers, backwards=False), plain("done"), U2)

    assert why(sent, "not_repaired") == []
    assert sent.array[1 : 1 + len(own)] == own
    assert later.array[: len(sent.array)] == sent.array


def test_text_goes_back_as_the_model_wrote_it(any_chat: Harness):
    """F6: not as Org markup that was made for display."""
    any_chat.send(U1)
    any_chat.end(plain("*bold*"), response=[assistant("**bold**")])

    sent = any_chat.send(U1, plain("*bold*"), U2)

    assert sent.array[1:2] == any_chat.encode([assistant("**bold**")])


def test_results_go_back_as_they_were_sent(any_chat: Harness):
    """R3, S8, S10: a sanitised text, and white space that the buffer has no more."""
    said, answers = assistant(call(id="c00000001")), {"c00000001": " a\ufffdb\n\n"}
    any_chat.send(U1)
    sent = any_chat.loop(
        *looped(said, answers, streamed=True, api=any_chat.api),
        span=rebuilt(said, answers, backwards=False),
        response=[said],
    )
    any_chat.end(plain("done"))

    later = any_chat.send(U1, *rebuilt(said, answers, backwards=False), plain("done"), U2)

    assert encode({"": answers["c00000001"]})[4:-1] in sent.array[2]
    assert later.array[: len(sent.array)] == sent.array


# When it does not (F2, F3, F4, F8, F11)


def test_edit_costs_only_the_fragment_that_it_is_in(any_chat: Harness):
    """F2, scenario 5: the others of the turn replay, and all of them after an undo."""
    worked(any_chat)
    before = any_chat.send(*TURN, U2).array

    edited = any_chat.send(U1, *changed(SHOWN, 2), plain("done"), U2)
    undone = any_chat.send(*TURN, U2)

    assert (replayed(any_chat, edited), why(edited)) == (["again", "done"], ["edited"])
    assert (undone.array, why(undone)) == (before, [])


def test_undo_in_a_round_whose_ids_are_right_replays_it(chat: Harness):
    """Scenario 5: though a part of it is where the client had it."""
    said, answers = assistant(thinking("first", "sig1"), "look", call(id="c00000001")), ANSWERS
    shown = rebuilt(said, answers, backwards=False)
    chat.send(U1)
    chat.loop(*looped(said, answers, streamed=True), span=shown, response=[said])
    chat.end(plain("done"))
    before = chat.send(U1, *shown, plain("done"), U2).array

    edited = chat.send(U1, *changed(shown, 2), plain("done"), U2)
    undone = chat.send(U1, *shown, plain("done"), U2)

    assert why(edited) == ["edited"]
    assert undone.array == before


def test_message_of_two_rounds_is_of_neither():
    """F2: what was made one with something else is no more what was sent."""
    rows = [row(n, str(n), face=Face.ORDINARY, round=n) for n in (1, 2)]
    rows += [row(n, str(n), face=Face.ACTUAL, round=n - 2) for n in (3, 4)]
    rules = Rules(digest=b"", identity=identity(), read=lambda _: None)

    found, why = find_fragments({1: (0, 0), 2: (0, 0)}, {0: [1, 2]}, Log(rows), rules)

    assert (found, why) == ({}, {1: "edited", 2: "edited"})


@pytest.mark.parametrize(
    "edit",
    [
        lambda shown: [plain("look!"), *shown[1:]],
        lambda shown: shown[1:],
        lambda shown: [*shown[:1], *shown[3:]],
        lambda shown: [*shown[:3], message("note"), *shown[3:]],
        lambda shown: [*shown[3:5], *shown[:3], *shown[5:]],
    ],
    ids=["text", "without text", "without a call", "note", "reordered"],
)
def test_any_change_inside_a_fragment_is_an_edit(chat: Harness, edit):
    """F2: all its ordinary messages are there, unchanged and in order, and nothing else."""
    worked(chat)

    sent = chat.send(U1, *edit(list(SHOWN)), plain("done"), U2)

    assert (replayed(chat, sent), why(sent)) == (["again", "done"], ["edited"])


def test_white_space_around_a_message_is_no_edit(chat: Harness):
    """F11: but any inside it is."""
    worked(chat)
    spaced = message("\nprompt 1 "), plain("done") | {"content": " done\n"}

    around = chat.send(spaced[0], *SHOWN, spaced[1], U2)
    inside = chat.send(U1, *SHOWN, plain("do ne"), U2)

    assert replayed(chat, around) == ["said", "again", "done"]
    assert (replayed(chat, inside), why(inside)) == (["said", "again"], ["edited"])


def test_filtered_fragments_are_told(chat: Harness):
    """F2, scenario 6: a limited history, and nothing of the rest comes back."""
    worked(chat)
    chat.send(*TURN, U2)
    chat.end(plain("fine"))

    sent = chat.send(U2, plain("fine"), U3)

    assert sent.texts() == ["prompt 2", "fine", "prompt 3"]
    assert why(sent) == ["filtered"] * 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "other"}, "other model"),
        ({"cache": "t"}, "other cache policy"),
        ({"api": "openai"}, "other provider"),
        ({"api": "openai", "model": "other"}, "other provider"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_fragments_are_the_providers_own(chat: Harness, change: dict[str, str], reason: str):
    """F2, scenarios 8 and 15: and come back with it."""
    worked(chat)
    before = chat.send(*TURN, U2).array
    chat.end(plain("fine"))
    held = {name: getattr(chat, name) for name in change}

    for name, value in change.items():
        setattr(chat, name, value)
    other = chat.send(*TURN, U2, plain("fine"), U3)
    chat.end(plain("well"))
    for name, value in held.items():
        setattr(chat, name, value)
    back = chat.send(*TURN, U2, plain("fine"), U3, plain("well"), U4)

    assert (replayed(chat, other), why(other)) == ([], [reason] * 3)
    assert all(thought not in "".join(other.texts()) for thought in ("first", "second", "third"))
    assert chat.provider.check(back.array) == ()
    assert back.array[: len(before)] == before


def test_switch_of_the_model_and_back(any_chat: Harness):
    """Scenario 8: no foreign fragment is sent; what the other model made is not sent to this."""
    worked(any_chat)
    any_chat.model += "-b"
    any_chat.send(*TURN, U2)
    any_chat.end(plain("fine"), response=[assistant(thinking("foreign", "sig9"), "fine")])
    own = any_chat.send(*TURN, U2, plain("fine"), U3)
    any_chat.end(plain("well"))
    any_chat.model = any_chat.model.removesuffix("-b")

    back = any_chat.send(*TURN, U2, plain("fine"), U3, plain("well"), U4)

    assert (replayed(any_chat, own), b"foreign" in b"".join(own.array)) == ([], True)
    assert replayed(any_chat, back) == ["said", "again", "done"]
    assert b"foreign" not in b"".join(back.array)


def test_switch_of_the_cache_and_back(any_chat: Harness):
    """Scenario 15: no replay in between, replay again afterwards."""
    worked(any_chat)
    before = any_chat.send(*TURN, U2).array
    any_chat.cache = "t"
    between = any_chat.send(*TURN, U2)
    any_chat.cache = ""

    assert replayed(any_chat, between) == []
    assert any_chat.send(*TURN, U2).array == before


PLACEHOLDER = "(Cached tool result; not replayed)"


@pytest.mark.parametrize("shown", [PLACEHOLDER, None])
def test_excluded_results_do_not_come_back(any_chat: Harness, shown: str | None):
    """F3: the user shows a placeholder in their stead, or hides the calls."""
    said, answers = assistant(thinking("first", "sig1"), "look", call(id="c00000001")), ANSWERS
    span = rebuilt(said, {"c00000001": shown or ""}, backwards=False)[: 3 if shown else 1]
    any_chat.send(U1)
    work = looped(said, answers, streamed=True, api=any_chat.api)
    looped_array = any_chat.loop(*work, span=span, response=[said]).array
    any_chat.end(plain("done"), response=[DONE])

    sent = any_chat.send(U1, *span, plain("done"), U2)

    assert b"alpha" in b"".join(looped_array)
    assert b"alpha" not in b"".join(sent.array)
    assert (replayed(any_chat, sent), why(sent)) == (["done"], ["results omitted"])


@pytest.mark.parametrize("span", [SHOWN[:1], ()], ids=["text", "nothing"])
def test_turn_whose_texts_merge_is_never_replayed(any_chat: Harness, span: Sequence[Element]):
    """F3, Q3: where all results are hidden the whole region stands for the turn."""
    any_chat.send(U1)
    work = looped(SAID, ANSWERS, streamed=True, api=any_chat.api)
    any_chat.loop(*work, span=span, response=[SAID])
    whole = plain("look\n\ndone")
    any_chat.end(plain("done"), whole=[whole], response=[DONE])

    sent = any_chat.send(U1, whole, U2)

    assert sent.array == any_chat.encode([U1, whole, U2])
    assert why(sent) == ["results omitted"]


def test_hidden_spans_and_prose_do_not_come_back(any_chat: Harness):
    """F4, scenario 6: a tool region that is ignored now, and one that became the model's prose."""
    worked(any_chat)

    ignored = any_chat.send(U1, SHOWN[0], *SHOWN[5:], plain("done"), U2)
    prose = any_chat.send(U1, plain("look\n\n(read) alpha"), *SHOWN[3:], plain("done"), U2)

    assert replayed(any_chat, ignored) == ["again", "done"]
    assert not any(word in b"".join(ignored.array) for word in (b"alpha", b"beta", b"first"))
    assert replayed(any_chat, prose) == ["again", "done"]
    assert b"".join(prose.array).count(b"alpha") == 1


def test_fragment_of_unknown_origin_stays_ordinary(chat: Harness):
    """F2: nothing is known of the identity that it belongs to."""
    worked(chat)
    for id in chat.log.actuals[1]:
        chat.log.replace(msgspec.structs.replace(chat.log.rows[id], origin=None))

    sent = chat.send(*TURN, U2)

    assert (replayed(chat, sent), why(sent)) == (["again", "done"], ["incomplete"])


def test_damaged_text_of_a_fragment_is_never_sent(any_chat: Harness):
    """F2, Z3: the ordinary form goes out, the neighbours replay."""
    worked(any_chat)
    gone = {digest("message", raw) for raw in any_chat.encode([SAID])}
    any_chat.read = lambda name: None if name in gone else any_chat.objects.get(name)
    any_chat._last = (None, [])

    sent = any_chat.send(*TURN, U2)

    assert replayed(any_chat, sent) == ["again", "done"]
    assert why(sent) == ["damaged"]
    assert any_chat.provider.check(sent.array) == ()


def test_failed_response_leaves_no_fragment(any_chat: Harness):
    """F8: rounds that were completed before it keep theirs."""
    any_chat.send(U1)
    work = looped(SAID, ANSWERS, streamed=True, api=any_chat.api)
    any_chat.loop(*work, span=SHOWN[:5], response=[SAID])
    any_chat.end(plain("half an ans"))

    sent = any_chat.send(U1, *SHOWN[:5], plain("half an ans"), U2)

    assert replayed(any_chat, sent) == ["said"]
    assert sent.array[-2:] == any_chat.encode([plain("half an ans"), U2])


def test_log_that_begins_in_the_middle_invents_nothing(any_chat: Harness):
    """F10: earlier history goes out as gptel has it, but for ids that must differ."""
    first = any_chat.send(*TURN, U2)
    any_chat.end(plain("fine"), response=[assistant(thinking("fourth", "sig4"), "fine")])
    second = any_chat.send(*TURN, U2, plain("fine"), U3)

    assert replayed(any_chat, first) == []
    assert first.texts() if any_chat.api == "anthropic" else True
    assert b"fourth" in b"".join(second.array)
    assert second.array[: len(first.array)] == first.array
    assert [row.face for row in any_chat.log.rows.values()].count(Face.ACTUAL) == len(
        any_chat.encode([assistant(thinking("fourth", "sig4"), "fine")])
    )


@pytest.mark.parametrize("history", [(), (U3, plain("hi")), TURN], ids=["none", "turn", "work"])
def test_log_that_begins_in_the_loop_keeps_to_the_last_round(
    any_chat: Harness, history: Sequence[Element]
):
    """F10: of an array that is not known, what stands in front of the response is no part of it."""
    before = any_chat.encode([*history, U1])
    any_chat._sent = before, None
    work = looped(SAID, ANSWERS, streamed=True, api=any_chat.api)
    sent = any_chat.loop(*work, span=SHOWN[:5], response=[SAID])
    any_chat.end(plain("done"))

    later = any_chat.send(*history, U1, *SHOWN[:5], plain("done"), U2)

    assert replayed(any_chat, sent)[:1] == replayed(any_chat, later)[:1] == ["said"]
    assert b"".join(sent.array[len(before) :]) in b"".join(later.array)
    assert b"".join(later.array).count(b"prompt 1") == b"".join(before).count(b"prompt 1")


# In the loop (R1, R2)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("api", [*MODELS, "ollama", "mistral", "bedrock", "deepseek"])
def test_loop_sends_the_providers_own_message(api: str, streamed: bool):
    """R1: whatever gptel made of it, with the results in an order that fits."""
    chat = Harness(api=api, model="m")
    chat.send(U1)

    sent = chat.loop(*looped(SAID, ANSWERS, streamed=streamed, api=api), response=[SAID])

    own = chat.encode([SAID])
    results = sent.array[1 + len(own) :]
    assert sent.array[1 : 1 + len(own)] == own
    assert chat.provider.check(sent.array) == ()
    if api in {"gemini", "ollama"}:  # where order is the only link to the calls
        assert results == chat.encode([answer(SAID["content"][2:], ANSWERS)])


def test_results_of_equal_calls_follow_the_order_of_the_calls():
    """R1: Gemini and Ollama tell equal calls apart by their place alone."""
    said = assistant(*(call(id=id, n=1) for id in ANSWERS))
    for api in ("gemini", "ollama"):
        chat = Harness(api=api, model="m")
        chat.send(U1)
        reverse = answer(said["content"][::-1], ANSWERS)
        sent = chat.loop(said | {"content": said["content"][::-1]}, reverse, response=[said])
        assert chat.provider.check(sent.array) == ()
        assert len(sent.array) == len(chat.encode([U1, said, reverse]))


OTHER = assistant("look", call(id="c00000001", n=1), call(id="c00000002", n=3))


@pytest.mark.parametrize(
    ("response", "hooked", "reason"),
    [
        (None, False, "no response recorded"),
        ([OTHER], False, "other calls"),
        ([assistant(*SAID["content"][:3])], False, "other calls"),
        ([assistant(*SAID["content"][:3], call(id="c9", n=2))], False, "other calls"),
        ([SAID], True, "changed by a hook"),
        ("cut", False, "response incomplete"),
    ],
    ids=["none", "arguments", "fewer", "id", "hook", "cut"],
)
def test_loop_keeps_gptels_message(
    chat: Harness, response: list[Element] | str | None, hooked: bool, reason: str
):
    """R2: where the response is not known, or not what gptel works with; the reason is told."""
    said = Response(elements=tuple(chat.encode([SAID]))) if response == "cut" else response
    work = looped(SAID, ANSWERS, streamed=True)
    chat.send(U1)

    sent = chat.loop(*work, response=said, hooked=hooked)
    chat.end(plain("done"))
    later = chat.send(U1, *work, plain("done"), U2)

    assert why(sent, "not_repaired") == [reason]
    assert sent.array == chat.encode([U1, *work])
    assert later.array[: len(sent.array)] == sent.array


def test_call_that_a_hook_changed_keeps_its_arguments(chat: Harness):
    """R2: what the tool ran with goes to the provider, now and later."""
    run = assistant("look", call(id="c00000001", n=7))
    answers = {"c00000001": "one"}
    chat.send(U1)
    sent = chat.loop(
        *looped(run, answers, streamed=False), hooked=True,
        response=[assistant("look", call(id="c00000001", n=1))],
        span=rebuilt(run, answers, backwards=False),
    )  # fmt: skip
    chat.end(plain("done"))
    later = chat.send(U1, *rebuilt(run, answers, backwards=False), plain("done"), U2)

    assert b'"n":7' in sent.array[1]
    assert later.array[: len(sent.array)] == sent.array


THEIRS = message("<system-reminder>theirs</system-reminder>")


@pytest.mark.parametrize("place", ["first", "before", "behind"])
def test_other_packages_reminders_stand_beside_the_repair(any_chat: Harness, place: str):
    """B4: where they put one, first of all, in front of the response, or behind the results."""
    any_chat.send(U1)
    work = looped(SAID, ANSWERS, streamed=True, api=any_chat.api)
    note = any_chat.encode([THEIRS])

    sent = any_chat.loop(
        *work, *([THEIRS] if place == "behind" else []), span=SHOWN[:5], response=[SAID],
        change={
            "first": lambda array: note + array, "before": lambda array: array + note,
        }.get(place, list),
        sections=[section()],
    )  # fmt: skip
    any_chat.end(plain("done"))
    later = any_chat.send(U1, *SHOWN[:5], plain("done"), U2, sections=[section()])

    own = any_chat.encode([SAID])
    at = sent.array.index(own[0])
    assert sent.array[at : at + len(own)] == own
    assert sent.array.index(note[0]) == {"first": 0, "before": 1}.get(place, len(sent.array) - 2)
    assert (sent.array + later.array).count(note[0]) == (1 if place == "first" else 2)
    assert later.due == {}
    assert place == "first" or later.array[: len(sent.array)] == sent.array


# Ids (F7)


def ids(sending: Sending) -> list[str]:
    """Return the ids of the calls and results in an array of Anthropic's or of the chat shape."""
    return [
        id for raw in sending.array for id in Harness().provider.parse(raw).ids if id is not None
    ]


def test_recorded_ids_come_back_in_an_edited_turn(chat: Harness):
    """F7: for calls and results; gptel gives both of one tool the id of one of them (S4)."""
    worked(chat)

    sent = chat.send(U1, *changed(SHOWN, 4), plain("done"), U2)

    one, two, three = (f"c0000000{n}" for n in range(1, 4))
    assert ids(sent) == [one, one, two, two, three, three]
    assert why(sent, "repaired") == ["call ids"]


def test_equal_calls_of_an_edited_turn_keep_their_own_ids(chat: Harness):
    """F7: of one tool with equal arguments, in the order in which they came."""
    answers = ANSWERS | MORE
    said = assistant(*(call(id=id, n=1) for id in answers))
    shown = rebuilt(said, answers, backwards=False)
    chat.send(U1)
    chat.loop(*looped(said, answers, streamed=True), span=shown, response=[said])
    chat.end(plain("done"))

    sent = chat.send(U1, *changed(shown, 5), plain("done"), U2)

    assert ids(sent) == [id for id in answers for _ in range(2)]


def test_history_that_predates_the_log_gets_ids_that_differ(chat: Harness):
    """F7, E26: the same for call and result, over turns and restarts."""
    first = chat.send(*TURN, U2)
    chat.end(plain("fine"))
    second = chat.send(*TURN, U2, plain("fine"), U3)
    chat.restart()
    third = chat.send(*TURN, U2, plain("fine"), U3)
    other = Harness(delta=chat.delta).send(*TURN, U2)

    assert [a == b for a, b in zip(ids(first)[::2], ids(first)[1::2], strict=True)] == [True] * 3
    assert len(set(ids(first))) == 3
    assert second.array[: len(first.array)] == first.array
    assert third.array == second.array
    assert other.array == first.array


def test_ids_that_are_missing_are_made(chat: Harness):
    """F7, E26: regions without an id; the same history gives the same ids."""
    bare = [
        {"role": "assistant", "content": [{"type": "tool_use", "name": "read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "one"}]},
    ]

    sent = chat.send(U1, *bare, *bare, U2)

    assert len(ids(sent)) == 4
    assert len(set(ids(sent))) == 2
    assert ids(sent)[0::2] == ids(sent)[1::2]


def test_ids_are_legal_where_the_model_was_switched_to():
    """F7, E14: an API with other rules gets others, and the old ones come back with the old API."""
    said = assistant(call(id="toolu_01AbCdEf", n=1))
    answers = {"toolu_01AbCdEf": "one"}
    shown = rebuilt(said, answers, backwards=False)
    chat = Harness()
    chat.send(U1)
    chat.loop(*looped(said, answers, streamed=True), span=shown, response=[said])
    chat.end(plain("done"))
    chat.api, chat.model = "mistral", "large"
    other = chat.send(U1, *shown, plain("done"), U2)
    chat.end(plain("fine"))
    again = chat.send(U1, *shown, plain("done"), U2, plain("fine"), U3)
    chat.end(plain("well"))
    chat.api, chat.model = "anthropic", "claude-test"
    back = chat.send(U1, *shown, plain("done"), U2, plain("fine"), U3, plain("well"), U4)

    assert chat.provider.check(back.array) == ()
    assert Harness(api="mistral").provider.check(other.array) == ()
    assert again.array[: len(other.array)] == other.array
    assert ids(back) == ["toolu_01AbCdEf"] * 2


@pytest.mark.parametrize("behind", [False, True])
def test_copy_of_a_call_gets_another_id(chat: Harness, behind: bool):
    """F7: the recorded one is the fragment's, in front of it or not."""
    worked(chat)
    chat.send(*TURN, U2)
    copy = SHOWN[3:5]

    sent = chat.send(*(() if behind else copy), *TURN, *(copy if behind else ()), U2)

    assert len(set(ids(sent))) == 4
    assert replayed(chat, sent) == ["said", "again", "done"]
    assert {reason.code for reason in chat.provider.check(sent.array)} <= {"first_role"}


def test_edit_in_unlogged_history_keeps_calls_and_results_together(chat: Harness):
    """F7, Q1: the call is where it was, and gets another id than gptel's; so does its result."""
    chat.send(*TURN, U2)

    sent = chat.send(U1, *changed(SHOWN, 4), plain("done"), U2)

    assert ids(sent)[0::2] == ids(sent)[1::2]
    assert len(set(ids(sent))) == 3


# Matching (G3, G4)


def test_latest_of_equal_turns_is_meant(chat: Harness):
    """G3: of equal answers, of which the first was thrown away."""
    for n in (1, 2):
        chat.send(U1)
        chat.end(plain("yes"), response=[assistant(thinking(f"branch {n}", f"sig{n}"), "yes")])

    sent = chat.send(U1, plain("yes"), U2)

    assert sent.texts() == ["prompt 1", "branch 2 yes", "prompt 2"]


def test_each_variant_of_an_answer_replays_whichever_was_gone_on_from(chat: Harness):
    """G1: what follows one of them stands behind all of them, in the one order that there is."""
    for n in (1, 2):
        chat.send(U1)
        chat.end(
            plain(f"answer {n}"), response=[assistant(thinking(f"t{n}", f"s{n}"), f"answer {n}")]
        )
    chat.send(U1, plain("answer 2"), U2)
    chat.end(plain("and on"), response=[assistant(thinking("t3", "s3"), "and on")])

    for n in (1, 2, 1):
        sent = chat.send(U1, plain(f"answer {n}"), U2, plain("and on"), U3)
        assert sent.texts() == [
            "prompt 1", f"t{n} answer {n}", "prompt 2", "t3 and on", "prompt 3"
        ]  # fmt: skip


def test_provider_rows_are_as_recorded_and_the_users_as_they_are_now(chat: Harness):
    """G3: white space that the user changed goes out; the provider's text is its own."""
    chat.send(U1)
    chat.end(plain("done"), response=[assistant(" done\n")])

    sent = chat.send(message("prompt 1 "), plain("done"), U2)

    assert [json.loads(raw)["content"] for raw in sent.array[:2]] == [
        "prompt 1 ",
        [{"type": "text", "text": " done\n"}],
    ]


def test_round_whose_results_went_out_is_a_fragment_whatever_came_then(any_chat: Harness):
    """G4: after an error the turn has no end; its round replays."""
    any_chat.send(U1)
    work = looped(SAID, ANSWERS, streamed=True, api=any_chat.api)
    before = any_chat.loop(*work, span=SHOWN[:5], response=[SAID]).array

    sent = any_chat.send(U1, *SHOWN[:5], U2)

    assert sent.array[: len(before)] == before


# Reasoning that is bound to its prefix (C4)


@pytest.fixture(params=["claude-opus-5-5", "claude-test"])
def thinker(request: pytest.FixtureRequest, delta: bool) -> Harness:
    """A conversation with a model whose thinking is bound, and with one whose is not."""
    return Harness(model=request.param, delta=delta, head=Head(system=b'"be brief"'))


def is_bound(chat: Harness) -> bool:
    return chat.provider.bound(chat.identity)


def thoughts(sending: Sending) -> list[str]:
    """Return the thinking in an array of Anthropic's."""
    contents = [json.loads(raw)["content"] for raw in sending.array]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]


def two_turns(chat: Harness) -> list[Element]:
    """Play a turn with a thought that is "early", and the one with three; return the buffer."""
    chat.send(U3)
    chat.end(plain("early"), response=[assistant(thinking("zero", "sig0"), "early")])
    history = [U3, plain("early")]
    worked(chat, *history)
    return [*history, *TURN]


ALL = ["zero", "first", "second", "third"]


def test_unedited_history_keeps_all_thinking(thinker: Harness):
    """C4, F5."""
    history = two_turns(thinker)

    assert thoughts(thinker.send(*history, U2)) == ALL


def test_edit_upstream_drops_the_thinking_behind_it_only(thinker: Harness):
    """C4: of bound models; an undo brings it back, the rest of the fragments replays."""
    history = two_turns(thinker)
    before = thinker.send(*history, U2).array
    edited = [*history[:2], message("edited"), *history[3:]]

    sent = thinker.send(*edited, U2)
    undone = thinker.send(*history, U2)

    bound = is_bound(thinker)
    assert thoughts(sent) == (["zero"] if bound else ALL)
    assert set(why(sent, "reasoning_dropped")) == ({"the history changed"} if bound else set())
    assert why(sent) == []
    assert undone.array == before


@pytest.mark.parametrize("head", [{"system": b'"be long"'}, {"tools": b'[{"name":"f"}]'}])
def test_change_in_front_of_the_array_drops_all_thinking(thinker: Harness, head: dict[str, bytes]):
    """C4: the system prompt and the tools are a part of what it is bound to."""
    history = two_turns(thinker)
    old, thinker.head = thinker.head, Head(**{"system": b'"be brief"'} | head)

    sent = thinker.send(*history, U2)
    thinker.head = old
    back = thinker.send(*history, U2)

    assert thoughts(sent) == ([] if is_bound(thinker) else ALL)
    assert thoughts(back) == ALL


def test_turn_made_after_an_edit_keeps_its_thinking_after_it(thinker: Harness):
    """C4: what it was made behind is the edited history."""
    history = two_turns(thinker)
    edited = [*history[:2], message("edited"), *history[3:]]
    thinker.send(*edited, U2)
    thinker.end(plain("fine"), response=[assistant(thinking("fourth", "sig4"), "fine")])

    sent = thinker.send(*edited, U2, plain("fine"), U4)
    undone = thinker.send(*history, U2, plain("fine"), U4)

    bound = is_bound(thinker)
    assert thoughts(sent) == (["zero", "fourth"] if bound else [*ALL, "fourth"])
    assert thoughts(undone) == (ALL if bound else [*ALL, "fourth"])


def test_thinking_that_was_left_out_is_not_put_back_behind_what_was_made_without(thinker: Harness):
    """C4: the recorded predecessor must be the nearest one, or there must be none."""
    history = two_turns(thinker)
    thinker.step = NO_REASONING
    thinker.send(*history, U2)
    thinker.step = 0
    thinker.end(plain("fine"), response=[assistant(thinking("fourth", "sig4"), "fine")])

    sent = thinker.send(*history, U2, plain("fine"), U4)

    assert thoughts(sent) == (ALL if is_bound(thinker) else [*ALL, "fourth"])


def test_delivery_that_is_lost_upstream_is_an_edit(thinker: Harness):
    """C4: what was injected once has to be sent at the same place for ever."""
    thinker.send(U1, sections=[section()])
    thinker.end(plain("done"), response=[DONE])
    first = thinker.log.rows[thinker.log.deliveries[0]].delivery
    assert first is not None
    kept = thinker.send(U1, plain("done"), U2, sections=[section()])
    thinker.restart()
    thinker._last = (None, [])
    thinker.read = lambda name: None if name == first.text else thinker.objects.get(name)

    lost = thinker.send(U1, plain("done"), U2, sections=[section()])

    assert (thoughts(kept), thoughts(lost)) == (["third"], [] if is_bound(thinker) else ["third"])


@pytest.mark.parametrize("known", [True, False])
def test_thinking_whose_place_is_not_known_is_left_out(thinker: Harness, known: bool):
    """C4: after a restart in the loop with an array that is not recognised."""
    thinker.send(U1)
    held = thinker._sent[0]
    if not known:
        thinker.restart()
        thinker._last = (None, [])
        thinker._sent = held, None
    work = looped(SAID, ANSWERS, streamed=True)
    thinker.loop(*work, span=SHOWN[:5], response=[SAID])
    thinker.end(plain("done"))

    sent = thinker.send(U1, *SHOWN[:5], plain("done"), U2)

    assert thoughts(sent) == (["first"] if known or not is_bound(thinker) else [])


def test_thinking_belongs_to_the_array_that_it_answers(thinker: Harness):
    """C4: though another package has changed that since, further up."""
    thinker.send(U1, sections=[section()])
    work = looped(SAID, ANSWERS, streamed=True)
    note = encode(message("theirs"))
    thinker.loop(*work, span=SHOWN[:5], response=[SAID], change=lambda array: [note, *array])
    thinker.end(plain("done"))

    sent = thinker.send(U1, *SHOWN[:5], plain("done"), U2, sections=[section()])
    edited = thinker.send(message("edited"), *SHOWN[:5], plain("done"), U2, sections=[section()])

    assert thoughts(sent) == ["first"]
    assert thoughts(edited) == ([] if is_bound(thinker) else ["first"])


# After a refusal (Z6)


def test_ladder_leaves_out_reasoning_then_fragments_then_all(any_chat: Harness):
    """Z6: each step of it, between turns."""
    any_chat.send(U3, sections=[section()])
    any_chat.end(plain("hi"))
    worked(any_chat, U3, plain("hi"))
    full = any_chat.send(U3, plain("hi"), *TURN, U2, sections=[section()])
    sent = {}
    for step in (NO_REASONING, NO_FRAGMENTS, NO_EDITS):
        any_chat.step = step
        sent[step] = any_chat.send(U3, plain("hi"), *TURN, U2, sections=[section()])

    stripped = [any_chat.provider.strip(raw) for raw in any_chat.encode([SAID])]
    assert replayed(any_chat, full) == ["said", "again", "done"]
    assert b"".join(filter(None, stripped)) in b"".join(sent[NO_REASONING].array)
    assert b"first" not in b"".join(sent[NO_REASONING].array)
    assert replayed(any_chat, sent[NO_FRAGMENTS]) == []
    assert why(sent[NO_FRAGMENTS]) == ["held back"] * 3
    assert any_chat.provider.check(sent[NO_FRAGMENTS].array) == ()
    assert sent[NO_FRAGMENTS].placed == full.placed
    assert sent[NO_EDITS].array == any_chat.encode([U3, plain("hi"), *TURN, U2])


def test_ladder_holds_in_the_loop(any_chat: Harness):
    """Z6: the same steps, for what the provider said last."""
    work = looped(SAID, ANSWERS, streamed=False, api=any_chat.api)
    sent = {}
    for step in (0, NO_REASONING, NO_FRAGMENTS, NO_EDITS):
        chat = Harness(api=any_chat.api, model=any_chat.model, delta=any_chat.delta, step=step)
        chat.send(U1)
        sent[step] = chat.loop(*work, response=[SAID], sections=[section()])

    own = any_chat.encode([SAID])
    stripped = [raw for raw in map(any_chat.provider.strip, own) if raw]
    assert sent[0].array[1 : 1 + len(own)] == own
    assert sent[NO_REASONING].array[1 : 1 + len(stripped)] == stripped
    assert sent[NO_FRAGMENTS].array[:-1] == any_chat.encode([U1, *work])
    assert sent[NO_EDITS].array == any_chat.encode([U1, *work])


# Scenario 7


def test_restart_gives_the_whole_prefix(any_chat: Harness):
    """Scenario 7: the buffer reopened, the backend killed."""
    worked(any_chat)
    before = any_chat.send(*TURN, U2, sections=[section()]).array
    any_chat.end(plain("fine"), response=[assistant(thinking("fourth", "sig4"), "fine")])
    any_chat.restart()

    sent = any_chat.send(*TURN, U2, plain("fine"), U3, sections=[section()])

    assert sent.due == {}
    assert sent.array[: len(before)] == before
    assert b"fourth" in b"".join(sent.array)


def test_lost_store_means_ordinary_messages_and_full_redelivery(any_chat: Harness):
    """Scenario 7: with nothing of it left, a request is still legal."""
    worked(any_chat)
    any_chat.send(*TURN, U2, sections=[section()])
    any_chat.end(plain("fine"))
    fresh = Harness(api=any_chat.api, model=any_chat.model, delta=any_chat.delta)

    sent = fresh.send(*TURN, U2, plain("fine"), U3, sections=[section()])

    assert sent.due == {"env": "new"}
    assert replayed(fresh, sent) == []
    assert fresh.provider.check(sent.array) == ()
