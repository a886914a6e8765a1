"""What an instance checks beyond the undisputed rules, and which variant of a provider it plays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Strictness:
    """Flags of one server.  A default is what the documentation of the API says today."""

    strict_ids: bool = False
    """Mistral: a call id is exactly nine letters or digits (gptel's rebuild prefixes `call_`)."""

    strict_reasoning: bool = False
    """DeepSeek: from the first tool call on, assistant messages have a string `reasoning_content`.
    The server then always answers with one."""

    strict_signatures: bool = False
    """Gemini: the first call of each step of the current turn has a `thoughtSignature`.
    The server then always answers with one."""

    exclusive_content: bool = True
    """Mistral: an assistant message has content or calls, not both (tokenizers before V13)."""

    merge_contents: bool = False
    """Gemini: judge the order on neighbouring contents of one role taken together."""

    gemini_call_ids: bool = True
    """Gemini: calls carry an `id`, as those of Gemini 3 do."""

    @classmethod
    def from_json(cls, flags: dict[str, Any]) -> Strictness:
        """Flags by name; raises ValueError for one that does not exist or is not a boolean."""
        known = {field.name for field in fields(cls)}
        for name, value in flags.items():
            if name not in known or not isinstance(value, bool):
                raise ValueError(f"strictness: no flag {name!r} with value {value!r}")
        return cls(**flags)
