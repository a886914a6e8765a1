"""Frames survive any split, and any bytes give bodies or FramingError."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from retention.errors import FramingError
from retention.framing import Decoder, encode

LIMIT = 300

bodies = st.lists(st.binary(max_size=LIMIT), max_size=6)

# Bytes that come close to being frames reach further into the decoder than random ones.
pieces = st.one_of(
    st.binary(max_size=20),
    st.binary(max_size=30).map(encode),
    st.sampled_from(
        [b"Content-Length: ", b"content-length:", b"5", b"999", b"-", b"\r\n", b"\r\n\r\n", b"\n"]
    ),
    st.sampled_from([b"X: y\r\n", b"X" * 600, b":", b"\0", b"hello"]),
)
streams = st.lists(pieces, max_size=12).map(b"".join)


def decode(chunks: list[bytes]) -> tuple[list[bytes], str]:
    """Return the bodies, and how the stream ended: "clean", "cut" or "broken"."""
    decoder = Decoder(LIMIT)
    found = []
    try:
        for chunk in chunks:
            decoder.feed(chunk)
            while (body := decoder.next_body()) is not None:
                found.append(body)
    except FramingError:
        return found, "broken"
    try:
        decoder.end()
    except FramingError:
        return found, "cut"
    return found, "clean"


def split(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


@given(bodies, st.lists(st.integers(min_value=0)))
def test_bodies_split_anywhere_are_the_same_bodies(expected, places):
    data = b"".join(map(encode, expected))
    assert decode(split(data, places)) == (expected, "clean")


@given(streams, st.lists(st.integers(min_value=0)))
def test_any_bytes_give_the_same_bodies_and_end_however_they_are_split(data, places):
    """Whole, byte by byte and split anywhere; nothing but FramingError is ever raised."""
    whole = decode([data])
    assert decode([bytes([byte]) for byte in data]) == whole
    assert decode(split(data, places)) == whole


@given(st.binary(max_size=200))
def test_any_random_bytes_give_bodies_or_framing_error(data):
    assert decode([data]) == decode([bytes([byte]) for byte in data])


@given(bodies, st.integers(min_value=0))
def test_a_stream_cut_anywhere_gives_whole_bodies_only(expected, place):
    data = b"".join(map(encode, expected))
    found, end = decode([data[: place % (len(data) + 1)]])

    assert found == expected[: len(found)]
    assert end in {"clean", "cut"}
