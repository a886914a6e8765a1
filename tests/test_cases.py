"""The public cases that exact replay repairs, at the level of payloads: what gptel or the loopback
provider cannot be brought to say.

A case has its name in the docstring of its test.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retention.providers import PROVIDERS
from retention.store import Store
from tests.dialects import Element
from tests.helpers import Adapter, Prepared, message

U1, U2, U3 = (message(f"prompt {n}") for n in range(1, 4))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def shown(prepared: Prepared) -> list[Element]:
    """Return the elements that go out."""
    return [json.loads(raw) for raw in prepared.array]


# Reasoning


@pytest.mark.parametrize(
    ("api", "model", "asked"),
    [
        ("responses", "gpt-5.5", ["reasoning.encrypted_content"]),
        ("responses", "o3", ["reasoning.encrypted_content"]),
        ("responses", "gpt-4.1-mini", []),
        ("responses", "gpt-5-chat-latest", []),
        ("openai", "gpt-5.5", []),
    ],
)
def test_models_that_may_reason_are_asked_for_their_reasoning(
    store: Store, api: str, model: str, asked: list[str]
) -> None:
    """Case E9: others refuse to be asked, "Encrypted content is not supported with this model."."""
    chat = Adapter(store, api=api, model=model)

    assert list(chat.prepare(U1).result.include) == asked


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"}
BARE = {name: value for name, value in CALL.items() if name != "id"}
SEALED = THOUGHT | {"encrypted_content": "gAAAAAB"}
OPEN = THOUGHT | {"content": [{"type": "reasoning_text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("stored", "thought", "elements"),
    [
        (None, THOUGHT, [BARE]),
        (False, THOUGHT | {"encrypted_content": None}, [BARE]),
        (True, THOUGHT, [THOUGHT, CALL]),
        (False, SEALED, [SEALED, CALL]),
        (False, OPEN, [OPEN, CALL]),
    ],
)
def test_reasoning_that_cannot_be_read_again_stays_away(
    stored: bool | None, thought: Element, elements: list[Element]
) -> None:
    """Cases E9, N30: it came without its content and is not stored; what names it goes with it."""
    document: Element = {"object": "response", "status": "completed", "output": [thought, CALL]}
    if stored is not None:
        document["store"] = stored

    response = PROVIDERS["responses"].assemble(json.dumps(document).encode())

    assert response.complete
    assert [json.loads(raw) for raw in response.elements] == elements


# Ids


def test_bedrock_takes_calls_that_have_no_ids(store: Store) -> None:
    """Case E26: gptel writes {} for the ids that Gemini and Ollama did not give."""
    chat = Adapter(store, api="bedrock")
    work = {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": {}, "name": "read", "input": {}}}],
    }
    done = {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": {}, "content": [{"text": "one"}]}}],
    }
    history = [json.dumps(each).encode() for each in (work, done, work, done)]

    sent = shown(chat.send(U1, *history, U2))

    made = [sent[n]["content"][0]["toolUse"]["toolUseId"] for n in (1, 3)]
    taken = [sent[n]["content"][0]["toolResult"]["toolUseId"] for n in (2, 4)]
    assert made == taken
    assert len({*made}) == 2
