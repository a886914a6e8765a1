"""Turns with reasoning, text and calls, and the provider that checks everything."""

from __future__ import annotations

from typing import Any

from tests.e2e.chat import APIS, array, strings
from tests.loopback.recorder import Recorded
from tests.loopback.strictness import Strictness

STRICT = Strictness(
    exact=True, thinking="required", strict_ids=True, strict_reasoning=True,
    strict_signatures=True, exclusive_content=False,
)  # fmt: skip
# gptel reads no content lists, in which Mistral's reasoning comes; chat has none at all.
THINKING = tuple(api for api in APIS if api not in {"mistral", "openai"})
ENDINGS = {"org-mode": "org", "markdown-mode": "md", "text-mode": "txt"}
SAVE = "(let ((inhibit-message t)) (save-buffer))"


def work(api: str, *paths: str) -> dict[str, Any]:
    """Return a response: reasoning where the API has it, text, and a call of `read` for each."""
    calls = [{"name": "read", "args": {"path": path}} for path in paths]
    return {"text": "Let me **look**. ", "calls": calls} | thought(api, f"What is in {paths[0]}?")


def answer(api: str, text: str) -> dict[str, Any]:
    return {"text": text} | thought(api, "That is all.")


def thought(api: str, text: str) -> dict[str, str]:
    return {"reasoning": text} if api in THINKING else {}


def has(request: Recorded, text: str) -> bool:
    """Whether TEXT stands anywhere in the conversation of a request."""
    return any(text in value for element in array(request) for value in strings(element))
