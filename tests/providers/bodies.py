"""Bodies of responses under fixtures/responses/, and how the tests of all APIs look at them.

A body is NAME.sse, .ndjson, .json or .bin, as a provider sends it; NAME.expected.json is the
`Response` that it holds, with elements as JSON values.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from retention.errors import InvalidResponse
from retention.providers import Provider, Response
from tests.providers.helpers import FIXTURES

COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def bodies(api: str) -> dict[str, bytes]:
    """The bodies of API by file name."""
    folder = FIXTURES / "responses" / api
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if not path.name.endswith(".expected.json")
    }


def expected(api: str, name: str) -> str:
    """What the body NAME of API holds, in the form of `show`."""
    path = FIXTURES / "responses" / api / f"{Path(name).stem}.expected.json"
    return json.dumps(json.loads(path.read_text()), indent=1, ensure_ascii=False)


def show(response: Response) -> str:
    """RESPONSE as indented JSON, in which keys keep their order."""
    value: dict[str, Any] = {
        "elements": [json.loads(element) for element in response.elements],
        "complete": response.complete,
        "finish": response.finish,
        "error": response.error,
        "usage": response.usage and msgspec.structs.asdict(response.usage),
    }
    return json.dumps(value, indent=1, ensure_ascii=False)


def recut(body: bytes, extra: tuple[bytes, ...] = (COMMENT,)) -> st.SearchStrategy[bytes]:
    """The events of BODY in other data lines, with EXTRA between them, with either line end."""
    events = [event for event in re.split(rb"\n\n+", body.replace(b"\r\n", b"\n")) if event.strip()]

    @st.composite
    def cut(draw: st.DrawFn) -> bytes:
        pieces = []
        for event in events:
            pieces.append(draw(st.sampled_from((b"", *extra))))
            pieces.append(_fold(event, draw(st.integers(0, 3))) + b"\n\n")
        ends = draw(st.sampled_from((b"\n", b"\r\n")))
        return b"".join(pieces).replace(b"\n", ends)

    return cut()


def _fold(event: bytes, times: int) -> bytes:
    """EVENT with up to TIMES breaks of its data line, where JSON may have white space."""
    places = [found.end() for found in re.finditer(rb'(?<=[\]}"\d]),(?="[a-zA-Z_]+":)', event)]
    for place in sorted(places[:times], reverse=True):
        event = event[:place] + b"\ndata:" + event[place:]
    return event


def assert_prefixes_are_incomplete(provider: Provider, body: bytes, end: bytes) -> None:
    """Of BODY cut at any byte there is a response or `InvalidResponse`; complete only after END."""
    reached = body.rindex(end) + len(end)
    whole = provider.assemble(body)
    for size in range(len(body)):
        try:
            response = provider.assemble(body[:size])
        except InvalidResponse:
            assert size < reached
            continue
        assert response.complete == (size >= reached), size
        assert response.elements == (whole.elements if response.complete else ())
