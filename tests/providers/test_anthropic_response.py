"""Anthropic: the bodies of responses to the messages that they hold."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retention.errors import InvalidResponse
from tests.providers.bodies import (
    COMMENT,
    PING,
    assert_prefixes_are_incomplete,
    bodies,
    expected,
    recut,
    show,
)
from tests.providers.helpers import provider

ANTHROPIC = provider("anthropic")
BODIES = bodies("anthropic")
SERVER = BODIES["server_tool.sse"]
STREAMS = sorted(name for name in BODIES if name.endswith(".sse"))


@pytest.mark.parametrize("name", BODIES)
def test_body_is_assembled(name):
    assert show(ANTHROPIC.assemble(BODIES[name])) == expected("anthropic", name)


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_stream_is_the_same_however_it_is_cut(name, data):
    """Data lines, comments, pings and line ends do not matter."""
    body = data.draw(recut(BODIES[name], (COMMENT, PING, b"data: [DONE]\n\n")))

    assert ANTHROPIC.assemble(body) == ANTHROPIC.assemble(BODIES[name])


def test_streamed_arguments_are_the_model_s_own_text():
    """The pieces of a call's input go back joined and otherwise untouched."""
    (element,) = ANTHROPIC.assemble(BODIES["thinking_calls.sse"]).elements

    text = rb'"input":{"path": "a.txt", "limit": 1e3, "deep": {"x": null, "y": [1.0, -0]}}}'
    assert text in element
    assert rb'"input":{"path":"b\u00e9.txt"}}' in element


def test_document_keeps_its_own_bytes():
    """Only the empty text block and the half of a pair are not as they came."""
    body = BODIES["document.json"]
    content = body[body.index(b"[") : body.index(b"],\n") + 1]
    content = content.replace(b'{"type": "text", "text": ""},\n    ', b"")
    content = content.replace(rb"\ud83d ", rb"\ufffd ")

    (element,) = ANTHROPIC.assemble(body).elements

    assert element == b'{"role":"assistant","content":' + content + b"}"


@pytest.mark.parametrize("name", ["thinking_calls.sse", "interleaved_crlf.sse"])
def test_cut_stream_is_incomplete(name):
    assert_prefixes_are_incomplete(ANTHROPIC, BODIES[name], b'"message_stop"}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>502 Bad Gateway</body></html>",
        b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
        b'event: error\ndata: {"type":"error","error":{"message":"Overloaded"}}\n\n',
        b'{"type":"message","content":"text"}',
        b'{"choices":[{"message":{"content":"Hi"}}]}',
        BODIES["document.json"][:-10],
    ],
)
def test_other_bodies_are_refused(body):
    with pytest.raises(InvalidResponse):
        ANTHROPIC.assemble(body)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"index":0,"delta"', b'"index":7,"delta"'),  # of a block that never began
        (b'"name":"read_file"', b'"name":null'),  # a call that cannot be one
        (b'"type":"thinking_delta"', b'"type":"dream_delta"'),
        (b"event: ping\n", b"data: {\n"),  # an event that cannot be read
        (b'{\\"path\\": \\"a', b'{\\"path\\": \\"a\\x'),
        (b"1e3", b"1e999"),  # Emacs cannot read it
        (b'"thinking":"Let me "', b'"thinking":null'),
        (b'"citations":[]', b'"citations":7'),
        (
            b'"content_block":{"type":"text","text":""}',
            b'"content_block":{"type":"text","text":[7]}',
        ),
    ],
)
def test_damaged_stream_is_incomplete(old, new):
    """What we do not understand is never taken for the provider's message."""
    body = BODIES["thinking_calls.sse"] if old in BODIES["thinking_calls.sse"] else SERVER
    assert old in body

    response = ANTHROPIC.assemble(body.replace(old, new))

    assert (response.complete, response.elements) == (False, ())


def test_error_makes_a_response_incomplete_whatever_follows():
    end = BODIES["text.sse"].split(b"\n\n")[-3:]

    response = ANTHROPIC.assemble(BODIES["error.sse"] + b"\n\n".join(end))

    assert (response.complete, response.finish) == (False, "end_turn")
    assert response.error == "Overloaded"


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_assembly_is_fast(size):
    """100 KB within 5 ms, 5 MB within 150 ms; twice that here, for slower machines."""
    event = BODIES["text.sse"].split(b"\n\n")[3] + b"\n\n"
    body = BODIES["text.sse"].replace(event, event * (size // len(event)))
    taken = []

    for _ in range(5):
        start = time.process_time()
        ANTHROPIC.assemble(body)
        taken.append(time.process_time() - start)

    assert min(taken) < (0.01 if size == 100_000 else 0.3)
