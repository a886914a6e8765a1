"""Bedrock Converse: `POST /model/ID/converse` and `/converse-stream`.

Roles alternate without exception.  Whether text may stand beside tool results depends on who made
the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tests.loopback.apis import claude
from tests.loopback.model import Answer, Api, Context, Json, Object, Refused, Request, Step
from tests.loopback.shape import need, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import dumps, frame, pieces

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


def check(request: Request, _: Strictness) -> None:
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
    if is_claude(model):
        check_marks(request.json)
        check_unique(messages)
    check_pairing(messages, is_claude(model))
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
    if "toolUse" in block:
        call = want(block["toolUse"], dict, f"{path}.toolUse")
        need(call, "name", str, f"{path}.toolUse")
        need(call, "input", dict, f"{path}.toolUse")
        check_id(call, f"{path}.toolUse")
    if "toolResult" in block:
        result = want(block["toolResult"], dict, f"{path}.toolResult")
        need(result, "content", list, f"{path}.toolResult")
        check_id(result, f"{path}.toolResult")


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


def check_marks(body: Object) -> None:
    tools = want(body.get("toolConfig") or {}, dict, "toolConfig").get("tools", [])
    lists = [want(tools, list, "toolConfig.tools"), want(body.get("system", []), list, "system")]
    lists += [message["content"] for message in body["messages"]]
    found = sum("cachePoint" in want(block, dict, "block") for each in lists for block in each)
    if found > claude.MAX_MARKS:
        raise Refused(f"A maximum of 4 blocks with cache_control may be provided. Found {found}.")


def check_unique(messages: Sequence[Object]) -> None:
    seen: set[str] = set()
    for number, message in enumerate(messages):
        for index, block in enumerate(message["content"]):
            name = block.get("toolUse", {}).get("toolUseId")
            if name in seen:
                raise Refused(f"messages.{number}.content.{index}: `tool_use` ids must be unique")
            seen.update(filter(None, [name]))


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
        "inputTokens": context.input_tokens,
        "outputTokens": output,
        "totalTokens": context.input_tokens + output,
        "cacheReadInputTokens": 0,
        "cacheWriteInputTokens": 0,
    }


def content(answer: Answer, context: Context) -> list[Object]:
    claude.refuse_reasoning(answer, "bedrock")
    blocks: list[Object] = [{"text": answer.text}] if answer.text else []
    for index, call in enumerate(answer.calls):
        name = context.id("tooluse_", 22, index)
        blocks.append({"toolUse": {"toolUseId": name, "name": call.name, "input": call.args}})
    return blocks


def stop_reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def document(answer: Answer, context: Context) -> Json:
    return {
        "output": {"message": {"role": "assistant", "content": content(answer, context)}},
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
    for index, block in enumerate(blocks):
        if "toolUse" in block and answer.error is not None:
            break
        yield from block_events(index, block)
    if answer.error is not None:
        yield failure(answer.error)
        return
    yield event("messageStop", stopReason=stop_reason(answer))
    yield event("metadata", usage=usage(answer, context), metrics={"latencyMs": 1})


def block_events(index: int, block: Object) -> Iterator[bytes]:
    """Only a call has a start event."""
    deltas: list[Object]
    if "text" in block:
        deltas = [{"text": piece} for piece in pieces(block["text"])]
    else:
        call = dict(block["toolUse"])
        deltas = [{"toolUse": {"input": piece}} for piece in pieces(dumps(call.pop("input")))]
        yield event("contentBlockStart", contentBlockIndex=index, start={"toolUse": call})
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
)
