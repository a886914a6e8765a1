"""Bedrock Converse: `POST /model/ID/converse` and `/converse-stream`.

Roles alternate without exception.  Whether text may stand beside tool results depends on who made
the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tests.loopback import thinking
from tests.loopback.apis import claude
from tests.loopback.cache import Entry, render
from tests.loopback.issued import Issued
from tests.loopback.model import (
    Answer,
    Api,
    Atom,
    Block,
    Call,
    Context,
    Json,
    Object,
    Redacted,
    Refused,
    Request,
    Step,
    Text,
    Thinking,
)
from tests.loopback.script import ScriptError
from tests.loopback.shape import need, optional, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import canonical, dumps, frame, pieces

CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BLOCKS = {
    "text",
    "image",
    "document",
    "video",
    "toolUse",
    "toolResult",
    "reasoningContent",
    "cachePoint",
    "guardContent",
}
ROUTE = re.compile(r"(?:/\w+)?/model/(?P<model>[^/]+)/(?:converse|converse-stream)")
EXCEPTIONS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}


def check(request: Request, strictness: Strictness, issued: Issued) -> None:
    """Refuse what the API refuses."""
    model = model_of(request)
    messages = want(request.json.get("messages", []), list, "messages")
    if not messages:
        raise Refused(
            "The messages field is empty. Add a message to the messages field and try again."
        )
    for number, message in enumerate(messages):
        check_message(want(message, dict, f"messages.{number}"), f"messages.{number}")
    check_roles(messages)
    check_tool_config(request.json, messages)
    marks = find_marks(request.json)
    if is_claude(model):
        check_marks(marks)
        check_unique(messages)
    check_pairing(messages, is_claude(model))
    if is_claude(model):
        thinking.check_thinking(request, strictness, issued, WAY)
    if messages[-1]["role"] == "assistant" and (
        not is_claude(model) or claude.refuses_prefill(model)
    ):
        raise Refused(claude.PREFILL)


def model_of(request: Request) -> str:
    found = ROUTE.fullmatch(request.path)
    return found["model"] if found else ""


def is_claude(model: str) -> bool:
    return "anthropic" in model


def check_message(message: Object, path: str) -> None:
    role = need(message, "role", str, path)
    if role not in ("user", "assistant"):
        raise Refused(
            f"1 validation error detected: Value '{role}' at '{path}.member.role' failed to"
            " satisfy constraint: Member must satisfy enum value set: [user, assistant]"
        )
    content = need(message, "content", list, path)
    if not content:
        raise Refused(
            f"The content field in the Message object at {path} is empty. Add a ContentBlock"
            " object to the content field and try again."
        )
    for index, block in enumerate(content):
        check_block(want(block, dict, f"{path}.content.{index}"), f"{path}.content.{index}")


def check_block(block: Object, path: str) -> None:
    if len(block) != 1 or not set(block) <= BLOCKS:
        raise Refused(
            f"The ContentBlock object at {path} must set one of the following keys:"
            f" {', '.join(sorted(BLOCKS))}."
        )
    if "text" in block and not want(block["text"], str, f"{path}.text").strip():
        raise Refused(
            f"The text field in the ContentBlock object at {path} is blank. Add text to the text"
            " field, and try again."
        )
    if "reasoningContent" in block:
        check_reasoning(want(block["reasoningContent"], dict, f"{path}.reasoningContent"), path)
    if "toolUse" in block:
        call = want(block["toolUse"], dict, f"{path}.toolUse")
        need(call, "name", str, f"{path}.toolUse")
        need(call, "input", dict, f"{path}.toolUse")
        check_id(call, f"{path}.toolUse")
    if "toolResult" in block:
        result = want(block["toolResult"], dict, f"{path}.toolResult")
        need(result, "content", list, f"{path}.toolResult")
        check_id(result, f"{path}.toolResult")


def check_reasoning(reasoning: Object, path: str) -> None:
    if "redactedContent" in reasoning:
        need(reasoning, "redactedContent", str, f"{path}.reasoningContent")
        return
    text = need(reasoning, "reasoningText", dict, f"{path}.reasoningContent")
    need(text, "text", str, f"{path}.reasoningContent.reasoningText")
    optional(text, "signature", str, f"{path}.reasoningContent.reasoningText")


def check_id(value: Object, path: str) -> None:
    name = need(value, "toolUseId", str, path)
    if not CALL_ID.fullmatch(name):
        raise Refused(
            f"1 validation error detected: Value '{name}' at '{path}.toolUseId' failed to satisfy"
            " constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
        )


def check_roles(messages: Sequence[Object]) -> None:
    if messages[0]["role"] != "user":
        raise Refused(
            "A conversation must start with a user message. Try again with a conversation that"
            " starts with a user message."
        )
    for before, after in pairwise(messages):
        if before["role"] == after["role"]:
            raise Refused(
                "A conversation must alternate between user and assistant roles. Make sure the"
                " conversation alternates between user and assistant roles and try again."
            )


def check_tool_config(body: Object, messages: Sequence[Object]) -> None:
    if any(blocks_of(message, "toolUse", "toolResult") for message in messages) and not body.get(
        "toolConfig"
    ):
        raise Refused(
            "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        )


def find_marks(body: Object) -> list[Object]:
    """The cache points in BODY, in the order of processing."""
    tools = want(body.get("toolConfig") or {}, dict, "toolConfig").get("tools", [])
    lists = [want(tools, list, "toolConfig.tools"), want(body.get("system", []), list, "system")]
    lists += [message["content"] for message in body["messages"]]
    blocks = [want(block, dict, "block") for each in lists for block in each]
    return [need(block, "cachePoint", dict) for block in blocks if "cachePoint" in block]


def check_marks(marks: Sequence[Object]) -> None:
    if len(marks) > claude.MAX_MARKS:
        raise Refused(
            f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
        )


def check_unique(messages: Sequence[Object]) -> None:
    seen: set[str] = set()
    for number, message in enumerate(messages):
        for index, block in enumerate(message["content"]):
            name = block.get("toolUse", {}).get("toolUseId")
            if name in seen:
                raise Refused(f"messages.{number}.content.{index}: `tool_use` ids must be unique")
            seen.update(filter(None, [name]))


def iter_entries(body: Object) -> Iterator[Entry]:
    """The parts of BODY in the order of processing; a cache point marks the block before it."""
    tools = (body.get("toolConfig") or {}).get("tools", [])
    parts = [("tool", block) for block in tools]
    parts += [("system", block) for block in body.get("system", [])]
    parts += [(m["role"], block) for m in body["messages"] for block in m["content"]]
    held = Entry("", counted=False)
    for where, block in parts:
        if "cachePoint" in block:
            held = held._replace(mark=block["cachePoint"].get("ttl", "5m"))
            continue
        yield held
        kind = next(iter(block), "")
        run = kind if kind in ("toolUse", "toolResult") else ""
        held = Entry(f"{where} {render(block)}", run)
    yield held


def blocks_of(message: Object, *names: str) -> list[Json]:
    return [block[name] for block in message["content"] for name in names if name in block]


def check_pairing(messages: Sequence[Object], with_text: bool) -> None:
    """The results of a message's calls are in the next, before its text, if it may have any."""
    calls: list[str] = []
    for number, message in enumerate(messages):
        path = f"messages.{number}.content"
        results = [result["toolUseId"] for result in blocks_of(message, "toolResult")]
        if len(results) > len(calls):
            raise Refused(
                f"The number of toolResult blocks at {path} exceeds the number of toolUse blocks"
                " of previous turn."
            )
        if results and not with_text and blocks_of(message, "text", "image", "document"):
            raise Refused(
                f"{path}: Conversation blocks and tool result blocks cannot be provided in the"
                " same turn."
            )
        check_answered(calls, leading_results(message["content"]) if with_text else results, path)
        calls = [call["toolUseId"] for call in blocks_of(message, "toolUse")]
    check_answered(calls, [], f"messages.{len(messages)}.content")


def leading_results(content: Iterable[Object]) -> list[str]:
    names = []
    for block in content:
        if "toolResult" not in block:
            break
        names.append(block["toolResult"]["toolUseId"])
    return names


def check_answered(calls: Sequence[str], results: Iterable[str], path: str) -> None:
    missing = [name for name in calls if name not in results]
    if missing:
        raise Refused(
            f"Expected toolResult blocks at {path} for the following Ids: {', '.join(missing)}"
        )


def iter_head(body: Object) -> Iterator[tuple[str, str]]:
    """Path and canonical text of the tools and of the system prompt."""
    tools = (body.get("toolConfig") or {}).get("tools", [])
    for name, blocks in (("toolConfig.tools", tools), ("system", body.get("system", []))):
        for index, block in enumerate(blocks):
            if "cachePoint" not in block:
                yield f"{name}.{index}", canonical([name, block])


def iter_pieces(messages: Sequence[Object]) -> Iterator[thinking.Piece]:
    """The blocks of MESSAGES as binding sees them."""
    for number, message in enumerate(messages):
        for index, block in enumerate(message["content"]):
            if "cachePoint" in block:
                continue
            kind, token, text = identify(block)
            yield thinking.Piece(
                path=f"messages.{number}.content.{index}",
                turn=number,
                role=message["role"],
                type=kind,
                token=token,
                text=text,
                canonical=canonical([message["role"], block]),
            )


def identify(block: Object) -> tuple[str, str, str]:
    """Type of BLOCK in Anthropic's words, its token, and its text if it is reasoning."""
    match block:
        case {"reasoningContent": {"redactedContent": data}}:
            return "redacted_thinking", data, ""
        case {"reasoningContent": {"reasoningText": text}}:
            return "thinking", text.get("signature", ""), text["text"]
        case {"toolUse": call}:
            return "tool_use", call["toolUseId"], ""
        case {"toolResult": result}:
            return "tool_result", result["toolUseId"], ""
    return next(iter(block)), "", ""


WAY = thinking.Way(
    api="bedrock",
    head=lambda body: list(iter_head(body)),
    pieces=lambda messages: list(iter_pieces(messages)),
    settings=lambda body: (body.get("additionalModelRequestFields") or {}).get("thinking"),
    model=model_of,
)


def misshapen(path: str, expected: str) -> Refused:
    if not expected:
        return Refused(
            f"1 validation error detected: Value null at '{path}' failed to satisfy constraint:"
            " Member must not be null"
        )
    return Refused(
        f"Unexpected field type: expected {expected} at '{path}'", kind="SerializationException"
    )


def steps(body: Object) -> list[Step]:
    found = []
    for message in body["messages"]:
        texts = tuple(blocks_of(message, "text"))
        results = tuple(str(result["content"]) for result in blocks_of(message, "toolResult"))
        if message["role"] == "assistant":
            found.append(Step(kind="assistant", texts=texts))
            continue
        if results:
            found.append(Step(kind="results", texts=results))
        if texts:
            found.append(Step(kind="user", texts=texts))
    return found


def usage(answer: Answer, context: Context) -> Object:
    output = len(answer.text) // 4 + 1
    return {
        "inputTokens": context.fresh_tokens,
        "outputTokens": output,
        "totalTokens": context.input_tokens + output,
        "cacheReadInputTokens": context.cached.read,
        "cacheWriteInputTokens": context.cached.written,
    }


def content(answer: Answer, context: Context) -> list[tuple[Object, Block]]:
    """The blocks of the message, each with the block of the script that it comes from."""
    if answer.thinks and not is_claude(model_of(context.request)):
        raise ScriptError("script: only Claude answers with reasoning on Bedrock")
    sealer = thinking.Sealer(context, WAY)
    made: list[tuple[Object, Block]] = []
    calls = 0
    for part in answer.blocks:
        block: Object
        match part:
            case Thinking(text):
                sealed = {"text": text, "signature": sealer.seal("thinking", text)}
                block = {"reasoningContent": {"reasoningText": sealed}}
            case Redacted():
                data = sealer.seal("redacted_thinking", "")
                block = {"reasoningContent": {"redactedContent": data}}
            case Text(text):
                block = {"text": text}
            case Call(name):
                tool = context.id("tooluse_", 22, calls)
                block = {"toolUse": {"toolUseId": tool, "name": name, "input": part.args}}
                calls += 1
            case _:
                raise ScriptError(f"script: not a block of the bedrock API: {part!r}")
        if "reasoningContent" not in block and not is_blank(block):
            sealer.pass_by(canonical(["assistant", block]))
        made.append((block, part))
    return made


def is_blank(block: Object) -> bool:
    """Whether BLOCK is text that the API writes but does not take."""
    return "text" in block and not block["text"].strip()


def said(answer: Answer, context: Context) -> tuple[Object, ...]:
    """The message as it comes back: without blank text, and not ending in reasoning."""
    blocks = [block for block, _ in content(answer, context) if not is_blank(block)]
    while blocks and "reasoningContent" in blocks[-1]:
        blocks.pop()
    return ({"role": "assistant", "content": blocks},) if blocks else ()


def normal(message: Object) -> Object:
    blocks = [dict(block) for block in message["content"] if "cachePoint" not in block]
    for block in blocks:
        if "toolUse" in block:
            block["toolUse"] = {**block["toolUse"], "input": dumps(block["toolUse"]["input"])}
    return {**message, "content": blocks}


def iter_atoms(message: Object) -> Iterator[Atom]:
    for block in message["content"] if message["role"] == "assistant" else ():
        kind, token, text = identify(block)
        if kind in thinking.THINKING:
            yield Atom("seal", token)
            yield Atom("reasoning", text)
        elif kind == "tool_use":
            yield Atom("id", token)
            yield Atom("arguments", dumps(block["toolUse"]["input"]))
        elif kind == "text":
            yield Atom("text", block["text"].strip())


def stop_reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def document(answer: Answer, context: Context) -> Json:
    blocks = [block for block, _ in content(answer, context)]
    return {
        "output": {"message": {"role": "assistant", "content": blocks}},
        "stopReason": stop_reason(answer),
        "usage": usage(answer, context),
        "metrics": {"latencyMs": 1},
    }


def event(name: str, **payload: Json) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, payload)


def failure(message: str) -> bytes:
    headers = {
        ":exception-type": "modelStreamErrorException",
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return frame(headers, {"message": message})


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    blocks = content(answer, context)
    yield event("messageStart", role="assistant")
    for index, (block, part) in enumerate(blocks):
        if "toolUse" in block and answer.error is not None:
            break
        yield from block_events(index, block, part)
    if answer.error is not None:
        yield failure(answer.error)
        return
    yield event("messageStop", stopReason=stop_reason(answer))
    yield event("metadata", usage=usage(answer, context), metrics={"latencyMs": 1})


def block_events(index: int, block: Object, part: Block) -> Iterator[bytes]:
    """Only a call has a start event."""
    deltas: list[Object]
    match block, part:
        case {"text": text}, _:
            deltas = [{"text": piece} for piece in pieces(text)]
        case {"reasoningContent": {"reasoningText": sealed}}, _:
            said = [{"text": piece} for piece in pieces(sealed["text"])]
            said.append({"signature": sealed["signature"]})
            deltas = [{"reasoningContent": piece} for piece in said]
        case {"toolUse": call}, Call():
            start = {"toolUseId": call["toolUseId"], "name": call["name"]}
            yield event("contentBlockStart", contentBlockIndex=index, start={"toolUse": start})
            deltas = [{"toolUse": {"input": piece}} for piece in pieces(part.arguments)]
        case _:
            deltas = [block]  # redacted content, whole
    for delta in deltas:
        yield event("contentBlockDelta", contentBlockIndex=index, delta=delta)
    yield event("contentBlockStop", contentBlockIndex=index)


def headers(refused: Refused) -> dict[str, str]:
    kind = EXCEPTIONS.get(refused.status, "InternalServerException")
    return {"x-amzn-ErrorType": kind if refused.kind == "invalid_request_error" else refused.kind}


API = Api(
    name="bedrock",
    route=ROUTE,
    check=check,
    misshapen=misshapen,
    steps=steps,
    streams=lambda request: request.path.endswith("/converse-stream"),
    document=document,
    events=events,
    stream_type=lambda _: "application/vnd.amazon.eventstream",
    fault=lambda status, message: Refused(message, status=status),
    envelope=lambda refused, _: {"message": refused.message},
    headers=headers,
    array="messages",
    entries=lambda body: list(iter_entries(body)),
    said=said,
    normal=normal,
    atoms=iter_atoms,
    model=model_of,
)
