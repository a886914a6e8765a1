"""Anthropic Messages: `POST /v1/messages`.

Neighbouring messages of one role are one message to the model, so tool pairing is judged on the
merged sequence.  Paths in refusals are those of the request as it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
from tests.loopback.shape import ShapeError, need, want
from tests.loopback.strictness import Strictness
from tests.loopback.thinking import THINKING
from tests.loopback.wire import canonical, dumps, pieces, sse

MAX_BODY = 32 * 1024 * 1024  # bytes
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")

TOP = {
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "thinking",
    "cache_control",
    "output_config",
    "service_tier",
    "container",
    "mcp_servers",
    "context_management",
    "diagnostics",
    "speed",
    "inference_geo",
}
MESSAGE = {"role", "content", "output_config", "clear_at"}
# Block type -> (fields that must be there, fields that may be there), `type` apart.
BLOCKS: dict[str, tuple[set[str], set[str]]] = {
    "text": ({"text"}, {"cache_control", "citations"}),
    "image": ({"source"}, {"cache_control"}),
    "document": ({"source"}, {"cache_control", "title", "context", "citations"}),
    "search_result": ({"source", "title", "content"}, {"cache_control", "citations"}),
    "tool_use": ({"id", "name", "input"}, {"cache_control", "caller"}),
    "tool_result": ({"tool_use_id"}, {"content", "is_error", "cache_control"}),
    "thinking": ({"thinking", "signature"}, set()),
    "redacted_thinking": ({"data"}, set()),
}
SAMPLING = ("temperature", "top_p", "top_k")
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


class Placed(NamedTuple):
    """A content block and where it stands in the request."""

    message: int
    number: int
    block: Object

    @property
    def path(self) -> str:
        return f"messages.{self.message}.content.{self.number}"

    @property
    def type(self) -> str:
        return str(self.block["type"])


@dataclass(frozen=True, slots=True)
class Turn:
    """Neighbouring messages of one role."""

    role: str
    blocks: list[Placed]


def check(request: Request, strictness: Strictness, issued: Issued) -> None:
    """Refuse what the API refuses, schema first."""
    if len(request.body) > MAX_BODY:
        raise Refused("Request exceeds the maximum size", status=413, kind="request_too_large")
    body = request.json
    check_fields(body, TOP, "")
    model = need(body, "model", str)
    need(body, "max_tokens", int)
    messages = need(body, "messages", list)
    if "stream" in body:
        need(body, "stream", bool)
    check_system(body)
    check_tools(body, model)
    if not messages:
        raise Refused("messages: at least one message is required")
    for number, message in enumerate(messages):
        check_message(message, number, final=number == len(messages) - 1)
    check_marks(body)
    check_parameters(body, model)
    check_roles(messages, model)
    check_blocks(messages)
    turns = merge(messages)
    check_pairing(turns)
    check_end(turns)
    thinking.check_thinking(request, strictness, issued, WAY)
    if messages[-1]["role"] == "assistant" and claude.refuses_prefill(model):
        raise Refused(claude.PREFILL)


def check_fields(value: Object, allowed: Iterable[str], path: str) -> None:
    for key in value:
        if key not in allowed:
            raise Refused(f"{path + '.' if path else ''}{key}: Extra inputs are not permitted")


def check_message(message: Json, number: int, *, final: bool) -> None:
    path = f"messages.{number}"
    check_fields(want(message, dict, path), MESSAGE, path)
    role = need(message, "role", str, path)
    if role not in ("user", "assistant", "system"):
        raise Refused(f"{path}.role: Input should be 'user' or 'assistant'")
    if "content" not in message:
        raise ShapeError(f"{path}.content", "")
    content = message["content"]
    if not isinstance(content, str):
        for index, block in enumerate(want(content, list, f"{path}.content")):
            check_block(block, f"{path}.content.{index}")
    if content:
        return
    if role == "system":
        if "output_config" not in message:
            raise Refused(f"{path}: system content must contain at least one block")
    elif not (final and role == "assistant"):
        raise Refused(
            f"{path}: all messages must have non-empty content except for the optional final"
            " assistant message"
        )


def check_block(block: Json, path: str, allowed: Iterable[str] = BLOCKS) -> None:
    kind = need(want(block, dict, path), "type", str, path)
    if kind not in allowed:
        tags = ", ".join(f"'{name}'" for name in allowed)
        raise Refused(
            f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected"
            f" tags: {tags}"
        )
    required, others = BLOCKS[kind]
    for key in sorted(required - set(block)):
        raise ShapeError(f"{path}.{kind}.{key}", "")
    check_fields(block, {"type"} | required | others, f"{path}.{kind}")
    if block.get("cache_control") is not None:
        check_mark(block["cache_control"], f"{path}.{kind}.cache_control")
    if kind == "text":
        check_text(block, f"{path}.text")
    elif kind in THINKING:
        for key in required:
            need(block, key, str, f"{path}.{kind}")
    elif kind == "tool_use":
        check_call(block, path)
    elif kind == "tool_result":
        check_result(block, path)


def check_text(block: Object, path: str) -> None:
    if need(block, "text", str, path):
        return
    if block.get("cache_control") is not None:
        raise Refused(f"{path}: cache_control cannot be set for empty text blocks")
    raise Refused(f"{path.split('.', 1)[0]}: text content blocks must be non-empty")


def check_call(block: Object, path: str) -> None:
    if not CALL_ID.fullmatch(need(block, "id", str, f"{path}.tool_use")):
        raise Refused(f"{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    need(block, "name", str, f"{path}.tool_use")
    need(block, "input", dict, f"{path}.tool_use")


def check_result(block: Object, path: str) -> None:
    need(block, "tool_use_id", str, f"{path}.tool_result")
    content = block.get("content", "")
    if isinstance(content, str):
        return
    for index, nested in enumerate(want(content, list, f"{path}.tool_result.content")):
        check_block(
            nested,
            f"{path}.tool_result.content.{index}",
            ("text", "image", "document", "search_result"),
        )


def check_system(body: Object) -> None:
    system = body.get("system", "")
    if isinstance(system, str):
        return
    for index, block in enumerate(want(system, list, "system")):
        check_block(block, f"system.{index}", ("text",))


def check_tools(body: Object, model: str) -> None:
    tools = want(body.get("tools", []), list, "tools")
    names = []
    for index, tool in enumerate(tools):
        path = f"tools.{index}"
        names.append(need(want(tool, dict, path), "name", str, path))
        if tool.get("type", "custom") == "custom":
            need(tool, "input_schema", dict, f"{path}.custom")
        if tool.get("cache_control") is not None:
            check_mark(tool["cache_control"], f"{path}.cache_control")
    if len(set(names)) != len(names):
        raise Refused("tools: Tool names must be unique.")
    if want(body.get("tool_choice", {}), dict, "tool_choice").get("type") in ("any", "tool"):
        if claude.always_thinks(model):
            raise Refused('tool_choice: type "tool" and "any" are not supported for this model.')
        if not tools:
            raise Refused("tool_choice: tool_choice may only be specified while providing tools.")


def check_parameters(body: Object, model: str) -> None:
    for name in SAMPLING:
        if name in body and claude.refuses_sampling(model):
            raise Refused(f"`{name}` is deprecated for this model.")


def check_mark(mark: Json, path: str) -> None:
    if want(mark, dict, path).get("type") != "ephemeral":
        raise Refused(f"{path}.type: Input should be 'ephemeral'")
    if mark.get("ttl", "5m") not in ("5m", "1h"):
        raise Refused(f"{path}.ttl: Input should be '5m' or '1h'")
    check_fields(mark, {"type", "ttl"}, path)


def check_marks(body: Object) -> None:
    """Cache marks of the whole request: how many, and longer lifetimes first."""
    if body.get("cache_control") is not None:
        check_mark(body["cache_control"], "cache_control")
    marks = list(iter_marks(body))
    whole = body.get("cache_control")
    if whole is not None:
        target = find_markable(body)
        mine, theirs = whole.get("ttl", "5m"), target and target.get("cache_control")
        if theirs and theirs.get("ttl", "5m") != mine:
            raise Refused(
                f"Top-level cache_control has ttl='{mine}' but the target block already has"
                f" cache_control with ttl='{theirs.get('ttl', '5m')}'"
            )
        if not theirs:
            marks.append(("cache_control", whole))
    if len(marks) > claude.MAX_MARKS:
        raise Refused(
            f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
        )
    shorter = False
    for path, mark in marks:
        if mark.get("ttl", "5m") == "5m":
            shorter = True
        elif shorter:
            raise Refused(
                f"{path}.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'"
                " cache_control block. Note that blocks are processed in the following order:"
                " `tools`, `system`, `messages`."
            )


def iter_marks(body: Object) -> Iterator[tuple[str, Object]]:
    """Path and value of each cache mark, in the order in which blocks are processed."""
    for path, block in iter_marked(body):
        if block.get("cache_control") is not None:
            yield f"{path}.cache_control", block["cache_control"]


def iter_marked(body: Object) -> Iterator[tuple[str, Object]]:
    """Path and value of everything that can have a mark, in the order of processing."""
    for index, tool in enumerate(body.get("tools", [])):
        yield f"tools.{index}", tool
    if isinstance(system := body.get("system"), list):
        for index, block in enumerate(system):
            yield f"system.{index}", block
    for placed in place_blocks(body["messages"]):
        content = placed.block.get("content")
        if placed.type == "tool_result" and isinstance(content, list):
            for index, nested in enumerate(content):
                yield f"{placed.path}.content.{index}", nested
        yield placed.path, placed.block


def iter_entries(body: Object) -> Iterator[Entry]:
    """The parts of BODY in the order of processing, marked where something is to be cached."""
    parts = [("tool", tool) for tool in body.get("tools", [])]
    parts += [("system", block) for block in system_blocks(body)]
    messages = body["messages"]
    parts += [(messages[each.message]["role"], each.block) for each in place_blocks(messages)]
    yield Entry(str(body["model"]), counted=False)
    for number, (where, block) in enumerate(parts):
        whole = body.get("cache_control") if number == len(parts) - 1 else None
        nested = block.get("content")
        marks = [each.get("cache_control") for each in nested or () if isinstance(each, dict)]
        mark = next(filter(None, [block.get("cache_control"), *marks, whole]), None)
        run = block["type"] if block.get("type") in ("tool_use", "tool_result") else ""
        lifetime = mark.get("ttl", "5m") if mark else ""
        yield Entry(f"{where} {render(block)}", run, lifetime)


def find_markable(body: Object) -> Object | None:
    """The last block that the mark of a whole request can go to."""
    blocks = [
        placed.block for placed in place_blocks(body["messages"]) if placed.type not in THINKING
    ]
    return blocks[-1] if blocks else None


def place_blocks(messages: Sequence[Object]) -> Iterator[Placed]:
    """Every content block with its place; a string counts as one text block."""
    for number, message in enumerate(messages):
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for index, block in enumerate(content):
            yield Placed(number, index, block)


def check_roles(messages: Sequence[Object], model: str) -> None:
    roles = [message["role"] for message in messages]
    if roles[0] == "system":
        raise Refused(
            "messages.0: use the top-level 'system' parameter for the initial system prompt"
        )
    if roles[0] == "assistant":
        raise Refused('messages: first message must use the "user" role')
    for number, role in enumerate(roles):
        if role != "system":
            continue
        if not claude.allows_system_messages(model):
            raise Refused("role 'system' is not supported on this model")
        if not messages[number]["content"]:
            continue
        after = next((later for later in roles[number:] if later != "system"), "assistant")
        if after != "assistant":
            raise Refused(
                f"messages.{number}: role 'system' must precede an 'assistant' message or end the"
                " array; the directive-only form (content: [] with output_config) is accepted at"
                " any position"
            )


def check_blocks(messages: Sequence[Object]) -> None:
    """Which block may stand in which role, and ids that are used twice."""
    seen = set()
    for placed in place_blocks(messages):
        role = messages[placed.message]["role"]
        if placed.type == "tool_result" and role != "user":
            raise Refused(
                f"messages.{placed.message}: `tool_result` blocks can only be in `user` messages"
            )
        if role == "system" and placed.type != "text":
            raise Refused(f"{placed.path}: system content can only contain text blocks")
        if placed.type in ("tool_use", *THINKING) and role != "assistant":
            raise Refused(
                f"messages.{placed.message}: `{placed.type}` blocks can only be in `assistant`"
                " messages"
            )
        if placed.type == "tool_use":
            if placed.block["id"] in seen:
                raise Refused(f"{placed.path}: `tool_use` ids must be unique")
            seen.add(placed.block["id"])


def merge(messages: Sequence[Object]) -> list[Turn]:
    """MESSAGES with neighbours of one role joined."""
    turns: list[Turn] = []
    for placed in place_blocks(messages):
        role = messages[placed.message]["role"]
        if not turns or turns[-1].role != role:
            turns.append(Turn(role, []))
        turns[-1].blocks.append(placed)
    return turns


def check_pairing(turns: Sequence[Turn]) -> None:
    """Each call has its one result at the head of the next message, and no result is left over."""
    calls: list[Placed] = []
    for turn in (*turns, Turn("end", [])):
        check_results(turn, {call.block["id"] for call in calls})
        check_answered(turn, calls)
        calls = [placed for placed in turn.blocks if placed.type == "tool_use"]


def check_results(turn: Turn, known: set[str]) -> None:
    seen = set()
    for placed in turn.blocks:
        if placed.type != "tool_result":
            continue
        name = placed.block["tool_use_id"]
        if name not in known:
            raise Refused(
                f"{placed.path}: unexpected `tool_use_id` found in `tool_result` blocks: {name}."
                " Each `tool_result` block must have a corresponding `tool_use` block in the"
                " previous message."
            )
        if name in seen:
            raise Refused(
                f"{placed.path}: each tool_use must have a single result. Found multiple"
                f" `tool_result` blocks with id: {name}"
            )
        seen.add(name)


def check_answered(turn: Turn, calls: Sequence[Placed]) -> None:
    answered = set()
    for placed in turn.blocks:
        if placed.type != "tool_result":
            break
        answered.add(placed.block["tool_use_id"])
    missing = [call.block["id"] for call in calls if call.block["id"] not in answered]
    if missing:
        raise Refused(
            f"messages.{calls[-1].message}: `tool_use` ids were found without `tool_result` blocks"
            f" immediately after: {', '.join(missing)}. Each `tool_use` block must have a"
            " corresponding `tool_result` block in the next message."
        )


def check_end(turns: Sequence[Turn]) -> None:
    for turn in turns:
        last = turn.blocks[-1]
        if turn.role == "assistant" and last.type in THINKING:
            raise Refused(
                f"messages.{last.message}: The final block in an assistant message cannot be"
                f" `{last.type}`."
            )


def iter_head(body: Object) -> Iterator[tuple[str, str]]:
    """Path and canonical text of the tools and of the system prompt."""
    for index, tool in enumerate(body.get("tools", [])):
        yield f"tools.{index}", canonical(["tool", without_mark(tool)])
    for index, block in enumerate(system_blocks(body)):
        yield f"system.{index}", canonical(["system", without_mark(block)])


def system_blocks(body: Object) -> list[Object]:
    """The system prompt of BODY; a string is one text block."""
    system: list[Object] | str = body.get("system") or []
    return [{"type": "text", "text": system}] if isinstance(system, str) else system


def iter_pieces(messages: Sequence[Object]) -> Iterator[thinking.Piece]:
    """The blocks of MESSAGES as binding sees them."""
    for number, turn in enumerate(merge(messages)):
        for placed in turn.blocks:
            block = placed.block
            yield thinking.Piece(
                path=placed.path,
                turn=number,
                role=turn.role,
                type=placed.type,
                token=block.get("signature") or block.get("data") or block.get("id") or "",
                text=block.get("thinking", ""),
                canonical=canonical([turn.role, without_mark(block)]),
            )


def without_mark(block: Object) -> Object:
    """BLOCK without cache marks, its content as a list."""
    bare = {name: value for name, value in block.items() if name != "cache_control"}
    content = bare.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if isinstance(content, list):
        bare["content"] = [without_mark(nested) for nested in content]
    return bare


WAY = thinking.Way(
    api="anthropic",
    head=lambda body: list(iter_head(body)),
    pieces=lambda messages: list(iter_pieces(messages)),
    settings=lambda body: body.get("thinking"),
    model=lambda request: str(request.json["model"]),
)


def misshapen(path: str, expected: str) -> Refused:
    words = {"object": "dictionary", "array": "list"}
    if not expected:
        return Refused(f"{path}: Field required")
    return Refused(f"{path}: Input should be a valid {words.get(expected, expected)}")


def steps(body: Object) -> list[Step]:
    found = []
    for turn in merge(body["messages"]):
        if turn.role == "system":
            continue
        results = tuple(
            str(placed.block.get("content"))
            for placed in turn.blocks
            if placed.type == "tool_result"
        )
        texts = tuple(placed.block["text"] for placed in turn.blocks if placed.type == "text")
        if turn.role == "assistant":
            found.append(Step(kind="assistant", texts=texts))
            continue
        if results:
            found.append(Step(kind="results", texts=results))
        if texts:
            found.append(Step(kind="user", texts=texts))
    return found


def usage(answer: Answer, context: Context) -> Object:
    cached = context.cached
    hour = cached.written if cached.lifetime == "1h" else 0
    return {
        "input_tokens": context.fresh_tokens,
        "cache_creation_input_tokens": cached.written,
        "cache_read_input_tokens": cached.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cached.written - hour,
            "ephemeral_1h_input_tokens": hour,
        },
        "output_tokens": len(answer.text) // 4 + 1,
        "service_tier": "standard",
    }


def stop_reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def content(answer: Answer, context: Context) -> list[tuple[Object, Block]]:
    """The blocks of the message, each with the block of the script that it comes from."""
    sealer = thinking.Sealer(context, WAY)
    made: list[tuple[Object, Block]] = []
    calls = 0
    for part in answer.blocks:
        block: Object
        match part:
            case Thinking(text):
                signature = sealer.seal("thinking", text)
                block = {"type": "thinking", "thinking": text, "signature": signature}
            case Redacted():
                data = sealer.seal("redacted_thinking", "")
                block = {"type": "redacted_thinking", "data": data}
            case Text(text):
                block = {"type": "text", "text": text}
            case Call(name):
                block = {
                    "type": "tool_use",
                    "id": context.id("toolu_01", 22, calls),
                    "name": name,
                    "input": part.args,
                }
                calls += 1
            case _:
                raise ScriptError(f"script: not a block of the anthropic API: {part!r}")
        if block["type"] not in THINKING and block.get("text") != "":
            sealer.pass_by(canonical(["assistant", block]))
        made.append((block, part))
    return made


def said(answer: Answer, context: Context) -> tuple[Object, ...]:
    """The message as it comes back: without empty text, and not ending in reasoning."""
    blocks = [block for block, _ in content(answer, context) if block.get("text") != ""]
    while blocks and blocks[-1]["type"] in THINKING:
        blocks.pop()
    return ({"role": "assistant", "content": blocks},) if blocks else ()


def normal(message: Object) -> Object:
    blocks = [without_mark(placed.block) for placed in place_blocks([message])]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = dumps(block["input"])
    return {**message, "content": blocks}


def iter_atoms(message: Object) -> Iterator[Atom]:
    for placed in place_blocks([message] if message["role"] == "assistant" else []):
        block = placed.block
        match placed.type:
            case "thinking":
                yield Atom("seal", block["signature"])
                yield Atom("reasoning", block["thinking"])
            case "redacted_thinking":
                yield Atom("seal", block["data"])
            case "tool_use":
                yield Atom("id", block["id"])
                yield Atom("arguments", dumps(block["input"]))
            case "text":
                yield Atom("text", block["text"].strip())


def document(answer: Answer, context: Context) -> Json:
    return {
        "id": context.id("msg_01", 22),
        "type": "message",
        "role": "assistant",
        "model": context.model,
        "content": [block for block, _ in content(answer, context)],
        "stop_reason": stop_reason(answer),
        "stop_sequence": None,
        "usage": usage(answer, context),
    }


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    whole = document(answer, context)
    opening = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {**whole["usage"], "output_tokens": 1},
    }
    yield event("message_start", message=opening)
    yield event("ping")
    for index, (block, part) in enumerate(content(answer, context)):
        if block["type"] == "tool_use" and answer.error is not None:
            break
        yield from block_events(index, block, part)
    if answer.error is not None:
        yield event("error", error={"type": "overloaded_error", "message": answer.error})
        return
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event(
        "message_delta", delta=ending, usage={"output_tokens": whole["usage"]["output_tokens"]}
    )
    yield event("message_stop")


def block_events(index: int, block: Object, part: Block) -> Iterator[bytes]:
    """A block starts empty, grows by deltas and stops; a redacted one starts whole."""
    deltas: list[Object] = []
    start = block
    if block["type"] == "text":
        start = {**block, "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    elif block["type"] == "thinking":
        start = {**block, "thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])
        ]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif isinstance(part, Call):
        start = {**block, "input": {}}
        parts = ["", *pieces(part.arguments)]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in parts]
    yield event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield event("content_block_delta", index=index, delta=delta)
    yield event("content_block_stop", index=index)


def event(name: str, **fields: Json) -> bytes:
    return sse({"type": name, **fields}, event=name)


def fault(status: int, message: str) -> Refused:
    return Refused(message, status=status, kind=KINDS.get(status, "api_error"))


def envelope(refused: Refused, _: Request) -> Json:
    return {"type": "error", "error": {"type": refused.kind, "message": refused.message}}


API = Api(
    name="anthropic",
    route=re.compile(r"(?:/\w+)?/v1/messages"),
    check=check,
    misshapen=misshapen,
    steps=steps,
    streams=lambda request: request.json.get("stream") is True,
    document=document,
    events=events,
    stream_type=lambda _: "text/event-stream; charset=utf-8",
    fault=fault,
    envelope=envelope,
    array="messages",
    entries=lambda body: list(iter_entries(body)),
    said=said,
    normal=normal,
    atoms=iter_atoms,
)
