"""Estimates of tokens against what vocabularies count (L1).

fixtures/tokens/outputs.json has the counts of five vocabularies over the texts of fixtures/outputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retention.estimating import estimate_size, estimate_tokens
from retention.providers import PROVIDERS

FIXTURES = Path(__file__).absolute().parent.parent / "fixtures"
COUNTS = json.loads((FIXTURES / "tokens" / "outputs.json").read_text())
TEXTS = {name: (FIXTURES / "outputs" / name).read_text() for name in COUNTS}


def errors(api: str, vocabulary: str) -> list[float]:
    """Return the relative error for each text, of the estimate for API."""
    return [
        estimate_tokens(TEXTS[name], api) / counts[vocabulary] - 1
        for name, counts in COUNTS.items()
    ]


@pytest.mark.parametrize(
    ("api", "vocabulary"),
    [
        ("openai", "o200k"),
        ("anthropic", "claude"),
        ("mistral", "tekken"),
        ("deepseek", "deepseek"),
        ("ollama", "qwen"),
    ],
)
def test_estimates_are_as_close_as_documented(api: str, vocabulary: str):
    """L1: tool outputs, the hardest of what a conversation holds but for other scripts."""
    found = errors(api, vocabulary)
    sizes = [
        estimate_size(len(TEXTS[name].encode())) / counts[vocabulary] - 1
        for name, counts in COUNTS.items()
    ]

    assert abs(sum(found) / len(found)) < 0.04
    assert sum(map(abs, found)) / len(found) < 0.11
    assert sum(map(abs, found)) < sum(map(abs, sizes)) / 2


@pytest.mark.parametrize("vocabulary", ["o200k", "claude", "tekken", "deepseek", "qwen"])
def test_an_api_without_a_vocabulary_gets_the_mean(vocabulary: str):
    found = errors("gemini", vocabulary)

    assert sum(map(abs, found)) / len(found) < 0.13


def test_each_class_of_characters_counts():
    """L1: also scripts without spaces."""
    for text in ("word", "7", "{", "\n", "  ", "語", "é", "д", "🙂"):
        assert estimate_tokens(text * 100, "openai") > 0
    assert estimate_tokens("") == estimate_size(3) == 0
    assert estimate_size(400) == 100


def test_every_api_has_an_estimate():
    for api in PROVIDERS:
        assert 2 <= estimate_tokens("some words", api) <= 3
