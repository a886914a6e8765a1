"""Receipts: what an engine with a history of its own is offered, and what acknowledges it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention import receipts
from retention.errors import InvalidParams, UnknownConversation
from retention.model import Offer, Receipt
from retention.receipts import Boundary, Observed, Offered, measure
from retention.sections import render
from retention.service import Service
from retention.store import Store
from tests.helpers import reminder, section
from tests.store.build import dump, fork

WRAPPED = Boundary(wrapped=True)
ENV, RULES = section("env"), section("rules", "be brief", kind="guidance")


class Engine:
    """An engine over a store: what it is offered, it may echo."""

    def __init__(self, store: Store, session: str = "s1") -> None:
        self.store = store
        self.id = receipts.name_conversation("test", session)
        self.now = 0.0
        receipts.open_conversation(store, self.id, session, self.now)

    def offer(self, *sections: Any, boundary: Boundary = WRAPPED, **more: Any) -> Offered:
        self.now += 1
        observed = Observed(sections=sections, **more)
        return receipts.offer(self.store, self.id, observed, boundary, self.now)

    def echo(self, offered: Offered, text: str | None = None, **more: Any) -> str:
        text = offered.text if text is None else text
        return receipts.acknowledge(self.store, self.id, offered.id, text, **more)

    def accept(self, *sections: Any, **more: Any) -> Offered:
        offered = self.offer(*sections, **more)
        assert self.echo(offered) == ""
        return offered

    @property
    def offers(self) -> list[Offer]:
        with self.store.read() as reader:
            return list(reader.offers(self.id))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store")
    yield opened
    assert opened.check() == ()
    opened.close()


@pytest.fixture
def engine(store: Store) -> Engine:
    return Engine(store)


def names(offered: Offered) -> dict[str, str]:
    return dict(offered.due)


# Offers


def test_x1_text_is_the_delivery_that_gptel_would_get(engine: Engine) -> None:
    tip = reminder()
    offered = engine.offer(ENV, RULES, reminders=(tip,), boundary=Boundary())

    assert offered.text.count("<system-reminder>\n") == 3
    assert offered.text.endswith(render((), (tip,)))
    assert names(offered) == {"env": "new", "rules": "new"}
    assert offered.reminders == ("tip",)


def test_engine_that_wraps_the_text_gets_it_without_our_tags(engine: Engine) -> None:
    offered = engine.offer(ENV, RULES, boundary=WRAPPED)

    assert "system-reminder" not in offered.text
    assert offered.text.startswith("# Env\nThis updates only Env.")
    assert "\n\none\n\n# Rules\n" in offered.text


def test_x1_all_stays_due_until_it_is_acknowledged(engine: Engine) -> None:
    first = engine.offer(ENV, RULES)
    second = engine.offer(ENV, RULES)

    assert second.text == first.text
    assert second.id != first.id
    assert engine.echo(second) == ""
    assert engine.offer(ENV, RULES).text == ""


def test_only_what_changed_is_offered_next(engine: Engine) -> None:
    engine.accept(ENV, RULES)

    assert names(engine.offer(section("env", "two"), RULES)) == {"env": "changed"}


def test_a_state_that_returns_is_offered_again(engine: Engine) -> None:
    """A, B, A: the receipt for the first A says nothing about the last one."""
    engine.accept(ENV)
    engine.accept(section("env", "two"))

    assert names(engine.offer(ENV)) == {"env": "changed"}


def test_d7_section_that_is_selected_no_more_is_stated_inactive_once(engine: Engine) -> None:
    engine.accept(ENV, RULES)

    assert names(engine.accept(RULES)) == {"env": "inactive"}
    assert engine.offer(RULES).text == ""


def test_d9_section_with_an_error_keeps_its_last_body(engine: Engine) -> None:
    broken = section("env", None, error=True)
    engine.accept(ENV)

    offered = engine.offer(broken)
    assert offered.text == ""
    assert [reason.code for reason in offered.reasons] == ["section_error"]
    assert "\n\none" in engine.offer(broken, boundary=Boundary(kind="compacted")).text


def test_nothing_due_leaves_no_record(engine: Engine) -> None:
    engine.accept(ENV)
    engine.offer(ENV)

    assert len(engine.offers) == 1


@pytest.mark.parametrize("boundary", [Boundary(kind="lunch"), Boundary(limit=-1)])
def test_boundary_out_of_range_is_refused(engine: Engine, boundary: Boundary) -> None:
    with pytest.raises(InvalidParams):
        engine.offer(ENV, boundary=boundary)


# Receipts


@pytest.mark.parametrize(
    ("echo", "why"),
    [
        (lambda text: text[:-1], "partial"),
        (lambda text: "", "partial"),
        (lambda text: text + "\n", "altered"),
        (lambda text: text.replace("one", "two"), "altered"),
        (lambda text: f"seen: {text}", "altered"),
    ],
)
def test_x1_only_the_exact_text_acknowledges(engine: Engine, echo: Any, why: str) -> None:
    offered = engine.offer(ENV)

    assert engine.echo(offered, echo(offered.text)) == why
    assert names(engine.offer(ENV)) == {"env": "new"}


def test_x1_failed_delivery_acknowledges_nothing(engine: Engine) -> None:
    offered = engine.offer(ENV)

    assert engine.echo(offered, ok=False) == "failed"
    assert names(engine.offer(ENV)) == {"env": "new"}


def test_x1_receipt_of_another_conversation_acknowledges_nothing(store: Store) -> None:
    """Also where both were offered the same text under the same number."""
    one, other = Engine(store, "s1"), Engine(store, "s2")
    mine, theirs = one.offer(ENV), other.offer(ENV)
    assert mine.text == theirs.text

    assert one.echo(theirs) == "foreign"
    assert names(one.offer(ENV)) == {"env": "new"}


def test_x1_second_receipt_is_a_duplicate(engine: Engine) -> None:
    offered = engine.accept(ENV)

    assert engine.echo(offered) == "duplicate"


def test_x1_one_record_of_the_engine_acknowledges_one_offer(engine: Engine) -> None:
    first = engine.offer(ENV)
    assert engine.echo(first, echo="line 7") == ""
    engine.accept(section("env", "two"))
    again = engine.offer(ENV)

    assert engine.echo(again, echo="line 7") == "duplicate"
    assert names(engine.offer(ENV)) == {"env": "changed"}


def test_unknown_conversation_is_an_error(store: Store) -> None:
    with pytest.raises(UnknownConversation):
        receipts.acknowledge(store, "0" * 32, "x", "")


def test_newest_offer_of_a_text_is_found_and_none_from_later(engine: Engine) -> None:
    first, second = engine.offer(ENV), engine.offer(ENV)

    def found(at: float, text: str = first.text) -> str | None:
        offer = receipts.find_offer(engine.offers, text, at)
        return offer and offer.id

    assert [found(0.5), found(1.0), found(2.5)] == [None, first.id, second.id]
    assert found(2.5, first.text + " ") is None
    engine.echo(second)
    assert found(2.5) == first.id


# Context that the engine lost


def test_x2_compaction_offers_all_selected_sections_again(engine: Engine) -> None:
    engine.accept(ENV, RULES)
    restored = engine.offer(ENV, RULES, boundary=Boundary(kind="compacted", wrapped=True))

    assert names(restored) == {"env": "missing", "rules": "missing"}
    assert engine.echo(restored) == ""
    assert engine.offer(ENV, RULES).text == ""


def test_x2_restoration_without_a_receipt_leaves_all_due(engine: Engine) -> None:
    engine.accept(ENV)
    engine.offer(ENV, boundary=Boundary(kind="compacted"))

    assert names(engine.offer(ENV)) == {"env": "missing"}


def test_a4_only_what_the_engine_lost_is_offered_again(engine: Engine) -> None:
    for number, each in enumerate((ENV, RULES)):
        offered = engine.offer(ENV, each)
        engine.echo(offered, echo=f"line {number}")
    receipts.lose(engine.store, engine.id, {"line 0"})

    assert names(engine.offer(ENV, RULES)) == {"rules": "missing"}
    assert [o.receipt for o in engine.offers][:2] == [Receipt.ACKNOWLEDGED, Receipt.LOST]


# Limits


def test_x2_oversized_section_waits_and_the_rest_goes(engine: Engine) -> None:
    large = section("large", "x" * 500)
    offered = engine.offer(ENV, large, RULES, boundary=Boundary(limit=400))

    assert names(offered) == {"env": "new", "rules": "new"}
    assert [reason.code for reason in offered.waiting] == ["oversized"]
    assert offered.waiting[0].detail.startswith("large: ")
    assert offered.news
    engine.echo(offered)
    unlimited = engine.offer(ENV, large, RULES)
    assert names(unlimited) == {"large": "new"}
    assert "x" * 500 in unlimited.text


def test_waiting_is_news_once(engine: Engine) -> None:
    large = section("large", "x" * 500)
    limited = Boundary(limit=400)

    assert engine.offer(large, boundary=limited).news
    assert not engine.offer(large, boundary=limited).news
    assert engine.offer(section("large", "y" * 501), boundary=limited).news


def test_what_has_no_room_beside_the_others_goes_next(engine: Engine) -> None:
    first, second = section("first", "x" * 200), section("second", "y" * 200)
    limited = Boundary(limit=400)
    offered = engine.offer(first, second, boundary=limited)

    assert names(offered) == {"first": "new"}
    assert [reason.code for reason in offered.waiting] == ["no_room"]
    engine.echo(offered)
    assert names(engine.offer(first, second, boundary=limited)) == {"second": "new"}


def test_limit_counts_as_engines_do() -> None:
    assert [measure(text) for text in ("", "é", "😀", "\ud83d")] == [0, 1, 2, 1]


def test_text_of_exactly_the_limit_goes(engine: Engine) -> None:
    size = measure(engine.offer(section("env", "😀" * 9)).text)

    assert engine.offer(section("env", "😀" * 9), boundary=Boundary(limit=size, wrapped=True)).text
    less = engine.offer(section("env", "😀" * 9), boundary=Boundary(limit=size - 1, wrapped=True))
    assert less.text == ""


# Reminders


def test_reminder_that_fires_once_counts_from_its_receipt(engine: Engine) -> None:
    tip = reminder()
    assert engine.offer(reminders=(tip,)).reminders == ("tip",)
    assert engine.accept(reminders=(tip,)).reminders == ("tip",)

    assert engine.offer(reminders=(tip,)).text == ""


def test_reminder_of_every_second_turn(engine: Engine) -> None:
    tip = reminder(policy="every", turns=2)

    fired = []
    for _ in range(5):
        offered = engine.offer(reminders=(tip,))
        fired.append(bool(offered.text))
        if offered.text:
            engine.echo(offered)
    assert fired == [True, False, True, False, True]


def test_turns_are_counted_at_prompts_only(engine: Engine) -> None:
    tip = reminder(policy="every", turns=1)
    engine.accept(reminders=(tip,))

    assert engine.offer(reminders=(tip,), boundary=Boundary(kind="results")).text == ""
    assert engine.offer(reminders=(tip,)).text


def test_d8_reminder_of_a_condition_fires_when_it_becomes_true_or_changes(engine: Engine) -> None:
    def fires(state: str | None, *, accept: bool = True) -> bool:
        offered = engine.offer(reminders=(reminder(policy="while", state=state),))
        if offered.text and accept:
            engine.echo(offered)
        return bool(offered.text)

    assert [fires("a", accept=False), fires("a"), fires("a"), fires("b")] == [1, 1, 0, 1]
    assert [fires(None), fires("b"), fires("b")] == [0, 1, 0]


# The conversation


def test_forgetting_takes_the_offers_and_their_texts(engine: Engine) -> None:
    engine.accept(ENV)
    engine.store.forget(engine.id)

    assert set(dump(engine.store)) == {b"mformat"}


def test_forgotten_session_begins_anew(engine: Engine) -> None:
    engine.accept(ENV)
    engine.store.forget(engine.id)

    assert names(Engine(engine.store).offer(ENV)) == {"env": "new"}


def test_forgotten_session_that_a_fork_shares_stays_forgotten(engine: Engine) -> None:
    fork(engine.store, engine.id, "b" * 32)
    engine.store.forget(engine.id)

    with pytest.raises(UnknownConversation):
        receipts.open_conversation(engine.store, engine.id, "", 1.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["exact", "altered", "none", "compacted", "lost"]),
        st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]), min_size=1),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_x1_engine_always_has_or_is_offered_the_current_state(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, dict[str, str]]]
) -> None:
    """Whatever echoes come or fail: the engine holds, or is offered, all that is current."""
    opened = Store.open(tmp_path_factory.mktemp("receipts") / "store")
    try:
        engine = Engine(opened)
        held: dict[str, str] = {}
        for number, (what, bodies) in enumerate(steps):
            if what == "lost":
                receipts.lose(opened, engine.id, ())
            if what in ("lost", "compacted"):
                held = {}
            sections = [section(name, body) for name, body in bodies.items()]
            kind = "compacted" if what == "compacted" else "prompt"
            offered = engine.offer(*sections, boundary=Boundary(kind=kind, wrapped=True))

            differing = {name for name in bodies if held.get(name) != bodies[name]}
            over = {name for name in held if name not in bodies and held[name] != "inactive"}
            assert set(names(offered)) == differing | over

            if offered.text and what in ("exact", "compacted"):
                assert engine.echo(offered, echo=f"line {number}") == ""
                held |= bodies | dict.fromkeys(over, "inactive")
            elif offered.text and what == "altered":
                assert engine.echo(offered, offered.text + ".", echo=f"line {number}") == "altered"
        assert opened.check() == ()
    finally:
        opened.close()


# Over the wire


def test_methods_offer_and_acknowledge(store: Store) -> None:
    service = Service(store, clock=lambda: 1.0, random_id=lambda: "f" * 32)

    def call(method: str, **params: Any) -> Any:
        return service.call(method, json.dumps(params).encode())

    call("initialize", protocol=1)
    id = call("conversation/open").id
    env = {"name": "env", "title": "Env", "body": "one"}
    tip = {"key": "tip", "body": "mind this"}
    large = {"name": "large", "title": "Large", "body": "x" * 400}
    offered = call(
        "receipt/offer", conversation=id, sections=[env, large], reminders=[tip], limit=400,
    )  # fmt: skip
    assert [(s.name, s.reason) for s in offered.sections] == [("env", "new")]
    assert offered.reminders == ("tip",)
    assert offered.waiting[0].code == "oversized"

    receipt = {"conversation": id, "offer": offered.offer}
    failed = call("receipt/acknowledge", **receipt, text=offered.text, ok=False)
    assert (failed.accepted, failed.why) == (False, "failed")
    taken = call("receipt/acknowledge", **receipt, text=offered.text)
    assert (taken.accepted, taken.why) == (True, "")
    assert call("receipt/offer", conversation=id, sections=[env], boundary="results").text == ""
    again = call("receipt/offer", conversation=id, sections=[env], boundary="compacted")
    assert [(s.name, s.reason) for s in again.sections] == [("env", "missing")]


def test_large_texts_are_handed_over(store: Store, tmp_path: Path) -> None:
    service = Service(store, clock=lambda: 1.0, random_id=lambda: "f" * 32)
    (tmp_path / "files").mkdir(mode=0o700)
    service.call(
        "initialize", json.dumps({"protocol": 1, "handover": f"{tmp_path}/files"}).encode()
    )
    service.call("conversation/open", b"{}")
    params = {
        "conversation": "f" * 32,
        "sections": [{"name": "l", "title": "L", "body": "x" * 20_000}],
    }
    offered = service.call("receipt/offer", json.dumps(params).encode())

    assert offered.text == ""
    assert offered.text_file is not None
    echo = {"file": offered.text_file.file, "bytes": offered.text_file.bytes}
    receipt = {"conversation": "f" * 32, "offer": offered.offer, "text": echo}
    assert service.call("receipt/acknowledge", json.dumps(receipt).encode()).accepted
