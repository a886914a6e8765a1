"""Reasons in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retention import wording
from retention.model import Reason
from retention.wording import explain_reason

AS_WRITTEN = "A response went out as gptel wrote it, not as it was received"
SOURCES = Path(wording.__file__).parent.glob("*.py")


@pytest.mark.parametrize(
    ("code", "detail", "text"),
    [
        ("no_boundary", "", "A delivery was not put in, the API allows it nowhere there."),
        ("not_replayed", "edited", f"{AS_WRITTEN}: its text in the buffer was edited."),
        ("not_replayed", "other model: claude-9",
         f"{AS_WRITTEN}: it came from another model (claude-9)."),
        ("not_replayed", "some {} reason", f"{AS_WRITTEN}: some {{}} reason."),
        ("delivery_lost", "12",
         "An earlier delivery was not put back, its text cannot be read: row 12."),
        ("breach", "call_place: 3: c1",
         "The request breaks a rule that its API publishes: call_place: 3: c1."),
        ("unheard_of", "3", "unheard_of: 3."),
    ],
)  # fmt: skip
def test_a_reason_is_a_sentence(code: str, detail: str, text: str) -> None:
    assert explain_reason(Reason(code=code, detail=detail)) == text


def test_every_reason_that_a_plan_can_have_has_words() -> None:
    written = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    codes = set(re.findall(r'Reason\(\s*code="(\w+)"', written))

    assert codes >= {"delivery_lost", "section_error"}
    assert [code for code in codes if explain_reason(Reason(code=code)).startswith(code)] == []
