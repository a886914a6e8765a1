"""Fixtures and values that the tests of the providers share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retention.model import Identity, Message, PartKind
from retention.providers import PROVIDERS, Provider, choose, splice

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
ARRAYS = {"responses": "input", "gemini": "contents"}
APIS = sorted(path.name for path in (FIXTURES / "providers").iterdir() if path.is_dir())
PARSING = sorted(PROVIDERS)


def provider(api: str, model: str = "") -> Provider:
    """The provider that is chosen for API and MODEL."""
    if api == "bedrock" and not model:
        model = "anthropic.claude-sonnet-4-5"
    return choose(Identity(api=api, model=model), ARRAYS.get(api, "messages"))


def load(api: str, case: str) -> list[bytes]:
    """The elements of the fixture CASE, byte for byte as gptel wrote them."""
    array = (FIXTURES / "providers" / api / f"{case}.json").read_bytes()
    return [array[start:end] for start, end in splice.items(array, splice.whole(array))]


def encode(value: Any) -> bytes:
    """VALUE as JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def parse(api: str, value: Any) -> Message:
    """The message that VALUE is in API."""
    return provider(api).parse(value if isinstance(value, bytes) else encode(value))


def parts(api: str, elements: list[Any]) -> list[tuple[str, str]]:
    """Kind and digest of all parts of ELEMENTS that are not empty."""
    found = [part for each in elements for part in parse(api, each).parts]
    return [(p.kind.value, p.digest.hex()) for p in found if p.kind is not PartKind.EMPTY]


def kinds(message: Message) -> list[str]:
    """The kinds of the parts of MESSAGE."""
    return [part.kind.value for part in message.parts]
