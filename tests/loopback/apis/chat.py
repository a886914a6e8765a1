"""OpenAI Chat Completions: `POST .../chat/completions`, and what its relatives share with it.

A relative is a `Dialect` (its words) and a few functions of its own.  Reasoning is theirs: plain
chat completions say none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.loopback.cache import MARKS, whole
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
    Refused,
    Request,
    Step,
    Text,
)
from tests.loopback.quirks import disturb_calls
from tests.loopback.script import ScriptError
from tests.loopback.shape import need, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import pieces, sse

MAX_CALL_ID = 40  # characters
MAX_CONTENT = 1_048_576  # characters
ROLES = ("system", "assistant", "user", "function", "tool", "developer")
COMPLETION_TOKENS = re.compile(r"gpt-[5-9].*|o[134](-.*)?")  # models that know no max_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How one relative words its refusals."""

    unanswered: str = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to"
        " each 'tool_call_id'. The following tool_call_ids did not have response messages: {ids}"
    )
    orphan: str = (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message"
        " with 'tool_calls'."
    )
    fixed_code: str | None = None
    """One code for everything, and no param."""

    def refusal(self, message: str, param: str | None, code: str | None = None) -> Refused:
        """A refusal in this dialect."""
        if self.fixed_code is not None:
            return Refused(message, code=self.fixed_code)
        return Refused(message, param=param, code=code)


OPENAI_WORDS = Dialect()


def check(request: Request, _: Strictness, __: Issued) -> None:
    """Refuse what the API refuses."""
    body = request.json
    model = need(body, "model", str)
    if "max_tokens" in body and COMPLETION_TOKENS.fullmatch(model):
        raise Refused(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
            " 'max_completion_tokens' instead.",
            param="max_tokens",
            code="unsupported_parameter",
        )
    messages = get_messages(body, OPENAI_WORDS)
    check_pairing(messages, OPENAI_WORDS)


def get_messages(body: Object, words: Dialect) -> list[Object]:
    """The messages of BODY, each of the right shape."""
    want(body.get("stream_options") or {}, dict, "stream_options")
    messages = need(body, "messages", list)
    if not messages:
        raise empty_array("messages", words)
    for number, message in enumerate(messages):
        check_message(want(message, dict, f"messages[{number}]"), f"messages[{number}]", words)
    return messages


def empty_array(path: str, words: Dialect) -> Refused:
    return words.refusal(
        f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty"
        " array instead.",
        path,
        "empty_array",
    )


def check_message(message: Object, path: str, words: Dialect) -> None:
    role = need(message, "role", str, path)
    if role not in ROLES:
        supported = ", ".join(f"'{name}'" for name in ROLES[:-1])
        raise words.refusal(
            f"Invalid value: '{role}'. Supported values are: {supported}, and '{ROLES[-1]}'.",
            f"{path}.role",
            "invalid_value",
        )
    check_content(message, path, words)
    if message.get("tool_calls") is not None:
        check_calls(message, path, words)
    if role == "tool":
        check_id(need(message, "tool_call_id", str, path), f"{path}.tool_call_id", words)


def check_content(message: Object, path: str, words: Dialect) -> None:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant" or not message.get("tool_calls"):
            raise words.refusal(
                "Invalid value for 'content': expected a string, got null.",
                path.replace("[", ".[") + ".content",
            )
        return
    if isinstance(content, str):
        check_length(content, f"{path}.content", MAX_CONTENT, words)
        return
    if content == []:
        raise empty_array(f"{path}.content", words)
    for index, part in enumerate(want(content, list, f"{path}.content")):
        where = f"{path}.content[{index}]"
        if need(want(part, dict, where), "type", str, where) == "text":
            check_length(need(part, "text", str, where), f"{where}.text", MAX_CONTENT, words)


def check_calls(message: Object, path: str, words: Dialect) -> None:
    calls = want(message["tool_calls"], list, f"{path}.tool_calls")
    if not calls:
        raise empty_array(f"{path}.tool_calls", words)
    names = set()
    for index, call in enumerate(calls):
        where = f"{path}.tool_calls[{index}]"
        name = need(want(call, dict, where), "id", str, where)
        check_id(name, f"{where}.id", words)
        function = need(call, "function", dict, where)
        need(function, "name", str, f"{where}.function")
        need(function, "arguments", str, f"{where}.function")
        if name in names:
            raise words.refusal(
                f"Duplicate value for 'id' of '{name}' in {path}.tool_calls", f"{where}.id"
            )
        names.add(name)


def check_id(name: str, path: str, words: Dialect) -> None:
    check_length(name, path, MAX_CALL_ID, words)


def check_length(value: str, path: str, limit: int, words: Dialect) -> None:
    if len(value) > limit:
        raise words.refusal(
            f"Invalid '{path}': string too long. Expected a string with maximum length {limit},"
            f" but got a string with length {len(value)} instead.",
            path,
            "string_above_max_length",
        )


def check_pairing(messages: Sequence[Object], words: Dialect) -> None:
    """All results of a group of calls stand right after it, each once, in any order."""
    open_ids: list[str] = []
    group: set[str] = set()
    for number, message in enumerate(messages):
        param = f"messages.[{number}].role"
        if message["role"] == "tool":
            name = message["tool_call_id"]
            if name not in group:
                raise words.refusal(words.orphan, param)
            if name not in open_ids:
                raise words.refusal(
                    f"Duplicate value for 'tool_call_id' of '{name}' in message[{number}]", param
                )
            open_ids.remove(name)
            continue
        if open_ids:
            raise words.refusal(words.unanswered.format(ids=", ".join(open_ids)), param)
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        group = set(open_ids)
    if open_ids:
        param = f"messages.[{len(messages) - 1}].role"
        raise words.refusal(words.unanswered.format(ids=", ".join(open_ids)), param)


def misshapen(path: str, expected: str) -> Refused:
    if not expected:
        return Refused(
            f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
        )
    article = "an" if expected[0] in "aeiou" else "a"
    return Refused(
        f"Invalid type for '{path}': expected {article} {expected}.",
        param=path,
        code="invalid_type",
    )


def steps(body: Object) -> list[Step]:
    """One step a message; neighbouring results stay apart, which the script does not mind."""
    kinds = {"user": "user", "assistant": "assistant", "tool": "results"}
    return [
        Step(kind=kinds[message["role"]], texts=get_texts(message))  # type: ignore[arg-type]  # a literal by table
        for message in body["messages"]
        if message["role"] in kinds
    ]


def get_texts(message: Object) -> tuple[str, ...]:
    """The texts of a message; a tool message is one text."""
    content = message.get("content")
    if not isinstance(content, list):
        return (content or "",)
    texts = tuple(part["text"] for part in content if part["type"] == "text")
    return ("\n".join(texts),) if message["role"] == "tool" else texts


def usage(answer: Answer, context: Context) -> Object:
    output = len(answer.text) // 4 + 1
    return {
        "prompt_tokens": context.input_tokens,
        "completion_tokens": output,
        "total_tokens": context.input_tokens + output,
        "prompt_tokens_details": {"cached_tokens": context.cached.read},
    }


def tool_calls(answer: Answer, context: Context) -> list[Object]:
    """The calls with OpenAI's ids."""
    return [
        {
            "id": context.id("call_", 24, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(answer.calls)
    ]


def message(answer: Answer, context: Context, **reasoning: Json) -> Object:
    """The assistant message, with the fields that a relative has for REASONING."""
    calls = tool_calls(answer, context)
    found: Object = {"role": "assistant", "content": answer.text or (None if calls else "")}
    return {**found, **reasoning, **({"tool_calls": calls} if calls else {})}


def plain_message(answer: Answer, context: Context) -> Object:
    if answer.thinks:
        raise ScriptError("script: chat completions do not answer with reasoning")
    return message(answer, context)


def document(answer: Answer, context: Context) -> Json:
    return complete(plain_message(answer, context), answer, context)


def complete(
    said: Object,
    answer: Answer,
    context: Context,
    usage: Callable[[Answer, Context], Object] = usage,
) -> Object:
    """A whole completion that says SAID."""
    reason = "tool_calls" if answer.calls else "stop"
    return {
        **head(context, "chat.completion"),
        "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": reason}],
        "usage": usage(answer, context),
    }


def head(context: Context, kind: str) -> Object:
    return {
        "id": context.id("chatcmpl-", 29),
        "object": kind,
        "created": context.created,
        "model": context.model,
    }


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    said = plain_message(answer, context)
    yield from stream(deltas(answer, said), answer, context)


def stream(
    deltas: Iterator[Object],
    answer: Answer,
    context: Context,
    *,
    usage: Callable[[Answer, Context], Object] = usage,
    usage_always: bool = False,
) -> Iterator[bytes]:
    """The chunks of a completion: role, DELTAS, end, usage; no calls before an error."""
    asked = (context.request.json.get("stream_options") or {}).get("include_usage") is True
    extra = {"usage": None} if asked else {}

    def chunk(delta: Object, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return sse({**head(context, "chat.completion.chunk"), "choices": [choice], **extra})

    yield chunk({"role": "assistant", "content": ""})
    for delta in disturb_calls(deltas, answer):
        if answer.error is not None and "tool_calls" in delta:
            break
        yield chunk(delta)
    if answer.error is not None:
        yield sse(
            {
                "error": {
                    "message": answer.error,
                    "type": "server_error",
                    "param": None,
                    "code": None,
                }
            }
        )
        return
    yield chunk({}, "tool_calls" if answer.calls else "stop")
    if (asked or usage_always) and "no_usage" not in answer.quirks:
        yield sse(
            {
                **head(context, "chat.completion.chunk"),
                "choices": [],
                "usage": usage(answer, context),
            }
        )
    yield b"data: [DONE]\n\n"


def no_deltas(_: int, block: Block) -> Iterator[Object]:
    raise ScriptError(f"script: not a block of this API: {block!r}")


def deltas(
    answer: Answer,
    said: Object,
    reason: Callable[[int, Block], Iterator[Object]] = no_deltas,
    call: Callable[[int, Object], Iterator[Object]] | None = None,
) -> Iterator[Object]:
    """The deltas of the message SAID, block by block.

    REASON makes those of a block of reasoning, given its number, CALL those of a call, given its
    number among the calls.
    """
    calls = enumerate(said.get("tool_calls", ()))
    for number, block in enumerate(answer.blocks):
        match block:
            case Text(text):
                yield from ({"content": piece} for piece in pieces(text))
            case Call():
                yield from (call or call_deltas)(*next(calls))
            case _:
                yield from reason(number, block)


def call_deltas(index: int, call: Object) -> Iterator[Object]:
    """A call begins with its id and name, then its arguments come in pieces."""
    function = {**call["function"], "arguments": ""}
    yield {"tool_calls": [{"index": index, **call, "function": function}]}
    for piece in pieces(call["function"]["arguments"]):
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


# What comes back


def normal(element: Object) -> Object:
    """The message without what says nothing: null, empty lists and content, marks, positions."""
    content = []
    for chunk in join_chunks(get_chunks(element)):
        bare = {name: value for name, value in chunk.items() if name not in MARKS}
        if bare["type"] == "thinking":
            bare["thinking"] = join_chunks(bare["thinking"])
        content.append(bare)
    calls = [
        {name: value for name, value in call.items() if name not in ("index", *MARKS)}
        for call in element.get("tool_calls") or ()
    ]
    whole = {**element, "content": content, "tool_calls": calls}
    return {
        name: value
        for name, value in whole.items()
        if value is not None and value != [] and name not in MARKS
    }


def get_chunks(message: Object) -> list[Object]:
    """The content of MESSAGE as a list of objects, none of them empty text."""
    content = message.get("content") or []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [chunk for chunk in content if chunk != {"type": "text", "text": ""}]


def join_chunks(chunks: Sequence[Object]) -> list[Object]:
    """CHUNKS with neighbours that are text and nothing else joined."""
    joined: list[Object] = []
    for chunk in chunks:
        if joined and is_plain(joined[-1]) and is_plain(chunk):
            joined[-1] = {**chunk, "text": joined[-1]["text"] + chunk["text"]}
        else:
            joined.append(chunk)
    return joined


def is_plain(chunk: Object) -> bool:
    return set(chunk) == {"type", "text"} and chunk["type"] == "text"


def iter_atoms(message: Object) -> Iterator[Atom]:
    """What a message of any relative can be known by."""
    if message["role"] != "assistant":
        return
    for call in message.get("tool_calls") or ():
        yield Atom("id", call["id"])
        yield Atom("arguments", call["function"]["arguments"])
    for name in ("reasoning_content", "reasoning_text", "reasoning"):
        yield from some("reasoning", message.get(name))
    yield from some("seal", message.get("reasoning_opaque"))
    details = message.get("reasoning_details")
    for detail in details if isinstance(details, list) else ():
        for name in ("signature", "data"):
            yield from some("seal", detail.get(name) if isinstance(detail, dict) else None)
    for chunk in get_chunks(message):
        yield from some("seal", chunk.get("signature"))
    texts = "".join(chunk["text"] for chunk in get_chunks(message) if chunk["type"] == "text")
    yield from some("text", texts.strip())


def some(kind: Literal["seal", "reasoning", "text"], value: Json) -> Iterator[Atom]:
    """An atom of KIND if VALUE is a text that says something."""
    if isinstance(value, str) and value:
        yield Atom(kind, value)


FAULTS = {
    401: ("invalid_request_error", "invalid_api_key"),
    429: ("requests", "rate_limit_exceeded"),
    503: ("server_error", "server_is_overloaded"),
}


def fault(status: int, text: str) -> Refused:
    kind, code = FAULTS.get(
        status, ("server_error" if status >= 500 else "invalid_request_error", None)
    )
    return Refused(text, status=status, kind=kind, code=code)


def envelope(refused: Refused, _: Request) -> Json:
    return {
        "error": {
            "message": refused.message,
            "type": refused.kind,
            "param": refused.param,
            "code": refused.code,
        }
    }


def streams(request: Request) -> bool:
    return request.json.get("stream") is True


def event_stream(_: Request) -> str:
    return "text/event-stream; charset=utf-8"


OPENAI = Api(
    name="openai",
    route=re.compile(r"(?:/.+)?/chat/completions"),
    check=check,
    misshapen=misshapen,
    steps=steps,
    streams=streams,
    document=document,
    events=events,
    stream_type=event_stream,
    fault=fault,
    envelope=envelope,
    array="messages",
    entries=lambda body: whole(body, "messages"),
    said=lambda answer, context: (plain_message(answer, context),),
    normal=normal,
    atoms=iter_atoms,
)
