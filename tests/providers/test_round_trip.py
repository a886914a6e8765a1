"""A strict provider takes back what was assembled from its own answers, whatever their form."""

from __future__ import annotations

import json

import pytest

from retention.providers import PROVIDERS
from tests import loopback_client
from tests.loopback import Loopback, Strictness
from tests.loopback_client import Client, Got
from tests.test_loopback_exact import BODIES, BOUND, CELLS, EVERY, script

CHAT = {"copilot": "openai", "openrouter": "openai", "gemini-array": "gemini"}


def assemble(api: str, got: Got) -> list[object]:
    """The elements of the answer GOT, as values."""
    response = PROVIDERS[CHAT.get(api, api)].assemble(got.body)
    assert response.complete
    assert response.error == ""
    return [json.loads(element) for element in response.elements]


@pytest.mark.parametrize("strictness", [EVERY, BOUND], ids=["every", "bound"])
@pytest.mark.parametrize(("api", "streamed"), CELLS)
def test_provider_accepts_what_was_assembled(
    api: str, streamed: bool, strictness: Strictness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasoning, signatures, ids and arguments of six answers, each sent back with the next."""
    monkeypatch.setattr(loopback_client, "assemble", assemble)
    with Loopback(script(api) * 2, strictness=strictness) as server:
        client = Client(server=server, api=api, streamed=streamed, body=BODIES.get(api, {}))
        for _ in range(2):
            client.prompt()

        assert [each.refusal for each in server.requests] == [None] * 6
