"""Which message of a conversation is the user's newest prompt, and how far its turn has come.

Reminders that are delivered as user messages are not prompts, so they are left out here, alone or
at the end of a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.loopback.model import Step

REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a conversation stands."""

    prompt: str
    """The newest prompt, without reminders; "" when there is none."""
    prompts: int
    """How many prompts there are."""
    results: int
    """How many tool results follow the newest prompt."""


def find_place(steps: Sequence[Step]) -> Place:
    """Read STEPS, a whole conversation."""
    prompt, prompts, results = "", 0, 0
    for step in steps:
        if step.kind == "results":
            results += len(step.texts)
        elif step.kind == "user" and (text := ordinary_text(step)):
            prompt, prompts, results = text, prompts + 1, 0
    return Place(prompt=prompt, prompts=prompts, results=results)


def ordinary_text(step: Step) -> str:
    """What remains of STEP without its reminders."""
    return REMINDER.sub("", "\n".join(step.texts)).strip()
