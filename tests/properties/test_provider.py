"""Any conversation, with a provider that signs what it says and refuses what is not as it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings

from tests.dialects import ARRAYS, Element, looped
from tests.helpers import Harness, assistant
from tests.loopback import Loopback
from tests.loopback.strictness import Strictness
from tests.loopback_client import PATHS
from tests.properties.test_replay import EXAMPLES, PLAIN, SCRIPTS, Edit, Player, Script, whole

# API, path in the provider, model
PROFILES: dict[str, tuple[str, str, str]] = {
    "anthropic": ("anthropic", "anthropic", "claude-sonnet-4-5"),
    "bound": ("anthropic", "anthropic", "claude-opus-5-5"),
    "chat": ("openai", "openai", "gpt"),
    "openrouter": ("openai", "openrouter", "kimi"),
    "deepseek": ("deepseek", "deepseek", "deepseek-v4"),
    "mistral": ("mistral", "mistral", "large"),
    "responses": ("responses", "responses", "gpt"),
    "gemini": ("gemini", "gemini", "gemini-3-pro"),
    "ollama": ("ollama", "ollama", "qwen"),
    "bedrock": ("bedrock", "bedrock", "anthropic.claude-opus-5-5"),
}


@dataclass(kw_only=True)
class Strict(Player):
    """A player whose provider is the scripted one; `spoken` are its messages of last."""

    server: Loopback
    path: str
    spoken: list[bytes] = field(default_factory=list)

    signs = False  # type: ignore[assignment]  # the provider itself does

    @property
    def reasons(self) -> bool:
        """Whether the API says what the model thinks."""
        return self.path != "openai"

    def accepted(self) -> bool:
        return not self.chat.provider.check(self.sent[-1].array)

    def own(self, said: Element) -> list[bytes]:
        return self.spoken

    def work(self, said: Element, results: dict[str, str], streamed: bool) -> list[Element]:
        return looped(said, results, streamed=True, api=self.chat.api)

    def say(self, thoughts: int, *, text: bool, calls: Iterable[int] = ()) -> Element:
        said = super().say(thoughts if self.reasons else 0, text=text, calls=calls)
        self.server.load([{"blocks": [script_of(block) for block in said["content"]]}])
        reply = self.server.answer("POST", self.target(), self.request())
        assert reply.status == 200, reply.body
        response = self.chat.provider.assemble(reply.body)
        assert response.complete
        self.spoken = list(response.elements)
        ids = [id for raw in response.elements for id in self.chat.provider.parse(raw).ids]
        made = iter(id or f"c{n}" for n, id in enumerate(ids))
        return assistant(*(
            block | {"id": next(made)} if block["type"] == "tool_use" else block
            for block in said["content"]
        ))  # fmt: skip

    def target(self) -> str:
        model = self.chat.model
        return (
            PATHS[self.path]
            .replace("gemini-3-pro", model)
            .replace("anthropic.claude-opus-4-6-v1", model)
        )

    def request(self) -> bytes:
        array = ARRAYS.get(self.chat.api, "messages")
        body = {array: [json.loads(raw) for raw in self.sent[-1].array]}
        body |= {} if self.path in {"gemini", "bedrock"} else {"model": self.chat.model}
        return json.dumps(body | MORE.get(self.path, {})).encode()


MORE: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 100},
    "ollama": {"stream": False},
    "responses": {"store": False},
    "bedrock": {"toolConfig": {"tools": [{"toolSpec": {"name": "read"}}]}},
}


def script_of(block: Element) -> Element:
    """Return BLOCK as the script of the provider has it."""
    if block["type"] == "thinking":
        return {"thinking": block["thinking"]}
    if block["type"] == "text":
        return {"text": block["text"]}
    return {"call": {"name": block["name"], "args": block["input"]}}


def played(profile: str, script: Script, **flags: Any) -> Strict:
    api, path, model = PROFILES[profile]
    strictness = Strictness(
        strict_ids=True, strict_reasoning=True, strict_signatures=True, exclusive_content=False,
        thinking="bound" if "5-5" in model else "required", **flags,
    )  # fmt: skip
    server = Loopback(strictness=strictness)
    try:
        chat = Harness(api=api, model=model)
        copies = 2 if path == "openrouter" else 1  # for clients of either field
        return Strict(chat=chat, server=server, path=path, copies=copies).play(script)
    finally:
        server.stop()


@pytest.mark.parametrize("profile", PROFILES)
@given(PLAIN)
@settings(max_examples=EXAMPLES, deadline=None)
def test_provider_finds_all_that_it_said_as_it_said_it(profile: str, script: Script):
    """F5, R1, R3: each request of a conversation that nobody edits."""
    played(profile, [whole(step) for step in script], exact=True)


@pytest.mark.parametrize("profile", PROFILES)
@given(SCRIPTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_provider_accepts_what_goes_out_after_edits(profile: str, script: Script):
    """C4, F7, G4: whatever was edited, if gptel's own array broke no published rule."""
    steps = [s for s in script if not isinstance(s, Edit) or s.kind not in {"step", "api"}]
    played(profile, [whole(step) for step in steps])
