"""A chat as a test sees it: prompts go in, recorded requests come out."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from tests.e2e.emacs import Emacs, Symbol
from tests.loopback import Loopback
from tests.loopback.recorder import Recorded

ARRAYS = ("messages", "input", "contents")
APIS = ("anthropic", "openai", "deepseek", "mistral", "responses", "gemini", "ollama")
MODES = ("org-mode", "markdown-mode", "text-mode")
CELLS = [
    pytest.param(api, mode, stream, id=f"{api}-{mode.removesuffix('-mode')}-{kind}")
    for api in APIS
    for mode in MODES
    for stream, kind in ((True, "stream"), (False, "whole"))
]
CORNERS = [
    pytest.param(api, MODES[n % 3], n % 2 == 0, id=f"{api}-{MODES[n % 3].removesuffix('-mode')}")
    for n, api in enumerate(APIS)
]
BLOCK = re.compile(r"<system-reminder>\n(.*?)\n</system-reminder>", re.DOTALL)
TITLE = re.compile(r"# (.*)\n")
_numbers = itertools.count(1)
_scripts: WeakKeyDictionary[Loopback, list[dict[str, Any]]] = WeakKeyDictionary()


def array(request: Recorded) -> list[Any]:
    """Return the elements of the conversation array of a recorded request."""
    body = request.json
    return next(body[key] for key in ARRAYS if key in body)


def plain(element: Any) -> Any:
    """Return ELEMENT without cache marks, which are no part of what a cache compares."""
    if isinstance(element, dict):
        return {k: plain(v) for k, v in element.items() if k != "cache_control"}
    if isinstance(element, list):
        if len(element) == 1 and set(plain(element[0])) == {"type", "text"}:
            return element[0]["text"]  # a marked text is a block, an unmarked one its string
        return [plain(item) for item in element]
    return element


def strings(value: Any) -> list[str]:
    """Return every string inside VALUE, in order."""
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value
    return (
        [s for child in children for s in strings(child)] if isinstance(value, dict | list) else []
    )


def blocks(request: Recorded) -> list[str]:
    """Return the reminder blocks of a request in order, each as its title or its first line."""
    texts = [text for element in array(request) for text in strings(element)]
    found = [block for text in texts for block in BLOCK.findall(text)]
    return [m.group(1) if (m := TITLE.match(block)) else block for block in found]


def bodies(request: Recorded) -> list[str]:
    """Return the reminder blocks of a request in order, whole."""
    texts = [text for element in array(request) for text in strings(element)]
    return [block for text in texts for block in BLOCK.findall(text)]


def is_prefix(earlier: Recorded, later: Recorded) -> bool:
    """Whether LATER begins with the whole array of EARLIER."""
    head = [plain(element) for element in array(earlier)]
    return [plain(element) for element in array(later)][: len(head)] == head


def accepted(requests: Sequence[Recorded]) -> None:
    """Assert that the provider accepted every one of the requests."""
    assert requests
    assert [request.refusal for request in requests] == [None] * len(requests)


class Chat:
    """One gptel buffer in MODE that talks to API on SERVER."""

    def __init__(
        self,
        emacs: Emacs,
        server: Loopback,
        api: str,
        mode: str = "text-mode",
        *,
        sections: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self.emacs = emacs
        self.server = server
        self.api = api
        self.number = next(_numbers)
        self.name = f"chat-{self.number}"
        self._prompts = itertools.count(1)
        emacs.call("driver-open", self.name, Symbol(mode), api, sections=sections, **options)

    def prompt(self, text: str = "") -> str:
        """Return a prompt that no other chat has."""
        return f"prompt {self.number}.{next(self._prompts)}! {text}".strip()

    def send(self, text: str | None = None, *responses: dict[str, Any]) -> list[Recorded]:
        """Type a prompt, send it, wait; return the requests that this made.

        TEXT None sends what stands there.  RESPONSES are what the provider answers, round by
        round; without any it says so and stops.
        """
        prompt = None if text is None else self.prompt(text)
        if prompt is not None:
            answers = list(responses) or [{"text": f"answer to {prompt}"}]
            self.answer(prompt, answers)
        before = len(self.server.requests)
        self.status = self.emacs.call("driver-send", self.name, prompt)
        return self.server.requests[before:]

    def answer(self, prompt: str, answers: Sequence[dict[str, Any]]) -> None:
        """Let the provider give ANSWERS to PROMPT, beside what other chats are answered."""
        script = _scripts.setdefault(self.server, [])
        script.insert(0, {"match": prompt, "responses": list(answers)})  # the newest prompt first
        self.server.load(script)

    def lisp(self, form: str) -> Any:
        """Evaluate FORM in the chat's buffer."""
        return self.emacs.eval(f"(driver-eval-in {json.dumps(self.name)} '{form})")

    def text(self) -> str:
        """Return the text of the buffer."""
        return str(self.emacs.call("driver-text", self.name))


def observe(emacs: Emacs, name: str, body: str | None) -> None:
    """Let section NAME have BODY from now on."""
    value = "nil" if body is None else json.dumps(body)
    emacs.eval(f"(setf (alist-get {json.dumps(name)} driver-sections nil nil #'equal) {value})")


def two_calls(first: str, second: str, text: str = "") -> dict[str, Any]:
    """Return a response with two parallel calls, of two tools."""
    calls = [
        {"name": "read", "args": {"path": first}},
        {"name": "look", "args": {"path": second}},
    ]
    return {"calls": calls} | ({"text": text} if text else {})
