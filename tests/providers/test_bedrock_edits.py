"""Bedrock: other ids, no reasoning, cache points, one of two, the payload without its messages."""

from __future__ import annotations

import re

import pytest

from retention.digest import digest
from retention.errors import InvalidPayload
from retention.providers import Head
from tests.providers.helpers import encode, load, provider

BEDROCK = provider("bedrock")
MARKS = BEDROCK.marks
CALLS = rb"""{ "role":"assistant", "content":[
 {"reasoningContent":{"reasoningText":{"text":"","signature":"c2ln"}}},
 {"text":"Both\u2026"},
 {"toolUse":{ "toolUseId" : "call 1","name":"read","input":{"n":1e3,"toolUseId":"x"}}},
 {"toolUse":{"name":"read","input":{}}},
 {"reasoningContent":{"redactedContent":"c2ln"}} ] }"""
RESULTS = rb"""{"role":"user","content":[
 {"toolResult":{"toolUseId":"a","content":[{"text":"one"}]}},
 {"toolResult":{"toolUseId":"b","content":[]}}, {"text":"Go on"}]}"""


def test_models_of_claude_and_others_differ_in_one_rule():
    other = provider("bedrock", "amazon.nova-pro")

    assert other.check([RESULTS])[-1].code == "mixed_results"
    assert "mixed_results" not in {reason.code for reason in BEDROCK.check([RESULTS])}
    assert (other.assemble, other.marks, other.join) == (
        BEDROCK.assemble,
        BEDROCK.marks,
        BEDROCK.join,
    )


def test_rename_changes_ids_alone():
    """In order, None leaving one as it is; a missing id is added, every other byte stays."""
    assert BEDROCK.rename(CALLS, ["t1", "t2"]) == CALLS.replace(b'"call 1"', b'"t1"').replace(
        b'"input":{}}', b'"input":{},"toolUseId":"t2"}'
    )
    assert BEDROCK.rename(CALLS, [None, None]) == CALLS
    assert BEDROCK.rename(RESULTS, [None, "t2"]) == RESULTS.replace(b'"b"', b'"t2"')
    assert BEDROCK.parse(BEDROCK.rename(RESULTS, ["t1", "t2"])).ids == ("t1", "t2")


def test_made_ids_are_legal_and_differ():
    first, second = (BEDROCK.make_id(digest("part", text).hex()) for text in (b"1", b"2"))

    assert first != second
    assert re.fullmatch(BEDROCK.id_pattern, first)
    assert not re.fullmatch(BEDROCK.id_pattern, "a" * 65)


def test_strip_leaves_reasoning_out():
    stripped = BEDROCK.strip(CALLS)

    assert stripped == CALLS.replace(
        b'{"reasoningContent":{"reasoningText":{"text":"","signature":"c2ln"}}},\n ', b""
    ).replace(b',\n {"reasoningContent":{"redactedContent":"c2ln"}}', b"")
    assert not BEDROCK.parse(stripped).reasoned
    assert BEDROCK.parse(CALLS).reasoned
    assert BEDROCK.strip(stripped) == stripped


def test_strip_of_reasoning_alone_leaves_nothing():
    raw = encode(
        {"role": "assistant", "content": [{"reasoningContent": {"redactedContent": "c2ln"}}]}
    )

    assert BEDROCK.strip(raw) == b""
    assert (
        BEDROCK.strip(b'{"role":"assistant","content":[]}') == b'{"role":"assistant","content":[]}'
    )


def test_neighbours_become_one():
    """The blocks of both, byte for byte, in a message that the API takes."""
    first = b'{"role":"assistant", "content": [ {"text":"a\\u0041"} ]}'
    second = b'{ "content":[ {"text": "b"} , {"text":"c"}\n], "role":"assistant"}'

    joined = BEDROCK.join(first, second)

    assert joined == (
        b'{"role":"assistant", "content": [ {"text":"a\\u0041"} ,{"text": "b"} , {"text":"c"}]}'
    )
    assert BEDROCK.join(first, b'{"role":"assistant","content":[ ]}') == first
    assert BEDROCK.join(b'{"role":"assistant","content":[]}', second) == (
        b'{"role":"assistant","content":[{"text": "b"} , {"text":"c"}]}'
    )


def test_turn_that_gptel_rebuilt_is_accepted_once_joined():
    """Text and call are two messages of the assistant there, which the API refuses.

    That both calls have one id is another matter (rule F7).
    """
    elements = load("bedrock", "rebuilt-whole")
    joined = [elements[0]]
    for raw in elements[1:]:
        if BEDROCK.parse(joined[-1]).role == BEDROCK.parse(raw).role == "assistant":
            joined[-1] = BEDROCK.join(joined[-1], raw)
        else:
            joined.append(raw)

    assert {reason.code for reason in BEDROCK.check(elements)} >= {"alternation"}
    assert {reason.code for reason in BEDROCK.check(joined)} == {"call_duplicate"}


# Cache points

FIVE, HOUR = {"type": "default"}, {"type": "default", "ttl": "1h"}
REASONING = {"reasoningContent": {"redactedContent": "c2ln"}}
PLACES = {  # behind how many blocks the cache point stands; None where it may not
    "text": ([{"text": "a"}, {"text": "b"}], 2),
    "call": ([REASONING, {"toolUse": {"toolUseId": "a", "name": "f", "input": {}}}], 2),
    "result": ([{"toolResult": {"toolUseId": "a", "content": []}}], 1),
    "reasoning last": ([{"text": "a"}, REASONING], 1),
    "only reasoning": ([REASONING], None),
    "nothing": ([], None),
}


@pytest.mark.parametrize("case", PLACES)
def test_point_stands_behind_the_last_block_that_may_have_one(case):
    content, place = PLACES[case]
    raw = encode({"role": "assistant", "content": content})

    put = MARKS.put(raw, "1h")

    if place is None:
        assert put is None
    else:
        content = [*content[:place], {"cachePoint": HOUR}, *content[place:]]
        assert put == encode({"role": "assistant", "content": content})
        assert MARKS.drop(put) == raw


def test_points_are_dropped():
    """A message is told by its text without cache points; their lifetimes are kept beside it."""
    plain = encode({"role": "user", "content": [{"text": "a"}, {"text": "b"}]})
    points = [{"cachePoint": HOUR}, {"cachePoint": FIVE}]
    marked = encode(
        {"role": "user", "content": [{"text": "a"}, points[0], {"text": "b"}, points[1]]}
    )

    message = BEDROCK.parse(marked)

    assert MARKS.put(plain, "5m") == plain.replace(b"]}", b"," + encode(points[1]) + b"]}")
    assert MARKS.drop(marked) == plain == message.raw
    assert message.marks == ("1h", "5m")
    assert (message.exact, message.size) == (digest("message", plain), len(plain))
    assert BEDROCK.parse(plain).raw is plain


# The payload without its messages


def test_head_is_taken_apart():
    head = BEDROCK.head(
        b'{"system":[{"text":"S"},{"cachePoint":{"type":"default"}}],'
        b'"inferenceConfig": {"maxTokens":500},"requestMetadata":{"a":"b"},'
        b'"toolConfig":{"toolChoice":{"auto":{}},'
        b'"tools":[{"toolSpec":{"name":"a"}}, {"cachePoint":{"type":"default","ttl":"1h"}}]}}'
    )

    assert head == Head(
        tools=b'[{"toolSpec":{"name":"a"}}]',
        system=b'[{"text":"S"}]',
        parameters={"inferenceConfig": b'{"maxTokens":500}', "toolChoice": b'{"auto":{}}'},
        marks=("1h", "5m"),
    )
    assert BEDROCK.head(b"{}") == Head()
    for raw in (b"[]", b"{", b'{"toolConfig":{"tools":1}}', b'{"system":"S"}'):
        with pytest.raises(InvalidPayload):
            BEDROCK.head(raw)
