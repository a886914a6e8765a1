"""What each API, and gptel, make of one conversation.

Tests write messages in Anthropic's shape.  `translate` gives them in that of another API, `body`
and `events` are a response as an API sends it.  `looped` is what gptel's tool loop repeats of a
response, `rebuilt` what it builds of it from the buffer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Element = dict[str, Any]

ARRAYS = {"gemini": "contents", "responses": "input"}  # the payload's key, where it is not messages


def translate(element: Element, api: str) -> list[Element]:
    """Return ELEMENT, in Anthropic's shape, as the elements of API."""
    return _WRITERS[api](element)


# What gptel does to a response


def looped(
    said: Element, answers: Mapping[str, str], *, streamed: bool, api: str = "anthropic"
) -> list[Element]:
    """Return what gptel's loop sends of the response SAID, and of the ANSWERS to its calls by id.

    Of a stream it keeps the calls alone, in reverse; of a whole response all, for Responses the
    calls.
    """
    calls = _of_type(said["content"], "tool_use")
    if streamed:
        calls.reverse()
    kept = calls if streamed or api == "responses" else said["content"]
    return [said | {"content": kept}, answer(calls, answers)]


def rebuilt(said: Element, answers: Mapping[str, str], *, backwards: bool) -> list[Element]:
    """Return what gptel builds of it from the buffer: no reasoning, calls one by one, one id.

    The calls come in the order in which their results were inserted.
    """
    texts = [block["text"] for block in _of_type(said["content"], "text")]
    calls = _of_type(said["content"], "tool_use")
    elements: list[Element] = [plain("".join(texts))] if texts else []
    for call in reversed(calls) if backwards else calls:
        renamed = call | {"id": calls[-1]["id"]}
        elements += [
            said | {"content": [renamed]},
            answer([renamed], {renamed["id"]: answers[call["id"]].strip()}),
        ]
    return elements


def plain(text: str) -> Element:
    """Return the assistant's message of TEXT as gptel builds it from the buffer."""
    return {"role": "assistant", "content": text.strip()}


def answer(calls: Sequence[Element], answers: Mapping[str, str]) -> Element:
    """Return the message with the ANSWERS to CALLS."""
    blocks = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": answers[call["id"]]}
        for call in calls
    ]
    return {"role": "user", "content": blocks}


def _of_type(content: str | Sequence[Element], *kinds: str) -> list[Element]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [block for block in blocks if block["type"] in kinds]


# Elements


def _write_bedrock(element: Element) -> list[Element]:
    blocks: list[Element] = []
    for block in _of_type(element["content"], *_BLOCKS):
        if block["type"] == "text":
            blocks.append({"text": block["text"]})
        elif block["type"] == "tool_use":
            use = {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}
            blocks.append({"toolUse": use})
        elif block["type"] == "thinking":
            said = {"text": block["thinking"], "signature": block["signature"]}
            blocks.append({"reasoningContent": {"reasoningText": said}})
        else:
            inner = [{"text": block["content"]}]
            blocks.append({"toolResult": {"toolUseId": block["tool_use_id"], "content": inner}})
    return [{"role": element["role"], "content": blocks}]


_BLOCKS = ("thinking", "text", "tool_use", "tool_result")


def _write_gemini(element: Element) -> list[Element]:
    thoughts = _of_type(element["content"], "thinking")
    parts: list[Element] = [{"text": block["thinking"], "thought": True} for block in thoughts]
    for block in _of_type(element["content"], *_BLOCKS[1:]):
        if block["type"] == "text":
            parts.append({"text": block["text"]})
        elif block["type"] == "tool_use":
            parts.append({"functionCall": {"name": block["name"], "args": block["input"]}})
        else:
            response = {"name": "read", "content": block["content"]}
            parts.append({"functionResponse": {"name": "read", "response": response}})
    if thoughts:
        signed = next((part for part in parts if "functionCall" in part), parts[-1])
        signed["thoughtSignature"] = thoughts[0]["signature"]
    return [{"role": "model" if element["role"] == "assistant" else "user", "parts": parts}]


def _write_responses(element: Element) -> list[Element]:
    if isinstance(element["content"], str):
        return [element]
    items: list[Element] = []
    for block in element["content"]:
        if block["type"] == "text":
            content = [{"type": "output_text", "text": block["text"]}]
            items.append({"type": "message", "role": element["role"], "content": content})
        elif block["type"] == "thinking":
            items.append({
                "type": "reasoning", "id": f"rs_{block['signature']}",
                "summary": [{"type": "summary_text", "text": block["thinking"]}],
                "encrypted_content": block["signature"],
            })  # fmt: skip
        elif block["type"] == "tool_use":
            items.append({
                "type": "function_call", "call_id": block["id"], "name": block["name"],
                "arguments": _arguments(block),
            })  # fmt: skip
        else:
            items.append({
                "type": "function_call_output", "call_id": block["tool_use_id"],
                "output": block["content"],
            })  # fmt: skip
    return items


def _arguments(call: Element) -> str:
    return json.dumps(call["input"])


def _make_chat(
    reason: Callable[[Element, Element], None], call: Callable[[Element], Element], *, named: bool
) -> Callable[[Element], list[Element]]:
    """Return the writer of an API of the chat shape.

    REASON puts a thinking block into a message, CALL writes a call; NAMED tells that results carry
    the id of their call.
    """

    def write(element: Element) -> list[Element]:
        content = element["content"]
        if isinstance(content, str):
            return [element]
        results = _of_type(content, "tool_result")
        if results:
            return [
                {"role": "tool"}
                | ({"tool_call_id": result["tool_use_id"]} if named else {})
                | {"content": result["content"]}
                for result in results
            ]
        texts = [block["text"] for block in _of_type(content, "text")]
        calls = [call(block) for block in _of_type(content, "tool_use")]
        said: Element = {"role": element["role"], "content": "".join(texts) or None}
        for block in _of_type(content, "thinking"):
            reason(said, block)
        return [said | ({"tool_calls": calls} if calls else {})]

    return write


def _chat_call(block: Element) -> Element:
    function = {"name": block["name"], "arguments": _arguments(block)}
    return {"id": block["id"], "type": "function", "function": function}


def _add_details(said: Element, block: Element) -> None:
    detail = {
        "type": "reasoning.text", "text": block["thinking"], "signature": block["signature"],
        "index": 0,
    }  # fmt: skip
    said["reasoning_details"] = [*said.get("reasoning_details", ()), detail]


def _add_chunk(said: Element, block: Element) -> None:
    chunk = {"type": "thinking", "thinking": [{"type": "text", "text": block["thinking"]}]}
    content = said["content"] or []
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said["content"] = [chunk, *texts]


def _add_member(name: str) -> Callable[[Element, Element], None]:
    def add(said: Element, block: Element) -> None:
        said[name] = said.get(name, "") + block["thinking"]

    return add


_WRITERS: dict[str, Callable[[Element], list[Element]]] = {
    "anthropic": lambda element: [element],
    "bedrock": _write_bedrock,
    "gemini": _write_gemini,
    "responses": _write_responses,
    "openai": _make_chat(_add_details, _chat_call, named=True),
    "mistral": _make_chat(_add_chunk, _chat_call, named=True),
    "deepseek": _make_chat(_add_member("reasoning_content"), _chat_call, named=True),
    "ollama": _make_chat(
        _add_member("thinking"),
        lambda block: {"function": {"name": block["name"], "arguments": block["input"]}},
        named=False,
    ),
}


# Bodies of responses


def body(said: Element, api: str) -> bytes:
    """Return the document in which API sends the response SAID."""
    elements = translate(said, api)
    wanted = bool(_of_type(said["content"], "tool_use"))
    document = {
        "anthropic": lambda: {
            "type": "message", "role": "assistant", "content": elements[0]["content"],
            "stop_reason": "tool_use" if wanted else "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 5},
        },
        "bedrock": lambda: {
            "output": {"message": elements[0]}, "stopReason": "tool_use" if wanted else "end_turn",
        },
        "gemini": lambda: {"candidates": [{"content": elements[0], "finishReason": "STOP"}]},
        "responses": lambda: {"object": "response", "status": "completed", "output": elements},
        "ollama": lambda: {"message": elements[0], "done": True, "done_reason": "stop"},
    }.get(
        api,
        lambda: {
            "choices": [{
                "index": 0, "message": elements[0],
                "finish_reason": "tool_calls" if wanted else "stop",
            }],
        },
    )()  # fmt: skip
    return json.dumps(document, ensure_ascii=False).encode()


def events(said: Element) -> bytes:
    """Return the response SAID as Anthropic's stream of events."""
    wanted = bool(_of_type(said["content"], "tool_use"))
    found: list[Element] = [
        {"type": "message_start", "message": {"type": "message", "content": []}}
    ]
    for index, block in enumerate(said["content"]):
        start, deltas = _EVENTS[block["type"]](block)
        found.append({"type": "content_block_start", "index": index, "content_block": start})
        found += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        found.append({"type": "content_block_stop", "index": index})
    reason = "tool_use" if wanted else "end_turn"
    found.append({"type": "message_delta", "delta": {"stop_reason": reason}})
    found.append({"type": "message_stop"})
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in found
    )


_EVENTS: dict[str, Callable[[Element], tuple[Element, list[Element]]]] = {
    "text": lambda block: (
        {"type": "text", "text": ""},
        [{"type": "text_delta", "text": block["text"]}],
    ),
    "thinking": lambda block: (
        {"type": "thinking", "thinking": "", "signature": ""},
        [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ],
    ),
    "tool_use": lambda block: (
        block | {"input": {}},
        [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}],
    ),
}
