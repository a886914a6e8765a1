"""`check` names the published rules that an array breaks; each refusal is in docs/providers.md."""

from __future__ import annotations

import re
from typing import Any

import pytest

from retention.model import Reason
from tests.providers.helpers import APIS, FIXTURES, encode, load, provider


def codes(api: str, elements: list[Any], model: str = "") -> list[str]:
    """The codes of the rules that ELEMENTS break."""
    array = [each if isinstance(each, bytes) else encode(each) for each in elements]
    return [reason.code for reason in provider(api, model).check(array)]


# What real gptel sends


@pytest.mark.parametrize("case", ["prompt", "loop-stream", "loop-whole", "media", "odd"])
@pytest.mark.parametrize("api", APIS)
def test_requests_of_gptel_break_no_rule_in_the_loop(api: str, case: str) -> None:
    assert codes(api, load(api, case)) == []


@pytest.mark.parametrize("mode", ["stream", "whole"])
@pytest.mark.parametrize("api", APIS)
def test_f7_turns_that_gptel_rebuilds_break_known_rules(api: str, mode: str) -> None:
    """S4: parallel calls of one tool come back with one id; E14: Mistral's ids get a prefix."""
    broken = {
        # No ids; but the text and the calls of a turn come back as two contents of the model.
        "gemini": ["call_place"],
        "ollama": [],
        "mistral": ["call_duplicate", "call_id", "call_id"],
        "bedrock": ["call_duplicate", "alternation"],
    }

    assert codes(api, load(api, f"rebuilt-{mode}")) == broken.get(api, ["call_duplicate"])


def test_bedrock_refuses_a_prompt_that_gptel_splits() -> None:
    assert codes("bedrock", load("bedrock", "split")) == ["alternation"]


# Each rule


def user(text: str = "Hi.") -> Any:
    return {"role": "user", "content": text}


def assistant(text: str = "Yes.") -> Any:
    return {"role": "assistant", "content": text}


def chat_calls(*ids: str, **more: Any) -> Any:
    calls = [{"id": id, "function": {"name": "read", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def chat_result(id: str) -> Any:
    return {"role": "tool", "tool_call_id": id, "content": "A"}


def claude(role: str, *blocks: Any) -> Any:
    return {"role": role, "content": list(blocks)}


def use(id: str) -> Any:
    return {"type": "tool_use", "id": id, "name": "read", "input": {}}


def result(id: str) -> Any:
    return {"type": "tool_result", "tool_use_id": id, "content": "A"}


def text(text: str = "Hi.", ttl: str = "") -> Any:
    if not ttl:
        return {"type": "text", "text": text}
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": ttl}}


ANTHROPIC: list[tuple[list[str], list[Any]]] = [
    ([], [user(), user()]),
    (
        [],
        [user(), claude("assistant", use("a"), use("b")), claude("user", result("b"), result("a"))],
    ),
    ([], [user(), claude("assistant", use("a")), claude("user", result("a"), text())]),
    # Neighbours of one role are combined before calls and results are paired.
    ([], [user(), claude("assistant", use("a")), assistant(), claude("user", result("a")), user()]),
    (
        [],
        [
            user(),
            claude("assistant", use("a"), use("b")),
            claude("user", result("a")),
            claude("user", result("b")),
        ],
    ),
    (
        ["call_unanswered", "result_orphan"],
        [user(), claude("assistant", use("a")), claude("user", text(), result("a"))],
    ),
    (
        ["call_unanswered", "result_orphan"],
        [user(), claude("assistant", use("a")), user(), claude("user", result("a"))],
    ),
    (["call_unanswered"], [user(), claude("assistant", use("a")), user()]),
    (
        ["call_unanswered"],
        [user(), claude("assistant", use("a"), use("b")), claude("user", result("a"))],
    ),
    (["call_unanswered", "last_role"], [user(), claude("assistant", use("a"))]),
    (["result_orphan"], [user(), assistant(), claude("user", result("a"))]),
    (
        ["result_duplicate"],
        [user(), claude("assistant", use("a")), claude("user", result("a"), result("a"))],
    ),
    (
        ["call_duplicate"],
        [
            user(),
            claude("assistant", use("a")),
            claude("user", result("a")),
            claude("assistant", use("a")),
            claude("user", result("a")),
        ],
    ),
    (["result_role"], [user(), claude("assistant", result("a")), user()]),
    (["call_id"], [user(), claude("assistant", use("a.b")), claude("user", result("a.b"))]),
    (["last_role"], [user(), assistant()]),
    (["first_role"], [assistant(), user()]),
    (["no_messages"], []),
    (["empty_content"], [claude("user"), assistant(), user()]),
    (["empty_text"], [claude("user", text(" \n"))]),
    ([], [claude("user", *[text(ttl="5m")] * 4)]),
    (["marks"], [claude("user", *[text(ttl="5m")] * 2), claude("user", *[text(ttl="5m")] * 3)]),
    ([], [claude("user", text(ttl="1h"), text(ttl="5m"))]),
    (["mark_order"], [claude("user", text(ttl="5m"), text(ttl="1h"))]),
    (
        ["thinking_last"],
        [user(), claude("assistant", text(), {"type": "thinking", "thinking": ""}), user()],
    ),
    ([], [user(), {"role": "system", "content": "Be brief."}]),
    (["system_place"], [user(), {"role": "system", "content": "Be brief."}, user()]),
]

CHAT: list[tuple[list[str], list[Any]]] = [
    ([], [user(), user(), assistant(), assistant()]),
    ([], [user(), chat_calls("a", "b"), chat_result("b"), chat_result("a"), user()]),
    (
        ["call_unanswered", "result_orphan"],
        [user(), chat_calls("a"), user(), chat_result("a")],
    ),
    (["call_unanswered"], [user(), chat_calls("a", "b"), chat_result("a"), user()]),
    (["call_unanswered"], [user(), chat_calls("a")]),
    (["result_orphan"], [user(), chat_result("a")]),
    (["result_duplicate"], [user(), chat_calls("a"), chat_result("a"), chat_result("a")]),
    (
        ["call_duplicate"],
        [user(), chat_calls("a"), chat_result("a"), chat_calls("a"), chat_result("a")],
    ),
    (["call_id"], [user(), chat_calls("a" * 41), chat_result("a" * 41)]),
    (["empty_content"], [user(), {"role": "assistant", "content": None}]),
]

DEEPSEEK: list[tuple[list[str], list[Any]]] = [
    ([], [user(), chat_calls("a"), chat_result("a"), assistant()]),
    (
        [],
        [
            user(),
            assistant(),
            user(),
            chat_calls("a", reasoning_content=""),
            chat_result("a"),
            {**assistant(), "reasoning_content": "Hm."},
        ],
    ),
    (
        ["reasoning_missing", "reasoning_missing"],
        [
            user(),
            chat_calls("a", reasoning_content=None),
            chat_result("a"),
            assistant(),
            user(),
            {**assistant(), "reasoning_content": "Hm."},
        ],
    ),
    (["call_unanswered"], [user(), chat_calls("a")]),
]

ID = "abcDEF123"
MISTRAL: list[tuple[list[str], list[Any]]] = [
    ([], [user(), user()]),
    ([], [user(), chat_calls(ID), chat_result(ID)]),
    ([], [user(), chat_calls(ID), chat_result(ID), assistant(), user()]),
    (["role_order"], [user(), chat_calls(ID), chat_result(ID), user()]),
    (
        ["result_orphan", "role_order", "role_order"],
        [
            user(),
            chat_calls(ID),
            chat_result(ID),
            {"role": "system", "content": "a"},
            chat_result("b"),
        ],
    ),
    (["call_id"], [user(), chat_calls("call_1"), chat_result("call_1")]),
    (["last_role"], [user(), assistant()]),
    ([], [assistant(), user()]),
]


def item(type: str, **fields: Any) -> Any:
    return {"type": type, **fields}


def function_call(call: str, **fields: Any) -> Any:
    return item("function_call", call_id=call, name="read", arguments="{}", **fields)


def output(call: str, **fields: Any) -> Any:
    return item("function_call_output", call_id=call, output="A", **fields)


RESPONSES: list[tuple[list[str], list[Any]]] = [
    ([], [user(), function_call("a"), function_call("b"), output("b"), output("a"), user()]),
    ([], [user(), item("reasoning", id="rs_1"), function_call("a", id="fc_1"), output("a")]),
    (["call_unanswered"], [user(), function_call("a"), user()]),
    (["result_orphan"], [user(), output("a")]),
    (["result_orphan", "call_unanswered"], [user(), output("a"), function_call("a")]),
    (["result_duplicate"], [user(), function_call("a"), output("a"), output("a")]),
    (["call_duplicate"], [function_call("a"), output("a"), function_call("a"), output("a")]),
    (["call_id"], [function_call("a.b"), output("a.b")]),
    (["reasoning_alone"], [user(), item("reasoning", id="rs_1")]),
    (["reasoning_alone"], [function_call("a"), item("reasoning", id="rs_1"), output("a")]),
    (["item_duplicate"], [item("reasoning", id="rs_1"), item("reasoning", id="rs_1"), assistant()]),
]


def content(role: str, *parts: Any) -> Any:
    return {"role": role, "parts": list(parts)}


CALL = {"functionCall": {"name": "read", "args": {}}}
RESPONSE = {"functionResponse": {"name": "read", "response": {"content": "A"}}}
GEMINI: list[tuple[list[str], list[Any]]] = [
    ([], [content("user", {"text": "a"}), content("user", {"text": "b"})]),
    (
        [],
        [
            content("user", {"text": "a"}),
            content("model", CALL, CALL),
            content("user", RESPONSE, RESPONSE),
            content("user", {"text": "b"}),
        ],
    ),
    (
        ["call_unanswered"],
        [content("user", {"text": "a"}), content("model", CALL, CALL), content("user", RESPONSE)],
    ),
    (
        ["call_unanswered", "result_orphan"],
        [
            content("user", {"text": "a"}),
            content("model", CALL, CALL),
            content("user", RESPONSE),
            content("user", RESPONSE),
        ],
    ),
    (
        ["result_orphan"],
        [
            content("user", {"text": "a"}),
            content("model", CALL),
            content("user", RESPONSE, RESPONSE),
        ],
    ),
    (
        ["mixed_results"],
        [
            content("user", {"text": "a"}),
            content("model", CALL),
            content("user", RESPONSE, {"text": "b"}),
        ],
    ),
    ([], [content("model", {"text": "a"}), content("user", {"text": "b"})]),
    (["call_place"], [content("model", CALL), content("user", RESPONSE)]),
    (["last_role"], [content("user", {"text": "a"}), content("model", {"text": "b"})]),
    (["empty_content"], [content("user")]),
]

OLLAMA: list[tuple[list[str], list[Any]]] = [
    (
        [],
        [user(), {**assistant(""), "tool_calls": [{"function": {"name": "r"}}]}, chat_result("a")],
    ),
    (["call_unanswered"], [user(), {**assistant(""), "tool_calls": [{"function": {"name": "r"}}]}]),
    (["result_orphan"], [user(), chat_result("a")]),
]


def converse(role: str, *blocks: Any) -> Any:
    return {"role": role, "content": list(blocks)}


def tool_use(id: str) -> Any:
    return {"toolUse": {"toolUseId": id, "name": "read", "input": {}}}


def tool_result(id: str) -> Any:
    return {"toolResult": {"toolUseId": id, "content": [{"text": "A"}]}}


HELLO = converse("user", {"text": "a"})
POINT = {"cachePoint": {"type": "default"}}
BEDROCK: list[tuple[list[str], list[Any]]] = [
    ([], [HELLO, converse("assistant", tool_use("a")), converse("user", tool_result("a"))]),
    (
        [],
        [
            HELLO,
            converse("assistant", tool_use("a")),
            converse("user", tool_result("a"), {"text": "b"}),
        ],
    ),
    (["alternation"], [HELLO, HELLO]),
    (["first_role"], [converse("assistant", {"text": "a"}), HELLO]),
    (["last_role"], [HELLO, converse("assistant", {"text": "a"})]),
    (["empty_text"], [converse("user", {"text": " "})]),
    (
        ["call_unanswered"],
        [
            HELLO,
            converse("assistant", tool_use("a"), tool_use("b")),
            converse("user", tool_result("a")),
        ],
    ),
    (
        ["result_orphan"],
        [
            HELLO,
            converse("assistant", tool_use("a")),
            converse("user", tool_result("a"), tool_result("b")),
        ],
    ),
    ([], [converse("user", *[{"text": "a"}, POINT] * 4)]),
    (["marks"], [converse("user", *[{"text": "a"}, POINT] * 5)]),
    (
        ["call_id"],
        [HELLO, converse("assistant", tool_use("a.b")), converse("user", tool_result("a.b"))],
    ),
]

RULES = {
    "anthropic": ANTHROPIC,
    "openai": CHAT,
    "copilot": CHAT,
    "deepseek": DEEPSEEK,
    "mistral": MISTRAL,
    "responses": RESPONSES,
    "gemini": GEMINI,
    "ollama": OLLAMA,
    "bedrock": BEDROCK,
}


@pytest.mark.parametrize(
    ("api", "wanted", "elements"),
    [(api, *rule) for api, table in RULES.items() for rule in table],
    ids=[
        f"{api}-{number}-{'-'.join(rule[0]) or 'legal'}"
        for api, table in RULES.items()
        for number, rule in enumerate(table)
    ],
)
def test_each_rule_has_its_code(api: str, wanted: list[str], elements: list[Any]) -> None:
    assert codes(api, elements) == wanted


def test_text_beside_results_is_refused_by_models_other_than_claude() -> None:
    mixed = [
        HELLO,
        converse("assistant", tool_use("a")),
        converse("user", tool_result("a"), {"text": "b"}),
    ]

    assert codes("bedrock", mixed, "amazon.nova-pro-v1:0") == ["mixed_results"]


def test_mistral_wants_tool_names_of_its_alphabet() -> None:
    calls = chat_calls(ID)
    calls["tool_calls"][0]["function"]["name"] = "read file"

    assert codes("mistral", [user(), calls, chat_result(ID)]) == ["call_name"]


def test_reason_names_the_element_and_what_is_wrong() -> None:
    array = [encode(user()), encode(chat_calls("call_1")), encode(user())]

    assert provider("openai").check(array) == (Reason(code="call_unanswered", detail="2: call_1"),)


@pytest.mark.parametrize("api", sorted(RULES))
def test_unreadable_elements_are_named_and_nothing_else_is_judged(api: str) -> None:
    found = provider(api).check([b"{}", b"7", b'{"role":"nobody","content":"a"}'])

    assert {reason.code for reason in found} == {"shape"}
    assert found[-1].detail.startswith("2: ")


def test_docs_name_every_code() -> None:
    root = FIXTURES.parent
    sources = [path.read_text() for path in (root / "retention/providers").glob("*.py")]
    found = {
        code
        for source in sources
        for code in re.findall(r'(?:_reason\(|code=|code = )"(\w+)"', source)
    }

    table = (root / "docs/providers.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))

    assert "call_unanswered" in found
    assert found <= named
