"""Bodies of responses that were damaged anywhere: read, or refused, and nothing else."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.errors import InvalidResponse
from tests.providers.bodies import bodies
from tests.providers.helpers import provider

APIS = ("anthropic", "bedrock", "gemini")
VALUE = re.compile(rb'(?<=:)(?= *("(?:[^"\\]|\\.)*"|[0-9.]+|null|\[[^\[\]]*\]|\{[^{}]*\}))')
ODD = [b"null", b"{}", b"[]", b'""', b"7", b"1e999", b'"\\ud83d"', b'{"a":1}', b"[[]]", b"\xff"]
BREAKS = [b"", b'"', b"{", b"}", b"]", b",", b"\n", b"\r\n\r\n", b"data: ", b"\\ud800", b"\x00"]


@st.composite
def damaged(draw: st.DrawFn, api: str) -> bytes:
    """A body of API with other values in it, or pieces of it replaced."""
    body = draw(st.sampled_from(sorted(bodies(api).values())))
    for _ in range(draw(st.integers(1, 3))):
        values = [found.span(1) for found in VALUE.finditer(body)]
        if values and draw(st.booleans()):
            start, end = draw(st.sampled_from(values))
            body = body[:start] + draw(st.sampled_from(ODD)) + body[end:]
        else:
            start = draw(st.integers(0, len(body)))
            end = start + draw(st.integers(0, 30))
            body = body[:start] + draw(st.sampled_from(BREAKS)) + body[end:]
    return body


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_body_is_read_or_refused(api, data):
    """Whatever comes, an element is a message of the API, and can be edited as one."""
    chosen = provider(api)
    try:
        response = chosen.assemble(data.draw(damaged(api)))
    except InvalidResponse:
        return

    assert response.complete or response.elements == ()
    assert msgspec.json.encode(response)
    for element in response.elements:
        message = chosen.parse(element)
        assert message.raw == element.decode().encode()
        for edited in (chosen.strip(element), chosen.fill(element)):
            assert not edited or chosen.parse(edited).parts == message.parts
        assert chosen.parse(chosen.rename(element, message.ids)).parts == message.parts
