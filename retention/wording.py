"""The reasons of a plan in words, for the command line and the Emacs views."""

from __future__ import annotations

from collections.abc import Mapping

from retention.model import Reason

ANY = "*"  # what to say of a detail that has no words of its own

# By code: what happened, and words for its details.
_REASONS: dict[str, tuple[str, Mapping[str, str]]] = {
    "not_replayed": (
        "A response went out as gptel wrote it, not as it was received",
        {
            "edited": "its text in the buffer was edited",
            "filtered": "part of it is hidden or left out",
            "incomplete": "it was not received to its end",
            "other provider": "it came from another provider",
            "other model": "it came from another model",
            "other cache policy": "it was made under another cache setting",
            "results omitted": "its tool results are left out or shortened",
            "held back": "the provider refused an edited request",
            "damaged": "its stored text is damaged",
        },
    ),
    "repaired": (
        "What gptel built was repaired",
        {
            "call ids": "calls and their results got the ids that belong to them",
            "reasoning added": "the reasoning that the API demands was added",
            "joined": "two answers in a row became one",
            "in the loop": "the response went back as the provider sent it",
            "context stands further up": "context that stands further up was not repeated",
        },
    ),
    "not_repaired": (
        "Inside the tool loop gptel's own form of the response stayed",
        {
            "no response recorded": "the provider's response was not recorded",
            "other calls": "gptel read other calls than the provider sent",
            "changed by a hook": "a hook changed a call before it ran",
            "response incomplete": "the response was cut off",
        },
    ),
    "reasoning_dropped": (
        "Reasoning was left out",
        {"the history changed": "it is valid only behind the messages that it was made for"},
    ),
    "refused": (
        "Edits are held back since the provider refused an edited request",
        {
            "1": "reasoning is left out",
            "2": "no response is replayed",
            "3": "everything goes out as gptel made it",
        },
    ),
    "delivery_lost": (
        "An earlier delivery was not put back, its text cannot be read",
        {ANY: "row {}"},
    ),
    "host_lost": (
        "A delivery was not put in, the message that it belongs in cannot be read",
        {ANY: "row {}"},
    ),
    "no_boundary": ("A delivery was not put in, the API allows it nowhere there", {}),
    "damaged": ("A stored text is damaged, so everything was placed without it", {ANY: "row {}"}),
    "context_moved": ("Context that gptel puts into the newest prompt left an earlier one", {}),
    "section_error": ("A section signalled an error and counts as unchanged", {}),
    "breach": ("The request breaks a rule that its API publishes", {}),
}


def explain_reason(reason: Reason) -> str:
    """Return REASON as a sentence; a code without words stands for itself."""
    text, details = _REASONS.get(reason.code, (reason.code, {}))
    known, _, rest = reason.detail.partition(": ")
    if known in details:
        words = f"{details[known]} ({rest})" if rest else details[known]
    else:
        words = details.get(ANY, "{}").format(reason.detail) if reason.detail else ""
    return f"{text}: {words}." if words else f"{text}."
