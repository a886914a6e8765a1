"""Sections and reminders: what is due at a boundary, and the text that delivers it.  Pure.

A section is due unless the last delivery of it that the payload carries has its current body
(rules D2, A1).  There is no stored acknowledgement: it is computed from the deliveries that stand
in the payload each time (A3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from retention.digest import Digest, digest
from retention.model import Delivery, Reason, Reminder, Section, SectionState, Struct

OPEN, CLOSE = "<system-reminder>", "</system-reminder>"
PRIOR = "Prior evidence"  # the title of the section with what an earlier conversation found
KEPT = "Everything else that you were given earlier stays applicable."


class Due(Struct, frozen=True):
    """One section that a delivery must carry: its stored record, and why it is due."""

    state: SectionState
    record: bytes  # the object of domain "section" that `state.body` names
    reason: str  # "new" | "changed" | "missing" | "inactive"


class Record(Struct, frozen=True):
    """A section as it is stored.  `body` None: nothing available; `failed`: it was never known."""

    name: str
    title: str
    kind: str
    body: str | None
    failed: bool = False
    inactive: bool = False


def standing(deliveries: Iterable[Delivery]) -> dict[str, SectionState]:
    """Return the state of each section that stands in a payload, from its DELIVERIES in order."""
    states: dict[str, SectionState] = {}
    for delivery in deliveries:
        for state in delivery.sections:
            states[state.name] = state
    return states


def plan_sections(
    sections: Sequence[Section],
    states: Mapping[str, SectionState],
    known: Mapping[str, SectionState],
    read: Callable[[Digest], bytes | None],
    *,
    frozen: bool,
) -> tuple[list[Due], list[Reason]]:
    """Return what is due of SECTIONS, the selection in its order, and reasons for the rest.

    STATES stand in the payload; KNOWN are the newest in the whole log that are not inactive, used
    for a section whose body signals an error (D9), read by READ.  Unless FROZEN, a section that
    stands in the payload but is no longer selected is stated inactive once (D7).  Of several
    sections with one name the last counts.
    """
    due: list[Due] = []
    reasons: list[Reason] = []
    selected = {section.name: section for section in sections}
    if not frozen:
        for name, state in states.items():
            if name not in selected and not state.inactive:
                due.append(_inactive(state, read(state.body)))
    for section in selected.values():
        record = _current(section, states, known, read)
        if record is None:
            reasons.append(Reason(code="section_error", detail=section.name))
            continue
        body = digest("section", record)
        state = SectionState(name=section.name, body=body)
        before = states.get(section.name)
        if before == state:
            continue
        reason = "changed" if before else "missing" if section.name in known else "new"
        due.append(Due(state=state, record=record, reason=reason))
    return due, reasons


def _current(
    section: Section,
    states: Mapping[str, SectionState],
    known: Mapping[str, SectionState],
    read: Callable[[Digest], bytes | None],
) -> bytes | None:
    # None: unchanged because its body signals an error and an earlier one still stands (D9).
    if section.error:
        if section.name in states and not states[section.name].inactive:
            return None
        earlier = known.get(section.name)
        stored = read(earlier.body) if earlier else None
        if stored is not None:
            return stored
    body = None if section.error or not (section.body or "").strip() else section.body
    return msgspec.msgpack.encode(
        Record(
            name=section.name,
            title=section.title or section.name,
            kind=section.kind,
            body=body,
            failed=section.error,
        )
    )


def _inactive(state: SectionState, stored: bytes | None) -> Due:
    title = msgspec.msgpack.decode(stored, type=Record).title if stored else state.name
    record = msgspec.msgpack.encode(
        Record(name=state.name, title=title, kind="fact", body=None, inactive=True)
    )
    gone = SectionState(name=state.name, body=digest("section", record), inactive=True)
    return Due(state=gone, record=record, reason="inactive")


def plan_reminders(
    reminders: Sequence[Reminder],
    fired: Mapping[str, int],
    conditions: Mapping[str, str],
    turn: int,
) -> list[Reminder]:
    """Return the REMINDERS that are due in TURN (rule D8).

    FIRED maps a key to the turn of its newest delivery in the log, CONDITIONS a key to the state
    that the last commit saw.  Of several with one key the last counts.
    """
    latest = {reminder.key: reminder for reminder in reminders}
    return [
        reminder
        for reminder in latest.values()
        if reminder.body.strip() and _reminder_due(reminder, fired, conditions, turn)
    ]


def _reminder_due(
    reminder: Reminder, fired: Mapping[str, int], conditions: Mapping[str, str], turn: int
) -> bool:
    match reminder.policy:
        case "on":
            return True
        case "once":
            return reminder.key not in fired
        case "every":
            last = fired.get(reminder.key)
            return last is None or turn - last >= max(1, reminder.turns)
        case "while":
            held = conditions.get(reminder.key)
            return reminder.state is not None and reminder.state != held
        case _:
            return False


def update_conditions(
    conditions: Mapping[str, str], reminders: Sequence[Reminder]
) -> dict[str, str]:
    """Return CONDITIONS after a commit saw the `while` REMINDERS."""
    updated = dict(conditions)
    for reminder in reminders:
        if reminder.policy == "while":
            updated.pop(reminder.key, None)
            if reminder.state is not None:
                updated[reminder.key] = reminder.state
    return updated


def render(due: Sequence[Due], reminders: Sequence[Reminder]) -> str:
    """Return the text of one delivery: a block for each section, then for each reminder (D4)."""
    records = [msgspec.msgpack.decode(item.record, type=Record) for item in due]
    bodies = [_section_text(record) for record in records]
    bodies += [reminder.body.strip() for reminder in reminders]
    return "\n".join(f"{OPEN}\n{_closed(body)}\n{CLOSE}" for body in bodies)


def _section_text(record: Record) -> str:
    title = record.title
    if record.inactive:
        return f"# {title}\n{title} is no longer active. {KEPT}"
    scope = f"This updates only {title}."
    if record.kind == "guidance":
        scope = f"This updates only {title} and supersedes any earlier {title}."
    if record.failed:
        body = f"{title}: unavailable; it could not be determined."
    elif record.body is None:
        body = f"{title}: nothing is available or active."
    else:
        body = record.body.strip("\n")
    return f"# {title}\n{scope} {KEPT}\n\n{body}"


def _closed(body: str) -> str:
    # A body that contains the closing tag must not end its block early.
    return body.replace(CLOSE, "<\\/system-reminder>")
