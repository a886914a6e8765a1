"""Gemini: the bodies of responses to the contents that they hold."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.errors import InvalidResponse
from tests.providers.bodies import (
    assert_prefixes_are_incomplete,
    bodies,
    expected,
    recut,
    show,
)
from tests.providers.helpers import provider

GEMINI = provider("gemini")
BODIES = bodies("gemini")
STREAMS = sorted(name for name in BODIES if name.endswith(".sse"))


@pytest.mark.parametrize("name", BODIES)
def test_body_is_assembled(name):
    assert show(GEMINI.assemble(BODIES[name])) == expected("gemini", name)


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=20)
@given(data=st.data())
def test_stream_is_the_same_however_it_is_cut(name, data):
    """Data lines, comments and line ends do not matter.

    Parts keep their own bytes, so the places where a data line was broken show as white space.
    """
    response = GEMINI.assemble(data.draw(recut(BODIES[name])))

    assert show(response) == show(GEMINI.assemble(BODIES[name]))


def test_stream_of_any_form_gives_the_same_parts():
    """Server-sent events, an array, and an array whose closing bracket is missing."""
    names = ("thought_calls.sse", "thought_calls_array.json", "array_open.json")

    assert len({show(GEMINI.assemble(BODIES[name])) for name in names}) == 1


def test_document_keeps_its_own_bytes():
    """Only the empty part is not as it came."""
    body = BODIES["document.json"]
    content = body[body.index(b'{\n        "parts"') : body.index(b',\n      "finishReason"')]

    assert GEMINI.assemble(body).elements == (content.replace(b'{"text": ""},\n          ', b""),)


def test_streamed_parts_keep_their_own_bytes():
    """Numbers, escapes and unknown members of a part are as the API wrote them."""
    part = rb'{"functionCall": {"name":"f","args":{"n":1E3,"t":"\u0041"}}, "x":null}'
    chunks = [b'{"candidates":[{"content":{"parts":[%b]},"finishReason":"STOP"}]}' % part] * 2

    (element,) = GEMINI.assemble(b"[" + b",".join(chunks) + b"]").elements

    assert element == b'{"parts":[%b,%b],"role":"model"}' % (part, part)


@pytest.mark.parametrize("name", ["thought_calls.sse", "text.sse"])
def test_cut_stream_is_incomplete(name):
    body = BODIES[name]

    assert_prefixes_are_incomplete(GEMINI, body, body.rstrip()[-20:])


def test_cut_array_is_incomplete():
    """Complete without its closing bracket, but never without its last chunk."""
    body = BODIES["thought_calls_array.json"]

    assert_prefixes_are_incomplete(GEMINI, body, body[-20:-3])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"<html></html>",
        b'{"error":{"code":400,"message":"No.","status":"INVALID_ARGUMENT"}}',
        b'[{"error":{"code":503,"message":"No.","status":"UNAVAILABLE"}}]',
        b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
        BODIES["document.json"][:-10],
    ],
)
def test_other_bodies_are_refused(body):
    with pytest.raises(InvalidResponse):
        GEMINI.assemble(body)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"text":"I read "', b'"text":7'),
        (b'"parts":[{"text":"I', b'"parts":{"text":"I'),
        (b'"name":"read"', b'"name":null'),
        (b'"n":1.0', b'"n":1e999'),  # Emacs cannot read it
    ],
)
def test_damaged_stream_is_incomplete(old, new):
    """What we do not understand is never taken for the provider's content."""
    body = BODIES["thought_calls.sse"]
    assert old in body

    response = GEMINI.assemble(body.replace(old, new))

    assert (response.complete, response.elements) == (False, ())


def test_error_makes_a_response_incomplete_whatever_follows():
    response = GEMINI.assemble(BODIES["error.sse"] + BODIES["text.sse"])

    assert (response.complete, response.finish) == (False, "STOP")
    assert response.error == "The model is overloaded."


def test_null_is_no_content():
    last = b'data: {"candidates":[{"content":null,"finishReason":"STOP"}]}\n\n'

    response = GEMINI.assemble(BODIES["no_finish.sse"] + last)

    assert (response.complete, len(response.elements)) == (True, 1)


@pytest.mark.parametrize("form", ["sse", "array"])
@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_assembly_is_fast(form, size):
    """100 KB within 5 ms, 5 MB within 150 ms; twice that here, for slower machines."""
    events = BODIES["text.sse"].split(b"\r\n\r\n")
    events = [events[0]] * (size // len(events[0])) + events
    body = b"\r\n\r\n".join(events)
    if form == "array":
        body = b"[" + b"\r\n,\r\n".join(event[6:] for event in events if event) + b"]"
    taken = []

    for _ in range(5):
        begun = time.process_time()
        GEMINI.assemble(body)
        taken.append(time.process_time() - begun)

    assert min(taken) < (0.01 if size == 100_000 else 0.3)
