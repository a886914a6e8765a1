"""Chat, Responses, Ollama: responses as they come to the messages that go back."""

from __future__ import annotations

import json
import re
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.errors import InvalidResponse
from retention.model import Usage
from retention.providers.openai_response import describe_error, read_usage
from tests.loopback import Loopback, Strictness
from tests.loopback_client import PATHS, ask, prompt, streaming
from tests.providers.bodies import (
    COMMENT,
    PING,
    assert_prefixes_are_incomplete,
    bodies,
    expected,
    recut,
    show,
)
from tests.providers.helpers import parse, provider

APIS = ("openai", "deepseek", "mistral", "responses", "ollama")
BODIES = {(api, name): body for api in APIS for name, body in bodies(api).items()}
STREAMS = [key for key in BODIES if key[1].endswith(".sse")]
LINES = [key for key in BODIES if key[1].endswith(".ndjson")]


def assemble(api, name):
    return provider(api).assemble(BODIES[api, name])


@pytest.mark.parametrize(("api", "name"), BODIES)
def test_f5_body_is_assembled(api, name):
    assert show(assemble(api, name)) == expected(api, name)


@pytest.mark.parametrize(("api", "name"), BODIES)
def test_element_is_read_as_one_of_the_assistant_and_is_plain_json(api, name):
    for element in assemble(api, name).elements:
        assert parse(api, element).role.value == "assistant"
        msgspec.json.decode(element)  # half of a pair, which Emacs refuses, is refused here too


@pytest.mark.parametrize(("api", "name"), STREAMS)
@settings(max_examples=20)
@given(data=st.data())
def test_stream_is_the_same_however_it_is_cut(api, name, data):
    body = data.draw(recut(BODIES[api, name], (COMMENT, PING)))

    assert show(provider(api).assemble(body)) == expected(api, name)


@pytest.mark.parametrize(("api", "name"), LINES)
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n", b"\n \r\n"])
def test_lines_are_the_same_whatever_ends_them(api, name, end):
    body = BODIES[api, name].replace(b"\r\n", b"\n").replace(b"\n", end)

    assert provider(api).assemble(body) == assemble(api, name)


@pytest.mark.parametrize(
    ("api", "name", "end"),
    [
        ("openai", "calls.sse", b'"finish_reason":"tool_calls"}]}'),
        ("openai", "done_only.sse", b"[DONE]"),
        ("openai", "kimi_crlf.sse", b'"cached_tokens":64}}]}'),
        ("openai", "document.json", b"}\n}"),
        ("deepseek", "text.sse", b'"prompt_cache_miss_tokens":44}}'),
        ("mistral", "thinking.sse", b'"completion_tokens":7}}'),
        ("responses", "reasoning_calls.sse", b'"total_tokens":7581}}}'),
        ("responses", "document.json", b"}\n}"),
        ("ollama", "thinking_calls.ndjson", b'"eval_duration":1000000}'),
        ("ollama", "document_pretty.json", b"\n}"),
    ],
)
def test_f8_cut_body_is_incomplete(api, name, end):
    assert_prefixes_are_incomplete(provider(api), BODIES[api, name], end)


# Bytes


def test_f5_streamed_arguments_are_the_string_that_the_model_wrote():
    (element,) = assemble("openai", "calls.sse").elements

    assert rb'"arguments":"{\"path\": \"a.txt\",  \"limit\":1e3, \"deep\":{\"x\":null}}"' in element
    assert rb'"arguments":"{\"path\":\"b\\u00e9.txt\"}"' in element


def test_f5_streamed_calls_of_ollama_keep_their_bytes():
    (element,) = assemble("ollama", "thinking_calls.ndjson").elements

    assert b'"arguments":{"p": "a", "n": 1e3,"x":null,"y":[1.0, -0]}}},' in element
    assert rb'{"function":{"name":"list","arguments":{"d":"\ufffd"}}}]}' in element


@pytest.mark.parametrize(
    ("api", "name", "start", "end"),
    [
        ("openai", "document.json", b'{\n        "role"', b'"audio": null\n      }'),
        ("ollama", "document.json", b'{"role"', b'"mood":1}'),
        ("ollama", "document_pretty.json", b'{\n    "role"', b'"Hi"\n  }'),
    ],
)
def test_f5_document_keeps_the_bytes_of_its_message(api, name, start, end):
    body = BODIES[api, name]
    own = body[body.index(start) : body.index(end) + len(end)]

    (element,) = assemble(api, name).elements

    assert element == own.replace(rb"\ud800", rb"\ufffd").replace(rb"\udc00", rb"\ufffd")


def test_f5_items_keep_their_bytes_but_for_the_status():
    body = BODIES["responses", "document.json"]
    message = body[body.index(b'{\n      "type": "message"') : body.index(b"[]}]\n    }") + 10]

    reasoning, said, call = assemble("responses", "document.json").elements

    assert reasoning in body
    assert said == message.replace(b'      "status": "completed",\n', b"").replace(
        rb"\udc00", rb"\ufffd"
    )
    assert call + b"," not in body
    assert call[:-1] + b', "status": "completed"}' in body


def test_streamed_item_keeps_its_bytes():
    body = BODIES["responses", "surrogates.sse"]

    (element,) = assemble("responses", "surrogates.sse").elements

    assert rb'"text":"a\ud83d\ude00 \ufffdb \\ud800","rank":1e3}' in element
    assert element.replace(rb" \ufffdb", rb" \ud800b")[:30] in body


# What is no response


OTHER = [
    b"",
    b"<html><body>502 Bad Gateway</body></html>",
    b'{"error":{"message":"Incorrect API key","type":"invalid_request_error"}}',
    b'{"error":"model not found"}',
    b'data: {"error":{"message":"overloaded"}}\n\n',
    b'event: error\ndata: {"type":"error","error":{"message":"overloaded"}}\n\n',
    b": keep-alive\n\n",
    b"data: [DONE]\n\n",
    b"[]",
    b"null",
    b'{"type":"message","role":"assistant","content":[{"type":"text","text":"Hi"}]}',
    b'{"candidates":[{"content":{"role":"model","parts":[{"text":"Hi"}]}}]}',
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("body", OTHER)
def test_other_bodies_are_refused(api, body):
    with pytest.raises(InvalidResponse):
        provider(api).assemble(body)


@pytest.mark.parametrize("api", APIS)
def test_bodies_of_another_shape_are_refused(api):
    chat = ("openai", "deepseek", "mistral")
    for (other, _), body in BODIES.items():
        if other != api and not (other in chat and api in chat):
            with pytest.raises(InvalidResponse):
                provider(api).assemble(body)


@pytest.mark.parametrize(
    ("api", "name", "old", "new"),
    [
        ("openai", "calls.sse", b"data: {", b"data: {{"),
        ("openai", "calls.sse", b'"name":"read"', b'"name":null'),  # no message of the API
        ("openai", "calls.sse", b'"choices":[', b'"choices":[7,'),
        ("responses", "reasoning_calls.sse", b'"name":"read"', b'"name":null'),
        ("responses", "text.sse", b'"obfuscation":"xq"', b'"obfuscation":"xq'),
        ("responses", "text.sse", b'"output_index":0', b'"output_index":"0"'),
        ("ollama", "thinking_calls.ndjson", b'"name":"read"', b'"name":7'),
        ("ollama", "thinking_calls.ndjson", b"1e3", b"1e999"),  # Emacs cannot read it
        ("ollama", "text.ndjson", "“wörld".encode(), b'"'),
    ],
)
def test_damaged_response_is_incomplete(api, name, old, new):
    head, gap, rest = BODIES[api, name].partition(b"\n")
    assert old in rest

    response = provider(api).assemble(head + gap + rest.replace(old, new))

    assert (response.complete, response.elements) == (False, ())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"message": "Boom", "code": 1}, "Boom"),
        ({"message": "", "code": 502}, '{"message":"","code":502}'),
        ("Boom", "Boom"),
        ("\ud800!", "\ufffd!"),
        (None, ""),
        ({}, ""),
        ("", ""),
    ],
)
def test_error_is_told_in_its_own_words(error, words):
    assert describe_error(error) == words


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b'{"type":"error","code":"server_error","message":"Boom"}', "Boom"),
        (b'{"type":"error","code":"server_error","message":null}', "server_error"),
        (b'{"type":"error","error":{"message":"Boom"},"message":"Other"}', "Boom"),
        (b'{"type":"error"}', "error"),
    ],
)
def test_f8_error_event_of_responses_is_an_error_whatever_it_says(event, words):
    body = BODIES["responses", "text.sse"].replace(
        b"event: response.completed\n", b"data: %s\n\n" % event
    )

    response = provider("responses").assemble(body)

    assert (response.error, response.complete) == (words, False)


def test_items_without_an_index_stand_as_they_came():
    body = re.sub(rb'"output_index":\d,', b"", BODIES["responses", "reasoning_calls.sse"])

    assert show(provider("responses").assemble(body)) == expected("responses", "reasoning_calls")


# Usage


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (None, None),
        ({}, Usage()),
        ([], None),
        ({"prompt_tokens": "many"}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(input=0, output=0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, Usage(input=5)),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, Usage(cached=0)),
        ({"prompt_cache_hit_tokens": 0}, Usage(cached=0)),
        (  # a provider that counts reasoning apart, and one that does not
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "total_tokens": 10,
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(input=5, output=5),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 5,
                "total_tokens": 10,
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(input=5, output=5),
        ),
    ],
)
def test_c2_usage_is_none_where_nothing_is_said(reported, usage):
    assert read_usage(reported) == usage


def test_c2_mistral_leaves_out_a_count_of_0():
    body = BODIES["mistral", "text.sse"]

    assert provider("mistral").assemble(body).usage.cached == 0
    assert provider("openai").assemble(body).usage.cached is None
    assert provider("mistral").assemble(BODIES["mistral", "cut.sse"]).usage is None


# Together with the loopback provider


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("api", [*APIS, "copilot"])
def test_r1_what_the_loopback_provider_answers_is_read(api, streamed):
    text, calls = "Ĝis — “naïve” 🙂\r\nsecond line, long enough", ["ĝ/λ", "b"]
    answer = {"text": text, "calls": [{"name": "read", "args": {"p": p}} for p in calls]}
    path, body = streaming(api, prompt(api)) if streamed else (PATHS[api], prompt(api))
    body["stream_options"] = {"include_usage": True}
    with Loopback([answer], strictness=Strictness(exclusive_content=False)) as server:
        got = ask(server, path, body)

    response = provider(api).assemble(got.body)

    assert (response.complete, response.error) == (True, "")
    assert response.usage.input > 0
    said = json.dumps([json.loads(element) for element in response.elements], ensure_ascii=False)
    assert json.dumps(text, ensure_ascii=False) in said
    found = [parse(api, element) for element in response.elements]
    kinds = [part.kind.value for message in found for part in message.parts]
    assert kinds == ["text", "call", "call"]


@pytest.mark.parametrize("api", [*APIS, "copilot"])
def test_f8_what_the_loopback_provider_breaks_off_is_incomplete(api):
    path, body = streaming(api, prompt(api))
    with Loopback([{"text": "Something longer than a delta", "error": "Boom"}]) as server:
        response = provider(api).assemble(ask(server, path, body).body)

    assert (response.complete, response.elements, response.error) == (False, (), "Boom")


# Speed


DELTAS = {
    "openai": ("text.sse", b'"content":" \xf0'),
    "deepseek": ("text.sse", b'"reasoning_content":"\xe8'),
    "mistral": ("thinking.sse", b'"text":"me."'),
    "responses": ("text.sse", b'"delta":"Hello, "'),
    "ollama": ("text.ndjson", b'"content":"Hello, "'),
}


@pytest.mark.parametrize("size", [100_000, 5_000_000])
@pytest.mark.parametrize("api", APIS)
def test_assembly_is_fast(api, size):
    """100 KB within 5 ms, 5 MB within 150 ms; twice that here, for slower machines."""
    name, mark = DELTAS[api]
    body = BODIES[api, name]
    end = b"\n" if api == "ollama" else b"\n\n"
    delta = next(event for event in body.split(end) if mark in event) + end
    body = body.replace(delta, delta * (size // len(delta)))
    taken = []

    for _ in range(5):
        start = time.process_time()
        response = provider(api).assemble(body)
        taken.append(time.process_time() - start)

    assert response.complete
    assert min(taken) < (0.01 if size == 100_000 else 0.3)
