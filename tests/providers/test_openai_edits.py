"""Chat, Responses, Ollama: what is done to elements that go back, and payloads taken apart."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retention.model import Identity
from retention.providers import Head
from tests.providers.bodies import bodies
from tests.providers.helpers import encode, parse, provider

CHAT = ("openai", "deepseek", "mistral")
SEED = "0123456789abcdef0123456789abcdef"
CALL = b'{"id":"a","type":"function","function":{"name":"f","arguments":"{\\"id\\" : 1}"}}'
ELEMENTS = [
    (api, name, element)
    for api in (*CHAT, "responses", "ollama")
    for name, body in bodies(api).items()
    for element in provider(api).assemble(body).elements
]


# Ids (F7)


@pytest.mark.parametrize("api", CHAT)
@pytest.mark.parametrize(
    ("raw", "ids", "renamed"),
    [
        (
            b'{"role":"assistant", "content":null,"tool_calls":[%s , {"function":{"name":"g"}}]}',
            ["x", "y"],
            (
                b'{"role":"assistant", "content":null,"tool_calls":[%s , '
                b'{"function":{"name":"g"},"id":"y"}]}'
            ),
        ),
        (
            b'{"role":"assistant","tool_calls":[{"function":{"name":"g"},"id":"b"},%s]}',
            [None, "x"],
            b'{"role":"assistant","tool_calls":[{"function":{"name":"g"},"id":"b"},%s]}',
        ),
    ],
)
def test_f7_calls_get_other_ids_and_keep_every_other_byte(api, raw, ids, renamed):
    new = CALL.replace(b'"id":"a"', b'"id":"x"', 1)

    assert provider(api).rename(raw % CALL, ids) == renamed % new


@pytest.mark.parametrize("api", CHAT)
@pytest.mark.parametrize(
    ("raw", "renamed"),
    [
        (
            b'{"role" : "tool","tool_call_id":"a","content":"tool_call_id"}',
            b'{"role" : "tool","tool_call_id":"x","content":"tool_call_id"}',
        ),
        (b'{"role":"tool","content":""}', b'{"role":"tool","content":"","tool_call_id":"x"}'),
    ],
)
def test_f7_result_gets_another_id(api, raw, renamed):
    assert provider(api).rename(raw, ["x"]) == renamed
    assert provider(api).rename(raw, [None]) == raw


def test_f7_item_gets_another_call_id_and_keeps_its_own():
    rename = provider("responses").rename
    call = b'{"type":"function_call", "id":"fc_1","call_id":"a","name":"f","arguments":"{}"}'
    output = b'{"type":"function_call_output","output":"a","call_id":"a"}'

    assert rename(call, ["x"]) == call.replace(b'"call_id":"a"', b'"call_id":"x"')
    assert rename(output, ["x"]) == output.replace(b'"call_id":"a"', b'"call_id":"x"')
    assert rename(output, [None]) == output


@pytest.mark.parametrize(("api", "name", "element"), ELEMENTS)
def test_f7_ids_are_those_given_and_nothing_else_changes(api, name, element):
    rename = provider(api).rename
    before = parse(api, element)
    if api == "ollama":
        assert rename(element, ["x"]) == element
        return
    ids = [f"new_{n}" for n in range(len(before.ids))]

    after = rename(element, ids)

    assert list(parse(api, after).ids) == ids
    assert rename(after, before.ids) == element or None in before.ids


@pytest.mark.parametrize("api", [*CHAT, "responses"])
def test_f7_made_ids_are_legal_and_differ(api):
    chosen = provider(api)
    ids = [chosen.make_id(f"{n:032x}"[::-1]) for n in range(100)]

    assert len(set(ids)) == 100
    assert all(re.fullmatch(chosen.id_pattern, id) for id in ids)


@pytest.mark.parametrize(
    ("api", "legal", "illegal"),
    [
        ("openai", "c" * 40, "c" * 41),
        ("deepseek", "call_00_" + SEED + "0000", ""),
        ("mistral", "D681PevKs", "call_0fypS1hVX"),
        ("responses", "c" * 64, "functions.read:0"),
    ],
)
def test_f7_ids_are_judged_by_the_api(api, legal, illegal):
    pattern = provider(api).id_pattern

    assert re.fullmatch(pattern, legal)
    assert not re.fullmatch(pattern, illegal)


def test_f7_ollama_has_no_ids():
    assert (provider("ollama").id_pattern, provider("ollama").make_id(SEED)) == ("", "")


# Reasoning (C4, Z6)


@pytest.mark.parametrize(
    ("api", "raw", "stripped"),
    [
        (
            "openai",
            b'{"role":"assistant", "content":"Hi","reasoning_content":"Hm" , "mood":1}',
            b'{"role":"assistant", "content":"Hi" , "mood":1}',
        ),
        (
            "openai",
            b'{"reasoning":"Hm","reasoning_details":[{"type":"reasoning.text"}],"content":"Hi"}',
            b'{"content":"Hi"}',
        ),
        (
            "openai",
            b'{"content":"","reasoning_text":"Hm","reasoning_opaque":"x","tool_calls":[%s]}' % CALL,
            b'{"content":"","tool_calls":[%s]}' % CALL,
        ),
        (
            "openai",
            (
                b'{"content":null,"extra_content":{"google":{"thought_signature":"x"}},"tool_calls":'
                b'[{"extra_content":{"google":{"thought_signature":"x","a":1}},"id":"a"},{"id":"b"}]}'
            ),
            (
                b'{"content":null,"tool_calls":[{"extra_content":{"google":{"thought_signature":'
                b'"skip_thought_signature_validator","a":1}},"id":"a"},{"id":"b"}]}'
            ),
        ),
        (
            "openai",
            (
                b'{"content":"Hi","tool_calls":[{"extra_content":null},{"extra_content":{}},'
                b'{"extra_content":{"google":1}}]}'
            ),
            (
                b'{"content":"Hi","tool_calls":[{"extra_content":null},{"extra_content":{}},'
                b'{"extra_content":{"google":1}}]}'
            ),
        ),
        ("openai", b'{"role":"assistant","content":null,"reasoning":"Hm"}', b""),
        ("openai", b'{"role":"assistant","content":"","reasoning":"","tool_calls":[]}', b""),
        (
            "openai",
            b'{"role":"assistant","content":null,"refusal":"No.","reasoning":"Hm"}',
            b'{"role":"assistant","content":null,"refusal":"No."}',
        ),
        (
            "mistral",
            b'{"content":[{"type":"thinking","thinking":[]},{"type":"text","text":"thinking"}]}',
            b'{"content":[{"type":"text","text":"thinking"}]}',
        ),
        (
            "mistral",
            b'{"content":[{"type":"thinking","thinking":[]}],"tool_calls":[%s]}' % CALL,
            b'{"content":"","tool_calls":[%s]}' % CALL,
        ),
        ("mistral", b'{"role":"assistant","content":[{"type":"thinking"}]}', b""),
        (
            "deepseek",
            b'{"reasoning_content":"Hm","content":"Hi"}',
            b'{"content":"Hi","reasoning_content":""}',
        ),
        ("deepseek", b'{"content":"Hi"}', b'{"content":"Hi","reasoning_content":""}'),
        ("deepseek", b'{"content":"","reasoning_content":"Hm"}', b""),
        ("responses", b'{"type":"reasoning","id":"rs_1","encrypted_content":"x"}', b""),
        ("responses", b'{"type":"web_search_call","id":"ws_1","status":"completed"}', b""),
        (
            "responses",
            b'{"type":"function_call","id":"fc_1","call_id":"id","name":"id"}',
            b'{"type":"function_call","call_id":"id","name":"id"}',
        ),
        (
            "responses",
            b'{"id":"msg_1","type":"message","role":"assistant","phase":"x","content":[]}',
            b'{"type":"message","role":"assistant","phase":"x","content":[]}',
        ),
        (
            "responses",
            b'{"role":"assistant","content":"Hi"}',
            b'{"role":"assistant","content":"Hi"}',
        ),
        ("ollama", b'{"content":"Hi","thinking":"Hm"}', b'{"content":"Hi"}'),
        (
            "ollama",
            b'{"thinking":"","content":"","tool_calls":[{"function":{"name":"f"}}]}',
            b'{"content":"","tool_calls":[{"function":{"name":"f"}}]}',
        ),
        ("ollama", b'{"role":"assistant","content":"","thinking":"Hm"}', b""),
    ],
)
def test_c4_reasoning_is_left_out(api, raw, stripped):
    assert provider(api).strip(raw) == stripped


@pytest.mark.parametrize(("api", "name", "element"), ELEMENTS)
def test_c4_without_reasoning_a_message_says_the_same(api, name, element):
    stripped = provider(api).strip(element)
    before = parse(api, element).parts

    if not stripped:
        assert [part.kind.value for part in before] == ["empty"]
        return
    assert parse(api, stripped).parts == before
    assert provider(api).strip(stripped) == stripped
    left = stripped.replace(b'"reasoning_content":""', b"")  # DeepSeek
    assert not re.search(rb'"thinking"|"reasoning|encrypted|"id":"(msg|fc|ctc)_', left)


@pytest.mark.parametrize(
    ("raw", "filled"),
    [
        (b'{"role":"assistant","content":"Hi"}', b'{"role":"assistant","content":"Hi",%s}'),
        (b'{"reasoning_content":null,"content":"Hi"}', b'{%s,"content":"Hi"}'),
        (b'{"reasoning_content":{},"content":"Hi"}', b'{%s,"content":"Hi"}'),
        (
            b'{"reasoning_content":"Hm","content":"Hi"}',
            b'{"reasoning_content":"Hm","content":"Hi"}',
        ),
        (b'{"reasoning_content":"","content":"Hi"}', b'{"reasoning_content":"","content":"Hi"}'),
    ],
)
def test_g4_deepseek_gets_an_empty_text_of_reasoning(raw, filled):
    text = b'"reasoning_content":""'

    assert provider("deepseek").fill(raw) == (filled % text if b"%s" in filled else filled)
    assert provider("openai").fill(raw) == raw


REASONING = [
    ("openai", {"reasoning_content": "Hm"}),
    ("openai", {"reasoning": "Hm"}),
    ("openai", {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}),
    ("openai", {"reasoning_text": "Hm"}),
    ("openai", {"reasoning_opaque": "x"}),
    ("openai", {"extra_content": {"google": {"thought_signature": "x"}}}),
    ("deepseek", {"reasoning_content": "Hm"}),
    (
        "mistral",
        {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hi"}]},
    ),
    ("ollama", {"thinking": "Hm"}),
]


@pytest.mark.parametrize(("api", "extra"), REASONING)
def test_reasoning_beside_a_content_is_seen_and_changes_no_part(api, extra):
    plain = {"role": "assistant", "content": "Hi"}

    message = parse(api, {**plain, **extra})

    assert message.reasoned
    assert message.parts == parse(api, plain).parts
    assert not parse(api, plain).reasoned


@pytest.mark.parametrize("nothing", [None, "", [], {}])
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "reasoning_details"])
def test_no_reasoning_is_none(key, nothing):
    assert not parse("openai", {"role": "assistant", "content": "Hi", key: nothing}).reasoned
    assert not parse("openai", {"role": "user", "content": "Hi", key: "Hm"}).reasoned


def test_signature_of_a_call_is_seen():
    call = {"id": "a", "function": {"name": "f"}, "extra_content": {"google": {}}}

    assert parse("openai", {"role": "assistant", "content": None, "tool_calls": [call]}).reasoned


@pytest.mark.parametrize("api", CHAT)
def test_reasoning_alone_is_no_content(api):
    bare = {"role": "assistant", "content": None, "reasoning_content": "Hm"}
    user = {"role": "user", "content": "Go"}

    reasons = provider(api).check([encode(user), encode(bare), encode(user)])

    assert [(reason.code, reason.detail) for reason in reasons] == [("empty_content", "1")]


# The order of results


def result(text):
    return encode({"role": "tool", "content": text})


def calls(*paths):
    found = [{"function": {"name": "read", "arguments": {"p": path}}} for path in paths]
    return encode({"role": "assistant", "content": "", "tool_calls": found})


def test_results_follow_the_order_of_the_calls():
    """They carry neither id nor name, so that their place is all that links them."""
    order = provider("ollama").order_results
    results = [result(text) for text in "abc"]
    own = b'{"role":"assistant","thinking":"Hm","tool_calls":[%s,%s,%s]}' % tuple(
        b'{"function":{"index":%d,"name":"read","arguments":{ "p": "%s"}}}' % (n, path)
        for n, path in enumerate((b"c", b"a", b"b"))
    )

    assert order(results, [calls("a"), calls("b", "c")], [own]) == [
        results[2],
        results[0],
        results[1],
    ]
    assert order(results, [calls("b", "a", "c")], [own]) == [results[2], results[1], results[0]]
    assert order(results, [calls("a", "a", "b")], [calls("b", "a", "a")]) == results[::-1]
    assert order(results, [calls("a", "b", "c")], [calls("a", "b")]) == results
    assert order(results[:2], [calls("b", "a", "c")], [own]) == results[:2]


def test_results_with_ids_stay_where_they_are():
    results = [result("a"), result("b")]

    for api in (*CHAT, "responses"):
        assert provider(api).order_results(results, [calls("a", "b")], [calls("b", "a")]) == results


# Payloads (C1)


@pytest.mark.parametrize("api", CHAT)
def test_c1_chat_payload_is_taken_apart(api):
    raw = (
        b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"temperature":0.70,'
        b'"tools":[{"type":"function" }],"tool_choice":"auto","max_tokens":1,"store":false,'
        b'"max_completion_tokens":1,"user":"u","metadata":{},"safety_identifier":"s",'
        b'"prompt_cache_key":"k"}'
    )

    assert provider(api).head(raw) == Head(
        tools=b'[{"type":"function" }]',
        parameters={
            "model": b'"m"',
            "temperature": b"0.70",
            "tool_choice": b'"auto"',
            "prompt_cache_key": b'"k"',
        },
    )


def test_c1_responses_payload_is_taken_apart():
    raw = (
        b'{"model":"m","instructions":"Be\\nbrief","stream":true,"store":false,"tools":[{}],'
        b'"max_output_tokens":9,"reasoning":{"effort":"high"},"include":["x"]}'
    )

    assert provider("responses").head(raw) == Head(
        tools=b"[{}]",
        system=b'"Be\\nbrief"',
        parameters={"model": b'"m"', "reasoning": b'{"effort":"high"}', "include": b'["x"]'},
    )


def test_c1_ollama_payload_is_taken_apart():
    raw = b'{"model":"m","stream":true,"options":{"num_ctx":1},"think":true,"keep_alive":"5m"}'

    assert provider("ollama").head(raw) == Head(
        parameters={"model": b'"m"', "options": b'{"num_ctx":1}', "think": b"true"}
    )


@pytest.mark.parametrize("nothing", [b"null", b"[]", b'""'])
def test_c1_no_tools_and_no_system_are_none(nothing):
    raw = b'{"tools":%s,"instructions":%s}' % (nothing, nothing)

    assert provider("responses").head(raw) == Head()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text().map("x_".__add__) | st.just(""), json_values))
def test_c1_nothing_of_a_payload_is_lost(payload):
    head = provider("openai").head(encode(payload))

    assert {key: json.loads(text) for key, text in head.parameters.items()} == payload


@pytest.mark.parametrize(
    ("model", "demanded"),
    [
        ("deepseek-reasoner", True),
        ("deepseek-v4-pro", True),
        ("deepseek-chat", False),
        ("deepseek-v3.2", False),
    ],
)
def test_e1_only_models_that_reason_demand_it_of_history_they_did_not_write(
    model: str, demanded: bool
):
    """Case E1, rule G4: a chat that had tools before the mode was on."""
    assert provider("deepseek").demands(Identity(api="deepseek", model=model)) is demanded
