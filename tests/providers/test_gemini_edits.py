"""Gemini: ids, no thoughts and signatures, results in order, the payload without its contents."""

from __future__ import annotations

import json

import pytest

from retention.errors import InvalidPayload
from retention.providers import Head
from tests.providers.helpers import encode, load, provider

GEMINI = provider("gemini")
MODEL = rb"""{ "role":"model", "parts":[
 {"text":"Hm.","thought":true,"thoughtSignature":"c2ln"},
 {"text":"Both\u2026"},
 {"functionCall":{ "id" : "k1","name":"read","args":{"n":1E3,"id":"x"}},"thoughtSignature": "c2ln"},
 {"function_call":{"name":"read","args":{}},"thought_signature":"c2ln"},
 {"functionCall":{"name":"read","args":{}}},
 {"text":"Done","thoughtSignature":"c2ln" },
 {"text":"","thoughtSignature":"c2ln"} ] }"""


def call(name="f", id=None, **args):
    return {"functionCall": {"name": name, "args": args, **({"id": id} if id else {})}}


def answer(text, name="f", **fields):
    return {"functionResponse": {"name": name, "response": {"content": text}, **fields}}


def model(*parts):
    return encode({"role": "model", "parts": parts})


def user(*parts):
    return encode({"role": "user", "parts": parts})


# Reading


@pytest.mark.parametrize("key", ["thoughtSignature", "thought_signature"])
@pytest.mark.parametrize("part", [call(), {"text": "a"}, {"text": ""}])
def test_signature_counts_as_reasoning(part, key):
    """It leaves no part and splits no text."""
    signed = GEMINI.parse(model(part, {**part, key: "c2ln"}, part))
    plain = GEMINI.parse(model(part, part, part))

    assert (signed.reasoned, plain.reasoned) == (True, False)
    assert signed.parts == plain.parts
    assert not GEMINI.parse(model({**part, key: ""})).reasoned


# Ids


def test_rename_changes_ids_alone():
    """Calls and responses alike; a missing id is added, None leaves one as it is."""
    assert GEMINI.rename(MODEL, ["a", None, "c"]) == MODEL.replace(b'"k1"', b'"a"').replace(
        b'{"functionCall":{"name":"read","args":{}}}',
        b'{"functionCall":{"name":"read","args":{},"id":"c"}}',
    )
    results = user(answer("1"), answer("2", id="k"))
    assert GEMINI.rename(results, ["a", "b"]) == user(answer("1", id="a"), answer("2", id="b"))
    assert GEMINI.rename(b'{"role":"user"}', []) == b'{"role":"user"}'
    assert GEMINI.id_pattern == ""


# Thoughts


def test_strip_leaves_thoughts_and_signatures_out():
    """A call that was signed keeps the value that stands for no signature; others had none."""
    dummy = b'"skip_thought_signature_validator"'
    stripped = GEMINI.strip(MODEL)

    assert stripped == (
        MODEL.replace(b'\n {"text":"Hm.","thought":true,"thoughtSignature":"c2ln"},', b"")
        .replace(b',\n {"text":"","thoughtSignature":"c2ln"}', b"")
        .replace(b'"Done","thoughtSignature":"c2ln" }', b'"Done" }')
        .replace(b'"c2ln"', dummy)
        .replace(b'"parts":[ {', b'"parts":[\n {')
    )
    assert stripped.count(dummy) == 2
    assert GEMINI.strip(stripped) == stripped


def test_strip_of_thoughts_alone_leaves_nothing():
    assert GEMINI.strip(model({"text": "Hm.", "thought": True})) == b""
    assert GEMINI.strip(model({"text": "", "thoughtSignature": "c2ln"})) == b""
    for raw in (b'{"role":"model"}', b'{"role":"model","parts":[]}', model({"text": ""})):
        assert GEMINI.strip(raw) == raw


# One of two


def test_neighbours_become_one():
    first, second = b'{"parts": [ {"text":"a"} ],"role":"model"}', model(call())

    assert GEMINI.join(first, second) == (
        b'{"parts": [ {"text":"a"} ,' + encode(call()) + b'],"role":"model"}'
    )
    assert GEMINI.join(b'{"role":"model"}', second) == second
    assert GEMINI.join(first, b'{"role":"model"}') == first


def test_turn_that_gptel_rebuilt_is_accepted_once_joined():
    """Calls that follow the model's own text in another content are refused."""
    joined: list[bytes] = []
    for raw in load("gemini", "rebuilt-whole"):
        if joined and GEMINI.parse(joined[-1]).role == GEMINI.parse(raw).role == "assistant":
            joined[-1] = GEMINI.join(joined[-1], raw)
        else:
            joined.append(raw)

    assert {reason.code for reason in GEMINI.check(load("gemini", "rebuilt-whole"))} == {
        "call_place"
    }
    assert GEMINI.check(joined) == ()


# The order of results


def texts(results):
    """The texts of the responses in RESULTS, and their ids."""
    parts = [part["functionResponse"] for raw in results for part in json.loads(raw)["parts"]]
    return [(part["response"]["content"], part.get("id")) for part in parts]


def test_results_follow_the_calls_of_the_provider():
    """Results of calls that gptel has in another order move, and get the ids of their calls."""
    a, b, c = call(x=1), call(x=2), call("g")
    seen = [model({"text": "Text"}, b, a), model(c)]
    own = [model(c, call(x=1, id="k1"), call(x=2, id="k2"))]
    results = [user(answer("b"), answer("a")), user(answer("c", "g"))]

    ordered = GEMINI.order_results(results, seen, own)

    assert texts(ordered) == [("c", None), ("a", "k1"), ("b", "k2")]
    assert [len(json.loads(raw)["parts"]) for raw in ordered] == [2, 1]


def test_results_of_equal_calls_keep_their_order():
    """Unless gptel has all calls reversed: then those of equal ones are, too."""
    one, two = call(x=1), call(x=2)
    results = [user(answer("1"), answer("2"), answer("3"))]

    kept = GEMINI.order_results(results, [model(one, two, one)], [model(one, one, two)])
    turned = GEMINI.order_results(results, [model(one, one, two)], [model(two, one, one)])

    assert texts(kept) == [("1", None), ("3", None), ("2", None)]
    assert texts(turned) == [("3", None), ("2", None), ("1", None)]


def test_results_in_order_are_left_alone():
    """Every byte of them; and the text beside them."""
    results = [b'{"role":"user","parts":[{"text":"T"}, ' + encode(answer("1")) + b" ]}"]

    assert GEMINI.order_results(results, [model(call())], [model(call())]) == results


@pytest.mark.parametrize(
    ("seen", "own", "count"),
    [
        (model(call()), model(call("g")), 1),  # another call
        (model(call()), model(call()), 2),  # a result more
        (model(call(), call()), model(call(), call()), 1),
        (model(call()), model({"text": "a", **call()}), 1),  # what we read as a text
    ],
)
def test_results_that_do_not_fit_are_left_alone(seen, own, count):
    results = [user(*[answer("1")] * count)]

    assert GEMINI.order_results(results, [seen], [own]) is results


# The payload without its contents


def test_head_is_taken_apart():
    head = GEMINI.head(
        b'{"systemInstruction": {"parts":[{"text":"S"}]},"tools":[{"functionDeclarations":[]}],'
        b'"generationConfig":{"temperature": 1.0},"labels":{"a":"b"},"safetySettings":[]}'
    )

    assert head == Head(
        tools=b'[{"functionDeclarations":[]}]',
        system=b'{"parts":[{"text":"S"}]}',
        parameters={"generationConfig": b'{"temperature": 1.0}', "safetySettings": b"[]"},
    )
    assert GEMINI.head(b'{"system_instruction":{}}') == Head(system=b"{}")
    with pytest.raises(InvalidPayload):
        GEMINI.head(b"[]")
