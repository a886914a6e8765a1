"""Bedrock: the bodies of responses to the messages that they hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from struct import pack, unpack_from
from zlib import crc32

import pytest

from retention.errors import InvalidResponse
from retention.providers.bedrock_response import iter_frames
from tests.providers.bedrock_bodies import FOLDER, START, STREAMS, block, event, stop
from tests.providers.bodies import assert_prefixes_are_incomplete, bodies, expected, show
from tests.providers.helpers import provider

BEDROCK = provider("bedrock")
BODIES = bodies("bedrock")


@pytest.mark.parametrize("name", STREAMS)
def test_fixture_is_what_its_source_says(name):
    assert (FOLDER / f"{name}.bin").read_bytes() == STREAMS[name]


@pytest.mark.parametrize("name", BODIES)
def test_body_is_assembled(name):
    assert show(BEDROCK.assemble(BODIES[name])) == expected("bedrock", name)


def test_streamed_arguments_are_the_model_s_own_text():
    (element,) = BEDROCK.assemble(BODIES["reasoning_calls.bin"]).elements

    assert rb'"input":{"path": "a.txt", "n": 1e3, "x": null}}}' in element
    assert rb'"input":{"path":"b\u00e9"}}}' in element


def test_document_keeps_its_own_bytes():
    """Only the blank text block and the half of a pair are not as they came."""
    body = BODIES["document.json"]
    message = body[body.index(b'{"role"') : body.index(b'},\n "stopReason"')]
    message = message.replace(b'{"text": " "},\n   ', b"").replace(rb"\udead", rb"\ufffd")

    assert BEDROCK.assemble(body).elements == (message,)


def seal(headers: bytes, payload: bytes) -> bytes:
    """The frame of packed HEADERS and PAYLOAD."""
    prelude = pack(">II", 16 + len(headers) + len(payload), len(headers))
    whole = prelude + pack(">I", crc32(prelude)) + headers + payload
    return whole + pack(">I", crc32(whole))


def test_halves_of_a_pair_meet():
    headers = block(0, {"text": ""})[12:].split(b"{")[0]
    deltas = [
        seal(headers, rb'{"contentBlockIndex":0,"delta":{"text":"%b"}}' % escape)
        for escape in (rb"\ud83d", rb"\ude00", rb"\ud83d")
    ]

    assert BEDROCK.assemble(START + b"".join(deltas) + stop("end_turn")).elements == (
        '{"role":"assistant","content":[{"text":"😀\ufffd"}]}'.encode(),
    )


def test_headers_of_other_types_are_skipped():
    """Bools, numbers, bytes, a time and a uuid; one of an unknown type ends the headers."""
    values = [(0, b""), (1, b""), (2, b"\1"), (3, b"\1" * 2), (4, b"\1" * 4), (5, b"\1" * 8)]
    values += [(6, b"\0\3abc"), (8, b"\1" * 8), (9, b"\1" * 16)]
    headers = b"".join(b"\1n" + bytes([kind]) + value for kind, value in values)
    headers += b"\1t\7\0\2ok" + b"\1u\x2a" + b"\1v\7\0\2no"

    assert list(iter_frames(seal(headers, b"{}"))) == [({"t": "ok"}, b"{}")]


@pytest.mark.parametrize("name", ["reasoning_calls.bin", "no_metadata.bin"])
def test_cut_stream_is_incomplete(name):
    """What comes behind the end of the message, its usage, may be missing."""
    body = BODIES[name]
    (ending,) = (
        seal(body_headers, payload)
        for body_headers, payload in raw_frames(body)
        if b"messageStop" in body_headers
    )

    assert_prefixes_are_incomplete(BEDROCK, body, ending)


def raw_frames(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Packed headers and payload of each frame of BODY."""
    at = 0
    while at < len(body):
        total, size = unpack_from(">II", body, at)
        yield body[at + 12 : at + 12 + size], body[at + 12 + size : at + total - 4]
        at += total


@pytest.mark.parametrize("at", range(0, len(STREAMS["no_metadata"]), 3))
def test_damaged_frame_ends_the_stream(at):
    """A byte that changed on the way is never taken for the provider's."""
    body = bytearray(STREAMS["no_metadata"])
    body[at] ^= 0x20

    try:
        response = BEDROCK.assemble(bytes(body))
    except InvalidResponse:
        return
    assert (response.complete, response.elements) == (False, ())


@pytest.mark.parametrize(
    "delta",
    [
        {"text": None},
        {"toolUse": {"input": "{}"}},  # a call that never began
        {"toolUse": {"status": "x"}},
        {"reasoningContent": {"text": "a"}, "text": "b"},  # two kinds in one block
        {"image": {"source": {"bytes": ""}}},
    ],
)
def test_unknown_block_makes_a_response_incomplete(delta):
    response = BEDROCK.assemble(START + block(0, delta) + stop("end_turn"))

    assert (response.complete, response.elements) == (False, ())


@pytest.mark.parametrize(
    ("start", "delta"),
    [
        ({"toolResult": {"toolUseId": "tooluse_A"}}, {"toolUse": {"input": "{}"}}),
        ({"toolUse": {"toolUseId": "tooluse_A", "name": "now"}}, {"text": "a"}),
    ],
)
def test_only_calls_have_a_start(start, delta):
    response = BEDROCK.assemble(START + block(0, delta, start=start) + stop("end_turn"))

    assert (response.complete, response.elements) == (False, ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html></html>",
        b'{"message":"The security token included in the request is invalid."}',
        b'{"output":{"message":{"role":"assistant"}}}',
        STREAMS["exception"].removeprefix(START),
        stop("end_turn"),
        BODIES["document.json"][:-10],
    ],
)
def test_other_bodies_are_refused(body):
    with pytest.raises(InvalidResponse):
        BEDROCK.assemble(body)


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_assembly_is_fast(size):
    """100 KB within 5 ms, 5 MB within 150 ms; twice that here, for slower machines."""
    delta = event("contentBlockDelta", contentBlockIndex=0, delta={"text": "some words"})
    body = START + delta * (size // len(delta)) + stop("end_turn")
    taken = []

    for _ in range(5):
        start = time.process_time()
        BEDROCK.assemble(body)
        taken.append(time.process_time() - start)

    assert min(taken) < (0.01 if size == 100_000 else 0.3)
