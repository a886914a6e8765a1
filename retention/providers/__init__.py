"""The providers: one module per API, and the table that chooses among them."""

from __future__ import annotations

from retention.errors import UnsupportedProvider
from retention.model import Identity
from retention.providers import (
    anthropic,
    bedrock,
    deepseek,
    gemini,
    mistral,
    ollama,
    openai,
    responses,
)
from retention.providers.base import Head, Marks, Provider, Response, Shape, no_change

__all__ = ["PROVIDERS", "Head", "Marks", "Provider", "Response", "Shape", "choose", "no_change"]

PROVIDERS: dict[str, Provider] = {
    provider.api: provider
    for provider in (
        anthropic.PROVIDER,
        openai.PROVIDER,
        responses.PROVIDER,
        gemini.PROVIDER,
        ollama.PROVIDER,
        bedrock.PROVIDER,
        deepseek.PROVIDER,
        mistral.PROVIDER,
    )
}

# Names of gptel's backend structs that speak the shape of another one.
ALIASES = {
    "copilot": "openai",
    "gh": "openai",
    "perplexity": "openai",
    "privategpt": "openai",
    "xai": "deepseek",
    "openai-responses": "responses",
    "openai-oauth": "responses",
}

_CHAT = ("openai", "deepseek", "mistral")


def choose(identity: Identity, array: str) -> Provider:
    """Return the provider for IDENTITY's API and the payload's ARRAY key.

    The key decides between the two shapes of OpenAI, as gptel itself chooses between them by
    model or host under one backend (Copilot, api.openai.com).  Raises UnsupportedProvider for an
    API without such an array (Kagi) or unknown, and for an array that the API does not have.
    """
    api = ALIASES.get(identity.api, identity.api)
    if api == "openai" and identity.host.endswith("mistral.ai"):
        api = "mistral"  # gptel has no backend of its own for it
    if array == "input" and api in _CHAT:
        api = "responses"
    elif array == "messages" and api == "responses":
        api = "openai"
    provider = PROVIDERS.get(api)
    if provider is None or provider.array != array:
        raise UnsupportedProvider(f"no array {array!r} of the API {identity.api!r}")
    if provider is bedrock.PROVIDER and bedrock.is_claude(identity):
        return bedrock.CLAUDE
    return provider
