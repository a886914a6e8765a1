"""What real streams look like now and then, for a script to ask for by name.

comments         comment lines between the events
crlf             lines that end with CR LF
pings            ping events between the others (Anthropic)
no_done          no `[DONE]` at the end (chat completions)
no_usage         no chunk with the usage, though it was asked for
calls_together   all calls that stand together in one delta, whole
null_names       a call goes on under the name "null" (LiteLLM)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from tests.loopback.model import Answer, Object
from tests.loopback.script import ScriptError
from tests.loopback.wire import sse

CHAT = ("openai", "copilot", "openrouter", "deepseek", "mistral")
QUIRKS: dict[str, tuple[str, ...]] = {
    "comments": (*CHAT, "anthropic", "responses", "gemini"),
    "crlf": (*CHAT, "anthropic", "responses"),
    "pings": ("anthropic",),
    "no_done": CHAT,
    "no_usage": CHAT,
    "calls_together": CHAT,
    "null_names": CHAT[:-1],  # Mistral's calls come whole
}
COMMENT = b": keep-alive"
PING = sse({"type": "ping"}, event="ping")
DONE = b"data: [DONE]\n\n"


def check_quirks(answer: Answer, api: str) -> None:
    """Refuse quirks that streams of API do not have."""
    for name in answer.quirks:
        if api not in QUIRKS.get(name, ()):
            raise ScriptError(f"script: streams of the {api} API have no {name!r}")


def disturb(events: Iterable[bytes], answer: Answer) -> Iterator[bytes]:
    """EVENTS, server-sent, with what the quirks of ANSWER do to any such stream."""
    for number, event in enumerate(events):
        if event == DONE and "no_done" in answer.quirks:
            continue
        if number and "pings" in answer.quirks:
            yield from lines(PING, answer)
        if "comments" in answer.quirks:
            yield from lines(COMMENT + (b"\r\n\r\n" if b"\r\n" in event else b"\n\n"), answer)
        yield from lines(event, answer)


def lines(event: bytes, answer: Answer) -> Iterator[bytes]:
    yield event.replace(b"\n", b"\r\n") if "crlf" in answer.quirks else event


def disturb_calls(deltas: Iterable[Object], answer: Answer) -> Iterator[Object]:
    """DELTAS of chat completions with what the quirks of ANSWER do to calls."""
    if "calls_together" in answer.quirks:
        deltas = put_together(deltas)
    for delta in deltas:
        if "null_names" in answer.quirks and "tool_calls" in delta:
            calls = [name_null(call) for call in delta["tool_calls"]]
            yield {**delta, "tool_calls": calls}
        else:
            yield delta


def put_together(deltas: Iterable[Object]) -> Iterator[Object]:
    for called, run in groupby(deltas, lambda delta: "tool_calls" in delta):
        if not called:
            yield from run
            continue
        calls: dict[int, Object] = {}
        for part in (part for delta in run for part in delta["tool_calls"]):
            whole = calls.setdefault(part["index"], {**part, "function": {**part["function"]}})
            if "id" not in part:
                whole["function"]["arguments"] += part["function"]["arguments"]
        yield {"tool_calls": list(calls.values())}


def name_null(call: Object) -> Object:
    """A continuation of a call under the name that LiteLLM gives it."""
    return {**call, "function": {"name": "null", **call["function"]}}
