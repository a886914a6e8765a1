"""About how many tokens a text is, for each API, without a network and without a vocabulary.

The one estimate of this package.  docs/lifecycle.md says how far it is off, by vocabulary and kind
of text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BYTES_PER_TOKEN = 4

# What tokens begin with in any vocabulary: a word with the space in front of it, a digit, a mark.
# Letters of other scripts count by their number; CJK is Han, Kana, Hangul and their marks.
_CLASSES = {
    "words": re.compile(r"[A-Za-z]+"),
    "digits": re.compile(r"[0-9]"),
    "marks": re.compile(r"[!-/:-@\[-`{-~]"),
    "lines": re.compile(r"\n"),
    "indents": re.compile(r" {2,}"),
    "cjk": re.compile("[\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef]"),
    "latin": re.compile("[\u0080-\u024f]"),
    "other": re.compile("[\u0250-\u2fff\u3100-\u33ff\ua000-\uabff\ud7b0-\ufeff\ufff0-\U0010ffff]"),
}

# Hundredths of a token for each, in the order of the classes: least squares of the relative error
# over half of the texts that docs/lifecycle.md names.
_WEIGHTS = {
    "o200k": (117, 86, 42, 98, 79, 79, 72, 37),
    "qwen": (121, 132, 38, 130, 91, 61, 47, 37),
    "claude": (143, 81, 41, 99, 13, 111, 179, 81),
    "tekken": (123, 145, 43, 101, 63, 83, 66, 40),
    "deepseek": (126, 83, 43, 125, 43, 66, 87, 41),
    "mean": (126, 102, 40, 110, 58, 86, 96, 51),
}

# The vocabulary that stands for the models of an API; Gemini's is not published.
_VOCABULARIES: Mapping[str, str] = {
    "openai": "o200k",
    "responses": "o200k",
    "anthropic": "claude",
    "bedrock": "claude",
    "mistral": "tekken",
    "deepseek": "deepseek",
    "ollama": "qwen",
}


def estimate_tokens(text: str, api: str = "") -> int:
    """Return about how many tokens TEXT is for the models of API, by the classes of its characters.

    The mean over all vocabularies stands for an API that has none here.
    """
    weights = _WEIGHTS[_VOCABULARIES.get(api, "mean")]
    counts = (len(each.findall(text)) for each in _CLASSES.values())
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    return (total + 50) // 100


def estimate_size(size: int) -> int:
    """Return about how many tokens SIZE bytes are, where nobody has the text at hand.

    Four bytes a token, as in English prose.  Code and other scripts take more tokens, so that it
    errs on the low side.
    """
    return size // BYTES_PER_TOKEN
