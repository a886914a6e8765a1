"""Gemini: `POST .../models/MODEL:generateContent` and `:streamGenerateContent`.

With `alt=sse` a stream is server-sent events that end lines with CR LF, without it one JSON array.
Calls and results have no ids that matter: they pair by place and number, on contents as they are
sent (neighbours of one role are not joined unless the flag says so).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile

from tests.loopback.cache import whole
from tests.loopback.issued import Issued
from tests.loopback.model import (
    Answer,
    Api,
    Atom,
    Call,
    Context,
    EmptyText,
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
from tests.loopback.shape import need, optional, want
from tests.loopback.strictness import Strictness
from tests.loopback.wire import dumps, pieces, sse

COUNT = (
    "Please ensure that the number of function response parts is equal to the number of function"
    " call parts of the function call turn."
)
RESPONSE_ORDER = (
    "Please ensure that function response turn comes immediately after a function call turn."
)
CALL_ORDER = (
    "Please ensure that function call turn comes immediately after a user turn or after a"
    " function response turn."
)
ROLE = "Please use a valid role: user, model."
LAST = "Please ensure that multiturn requests ends with a user role or a function response."
SIGNATURE = (
    "Function call is missing a thought_signature in functionCall parts. This is required for"
    " tools to work correctly, and missing thought_signature may lead to degraded model"
    " performance. Additional data, function call `default_api:{name}` , position {position}."
)
ECHO = "Please ensure that function responses carry the ids of their function calls."  # our words
CORRUPTED = "Corrupted thought signature."
DUMMIES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")

TOP = {
    "contents",
    "tools",
    "toolConfig",
    "safetySettings",
    "systemInstruction",
    "generationConfig",
    "cachedContent",
    "labels",
    "serviceTier",
    "store",
}
DATA = {
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
}
PART = DATA | {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"}
CALL = {"id", "name", "args"}
RESPONSE = {"id", "name", "response", "parts", "willContinue", "scheduling"}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def check(request: Request, strictness: Strictness, issued: Issued) -> None:
    """Refuse what the API refuses."""
    check_fields(request.json, TOP, "")
    contents = want(request.json.get("contents", []), list, "contents")
    if not contents:
        raise Refused("* GenerateContentRequest.contents: contents is not specified\n")
    for number, content in enumerate(contents):
        check_content(want(content, dict, f"contents[{number}]"), f"contents[{number}]")
    contents = get_contents(request.json)
    check_pairing(merge(contents) if strictness.merge_contents else contents)
    if strictness.gemini_echo_ids:
        check_echo(contents)
    if strictness.strict_signatures:
        check_signatures(contents)
    check_seals(contents, model_of(request), issued)


def camel(name: str) -> str:
    """A field name as documented; the API takes snake case too."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def get_contents(body: Object) -> list[Object]:
    """The contents, the fields of their parts in one spelling."""
    return [
        {**content, "parts": [{camel(k): v for k, v in part.items()} for part in content["parts"]]}
        for content in body["contents"]
    ]


def check_fields(value: Object, allowed: Iterable[str], path: str) -> None:
    for key in value:
        if camel(key) not in allowed:
            where = f" at '{path}'" if path else ""
            raise Refused(
                f'Invalid JSON payload received. Unknown name "{key}"{where}: Cannot find field.'
            )


def check_content(content: Object, path: str) -> None:
    check_fields(content, {"role", "parts"}, path)
    if role_of(content) not in ("user", "model"):
        raise Refused(ROLE)
    parts = want(content.get("parts", []), list, f"{path}.parts")
    if not parts:
        raise Refused(f"* GenerateContentRequest.{path}.parts: contents.parts must not be empty.\n")
    for index, part in enumerate(parts):
        check_part(want(part, dict, f"{path}.parts[{index}]"), f"{path}.parts[{index}]")
    if all(part.get("text") == "" and not signature_of(part) for part in parts):
        raise Refused("Unable to submit request because it must have a text parameter")


def check_part(part: Object, path: str) -> None:
    check_fields(part, PART, path)
    found = [key for key in part if camel(key) in DATA]
    if len(found) > 1:
        raise Refused(
            f"Invalid value at '{path}' (oneof), oneof field 'data' is already set. Cannot set"
            f" '{found[1]}'"
        )
    if not found:
        raise Refused(
            f"* GenerateContentRequest.{path}.data: required oneof field 'data' must have one"
            " initialized field\n"
        )
    for name in ("thoughtSignature", "thought_signature"):
        optional(part, name, str, path)
    optional(part, "thought", bool, path)
    if found[0] == "text":
        need(part, "text", str, path)
    elif camel(found[0]) == "functionCall":
        check_called(part[found[0]], CALL, "args", f"{path}.function_call")
    elif camel(found[0]) == "functionResponse":
        check_called(part[found[0]], RESPONSE, "response", f"{path}.function_response")


def check_called(value: Json, allowed: Iterable[str], data: str, path: str) -> None:
    check_fields(want(value, dict, path), allowed, path)
    if not need(value, "name", str, path):
        raise Refused(f"* GenerateContentRequest.{path}.name: Name cannot be empty.\n")
    optional(value, "id", str, path)
    want(value.get(data) or {}, dict, f"{path}.{data}")


def role_of(content: Object) -> str:
    return str(content.get("role") or "user")


def signature_of(part: Object) -> str | None:
    return part.get("thoughtSignature") or part.get("thought_signature")


def count(content: Object, name: str) -> int:
    return sum(name in part for part in content["parts"])


def merge(contents: Sequence[Object]) -> list[Object]:
    """CONTENTS with neighbours of one role joined."""
    joined: list[Object] = []
    for content in contents:
        if joined and role_of(joined[-1]) == role_of(content):
            joined[-1] = {**joined[-1], "parts": [*joined[-1]["parts"], *content["parts"]]}
        else:
            joined.append(content)
    return joined


def check_pairing(contents: Sequence[Object]) -> None:
    """Calls follow the user; as many results follow them, in one content with nothing else."""
    open_calls = 0
    before = ""
    for content in contents:
        role = role_of(content)
        calls, results = count(content, "functionCall"), count(content, "functionResponse")
        if results and (role != "user" or not open_calls):
            raise Refused(RESPONSE_ORDER)
        if open_calls and (results != open_calls or results != len(content["parts"])):
            raise Refused(COUNT)
        if calls and (role != "model" or before != "user"):
            raise Refused(CALL_ORDER)
        open_calls, before = calls, role
    if open_calls:
        raise Refused(COUNT)
    if before == "model":
        raise Refused(LAST)


def check_echo(contents: Sequence[Object]) -> None:
    """Each result has the id of the call that it answers by its place."""
    for before, after in pairwise(contents):
        calls = [part["functionCall"] for part in before["parts"] if "functionCall" in part]
        results = [
            part["functionResponse"] for part in after["parts"] if "functionResponse" in part
        ]
        for call, result in zip(calls, results, strict=False):
            if call.get("id") and result.get("id") != call["id"]:
                raise Refused(ECHO)


def check_signatures(contents: Sequence[Object]) -> None:
    """The first call of each step since the last ordinary user content is signed."""
    start = max(
        (
            n
            for n, each in enumerate(contents)
            if role_of(each) == "user" and not count(each, "functionResponse")
        ),
        default=0,
    )
    for number in range(start, len(contents)):
        calls = [part for part in contents[number]["parts"] if "functionCall" in part]
        if calls and not signature_of(calls[0]):
            raise Refused(
                SIGNATURE.format(name=calls[0]["functionCall"]["name"], position=number + 1)
            )


def check_seals(contents: Sequence[Object], model: str, issued: Issued) -> None:
    """A signature stands once, on the part that it was made for; two values are taken for any."""
    seen: set[str] = set()
    for content in contents:
        for part in content["parts"]:
            token = signature_of(part)
            if not token or token in DUMMIES or issued.is_foreign("gemini", token, model):
                continue
            if token in seen or not opens(token, "gemini", model, sealed_text(part)):
                raise Refused(CORRUPTED)
            seen.add(token)


def sealed_text(part: Object) -> str:
    """What the signature of PART vouches for."""
    call = part.get("functionCall")
    if call is None:
        return str(part.get("text"))
    return f"{call['name']} {dumps(call.get('args') or {})}"


def misshapen(path: str, expected: str) -> Refused:
    if not expected:
        return Refused(f"* GenerateContentRequest.{path}: required field is not specified\n")
    return Refused(f"Invalid value at '{path}': expected {expected}")


def steps(body: Object) -> list[Step]:
    found = []
    for content in get_contents(body):
        results = tuple(
            str(part["functionResponse"]) for part in content["parts"] if "functionResponse" in part
        )
        texts = tuple(part["text"] for part in content["parts"] if "text" in part)
        if role_of(content) == "model":
            found.append(Step(kind="assistant", texts=texts))
        elif results:
            found.append(Step(kind="results", texts=results))
        else:
            found.append(Step(kind="user", texts=texts))
    return found


def usage(answer: Answer, context: Context) -> Object:
    output = len(answer.text) // 4 + 1
    told = {
        "promptTokenCount": context.input_tokens,
        "candidatesTokenCount": output,
        "totalTokenCount": context.input_tokens + output,
    }
    cached = context.cached.read
    return {**told, "cachedContentTokenCount": cached} if cached else told


def make_parts(answer: Answer, context: Context) -> list[Object]:
    """The parts of the answer; a streamed text is several."""
    streamed = streams(context.request)
    parts: list[Object] = []
    for block in answer.blocks:
        match block:
            case Thinking(text):
                parts += [{**part, "thought": True} for part in make_texts(text, streamed)]
            case Text(text):
                parts += make_texts(text, streamed)
            case EmptyText():
                parts.append({"text": ""})
            case Call():
                parts.append({"functionCall": make_call(block, context, len(parts))})
            case _:
                raise ScriptError(f"script: not a block of the gemini API: {block!r}")
    if context.strictness.strict_signatures or answer.thinks:
        sign(parts, context)
    return parts


def make_texts(text: str, streamed: bool) -> list[Object]:
    return [{"text": piece} for piece in (pieces(text) if streamed else [text]) if piece]


def make_call(call: Call, context: Context, index: int) -> Object:
    made: Object = {"name": call.name, "args": call.args}
    return {**made, "id": context.id("", 8, index)} if context.strictness.gemini_call_ids else made


def sign(parts: Sequence[Object], context: Context) -> None:
    """Sign the first call, or without calls the last text, and whatever is there to be signed."""
    calls = [index for index, part in enumerate(parts) if "functionCall" in part]
    texts = [index for index, part in enumerate(parts) if not part.get("thought")]
    empty = [index for index, part in enumerate(parts) if part.get("text") == ""]
    for index in {*(calls[:1] or texts[-1:]), *empty}:
        nonce, model = context.id("", NONCE, index), model_of(context.request)
        parts[index]["thoughtSignature"] = seal(nonce, "gemini", model, sealed_text(parts[index]))


def response(
    parts: Sequence[Object], answer: Answer, context: Context, *, last: bool = True
) -> Object:
    candidate: Object = {"content": {"role": "model", "parts": list(parts)}}
    if last:
        candidate["finishReason"] = "STOP"
    return {
        "candidates": [{**candidate, "index": 0}],
        "usageMetadata": usage(answer, context),
        "modelVersion": model_of(context.request),
        "responseId": context.id("", 22),
    }


def model_of(request: Request) -> str:
    return request.path.rpartition("/")[2].partition(":")[0]


def document(answer: Answer, context: Context) -> Json:
    return response(make_parts(answer, context), answer, context)


def iter_responses(answer: Answer, context: Context) -> Iterator[Json]:
    """One response a part; the last says why it stopped.  No calls before an error."""
    parts = make_parts(answer, context)
    if answer.error is not None:
        for part in takewhile(lambda part: "functionCall" not in part, parts):
            yield response([part], answer, context, last=False)
        yield make_envelope(fault(503, answer.error))
        return
    for number, part in enumerate(parts or [{"text": ""}], 1):
        yield response([part], answer, context, last=number >= len(parts))


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    if is_sse(context.request):
        for each in iter_responses(answer, context):
            yield sse(each, newline="\r\n")
        return
    opening = "["
    for each in iter_responses(answer, context):
        yield (opening + dumps(each)).encode()
        opening = "\r\n,"
    yield b"]"


def is_sse(request: Request) -> bool:
    return request.query.get("alt") == "sse"


def streams(request: Request) -> bool:
    return request.path.endswith(":streamGenerateContent")


def stream_type(request: Request) -> str:
    return "text/event-stream" if is_sse(request) else "application/json; charset=UTF-8"


def fault(status: int, message: str) -> Refused:
    return Refused(message, status=status)


def make_envelope(refused: Refused) -> Object:
    status = STATUSES.get(refused.status, "UNKNOWN")
    return {"error": {"code": refused.status, "message": refused.message, "status": status}}


def envelope(refused: Refused, request: Request) -> Json:
    whole = make_envelope(refused)
    return [whole] if streams(request) and not is_sse(request) else whole


def said(answer: Answer, context: Context) -> tuple[Object, ...]:
    parts = make_parts(answer, context)
    return ({"role": "model", "parts": parts},) if parts else ()


def normal(content: Object) -> Object:
    """The content with neighbours that are text and nothing else joined."""
    parts: list[Object] = []
    for part in get_contents({"contents": [content]})[0]["parts"]:
        if "functionCall" in part:
            args = dumps(part["functionCall"].get("args") or {})
            parts.append({**part, "functionCall": {**part["functionCall"], "args": args}})
        elif parts and is_plain(parts[-1]) and is_plain(part) and same_kind(parts[-1], part):
            parts[-1] = {**part, "text": parts[-1]["text"] + part["text"]}
        else:
            parts.append(part)
    return {"role": role_of(content), "parts": parts}


def is_plain(part: Object) -> bool:
    return set(part) <= {"text", "thought"} and "text" in part


def same_kind(before: Object, after: Object) -> bool:
    return bool(before.get("thought")) == bool(after.get("thought"))


def iter_atoms(content: Object) -> Iterator[Atom]:
    """Calls are known by their ids, or by what they say where they have none."""
    if role_of(content) != "model" and not any(map(signature_of, content["parts"])):
        return
    for part in normal(content)["parts"]:
        if token := signature_of(part):
            yield Atom("seal", token)
        if call := part.get("functionCall"):
            yield (
                Atom("id", call["id"])
                if call.get("id")
                else Atom("call", f"{call['name']} {call['args']}")
            )
            yield Atom("arguments", call["args"])
        elif text := part.get("text", "").strip():
            yield Atom("reasoning" if part.get("thought") else "text", text)


API = Api(
    name="gemini",
    route=re.compile(r"(?:/.+)?/models/[^/:]+:(?:generateContent|streamGenerateContent)"),
    check=check,
    misshapen=misshapen,
    steps=steps,
    streams=streams,
    document=document,
    events=events,
    stream_type=stream_type,
    fault=fault,
    envelope=envelope,
    array="contents",
    entries=lambda body: whole(body, "contents"),
    said=said,
    normal=normal,
    atoms=iter_atoms,
    model=model_of,
)
