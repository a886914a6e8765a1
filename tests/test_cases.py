"""The public cases that exact replay repairs, at the level of payloads.

They are those that gptel or the loopback provider cannot be brought to show, and two backends whose
conversations Emacs plays as well.  A case has its name in the docstring of its test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retention.continuity import Cause
from retention.providers import PROVIDERS
from retention.store import Store
from tests.dialects import Element, body, events, looped, plain, rebuilt
from tests.e2e.chat import accepted, is_prefix
from tests.helpers import Adapter, Prepared, assistant, call, identity, message, section, thinking
from tests.loopback import Loopback
from tests.loopback.kept import kept
from tests.loopback.recorder import Recorded
from tests.loopback.strictness import Strictness
from tests.loopback_client import ARRAYS, PATHS, prompt, show

U1, U2, U3 = (message(f"prompt {n}") for n in range(1, 4))
ANSWERS = {"c1": "one\n", "c2": "two\n"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def shown(prepared: Prepared) -> list[Element]:
    """Return the elements that go out."""
    return [json.loads(raw) for raw in prepared.array]


# Reasoning


@pytest.mark.parametrize(
    ("api", "model", "asked"),
    [
        ("responses", "gpt-5.5", ["reasoning.encrypted_content"]),
        ("responses", "o3", ["reasoning.encrypted_content"]),
        ("responses", "gpt-4.1-mini", []),
        ("responses", "gpt-5-chat-latest", []),
        ("openai", "gpt-5.5", []),
    ],
)
def test_models_that_may_reason_are_asked_for_their_reasoning(
    store: Store, api: str, model: str, asked: list[str]
) -> None:
    """Case E9: others refuse to be asked, "Encrypted content is not supported with this model."."""
    chat = Adapter(store, api=api, model=model)

    assert list(chat.prepare(U1).result.include) == asked


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"}
BARE = {name: value for name, value in CALL.items() if name != "id"}
SEALED = THOUGHT | {"encrypted_content": "gAAAAAB"}
OPEN = THOUGHT | {"content": [{"type": "reasoning_text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("stored", "thought", "elements"),
    [
        (None, THOUGHT, [BARE]),
        (False, THOUGHT | {"encrypted_content": None}, [BARE]),
        (True, THOUGHT, [THOUGHT, CALL]),
        (False, SEALED, [SEALED, CALL]),
        (False, OPEN, [OPEN, CALL]),
    ],
)
def test_reasoning_that_cannot_be_read_again_stays_away(
    stored: bool | None, thought: Element, elements: list[Element]
) -> None:
    """Cases E9, N30: it came without its content and is not stored; what names it goes with it."""
    document: Element = {"object": "response", "status": "completed", "output": [thought, CALL]}
    if stored is not None:
        document["store"] = stored

    response = PROVIDERS["responses"].assemble(json.dumps(document).encode())

    assert response.complete
    assert [json.loads(raw) for raw in response.elements] == elements


@pytest.mark.parametrize("streamed", [True, False])
def test_empty_signature_stays_an_empty_string(store: Store, streamed: bool) -> None:
    """Case E6, rule F5: gptel made an object of it, which the API's schema refuses."""
    said = assistant(thinking("hm", ""), "look", call(id="c1"))
    work = looped(said, ANSWERS, streamed=streamed)
    span = rebuilt(said, ANSWERS, backwards=False)
    chat = Adapter(store)
    chat.send(U1)

    chat.record(events(said) if streamed else body(said, "anthropic"))
    loop = chat.loop(*work, span=span)
    chat.end(plain("done"))
    later = chat.send(U1, *span, plain("done"), U2)

    assert shown(loop)[1] == shown(later)[1] == said


DETAILS = [
    {"type": "reasoning.text", "text": "hm", "signature": "", "id": None, "index": 0},
    {"type": "reasoning.encrypted", "data": "c2ln", "format": "unknown", "index": 1},
]
SIGNED = {
    "id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": "c2ln"}},
}  # fmt: skip


@pytest.mark.parametrize(
    "extra",
    [
        {"reasoning": "hm", "reasoning_details": DETAILS},
        {"reasoning": "", "reasoning_details": DETAILS[1:]},
        {"reasoning_text": "hm", "reasoning_opaque": "c2ln"},
        {"tool_calls": [SIGNED]},
    ],
    ids=["N32", "N32-encrypted", "copilot", "N33"],
)
def test_fields_that_gptel_does_not_know_come_back(store: Store, extra: Element) -> None:
    """Cases N32, N33, rule F5: "", null and absent kept apart, calls whole."""
    call = {name: value for name, value in SIGNED.items() if name != "extra_content"}
    said = {"role": "assistant", "content": "look", "tool_calls": [call]} | extra
    choice = {"index": 0, "message": said, "finish_reason": "tool_calls"}
    ours = assistant("look", {"type": "tool_use", "id": "c1", "name": "read", "input": {}})
    span = rebuilt(ours, ANSWERS, backwards=False)
    chat = Adapter(store, api="openai")
    chat.send(U1)

    chat.record(json.dumps({"choices": [choice]}).encode())
    loop = chat.loop(*looped(ours, ANSWERS, streamed=True), span=span)
    chat.end(plain("done"))
    later = chat.send(U1, *span, plain("done"), U2)

    assert shown(loop)[1] == shown(later)[1] == said


# Ids


def play(chat: Adapter, ids: list[str]) -> list[Element]:
    """Play a turn of two calls with IDS; return the history as gptel builds it."""
    said = assistant(call(id=ids[0], n=1), call(id=ids[1], n=2))
    answers = {ids[0]: "one\n", ids[1]: "two\n"}
    span = rebuilt(said, answers, backwards=False)
    for element in span:
        for block in element["content"]:  # gptel puts this in front of ids that it does not know
            key = "id" if block["type"] == "tool_use" else "tool_use_id"
            block[key] = f"call_{block[key]}"
    chat.send(U1)
    chat.loop(*looped(said, answers, streamed=True), span=span, response=[said])
    chat.end(plain("done"))
    return [U1, *span, plain("done")]


def pairs(prepared: Prepared) -> tuple[list[str], list[str]]:
    """Return the ids of the calls and those of the results, in Anthropic's or the chat shape."""
    calls, results = [], []
    for element in shown(prepared):
        content = element["content"] if isinstance(element.get("content"), list) else []
        calls += [block["id"] for block in content if block["type"] == "tool_use"]
        calls += [each["id"] for each in element.get("tool_calls", ())]
        results += [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        results += [element["tool_call_id"]] if "tool_call_id" in element else []
    return calls, results


@pytest.mark.parametrize(
    "ids",
    [
        ["tooluse_a1", "tooluse_b2"],
        ["toolu_01a", "toolu_01b"],
        ["functions.read:0", "functions.read:1"],
        ["0fypS1hVX", "1fypS1hVX"],
    ],
    ids=["E16", "E17", "N37", "E14-E15"],
)
@pytest.mark.parametrize("model", ["claude-test", "other"])
def test_ids_come_back_as_the_provider_wrote_them(store: Store, model: str, ids: list[str]) -> None:
    """Cases E14 to E17, rule F7: replayed, and where another model gets gptel's serialization."""
    chat = Adapter(store, api="openai")
    history = play(chat, ids)
    chat.identity["model"] = model

    calls, results = pairs(chat.send(*history, U2))

    assert calls == ids
    assert sorted(results) == sorted(ids)


@pytest.mark.parametrize(
    ("api", "ids"),
    [("anthropic", "functions.read:0 functions.read:1"), ("mistral", "call_a1 call_b2")],
)
def test_ids_that_another_api_refuses_are_replaced(store: Store, api: str, ids: str) -> None:
    """Case N37, rule F7: the same legal one for a call and its result, and always that."""
    chat = Adapter(store, api="openai")
    history = play(chat, ids.split())
    chat.api, chat.identity["api"] = api, api
    chat.ordinary = ("", [])  # as the client does when the API changes

    first, again = chat.send(*history, U2), chat.send(*history, U3)

    calls, results = pairs(first)
    assert calls == results
    assert len({*calls}) == 2
    assert all(re.fullmatch(PROVIDERS[api].id_pattern, id) for id in calls)
    assert pairs(again) == (calls, results)


def test_id_that_a_provider_gives_twice_is_replaced_once(store: Store) -> None:
    """Case E15: where the calls of two turns have one id, the first keeps it."""
    chat = Adapter(store, api="openai")
    history = play(chat, ["read:0", "read:1"])
    said = assistant(call(id="read:0", n=3))
    span = rebuilt(said, {"read:0": "three\n"}, backwards=False)
    chat.send(*history, U2)
    chat.loop(*looped(said, {"read:0": "three\n"}, streamed=True), span=span, response=[said])
    chat.end(plain("so"))
    chat.identity["model"] = "other"

    calls, results = pairs(chat.send(*history, U2, *span, plain("so"), U3))

    assert calls[:2] == ["read:0", "read:1"]
    assert calls == results
    assert len({*calls}) == 3


def test_bedrock_takes_calls_that_have_no_ids(store: Store) -> None:
    """Case E26: gptel writes {} for the ids that Gemini and Ollama did not give."""
    chat = Adapter(store, api="bedrock")
    use = {"toolUseId": {}, "name": "read", "input": {}}
    work = {"role": "assistant", "content": [{"toolUse": use}]}
    result = {"toolUseId": {}, "content": [{"text": "one"}]}
    done = {"role": "user", "content": [{"toolResult": result}]}
    history = [json.dumps(each).encode() for each in (work, done, work, done)]

    sent = shown(chat.send(U1, *history, U2))

    made = [sent[n]["content"][0]["toolUse"]["toolUseId"] for n in (1, 3)]
    taken = [sent[n]["content"][0]["toolResult"]["toolUseId"] for n in (2, 4)]
    assert made == taken
    assert len({*made}) == 2


# What cannot be repaired is named


def test_name_of_a_schema_that_changes_with_each_request_is_told(store: Store) -> None:
    """Case S11: gptel makes it at random; the request differs by it from the one before."""
    chat = Adapter(store, api="openai")

    def head(name: str) -> str:
        schema = {"type": "json_schema", "json_schema": {"name": name, "schema": {}}}
        return json.dumps({"model": "m", "response_format": schema})

    chat.send(U1, head=head("a1"))
    chat.end(plain("{}"))
    chat.ordinary = ("", [])

    found = chat.send(U1, plain("{}"), U2, head=head("b2")).result.continuity

    assert (found.cause, found.path) == (Cause.PARAMETER, "response_format.json_schema.name")


# Bedrock and Copilot: scenarios 1, 5, 8 and 10

CLAUDE = "anthropic.claude-opus-4-6-v1"


@dataclass
class Talk:
    """A conversation with API of SERVER as gptel has it, over a `Service`.

    `buffer` holds the messages as gptel builds them, in Anthropic's shape.  Both APIs that Copilot
    speaks belong to one backend.
    """

    server: Loopback
    chat: Adapter
    api: str
    model: str
    buffer: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.switch(self.api, self.model)

    def switch(self, api: str, model: str) -> None:
        """Go on with another API of the same backend, or another model."""
        self.api, self.model = api, model
        self.chat.api = "openai" if api == "copilot" else api
        self.chat.identity = msgspec.to_builtins(
            identity("bedrock" if api == "bedrock" else "copilot", model)
        )
        self.chat.ordinary = ("", [])

    def turn(self, *rounds: dict[str, Any], weather: str = "sunny") -> list[Recorded]:
        """Prompt, and let the provider answer with ROUNDS; return the requests."""
        start = len(self.server.requests)
        self.server.load(rounds)
        self.buffer.append(message(f"prompt {start}"))
        sent = self.chat.send(*self.buffer, sections=[section("weather", weather)])
        for number in range(1, len(rounds)):
            said = self.post(sent)
            calls = [block for block in said["content"] if block["type"] == "tool_use"]
            answers = {each["id"]: f"of {each['input']['path']}\n" for each in calls}
            span = rebuilt(said, answers, backwards=True)
            work = looped(said, answers, streamed=False, api=self.chat.api)
            now = section("weather", f"{weather} {number}")
            sent = self.chat.loop(*work, span=span, sections=[now])
            self.buffer += span
        last = plain(self.post(sent)["content"][0]["text"])
        self.chat.end(last)
        self.buffer.append(last)
        return self.server.requests[start:]

    def post(self, sent: Prepared) -> Element:
        """Send what was prepared and record the answer; return its text and calls."""
        array = {ARRAYS.get(self.api, "messages"): shown(sent)}
        head = {"model": self.model, "store": False, "toolConfig": {"tools": []}}
        request = prompt(self.api) | head | array
        path = PATHS[self.api].replace(CLAUDE, self.model)
        reply = self.server.answer("POST", path, json.dumps(request).encode())
        self.chat.record(reply.body)
        elements = list(self.server.requests[-1].issued)
        assert elements, reply.body
        text, calls = show(self.api, elements)
        ids = [id for element in elements for id in call_ids(element)]
        made = [
            {"type": "tool_use", "id": id, "name": name, "input": args}
            for id, (name, args) in zip(ids, calls, strict=True)
        ]
        return assistant(*([text] if text else []), *made)


def call_ids(element: Element) -> Iterator[str]:
    """Yield the ids of the calls in an element of Bedrock, chat or Responses."""
    if element.get("type") == "function_call":
        yield element["call_id"]
    for each in element.get("tool_calls", ()):
        yield each["id"]
    for block in element.get("content") or ():
        if "toolUse" in block:
            yield block["toolUse"]["toolUseId"]


def says(thought: str, text: str, *paths: str) -> dict[str, Any]:
    """Return a response with reasoning, a text, and a call for each of PATHS."""
    calls = [{"name": "read", "args": {"path": path}} for path in paths]
    return {"reasoning": thought, "text": text, "calls": calls}


ROUNDS = [says("One.", "I look. ", "a", "b"), says("Two.", "", "c"), says("Three.", "So it is. ")]


@pytest.fixture(params=[("bedrock", CLAUDE), ("copilot", "claude-5"), ("responses", "gpt-6")])
def talk(request: pytest.FixtureRequest, store: Store) -> Iterator[Talk]:
    """A conversation with Bedrock, and with Copilot in each of its two shapes."""
    with Loopback(strictness=Strictness(exact=True, thinking="required")) as server:
        yield Talk(server, Adapter(store), *request.param)


def test_everything_comes_back_to_bedrock_and_copilot(talk: Talk) -> None:
    """Scenarios 1 and 10: sections change between and during turns of three rounds."""
    requests = [r for n in range(3) for r in talk.turn(*ROUNDS, weather=f"day {n // 2}")]

    accepted(requests)
    assert all(is_prefix(earlier, later) for earlier, later in pairwise(requests))
    issued, returned = kept(requests)
    assert returned == issued


def test_edit_of_a_result_costs_its_fragment_there(talk: Talk) -> None:
    """Scenario 5: and its undo brings it back."""
    turn = talk.turn(*ROUNDS)
    talk.server.strictness = Strictness(thinking="required")
    before = talk.buffer.copy()

    text = json.dumps(talk.buffer).replace("of a", "of z")
    talk.buffer = json.loads(text)
    edited = talk.turn(says("Hm.", "Edited."))
    talk.buffer = before + talk.buffer[len(before) :]
    undone = talk.turn(says("Hm.", "Undone."))

    accepted(turn + edited + undone)
    assert b"of z" in edited[0].body
    assert b"One." not in edited[0].body
    assert b"Two." in edited[0].body
    assert is_prefix(turn[-1], undone[0])


def test_other_model_gets_no_foreign_fragment_there(talk: Talk) -> None:
    """Scenario 8: Copilot's other model is one of its other API."""
    first = (talk.api, talk.model)
    other = {
        "bedrock": ("bedrock", "anthropic.claude-sonnet-5"),
        "copilot": ("responses", "gpt-6"),
        "responses": ("copilot", "claude-5"),
    }[talk.api]
    turn = talk.turn(*ROUNDS)
    talk.server.strictness = Strictness()

    talk.switch(*other)
    away = talk.turn(*ROUNDS)
    talk.switch(*first)
    back = talk.turn(says("Hm.", "Back."))

    accepted(turn + away + back)
    assert b"One." not in away[0].body
    assert is_prefix(turn[-1], back[0])
