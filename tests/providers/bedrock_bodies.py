"""The streams of Bedrock under fixtures/responses/bedrock/, which are binary, in a readable form.

`python -m tests.providers.bedrock_bodies` writes them anew.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from tests.loopback.wire import frame
from tests.providers.helpers import FIXTURES

Json = Any
FOLDER = FIXTURES / "responses" / "bedrock"


def event(kind: str, **payload: Json) -> bytes:
    """An event as the service writes it, which pads payloads to hide their length."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, {**payload, "p": "abcdefgh"[: len(kind) % 8]})


def block(index: int, *deltas: Json, start: Json = None) -> bytes:
    """The events of one block; only some kinds have a start."""
    events = [event("contentBlockStart", contentBlockIndex=index, start=start)] if start else []
    events += [event("contentBlockDelta", contentBlockIndex=index, delta=each) for each in deltas]
    return b"".join([*events, event("contentBlockStop", contentBlockIndex=index)])


def call(index: int, id: str, name: str, *pieces: str) -> bytes:
    """The events of a call whose input comes in PIECES."""
    start = {"toolUse": {"toolUseId": id, "name": name}}
    return block(index, *({"toolUse": {"input": piece}} for piece in pieces), start=start)


def reasoning(index: int, *deltas: Json) -> bytes:
    """The events of a block of reasoning."""
    return block(index, *({"reasoningContent": delta} for delta in deltas))


def stop(reason: str, **usage: int) -> bytes:
    """The events that end a response."""
    return event("messageStop", stopReason=reason) + event(
        "metadata", usage=usage, metrics={"latencyMs": 9}
    )


START = event("messageStart", role="assistant")
COUNTS = {"inputTokens": 10, "outputTokens": 20, "totalTokens": 30}
CACHED = {**COUNTS, "cacheReadInputTokens": 400, "cacheWriteInputTokens": 5}
REDACTED = [b64encode(part).decode() for part in (b"one, ", b"two, ", b"three")]

STREAMS = {
    "text": START
    + block(0, {"text": "Hel"}, {"text": "lo “wörld” 😀"})
    + stop("end_turn", **CACHED),
    "reasoning_calls": START
    + reasoning(0, {"text": "Let me "}, {"text": "look."}, {"signature": "EqQBCgIYAhIk"})
    + reasoning(1, {"redactedContent": REDACTED[0]})
    + reasoning(2, {"signature": "c2lnbmVk"})
    + block(3, {"text": "I read "}, {"text": "both."})
    + call(4, "tooluse_A", "read", '{"path": "a', '.txt", "n": 1e3, "x": null}')
    + call(5, "tooluse_B", "read", '{"path":"b\\u00e9"}')
    + stop("tool_use", **COUNTS),
    "no_arguments": START
    + call(0, "tooluse_A", "now")
    + call(1, "tooluse_B", "now", "")
    + call(2, "tooluse_C", "now", " ", "{ }")
    + stop("tool_use", **COUNTS),
    "redacted_pieces": START
    + reasoning(0, *({"redactedContent": piece} for piece in REDACTED))
    + block(1, {"text": "Yes."})
    + stop("end_turn", **COUNTS),
    "unsigned_reasoning": START
    + reasoning(0, {"text": "Hm."})
    + block(1, {"text": "Yes."})
    + stop("end_turn", **COUNTS),
    "blank_text": START
    + block(0, {"text": "\n"})
    + call(1, "tooluse_A", "now", "{}")
    + stop("tool_use", **COUNTS),
    "reasoning_last": START
    + block(0, {"text": "Well,"})
    + reasoning(1, {"text": "Hm."}, {"signature": "c2ln"})
    + stop("max_tokens", **COUNTS),
    "broken_arguments": START
    + call(0, "tooluse_A", "write", '{"text": "a long')
    + stop("max_tokens", **COUNTS),
    "unknown_delta": START
    + block(0, {"text": "As said"}, {"citation": {"title": "Weather"}})
    + stop("end_turn", **COUNTS),
    "no_metadata": START + block(0, {"text": "Hi."}) + event("messageStop", stopReason="end_turn"),
    "exception": START
    + event("contentBlockDelta", contentBlockIndex=0, delta={"text": "Half"})
    + frame(
        {
            ":exception-type": "modelStreamErrorException",
            ":content-type": "application/json",
            ":message-type": "exception",
        },
        {"message": "The model stopped.", "originalStatusCode": 500},
    ),
    "error": START
    + frame(
        {":error-code": "InternalError", ":error-message": "Oh.", ":message-type": "error"}, ""
    ),
}

if __name__ == "__main__":
    for name, body in STREAMS.items():
        (FOLDER / f"{name}.bin").write_bytes(body)
