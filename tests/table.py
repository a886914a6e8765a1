"""The continuity table: per API, what plain gptel sends again as it was, and what the mode does.

Run by `make table`; writes the table into README.md and docs/continuity.md.  Emacs, gptel, curl,
the backend and its store are real; the provider on loopback is as strict as the real ones are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.demo import SECTIONS, shared, size, stage
from tests.e2e.chat import APIS, MODES, Chat, array, observe
from tests.e2e.emacs import Emacs
from tests.loopback import Loopback
from tests.loopback.kept import kept
from tests.loopback.recorder import Recorded
from tests.loopback.strictness import Strictness

ROOT = Path(__file__).absolute().parent.parent
PAGES = ("README.md", "docs/continuity.md")
MARKS = ("<!-- the continuity table -->", "<!-- the end of the table -->")
TURNS, ROUNDS = 3, 3
STRICT = Strictness(
    thinking="required", strict_ids=True, strict_reasoning=True, strict_signatures=True,
    exclusive_content=False,
)  # fmt: skip
WITHOUT_THINKING = {"openai", "mistral"}  # chat has none; gptel cannot read that of Mistral


@dataclass
class Score:
    """Sums over conversations with one API: counts of those that hold and of all."""

    pairs: int = 0
    all_pairs: int = 0
    reused: int = 0
    total: int = 0
    turns: int = 0
    all_turns: int = 0
    items: int = 0
    all_items: int = 0

    def add(self, requests: list[Recorded], complete: int) -> None:
        """Add the REQUESTS of one conversation, of which COMPLETE turns came to their end."""
        pairs = list(pairwise(requests))
        same = [shared(a, b) for a, b in pairs]
        self.pairs += sum(n == len(array(a)) for n, (a, _) in zip(same, pairs, strict=True))
        self.all_pairs += len(pairs)
        self.reused += sum(size(array(b)[:n]) for n, (_, b) in zip(same, pairs, strict=True))
        self.total += sum(min(size(array(a)), size(array(b))) for a, b in pairs)
        self.turns += complete
        self.all_turns += TURNS
        issued, returned = kept(requests)
        self.items += returned.total()
        self.all_items += issued.total()

    @property
    def cells(self) -> list[str]:
        """The four figures as shares."""
        parts = (
            (self.pairs, self.all_pairs), (self.reused, self.total),
            (self.turns, self.all_turns), (self.items, self.all_items),
        )  # fmt: skip
        shares = [f"{100 * part / whole:.0f} %" if whole else "-" for part, whole in parts]
        shares[2] = f"{self.turns} of {self.all_turns}"
        return shares


def answers(api: str, turn: int) -> list[dict[str, Any]]:
    """Return what the model says in one turn: rounds with text and two calls of one tool."""

    def said(text: str, **more: Any) -> dict[str, Any]:
        thought = {} if api in WITHOUT_THINKING else {"reasoning": f"Thinking of {text}"}
        return {"text": text} | thought | more

    rounds = [
        said(
            f"Looking at **{turn}.{n}**. ",
            calls=[{"name": "read", "args": {"path": f"{side}{turn}{n}"}} for side in "ab"],
        )
        for n in range(ROUNDS)
    ]
    return [*rounds, said(f"That is *all* of {turn}.")]


def converse(emacs: Emacs, server: Loopback, api: str, score: Score, **options: Any) -> None:
    """Hold one conversation and add it to SCORE."""
    observe(emacs, "rules", "Answer in one sentence.")
    chat = Chat(emacs, server, api, sections=SECTIONS, **options)
    requests: list[Recorded] = []
    complete = 0
    for turn in range(TURNS):
        observe(emacs, "weather", f"day {turn}")
        sent = chat.send(f"turn {turn}", *answers(api, turn))
        complete += len(sent) == ROUNDS + 1 and all(r.refusal is None for r in sent)
        requests += sent
    score.add(requests, complete)


def measure() -> dict[str, tuple[Score, Score]]:
    """Return the scores of every API, plain and with the mode on, over modes and transports."""
    scores = {api: (Score(), Score()) for api in APIS}
    with stage() as (emacs, server):
        server.strictness = STRICT
        for api in APIS:
            for on, score in enumerate(scores[api]):
                for mode in MODES:
                    for stream in (True, False):
                        converse(emacs, server, api, score, mode=mode, stream=stream, plain=not on)
            sys.stderr.write(f"{api}\n")
    return scores


def render(scores: dict[str, tuple[Score, Score]]) -> str:
    """Return the table in Markdown: plain / with the mode on."""
    head = ["", "pairs whole", "bytes reused", "turns complete", "items kept"]
    rows = [
        [api, *(f"{a} / {b}" for a, b in zip(plain.cells, ours.cells, strict=True))]
        for api, (plain, ours) in scores.items()
    ]
    return "\n".join(line(row) for row in [head, ["---"] * len(head), *rows])


def line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def put(page: str, table: str) -> str:
    """Return PAGE with TABLE between its marks."""
    begin, end = map(re.escape, MARKS)
    found = re.compile(f"{begin}.*?{end}", re.DOTALL)
    return found.sub(lambda _: f"{MARKS[0]}\n{table}\n{MARKS[1]}", page)


def main() -> None:
    table = render(measure())
    print(table)
    for name in PAGES:
        path = ROOT / name
        path.write_text(put(path.read_text(encoding="utf-8"), table), encoding="utf-8")


if __name__ == "__main__":
    main()
