"""Mistral's own API: the chat shape with strict orders of roles and strict call ids."""

from __future__ import annotations

import msgspec

from retention.model import Identity, Message, Role
from retention.providers import openai, openai_edits, rules
from retention.providers.base import Provider, Response, Shape

_IDS = r"[a-zA-Z0-9]{9}"

# mistral-common's validator in serving mode; each other order is answered with code 3230.
_ORDER = {
    Role.SYSTEM: (Role.USER, Role.ASSISTANT, Role.SYSTEM),
    Role.USER: (Role.ASSISTANT, Role.SYSTEM, Role.USER),
    Role.ASSISTANT: (Role.ASSISTANT, Role.USER, Role.TOOL),
    Role.TOOL: (Role.ASSISTANT, Role.TOOL),
}


def shape(message: Message, _identity: Identity) -> Shape:
    """Place a delivery: after results only inside the last of them.

    Refusal of a user message there: "Unexpected role 'user' after role 'tool'" (code 3230), and
    of a system message likewise.
    """
    if message.role is Role.ASSISTANT:
        return Shape.NONE
    return Shape.RESULT if message.role is Role.TOOL else Shape.MESSAGE


check = rules.make_check(
    openai.read,
    rules.pair_calls,
    rules.unique_ids,
    rules.match_ids(_IDS),
    rules.match_names(r"[a-zA-Z0-9_-]{1,64}"),
    rules.last_role(Role.USER, Role.TOOL),
    rules.follow_roles(_ORDER),
    rules.no_empty_content,
    openai.no_bare_reasoning,
)


def assemble(body: bytes) -> Response:
    """Return the response in BODY.

    The API leaves out the count of cached tokens where it is 0.
    """
    response = openai.PROVIDER.assemble(body)
    usage = response.usage
    if usage is None or usage.input is None or usage.cached is not None:
        return response
    return msgspec.structs.replace(response, usage=msgspec.structs.replace(usage, cached=0))


def make_id(seed: str) -> str:
    """Return an id of the form of Mistral's."""
    return seed[:9]


PROVIDER = Provider(
    api="mistral",
    array="messages",
    read=openai.read,
    parse=openai.parse,
    wrap=openai.wrap,
    shape=shape,
    merge=openai.merge,
    result=openai.result,
    check=check,
    head=openai_edits.head,
    assemble=assemble,
    rename=openai_edits.rename,
    id_pattern=_IDS,
    make_id=make_id,
    strip=openai_edits.strip,
)
