"""OpenAI Responses: `POST .../v1/responses`.

Calls and outputs are items of their own and are paired by id alone: each call has an output further
on, each output a call further back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tests.loopback.apis import chat, claude
from tests.loopback.model import Answer, Api, Context, Json, Object, Refused, Request, Step
from tests.loopback.shape import ShapeError, need, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import dumps, pieces, sse

MAX_ID = 64  # characters
ID = re.compile(r"[A-Za-z0-9_-]+")
PREFIXES = {"function_call": "fc", "message": "msg", "reasoning": "rs"}
ROLES = ("user", "assistant", "system", "developer")
REQUIRED = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
    "reasoning": ("id",),
}
USER_PARTS = ("input_text", "input_image", "input_file")
ASSISTANT_PARTS = ("output_text", "refusal")


def refuse(message: str, param: str = "input", code: str | None = None) -> Refused:
    return Refused(message, param=param, code=code)


def check(request: Request, _: Strictness) -> None:
    """Refuse what the API refuses."""
    need(request.json, "model", str)
    if isinstance(request.json.get("input"), str):
        return
    items = need(request.json, "input", list)
    for number, item in enumerate(items):
        check_item(want(item, dict, f"input[{number}]"), f"input[{number}]")
    check_unique(items)
    check_pairing(items)
    check_followed(items)


def kind_of(item: Object) -> str:
    return str(item.get("type", "message"))


def check_item(item: Object, path: str) -> None:
    kind = kind_of(item)
    if kind not in ("message", *REQUIRED):
        raise refuse(f"Invalid value: '{kind}'.", path, "invalid_value")
    for key in REQUIRED.get(kind, ()):
        need(item, key, str, path)
    check_ids(item, kind, path)
    if kind == "message":
        check_message(item, path)
    elif kind == "function_call_output" and not isinstance(item.get("output"), str):
        need(item, "output", list, path)


def check_ids(item: Object, kind: str, path: str) -> None:
    for key in ("id", "call_id"):
        name = item.get(key)
        if name is None:
            continue
        if len(want(name, str, f"{path}.{key}")) > MAX_ID:
            raise refuse(
                f"Invalid '{path}.{key}': string too long. Expected a string with maximum length"
                f" {MAX_ID}, but got a string with length {len(name)} instead.",
                f"{path}.{key}",
                "string_above_max_length",
            )
        if not ID.fullmatch(name):
            raise refuse(
                f"Invalid '{path}.{key}': '{name}'. Expected an ID that contains letters, numbers,"
                " underscores, or dashes, but this value contained additional characters.",
                f"{path}.{key}",
                "invalid_value",
            )
    prefix = PREFIXES.get(kind, "")
    if item.get("id") is not None and not item["id"].startswith(prefix):
        raise refuse(
            f"Invalid '{path}.id': '{item['id']}'. Expected an ID that begins with '{prefix}'.",
            f"{path}.id",
            "invalid_value",
        )


def check_message(item: Object, path: str) -> None:
    role = need(item, "role", str, path)
    if role not in ROLES:
        supported = ", ".join(f"'{name}'" for name in ROLES[:-1])
        raise refuse(
            f"Invalid value: '{role}'. Supported values are: {supported}, and '{ROLES[-1]}'.",
            path,
            "invalid_value",
        )
    if "content" not in item:
        raise ShapeError(f"{path}.content", "")
    if isinstance(item["content"], str):
        return
    allowed = ASSISTANT_PARTS if role == "assistant" else USER_PARTS
    for index, part in enumerate(want(item["content"], list, f"{path}.content")):
        where = f"{path}.content[{index}]"
        kind = need(want(part, dict, where), "type", str, where)
        if kind not in allowed:
            supported = " and ".join(f"'{name}'" for name in allowed)
            raise refuse(
                f"Invalid value: '{kind}'. Supported values are: {supported}.",
                where,
                "invalid_value",
            )
        if kind in ("input_text", "output_text"):
            need(part, "text", str, where)


def check_unique(items: Sequence[Object]) -> None:
    seen: set[str] = set()
    for item in items:
        names = [item.get("id")]
        if kind_of(item) == "function_call":
            names.append(item["call_id"])
        for name in filter(None, names):
            if name in seen:
                raise refuse(f"Duplicate item found with id {name}.")
            seen.add(name)


def check_pairing(items: Sequence[Object]) -> None:
    open_ids: list[str] = []
    known = set()
    for item in items:
        if kind_of(item) == "function_call":
            open_ids.append(item["call_id"])
            known.add(item["call_id"])
        elif kind_of(item) == "function_call_output":
            if item["call_id"] not in known:
                raise refuse(
                    f"No tool call found for function call output with call_id {item['call_id']}."
                )
            if item["call_id"] not in open_ids:
                raise refuse(f"Duplicate item found with id {item['call_id']}.")
            open_ids.remove(item["call_id"])
    if open_ids:
        raise refuse(f"No tool output found for function call {open_ids[0]}.")


def check_followed(items: Sequence[Object]) -> None:
    """Reasoning stands before what it led to."""
    for number, item in enumerate(items):
        if kind_of(item) != "reasoning":
            continue
        after = next(
            (later for later in items[number + 1 :] if kind_of(later) != "reasoning"),
            {"type": "end"},
        )
        if kind_of(after) == "function_call" or after.get("role") == "assistant":
            continue
        raise refuse(
            f"Item '{item['id']}' of type 'reasoning' was provided without its required following"
            " item."
        )


def steps(body: Object) -> list[Step]:
    items = body["input"]
    if isinstance(items, str):
        return [Step(kind="user", texts=(items,))]
    found = []
    for item in items:
        if kind_of(item) == "function_call_output":
            found.append(Step(kind="results", texts=(str(item["output"]),)))
        elif kind_of(item) != "message" or item["role"] == "assistant":
            found.append(Step(kind="assistant", texts=()))
        elif item["role"] == "user":
            found.append(Step(kind="user", texts=get_texts(item["content"])))
    return found


def get_texts(content: Json) -> tuple[str, ...]:
    if isinstance(content, str):
        return (content,)
    return tuple(part["text"] for part in content if part["type"] == "input_text")


def usage(answer: Answer, context: Context) -> Object:
    output = len(answer.text) // 4 + 1
    return {
        "input_tokens": context.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": context.input_tokens + output,
    }


def output(answer: Answer, context: Context) -> list[Object]:
    claude.refuse_reasoning(answer, "responses")
    items: list[Object] = []
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "type": "message",
                "id": context.id("msg_", 48),
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    for index, call in enumerate(answer.calls):
        items.append(
            {
                "type": "function_call",
                "id": context.id("fc_", 48, index),
                "call_id": context.id("call_", 24, index),
                "name": call.name,
                "arguments": dumps(call.args),
                "status": "completed",
            }
        )
    return items


def document(answer: Answer, context: Context) -> Json:
    return {
        "id": context.id("resp_", 48),
        "object": "response",
        "created_at": context.created,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": context.model,
        "output": output(answer, context),
        "store": False,
        "usage": usage(answer, context),
    }


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    for number, (name, fields) in enumerate(iter_events(answer, context)):
        yield sse({"type": name, "sequence_number": number, **fields}, event=name)


def iter_events(answer: Answer, context: Context) -> Iterator[tuple[str, Object]]:
    whole = document(answer, context)
    opening = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": opening}
    yield "response.in_progress", {"response": opening}
    for index, item in enumerate(whole["output"]):
        if item["type"] == "function_call" and answer.error is not None:
            break
        yield from (
            message_events(index, item) if item["type"] == "message" else call_events(index, item)
        )
    if answer.error is not None:
        failure = {"code": "server_error", "message": answer.error}
        yield "error", {**failure, "param": None, "error": {"type": "server_error", **failure}}
        failed = {**whole, "status": "failed", "error": failure, "usage": None}
        yield "response.failed", {"response": failed}
        return
    yield "response.completed", {"response": whole}


def message_events(index: int, item: Object) -> Iterator[tuple[str, Object]]:
    part = item["content"][0]
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    started = {**item, "status": "in_progress", "content": []}
    yield "response.output_item.added", {"output_index": index, "item": started}
    yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


def call_events(index: int, item: Object) -> Iterator[tuple[str, Object]]:
    place = {"item_id": item["id"], "output_index": index}
    started = {**item, "status": "in_progress", "arguments": ""}
    yield "response.output_item.added", {"output_index": index, "item": started}
    for piece in pieces(item["arguments"]):
        yield "response.function_call_arguments.delta", {**place, "delta": piece}
    yield "response.function_call_arguments.done", {**place, "arguments": item["arguments"]}
    yield "response.output_item.done", {"output_index": index, "item": item}


API = Api(
    name="responses",
    route=re.compile(r"(?:/\w+)*/responses"),
    check=check,
    misshapen=chat.misshapen,
    steps=steps,
    streams=chat.streams,
    document=document,
    events=events,
    stream_type=chat.event_stream,
    fault=chat.fault,
    envelope=chat.envelope,
)
