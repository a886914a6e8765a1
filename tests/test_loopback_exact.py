"""A client that loses nothing is accepted by every API; one that loses anything is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.loopback import Loopback, Strictness
from tests.loopback_client import PATHS, Client, prompt

RAW = '{ "path":"a b",\n "flags" : [ 1.0,null, {} ], "depth":1 }'
CALL = {"call": {"name": "read", "raw": RAW}}
OTHER = {"call": {"name": "read", "args": {"path": "b"}}}
CLAUDE: list[Any] = [
    [
        {"thinking": "First I look."},
        {"text": "Looking at both of them."},
        {"thinking": ""},
        CALL,
        {"redacted": True},
        OTHER,
    ],
    [{"text": "One more thing."}, {"thinking": "Hm, what about that?"}, CALL],
    [{"thinking": "Enough."}, {"text": "It is fine: ĝis la revido."}],
]
FIELDS: list[Any] = [
    [{"thinking": "First I look."}, {"text": "Looking at both of them."}, CALL, OTHER],
    [{"text": "One more thing."}, {"thinking": "Hm, what about that?"}, CALL],
    [{"thinking": "Enough."}, {"text": "It is fine: ĝis la revido."}],
]
PLAIN: list[Any] = [[b for b in blocks if "thinking" not in b] for blocks in FIELDS]
TURNS: dict[str, list[Any]] = {
    "anthropic": CLAUDE,
    "bedrock": CLAUDE,
    "openai": PLAIN,
    "copilot": FIELDS,
    "openrouter": [[*FIELDS[0][:1], {"redacted": True}, *FIELDS[0][1:]], *FIELDS[1:]],
    "deepseek": FIELDS,
    "mistral": FIELDS,
    "responses": [
        [{"thinking": ""}, {"text": "Looking."}, {"thinking": "Both."}, CALL, OTHER],
        *FIELDS[1:],
    ],
    "gemini": [*FIELDS[:2], [{"thinking": ""}, {"text": "It is fine."}, {"empty_text": True}]],
    "ollama": FIELDS,
}
BODIES: dict[str, Any] = {"responses": {"store": False}, "bedrock": {"toolConfig": {"tools": []}}}
EVERY = Strictness(
    exact=True,
    thinking="required",
    strict_ids=True,
    strict_reasoning=True,
    strict_signatures=True,
    exclusive_content=False,
)
BOUND = Strictness(exact=True, thinking="bound", exclusive_content=False)
CELLS = [*((api, streamed) for api in TURNS for streamed in (False, True)), ("gemini-array", True)]


def script(api: str) -> list[Any]:
    return [{"blocks": blocks} for blocks in TURNS[api.removesuffix("-array")]]


@pytest.mark.parametrize("strictness", [EVERY, BOUND], ids=["every", "bound"])
@pytest.mark.parametrize(
    ("api", "streamed"), [cell for cell in CELLS if cell != ("gemini-array", False)]
)
def test_client_that_loses_nothing_is_accepted(
    api: str, streamed: bool, strictness: Strictness
) -> None:
    with Loopback(script(api) * 2, strictness=strictness) as server:
        client = Client(server=server, api=api, streamed=streamed, body=BODIES.get(api, {}))
        for _ in range(2):
            client.prompt()

        assert [each.refusal for each in server.requests] == [None] * 6


def mutate(value: Any) -> Iterator[Any]:
    """VALUE with one thing in it changed, left out, added or moved."""
    if isinstance(value, str):
        yield value + " "
        yield value[:-1] or "x"
    elif isinstance(value, dict):
        for key in value:
            yield {name: each for name, each in value.items() if name != key}
            yield from ({**value, key: each} for each in mutate(value[key]))
        yield {**value, "name": "added"}
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield value[:n] + value[n + 1 :]
            yield from ([*value[:n], each, *value[n + 1 :]] for each in mutate(item))
        for n in range(1, len(value)):
            yield [*value[: n - 1], value[n], value[n - 1], *value[n + 1 :]]
    else:
        yield 7


def is_harmless(element: Any, changed: Any) -> bool:
    """Whether CHANGED says the same as ELEMENT, or is text of which nothing is known."""
    if element.get("type") == "message":  # of Responses: an item is one unless it says otherwise
        return bool(changed == {name: v for name, v in element.items() if name != "type"})
    if set(element) != {"role", "content"} or not isinstance(element["content"], str):
        return False
    others = {name: value for name, value in changed.items() if name != "content"}
    text = str(changed.get("content", ""))
    return others == {"role": element["role"]} and text.strip() not in ("", element["content"])


@pytest.mark.parametrize(("api", "streamed"), CELLS)
def test_whatever_is_lost_or_changed_is_refused(api: str, streamed: bool) -> None:
    """Every place of every element that was issued, one change at a time."""
    with Loopback(script(api), strictness=EVERY) as server:
        client = Client(server=server, api=api, streamed=streamed, body=BODIES.get(api, {}))
        client.prompt()
        client.array += prompt(api)[client.name]
        places = [n for n, each in enumerate(client.array) if is_issued(each)]
        issued = [element for each in server.requests for element in each.issued]
        for number, element in zip(places, issued, strict=True):
            client.array[number] = without_notes(element)

        assert (
            server.answer(
                "POST", PATHS[api.removesuffix("-array")], client.encode(client.array)
            ).status
            == 200
        )
        for number in places:
            for changed in mutate(client.array[number]):
                array = [*client.array[:number], changed, *client.array[number + 1 :]]
                reply = server.answer(
                    "POST", PATHS[api.removesuffix("-array")], client.encode(array)
                )
                harmless = is_harmless(client.array[number], changed)
                assert (reply.status == 200) == harmless, (client.array[number], changed)


def is_issued(element: Any) -> bool:
    if element.get("role") in ("user", "tool"):
        return False
    return bool(element.get("type") != "function_call_output")


def without_notes(element: Any) -> Any:
    """ELEMENT without the empty lists that come with a text of Responses."""
    if element.get("type") != "message":
        return element
    parts = [{"type": part["type"], "text": part["text"]} for part in element["content"]]
    return {**element, "content": parts}
