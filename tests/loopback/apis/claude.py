"""What Claude models allow, by the version in their name.  Anthropic and Bedrock share it."""

from __future__ import annotations

import re

Version = tuple[int, int]

NAME = re.compile(r"(opus|sonnet|haiku|fable|mythos)-(\d)(?:-(\d)(?!\d))?")
UNKNOWN: Version = (99, 0)  # an unknown model is taken for a new one

PREFILL = (
    "This model does not support assistant message prefill. The conversation must end with a user"
    " message."
)
MAX_MARKS = 4
MID_SYSTEM: dict[str, Version] = {
    "opus": (4, 8),
    "fable": (5, 0),
    "mythos": (5, 0),
    "sonnet": (5, 5),
}
NO_SAMPLING: dict[str, Version] = {"opus": (4, 7)}


def parse_model(model: str) -> tuple[str, Version]:
    """Family and version of MODEL; `claude-3-5-sonnet` and older give (3, 0)."""
    found = NAME.search(model)
    if found:
        return found[1], (int(found[2]), int(found[3] or 0))
    return "", (3, 0) if "claude-3" in model else UNKNOWN


def refuses_prefill(model: str) -> bool:
    """Whether a conversation may not end with the assistant."""
    return parse_model(model)[1] >= (4, 6)


def allows_system_messages(model: str) -> bool:
    """Whether `role: system` may stand among the messages."""
    family, version = parse_model(model)
    return version == UNKNOWN or version >= MID_SYSTEM.get(family, UNKNOWN)


def refuses_sampling(model: str) -> bool:
    """Whether temperature and its like are refused."""
    family, version = parse_model(model)
    return version != UNKNOWN and version >= NO_SAMPLING.get(family, (5, 0))


def always_thinks(model: str) -> bool:
    """Whether the model thinks on every request, so that no tool can be forced."""
    family, version = parse_model(model)
    return family in ("fable", "mythos") and version >= (5, 1)
