"""What a model is asked, what of it never leaves, and what counts as an answer."""

from __future__ import annotations

import json

import pytest

from retention.saver.asking import BYTES, Judgement, ask, judge, redact
from retention.saver.lines import read_lines, read_pieces
from retention.saver.segments import split

TEXT = "".join(f"line {number} \x1b[1mof\x1b[0m “the” output\n" for number in range(20_000))
SEGMENTS = split(read_pieces(read_lines(TEXT)))


def body(inquiry):
    return json.loads(inquiry.prompt[inquiry.prompt.index("{") :])


def answer(**changes):
    values = {f"segment_{one.number}": 0.1 for one in SEGMENTS} | {"whole": 0.05}
    return json.dumps(values | changes)


def test_a_request_has_one_question_for_each_segment_and_one_for_the_whole():
    inquiry = ask(TEXT, SEGMENTS, task="why?", tool="run", call="make", format="pytest")
    names = {"whole", *(f"segment_{one.number}" for one in SEGMENTS)}

    assert set(inquiry.schema["required"]) == set(inquiry.schema["properties"]) == names
    assert len(names) <= 32
    about = body(inquiry)
    assert (about["task"], about["tool"], about["call"], about["format"]) == (
        "why?", "run", "make", "pytest",
    )  # fmt: skip
    assert [one["bytes"] for one in about["segments"]] == [one.size for one in SEGMENTS]


@pytest.mark.parametrize(
    "text", [TEXT, "\x1b" * 300_000, "\udc80é" * 200_000, '"\\' * 200_000, "short"]
)
def test_a_request_stays_within_its_bytes_and_uses_them(text):
    segments = split(read_pieces(read_lines(text)))
    size = len(ask(text, segments, task="t" * 9_000, call="c" * 9_000).prompt.encode())

    assert size <= BYTES
    assert size > 0.9 * BYTES or text == "short"


def test_each_segment_is_shown_from_its_beginning():
    for entry, segment in zip(body(ask(TEXT, SEGMENTS))["segments"], SEGMENTS, strict=True):
        assert len(entry["text"]) > 1_000
        assert TEXT[segment.start :].startswith(entry["text"])


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0abcdefghijkl",
        "glpat-abcdefghij0123456789",
        "xoxb-123456789012-abcdef",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "sk-proj-abcdefghijklmnop1234",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def_123",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIEow cut off",
    ],
)
def test_no_secret_leaves(secret):
    text = f"before {secret} after\n"
    shown = ask(text, split(read_pieces(read_lines(text))), task=text, call=text).prompt

    assert json.dumps(secret)[1:-1] not in shown
    assert shown.count("redacted]") == 3
    assert redact(f"a {secret[:4]} b") == f"a {secret[:4]} b"


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
        ("postgres://user:hunter22@db.example/x", "hunter22"),
        ('{"password": "correct horse"}', "correct"),
        ("export API_KEY=abcdef123456", "abcdef123456"),
    ],
)
def test_what_stands_for_a_password_does_not_leave(line, hidden):
    assert hidden not in redact(line)
    assert "redacted]" in redact(line)


def test_ordinary_text_stays():
    text = "tokens: 12, the secret of success, password reset, sk-learn, task-12\n"
    assert redact(text) == text


def test_an_answer_gives_a_score_for_each_segment():
    judged = judge(answer(segment_2=0.9), SEGMENTS)

    assert judged is not None
    assert judged.scores[:3] == (0.1, 0.9, 0.1)
    assert len(judged.scores) == len(SEGMENTS)
    assert not judged.whole


def test_only_a_sure_answer_lets_anything_be_left_out():
    assert judge(answer(whole=0.2), SEGMENTS) == Judgement((0.1,) * len(SEGMENTS), whole=False)
    assert judge(answer(whole=0.5), SEGMENTS) == Judgement((0.1,) * len(SEGMENTS), whole=True)


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "no", "{}",
        answer(segment_1=1.5), answer(segment_1=-0.1), answer(segment_1="0.5"),
        answer(segment_1=None), answer(whole=None), answer().replace("0.05", "NaN"),
    ],
)  # fmt: skip
def test_an_answer_of_another_form_is_none(text):
    assert judge(text, SEGMENTS) is None
