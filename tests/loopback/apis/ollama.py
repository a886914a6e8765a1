"""Ollama: `POST /api/chat`.  Shapes are checked, pairing is not; templates rarely mind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby

from tests.loopback.cache import whole
from tests.loopback.issued import Issued
from tests.loopback.model import (
    Answer,
    Api,
    Atom,
    Call,
    Context,
    Json,
    Object,
    Refused,
    Request,
    Step,
    Text,
    Thinking,
)
from tests.loopback.script import want_thinking
from tests.loopback.shape import need, nullable, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import dumps, pieces

ROLES = ("system", "user", "assistant", "tool")


def check(request: Request, _: Strictness, __: Issued) -> None:
    """Refuse what does not fit the server's types."""
    if not want(request.json.get("model", ""), str, "model"):
        raise Refused("model is required")
    for message in want(request.json.get("messages") or [], list, "messages"):
        check_message(want(message, dict, "messages"))


def check_message(message: Object) -> None:
    role = want(message.get("role", ""), str, "messages.role")
    if role not in ROLES:
        raise Refused(f"invalid role: {role}")
    for name in ("content", "thinking"):
        nullable(message, name, str, "messages")
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


def message(answer: Answer) -> Object:
    """What the assistant says, without its role."""
    said: Object = {"content": answer.text}
    want_thinking(answer, "ollama")
    if answer.reasoning:
        said["thinking"] = answer.reasoning
    if answer.calls:
        said["tool_calls"] = tool_calls(answer)
    return said


def document(answer: Answer, context: Context) -> Json:
    return line(context, message(answer), **ending(answer, context))


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    for value in iter_lines(answer, context):
        yield dumps(value).encode() + b"\n"


def iter_lines(answer: Answer, context: Context) -> Iterator[Object]:
    """Text in pieces as it comes; calls whole, those that stand together in one line."""
    calls = iter(message(answer).get("tool_calls", ()))
    for kind, blocks in groupby(answer.blocks, type):
        if kind is Call and answer.error is not None:
            break
        if kind is Call:
            yield line(context, {"tool_calls": [next(calls) for _ in blocks]})
            continue
        name = "content" if kind is Text else "thinking"
        for block in blocks:
            assert isinstance(block, Text | Thinking)
            for piece in pieces(block.text):
                yield line(context, {name: piece})
    if answer.error is not None:
        yield {"error": answer.error}
        return
    yield line(context, {}, **ending(answer, context))


def normal(element: Object) -> Object:
    """The message without what says nothing; its arguments as JSON text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments_of(call)}}
        for call in element.get("tool_calls") or ()
    ]
    whole = {**element, "tool_calls": calls}
    return {name: value for name, value in whole.items() if value not in (None, "", [])}


def arguments_of(call: Object) -> str:
    return dumps(call["function"].get("arguments") or {})


def iter_atoms(element: Object) -> Iterator[Atom]:
    """Calls have no ids; those that are alike are not told apart."""
    if element.get("role") != "assistant":
        return
    for call in element.get("tool_calls") or ():
        yield Atom("call", f"{call['function']['name']} {arguments_of(call)}")
        yield Atom("arguments", arguments_of(call))
    for kind, name in (("reasoning", "thinking"), ("text", "content")):
        if text := (element.get(name) or "").strip():
            yield Atom(kind, text)  # type: ignore[arg-type]  # a literal by table


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
    array="messages",
    entries=lambda body: whole(body, "messages"),
    said=lambda answer, _: ({"role": "assistant", **message(answer)},),
    normal=normal,
    atoms=iter_atoms,
)
