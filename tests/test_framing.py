"""The frame format, with its cases in a table."""

from __future__ import annotations

import pytest

from retention.errors import FramingError
from retention.framing import MAX_HEADER, Decoder, encode

LIMIT = 100


def decode(data: bytes) -> list[bytes]:
    decoder = Decoder(LIMIT)
    decoder.feed(data)
    bodies = []
    while (body := decoder.next_body()) is not None:
        bodies.append(body)
    return bodies


def test_encode_emits_content_length_alone():
    """jsonrpc.el recognizes a header only within 100 bytes."""
    assert encode(b"{}") == b"Content-Length: 2\r\n\r\n{}"


ACCEPTED = {
    "ours": b"Content-Length: 2\r\n\r\n{}",
    "lower case": b"content-length: 2\r\n\r\n{}",
    "no space": b"Content-Length:2\r\n\r\n{}",
    "spaces and tabs around": b"Content-Length: \t2 \t\r\n\r\n{}",
    "leading zeros": b"Content-Length: 0002\r\n\r\n{}",
    "another header before": b"Content-Type: a; b=c\r\nContent-Length: 2\r\n\r\n{}",
    "another header after": b"Content-Length: 2\r\nX: \xff\r\n\r\n{}",
    "a header without a value": b"X:\r\nContent-Length: 2\r\n\r\n{}",
    "a header of the full size": b"Content-Length: 2\r\nX:".ljust(MAX_HEADER - 4) + b"\r\n\r\n{}",
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_decode_accepts(data: bytes):
    assert decode(data) == [b"{}"]


REFUSED = {
    "no length": b"Content-Type: x\r\n\r\n",
    "no header at all": b"\r\n\r\n",
    "an empty line first": b"\r\nContent-Length: 2\r\n\r\n{}",
    "a line without a colon": b"Content-Length: 2\r\nhello\r\n\r\n{}",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "an empty length": b"Content-Length:\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a signed length": b"Content-Length: +2\r\n\r\n{}",
    "an underscore": b"Content-Length: 1_0\r\n\r\n",
    "a space inside": b"Content-Length: 1 0\r\n\r\n",
    "a fraction": b"Content-Length: 2.0\r\n\r\n{}",
    "hexadecimal": b"Content-Length: 0x2\r\n\r\n{}",
    "digits of another script": "Content-Length: ٢\r\n\r\n{}".encode(),
    "above the limit": b"Content-Length: 101\r\n\r\n",
    "a number of 900 digits": b"Content-Length: " + b"9" * 900 + b"\r\n\r\n",
    "line feeds alone": b"Content-Length: 2\n\n{}",
    "one line feed alone": b"Content-Length: 2\n",
    "a header that is too long": b"Content-Length: 2\r\nX:".ljust(MAX_HEADER - 3) + b"\r\n\r\n{}",
    "a header that never ends": b"X" * MAX_HEADER,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_decode_refuses(data: bytes):
    with pytest.raises(FramingError) as raised:
        decode(data)
    assert raised.value.code == "framing"


def test_decode_gives_several_bodies_in_order():
    assert decode(encode(b"a") + encode(b"") + encode(b"bc")) == [b"a", b"", b"bc"]


def test_decode_gives_the_bodies_before_a_broken_frame():
    decoder = Decoder(LIMIT)
    decoder.feed(encode(b"a") + b"nonsense\r\n\r\n")

    assert decoder.next_body() == b"a"
    with pytest.raises(FramingError):
        decoder.next_body()


def test_decoder_stays_broken():
    """Nothing says where the next frame would begin, so a good one does not mend the stream."""
    decoder = Decoder(LIMIT)
    decoder.feed(b"nonsense\r\n\r\n")
    with pytest.raises(FramingError) as first:
        decoder.next_body()

    decoder.feed(encode(b"{}"))

    with pytest.raises(FramingError) as second:
        decoder.next_body()
    with pytest.raises(FramingError) as third:
        decoder.end()
    assert first.value is second.value is third.value


def test_end_between_frames_is_clean():
    decoder = Decoder(LIMIT)
    decoder.feed(encode(b"a"))
    decoder.next_body()
    decoder.end()


@pytest.mark.parametrize("cut", [b"C", b"Content-Length: 2\r\n\r\n", b"Content-Length: 2\r\n\r\n{"])
def test_end_within_a_frame_is_an_error(cut: bytes):
    decoder = Decoder(LIMIT)
    decoder.feed(cut)
    assert decoder.next_body() is None
    with pytest.raises(FramingError, match="ended after"):
        decoder.end()
