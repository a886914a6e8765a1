"""The other end of the loopback provider: post a body, read an answer whatever its stream format.

`read` gives (text, calls) as each API's client would put them together, so that a stream and a
whole document of the same answer compare equal.
"""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from tests.loopback import Loopback

PATHS = {
    "anthropic": "/v1/messages",
    "openai": "/v1/chat/completions",
    "copilot": "/copilot/chat/completions",
    "deepseek": "/deepseek/chat/completions",
    "mistral": "/mistral/v1/chat/completions",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-3-pro:generateContent",
    "ollama": "/api/chat",
    "bedrock": "/model/anthropic.claude-opus-4-6-v1/converse",
}
STREAM_PATHS = {
    "gemini": "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse",
    "gemini-array": "/v1beta/models/gemini-3-pro:streamGenerateContent",
    "bedrock": "/model/anthropic.claude-opus-4-6-v1/converse-stream",
}
Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Got:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    server: Loopback,
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> Got:
    """Send BODY (bytes as they are, anything else as JSON) to PATH of SERVER."""
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, None if method == "GET" else data, headers or {})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Got(status=response.status, headers=found, body=response.read())
    finally:
        connection.close()


def prompt(api: str, text: str = "hello") -> dict[str, Any]:
    """The smallest acceptable body of API that asks TEXT."""
    if api.startswith("gemini"):
        return {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    if api == "bedrock":
        return {"messages": [{"role": "user", "content": [{"text": text}]}]}
    if api == "responses":
        return {"model": "m", "input": [{"role": "user", "content": text}]}
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text}]}
    if api == "anthropic":
        body["max_tokens"] = 100
    if api == "ollama":
        body["stream"] = False
    return body


def streaming(api: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body that ask API to stream the answer to BODY."""
    if api in STREAM_PATHS:
        return STREAM_PATHS[api], body
    return PATHS[api], {**body, "stream": True}


def read(api: str, got: Got) -> tuple[str, Calls]:
    """Text and calls of a whole document."""
    return DOCUMENTS[api](got.json)


def read_stream(api: str, got: Got) -> tuple[str, Calls]:
    """Text and calls of a stream."""
    return STREAMS[api](got.body)


def anthropic(whole: Any) -> tuple[str, Calls]:
    blocks = whole["content"]
    return (
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
    )


def chat(whole: Any) -> tuple[str, Calls]:
    said = whole["choices"][0]["message"]
    functions = [call["function"] for call in said.get("tool_calls", ())]
    return said["content"] or "", [(f["name"], json.loads(f["arguments"])) for f in functions]


def responses(whole: Any) -> tuple[str, Calls]:
    items = whole["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    return (
        "".join(part["text"] for part in parts),
        [(i["name"], json.loads(i["arguments"])) for i in items if i["type"] == "function_call"],
    )


def gemini(whole: Any) -> tuple[str, Calls]:
    parts = whole["candidates"][0]["content"]["parts"]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    return "".join(part.get("text", "") for part in parts), [(c["name"], c["args"]) for c in calls]


def ollama(whole: Any) -> tuple[str, Calls]:
    calls = [call["function"] for call in whole["message"].get("tool_calls", ())]
    return whole["message"]["content"], [(call["name"], call["arguments"]) for call in calls]


def bedrock(whole: Any) -> tuple[str, Calls]:
    blocks = whole["output"]["message"]["content"]
    calls = [block["toolUse"] for block in blocks if "toolUse" in block]
    return (
        "".join(block.get("text", "") for block in blocks),
        [(call["name"], call["input"]) for call in calls],
    )


def iter_sse(data: bytes, newline: bytes = b"\n") -> Iterator[tuple[str, Any]]:
    """Name and parsed data of each event; comments and the end mark are left out."""
    assert data.endswith(newline * 2)
    for event in data.split(newline * 2)[:-1]:
        lines = dict(line.split(b": ", 1) for line in event.split(newline) if line[:1] != b":")
        if lines and lines[b"data"] != b"[DONE]":
            yield lines.get(b"event", b"").decode(), json.loads(lines[b"data"])


def anthropic_stream(data: bytes) -> tuple[str, Calls]:
    blocks: list[Any] = []
    names = []
    for name, event in iter_sse(data):
        assert event["type"] == name
        names.append(name)
        if name == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif name == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[event["index"]]["text"] += delta["text"]
            else:
                blocks[event["index"]]["json"] += delta["partial_json"]
    assert (names[0], names[-1]) == ("message_start", "message_stop")
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"])
    return anthropic({"content": blocks})


def chat_stream(data: bytes) -> tuple[str, Calls]:
    assert data.endswith(b"data: [DONE]\n\n")
    text, calls = "", []
    for _, chunk in iter_sse(data):
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({**call["function"], "id": call["id"]})
            else:
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return text, [(call["name"], json.loads(call["arguments"])) for call in calls]


def responses_stream(data: bytes) -> tuple[str, Calls]:
    found = list(iter_sse(data))
    assert [event["sequence_number"] for _, event in found] == list(range(len(found)))
    assert found[-1][0] == "response.completed"
    deltas = [event["delta"] for name, event in found if name == "response.output_text.delta"]
    items = [event["item"] for name, event in found if name == "response.output_item.done"]
    assert found[-1][1]["response"]["output"] == items
    text, calls = responses({"output": items})
    assert "".join(deltas) == text
    return text, calls


def gemini_stream(data: bytes) -> tuple[str, Calls]:
    return join(gemini, [event for _, event in iter_sse(data, b"\r\n")])


def gemini_array(data: bytes) -> tuple[str, Calls]:
    return join(gemini, json.loads(data))


def ollama_stream(data: bytes) -> tuple[str, Calls]:
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return join(ollama, lines)


def join(reader: Callable[[Any], tuple[str, Calls]], documents: list[Any]) -> tuple[str, Calls]:
    found = [reader(document) for document in documents]
    return "".join(text for text, _ in found), [call for _, calls in found for call in calls]


def iter_frames(data: bytes) -> Iterator[tuple[dict[str, str], Any]]:
    """Headers and payload of each event-stream frame, both checksums verified."""
    while data:
        total, size, check = struct.unpack(">III", data[:12])
        message, data = data[:total], data[total:]
        assert crc32(message[:8]) == check
        assert crc32(message[:-4]) == int.from_bytes(message[-4:])
        yield dict(iter_headers(message[12 : 12 + size])), json.loads(message[12 + size : -4])


def iter_headers(data: bytes) -> Iterator[tuple[str, str]]:
    while data:
        end = 1 + data[0]
        kind, length = struct.unpack(">BH", data[end : end + 3])
        assert kind == 7
        yield data[1:end].decode(), data[end + 3 : end + 3 + length].decode()
        data = data[end + 3 + length :]


def bedrock_stream(data: bytes) -> tuple[str, Calls]:
    text, calls, names = "", {}, []
    for headers, event in iter_frames(data):
        names.append(headers[":event-type"])
        index = event.get("contentBlockIndex")
        if names[-1] == "contentBlockStart":
            calls[index] = {**event["start"]["toolUse"], "input": ""}
        elif names[-1] == "contentBlockDelta" and index in calls:
            calls[index]["input"] += event["delta"]["toolUse"]["input"]
        elif names[-1] == "contentBlockDelta":
            text += event["delta"]["text"]
    assert (names[0], names[-2:]) == ("messageStart", ["messageStop", "metadata"])
    return text, [(call["name"], json.loads(call["input"])) for call in calls.values()]


DOCUMENTS: dict[str, Callable[[Any], tuple[str, Calls]]] = {
    "anthropic": anthropic,
    "openai": chat,
    "copilot": chat,
    "deepseek": chat,
    "mistral": chat,
    "responses": responses,
    "gemini": gemini,
    "ollama": ollama,
    "bedrock": bedrock,
}
STREAMS: dict[str, Callable[[bytes], tuple[str, Calls]]] = {
    "anthropic": anthropic_stream,
    "openai": chat_stream,
    "copilot": chat_stream,
    "deepseek": chat_stream,
    "mistral": chat_stream,
    "responses": responses_stream,
    "gemini": gemini_stream,
    "gemini-array": gemini_array,
    "ollama": ollama_stream,
    "bedrock": bedrock_stream,
}
