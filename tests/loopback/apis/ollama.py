"""Ollama: `POST /api/chat`.  Shapes are checked, pairing is not; templates rarely mind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from tests.loopback.model import Answer, Api, Context, Json, Object, Refused, Request, Step
from tests.loopback.shape import need, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import dumps, pieces

ROLES = ("system", "user", "assistant", "tool")


def check(request: Request, _: Strictness) -> None:
    """Refuse what does not fit the server's types."""
    if not want(request.json.get("model", ""), str, "model"):
        raise Refused("model is required")
    for message in want(request.json.get("messages") or [], list, "messages"):
        check_message(want(message, dict, "messages"))


def check_message(message: Object) -> None:
    role = want(message.get("role", ""), str, "messages.role")
    if role not in ROLES:
        raise Refused(f"invalid role: {role}")
    want(message.get("content") or "", str, "messages.content")
    want(message.get("thinking") or "", str, "messages.thinking")
    for call in want(message.get("tool_calls") or [], list, "messages.tool_calls"):
        path = "messages.tool_calls"
        function = need(want(call, dict, path), "function", dict, path)
        need(function, "name", str, f"{path}.function")
        want(function.get("arguments") or {}, dict, f"{path}.function.arguments")


def misshapen(path: str, expected: str) -> Refused:
    if not expected:
        return Refused(f"{path} is required")
    return Refused(
        f"json: cannot unmarshal into Go struct field ChatRequest.{path} of type {expected}"
    )


def steps(body: Object) -> list[Step]:
    kinds = {"user": "user", "assistant": "assistant", "tool": "results"}
    return [
        Step(kind=kinds[message["role"]], texts=(message.get("content") or "",))  # type: ignore[arg-type]  # by table
        for message in body.get("messages") or ()
        if message["role"] in kinds
    ]


def line(context: Context, message: Object, **fields: Json) -> Object:
    created = datetime.fromtimestamp(context.created, UTC).isoformat().replace("+00:00", "Z")
    said = {"role": "assistant", "content": "", **message}
    return {"model": context.model, "created_at": created, "message": said, "done": False, **fields}


def ending(answer: Answer, context: Context) -> Object:
    return {
        "done": True,
        "done_reason": "stop",
        "total_duration": 3_000_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": context.input_tokens,
        "prompt_eval_duration": 1_000_000,
        "eval_count": len(answer.text) // 4 + 1,
        "eval_duration": 1_000_000,
    }


def tool_calls(answer: Answer) -> list[Object]:
    return [
        {"function": {"index": index, "name": call.name, "arguments": call.args}}
        for index, call in enumerate(answer.calls)
    ]


def document(answer: Answer, context: Context) -> Json:
    said: Object = {"content": answer.text}
    if answer.reasoning:
        said["thinking"] = answer.reasoning
    if answer.calls:
        said["tool_calls"] = tool_calls(answer)
    return line(context, said, **ending(answer, context))


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    for value in iter_lines(answer, context):
        yield dumps(value).encode() + b"\n"


def iter_lines(answer: Answer, context: Context) -> Iterator[Object]:
    for piece in pieces(answer.reasoning or ""):
        yield line(context, {"thinking": piece})
    for piece in pieces(answer.text):
        yield line(context, {"content": piece})
    if answer.error is not None:
        yield {"error": answer.error}
        return
    if answer.calls:
        yield line(context, {"tool_calls": tool_calls(answer)})
    yield line(context, {}, **ending(answer, context))


API = Api(
    name="ollama",
    route=re.compile(r"(?:/\w+)?/api/chat"),
    check=check,
    misshapen=misshapen,
    steps=steps,
    streams=lambda request: request.json.get("stream") is not False,
    document=document,
    events=events,
    stream_type=lambda _: "application/x-ndjson",
    fault=lambda status, message: Refused(message, status=status),
    envelope=lambda refused, _: {"error": refused.message},
)
