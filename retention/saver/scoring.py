"""What speaks for each piece of an output, and how likely the task needs each segment (O5).

`weigh` gathers the evidence of the text itself, in one pass over blocks of pieces:

- problems: pieces that say that something went wrong;
- overlap: pieces that share the task's words, rare ones counting more;
- rarity: pieces unlike the rest of the output in words, punctuation and beginning.

A scorer gives one number from 0 to 1 for each segment: `local` from this evidence, `asking` from a
model's answer.  Equal inputs give equal numbers: nothing here depends on hashes,
locale or time.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import log, prod
from types import MappingProxyType
from typing import Final, NamedTuple

from retention.saver.lines import PROBLEM_WORDS, Pieces, problem_weight
from retention.saver.segments import Segment

BLOCK: Final = 4_096  # pieces that are looked at together
SAMPLE: Final = 4_096  # pieces, at most, that say what is usual in an output
RARE: Final = 512  # pieces, at most, that are candidates for their rarity
TERMS: Final = 32  # words of a task, at most, that are looked for


class Evidence(NamedTuple):
    """What speaks for pieces, by their numbers, best first: weights from 0 to 1."""

    problems: dict[int, float]
    overlap: dict[int, float]
    rarity: dict[int, float]


# Bytes -> words: letters in lower case and bytes above ASCII stand, digits go, the rest parts.
_LETTERS = b"abcdefghijklmnopqrstuvwxyz_" + bytes(range(128, 256))
_WORDS = bytes(byte if byte in _LETTERS or byte == 10 else 32 for byte in range(256))
_DIGITS = b"0123456789"
_PLAIN = _LETTERS + _DIGITS + b" \t\r"  # what leaves a line's punctuation
_CLASSES = bytes(97 if byte in _LETTERS else 48 if byte in _DIGITS else byte for byte in range(256))
_SIGNATURE = 8  # bytes of a line's punctuation that are compared
_LEAD = 3  # bytes of a line's beginning that are compared


def weigh(
    pieces: Pieces, task: str, marked: Mapping[int, float] = MappingProxyType({})
) -> Evidence:
    """Return what speaks for each of PIECES, given the TASK.

    MARKED are the weights of the pieces in which the output's format has problems and results.
    """
    usual = _usual(pieces.clean)
    terms = _terms(task)
    problems: dict[int, float] = {}
    groups: dict[int, bytes] = {}
    hits: dict[int, int] = {}  # piece -> the terms in it, as bits
    rare: list[tuple[float, int]] = []
    for base in range(0, len(pieces.clean), BLOCK):
        block = _Block(pieces.clean[base : base + BLOCK])
        here = range(base, base + len(block.lines))
        forms = _forms(block.text)
        rarity = usual.rarity(forms)
        found = {base + at: problem_weight(block.lines[at]) for at in block.holding(PROBLEM_WORDS)}
        for at in marked.keys() & here:
            found[at] = max(found.get(at, 0.0), marked[at])
        for at in sorted(at for at, weight in found.items() if weight):
            problems[at] = found[at] * (0.5 + rarity[at - base])
            groups[at] = usual.group(forms.words[at - base])
        for bit, term in enumerate(terms):
            for at in block.beginning(term):
                hits[base + at] = hits.get(base + at, 0) | 1 << bit
        best = sorted(range(len(rarity)), key=rarity.__getitem__, reverse=True)[:RARE]
        rare = sorted([*rare, *((-rarity[at], base + at) for at in best)])[:RARE]
    return Evidence(
        problems=_spread(problems, groups),
        overlap=_overlap(hits, len(terms), len(pieces.clean)),
        rarity={at: -score for score, at in rare},
    )


class _Block:
    """Some pieces beside each other, in the forms that the measures need."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.text = "\n".join(lines).lower()
        self.lines = self.text.split("\n")
        self.starts = list(accumulate((len(line) + 1 for line in self.lines), initial=0))

    def holding(self, words: Iterable[str]) -> list[int]:
        """Return the numbers of the lines that hold one of WORDS, in order."""
        return sorted(set(chain.from_iterable(map(self._places, words))))

    def beginning(self, term: str) -> Iterator[int]:
        """Yield the numbers of the lines in which a word begins with TERM."""
        for at in self._places(term):
            line = self.lines[at]
            place = line.find(term)
            while place > 0 and line[place - 1].isalnum():
                place = line.find(term, place + 1)
            if place >= 0:
                yield at

    def _places(self, word: str) -> Iterator[int]:
        place = self.text.find(word)
        while place >= 0:
            at = bisect_right(self.starts, place) - 1
            yield at
            place = self.text.find(word, self.starts[at + 1])


# Segments

# The local score from which a segment is kept whole, tuned for precision: what speaks for single
# lines is kept without it (`python -m bench.outputs --calibrate`).
LOCAL_KEEP: Final = 0.7


def local(segments: Sequence[Segment], pieces: Pieces, evidence: Evidence) -> list[float]:
    """Return how likely the task needs each of SEGMENTS, which PIECES make, by their EVIDENCE."""
    scores = []
    for segment in segments:
        first, after = (bisect_left(pieces.starts, at) for at in (segment.start, segment.end))
        scores.append(
            1
            - prod(
                1 - share * min(1.0, max(weights.get(at, 0.0) for at in range(first, after)))
                for share, weights in zip(_SHARES, evidence, strict=True)
            )
        )
    return scores


_SHARES = (0.4, 1.0, 0.3)  # of problems, overlap and rarity


# Rarity


class _Forms(NamedTuple):
    """What is compared of lines: their words, their punctuation and how they begin."""

    words: list[bytes]
    signatures: list[bytes]
    leads: list[bytes]


def _forms(text: str) -> _Forms:
    """Return what is compared of the lines of TEXT, which is in lower case."""
    data = text.encode("utf-8", "surrogatepass")
    return _Forms(
        data.translate(_WORDS, _DIGITS).split(b"\n"),
        [line[:_SIGNATURE] for line in data.translate(None, _PLAIN).split(b"\n")],
        [line[:_LEAD] for line in data.translate(_CLASSES).split(b"\n")],
    )


class _Telling(dict[bytes, float]):
    """How much each form tells, from 0 to 1: a form that is not in it is as rare as can be."""

    def __init__(self, counts: Counter[bytes], total: int) -> None:
        most = log(total + 1)
        values = {n: max(0.0, log((total + 1) / n)) / most for n in set(counts.values())}
        super().__init__((form, values[count]) for form, count in counts.items())

    def __missing__(self, form: bytes) -> float:
        return 1.0


class _Usual(NamedTuple):
    """What is usual in an output."""

    words: _Telling
    signatures: _Telling
    leads: _Telling

    def rarity(self, forms: _Forms) -> list[float]:
        """Return how unlike the rest each line with these FORMS is, from 0 to 1."""
        tell = self.words.__getitem__
        told = {
            line: 0.6 * sum(map(tell, words := line.split())) / (len(words) + 2)
            for line in set(forms.words)
        }
        return [
            told[words] + 0.2 * self.signatures[signature] + 0.2 * self.leads[lead]
            for words, signature, lead in zip(*forms, strict=True)
        ]

    def group(self, words: bytes) -> bytes:
        """Return what lines with these WORDS have in common with their likes: the frequent ones."""
        return b" ".join(word for word in words.split() if self.words[word] < FREQUENT)


FREQUENT: Final = 0.6


def _usual(lines: Sequence[str]) -> _Usual:
    """Return what is usual in LINES, from a sample where there are many."""
    step = max(1, -(-len(lines) // SAMPLE))
    counts = Counter[bytes](), Counter[bytes](), Counter[bytes]()
    for base in range(0, len(lines), BLOCK * step):
        forms = _forms("\n".join(lines[base : base + BLOCK * step : step]).lower())
        counts[0].update(b" ".join(forms.words).split())
        counts[1].update(forms.signatures)
        counts[2].update(forms.leads)
    return _Usual(*(_Telling(count, -(-len(lines) // step)) for count in counts))


# Problems and overlap


def _spread(weights: Mapping[int, float], groups: Mapping[int, object]) -> dict[int, float]:
    """Return WEIGHTS, best first, after halving, thirding... those of the later ones of a group."""
    seen = Counter[object]()
    spread: list[tuple[float, int]] = []
    for at in sorted(weights, key=lambda at: (-weights[at], at)):
        seen[groups[at]] += 1
        spread.append((weights[at] / seen[groups[at]], at))
    return {at: weight for weight, at in sorted(spread, key=lambda pair: (-pair[0], pair[1]))}


_TERM = re.compile(r"\w+(?:[-./:]\w+)*")
_PART = re.compile(r"[^\W_]+")
_STOP = frozenset(
    """about after all also and any are been before but can could did does doing done each for from
    get give had has have how here into its just let like look make many may me more most much must
    need not now off one only our out over own please run same see she should show some such take
    tell than that the their them then there these they this those too try use using very want was
    way were what when where which while who why will with without would you your""".split()
)


def _terms(task: str) -> list[str]:
    """Return the words of TASK that say what it is about, whole and in parts."""
    found: dict[str, None] = {}
    for term in _TERM.findall(task.lower()):
        for word in (term, *_PART.findall(term)):
            if word not in _STOP and (len(word) > 2 or (len(word) > 1 and word.isdecimal())):
                found.setdefault(word[:-1] if len(word) > 4 and word.endswith("s") else word)
    return list(found)[:TERMS]


def _overlap(hits: Mapping[int, int], terms: int, total: int) -> dict[int, float]:
    """Return the share of what all TERMS tell that each piece in HITS has, best first.

    A term that stands in a third of all TOTAL pieces tells nothing, one that stands in none the
    most: a single word in passing is no match.
    """
    counts = [sum(bits >> bit & 1 for bits in hits.values()) for bit in range(terms)]
    telling = [
        log((total + 1) / max(count, 1)) if 3 * count <= total + 3 else 0 for count in counts
    ]
    whole = sum(telling)
    if not whole:
        return {}
    shares = {
        bits: sum(telling[bit] for bit in range(terms) if bits >> bit & 1) / whole
        for bits in set(hits.values())
    }
    weights = {at: shares[bits] for at, bits in hits.items() if shares[bits]}
    return {at: weights[at] for at in sorted(weights, key=lambda at: (-weights[at], at))}
