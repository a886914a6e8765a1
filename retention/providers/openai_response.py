"""OpenAI chat: a response, whole or streamed, as the message that goes back (rules F5, F8, R1).

A stream is a list of deltas; those of one member are folded into its value.  Nothing is known of
most members: texts are joined, lists appended, objects folded member by member, and the last of
anything else counts, which is how the API's own client libraries accumulate a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from retention.errors import InvalidResponse
from retention.model import Usage
from retention.providers import splice, streams
from retention.providers.base import Response

Object = dict[str, Any]

# With these a provider says that it failed: OpenRouter and Mistral, DeepSeek (two), Z.ai.
_FAILURES = frozenset(("error", "insufficient_system_resource", "aborted", "network_error"))

# Texts that come whole, from some servers in each delta.
_WHOLE = "role id type name format signature thought_signature reasoning_opaque".split()

# Values that the API refuses on input, or that are no part of the message.  What is harmless stays,
# `refusal`, `audio` and `annotations` without a value above all: OpenAI's library echoes them.
_LEFT_OUT: dict[str, Callable[[Any], bool]] = {
    # "expected an array of objects, but got null instead"; "empty array. Expected an array with
    # minimum length 1".  vLLM writes either.
    "tool_calls": lambda value: not value,
    # random padding against guesses at the length of a delta
    "obfuscation": lambda _: True,
}


class _Choice(msgspec.Struct, gc=False):
    delta: Object | None = None
    message: Object | None = None
    finish_reason: str | None = None
    usage: Any = None  # Moonshot
    error: Any = None  # OpenRouter


class _Chunk(msgspec.Struct, gc=False):
    """A chunk of a stream, or a whole completion."""

    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: str | None = None
    message: Any = None  # of an error: vLLM, Mistral


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek
    cached_tokens: int | None = None  # Moonshot


_read_chunk = streams.make_decoder(_Chunk)


def assemble(body: bytes) -> Response:
    """Return the response in BODY: a completion, or its chunks as server-sent events.

    All choices are one turn: gptel asks for no alternatives, and Copilot puts text and calls of
    a turn into a choice each.
    """
    texts = streams.read_documents(body)
    deltas: list[Object] = []
    usage: Any = None
    finish, error = "", ""
    found = ended = streamed = False
    for text in texts:
        if text == streams.DONE:
            ended = True
            break
        chunk = _read_chunk(text)
        if chunk is None:  # cut off
            break
        usage = chunk.usage or usage
        error = _read_error(chunk)
        for choice in chunk.choices or ():
            found = True
            streamed = streamed or choice.delta is not None
            deltas.append((choice.message if choice.delta is None else choice.delta) or {})
            finish = choice.finish_reason or finish
            usage = choice.usage or usage
            error = error or describe_error(choice.error)
        if error:
            break
    if not found:
        raise InvalidResponse(f"no chat completion in these {len(body)} bytes")
    if finish in _FAILURES:
        error = error or f"finish_reason: {finish}"
    whole = len(texts) == 1 and not streamed
    return Response(
        elements=_make_elements(deltas, texts[0] if whole else b""),
        complete=(ended or bool(finish) or whole) and not error,
        finish=finish,
        error=error,
        usage=read_usage(usage),
    )


def describe_error(error: Any) -> str:
    """Return the words of ERROR, an object with a message or a text; "" if there is none."""
    if isinstance(error, dict):
        error = error.get("message") or error
    if not error:
        return ""
    return streams.join_text(error) if isinstance(error, str) else streams.encode(error).decode()


def _read_error(chunk: _Chunk) -> str:
    return describe_error(chunk.message if chunk.object == "error" else chunk.error)


def read_usage(value: Any) -> Usage | None:
    """Return the usage object VALUE in the terms of the model; None if it is none."""
    try:
        usage = msgspec.convert(value, _Usage)
    except msgspec.ValidationError:
        return None
    read = usage.prompt_tokens_details or _Details()
    wrote = usage.completion_tokens_details or _Details()
    cached = (read.cached_tokens, usage.prompt_cache_hit_tokens, usage.cached_tokens)
    output = usage.completion_tokens
    apart = (usage.prompt_tokens or 0) + (output or 0) + (wrote.reasoning_tokens or 0)
    if output is not None and usage.total_tokens == apart:
        output += wrote.reasoning_tokens or 0  # xAI does not count reasoning as completion
    return Usage(
        input=usage.prompt_tokens,
        cached=next((count for count in cached if count is not None), None),
        written=read.cache_write_tokens,
        output=output,
    )


# The message


def _make_elements(deltas: list[Object], completion: bytes) -> tuple[bytes, ...]:
    if len(deltas) == 1 and completion and "role" in deltas[0]:
        return (_cut_message(streams.repair(completion), deltas[0]),)
    message = _fold_message(deltas)
    return (streams.encode(message),) if any(deltas) else ()


def _cut_message(raw: bytes, message: Object) -> bytes:
    """Return the bytes of MESSAGE, the only one of the completion RAW, without what is left out."""
    choices = splice.members(raw, splice.whole(raw))["choices"]
    choice = splice.members(raw, next(splice.items(raw, choices)))
    own = raw[slice(*choice["message"])]
    dropped = [key for key, value in message.items() if _is_left_out(key, value)]
    return splice.drop_members(own, splice.whole(own), *dropped) if dropped else own


def _is_left_out(key: str, value: Any) -> bool:
    return key in _LEFT_OUT and _LEFT_OUT[key](value)


def _fold_message(deltas: list[Object]) -> Object:
    message = fold_objects(deltas)
    if not message.get("role"):  # some servers leave it out
        message = {"role": "assistant"} | message | {"role": "assistant"}
    return {key: value for key, value in message.items() if not _is_left_out(key, value)}


def fold_objects(deltas: list[Object]) -> Object:
    """Return the object that DELTAS build up, its members in the order in which they came."""
    gathered: dict[str, list[Any]] = {}
    for delta in deltas:
        for key, value in delta.items():
            if key in gathered:
                gathered[key].append(value)
            else:
                gathered[key] = [value]
    return {key: _FOLDS.get(key, _fold)(values) for key, values in gathered.items()}


def _fold(values: list[Any]) -> Any:
    """Return the value that VALUES, one of each delta, build up."""
    said = [value for value in values if value is not None]
    if not said:
        return None
    if all(isinstance(value, str) for value in said):
        return "".join(said)
    if all(isinstance(value, dict) for value in said):
        return fold_objects(said)
    if all(isinstance(value, list) for value in said):
        return [item for value in said for item in value]
    return said[-1]


def _fold_whole(values: list[Any]) -> Any:
    """Return the first of VALUES that says something, else the first."""
    return next(filter(None, values), values[0])


def _list_objects(values: list[Any]) -> list[Object]:
    return [
        item
        for value in values
        if isinstance(value, list)
        for item in value
        if isinstance(item, dict)
    ]


# Calls


def _fold_calls(values: list[Any]) -> list[Object]:
    """Return the calls in the order in which they began, without their `index`."""
    calls: list[list[Object]] = []
    begun: dict[Any, list[Object]] = {}
    for piece in _list_objects(values):
        index = piece.get("index")
        call = begun.get(index)
        if call is None or _begins_call(piece, call[0]):
            call = []
            calls.append(call)
        begun[index] = call
        call.append({key: value for key, value in piece.items() if key != "index"})
    return [fold_objects(pieces) for pieces in calls]


def _begins_call(piece: Object, first: Object) -> bool:
    """Whether PIECE begins another call than FIRST did, although its index does not tell.

    Gemini's compatible endpoint gives all parallel calls the index 0, other servers give none.
    LiteLLM continues a call with the name "null" (E19).
    """
    if _get_name(piece) in (None, "", "null"):
        return False
    id = piece.get("id")
    return id != first.get("id") if id else piece.get("index") is None


def _get_name(piece: Object) -> Any:
    function = piece.get("function")
    return function.get("name") if isinstance(function, dict) else None


# Reasoning

_TEXTS = ("reasoning.text", "reasoning.summary")


def _fold_details(values: list[Any]) -> list[Object]:
    """Return OpenRouter's `reasoning_details`: pieces of one type, index and id are one detail.

    Without an index only texts and summaries come in pieces, one right after another.
    """
    details: list[tuple[Object, list[Object]]] = []  # what tells one from others, its pieces
    for piece in _list_objects(values):
        if piece.get("index") is not None:
            known = details
        else:
            known = details[-1:] if piece.get("type") in _TEXTS else []
        found = next((detail for detail in known if _continues_detail(detail[0], piece)), None)
        if found is None:
            details.append(({key: piece.get(key) for key in ("type", "index", "id")}, [piece]))
        else:
            found[0]["id"] = found[0]["id"] or piece.get("id")
            found[1].append(piece)
    return [fold_objects(pieces) for _, pieces in details]


def _continues_detail(head: Object, piece: Object) -> bool:
    if head["type"] != piece.get("type") or head["index"] != piece.get("index"):
        return False
    return None in (head["id"], piece.get("id")) or head["id"] == piece["id"]


def _fold_content(values: list[Any]) -> Any:
    """Return a content: a text, or Mistral's list of chunks if any delta was one."""
    if not any(isinstance(value, list) for value in values):
        return _fold(values)
    lists = [[{"type": "text", "text": v}] if isinstance(v, str) and v else v for v in values]
    runs: list[list[Object]] = []
    for chunk in _list_objects(lists):
        if runs and _continues_chunk(runs[-1][-1], chunk):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return [fold_objects(run) for run in runs]


def _continues_chunk(last: Object, chunk: Object) -> bool:
    kind = chunk.get("type")
    return kind in ("text", "thinking") and last.get("type") == kind and not last.get("closed")


_FOLDS: dict[str, Callable[[list[Any]], Any]] = {
    **dict.fromkeys(_WHOLE, _fold_whole),
    "content": _fold_content,
    "thinking": _fold_content,
    "tool_calls": _fold_calls,
    "reasoning_details": _fold_details,
}
