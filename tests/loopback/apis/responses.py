"""OpenAI Responses: `POST .../v1/responses`.

Calls and outputs are items of their own and are paired by id alone: each call has an output further
on, each output a call further back.  An item that names itself by an id of the provider is bound to
the reasoning that it was issued with, and that reasoning to what followed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from tests.loopback.apis import chat
from tests.loopback.cache import whole
from tests.loopback.issued import Issued, Response
from tests.loopback.model import (
    Answer,
    Api,
    Atom,
    Block,
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
from tests.loopback.script import ScriptError
from tests.loopback.seals import NONCE, opens, seal
from tests.loopback.shape import ShapeError, need, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import pieces, sse

MAX_ID = 64  # characters
ID = re.compile(r"[A-Za-z0-9_-]+")
PREFIXES = {"function_call": "fc", "message": "msg", "reasoning": "rs"}
ROLES = ("user", "assistant", "system", "developer")
REQUIRED = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
    "reasoning": (),
}
ENCRYPTED = "gAAAAAB"  # what encrypted content begins with
INCLUDE = "reasoning.encrypted_content"
USER_PARTS = ("input_text", "input_image", "input_file")
ASSISTANT_PARTS = ("output_text", "refusal")


def refuse(message: str, param: str = "input", code: str | None = None) -> Refused:
    return Refused(message, param=param, code=code)


def check(request: Request, _: Strictness, issued: Issued) -> None:
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
    check_reasoning(items, request.json, issued)
    check_companions(items, issued)


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
    elif kind == "reasoning":
        check_summary(item, path)
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


def check_summary(item: Object, path: str) -> None:
    if item.get("encrypted_content") is None:
        need(item, "id", str, path)
    else:
        need(item, "encrypted_content", str, path)
    for index, part in enumerate(need(item, "summary", list, path)):
        need(want(part, dict, f"{path}.summary[{index}]"), "text", str, f"{path}.summary[{index}]")


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
        raise unfollowed(item)


def unfollowed(item: Object) -> Refused:
    return refuse(
        f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following"
        " item."
    )


def check_reasoning(items: Sequence[Object], body: Object, issued: Issued) -> None:
    """Reasoning is encrypted by us and for this model, or still stored."""
    for item in items:
        if kind_of(item) != "reasoning":
            continue
        blob = item.get("encrypted_content")
        if blob is not None:
            token = blob.removeprefix(ENCRYPTED)
            if not opens(token, "responses", str(body["model"]), summary_of(item)):
                raise refuse(
                    f"The encrypted content {blob[:12]}... could not be verified. Reason: Encrypted"
                    " content could not be decrypted or parsed.",
                    code="invalid_encrypted_content",
                )
        elif body.get("store") is False:
            raise not_found(
                item["id"],
                " Items are not persisted when `store` is set to false. Try again with `store` set"
                " to true, or remove this item from your input.",
            )
        elif not issued.find("responses", Atom("id", item["id"])):
            raise not_found(item["id"])


def not_found(name: str, more: str = "") -> Refused:
    return Refused(f"Item with id '{name}' not found.{more}", status=404, param="input")


def summary_of(item: Object) -> str:
    return "".join(part["text"] for part in item["summary"])


def check_companions(items: Sequence[Object], issued: Issued) -> None:
    """What was issued with reasoning comes with it, and reasoning with what followed it."""
    for number, item in enumerate(items):
        for place in issued.find("responses", Atom("id", str(item.get("id")))):
            elements = place.response.elements
            if kind_of(item) == "reasoning":
                after = items[number + 1]  # something follows, by `check_followed`
                if not all(is_same(e, after) for e in elements[place.index + 1 :][:1]):
                    raise unfollowed(item)
                continue
            thoughts = [e for e in elements[: place.index] if kind_of(e) == "reasoning"]
            if thoughts and not any(is_same(thoughts[-1], each) for each in items[:number]):
                raise refuse(
                    f"Item '{item['id']}' of type '{kind_of(item)}' was provided without its"
                    f" required 'reasoning' item: '{thoughts[-1]['id']}'."
                )


def is_same(element: Object, item: Object) -> bool:
    """Whether ITEM is ELEMENT, by its id or, without one, by what it is."""
    if item.get("id") is not None:
        return bool(item["id"] == element["id"])
    atoms = set(iter_atoms(item))
    return bool(atoms) and atoms <= set(iter_atoms(element))


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
    thought = len(answer.reasoning) // 4
    output = len(answer.text) // 4 + 1 + thought
    return {
        "input_tokens": context.input_tokens,
        "input_tokens_details": {"cached_tokens": context.cached.read},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": context.input_tokens + output,
    }


def output(answer: Answer, context: Context) -> list[Object]:
    """The items, in order; text before a call is commentary."""
    blocks = [block for block in answer.blocks if block != Text("")]
    calls = [number for number, block in enumerate(blocks) if isinstance(block, Call)]
    return [
        make_item(number, block, context, final=not any(call > number for call in calls))
        for number, block in enumerate(blocks)
    ]


def make_item(number: int, block: Block, context: Context, *, final: bool) -> Object:
    match block:
        case Thinking(text):
            item: Object = {
                "type": "reasoning",
                "id": context.id("rs_", 48, number),
                "summary": [{"type": "summary_text", "text": text}] if text else [],
            }
            if encrypts(context):
                nonce = context.id("", NONCE, number)
                item["encrypted_content"] = ENCRYPTED + seal(
                    nonce, "responses", context.model, text
                )
            return item
        case Text(text):
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            return {
                "type": "message",
                "id": context.id("msg_", 48, number),
                "status": "completed",
                "role": "assistant",
                "content": [part],
                "phase": "final_answer" if final else "commentary",
            }
        case Call(name):
            return {
                "type": "function_call",
                "id": context.id("fc_", 48, number),
                "call_id": context.id("call_", 24, number),
                "name": name,
                "arguments": block.arguments,
                "status": "completed",
            }
    raise ScriptError(f"script: not a block of the responses API: {block!r}")


def encrypts(context: Context) -> bool:
    """Whether reasoning comes with its encrypted content."""
    body = context.request.json
    if INCLUDE in want(body.get("include") or [], list, "include"):
        return True
    return context.strictness.encrypted_by_default and body.get("store") is False


def said(answer: Answer, context: Context) -> tuple[Object, ...]:
    items = output(answer, context)
    return tuple({k: v for k, v in item.items() if k != "status"} for item in items)


def returnable(response: Response) -> list[Object | None]:
    """Reasoning that is neither stored nor encrypted cannot come back, and no id that needs it.

    Nor can reasoning that nothing followed.
    """
    elements = response.elements
    thoughts = [kind_of(element) == "reasoning" for element in elements]
    lost = [
        thought and (all(thoughts[number:]) or is_gone(element, response.body))
        for number, (thought, element) in enumerate(zip(thoughts, elements, strict=True))
    ]
    return [
        None if gone else without_id(element) if any(lost[:number]) else element
        for number, (gone, element) in enumerate(zip(lost, elements, strict=True))
    ]


def is_gone(element: Object, body: Object) -> bool:
    """Whether the reasoning ELEMENT is neither stored nor encrypted."""
    return body.get("store") is False and "encrypted_content" not in element


def without_id(element: Object) -> Object:
    return {name: value for name, value in element.items() if name != "id"}


def normal(item: Object) -> Object:
    """The item without its status, its content as parts without empty lists."""
    whole = {"type": "message", **item}
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content}]
    if isinstance(content, list):
        whole["content"] = [{k: v for k, v in p.items() if v not in ([], None)} for p in content]
    return {k: v for k, v in whole.items() if k != "status" and v is not None}


def iter_atoms(item: Object) -> Iterator[Atom]:
    kind = kind_of(item)
    if kind not in PREFIXES or item.get("role", "assistant") != "assistant":
        return
    if item.get("id"):
        yield Atom("id", item["id"])
    if kind == "function_call":
        yield Atom("id", item["call_id"])
        yield Atom("arguments", item["arguments"])
    elif kind == "reasoning":
        yield from chat.some("seal", item.get("encrypted_content"))
        yield from chat.some("reasoning", summary_of(item))
    else:
        content = normal(item)["content"]
        text = "".join(part["text"] for part in content if part["type"] == "output_text")
        yield Atom("text", text.strip())


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
    if answer.error is not None:
        said = takewhile(lambda item: item["type"] != "function_call", whole["output"])
        whole = {**whole, "output": list(said)}
    for index, item in enumerate(whole["output"]):
        yield from EVENTS[item["type"]](index, item)
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


def reasoning_events(index: int, item: Object) -> Iterator[tuple[str, Object]]:
    """Encrypted content is in the finished item alone."""
    place = {"item_id": item["id"], "output_index": index, "summary_index": 0}
    started = {"type": "reasoning", "id": item["id"], "summary": []}
    yield "response.output_item.added", {"output_index": index, "item": started}
    for part in item["summary"]:
        yield "response.reasoning_summary_part.added", {**place, "part": {**part, "text": ""}}
        for piece in pieces(part["text"]):
            yield "response.reasoning_summary_text.delta", {**place, "delta": piece}
        yield "response.reasoning_summary_text.done", {**place, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {**place, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


EVENTS = {
    "message": message_events,
    "function_call": call_events,
    "reasoning": reasoning_events,
}

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
    array="input",
    entries=lambda body: whole(body, "input"),
    said=said,
    normal=normal,
    atoms=iter_atoms,
    returnable=returnable,
)
