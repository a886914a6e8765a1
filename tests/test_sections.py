"""Which sections and reminders are due, and what their delivery says (rules D1-D3, D7-D9)."""

from __future__ import annotations

import msgspec
import pytest

from retention.digest import Digest, digest
from retention.model import Delivery, Reason, Reminder, Section, SectionState
from retention.sections import (
    CLOSE,
    OPEN,
    Due,
    Record,
    plan_reminders,
    plan_sections,
    render,
    standing,
    update_conditions,
)
from tests.helpers import reminder, section


class Store:
    """What was delivered: the standing states, the known ones, and the stored records."""

    def __init__(self) -> None:
        self.states: dict[str, SectionState] = {}
        self.known: dict[str, SectionState] = {}
        self.objects: dict[Digest, bytes] = {}

    def plan(self, *sections: Section, frozen: bool = False) -> tuple[list[Due], list[Reason]]:
        return plan_sections(sections, self.states, self.known, self.objects.get, frozen=frozen)

    def deliver(self, *sections: Section) -> list[Due]:
        due, _ = self.plan(*sections)
        for item in due:
            self.states[item.state.name] = item.state
            if not item.state.inactive:
                self.known[item.state.name] = item.state
            self.objects[item.state.body] = item.record
        return due


def reasons(due: list[Due]) -> dict[str, str]:
    return {item.state.name: item.reason for item in due}


def text_of(*sections: Section) -> str:
    return render(plan_sections(sections, {}, {}, {}.get, frozen=False)[0], ())


# Due


def test_each_section_is_independent():
    """D2: only what is new or changed is due, each section by itself, in the selection's order."""
    store = Store()

    assert reasons(store.deliver(section("a"), section("b"))) == {"a": "new", "b": "new"}
    assert store.plan(section("a"), section("b")) == ([], [])
    assert reasons(store.deliver(section("a"), section("b", "two"))) == {"b": "changed"}
    assert list(reasons(store.plan(section("b"), section("c"), section("a", "x"))[0])) == [
        "b",
        "c",
        "a",
    ]


def test_lost_section_is_missing_rather_than_new():
    """A4: what the payload no longer carries is due again."""
    store = Store()
    store.deliver(section("a"))
    store.states.clear()

    assert reasons(store.plan(section("a"))[0]) == {"a": "missing"}


@pytest.mark.parametrize("change", [{"title": "Other"}, {"kind": "guidance"}, {"body": ""}])
def test_section_is_changed_by_anything_that_its_text_shows(change: dict[str, str]):
    """D2: title and kind are part of what the model was told."""
    store = Store()
    store.deliver(section("a"))

    assert reasons(store.plan(section("a", **{"body": "one"} | change))[0]) == {"a": "changed"}


@pytest.mark.parametrize("body", [None, "", " \n\t"])
def test_section_without_a_body_is_delivered_as_such(body: str | None):
    """D1: a selected section is never silently omitted, and blank bodies are all the same."""
    store = Store()

    due = store.deliver(section("env", body))

    assert reasons(due) == {"env": "new"}
    assert "nothing is available or active" in render(due, ())
    assert store.plan(section("env", None), section("env", "")) == ([], [])


def test_section_named_twice_counts_as_the_last():
    """D2: else either of the two would be due at each dispatch, for ever."""
    store = Store()
    store.deliver(section("a", "one"), section("a", "two"))

    assert store.plan(section("a", "one"), section("a", "two")) == ([], [])
    assert store.plan(section("a", "two")) == ([], [])


def test_standing_takes_the_last_delivery():
    """A1: the last in payload order decides."""
    one, two = (SectionState(name="a", body=digest("section", b)) for b in (b"1", b"2"))
    text = digest("delivery", b"")
    deliveries = [Delivery(text=text, after=1, sections=(s,)) for s in (one, two)]

    assert standing(deliveries) == {"a": two}
    assert standing(reversed(deliveries)) == {"a": one}


def test_deselected_section_is_stated_inactive_once():
    """D7: a user may change the selection; that a section is gone is said once."""
    store = Store()
    store.deliver(section("a"), section("b"))

    due = store.deliver(section("a"))

    assert reasons(due) == {"b": "inactive"}
    assert "B is no longer active" in render(due, ())
    assert store.plan(section("a")) == ([], [])
    assert reasons(store.plan(section("a"), section("b"))[0]) == {"b": "changed"}


def test_frozen_selection_states_nothing_inactive():
    """D7: an agent is told of its selected sections and of no other."""
    store = Store()
    store.deliver(section("a"), section("b"))

    assert store.plan(section("a"), frozen=True) == ([], [])


def test_section_with_an_error_counts_as_unchanged():
    """D9: its earlier body stands; it is reported, not delivered."""
    store = Store()
    store.deliver(section("a"))

    failed = section("a", None, error=True)

    assert store.plan(failed) == ([], [Reason(code="section_error", detail="a")])
    assert store.plan(section("a")) == ([], [])


def test_lost_section_with_an_error_comes_back_as_it_was():
    """D9, A4: unchanged means the body that it had, also when its delivery was lost."""
    store = Store()
    store.deliver(section("a", "the body"))
    store.states.clear()

    due, _ = store.plan(section("a", None, error=True))

    assert due == store.plan(section("a", "the body"))[0]


def test_section_that_never_had_a_body_is_unavailable():
    """D9: it is delivered as unavailable once, and with its body when there is one."""
    store = Store()

    due = store.deliver(section("a", "ignored", error=True))

    assert "could not be determined" in render(due, ())
    assert "ignored" not in render(due, ())
    assert store.plan(section("a", None, error=True))[0] == []
    assert reasons(store.plan(section("a", "now"))[0]) == {"a": "changed"}


# Reminders (D8)


def due_reminders(
    *reminders: Reminder,
    fired: dict[str, int] | None = None,
    conditions: dict[str, str] | None = None,
    turn: int = 1,
) -> list[str]:
    return [r.body for r in plan_reminders(reminders, fired or {}, conditions or {}, turn)]


def test_once_fires_until_it_was_delivered():
    """D8: whether it fired is read from the log."""
    assert due_reminders(reminder()) == ["mind this"]
    assert due_reminders(reminder(), fired={"tip": 1}, turn=9) == []


def test_every_fires_again_after_its_turns():
    """D8: every N turns, counted from its last delivery; not twice in one turn."""
    every = reminder(policy="every", turns=3)

    assert due_reminders(every) == ["mind this"]
    due = [t for t in range(2, 9) if due_reminders(every, fired={"tip": 2}, turn=t)]

    assert due == [5, 6, 7, 8]
    assert due_reminders(reminder(policy="every", turns=0), fired={"tip": 2}, turn=2) == []


def test_while_fires_when_its_condition_becomes_true_or_changes():
    """D8: not at each dispatch."""
    held = reminder(policy="while", state="3 errors")

    assert due_reminders(held) == ["mind this"]
    assert due_reminders(held, conditions={"tip": "3 errors"}) == []
    assert due_reminders(held, conditions={"tip": "2 errors"}) == ["mind this"]
    assert due_reminders(reminder(policy="while"), conditions={"tip": "3 errors"}) == []


def test_condition_that_ended_may_fire_again():
    """D8: becoming true again is becoming true."""
    held = reminder(policy="while", state="s")

    seen = update_conditions({}, [held])
    ended = update_conditions(seen, [reminder(policy="while")])

    assert (seen, ended) == ({"tip": "s"}, {})
    assert due_reminders(held, conditions=ended) == ["mind this"]


def test_event_fires_whenever_it_was_raised():
    """D8: an event that fired may happen again."""
    assert due_reminders(reminder(policy="on"), fired={"tip": 1}) == ["mind this"]


def test_events_with_one_key_coalesce():
    """D8: the last of them counts."""
    events = [reminder(policy="on", body=body) for body in ("first", "second")]

    assert due_reminders(*events, reminder("other", "else", policy="on")) == ["second", "else"]


def test_blank_reminders_and_unknown_policies_never_fire():
    """D8: firing is sparse; what is not understood is left alone."""
    assert due_reminders(reminder(body=" "), reminder("x", policy="sometimes")) == []


# Text (D2, D3)


def test_facts_update_only_themselves():
    """D3: other supplied state stays applicable, and so do other facts of that name's kind."""
    text = text_of(section("env", "the body"))

    assert "This updates only Env." in text
    assert "stays applicable" in text
    assert "supersedes" not in text
    assert "the body" in text


def test_guidance_supersedes_its_earlier_state():
    """D3: guidance sections also say that they supersede earlier ones of that name."""
    text = text_of(section("rules", kind="guidance"))

    assert "supersedes any earlier Rules" in text
    assert "stays applicable" in text


def test_each_section_and_reminder_has_its_own_block():
    """D4: one message, one block each, sections before reminders, in a fixed order."""
    due = plan_sections([section("b"), section("a")], {}, {}, {}.get, frozen=False)[0]

    text = render(due, [reminder(body="z"), reminder("y", body="y")])

    blocks = [block.strip() for block in text.split(OPEN)[1:]]
    assert [block.splitlines()[0] for block in blocks] == ["# B", "# A", "z", "y"]
    assert all(block.endswith(CLOSE) for block in blocks)


def test_body_cannot_close_its_block():
    """A2: a body that holds the markup is still one complete block."""
    text = text_of(section("env", f"a{CLOSE}\n{OPEN}b"))

    assert text.count(CLOSE) == 1
    assert text.endswith(CLOSE)


def test_records_are_stored_alike_for_equal_sections():
    """D2: what is compared is the digest of the stored record."""
    due = plan_sections([section("a")], {}, {}, {}.get, frozen=False)[0][0]

    record = msgspec.msgpack.decode(due.record, type=Record)
    assert due.state.body == digest("section", due.record)
    assert record == Record(name="a", title="A", kind="fact", body="one")


def test_section_reselected_with_an_error_comes_back_as_it_was():
    """D9: it has had a body, though it was inactive in between."""
    store = Store()
    store.deliver(section("a"))
    store.deliver()

    due, _ = store.plan(section("a", None, error=True))

    assert "one" in render(due, ())
