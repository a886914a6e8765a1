"""What holds of the canonical form and of the edits for any input (rules I2, G2, F11, R3)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retention.errors import InvalidPayload
from retention.model import Message, PartKind
from retention.providers import PROVIDERS
from retention.providers.canonical import WHITE
from tests.providers.helpers import APIS, encode, load, parse, parts, provider

CASES = ("prompt", "loop-stream", "loop-whole", "rebuilt-whole", "media", "split")
ELEMENTS = [(api, raw) for api in APIS for case in CASES for raw in load(api, case)]
KEYS = (
    "role content parts text type tool_calls function name arguments id input output call_id"
    " tool_use_id tool_result tool_use image source data url image_url images functionCall"
    " functionResponse response args toolUse toolResult toolUseId cachePoint cache_control"
    " inline_data thought summary $blob json custom refusal"
).split()
WORDS = "user assistant model tool system text image tool_use tool_result function_call".split()

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)
arguments = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=10,
    ),
    max_size=5,
)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
solid = texts.filter(lambda text: text.strip(WHITE))
blank = st.text(alphabet=WHITE, max_size=4)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside VALUE."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def replace(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """VALUE with NEW at PATH."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replace(value[path[0]], path[1:], new)
    return copy


def read(api: str, raw: bytes) -> Message | None:
    """The message, or None if it is refused as it should be; any other error fails the test."""
    try:
        return provider(api).parse(raw)
    except InvalidPayload:
        return None


@given(value=values)
def test_any_json_value_is_a_message_or_invalid(value: Any) -> None:
    raw = json.dumps(value).encode()

    for api in PROVIDERS:
        message = read(api, raw)
        assert message is None or message.parts


@given(raw=st.binary(max_size=40) | texts.map(str.encode))
@example(b"\xff")
@example(b'{"role":"user","content":"a"}{')
def test_any_bytes_are_a_message_or_invalid(raw: bytes) -> None:
    for api in PROVIDERS:
        read(api, raw)
        provider(api).check([raw])


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_message_of_gptel_is_a_message_or_invalid(data: st.DataObject) -> None:
    """Edits refuse it likewise, and the rules judge it without failing."""
    api, raw = data.draw(st.sampled_from(ELEMENTS))
    value = json.loads(raw)
    path = data.draw(st.sampled_from(places(value)))
    damaged = encode(replace(value, path, data.draw(values)))

    message = read(api, damaged)
    provider(api).check([raw, damaged, raw])
    for edit in (provider(api).merge, provider(api).result):
        try:
            edited = edit(damaged, "Note.")
        except InvalidPayload:
            continue
        assert message is not None
        assert read(api, edited) is not None


@given(solid, blank, blank)
def test_f11_white_space_around_a_text_does_not_count(text: str, before: str, after: str) -> None:
    for api in PROVIDERS:
        wrap = provider(api).wrap
        assert parse(api, wrap(before + text + after)).parts == parse(api, wrap(text)).parts


@given(st.lists(texts, min_size=1, max_size=5))
def test_g2_an_answer_in_pieces_is_the_answer(pieces: list[str]) -> None:
    whole = parts("openai", [{"role": "assistant", "content": "".join(pieces)}])
    blocks = [{"type": "text", "text": piece} for piece in pieces]
    output = [{"type": "output_text", "text": piece} for piece in pieces]

    assert parts("anthropic", [{"role": "assistant", "content": blocks}]) == whole
    assert parts("mistral", [{"role": "assistant", "content": blocks}]) == whole
    assert parts("responses", [{"role": "assistant", "content": output}]) == whole
    bare = [{"text": piece} for piece in pieces]
    assert parts("gemini", [{"role": "model", "parts": bare}]) == whole
    assert parts("bedrock", [{"role": "assistant", "content": bare}]) == whole


@given(arguments, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_g2_arguments_are_the_same_as_object_and_as_any_spelling(
    value: dict[str, Any], indent: Any, ascii: bool
) -> None:
    spelling = json.dumps(value, indent=indent, ensure_ascii=ascii)
    function = {"name": "read", "arguments": spelling}
    gemini = {"role": "model", "parts": [{"functionCall": {"name": "read", "args": value}}]}
    chat = {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}
    item = {"type": "function_call", "call_id": "a", **function}

    found = parts("openai", [chat])

    assert [kind for kind, _ in found] == ["call"]
    assert parts("gemini", [gemini]) == found
    assert parts("responses", [item]) == found


@given(arguments, arguments)
def test_g2_other_arguments_are_another_call(one: dict[str, Any], two: dict[str, Any]) -> None:
    def call(value: Any) -> Any:
        item = {"type": "function_call", "call_id": "a", "name": "read"}
        return {**item, "arguments": json.dumps(value)}

    same = json.dumps(one) == json.dumps(two)
    assert (parts("responses", [call(one)]) == parts("responses", [call(two)])) is same


@given(solid, solid)
def test_other_texts_are_other_parts(one: str, two: str) -> None:
    same = one.strip(WHITE) == two.strip(WHITE)

    found = [parse("openai", PROVIDERS["openai"].wrap(text)).parts for text in (one, two)]

    assert (found[0] == found[1]) is same


@given(texts)
def test_wrap_writes_the_text_and_nothing_else(text: str) -> None:
    for api in PROVIDERS:
        raw = provider(api).wrap(text)
        assert encode(json.loads(raw)).lower() == raw.lower()  # Emacs has upper-case hex digits
        inner: Any = json.loads(raw)
        while not isinstance(inner, str):
            inner = (
                inner[0]
                if isinstance(inner, list)
                else inner.get("text", inner.get("content", inner.get("parts")))
            )
        assert inner == text


@settings(max_examples=200)
@given(st.sampled_from(ELEMENTS), solid, st.sampled_from([None, 1]))
def test_r3_a_host_without_its_added_text_is_the_host(
    element: tuple[str, bytes], text: str, indent: int | None
) -> None:
    """Whatever the spelling: the edit is one insertion, and the message stays readable."""
    api, raw = element
    host = json.dumps(json.loads(raw), indent=indent, ensure_ascii=False).encode()
    before = parse(api, host)

    for edit in (provider(api).merge, provider(api).result):
        try:
            edited = edit(host, text)
        except InvalidPayload:
            continue
        grown = len(edited) - len(host)
        assert any(edited[:at] + edited[at + grown :] == host for at in range(len(host) + 1))
        after = parse(api, edited)
        assert after.role is before.role
        assert [p for p in after.parts if p.kind is PartKind.CALL] == []
        assert len(set(before.parts) - set(after.parts)) <= 1


@pytest.mark.parametrize("api", sorted(PROVIDERS))
def test_parse_takes_microseconds(api: str) -> None:
    """A message of 2 KB: 30 us were asked for; the limit leaves room for a slow, busy machine."""
    raw = provider(api).wrap("One line of the text, “quoted”.\n" * 60)
    assert 2000 < len(raw) < 2500

    def measure() -> float:
        begin = time.perf_counter()
        for _ in range(200):
            provider_parse(raw)
        return (time.perf_counter() - begin) / 200

    provider_parse = provider(api).parse
    assert min(measure() for _ in range(5)) < 60e-6  # seconds
