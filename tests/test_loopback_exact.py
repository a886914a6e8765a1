"""A client that loses nothing is accepted by every API; one that loses anything is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.loopback import Loopback, Strictness
from tests.loopback.apis import chat
from tests.loopback.exact import differ
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
    "copilot": [*FIELDS[:2], [{"thinking": "Enough."}, *FIELDS[2]]],
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
    if not isinstance(value, dict | list):
        others: list[Any] = [None, 7, "x", [], ["x"], {}, f"{value} ", str(value)[:-1]]
        yield from (other for other in others if other != value)
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


def is_harmless(element: Any, changed: Any) -> bool:
    """Whether CHANGED says the same as ELEMENT, or is text of which nothing is known."""
    if element.get("type") == "message":  # of Responses: an item is one unless it says otherwise
        return bool(changed == {name: v for name, v in element.items() if name != "type"})
    if set(element) != {"role", "content"} or not isinstance(element["content"], str):
        return False
    others = {name: value for name, value in changed.items() if name != "content"}
    text = changed.get("content")
    if not isinstance(text, str):
        return False
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


# --- What a client may write otherwise


def edit_content(array: list[Any], number: int, content: Any) -> list[Any]:
    return [*array[:number], {**array[number], "content": content}, *array[number + 1 :]]


def rewrite_anthropic(array: list[Any]) -> Iterator[list[Any]]:
    mark = {"cache_control": {"type": "ephemeral"}}
    blocks = array[1]["content"]
    yield edit_content(array, 1, [*blocks[:-1], {**blocks[-1], **mark}])
    yield edit_content(array, 3, array[3]["content"][0]["text"])


def rewrite_bedrock(array: list[Any]) -> Iterator[list[Any]]:
    yield edit_content(array, 1, [*array[1]["content"], {"cachePoint": {"type": "default"}}])


def rewrite_chat(array: list[Any]) -> Iterator[list[Any]]:
    mark = {"cache_control": {"type": "ephemeral"}}
    said, calls = array[3], array[1]["tool_calls"]
    yield edit_content(array, 3, [{"type": "text", "text": said["content"], **mark}])
    yield edit_content(array, 3, [{"type": "text", "text": each} for each in said["content"]])
    yield [*array[:3], {**said, "refusal": None, "annotations": []}, *array[4:]]
    yield [*array[:3], {**said, "copilot_cache_control": {}}, *array[4:]]
    yield [array[0], {**array[1], "tool_calls": [{**calls[0], "index": 0, **mark}]}, *array[2:]]
    yield edit_content(array, 1, "" if array[1]["content"] is None else None)


def rewrite_deepseek(array: list[Any]) -> Iterator[list[Any]]:
    yield [{**each, "reasoning_content": ""} for each in array]


def rewrite_responses(array: list[Any]) -> Iterator[list[Any]]:
    text = array[3]["content"][0]["text"]
    yield edit_content(array, 3, text)
    yield edit_content(array, 3, [{"type": "output_text", "text": text}])
    yield [*array[:3], {**array[3], "status": "completed", "more": None}, *array[4:]]


def rewrite_gemini(array: list[Any]) -> Iterator[list[Any]]:
    parts = array[1]["parts"]
    (call,) = (part["functionCall"] for part in parts)
    yield [array[0], {"role": "model", "parts": [{"function_call": call}]}, *array[2:]]
    letters = [{"text": letter} for letter in array[3]["parts"][0]["text"]]
    yield [*array[:3], {"role": "model", "parts": letters}, *array[4:]]


def rewrite_ollama(array: list[Any]) -> Iterator[list[Any]]:
    yield [*array[:3], {**array[3], "thinking": "", "tool_calls": None}, *array[4:]]


REWRITES: dict[str, Callable[[list[Any]], Iterator[list[Any]]]] = {
    "anthropic": rewrite_anthropic,
    "bedrock": rewrite_bedrock,
    "openai": rewrite_chat,
    "copilot": rewrite_chat,
    "openrouter": rewrite_chat,
    "deepseek": rewrite_deepseek,
    "mistral": rewrite_chat,
    "responses": rewrite_responses,
    "gemini": rewrite_gemini,
    "ollama": rewrite_ollama,
}


@pytest.mark.parametrize("api", REWRITES)
def test_what_says_the_same_is_accepted(api: str) -> None:
    with exactly({"blocks": [CALL]}, {"text": "Done."}) as server:
        client = Client(server=server, api=api, body=BODIES.get(api, {}))
        client.prompt()
        for array in REWRITES[api](client.array):
            assert array != client.array
            hold(client, array + prompt(api)[client.name])


def test_texts_of_gemini_may_be_cut_elsewhere_but_thoughts_are_no_text() -> None:
    blocks: list[Any] = [{"thinking": "abc"}, {"text": "def"}, {"call": {"name": "f"}}]
    with exactly({"blocks": blocks}, {"text": "Done."}) as server:
        client = Client(server=server, api="gemini")
        client.prompt()
        user, said, *rest = client.array
        *_, call = said["parts"]
        letters = [{"text": each, "thought": True} for each in "abc"]
        letters += [{"text": each} for each in "def"]
        rest += prompt("gemini")["contents"]

        hold(client, [user, {**said, "parts": [*letters, call]}, *rest])
        hold(client, [user, {**said, "parts": [{"text": "abcdef"}, call]}, *rest], "contents[1]")
        bare = {**call, "functionCall": {**call["functionCall"], "args": None}}
        hold(client, [user, {**said, "parts": [*letters, bare]}, *rest])


def reorder_arguments(value: Any) -> Any:
    """VALUE with the keys of the call's arguments in another order."""
    if isinstance(value, list):
        return [reorder_arguments(each) for each in value]
    if isinstance(value, dict):
        items = list(value.items())
        changed = reversed(items) if "depth" in value else items
        return {name: reorder_arguments(each) for name, each in changed}
    return value


def other_arguments(value: Any) -> Any:
    return json.loads(json.dumps(value).replace("a b", "a c"))


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("api", TURNS)
def test_call_without_reasoning_is_known_too(api: str, ids: bool) -> None:
    strict = Strictness(exact=True, gemini_call_ids=ids)
    turn: list[Any] = [{"blocks": [CALL]}, {"text": "Done."}]
    if api == "ollama" or (api == "gemini" and not ids):  # a call is known by its arguments
        turn[0]["blocks"].insert(0, {"text": "Looking."})
    with Loopback(turn, strictness=strict) as server:
        client = Client(server=server, api=api, body=BODIES.get(api, {}))
        client.prompt()
        array = client.array + prompt(api)[client.name]

        hold(client, array)
        hold(client, other_arguments(array), "issued was")
        if api in ("anthropic", "bedrock", "gemini", "ollama"):
            assert reorder_arguments(array) == array
            hold(client, reorder_arguments(array), "issued was")


@pytest.mark.parametrize("api", TURNS)
def test_user_may_say_what_the_model_said(api: str) -> None:
    with exactly({"blocks": [CALL]}, {"text": "Done."}) as server:
        client = Client(server=server, api=api, body=BODIES.get(api, {}))
        client.prompt()

        hold(client, client.array + prompt(api, "Done.")[client.name])
        hold(client, prompt(api, "Done. ")[client.name])


def test_what_is_stored_comes_back_by_its_id() -> None:
    with exactly(*script("responses")) as server:
        client = Client(server=server, api="responses")
        client.prompt()

        hold(client, client.array)
        hold(
            client, [each for each in client.array if each.get("type") != "reasoning"], "reasoning"
        )


def test_text_as_input_is_accepted() -> None:
    with exactly({"text": "h"}) as server:
        client = Client(server=server, api="responses")
        client.prompt()
        reply = server.answer("POST", PATHS["responses"], b'{"model": "m", "input": "hh"}')

    assert reply.status == 200


# --- What is nobody's business


def hold(client: Client, array: list[Any], *words: str) -> None:
    """ARRAY is accepted, or refused in words that contain all of WORDS."""
    client.server.answer("POST", PATHS[client.api], client.encode(array))
    refusal = client.server.requests[-1].refusal
    assert (refusal is None) == (not words), refusal
    assert all(word in (refusal or "") for word in words), refusal


def exactly(*responses: Any) -> Loopback:
    return Loopback(responses, strictness=Strictness(exact=True))


USER: dict[str, Any] = {"role": "user", "content": "go"}


def by_assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def test_refusal_names_path_and_difference() -> None:
    with exactly({"blocks": [CALL]}, {"text": "Done."}) as server:
        client = Client(server=server, api="openai")
        client.prompt()
        array = json.loads(json.dumps(client.array[:3]))
        array[1]["tool_calls"][0]["function"]["arguments"] = '{"depth": 1}'

        hold(
            client,
            array,
            "messages[1].tool_calls[0].function.arguments is",
            "issued was",
            "(response 1)",
        )


def test_text_that_was_never_issued_is_accepted() -> None:
    with exactly({"text": "One."}) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()

        hold(client, [USER, by_assistant("Another."), USER])
        hold(client, [USER, by_assistant("One. "), USER], 'text is "One. ", issued was "One."')


def test_text_that_was_issued_with_reasoning_is_not_accepted_without() -> None:
    with exactly({"reasoning": "Hm.", "text": "One."}) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()

        hold(client, [USER, by_assistant("One."), USER], "messages[1].content[0]")


def test_text_that_was_issued_with_and_without_reasoning_is_accepted_either_way() -> None:
    with exactly({"text": "One."}, {"reasoning": "Hm.", "text": "One."}) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()
        client.prompt()

        hold(client, [USER, by_assistant("One."), USER])
        hold(client, [*client.array, USER])


def test_what_another_model_said_is_not_judged() -> None:
    with exactly({"reasoning": "Hm.", "text": "One."}) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()
        client.body = {"model": "other"}

        hold(client, [USER, by_assistant("One."), USER])


def test_answer_that_broke_off_is_not_demanded() -> None:
    with exactly({"reasoning": "Hm.", "text": "One.", "error": "Busy"}) as server:
        client = Client(server=server, api="anthropic", streamed=True)
        client.array = [USER]
        client.send()

        hold(client, [USER, by_assistant("One."), USER])


def test_one_id_stands_in_one_place() -> None:
    with exactly({"blocks": [CALL]}, {"text": "Done."}) as server:
        client = Client(server=server, api="openai")
        client.prompt()
        call = client.array[1]["tool_calls"][0]["id"]

        hold(
            client,
            [*client.array[:3], *client.array[1:3]],
            f"messages[3]: {call} stands in messages[1] too",
        )


def test_items_of_a_response_stand_together() -> None:
    with exactly({"blocks": [{"text": "Looking."}, CALL, OTHER]}, {"text": "Done."}) as server:
        client = Client(server=server, api="responses")
        client.prompt()
        user, text, call, other, *rest = client.array

        hold(client, [user, text, call, other, *rest])
        hold(client, [user, call, other, *rest], "input[0]")
        hold(client, [call, other, *rest], "input lacks what response 1 began with: {")
        hold(client, [user, text, call, rest[0], other, *rest[1:]], "input[3]")
        hold(client, [text, user, call, other, *rest], "input[1]")


def test_end_of_a_response_is_missed() -> None:
    with exactly({"blocks": [{"text": "Looking."}, CALL]}, {"text": "Done."}) as server:
        client = Client(server=server, api="responses")
        client.prompt()

        hold(client, client.array[:2], "input[2] is missing, response 1 has")


def test_call_of_another_provider_is_not_known_by_what_stands_beside_it() -> None:
    """History that predates the provider, in which somebody said and asked for the same."""
    with exactly({"blocks": [{"text": "Looking."}, CALL]}, {"text": "Done."}) as server:
        client = Client(server=server, api="openai")
        client.prompt()
        array = json.loads(json.dumps(client.array[:3]))
        array[1]["tool_calls"][0]["id"] = array[2]["tool_call_id"] = "call_other"
        array[1]["more"] = "x"

        hold(client, array)


DIFFERENCES: list[tuple[Any, Any, str]] = [
    ({"a": 1}, {"a": 1}, ""),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ""),
    ({"a": 1}, {}, "p.a is missing, issued was 1"),
    ({}, {"a": 1}, "p.a was never issued: 1"),
    ({"a": {"b": "x"}}, {"a": {"b": "y"}}, 'p.a.b is "y", issued was "x"'),
    ({}, [], "p is [], issued was {}"),
    ([], {}, "p is {}, issued was []"),
    ({"a": 1}, "a", 'p is "a", issued was {"a":1}'),
    ([1, 2], [1], "p[1] is missing, issued was 2"),
    ([1], [1, 2], "p[1] was never issued: 2"),
    ([1, 2], [1, 3], "p[1] is 3, issued was 2"),
    (1, 1.0, "p is 1.0, issued was 1"),
    (1, True, "p is true, issued was 1"),
    (None, "", 'p is "", issued was null'),
    ("x" * 200, "", 'p is "", issued was "' + "x" * 96 + "..."),
]


@pytest.mark.parametrize(("issued", "returned", "expected"), DIFFERENCES)
def test_first_difference_is_told(issued: Any, returned: Any, expected: str) -> None:
    assert differ(issued, returned, "p") == expected


def test_call_of_ollama_is_known_by_what_it_says() -> None:
    blocks: list[Any] = [{"thinking": "Hm."}, {"call": {"name": "f"}}]
    with exactly({"blocks": blocks}, {"text": "Done."}) as server:
        client = Client(server=server, api="ollama")
        client.prompt()
        user, said, *rest = client.array
        (call,) = said["tool_calls"]
        bare = {"function": {**call["function"], "arguments": None}}

        hold(client, [user, {**said, "tool_calls": [bare]}, *rest])
        hold(client, [user, {**said, "thinking": ""}, *rest], "messages[1].thinking is missing")


def test_reasoning_without_text_is_not_what_a_message_is_known_by() -> None:
    with exactly({"reasoning": "", "text": "One."}) as server:
        client = Client(server=server, api="deepseek")
        client.prompt()

        hold(client, [USER, {**by_assistant("Another."), "reasoning_content": ""}, USER])


CHUNKS: list[tuple[list[Any], int]] = [
    ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], 1),
    ([{"type": "text", "text": "a"}, {"type": "text", "text": ""}], 1),
    ([{"type": "text", "text": "a", "more": 1}, {"type": "text", "text": "b"}], 2),
    ([{"type": "odd", "text": "a"}, {"type": "odd", "text": "b"}], 2),
]


@pytest.mark.parametrize(("content", "count"), CHUNKS)
def test_only_plain_texts_are_joined(content: list[Any], count: int) -> None:
    assert len(chat.normal(by_assistant(content))["content"]) == count
