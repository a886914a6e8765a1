"""Words of texts and questions, as SQLite's tokenizer `unicode61` has them.  Pure.

The tokenizer parts a text at everything that is no letter or digit: `src/io.py` and `max_size` are
found whole, as a phrase, and in parts.  It leaves `parseHttp2Frame` as it is; the parts of such a
word are indexed beside the text, and so are the characters of a script without spaces.

A *term* is one thing that a question asks for; its expression in the language of FTS5 is made of
quoted strings alone, so that no character of a question has a meaning in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

LONGEST: Final = 2_000  # code points of a question that are read
TERMS: Final = 32  # of a question that are looked for
WORD: Final = 64  # characters of the longest word that is parted: longer ones are no names
STEM: Final = 4  # letters, at least, of what is left of a word without its ending
PARTS: Final = 8  # of a word; with more it is rather a hash than a name

_TOKEN = re.compile(r"[^\W_]+")
_LONG_ENOUGH = re.compile(r"[^\W_]{3,}")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")
_PART = re.compile(
    r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+|[0-9]+|[^\W_A-Za-z0-9]+"  # HTTP|Server|parse|2|...
)
_ASKED = re.compile(r'"([^"]*)"|(\S+)')

_ENDINGS = ("ing", "ed", "es", "s", "e", "y", "er")  # of English words

# Words that a question has for its grammar.
STOP_WORDS: Final = frozenset(
    """a about all also am an and any are as at be because been before being but by can could did do
    does doing done for from get got had has have having he her him his how i if in into is it its
    just me my no not of on or our out over she should so some such than that the their them then
    there these they this those through to too up us was we were what when where which while who
    whom whose why will with would you your""".split()
)


def storable(text: str) -> str:
    """Return TEXT with a mark for each code point that is no character: UTF-8 has no place for it.

    A text that was no UTF-8 holds such code points.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def parts_of(text: str) -> str:
    """Return the parts of the words in TEXT that the tokenizer leaves whole, each word once."""
    found = [" ".join(parts) for parts in map(_parts, dict.fromkeys(_LONG_ENOUGH.findall(text)))]
    return " ".join(filter(None, found))


def _parts(word: str) -> list[str]:
    """Return the parts of WORD in order; none where it has only one, or is rather no name."""
    if len(word) > WORD and not _UNSPACED.search(word):
        return []
    if _UNSPACED.search(word):
        return _TOKEN.findall(_UNSPACED.sub(lambda run: f" {' '.join(run[0])} ", word))
    if word.islower() and word.isalpha():
        return []
    parts = _PART.findall(word)
    named = all(len(part) > 1 or part.isdigit() for part in parts)
    return parts if 1 < len(parts) <= PARTS and named else []


def terms_of(question: str) -> list[str]:
    """Return what QUESTION asks for, one expression each.

    A stretch without spaces is one term, and so is one between quotation marks.  Words of the
    grammar are none, unless there are no others.
    """
    asked = [quoted or word for quoted, word in _ASKED.findall(storable(question[:LONGEST]))]
    words = [word for word in asked if _TOKEN.search(word)]
    telling = [
        word
        for word in words
        if _TOKEN.findall(word.lower())[0] not in STOP_WORDS or len(_TOKEN.findall(word)) > 1
    ]
    return list(dict.fromkeys(map(_expression, telling or words)))[:TERMS]


def loosened(term: str) -> str:
    """Return TERM so that a plain word of it is found in other forms too: by how it begins."""
    word = term.strip('"')
    if not (word.isascii() and word.isalpha()):
        return term
    stems = (word.removesuffix(end) for end in _ENDINGS if word.endswith(end))
    stem = next((stem for stem in stems if len(stem) >= STEM), word)
    return f'"{stem}"*' if len(stem) >= STEM else term


def _expression(word: str) -> str:
    tokens = _TOKEN.findall(word)
    forms = [" ".join(tokens), " ".join(_parted(tokens))]
    quoted = [f'"{form.lower()}"' for form in dict.fromkeys(forms)]
    return quoted[0] if len(quoted) == 1 else f"({' OR '.join(quoted)})"


def _parted(tokens: list[str]) -> Iterator[str]:
    for token in tokens:
        yield from _parts(token) or [token]
