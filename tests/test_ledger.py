"""The order of a log, and its alignment with a payload (rules B2, B5, G1-G3, Q6)."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from retention import ledger
from retention.ledger import Log, align, match_rows, order_rows
from retention.model import START, Delivery, Face, Row, SectionState
from tests.helpers import row, unit_digest


def aligned(payload: str, log: str) -> list[int]:
    return align([unit_digest(c) for c in payload], [unit_digest(c) for c in log])


def matched(payload: str | list[str], *rows: Row) -> list[list[int]]:
    """Match PAYLOAD, a message for each string and a unit for each of its letters."""
    return match_rows([[unit_digest(c) for c in message] for message in payload], rows)


def delivery(id: int, pred: int, *states: SectionState, **changes: object) -> Row:
    carried = Delivery(text=unit_digest("text"), after=pred, sections=states, **changes)
    return row(id, "delivery", pred, face=Face.ACTUAL, parts=(), delivery=carried)


# Order (G1)


def test_order_puts_each_row_after_its_predecessor_and_the_newest_insertion_first():
    """G1: of two rows inserted after the same one the newer comes first."""
    rows = [row(1, "a", START), row(2, "b", 1), row(3, "c", 2), row(4, "x", 1), row(5, "y", 4)]

    assert [r.id for r in order_rows(rows)] == [1, 4, 5, 2, 3]


def test_order_does_not_depend_on_the_order_of_reading():
    """L4, G5: writers need not agree on anything but the predecessors."""
    rows = [row(1, "a", START), row(2, "b", 1), row(3, "c", 1), row(4, "d", START), row(5, "e", 3)]
    expected = order_rows(rows)

    assert all(order_rows(shuffled) == expected for shuffled in permutations(rows))


def test_log_grown_by_insert_equals_the_log_read_again():
    """L3: a restarted backend sees the same log."""
    choose = random.Random(7)
    grown = Log()
    for id in range(1, 60):
        new = row(id, str(id), choose.randrange(id))
        grown.insert(new)
        read = Log(grown.rows.values())
        assert read.order == grown.order
        assert all(read.position(i) == grown.position(i) for i in (START, *grown.order))


def test_log_knows_the_newest_delivery_of_a_section_and_of_a_reminder():
    """D8: that a reminder fired is read from the log, in whatever order its rows stand."""
    old = SectionState(name="env", body=unit_digest("old"))
    new = SectionState(name="env", body=unit_digest("new"))
    log = Log(
        [
            row(1, "a", START),
            delivery(2, 1, old, reminders=("tip",), turn=1),
            row(3, "b", 2),
            delivery(4, 1, new, reminders=("tip",), turn=2),
        ]
    )

    assert log.known == {"env": (4, new)}
    assert log.fired == {"tip": 2}


def test_log_knows_the_last_body_of_a_section_that_became_inactive():
    """D9: if its body signals an error when it is selected again, that body stands."""
    body = SectionState(name="env", body=unit_digest("body"))
    gone = SectionState(name="env", body=unit_digest("gone"), inactive=True)

    assert Log([delivery(1, START, body), delivery(2, 1, gone)]).known == {"env": (1, body)}


def test_round_is_represented_by_its_ordinary_rows():
    """Q3: an actual row stands where the ordinary rows of its round stand."""
    log = Log(
        [
            row(1, "u", START),
            row(2, "call", face=Face.ORDINARY, round=3),
            row(3, "result", face=Face.ORDINARY, round=3),
            row(4, "CALL", face=Face.ACTUAL, round=3),
            row(5, "RESULT", face=Face.ACTUAL, round=3),
            row(6, "lost", face=Face.ACTUAL, round=4),
        ]
    )

    assert log.ordinary(5, last=True) == 3
    assert log.ordinary(4, last=False) == 2
    assert log.ordinary(1, last=True) == 1
    assert log.ordinary(6, last=True) == START


# Alignment (B2, G3)


@pytest.mark.parametrize(
    ("payload", "log", "places"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("abcd", "abc", [0, 1, 2, -1]),
        ("", "abc", []),
        ("abc", "", [-1, -1, -1]),
        ("ac", "abc", [0, 2]),
        ("axc", "abc", [0, -1, 2]),
        ("bc", "abc", [1, 2]),
        ("ab", "ba", [1, -1]),
        ("acb", "abc", [0, 2, -1]),
    ],
    ids=str,
)
def test_align_follows_edits(payload: str, log: str, places: list[int]):
    """B2: what is unchanged is found, in order, whatever was edited around it."""
    assert aligned(payload, log) == places


@pytest.mark.parametrize(
    ("payload", "log", "places"),
    [
        ("aya", "ayayay", [0, 1, 2]),
        ("y", "yyy", [0]),
        ("ay", "zayby", [1, 4]),
        ("xy", "ayby", [-1, 3]),
        ("xyz", "aybyz", [-1, 3, 4]),
        ("xyx", "aybyc", [-1, 3, -1]),
    ],
)
def test_align_takes_the_prefix_first_then_the_latest(payload: str, log: str, places: list[int]):
    """G3: of equal rows the longest prefix counts, else the latest, never the earliest."""
    assert aligned(payload, log) == places


@pytest.mark.parametrize("table", [0, 4, 1_000_000])
def test_align_of_long_edits_is_right_without_a_large_table(
    table: int, monkeypatch: pytest.MonkeyPatch
):
    """B2: with an edit at either end of a long conversation all in between is still found."""
    monkeypatch.setattr(ledger, "MAX_TABLE", table)
    log = [unit_digest(str(n)) for n in range(400)]
    payload = [unit_digest("new"), *log[1:200], unit_digest("x"), *log[210:399], unit_digest("y")]

    found = align(payload, log)

    assert found == [-1, *range(1, 200), -1, *range(210, 399), -1]


def test_align_without_unique_units_keeps_order_and_prefers_the_latest(
    monkeypatch: pytest.MonkeyPatch,
):
    """B2, G3: a conversation of nothing but "yes" is aligned without a table, too."""
    monkeypatch.setattr(ledger, "MAX_TABLE", 0)

    assert aligned("xyyx", "zyyyz") == [-1, 2, 3, -1]


# Matching messages


def test_match_needs_all_units_of_a_row_and_of_a_message():
    """F11: an edit inside a message is an edit of the message."""
    whole = row(1, "a", START, parts=(unit_digest("a"), unit_digest("b")))
    after = row(2, "c")

    assert matched(["ab", "c"], whole, after) == [[1], [2]]
    assert matched(["ax", "c"], whole, after) == [[], [2]]
    assert matched(["a", "c"], whole, after) == [[], [2]]
    assert matched(["abx", "c"], whole, after) == [[], [2]]


def test_match_follows_messages_that_another_api_splits_or_joins():
    """G2: the unit is the part, so that a switch of the model keeps boundaries."""
    joined = row(1, "a", START, parts=(unit_digest("a"), unit_digest("b")))

    assert matched(["a", "b"], joined) == [[1], [1]]
    assert matched(["ab"], row(1, "a", START), row(2, "b")) == [[1, 2]]


def test_match_tells_identical_messages_apart_by_their_place():
    """B2: repeated identical messages are told apart by their place."""
    rows = [row(1, "y", START), row(2, "1"), row(3, "y"), row(4, "2"), row(5, "y"), row(6, "3")]

    assert matched(["y", "1", "y", "2", "y", "3"], *rows) == [[n] for n in range(1, 7)]
    assert matched(["1", "y", "2", "y", "3"], *rows) == [[2], [3], [4], [5], [6]]
    assert matched(["y", "1", "y", "3"], *rows) == [[1], [2], [3], [6]]  # the longest prefix


def test_match_finds_a_prompt_in_the_form_of_the_buffer():
    """Q6: a prompt that transforms changed comes back as the buffer holds it."""
    prompt = row(1, "text", START, alias=(unit_digest("@"),))
    rows = [prompt, row(2, "a")]

    assert matched(["@", "a"], *rows) == [[1], [2]]


def test_match_tells_prompts_with_the_same_alias_apart():
    """Q6, B2: "continue" with another context each turn comes back as "continue" twice."""
    rows = [
        row(1, "context 1", START, alias=(unit_digest("c"),)),
        row(2, "a"),
        row(3, "context 2", alias=(unit_digest("c"),)),
        row(4, "b"),
    ]

    assert matched(["c", "a", "c", "b"], *rows) == [[1], [2], [3], [4]]


def test_match_finds_an_alias_that_is_also_a_message_of_its_own():
    """Q6: the user wrote "go" once plainly, and once with a preset that changed it."""
    rows = [row(1, "g", START), row(2, "a"), row(3, "G", alias=(unit_digest("g"),)), row(4, "b")]

    assert matched(["g", "a", "g", "b"], *rows) == [[1], [2], [3], [4]]


def test_match_finds_a_prompt_sent_alike_under_two_aliases():
    """Q6: two presets that leave the same text."""
    rows = [
        row(1, "t", START, alias=(unit_digest("1"),)),
        row(2, "a"),
        row(3, "t", alias=(unit_digest("2"),)),
        row(4, "b"),
    ]

    assert matched(["1", "a", "2", "b"], *rows) == [[1], [2], [3], [4]]
    assert matched(["1", "a", "t"], *rows) == [[1], [2], [3]]
