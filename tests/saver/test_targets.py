"""What is promised of excerpts, over the whole corpus with an error and a note planted in each."""

from __future__ import annotations

import pytest

from bench.outputs import Row, corpus, ours
from retention.saver.excerpting import DEFAULTS


@pytest.fixture(scope="module")
def row() -> Row:
    result = Row()
    for case in corpus([]):
        result.add(case, ours)
    return result


def test_the_corpus_is_large_enough(row):
    sizes = [whole for _, whole in row.sizes]

    assert len(sizes) >= 80
    assert min(sizes) < 6_000
    assert max(sizes) > 800_000


def test_no_excerpt_is_longer_than_the_cap(row):
    assert max(kept for kept, _ in row.sizes) <= DEFAULTS.excerpt_max_chars
    assert all(kept <= whole for kept, whole in row.sizes)


@pytest.mark.parametrize(("planted", "share"), [("H", 0.95), ("Q", 0.95), ("S", 0.55)])
def test_the_planted_line_is_kept(row, planted, share):
    """The error; the note when the task asks for it; the note when it asks for something else."""
    assert row.found[planted] >= share * len(row.sizes)


def test_real_errors_are_kept(row):
    assert sum(row.errors) / len(row.errors) >= 0.75


def test_what_the_tasks_need_is_kept(row):
    assert sum(row.needs) / len(row.needs) >= 0.9
