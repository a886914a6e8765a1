"""The committed runs and gold cases, and how answers to them are scored (V7).

A case of engine "rca" is asked of `causes.explain`, one of engine "lookup" of the search index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from retention.evidence.causes import Claim, Facts, Record, Records, is_supported
from retention.evidence.runs import CONTEXT, log_id, parse_log, parse_run, row_id, run_row
from retention.saver.excerpting import decode

RUNS = Path(__file__).absolute().parent.parent.parent / "fixtures" / "runs"


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question, what an answer must cite and say, or that it must refuse."""

    id: str
    question: str
    engine: Literal["rca", "lookup"]
    kind: Literal["answer", "refuse"]
    expected_support: tuple[str, ...]
    expected_facts: tuple[str, ...]


class Answer(NamedTuple):
    """What was claimed, nothing if the question was refused, and the text that was shown."""

    claims: Sequence[Claim]
    text: str


class Scores(NamedTuple):
    """Shares, from 0 to 1: of claims that are supported, of expected ids that were cited, and of
    cases that were answered or refused rightly.
    """

    faithfulness: float
    coverage: float
    quality: float


def cases(engine: str) -> list[Case]:
    """Return the cases of ENGINE in the order of their files."""
    found = (
        msgspec.json.decode(path.read_bytes(), type=Case)
        for path in sorted((RUNS / "gold").glob("*.json"))
    )
    return [case for case in found if case.engine == engine]


@cache
def log_text(run: str) -> str:
    """Return the exact text of the log of RUN, "" if it has none."""
    path = RUNS / "logs" / f"{run}.failed.log"
    return decode(path.read_bytes()) if path.exists() else ""


def chunks(run: str, context: int = CONTEXT) -> dict[str, str]:
    """Return the exact texts of the chunks of the log of RUN, by id."""
    text = log_text(run)
    return {
        f"{log_id(run)}:{chunk.name}": text[chunk.start : chunk.end]
        for chunk in parse_log(text, context)
    }


def errors(run: str, context: int = CONTEXT) -> dict[str, str]:
    """Return those of `chunks` that are errors."""
    return {id: text for id, text in chunks(run, context).items() if ":error" in id}


def records(context: int = CONTEXT) -> Records:
    """Return the committed runs as a view for `explain`."""
    found = {}
    for path in sorted((RUNS / "runs").glob("*.json")):
        run = parse_run(path.read_bytes())
        found[run.id] = Facts(msgspec.to_builtins(run), run_row(run))
    return Records(found, partial(errors, context=context))


def texts(context: int = CONTEXT) -> dict[str, Record]:
    """Return all that a claim may cite: run rows and chunks by id."""
    found = {}
    for run, facts in records(context).runs.items():
        found[row_id(run)] = Record(facts.text, row_id(run))
        for id, text in chunks(run, context).items():
            found[id] = Record(text, log_id(run))
    return found


def score(answers: Iterable[tuple[Case, Answer]], known: Mapping[str, Record]) -> Scores:
    """Score ANSWERS; a share of nothing is 1."""
    answers = list(answers)
    answered = [(case, answer) for case, answer in answers if case.kind == "answer"]
    claims = [claim for _, answer in answered for claim in answer.claims]
    expected = cited = 0
    for case, answer in answered:
        ids = {id for claim in answer.claims for id in claim.support}
        expected += len(case.expected_support)
        cited += sum(id in ids for id in case.expected_support)
    return Scores(
        _share(sum(is_supported(claim, known) for claim in claims), len(claims)),
        _share(cited, expected),
        _share(sum(is_right(case, answer) for case, answer in answers), len(answers)),
    )


def is_right(case: Case, answer: Answer) -> bool:
    """Tell whether ANSWER says all that CASE expects, or refuses as it should."""
    if case.kind == "refuse":
        return not answer.claims
    return bool(answer.claims) and all(fact in answer.text for fact in case.expected_facts)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
