"""OpenRouter: chat completions whose reasoning is a list of details that the upstream sealed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.loopback.apis import chat
from tests.loopback.issued import Issued
from tests.loopback.model import (
    Answer,
    Atom,
    Block,
    Context,
    Json,
    Object,
    Redacted,
    Refused,
    Request,
    Thinking,
)
from tests.loopback.script import ScriptError
from tests.loopback.seals import NONCE, opens, seal
from tests.loopback.shape import nullable, optional, want
from tests.loopback.strictness import Strictness
from tests.loopback.thinking import INVALID, MODIFIED
from tests.loopback.wire import dumps, pieces

FORMAT = "anthropic-claude-v1"
SEALS = {"reasoning.text": "signature", "reasoning.encrypted": "data"}


def check(request: Request, strictness: Strictness, issued: Issued) -> None:
    """Refuse what chat completions refuse, and details that are not as they were.

    They may be missing, all of them.
    """
    chat.check(request, strictness, issued)
    for number, message in enumerate(request.json["messages"]):
        path = f"messages[{number}]"
        details = nullable(message, "reasoning_details", list, path)
        owners = check_details(details or (), number, str(request.json["model"]), issued)
        for index, owner in owners.items():
            same = owner["reasoning_details"] == details and call_ids(owner) == call_ids(message)
            if not same:
                raise Refused(MODIFIED.format(path=f"messages.{number}.content.{index}"))


def call_ids(message: Object) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def check_details(
    details: Sequence[Json], number: int, model: str, issued: Issued
) -> dict[int, Object]:
    """The message that each sealed detail was issued with, by the number of the detail."""
    owners: dict[int, Object] = {}
    for index, detail in enumerate(details):
        path = f"messages[{number}].reasoning_details[{index}]"
        kind = str(optional(want(detail, dict, path), "type", str, path))
        token = detail.get(SEALS.get(kind, ""))
        if token is None:
            continue
        token, text = want(token, str, path), nullable(detail, "text", str, path) or ""
        if issued.is_foreign("openrouter", token, model):
            continue
        if not opens(token, "openrouter", model, kind, text):
            raise Refused(INVALID.format(path=f"messages.{number}.content.{index}"))
        for place in issued.find("openrouter", Atom("seal", token)):
            owners[index] = place.element
    return owners


def details_of(answer: Answer, context: Context) -> dict[int, Object]:
    """The details of the message, by the number of the block that each comes from."""
    found: dict[int, Object] = {}
    for number, block in enumerate(answer.blocks):
        if block not in answer.hidden:
            continue
        match block:
            case Thinking(text):
                fields = {"type": "reasoning.text", "text": text}
            case Redacted():
                fields = {"type": "reasoning.encrypted"}
                text = ""
            case _:
                raise ScriptError(f"script: not a block of the openrouter API: {block!r}")
        kind, index = fields["type"], len(found)
        nonce = context.id("", NONCE, index)
        token = seal(nonce, "openrouter", context.model, kind, text)
        name = context.id("reasoning-", 12, index)
        found[number] = {**fields, SEALS[kind]: token, "id": name, "format": FORMAT, "index": index}
    return found


def message(answer: Answer, context: Context) -> Object:
    details = list(details_of(answer, context).values())
    plain = {"reasoning": answer.reasoning or None} if details else {}
    return chat.message(
        answer, context, **plain, **({"reasoning_details": details} if details else {})
    )


def document(answer: Answer, context: Context) -> Json:
    return chat.complete(message(answer, context), answer, context)


def events(answer: Answer, context: Context) -> Iterator[bytes]:
    details = details_of(answer, context)

    def reasoning_deltas(number: int, block: Block) -> Iterator[Object]:
        """The text in pieces, each with what tells which detail it belongs to; the seal last."""
        whole = details[number]
        place = {name: whole[name] for name in ("type", "format", "index")}
        for piece in pieces(whole.get("text", "")):
            yield {"reasoning": piece, "reasoning_details": [{**place, "text": piece}]}
        rest = {name: value for name, value in whole.items() if name != "text"}
        yield {"reasoning_details": [rest]}

    yield b": OPENROUTER PROCESSING\n\n"
    deltas = chat.deltas(answer, message(answer, context), reasoning_deltas)
    yield from chat.stream(deltas, answer, context, usage_always=True)


def envelope(refused: Refused, request: Request) -> Json:
    upstream = {"type": "error", "error": {"type": refused.kind, "message": refused.message}}
    metadata = {"raw": dumps(upstream), "provider_name": "Anthropic"}
    error = {
        "code": refused.status,
        "message": "Provider returned error",
        "metadata": metadata,
    }
    return {"error": error, "user_id": "user_loopback"}


API = replace(
    chat.OPENAI,
    name="openrouter",
    route=re.compile(r"/openrouter(?:/api)?/v1/chat/completions"),
    check=check,
    document=document,
    events=events,
    envelope=envelope,
    said=lambda answer, context: (message(answer, context),),
)
