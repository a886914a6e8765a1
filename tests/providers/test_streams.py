"""Response bodies of every form are split into their JSON texts; halves of pairs are mended."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retention.errors import InvalidPayload
from retention.providers import Response, streams

BODIES = {
    "one document": (b'{"a": 1}\n', [b'{"a": 1}']),
    "a document in lines": (b'{\n "a":\r\n 1\n}\n', [b'{\n "a":\r\n 1\n}']),
    "JSON lines": (b'{"a":1}\n{"a":2}\r\n\n{"a":3}', [b'{"a":1}', b'{"a":2}', b'{"a":3}']),
    "JSON lines, cut": (b'{"a":1}\n{"a":', [b'{"a":1}', b'{"a":']),
    "an array": (b'[{"a": [1]}\r\n,\r\n{"a":2}]\n', [b'{"a": [1]}', b'{"a":2}']),
    "an empty array": (b"[]", []),
    "an array, open": (b'[{"a":1},\n{"a":"]"}\n', [b'{"a":1}', b'{"a":"]"}']),
    "an array, cut": (b'[{"a":1},{"a":"x', [b'{"a":1}', b'{"a":"x']),
    "an array, cut in a character": (b'[{"a":"\xc3', ['{"a":"\ufffd'.encode()]),
    "an array with half of a pair": (b'[{"a":"\\ud83d"} , 2]', [b'{"a":"\\ud83d"}', b"2"]),
    "a document with half of a pair": (b'{\n"a":"\\ud83d"}', [b'{\n"a":"\\ud83d"}']),
    "events": (b"event: x\ndata: 1\n\ndata:2\n\n", [b"1", b"2"]),
    "events, CR LF": (b"event: x\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", [b"1", b"2"]),
    "events, CR": (b"data: 1\rdata: 2\r\rdata: 3\r", [b"1\n2", b"3"]),
    "several data lines": (b"data: [\nid: 7\ndata\n: x\ndata: 1]\n\ndata: 2", [b"[\n\n1]", b"2"]),
    "comments and fields": (b"\n: hello\n\nretry: 10\n\nevent: ping\ndata:\n\ndata: 1\n\n", [b"1"]),
    "no closing line": (b"data: 1\n\ndata: [DONE]", [b"1", b"[DONE]"]),
    "events, cut": (b'data: 1\n\ndata: {"a', [b"1", b'{"a']),
    "byte order mark": (b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
    "no UTF-8": (b'data: "\xff"\n\n', ['"\ufffd"'.encode()]),
    "a field that begins alike": (b"database: 1\ndata: 2\n\n", [b"2"]),
    "HTML": (b"<html>\n<p>502</p></html>", []),
    "nothing": (b" \r\n", []),
}


@pytest.mark.parametrize("name", BODIES)
def test_body_is_split_into_its_texts(name):
    body, texts = BODIES[name]

    assert streams.read_documents(body) == texts


@given(st.binary() | st.text('[]{}",:dat 1\n\r\\u8', max_size=40).map(str.encode))
def test_any_bytes_are_split(body):
    """No bytes raise, and every text is valid UTF-8."""
    for text in streams.read_documents(body):
        text.decode()


class Delta(msgspec.Struct):
    text: str | None = None
    extra: dict[str, object] = {}


decode = streams.make_decoder(Delta)


def test_decoder_keeps_halves_and_answers_none():
    """Half of a pair is kept for the next delta; what is no such text is None, never an error."""
    assert decode(b'{"text":"a"}') == Delta(text="a")
    assert decode(b'{"text":"a\\ud83d","extra":{"k":[1]}}') == Delta("a\ud83d", {"k": [1]})
    for text in (b"[DONE]", b'{"text":', b'{"text":1}', b'{"extra":{"k":NaN}}', b"[" * 100_000):
        assert decode(text) is None


def test_encode_joins_pairs_and_replaces_halves():
    """Halves that met are a character again, others U+FFFD; raw JSON goes in as it is."""
    value = {
        "t": "\ud83d" + "\ude00",
        "l": ["é\udead", None, 1.5],
        "\ud800": msgspec.Raw(b'{ "x":1e3}'),
    }

    assert (
        streams.encode(value) == '{"t":"😀","l":["é\ufffd",null,1.5],"\ufffd":{ "x":1e3}}'.encode()
    )
    assert streams.encode({"é": "\u2028"}) == '{"é":"\u2028"}'.encode()


REPAIRS = {
    rb'"\ud83d\ude00"': rb'"\ud83d\ude00"',
    rb'"\uD83D \uDE00"': rb'"\ufffd \ufffd"',
    rb'"\ud83d\ud83d\ude00"': rb'"\ufffd\ud83d\ude00"',
    rb'"\\ud83d \\\ud83d\n\u00e9"': rb'"\\ud83d \\\ufffd\n\u00e9"',
    rb'"plain \u0041"': rb'"plain \u0041"',
}


@pytest.mark.parametrize("raw", REPAIRS)
def test_repair_replaces_escapes_of_halves_alone(raw):
    assert streams.repair(raw) == REPAIRS[raw]


@given(st.text(st.sampled_from('\\u\ud83d\ude00"né')))
def test_repair_gives_what_emacs_reads(text):
    """Every string, escaped or not, reads as it was but for the halves."""
    repaired = streams.repair(json.dumps(text).encode())

    expected = re.sub("[\ud800-\udfff]", "\ufffd", re.sub("\ud83d\ude00", "😀", text))
    assert msgspec.json.decode(repaired) == expected == streams.join_text(text)


def test_response_keeps_only_elements_that_can_be_read():
    """One element that its API's reader refuses, or an end that is missing, leaves none."""

    def read(element):
        if element != b"{}":
            raise InvalidPayload("no")

    whole = Response(elements=(b"{}", b"{}"), complete=True, finish="stop")
    odd = Response(elements=(b"{}", b"[]"), complete=True, finish="stop")
    cut = Response(elements=(b"{}",), error="Overloaded \ud83d\ude00 \ud83d")

    answers = [streams.make_assemble(lambda _, r=r: r, read)(b"") for r in (whole, odd, cut)]

    assert answers == [whole, Response(finish="stop"), Response(error="Overloaded 😀 \ufffd")]
