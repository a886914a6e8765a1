"""What strategies keep of tool outputs, as one table: `python -m bench.outputs [-v] [NAME...]`.

Corpus: the recorded outputs of fixtures/outputs from 5 KB on, and all of them grown to sizes up to
800 KB.  Into each an error line is planted at 50 % of its lines and an ordinary note at 55 %, into
JSON as copies of the middle items of its longest list.  A row says of one strategy:

  files   outputs that it shortened by more than a tenth, of all
  kept    characters kept, of all those together and in the median file
  H       files that still have the error line (in brackets: of those shortened)
  S, Q    likewise the note: asked for something else, asked for it
  err     share of the distinct real error lines kept, on average of the files that have some
  needs   share of the lines kept that the task of the recording needs (recorded sizes only)
  s/MB    processor time

Headroom is measured where it can be imported.

`python -m bench.outputs --calibrate [ANSWERS]` prints instead how well scorers choose the segments
that the recordings' tasks need, by threshold.  ANSWERS is a JSON file of a model's: by file of
the corpus, its scores of the segments.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retention.saver.excerpting import Output, decode, examine, excerpt
from retention.saver.formats import Parsed, parse
from retention.saver.lines import read_lines
from retention.saver.scoring import local
from tests.outputs import OUTPUTS
from tests.outputs.large import grow

ERROR = "ERROR NEEDLE7f3a disk quota exceeded on /dev/sdq7 while writing block 88231"
NOTE = "note NEEDLE9c1e shard 9 flush took 1847 ms on host quokka-17 during warmup"
NEUTRAL = "What is the outcome of this? Sum it up."
ASKED = "How long did the shard 9 flush take on host quokka-17?"
LEAST, MOST = 5_000, 800_000  # characters of an output
SHORTENED = 0.9  # share of an output from which it counts as shortened
SIZES = (20_000, 50_000, 120_000, 300_000, MOST)  # of grown ones, by turns

Policy = Callable[[str, str], str]  # (output, task) -> what the model gets


@dataclass(frozen=True)
class Case:
    """One output with what was planted, and its lines that are real errors and that are needed."""

    name: str
    text: str
    task: str
    errors: frozenset[str]
    needs: tuple[str, ...]


# The corpus


def corpus(names: list[str]) -> Iterator[Case]:
    labels = json.loads((OUTPUTS / "labels.json").read_text(encoding="utf-8"))
    chosen = [name for name in labels if not names or any(part in name for part in names)]
    for at, name in enumerate(chosen):
        label = labels[name]
        text = decode((OUTPUTS / name).read_bytes())
        lines = read_lines(text).clean
        errors = [lines[number] for number in label["errors"]]
        needs = tuple(lines[number].strip() for number in label["needs"])
        if len(text) >= LEAST:
            yield case(name, text, label["task"], errors, needs)
        size = SIZES[at % len(SIZES)]
        if len(text) < size:
            yield case(f"{name} x{size // 1000}", grow(text, size), label["task"], errors, ())


def case(name: str, text: str, task: str, errors: list[str], needs: tuple[str, ...]) -> Case:
    shapes = set(map(shape, errors))
    lines = read_lines(text).clean
    real = frozenset(bare(line) for line in lines if shape(line) in shapes)
    return Case(name, planted(text[: 2 * MOST]), task, real, needs)


def shape(line: str) -> str:
    return re.sub(r"\d+", "", line).strip()


def bare(line: str) -> str:
    """Return LINE without the place in a file that it begins with."""
    return re.sub(r"^\S+?[:(]\d+(?:[:,]\d+)?\)?:?\s*", "", line.strip())


def planted(text: str) -> str:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        value = None
    lists = sorted(lists_of(value), key=len)
    if lists:
        for note in (NOTE, ERROR):
            middle = lists[-1][len(lists[-1]) // 2]
            lists[-1].insert(len(lists[-1]) // 2, clone(middle, note))
        return json.dumps(value, indent=2 if "\n" in text.strip() else None)
    lines = text.splitlines(keepends=True)
    count = len(lines)
    lines.insert(count * 55 // 100, NOTE + "\n")
    lines.insert(count // 2, ERROR + "\n")
    return "".join(lines)


def lists_of(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        yield value
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from lists_of(item)


def clone(item: Any, note: str) -> Any:
    """Return a copy of the list's ITEM with NOTE for its first text."""
    if not isinstance(item, dict):
        return note
    name = next((name for name, value in item.items() if isinstance(value, str)), "note")
    return item | {name: note}


# Strategies


def ours(text: str, task: str) -> str:
    return excerpt(Output(data=text.encode("utf-8", "surrogateescape"), task=task)).text


def ends(head: int, tail: int) -> Policy:
    def cut(text: str, _task: str) -> str:
        if len(text) <= head + tail:
            return text
        return f"{text[:head]}\n[... truncated ...]\n{text[-tail:]}"

    return cut


ERRORS = re.compile(
    r"\b(?:error|fail(?:ed|ure)?|fatal|exception|panic|traceback|warn(?:ing)?)\b", re.IGNORECASE
)
WINDOW = 8  # lines of a window
WORD = re.compile(r"[a-z0-9]+")


def grep_and_windows(budget: int) -> Policy:
    """Lines about errors with one before and two after, then windows by BM25, 5 : 3."""

    def pick(text: str, task: str) -> str:
        if len(text) <= budget:
            return text
        lines = text.splitlines(keepends=True)
        kept = set[int]()
        room = budget * 5 // 8
        for at, line in enumerate(lines):
            if ERRORS.search(line):
                new = set(range(max(0, at - 1), min(len(lines), at + 3))) - kept
                room -= sum(len(lines[number]) for number in new)
                if room < 0:
                    break
                kept |= new
        room = budget * 3 // 8
        for start in best_windows(lines, task):
            new = set(range(start, min(len(lines), start + WINDOW))) - kept
            size = sum(len(lines[number]) for number in new)
            if size <= room:
                room -= size
                kept |= new
        return "".join(lines[number] for number in sorted(kept))

    return pick


def best_windows(lines: list[str], task: str) -> list[int]:
    """Return where windows begin that share a word with TASK, the best by BM25 first."""
    terms = set(WORD.findall(task.lower()))
    starts = range(0, len(lines), WINDOW)
    bags = [Counter(WORD.findall("".join(lines[at : at + WINDOW]).lower())) for at in starts]
    holding = {term: sum(term in bag for bag in bags) for term in terms}
    mean = sum(map(len, bags)) / max(1, len(bags))

    def score(bag: Counter[str]) -> float:
        total = 0.0
        for term in terms & bag.keys():
            idf = math.log(1 + (len(bags) - holding[term] + 0.5) / (holding[term] + 0.5))
            total += idf * bag[term] * 2.2 / (bag[term] + 1.2 * (0.25 + 0.75 * len(bag) / mean))
        return total

    scored = [(-score(bag), at) for at, bag in zip(starts, bags, strict=True)]
    return [at for points, at in sorted(scored) if points < 0]


def headroom() -> dict[str, Policy]:
    """Return Headroom's ways, if it is there."""
    try:
        from headroom import compress  # noqa: PLC0415 - not among our dependencies
        from headroom.transforms.content_router import ContentRouter  # noqa: PLC0415
    except ImportError:
        return {}

    def compressed(text: str, task: str) -> str:
        call = {"name": "run", "arguments": "{}"}
        messages = [
            {"role": "user", "content": task},
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "c1", "content": text},
        ]  # fmt: skip
        return str(compress(messages, model="gpt-4o").messages[-1]["content"])

    router = ContentRouter()
    return {
        "headroom compress": compressed,
        "headroom router": lambda text, task: router.compress(text, context=task).compressed,
    }


# The table


@dataclass
class Row:
    """The figures of one strategy so far."""

    sizes: list[tuple[int, int]] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    errors: list[float] = field(default_factory=list)
    needs: list[float] = field(default_factory=list)
    longest: int = 0
    seconds: float = 0.0

    def add(self, case: Case, policy: Policy) -> str:
        begin = time.process_time()
        neutral = policy(case.text, NEUTRAL)
        self.seconds += time.process_time() - begin
        asked = policy(case.text, ASKED)
        self.sizes.append((len(neutral), len(case.text)))
        marks = {"H": ERROR in neutral, "S": NOTE in neutral, "Q": NOTE in asked}
        self.found.update(name for name, there in marks.items() if there)
        if len(neutral) < SHORTENED * len(case.text):
            self.found.update(f"{name} shortened" for name, there in marks.items() if there)
        errors = needs = None
        if case.errors:
            errors = len(case.errors & set(map(bare, read_lines(neutral).clean))) / len(case.errors)
            self.errors.append(errors)
        if case.needs:
            shown = {line.strip() for line in read_lines(policy(case.text, case.task)).clean}
            needs = sum(line in shown for line in case.needs) / len(case.needs)
            self.needs.append(needs)
        flags = "".join(name if there else "-" for name, there in marks.items())
        return f"{len(neutral) / len(case.text):.3f} {flags} {number(errors)} {number(needs)}"

    def figures(self) -> list[str]:
        count = len(self.sizes)
        ratios = [kept / whole for kept, whole in self.sizes]
        total = sum(kept for kept, _ in self.sizes) / sum(whole for _, whole in self.sizes)
        megabytes = sum(whole for _, whole in self.sizes) / 1e6
        return [
            f"{sum(ratio < SHORTENED for ratio in ratios)}/{count}",
            f"{total:.3f} / {statistics.median(ratios):.3f}",
            *(f"{self.found[name]} ({self.found[f'{name} shortened']})" for name in "HSQ"),
            f"{statistics.mean(self.errors):.2f}",
            f"{statistics.mean(self.needs):.2f}" if self.needs else "-",
            f"{self.seconds / megabytes:.2f}",
        ]


# Calibration


def calibrate(answers: str | None) -> None:
    """Print precision and recall of segments, summed over the recordings, for each scorer."""
    labels = json.loads((OUTPUTS / "labels.json").read_text(encoding="utf-8"))
    scorers: dict[str, dict[str, list[float]]] = {"local": {}}
    if answers is not None:
        scorers["model"] = json.loads(Path(answers).read_text(encoding="utf-8"))
    needed: dict[str, list[bool]] = {}
    for name, label in labels.items():
        lines = read_lines(decode((OUTPUTS / name).read_bytes()))
        _, parsed = parse(lines) or ("", Parsed(kept=()))
        pieces, segments, evidence = examine(lines, parsed, label["task"])
        if len(segments) > 1 and label["needs"]:
            needed[name] = [
                any(segment.first <= number + 1 <= segment.last for number in label["needs"])
                for segment in segments
            ]
            scorers["local"][name] = local(segments, pieces, evidence)
    print("| scorer | threshold | kept | precision | recall | F1 |\n|---|---|---|---|---|---|")
    for scorer, scores in scorers.items():
        pairs = [
            pair for name, those in scores.items() for pair in zip(those, needed[name], strict=True)
        ]
        total = sum(wanted for _, wanted in pairs)
        for threshold in (step / 20 for step in range(2, 20)):
            kept = [wanted for score, wanted in pairs if score >= threshold]
            right = sum(kept)
            precision, recall = right / max(1, len(kept)), right / max(1, total)
            f1 = 2 * right / max(1, len(kept) + total)
            figures = f"{precision:.2f} | {recall:.2f} | {f1:.2f}"
            print(f"| {scorer} | {threshold:.2f} | {len(kept)} | {figures} |")


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    if sys.argv[1:2] == ["--calibrate"]:
        calibrate(*sys.argv[2:3] or [None])
        return
    policies: dict[str, Policy] = {
        "excerpt (ours)": ours,
        "error grep + BM25, 16 KB": grep_and_windows(16_000),
        "head + tail, 8 + 8 KB": ends(8_000, 8_000),
        "head + tail, 30 KB": ends(15_000, 15_000),
        "head, 50 KB": ends(50_000, 1),
        "everything": lambda text, _task: text,
        **headroom(),
    }
    rows = {name: Row() for name in policies}
    detailed = "-v" in sys.argv
    for case in corpus([name for name in sys.argv[1:] if name != "-v"]):
        for name, policy in policies.items():
            line = rows[name].add(case, policy)
            if detailed:
                print(f"{case.name:32} {len(case.text) // 1000:4} KB  {name:26} {line}")
    print("| strategy | files | kept | H | S | Q | err | needs | s/MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {' | '.join([name, *row.figures()])} |")


if __name__ == "__main__":
    main()
