"""What the provider's prompt cache tells of a request, and how much of its answers comes back."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

from tests.loopback import Loopback
from tests.loopback.cache import LOOKBACK, Cache, Entry
from tests.loopback.kept import kept
from tests.loopback_client import PATHS, Client, ask, assemble, prompt

Body = dict[str, Any]
WORD = "x" * 400  # 100 tokens


def say(*texts: str, mark: int | None = None, lifetime: str = "5m") -> list[Entry]:
    return [Entry(text, mark=lifetime if n == mark else "") for n, text in enumerate(texts)]


def test_prefix_is_read_up_to_what_was_marked_before() -> None:
    cache = Cache()
    a, b, c, d = (letter * 40 for letter in "abcd")

    assert cache.use(say(a, b, c, mark=1)) == (0, 20, "5m")
    assert cache.use(say(a, b, c, d, mark=3)) == (20, 20, "5m")
    assert cache.use(say(a, b, c, d, mark=3)) == (40, 0, "5m")
    assert cache.use(say(a, c, b, d, mark=3)) == (0, 40, "5m")
    assert cache.use(say(a, b, c, d)) == (0, 0, "")


def test_longest_of_several_marks_counts() -> None:
    cache = Cache()
    cache.use(say("a" * 40, "b" * 40, mark=0))
    cache.use(say("a" * 40, "b" * 40, mark=1))
    both = [entry._replace(mark="1h") for entry in say("a" * 40, "b" * 40, "c" * 40)]

    assert cache.use(both) == (20, 10, "1h")


@pytest.mark.parametrize(("more", "hit"), [(LOOKBACK, True), (LOOKBACK + 1, False)])
def test_lookup_goes_back_so_many_positions(more: int, hit: bool) -> None:
    cache = Cache()
    texts = [f"{n:40}" for n in range(more + 1)]
    cache.use(say(texts[0], mark=0))

    assert bool(cache.use(say(*texts, mark=more)).read) == hit


def test_run_of_calls_is_one_position() -> None:
    cache = Cache()
    first = Entry("first" * 40, mark="5m")
    calls = [Entry(f"{n:40}", run="tool_use") for n in range(50)]
    results = [Entry(f"{n:40}", run="tool_result") for n in range(50)]
    cache.use([first])

    assert cache.use([first._replace(mark=""), *calls, *results, first]).read == 50


@pytest.mark.parametrize(("rounds", "hit"), [(LOOKBACK // 2, True), (LOOKBACK // 2 + 1, False)])
def test_calls_and_their_results_are_two_positions(rounds: int, hit: bool) -> None:
    cache = Cache()
    first = Entry("first" * 40)
    runs = [Entry(f"{n:40}", run=run) for n in range(rounds) for run in ("tool_use", "tool_result")]
    cache.use([first._replace(mark="5m")])
    runs[-1] = runs[-1]._replace(mark="5m")

    assert bool(cache.use([first, *runs]).read) == hit


# --- Through the APIs

READ = {
    "anthropic": ("usage", "cache_read_input_tokens"),
    "bedrock": ("usage", "cacheReadInputTokens"),
    "openai": ("usage", "prompt_tokens_details", "cached_tokens"),
    "copilot": ("usage", "prompt_tokens_details", "cached_tokens"),
    "openrouter": ("usage", "prompt_tokens_details", "cached_tokens"),
    "mistral": ("usage", "prompt_tokens_details", "cached_tokens"),
    "deepseek": ("usage", "prompt_cache_hit_tokens"),
    "responses": ("usage", "input_tokens_details", "cached_tokens"),
    "gemini": ("usageMetadata", "cachedContentTokenCount"),
}
IMPLICIT = [api for api in READ if api not in ("anthropic", "bedrock")]


def read(api: str, whole: Any) -> Any:
    """The cached tokens that an answer tells of, None if it does not."""
    for name in READ[api]:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole


@pytest.mark.parametrize("api", IMPLICIT)
def test_whole_conversation_is_read_again(api: str) -> None:
    with Loopback() as server:
        client = Client(server=server, api=api)
        first, second = (read(api, client.prompt(WORD).json) for _ in range(2))
        client.array[0] = prompt(api, "another")[client.name][0]
        third = read(api, client.send().json)

    assert first in (0, None)
    assert second is not None
    assert 100 < second < 130
    assert third in (0, None)


@pytest.mark.parametrize("api", IMPLICIT)
def test_nothing_is_read_with_other_tools(api: str) -> None:
    with Loopback() as server:
        client = Client(server=server, api=api, body={"tools": []})
        client.prompt(WORD)
        assert read(api, client.prompt().json) > 100
        client.body = {"tools": [{"name": "f"}]}
        assert not read(api, client.prompt().json)


def test_input_that_is_a_text_is_one_element() -> None:
    with Loopback() as server:
        bodies = [{"model": "m", "input": WORD + end} for end in "abb"]
        answers = [ask(server, PATHS["responses"], body).json for body in bodies]

    assert [bool(read("responses", answer)) for answer in answers] == [False, False, True]


def test_mistral_tells_nothing_where_nothing_was_cached() -> None:
    with Loopback() as server:
        client = Client(server=server, api="mistral")
        usages = [client.prompt(WORD).json["usage"] for _ in range(2)]

    assert ["prompt_tokens_details" in usage for usage in usages] == [False, True]


def test_deepseek_tells_hit_and_miss() -> None:
    with Loopback() as server:
        client = Client(server=server, api="deepseek")
        client.prompt(WORD)
        usage = client.prompt().json["usage"]

    assert (
        usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"]
        == usage["prompt_tokens"]
    )


def marked(text: str, **mark: str) -> Body:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral", **mark}}


def claude(*blocks: Body, **fields: Any) -> Body:
    messages = [{"role": "user", "content": list(blocks)}]
    return {"model": "m", "max_tokens": 10, "messages": messages, **fields}


def ask_claude(server: Loopback, body: Body) -> dict[str, int]:
    usage: dict[str, Any] = ask(server, PATHS["anthropic"], body).json["usage"]
    assert sum(usage["cache_creation"].values()) == usage["cache_creation_input_tokens"]
    return {
        "fresh": usage["input_tokens"],
        "read": usage["cache_read_input_tokens"],
        "written": usage["cache_creation_input_tokens"],
        "hour": usage["cache_creation"]["ephemeral_1h_input_tokens"],
    }


def test_anthropic_reads_and_writes_at_marks_alone() -> None:
    text, more = {"type": "text", "text": WORD}, {"type": "text", "text": "more"}
    with Loopback() as server:
        assert ask_claude(server, claude(text))["written"] == 0
        first = ask_claude(server, claude(marked(WORD), more))
        second = ask_claude(server, claude(text, marked("more", ttl="1h")))
        third = ask_claude(server, claude(text, more, cache_control={"type": "ephemeral"}))

    assert (first["read"], second["read"]) == (0, first["written"])
    assert first["written"] > 100
    assert first["hour"] == 0
    assert 0 < second["written"] == second["hour"] < 20
    assert third["read"] - (second["read"] + second["written"]) in (0, 1)  # rounded once
    assert third["fresh"] > 0


CHANGES: list[tuple[str, Body, bool]] = [
    ("nothing", {}, True),
    ("the system as blocks", {"system": [{"type": "text", "text": "s"}]}, True),
    ("the system", {"system": "other"}, False),
    ("the tools", {"tools": [{"name": "g", "input_schema": {}}]}, False),
    ("the order of a schema", {"tools": [{"name": "f", "input_schema": {"b": 1, "a": 1}}]}, False),
    ("the order of a tool", {"tools": [{"input_schema": {"a": 1, "b": 1}, "name": "f"}]}, True),
    ("the model", {"model": "other"}, False),
]


@pytest.mark.parametrize(
    ("change", "hit"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES]
)
def test_anthropic_reads_nothing_behind_a_change(change: Body, hit: bool) -> None:
    fields: Body = {"system": "s", "tools": [{"name": "f", "input_schema": {"a": 1, "b": 1}}]}
    with Loopback() as server:
        ask_claude(server, claude(marked(WORD), **fields))
        assert bool(ask_claude(server, claude(marked(WORD), **fields | change))["read"]) == hit


def test_anthropic_counts_a_mark_inside_a_result() -> None:
    result: Body = {"type": "tool_result", "tool_use_id": "t", "content": [marked(WORD)]}
    body = claude({"type": "text", "text": "go"})
    body["messages"] += [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        },
        {"role": "user", "content": [result]},
    ]
    with Loopback() as server:
        assert ask_claude(server, body)["written"] > 100
        assert ask_claude(server, body)["read"] > 100
        del result["content"][0]["cache_control"]
        result["cache_control"] = {"type": "ephemeral"}
        assert ask_claude(server, body)["read"] > 100


def test_mark_of_the_whole_request_is_on_its_last_block() -> None:
    blocks = [{"type": "text", "text": WORD}, {"type": "text", "text": "more"}]
    with Loopback() as server:
        ask_claude(server, claude(*blocks, cache_control={"type": "ephemeral"}))

        assert ask_claude(server, claude(marked(WORD)))["read"] == 0


MANY = [f"t{n}" for n in range(LOOKBACK + 5)]
CALLS: dict[str, tuple[Body, Body, list[Body], list[Body]]] = {
    "anthropic": (
        {"type": "text", "text": WORD},
        {"cache_control": {"type": "ephemeral"}},
        [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in MANY],
        [{"type": "tool_result", "tool_use_id": name, "content": "ok"} for name in MANY],
    ),
    "bedrock": (
        {"text": WORD},
        {},
        [{"toolUse": {"toolUseId": name, "name": "f", "input": {}}} for name in MANY],
        [{"toolResult": {"toolUseId": name, "content": [{"text": "ok"}]}} for name in MANY],
    ),
}


@pytest.mark.parametrize("api", CALLS)
def test_many_parallel_calls_are_within_reach(api: str) -> None:
    text, mark, calls, results = CALLS[api]
    point = [{"cachePoint": {"type": "default"}}] if api == "bedrock" else []
    with Loopback() as server:
        client = Client(
            server=server, api=api, body={"toolConfig": {"tools": [{}]}} if point else {}
        )
        client.array = [{"role": "user", "content": [text | mark, *point]}]
        client.send()
        client.array = [
            {"role": "user", "content": [text]},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": [*results[:-1], results[-1] | mark, *point]},
        ]
        assert read(api, client.send().json) >= 100
        texts = [{"role": "user", "content": [text]}]
        for _ in range(LOOKBACK):
            texts += [{"role": "assistant", "content": [text]}, {"role": "user", "content": [text]}]
        texts[-1] = {"role": "user", "content": [text | mark, *point]}
        client.array = texts
        assert read(api, client.send().json) == 0


def test_bedrock_reads_nothing_with_other_tools() -> None:
    blocks: list[Body] = [{"text": WORD}, {"cachePoint": {"type": "default"}}]
    with Loopback() as server:
        client = Client(server=server, api="bedrock", array=[{"role": "user", "content": blocks}])
        client.body = {"toolConfig": {"tools": [{"toolSpec": {"name": "f"}}]}}
        client.send()
        assert read("bedrock", client.send().json) > 100
        client.body = {"toolConfig": {"tools": [{"toolSpec": {"name": "g"}}]}}
        assert read("bedrock", client.send().json) == 0


def test_gemini_tells_nothing_where_nothing_was_cached() -> None:
    with Loopback() as server:
        usage = Client(server=server, api="gemini").prompt(WORD).json["usageMetadata"]

    assert "cachedContentTokenCount" not in usage


def test_bedrock_reads_at_cache_points() -> None:
    point = {"cachePoint": {"type": "default"}}
    with Loopback() as server:
        client = Client(
            server=server,
            api="bedrock",
            array=[{"role": "user", "content": [{"text": WORD}, point]}],
        )
        usages = [client.send().json["usage"] for _ in range(2)]

    assert [usage["cacheReadInputTokens"] > 100 for usage in usages] == [False, True]
    assert [usage["cacheWriteInputTokens"] > 100 for usage in usages] == [True, False]


def test_refused_request_is_not_remembered() -> None:
    with Loopback() as server:
        body = claude(marked(WORD))
        assert ask(server, PATHS["anthropic"], {**body, "colour": "red"}).status == 400
        assert ask_claude(server, body)["read"] == 0


# --- How much comes back

ROUNDS: list[Body] = [
    {
        "blocks": [
            {"thinking": "one"},
            {"redacted": True},
            {"call": {"name": "f", "raw": '{"b": 1, "a": 2}'}},
        ]
    },
    {"blocks": [{"thinking": ""}, {"text": "Done."}]},
]


def test_all_comes_back_from_a_client_that_loses_nothing() -> None:
    with Loopback(ROUNDS) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()
        client.prompt()

        issued, returned = kept(server.requests)
    assert issued == returned == Counter(seal=3, reasoning=2, id=1, arguments=1)


def test_thoughts_of_gemini_are_counted_apart_from_its_text() -> None:
    blocks: list[Body] = [{"thinking": "x"}, {"text": "a"}, {"call": {"name": "f"}}]
    with Loopback([{"blocks": blocks}, {"text": "b"}]) as server:
        Client(server=server, api="gemini").prompt()

        assert kept(server.requests)[1] == Counter(seal=1, reasoning=1, id=1, arguments=1)


def test_what_is_lost_is_counted() -> None:
    with Loopback(ROUNDS) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()
        del client.array[1]["content"][0]
        client.array[1]["content"][-1]["input"] = {"a": 2, "b": 1}
        client.prompt()

        issued, returned = kept(server.requests)
    assert issued - returned == Counter(seal=1, reasoning=1, arguments=1)


def test_what_another_model_issued_does_not_count() -> None:
    with Loopback(ROUNDS) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()
        client.body = {"model": "other"}
        client.prompt()

        assert kept(server.requests) == (Counter(), Counter())


def test_other_apis_are_counted_apart() -> None:
    script = [{"calls": [{"name": "f", "raw": "{ }"}]}, {"text": "Done."}, *ROUNDS]
    with Loopback(script) as server:
        for api in ("openai", "anthropic"):
            Client(server=server, api=api).prompt()

        first, second = server.requests[:2], server.requests
    assert kept(first) == (Counter(id=1, arguments=1),) * 2
    assert kept(second) == (Counter(seal=2, reasoning=1, id=1, arguments=1),) * 2


def test_text_as_input_returns_nothing() -> None:
    with Loopback([ROUNDS[1]]) as server:
        for _ in range(2):
            ask(server, PATHS["responses"], {"model": "m", "input": "hi"})

        assert kept(server.requests)[1] == Counter()


def test_server_keeps_what_it_issued_with_the_request() -> None:
    with Loopback([*ROUNDS, {"status": 500}]) as server:
        client = Client(server=server, api="anthropic")
        client.prompt()
        client.prompt()

        assert [list(each.issued) for each in server.requests] == [
            client.array[1:2],
            client.array[3:4],
            [],
        ]
        assert client.array[1]["content"][0]["thinking"] == "one"


@pytest.mark.parametrize("api", PATHS)
def test_answers_depend_on_script_and_requests_alone(api: str) -> None:
    """The same again is the same, byte for byte, signatures and ids included."""
    blocks: list[Any] = [{"text": "Hm."}, {"call": {"name": "f", "args": {}}}]
    if api not in ("openai", "mistral"):
        blocks.insert(0, {"thinking": "x"})
    if api == "mistral":
        blocks = [{"thinking": "x"}, {"text": "Hm."}]

    def run() -> list[bytes]:
        with Loopback([{"blocks": blocks}]) as server:
            client = Client(server=server, api=api)
            client.array += prompt(api)[client.name]
            got = client.send()
            assert copy.copy(assemble(api, got))
            return [got.body, *(each.body for each in server.requests)]

    assert run() == run()
