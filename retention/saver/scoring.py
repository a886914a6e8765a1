"""What speaks for each piece of an output, and how likely the task needs each segment (O5).

`weigh` gathers the evidence of the text itself, in one pass over blocks of pieces:

- problems: pieces that say that something went wrong;
- overlap: pieces that share the task's words, rare ones counting more;
- rarity: pieces unlike the rest of the output in words, punctuation and beginning.

A scorer gives one number from 0 to 1 for each segment: `local` from this evidence, `scores_of` from
a model's answer to `questions`.  Equal inputs give equal numbers: nothing here depends on hashes,
locale or time.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate, chain
from math import log, prod
from types import MappingProxyType
from typing import Final, NamedTuple

from retention.saver.lines import PROBLEM_WORDS, Pieces, problem_weight
from retention.saver.segments import Segment

BLOCK: Final = 4_096  # pieces that are looked at together
SAMPLE: Final = 16_384  # pieces, at most, that say what is usual in an output
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
    rarity: dict[int, float] = {}
    hits: dict[int, int] = {}  # piece -> the terms in it, as bits
    rare: list[tuple[float, int]] = []
    for base in range(0, len(pieces.clean), BLOCK):
        block = _Block(pieces.clean[base : base + BLOCK])
        scores = []
        for at, found in enumerate(zip(block.words, block.signatures, block.leads, strict=True)):
            scores.append((usual.rarity(*found), base + at))
        for at in block.holding(PROBLEM_WORDS):
            weight = problem_weight(block.lines[at])
            if weight:
                problems[base + at] = weight
        here = range(base, base + len(block.lines))
        for at in marked.keys() & here:
            problems[at] = max(problems.get(at, 0.0), marked[at])
        for bit, term in enumerate(terms):
            for at in block.beginning(term):
                hits[base + at] = hits.get(base + at, 0) | 1 << bit
        for at in problems.keys() & here:
            rarity[at] = scores[at - base][0]
            groups[at] = usual.group(block.words[at - base])
        rare = nlargest(RARE, chain(rare, scores), key=_first)
    return Evidence(
        problems=_spread(
            {at: problems[at] * (0.5 + rarity[at]) for at in sorted(problems)}, groups
        ),
        overlap=_overlap(hits, len(terms), len(pieces.clean)),
        rarity={at: score for score, at in rare},
    )


def _first(pair: tuple[float, int]) -> tuple[float, int]:
    return pair[0], -pair[1]


class _Block:
    """Some pieces beside each other, in the forms that the measures need."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.text = "\n".join(lines).lower()
        self.lines = self.text.split("\n")
        self.starts = list(accumulate((len(line) + 1 for line in self.lines), initial=0))
        data = self.text.encode("utf-8", "surrogatepass")
        self.words = data.translate(_WORDS, _DIGITS).split(b"\n")
        self.signatures = [line[:_SIGNATURE] for line in data.translate(None, _PLAIN).split(b"\n")]
        self.leads = [line[:_LEAD] for line in data.translate(_CLASSES).split(b"\n")]

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

LOCAL_KEEP: Final = 0.7  # the local score from which a segment is kept whole


def local(segments: Sequence[Segment], pieces: Pieces, evidence: Evidence) -> list[float]:
    """Return how likely the task needs each of SEGMENTS, which PIECES make, by their EVIDENCE."""
    scores = []
    for segment in segments:
        first, after = (bisect_left(pieces.starts, at) for at in (segment.start, segment.end))
        scores.append(
            1
            - prod(
                1 - share * max((weights.get(at, 0.0) for at in range(first, after)), default=0.0)
                for share, weights in zip(_SHARES, evidence, strict=True)
            )
        )
    return scores


_SHARES = (0.4, 0.9, 0.2)  # of problems, overlap and rarity


# Rarity


class _Usual(NamedTuple):
    """How telling each word, punctuation and beginning of an output's lines is, from 0 to 1."""

    words: dict[bytes, float]
    signatures: dict[bytes, float]
    leads: dict[bytes, float]

    def rarity(self, words: bytes, signature: bytes, lead: bytes) -> float:
        """Return how unlike the rest a line with these features is, from 0 to 1."""
        found = set(words.split())
        told = sum([self.words.get(word, 1.0) for word in found]) / (len(found) + 2)
        return (
            0.6 * told + 0.2 * self.signatures.get(signature, 1.0) + 0.2 * self.leads.get(lead, 1.0)
        )

    def group(self, words: bytes) -> bytes:
        """Return what lines with these WORDS have in common with their likes: the frequent ones."""
        return b" ".join(word for word in words.split() if self.words.get(word, 1.0) < FREQUENT)


FREQUENT: Final = 0.6


def _usual(lines: Sequence[str]) -> _Usual:
    """Return what is usual in LINES, from a sample where there are many."""
    step = -(-len(lines) // SAMPLE)
    sample = lines[::step] if step > 1 else lines
    words, signatures, leads = Counter[bytes](), Counter[bytes](), Counter[bytes]()
    for base in range(0, len(sample), BLOCK):
        block = _Block(sample[base : base + BLOCK])
        words.update(chain.from_iterable(set(line.split()) for line in block.words))
        signatures.update(block.signatures)
        leads.update(block.leads)
    return _Usual(*(_telling(counts, len(sample)) for counts in (words, signatures, leads)))


def _telling(counts: Counter[bytes], total: int) -> dict[bytes, float]:
    """Return for each feature that COUNTS of TOTAL lines have how much it tells, from 0 to 1."""
    most = log(total + 1)
    by_count = {count: log((total + 1) / count) / most for count in set(counts.values())}
    return {feature: by_count[count] for feature, count in counts.items()}


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

    A term that stands in a third of all TOTAL pieces tells nothing.
    """
    counts = [sum(1 for bits in hits.values() if bits >> bit & 1) for bit in range(terms)]
    telling = [log((total + 1) / count) if 0 < 3 * count <= total + 3 else 0.0 for count in counts]
    whole = sum(telling)
    if not whole:
        return {}
    shares = {
        bits: sum(telling[bit] for bit in range(terms) if bits >> bit & 1) / whole
        for bits in set(hits.values())
    }
    weights = {at: shares[bits] for at, bits in hits.items() if shares[bits]}
    return _spread(weights, hits)
