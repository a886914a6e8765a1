"""The gold cases that need no search: nothing unsupported is claimed, and ids stand still."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import msgspec
import pytest

from retention.evidence.causes import Claim, explain, is_supported, render
from tests.evidence.gold import (
    RUNS,
    Answer,
    Case,
    cases,
    chunks,
    errors,
    is_right,
    log_text,
    records,
    score,
    texts,
)

PAGES = "30524190877"  # sixty lines
MISSED = "gold-05-npm-conflict"  # its words stand above the marker, out of reach of the context

manifest = msgspec.json.decode((RUNS / "MANIFEST.json").read_bytes())["runs"]
rca = cases("rca")


def answer(case: Case, context: int = 3) -> Answer:
    explained = explain(case.question, records(context))
    return Answer(explained.claims, render(explained))


answers = [(case, answer(case)) for case in rca]


def test_the_manifest_names_every_run():
    assert sorted(manifest) == sorted(records().runs)
    assert {path.name.split(".")[0] for path in (RUNS / "logs").iterdir()} <= set(manifest)


def test_every_claim_is_supported():
    assert score(answers, texts()).faithfulness == 1.0
    assert sum(len(answer.claims) for _, answer in answers) > 40


def test_everything_expected_is_cited():
    assert score(answers, texts()).coverage == 1.0


def test_all_but_one_case_are_answered_as_expected():
    wrong = [case.id for case, answer in answers if not is_right(case, answer)]

    assert wrong == [MISSED]
    assert score(answers, texts()).quality == (len(rca) - 1) / len(rca)


@pytest.mark.parametrize(
    "id", sorted({id for _, answer in answers for c in answer.claims for id in c.support})
)
def test_a_preamble_is_never_cited(id):
    assert re.fullmatch(r"Run:\d+|\d+\.failed:error\d+", id)


@pytest.mark.parametrize("case", [*rca, *cases("lookup")], ids=lambda case: case.id)
def test_a_case_expects_ids_that_exist_and_no_preamble(case):
    assert set(case.expected_support) <= set(texts())
    assert all(id.startswith("Run:") or ":error" in id for id in case.expected_support)
    assert bool(case.expected_support) == (case.kind == "answer")


@pytest.mark.parametrize("context", [0, 1, 2, 5, 10, 1_000])
def test_another_context_changes_no_id_that_a_case_cites(context):
    for case, before in answers:
        after = answer(case, context)
        assert [c.support for c in after.claims] == [c.support for c in before.claims]
        assert all(is_supported(claim, texts(context)) for claim in after.claims)


def test_what_the_context_leaves_out_is_in_the_chunk_before():
    case = next(case for case in rca if case.id == MISSED)
    run = re.search(r"\d{8,}", case.question)[0]

    assert case.expected_facts[0] in chunks(run)[f"{run}.failed:chunk1"]
    assert is_right(case, answer(case, context=20))


def test_a_claim_that_says_more_than_its_source_costs_faithfulness():
    case, good = answers[0]
    worse = [*good.claims[:-1], msgspec.structs.replace(good.claims[-1], text="It rained.")]

    assert score([(case, Answer(worse, good.text))], texts()).faithfulness < 1.0


def test_what_is_not_cited_costs_coverage_and_what_is_not_said_costs_quality():
    case, good = answers[0]
    less = score([(case, Answer(good.claims[:1], good.claims[0].text))], texts())

    assert less == (1.0, 0.5, 0.0)


def test_a_refusal_that_claims_something_is_wrong_and_counts_nowhere_else():
    case = next(case for case in rca if case.kind == "refuse")
    wrong = Answer([Claim(text="It rained.", support=("Run:1",))], "It rained.")

    assert score([(case, wrong)], texts()) == (1.0, 1.0, 0.0)


def test_the_error_of_the_sixty_lines_outranks_its_preamble_and_the_row_of_the_run():
    rows = {id: record.text for id, record in texts().items() if PAGES in id}
    assert log_text(PAGES).count("\n") == 60
    assert list(errors(PAGES)) == [f"{PAGES}.failed:error1"]

    with closing(sqlite3.connect(":memory:")) as base:
        base.execute("create virtual table found using fts5(id unindexed, text)")
        base.executemany("insert into found values (?, ?)", rows.items())
        query = "pages OR deployment OR failed OR 404 OR found"
        ranked = [
            id
            for (id,) in base.execute(
                "select id from found where text match ? order by bm25(found)", (query,)
            )
        ]

    assert ranked[0] == f"{PAGES}.failed:error1"
    assert len(ranked) == len(rows) == 3
