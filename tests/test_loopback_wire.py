"""Answers on the wire: each API, whole and streamed, however the bytes are split."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.loopback import Loopback, Strictness
from tests.loopback.quirks import QUIRKS
from tests.loopback_client import (
    PATHS,
    STREAMS,
    ask,
    iter_frames,
    iter_sse,
    prompt,
    read,
    read_stream,
    show,
    streaming,
)

TEXT = "Ĝis — “naïve” 日本語 🙂\r\nsecond line, long enough for several deltas"
CALLS = [
    {"name": "read", "args": {"path": "ĝ/λ.txt", "depth": 2}},
    {"name": "read", "args": {"path": "other\r\nline", "flags": [True, None, {}]}},
]
EXPECTED = (TEXT, [(call["name"], call["args"]) for call in CALLS])
BOTH = Strictness(exclusive_content=False)
CHUNKS = (1, 7, 120, None)
DONE = b"data: [DONE]\n\n"
ENDS = dict.fromkeys(("openai", "copilot", "openrouter", "deepseek", "mistral"), DONE)


@pytest.mark.parametrize("api", PATHS)
def test_document_holds_text_and_both_calls_of_one_tool(api: str) -> None:
    with Loopback([{"text": TEXT, "calls": CALLS}], strictness=BOTH) as server:
        got = ask(server, PATHS[api], prompt(api))

    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert read(api, got) == EXPECTED


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("api", STREAMS)
def test_stream_is_the_same_answer_at_every_chunk_size(api: str, chunk: int | None) -> None:
    path, body = streaming(api, prompt(api))
    with Loopback([{"text": TEXT, "calls": CALLS}], strictness=BOTH, chunk=chunk) as server:
        got = ask(server, path, body)

    assert got.status == 200
    assert read_stream(api, got) == EXPECTED
    assert got.body.endswith(ENDS.get(api, b""))


@pytest.mark.parametrize("api", STREAMS)
def test_stream_of_an_empty_answer_is_complete(api: str) -> None:
    path, body = streaming(api, prompt(api))
    with Loopback([{"text": ""}]) as server:
        assert read_stream(api, ask(server, path, body)) == ("", [])


def test_chunks_are_written_as_asked() -> None:
    """The chunks of the transfer encoding are the writes, so a client can see their size."""
    path, body = streaming("gemini", prompt("gemini"))
    with Loopback([{"text": TEXT}], chunk=7) as server:
        out = run_curl(server, path, body, "--raw")

    sizes = []
    while out:
        size, rest = out.split(b"\r\n", 1)
        sizes.append(int(size, 16))
        out = rest[sizes[-1] + 2 :]
    assert set(sizes[:-2]) == {7}
    assert sizes[-2] <= 7
    assert sizes[-1] == 0


CONTENT_TYPES = {
    "anthropic": "text/event-stream; charset=utf-8",
    "openai": "text/event-stream; charset=utf-8",
    "gemini": "text/event-stream",
    "gemini-array": "application/json; charset=UTF-8",
    "ollama": "application/x-ndjson",
    "bedrock": "application/vnd.amazon.eventstream",
}


@pytest.mark.parametrize(("api", "expected"), CONTENT_TYPES.items())
def test_stream_has_the_content_type_of_its_format(api: str, expected: str) -> None:
    path, body = streaming(api, prompt(api))
    with Loopback() as server:
        assert ask(server, path, body).headers["content-type"] == expected


def test_ollama_streams_unless_told_not_to() -> None:
    body = prompt("ollama")
    del body["stream"]
    with Loopback([{"text": TEXT}]) as server:
        assert read_stream("ollama", ask(server, PATHS["ollama"], body)) == (TEXT, [])


@pytest.mark.parametrize("asked", [True, False])
def test_chat_tells_usage_only_when_asked(asked: bool) -> None:
    path, body = streaming("openai", prompt("openai"))
    if asked:
        body["stream_options"] = {"include_usage": True}
    with Loopback() as server:
        chunks = [chunk for _, chunk in iter_sse(ask(server, path, body).body)]

    assert [bool(chunk.get("usage")) for chunk in chunks[-2:]] == [False, asked]
    assert all(("usage" in chunk) == asked for chunk in chunks)


@pytest.mark.parametrize("api", ["deepseek", "ollama", "gemini"])
def test_reasoning_comes_before_the_text(api: str) -> None:
    fields = {"deepseek": "reasoning_content", "ollama": "thinking", "gemini": "thought"}
    path, body = streaming(api, prompt(api))
    script = [{"text": "Yes.", "reasoning": "Let me ponder that."}] * 2
    with Loopback(script) as server:
        whole = ask(server, PATHS[api], prompt(api)).body.decode()
        stream = ask(server, path, body).body.decode()

    assert f'"{fields[api]}"' in whole
    assert 0 < stream.index(f'"{fields[api]}"') < stream.index("Yes.")


@pytest.mark.parametrize("api", ["openai"])
def test_reasoning_is_no_answer_where_there_is_none(api: str) -> None:
    with Loopback([{"text": "Yes.", "reasoning": "Hm."}]) as server:
        got = ask(server, PATHS[api], prompt(api))

    assert got.status == 500
    assert b"script:" in got.body


ERROR_EVENTS = {
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}},
    "openai": {"error": {"message": "Busy", "type": "server_error", "param": None, "code": None}},
    "gemini": {"error": {"code": 503, "message": "Busy", "status": "UNAVAILABLE"}},
}


@pytest.mark.parametrize(("api", "expected"), ERROR_EVENTS.items())
def test_error_comes_after_the_text_of_a_stream(api: str, expected: object) -> None:
    path, body = streaming(api, prompt(api))
    with Loopback([{"text": TEXT, "calls": CALLS, "error": "Busy"}]) as server:
        got = ask(server, path, body)

    assert got.status == 200
    assert list(iter_sse(got.body))[-1][1] == expected
    assert b'"read"' not in got.body


def test_error_ends_the_streams_that_are_not_events() -> None:
    script = [{"text": "Hm", "error": "Busy"}] * 3
    with Loopback(script) as server:
        lines = ask(server, *streaming("ollama", prompt("ollama"))).body.splitlines()
        frames = list(iter_frames(ask(server, *streaming("bedrock", prompt("bedrock"))).body))
        array = json.loads(ask(server, *streaming("gemini-array", prompt("gemini"))).body)

    assert json.loads(lines[-1]) == {"error": "Busy"}
    assert frames[-1][0][":exception-type"] == "modelStreamErrorException"
    assert frames[-1][1] == {"message": "Busy"}
    assert array[-1]["error"]["message"] == "Busy"


def test_responses_error_is_followed_by_failure() -> None:
    with Loopback([{"text": "Hm", "error": "Busy"}]) as server:
        got = ask(server, *streaming("responses", prompt("responses")))

    (_, error), (name, failed) = list(iter_sse(got.body))[-2:]
    assert (error["message"], error["error"]["message"]) == ("Busy", "Busy")
    assert (name, failed["response"]["error"]["message"]) == ("response.failed", "Busy")


def test_ids_look_like_those_of_the_provider() -> None:
    patterns = {
        "anthropic": r'"id":"toolu_01[A-Za-z0-9]{22}"',
        "openai": r'"id":"call_[A-Za-z0-9]{24}"',
        "mistral": r'"id":"[A-Za-z0-9]{9}"',
        "responses": r'"id":"fc_[A-Za-z0-9]{48}","call_id":"call_[A-Za-z0-9]{24}"',
        "gemini": r'"id":"[A-Za-z0-9]{8}"',
        "bedrock": r'"toolUseId":"tooluse_[A-Za-z0-9]{22}"',
    }
    with Loopback([{"calls": CALLS}] * len(patterns)) as server:
        for api, pattern in patterns.items():
            assert len(found(pattern, ask(server, PATHS[api], prompt(api)).body)) == 2


def test_ids_never_repeat() -> None:
    with Loopback([{"calls": CALLS}] * 3) as server:
        bodies = [ask(server, PATHS["anthropic"], prompt("anthropic")).body for _ in range(3)]

    assert len({name for body in bodies for name in found(r'"toolu_\w+"', body)}) == 6


def test_gemini_calls_have_ids_only_if_the_flag_says_so() -> None:
    with Loopback([{"calls": CALLS}], strictness=Strictness(gemini_call_ids=False)) as server:
        got = ask(server, PATHS["gemini"], prompt("gemini"))

    assert b'"id"' not in got.body


@pytest.mark.parametrize("api", STREAMS)
def test_real_curl_reads_the_stream(api: str) -> None:
    path, body = streaming(api, prompt(api))
    with Loopback([{"text": TEXT, "calls": CALLS}], strictness=BOTH, chunk=1) as server:
        out = run_curl(server, path, body)

    assert show(api, STREAMS[api](out)) == EXPECTED


def run_curl(server: Loopback, path: str, body: object, *options: str) -> bytes:
    """The output of curl, which gets its body as gptel gives it."""
    command = ["curl", "--disable", "--silent", "--compressed", "-XPOST", "-N", *options]
    command += ["-HContent-Type: application/json", "--data-binary", "@-", server.url + path]
    data = json.dumps(body, ensure_ascii=False).encode()
    return subprocess.run(command, input=data, check=True, capture_output=True, timeout=20).stdout


def found(pattern: str, body: bytes) -> list[str]:
    return re.findall(pattern, body.decode())


@pytest.mark.parametrize("api", ["deepseek", "mistral", "openrouter"])
def test_relatives_tell_usage_without_being_asked(api: str) -> None:
    path, body = streaming(api, prompt(api))
    with Loopback() as server:
        chunks = [chunk for _, chunk in iter_sse(ask(server, path, body).body)]

    assert chunks[-1]["usage"]["completion_tokens"] > 0


def test_mistral_streams_calls_whole() -> None:
    deltas = [c["choices"][0]["delta"] for _, c in iter_sse(tell("mistral")) if c["choices"]]

    assert sum("tool_calls" in delta for delta in deltas) == len(CALLS)


# --- Quirks

CHATS = ("openai", "copilot", "openrouter", "deepseek", "mistral")


def tell(api: str, *quirks: str, usage: bool = False) -> bytes:
    """A stream of text and both calls with QUIRKS."""
    path, body = streaming(api, prompt(api))
    if usage:
        body["stream_options"] = {"include_usage": True}
    script = [{"text": TEXT, "calls": CALLS, "quirks": list(quirks)}]
    with Loopback(script, strictness=BOTH) as server:
        return ask(server, path, body).body


@pytest.mark.parametrize(("quirk", "api"), [(q, api) for q, apis in QUIRKS.items() for api in apis])
def test_stream_with_a_quirk_is_the_same_answer(quirk: str, api: str) -> None:
    plain, odd = tell(api), tell(api, quirk, usage=quirk == "no_usage")

    assert odd != plain
    assert show(api, STREAMS[api](odd)) == EXPECTED


def test_quirks_do_what_they_say() -> None:
    assert b": keep-alive\n\n" in tell("anthropic", "comments")
    assert b": keep-alive\r\n\r\n" in tell("gemini", "comments")
    assert b"\n" not in tell("anthropic", "crlf", "comments", "pings").replace(b"\r\n", b"")
    assert tell("anthropic").count(b"event: ping") == 1
    assert tell("anthropic", "pings").count(b"event: ping") > 9
    assert b"[DONE]" not in tell("openai", "no_done")


@pytest.mark.parametrize("api", CHATS)
def test_usage_is_left_out_though_it_was_asked_for(api: str) -> None:
    assert b'"choices":[],"usage":{' in tell(api, usage=True)
    assert b'"choices":[],"usage":{' not in tell(api, "no_usage", usage=True)


def test_calls_come_together_whole() -> None:
    deltas = [c["choices"][0]["delta"] for _, c in iter_sse(tell("openai", "calls_together"))]
    (made,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]

    assert [json.loads(call["function"]["arguments"]) for call in made] == [
        call["args"] for call in CALLS
    ]


def test_call_goes_on_under_the_name_null() -> None:
    deltas = [c["choices"][0]["delta"] for _, c in iter_sse(tell("openai", "null_names"))]
    names = [call["function"]["name"] for d in deltas for call in d.get("tool_calls", ())]

    assert set(names) == {"read", "null"}
    assert names.count("read") == 2


@pytest.mark.parametrize(("api", "quirk"), [("ollama", "comments"), ("openai", "no_such")])
def test_quirk_that_an_api_does_not_have_is_an_error_of_the_script(api: str, quirk: str) -> None:
    assert b"script:" in tell(api, quirk)


@pytest.mark.parametrize("api", STREAMS)
def test_error_comes_before_any_call(api: str) -> None:
    path, body = streaming(api, prompt(api))
    with Loopback([{"text": "Hm", "calls": CALLS, "error": "Busy"}], strictness=BOTH) as server:
        got = ask(server, path, body)

    assert b"Hm" in got.body
    assert b"Busy" in got.body
    assert b'"read"' not in got.body
