"""The table of APIs.  A new one is a module here and a row below."""

from __future__ import annotations

from tests.loopback.apis import (
    anthropic,
    bedrock,
    chat,
    copilot,
    deepseek,
    gemini,
    mistral,
    ollama,
    openrouter,
    responses,
)
from tests.loopback.model import Api

APIS: tuple[Api, ...] = (
    anthropic.API,
    mistral.API,
    deepseek.API,
    copilot.API,
    openrouter.API,
    chat.OPENAI,
    responses.API,
    gemini.API,
    ollama.API,
    bedrock.API,
)


def find_api(path: str) -> Api | None:
    """The first API whose route matches the whole PATH."""
    return next((api for api in APIS if api.route.fullmatch(path)), None)
