"""Anthropic: other ids, no thinking, cache marks, and the payload without its messages."""

from __future__ import annotations

import re

import pytest

from retention.digest import digest
from retention.errors import InvalidPayload
from retention.model import Identity
from retention.providers import Head
from tests.providers.helpers import encode, load, provider

ANTHROPIC = provider("anthropic")
MARKS = ANTHROPIC.marks
CALLS = rb"""{ "role":"assistant", "content":[
 {"type":"thinking","thinking":"","signature":"c2ln"},
 {"type":"text","text":"Both\u2026"},
 {"type":"tool_use", "id" : "call 1","name":"read","input":{"n":1e3,"id":"x"}},
 {"type":"tool_use","name":"read","input":{}},
 {"type":"redacted_thinking","data":"c2ln"} ] }"""
RESULTS = rb"""{"role":"user","content":[
 {"type":"tool_result","tool_use_id":"a","content":"one"},
 {"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"two"}]},
 {"type":"text","text":"Go on"}]}"""


def test_rename_changes_ids_alone():
    """In order, None leaving one as it is; a missing id is added, every other byte stays."""
    assert ANTHROPIC.rename(CALLS, ["t1", "t2"]) == CALLS.replace(b'"call 1"', b'"t1"').replace(
        b'"input":{}}', b'"input":{},"id":"t2"}'
    )
    assert ANTHROPIC.rename(CALLS, [None, None]) == CALLS
    assert ANTHROPIC.rename(RESULTS, [None, "t2"]) == RESULTS.replace(b'"b"', b'"t2"')
    assert ANTHROPIC.parse(ANTHROPIC.rename(RESULTS, ["t1", "t2"])).ids == ("t1", "t2")
    assert (
        ANTHROPIC.rename(b'{"role":"user","content":"a"}', []) == b'{"role":"user","content":"a"}'
    )


def test_made_ids_are_legal_and_differ():
    first, second = (ANTHROPIC.make_id(digest("part", text).hex()) for text in (b"1", b"2"))

    assert first != second
    assert re.fullmatch(ANTHROPIC.id_pattern, first)
    assert not re.fullmatch(ANTHROPIC.id_pattern, "functions.read:0")


def test_strip_leaves_thinking_out():
    stripped = ANTHROPIC.strip(CALLS)

    assert stripped == CALLS.replace(
        b'{"type":"thinking","thinking":"","signature":"c2ln"},\n ', b""
    ).replace(b',\n {"type":"redacted_thinking","data":"c2ln"}', b"")
    assert not ANTHROPIC.parse(stripped).reasoned
    assert ANTHROPIC.parse(CALLS).reasoned
    assert ANTHROPIC.strip(stripped) == stripped


def test_strip_of_thinking_alone_leaves_nothing():
    thought = [{"type": "redacted_thinking", "data": "c2ln"}]

    assert ANTHROPIC.strip(encode({"role": "assistant", "content": thought})) == b""
    for content in ("Text.", []):
        raw = encode({"role": "assistant", "content": content})
        assert ANTHROPIC.strip(raw) == raw


# Marks

FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
PLACES = {  # which block of a content gets the mark; None where none may
    "text": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], 1),
    "call": ([{"type": "text", "text": "a"}, {"type": "tool_use", "name": "f", "input": {}}], 1),
    "result": ([{"type": "tool_result", "tool_use_id": "a", "content": "x"}], 0),
    "picture": ([{"type": "image", "source": {"type": "url", "url": "x"}}], 0),
    "empty text": ([{"type": "text", "text": "a"}, {"type": "text", "text": "\n"}], 0),
    "thinking last": (
        [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b", "signature": "c"}],
        0,
    ),
    "only thinking": ([{"type": "redacted_thinking", "data": "b"}], None),
    "only empty text": ([{"type": "text", "text": ""}], None),
    "nothing": ([], None),
    "empty string": ("", None),
}


@pytest.mark.parametrize("case", PLACES)
def test_mark_stands_on_the_last_block_that_may_have_one(case):
    content, place = PLACES[case]
    raw = encode({"role": "assistant", "content": content})

    put = MARKS.put(raw, "1h")

    if place is None:
        assert put is None
    else:
        content[place]["cache_control"] = HOUR
        assert put == encode({"role": "assistant", "content": content})
        assert MARKS.drop(put) == raw


def test_mark_makes_a_block_of_a_string():
    raw = rb'{"role":"user","content": "a\u0041"}'

    put = MARKS.put(raw, "5m")

    text = rb'{"type":"text","text":"a\u0041"'
    assert (
        put == b'{"role":"user","content": [' + text + b',"cache_control":' + encode(FIVE) + b"}]}"
    )
    assert MARKS.drop(put) == raw
    assert MARKS.put(b'{"role":"user"}', "5m") is None


def test_marks_are_dropped_from_results_too():
    """A message is told by its text without marks; their lifetimes are kept beside it."""
    inner = {"type": "text", "text": "one"}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [inner]}
    plain = encode({"role": "user", "content": [result]})
    marked = encode(
        {
            "role": "user",
            "content": [
                {**result, "content": [{**inner, "cache_control": FIVE}], "cache_control": HOUR}
            ],
        }
    )

    message = ANTHROPIC.parse(marked)

    assert MARKS.drop(marked) == plain == message.raw
    assert message.marks == ("5m", "1h")
    assert (message.exact, message.size) == (digest("message", plain), len(plain))
    assert ANTHROPIC.parse(plain).marks == ()
    assert ANTHROPIC.parse(plain).raw is plain


@pytest.mark.parametrize("raw", load("anthropic", "cache"))
def test_what_gptel_marked_is_told_by_its_text(raw):
    message = ANTHROPIC.parse(raw)

    assert b"cache_control" not in message.raw
    assert (b"cache_control" in raw) == bool(message.marks)


# The payload without its messages


def test_head_is_taken_apart():
    head = ANTHROPIC.head(
        b'{"model":"m", "stream":true,"max_tokens":4096,"metadata":{"user_id":"u"},'
        b'"cache_control":{"type":"ephemeral"},"diagnostics":{"previous_message_id":"x"},'
        b'"tool_choice":{"type":"auto"},"thinking": {"type":"adaptive"},"temperature":1.0,'
        b'"tools":[{"name":"a"}, {"name":"b","cache_control":{"type":"ephemeral","ttl":"1h"}}],'
        b'"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}]}'
    )

    assert head == Head(
        tools=b'[{"name":"a"}, {"name":"b"}]',
        system=b'[{"type":"text","text":"S"}]',
        parameters={
            "model": b'"m"',
            "tool_choice": b'{"type":"auto"}',
            "thinking": b'{"type":"adaptive"}',
            "temperature": b"1.0",
        },
        marks=("1h", "5m", "5m"),
    )
    assert ANTHROPIC.head(b'{"system":"S"}') == Head(system=b'"S"')
    for raw in (b"[]", b"{", b'{"tools":[1]}'):
        with pytest.raises(InvalidPayload):
            ANTHROPIC.head(raw)


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        ("claude-opus-5-5", True),
        ("claude-opus-5.5", True),
        ("claude-sonnet-5-5-20261001", True),
        ("us.anthropic.claude-fable-5-1-v1:0", True),
        ("Claude-Mythos-5.1", True),
        ("claude-opus-5", False),
        ("claude-opus-5-50", False),
        ("claude-opus-5-20260501", False),
        ("claude-fable-5", False),
        ("claude-sonnet-4-5", False),
        ("claude-haiku-5-5", False),
    ],
)
def test_thinking_of_some_models_is_bound(model, bound):
    for api in ("anthropic", "bedrock"):
        assert provider(api, model).bound(Identity(api=api, model=model)) is bound
