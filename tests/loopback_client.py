"""The other end of the loopback provider: post a body, read an answer whatever its stream format.

`assemble` gives an answer as the elements that a client which loses nothing sends back, `read` the
text and the calls of it, so that a stream and a whole document of the same answer compare equal.
`Client` holds a conversation.
"""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tests.loopback import Loopback

PATHS = {
    "anthropic": "/v1/messages",
    "openai": "/v1/chat/completions",
    "copilot": "/copilot/chat/completions",
    "openrouter": "/openrouter/api/v1/chat/completions",
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
    return show(api, WHOLE[api](got.json))


def read_stream(api: str, got: Got) -> tuple[str, Calls]:
    """Text and calls of a stream."""
    return show(api, STREAMS[api](got.body))


def assemble(api: str, got: Got) -> list[Any]:
    """The elements of an answer, streamed or not."""
    streamed = got.headers["content-type"] != "application/json"
    return STREAMS[api](got.body) if streamed else WHOLE[api](got.json)


# Elements


def assistant(**fields: Any) -> list[Any]:
    return [{"role": "assistant", **fields}]


def ollama_message(whole: Any) -> list[Any]:
    return [whole["message"]]


WHOLE: dict[str, Callable[[Any], list[Any]]] = {
    "anthropic": lambda whole: assistant(content=whole["content"]),
    **dict.fromkeys(
        ("openai", "copilot", "openrouter", "deepseek", "mistral"),
        lambda whole: [whole["choices"][0]["message"]],
    ),
    "responses": lambda whole: [strip_status(item) for item in whole["output"]],
    "gemini": lambda whole: [whole["candidates"][0]["content"]],
    "ollama": ollama_message,
    "bedrock": lambda whole: [whole["output"]["message"]],
}


def strip_status(item: Any) -> Any:
    return {name: value for name, value in item.items() if name != "status"}


def show(api: str, elements: list[Any]) -> tuple[str, Calls]:
    """Text and calls of ELEMENTS."""
    if api == "responses":
        parts = [p for each in elements if each["type"] == "message" for p in each["content"]]
        made = [each for each in elements if each["type"] == "function_call"]
        return join_texts(parts), [(each["name"], json.loads(each["arguments"])) for each in made]
    (element,) = elements
    if api.startswith("gemini"):
        parts = element["parts"]
        made = [part["functionCall"] for part in parts if "functionCall" in part]
        said = [part for part in parts if not part.get("thought")]
        return join_texts(said), [(call["name"], call["args"]) for call in made]
    content = element["content"]
    text = content if isinstance(content, str) else join_texts(content or ())
    if api == "anthropic":
        made = [block for block in content if block["type"] == "tool_use"]
        return text, [(block["name"], block["input"]) for block in made]
    if api == "bedrock":
        made = [block["toolUse"] for block in content if "toolUse" in block]
        return text, [(call["name"], call["input"]) for call in made]
    functions = [call["function"] for call in element.get("tool_calls", ())]
    return text, [(f["name"], parse_arguments(f["arguments"])) for f in functions]


def join_texts(parts: Sequence[Any]) -> str:
    return "".join(part.get("text", "") for part in parts)


def parse_arguments(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


# Streams


def iter_sse(data: bytes) -> Iterator[tuple[str, Any]]:
    """Name and parsed data of each event; comments and the end mark are left out."""
    newline = b"\r\n" if data.endswith(b"\r\n") else b"\n"
    assert data.endswith(newline * 2)
    for event in data.split(newline * 2)[:-1]:
        lines = dict(line.split(b": ", 1) for line in event.split(newline) if line[:1] != b":")
        if lines and lines[b"data"] != b"[DONE]":
            yield lines.get(b"event", b"").decode(), json.loads(lines[b"data"])


DELTAS = {  # Anthropic: type of a delta -> field of the delta, field of the block
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "json"),
}


def anthropic_stream(data: bytes) -> list[Any]:
    blocks: list[Any] = []
    names = []
    for name, event in iter_sse(data):
        assert event["type"] == name
        names.append(name)
        if name == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
        elif name == "content_block_delta":
            source, target = DELTAS[event["delta"]["type"]]
            block = blocks[event["index"]]
            block[target] = block.get(target, "") + event["delta"][source]
    assert (names[0], names[-1]) == ("message_start", "message_stop")
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json") or "{}")
    return assistant(content=[block for block in blocks if block.get("text") != ""])


def chat_stream(data: bytes) -> list[Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for _, chunk in iter_sse(data):
        for name, value in (chunk["choices"][0]["delta"] if chunk["choices"] else {}).items():
            if name == "tool_calls":
                add_calls(message.setdefault(name, []), value)
            elif name == "reasoning_details":
                add_details(message.setdefault(name, []), value)
            elif isinstance(value, list) or isinstance(message.get(name), list):
                message[name] = add_chunks(to_chunks(message[name]), to_chunks(value))
            elif name != "role":
                message[name] = (message.get(name) or "") + (value or "")
    return [message]


def add_calls(calls: list[Any], deltas: list[Any]) -> None:
    for delta in deltas:
        if delta["index"] == len(calls):
            calls.append({**delta, "function": dict(delta["function"])})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]


def add_details(details: list[Any], deltas: list[Any]) -> None:
    for delta in deltas:
        if delta["index"] == len(details):
            details.append(dict(delta))
        else:
            whole = details[delta["index"]]
            whole.update(delta, text=whole["text"] + delta.get("text", ""))


def to_chunks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def add_chunks(content: list[Any], deltas: list[Any]) -> list[Any]:
    """Mistral: a chunk of thinking is open until one says that it is closed."""
    for delta in deltas:
        last: dict[str, Any] = content[-1] if content else {}
        if delta["type"] == "thinking" and last.get("closed") is False:
            content[-1] = {**last, **delta, "thinking": last["thinking"] + delta["thinking"]}
        elif delta.get("text") != "":
            content.append(delta)
    return content


def responses_stream(data: bytes) -> list[Any]:
    found = list(iter_sse(data))
    assert [event["sequence_number"] for _, event in found] == list(range(len(found)))
    assert found[-1][0] == "response.completed"
    deltas = [event["delta"] for name, event in found if name == "response.output_text.delta"]
    items = [event["item"] for name, event in found if name == "response.output_item.done"]
    assert found[-1][1]["response"]["output"] == items
    assert "".join(deltas) == show("responses", items)[0]
    return [strip_status(item) for item in items]


def gemini_stream(data: bytes) -> list[Any]:
    return gemini_parts([event for _, event in iter_sse(data)])


def gemini_array(data: bytes) -> list[Any]:
    return gemini_parts(json.loads(data))


def gemini_parts(documents: list[Any]) -> list[Any]:
    parts = [p for each in documents for p in each["candidates"][0]["content"]["parts"]]
    return [{"role": "model", "parts": parts}]


def ollama_stream(data: bytes) -> list[Any]:
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in lines:
        for name in ("content", "thinking", "tool_calls"):
            if value := line["message"].get(name):
                message[name] = message.get(name, type(value)()) + value
    return [message]


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


def bedrock_stream(data: bytes) -> list[Any]:
    blocks: list[Any] = []
    names = []
    for headers, event in iter_frames(data):
        names.append(headers[":event-type"])
        index = event.get("contentBlockIndex")
        if index is not None and index == len(blocks):
            blocks.append({})
        if names[-1] == "contentBlockStart":
            blocks[index] = {"toolUse": {**event["start"]["toolUse"], "input": ""}}
        elif names[-1] == "contentBlockDelta":
            add_block(blocks[index], event["delta"])
    assert (names[0], names[-2:]) == ("messageStart", ["messageStop", "metadata"])
    for block in blocks:
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"] or "{}")
    return assistant(content=[block for block in blocks if block])


def add_block(block: Any, delta: Any) -> None:
    if "toolUse" in delta:
        block["toolUse"]["input"] += delta["toolUse"]["input"]
    elif "text" in delta:
        block["text"] = block.get("text", "") + delta["text"]
    elif "redactedContent" in delta["reasoningContent"]:
        block.update(delta)
    else:
        text = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {"text": ""})
        for name, value in delta["reasoningContent"].items():
            text[name] = text.get(name, "") + value


STREAMS: dict[str, Callable[[bytes], list[Any]]] = {
    "anthropic": anthropic_stream,
    **dict.fromkeys(("openai", "copilot", "openrouter", "deepseek", "mistral"), chat_stream),
    "responses": responses_stream,
    "gemini": gemini_stream,
    "gemini-array": gemini_array,
    "ollama": ollama_stream,
    "bedrock": bedrock_stream,
}


# Conversations


def keep(value: Any, *names: str) -> Any:
    return {name: value[name] for name in names if name in value}


ARRAYS = {"responses": "input", "gemini": "contents", "gemini-array": "contents"}


def results(api: str, element: Any) -> list[Any]:
    """The elements that answer each call of ELEMENT."""
    if api == "anthropic":
        made = [block["id"] for block in element["content"] if block["type"] == "tool_use"]
        blocks = [{"type": "tool_result", "tool_use_id": n, "content": f"of {n}"} for n in made]
        return [{"role": "user", "content": blocks}] if blocks else []
    if api == "bedrock":
        made = [block["toolUse"]["toolUseId"] for block in element["content"] if "toolUse" in block]
        content = [{"toolResult": {"toolUseId": n, "content": [{"text": n}]}} for n in made]
        return [{"role": "user", "content": content}] if content else []
    if api.startswith("gemini"):
        made = [part["functionCall"] for part in element["parts"] if "functionCall" in part]
        parts = [
            {"functionResponse": {**keep(call, "id", "name"), "response": {"content": "ok"}}}
            for call in made
        ]
        return [{"role": "user", "parts": parts}] if parts else []
    if api == "responses":
        if element["type"] != "function_call":
            return []
        name = element["call_id"]
        return [{"type": "function_call_output", "call_id": name, "output": f"of {name}"}]
    calls = element.get("tool_calls") or ()
    if api == "ollama":
        return [
            {"role": "tool", "content": "ok", "tool_name": c["function"]["name"]} for c in calls
        ]
    return [{"role": "tool", "tool_call_id": c["id"], "content": f"of {c['id']}"} for c in calls]


@dataclass(kw_only=True)
class Client:
    """A conversation with one API of SERVER that sends back whatever it received.

    `lose` may change the whole array before it is sent; `body` has what else a request says.
    """

    server: Loopback
    api: str
    streamed: bool = False
    body: dict[str, Any] = field(default_factory=dict)
    lose: Callable[[list[Any]], list[Any]] = list
    array: list[Any] = field(default_factory=list)

    def prompt(self, text: str = "go") -> Got:
        """Say TEXT and answer calls until there are none; the last answer, or the refusal."""
        self.array += prompt(self.api, text)[self.name]
        while True:
            got = self.send()
            if got.status != 200:
                return got
            elements = assemble(self.api, got)
            self.array += elements
            answers = [each for element in elements for each in results(self.api, element)]
            if not answers:
                return got
            self.array += answers

    @property
    def name(self) -> str:
        """The member of a body that holds the conversation."""
        return ARRAYS.get(self.api, "messages")

    def make_body(self, array: list[Any]) -> dict[str, Any]:
        """A body that holds ARRAY."""
        return {**prompt(self.api), **self.body, self.name: array}

    def encode(self, array: list[Any]) -> bytes:
        """A body that holds ARRAY, as bytes."""
        return json.dumps(self.make_body(array)).encode()

    def send(self) -> Got:
        """Send the conversation as it stands."""
        body = self.make_body(self.lose(json.loads(json.dumps(self.array))))
        path, body = streaming(self.api, body) if self.streamed else (PATHS[self.api], body)
        return ask(self.server, path, body)
