"""What was learned is found again: the questions of tests/retrieval, asked of the real thing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.retrieval import KINDS, Client, by_kind, learned, place, read_questions
from retention.evidence.chatfiles import read_chat
from retention.model import EventKind
from tests.retrieval.chats import SCRIPTS, read_script, render
from tests.retrieval.material import planted_outputs, planted_runs

QUESTIONS = read_questions()
CHATS = sorted(script.name.removesuffix(".txt") for script in SCRIPTS.glob("*.txt"))
SPOKEN = {
    "user": EventKind.USER,
    "assistant": EventKind.ASSISTANT,
    "reasoning": EventKind.ANALYSIS,
    "tool": EventKind.TOOL_OUTPUT,
}
LEAST = {"lexical": 0.80, "combined": 0.82}  # MRR over all


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with learned() as made:
        yield made


def script(name: str) -> str:
    return (SCRIPTS / f"{name}.txt").read_text(encoding="utf-8")


# The material


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_read_as_its_script_tells(name: str) -> None:
    turns = read_script(script(name))
    chat = read_chat(render(turns, name.rpartition(".")[2]).encode(), name)

    assert chat.is_chat
    assert chat.snapshot.warnings == ()
    at = 0
    for turn in turns:
        line = turn.text.split("\n")[0]
        at = chat.snapshot.text.index(line, at)
        (span,) = (span for span in chat.snapshot.spans if span.start <= at < span.end)
        assert (span.kind, span.tool) == (SPOKEN[turn.who], turn.tool)


def test_each_question_has_one_source_that_answers_it() -> None:
    texts = {name: script(name) for name in CHATS}
    texts |= {output.name: output.text for output in planted_outputs()}
    texts |= {f"{run.id}.failed": run.log for run in planted_runs()}

    assert len(QUESTIONS) >= 72
    assert {question.kind for question in QUESTIONS} == set(KINDS)
    for question in QUESTIONS:
        holding = [name for name, text in texts.items() if question.contains in text]
        assert holding == [question.source]


def test_the_answers_stand_among_many_chunks(client: Client) -> None:
    assert client.chunks >= 600


# The check


def test_words_find_what_they_name(client: Client) -> None:
    found = by_kind(QUESTIONS, [place(client, question, "lexical") for question in QUESTIONS])

    assert found[""].mrr >= LEAST["lexical"]


def test_both_together_are_as_good_as_the_better_one(client: Client) -> None:
    """In every class and figure, and better over all."""
    if not client.embed():
        pytest.skip("the extra `dense` is not installed")
    lexical, dense, combined = (
        by_kind(QUESTIONS, [place(client, question, mode) for question in QUESTIONS])
        for mode in ("lexical", "dense", "combined")
    )

    for kind in KINDS:
        assert all(
            ours >= max(words, meaning)
            for ours, words, meaning in zip(combined[kind], lexical[kind], dense[kind], strict=True)
        ), (kind, lexical[kind], dense[kind], combined[kind])
    assert combined[""].mrr > max(lexical[""].mrr, dense[""].mrr)
    assert combined[""].mrr >= LEAST["combined"]
