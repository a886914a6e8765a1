"""What an instance checks beyond the undisputed rules, and which variant of a provider it plays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

THINKING = ("lenient", "required", "bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class Strictness:
    """Flags of one server.  A default is what the documentation of the API says today."""

    exact: bool = False
    """All: what the provider issued and a request returns is complete, in place and unmodified."""

    thinking: str = "lenient"
    """Claude's reasoning on its way back.  `lenient`: it may be missing, and what is there is
    unmodified and in place.  `required`: in a tool loop the latest assistant message begins with
    it.  `bound`: it is valid only behind the content that it was made for."""

    strict_ids: bool = False
    """Mistral: a call id is exactly nine letters or digits (gptel's rebuild prefixes `call_`)."""

    encrypted_by_default: bool = True
    """Responses: reasoning comes encrypted if `store` is false; off: only if `include` asks."""

    strict_reasoning: bool = False
    """DeepSeek: from the first tool call on, assistant messages have a string `reasoning_content`.
    The server then always answers with one."""

    strict_signatures: bool = False
    """Gemini: the first call of each step of the current turn has a `thoughtSignature`.
    The server then always answers with one; otherwise only a model that thinks does."""

    exclusive_content: bool = True
    """Mistral: an assistant message has content or calls, not both (tokenizers before V13)."""

    merge_contents: bool = False
    """Gemini: judge the order on neighbouring contents of one role taken together."""

    gemini_call_ids: bool = True
    """Gemini: calls carry an `id`, as those of Gemini 3 do."""

    gemini_echo_ids: bool = False
    """Gemini: a result carries the `id` of its call, if that has one (documented, unenforced)."""

    def __post_init__(self) -> None:
        if self.thinking not in THINKING:
            raise ValueError(f"strictness: thinking is one of {', '.join(THINKING)}")

    @classmethod
    def from_json(cls, flags: dict[str, Any]) -> Strictness:
        """Flags by name; raises ValueError for one that does not exist or has another type."""
        defaults = {field.name: field.default for field in fields(cls)}
        for name, value in flags.items():
            if name not in defaults or type(value) is not type(defaults[name]):
                raise ValueError(f"strictness: no flag {name!r} with value {value!r}")
        return cls(**flags)
