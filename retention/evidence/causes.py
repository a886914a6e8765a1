"""Why a run failed: what can be quoted of it, and nothing else (evidence.md V6).  No model is used.

A *claim* is a text with the ids of the records that it is taken from.  It is a quotation, or it
says that one line stands in several sources.  `is_supported` checks either against the records.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from retention.evidence.runs import MARKER, RUN, clean_log, log_id, parse_time, row_id
from retention.model import Struct

RECURS: Final = "Recurring failure"
RECURS_VAGUELY: Final = "Recurring failure, by a line that many failures have"


class Facts(NamedTuple):
    """What is known of a run: the attributes of its source, and its text."""

    attributes: Mapping[str, str]
    text: str


class Records(NamedTuple):
    """What there is to quote: the runs by id; `errors` gives the error chunks of one by id."""

    runs: Mapping[str, Facts]
    errors: Callable[[str], Mapping[str, str]]


class Record(NamedTuple):
    """What a claim cites: an exact text, and the id of the source that it is of."""

    text: str
    source: str


class Claim(Struct, frozen=True):
    """One statement and the ids of the records that it is taken from; all of them contain it."""

    text: str
    support: tuple[str, ...]
    label: str = ""


class Explained(Struct, frozen=True):
    """What is known of a failure, or in `refused` why nothing is claimed.

    `signature` is the line that names the failure, from the error chunk `anchor`.
    """

    claims: tuple[Claim, ...] = ()
    signature: str = ""
    anchor: str = ""
    refused: str = ""


NO_RUN: Final = "The question names no run: give the id of one, a number of at least 8 digits."
_NO_FAILURE: Final = {
    "passed": "Run {id} did not fail: it passed.",
    "": "Run {id} is not known to have ended.",
}


def explain(question: str, records: Records) -> Explained:
    """Return what RECORDS say of why the run that QUESTION names failed."""
    named = RUN.search(question)
    if named is None:
        return Explained(refused=NO_RUN)
    id = named[0]
    run = records.runs.get(id)
    if run is None:
        return Explained(refused=f"Run {id} is not known: its facts were not learned.")
    status = run.attributes.get("status", "")
    if status != "failed":
        words = _NO_FAILURE.get(status, "Run {id} did not fail: its status is {status}.")
        return Explained(refused=words.format(id=id, status=status))
    errors = _in_order(records.errors(id))
    claims = [Claim(text=run.text, support=(row_id(id),))]
    claims.extend(Claim(text=text, support=(chunk,)) for chunk, text in errors.items())
    signature, anchor = _sign(errors)
    earlier = _find_earlier(signature, run, records) if signature else {}
    if earlier:
        claims.append(_share(signature, {anchor: log_id(id), **earlier}))
    return Explained(claims=tuple(claims), signature=signature, anchor=anchor)


def render(explained: Explained) -> str:
    """Return EXPLAINED for a person: each claim under the ids that it cites."""
    if explained.refused:
        return explained.refused + "\n"
    if explained.signature:
        first = f"Signature: {explained.signature} [{explained.anchor}]\n"
    else:
        first = "Signature: none, as no error line of its log can be looked for in others.\n"
    quoted = (
        f"\n[{', '.join(claim.support)}]\n{claim.text.removesuffix(chr(10))}\n"
        for claim in explained.claims
    )
    return first + "".join(quoted)


def _in_order(errors: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(errors.items(), key=lambda item: _number(item[0])))


_DIGITS = re.compile(r"([0-9]+)")


def _number(id: str) -> list[str | int]:
    """Return what puts ids in the order of the numbers in them: error2 before error10."""
    parts = _DIGITS.split(id)
    return [int(part) if at % 2 else part for at, part in enumerate(parts)]


# The line that names a failure


_COINED = re.compile(r"ERROR [^\s:]+: \S")
_GENERIC = re.compile(r"Process completed with exit code -?[0-9]+\.?")


def _sign(errors: Mapping[str, str]) -> tuple[str, str]:
    """Return the first line of ERRORS that can name the failure, and its chunk, or "" twice.

    A line that any failure may have is taken only where there is no other.
    """
    found = [
        (line, chunk)
        for chunk, text in errors.items()
        for line in _error_lines(text)
        if _is_verifiable(line)
    ]
    specific = (one for one in found if not _GENERIC.fullmatch(one[0]))
    return next(specific, found[0] if found else ("", ""))


def _error_lines(text: str) -> Iterator[str]:
    """Yield what TEXT states as errors: lines `ERROR code: message`, then what follows markers."""
    lines = [line.strip() for line in clean_log(text).split("\n")]
    yield from filter(_COINED.match, lines)
    for line in lines:
        yield from map(str.strip, line.split(MARKER)[1:])


def _is_verifiable(line: str) -> bool:
    """Tell whether LINE can be quoted inside a claim and says enough to be looked for."""
    return '"' not in line and normalize(line) != ""


_FOLDED: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})


def normalize(text: str) -> str:
    """Return the Latin letters and digits of TEXT, in lower case and without accents."""
    folded = unicodedata.normalize("NFKD", text.lower().translate(_FOLDED))
    return re.sub(r"[^a-z0-9]+", "", folded)


# Earlier failures with the same line


def _find_earlier(signature: str, run: Facts, records: Records) -> dict[str, str]:
    """Return the error chunks of earlier runs that have SIGNATURE, with the sources they are of.

    A run is earlier only if both say when they started.
    """
    before = _started(run)
    found: dict[str, str] = {}
    for id in sorted(records.runs, key=_number):
        began = _started(records.runs[id])
        if before is None or began is None or began >= before:
            continue
        for chunk, text in _in_order(records.errors(id)).items():
            if signature in clean_log(text):
                found[chunk] = log_id(id)
    return found


def _started(run: Facts) -> float | None:
    return parse_time(run.attributes.get("started", ""))


def _share(signature: str, cited: Mapping[str, str]) -> Claim:
    """Return the claim that SIGNATURE stands in the chunks CITED, given with their sources."""
    label = RECURS_VAGUELY if _GENERIC.fullmatch(signature) else RECURS
    sources = " and ".join(f"'{source}'" for source in sorted(set(cited.values()), key=_number))
    return Claim(
        text=f'{label}: "{signature}" appears in {sources}.', support=tuple(cited), label=label
    )


# The verifier


_SHARED = re.compile(
    rf"(?:{re.escape(RECURS)}|{re.escape(RECURS_VAGUELY)}): \"(?P<fragment>[^\"\n]*)\""
    r" appears in (?P<sources>'[^'\n]*'(?: and '[^'\n]*')*)\."
)


def is_supported(claim: Claim, texts: Mapping[str, Record]) -> bool:
    """Tell whether all that CLAIM cites, of the records TEXTS by id, contains what it says.

    A quotation is compared exactly.  A line that is said to stand in several sources is compared
    with their cleaned lines, and the sources named must be those cited, at least two.
    """
    cited = [texts[id] for id in set(claim.support) if id in texts]
    if not cited or len(cited) < len(set(claim.support)):
        return False
    shared = _SHARED.fullmatch(claim.text)
    if shared is None:
        return bool(claim.text.strip()) and all(claim.text in record.text for record in cited)
    named = set(re.findall(r"'([^']*)'", shared["sources"]))
    return (
        len(named) >= 2
        and named == {record.source for record in cited}
        and normalize(shared["fragment"]) != ""
        and all(shared["fragment"] in clean_log(record.text) for record in cited)
    )
