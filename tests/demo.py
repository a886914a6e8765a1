"""The main job in one minute: a real gptel conversation, once plain and once with the mode on.

Run by `make demo`.  Emacs, gptel, curl, the backend and its store are real; only the provider is
the bundled one on loopback, which validates what it gets and records it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.e2e.chat import Chat, array, blocks, observe, plain, two_calls
from tests.e2e.emacs import Emacs, start_emacs
from tests.loopback import Loopback
from tests.loopback.recorder import Recorded

API = "anthropic"
SECTIONS = ("weather", "rules")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run of the conversation sent."""

    name: str
    requests: list[Recorded]
    delivered: int
    transcript: str

    @property
    def pairs(self) -> str:
        """How many requests begin with the whole conversation of the one before."""
        whole = sum(shared(a, b) == len(array(a)) for a, b in pairwise(self.requests))
        return f"{whole} of {len(self.requests) - 1}"

    @property
    def again(self) -> str:
        """The share of the conversation's bytes that equals the request before, from its start."""
        total = sum(size(array(b)) for b in self.requests[1:])
        reused = sum(size(array(b)[: shared(a, b)]) for a, b in pairwise(self.requests))
        return f"{100 * reused / total:.0f} %"

    @property
    def kept(self) -> str:
        """How many of the deliveries the last request carries at their place."""
        return f"{len(blocks(self.requests[-1]))} of {self.delivered}"


def shared(earlier: Recorded, later: Recorded) -> int:
    """Return how many elements two requests have in common from the start."""
    count = 0
    for a, b in zip(array(earlier), array(later), strict=False):
        if plain(a) != plain(b):
            break
        count += 1
    return count


def size(elements: list) -> int:
    """Return the bytes of ELEMENTS as compact JSON."""
    return len(json.dumps(elements, ensure_ascii=False, separators=(",", ":")).encode())


def converse(emacs: Emacs, server: Loopback, *, retention: bool) -> Outcome:
    """Hold the conversation: four turns, one with tools; what is observed changes twice."""
    observe(emacs, "weather", "sunny")
    observe(emacs, "rules", "Answer in one sentence.")
    chat = Chat(
        emacs, server, API, "org-mode", plain=not retention, sections=SECTIONS if retention else ()
    )
    requests = chat.send("What is in a and b?", two_calls("a", "b"), {"text": "Two contents."})
    requests += chat.send("Thank you.")
    observe(emacs, "weather", "rain")
    requests += chat.send("And the weather?", {"text": "It rains now."})
    requests += chat.send("Good night.")
    refused = [request.refusal for request in requests if request.refusal]
    if refused:
        raise SystemExit(f"The provider refused: {refused[0]}")
    name = "gptel-retention" if retention else "plain gptel"
    delivered = 0
    for earlier, later in pairwise([None, *requests]):
        known = blocks(earlier) if earlier else []
        delivered += max(0, len(blocks(later)) - len(known))
    return Outcome(name=name, requests=requests, delivered=delivered, transcript=chat.text())


@contextmanager
def stage() -> Iterator[tuple[Emacs, Loopback]]:
    """Yield an Emacs and a provider, in a directory that goes afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="gptel-retention-demo-") as home,
        Loopback() as server,
        start_emacs(Path(home), server.port) as emacs,
    ):
        yield emacs, server
        emacs.eval("(gptel-retention-rpc-shutdown)")


def show(outcomes: list[Outcome]) -> None:
    """Print the table."""
    rows = [
        ("", *(outcome.name for outcome in outcomes)),
        ("requests accepted", *(str(len(outcome.requests)) for outcome in outcomes)),
        ("whole prefix of the request before", *(outcome.pairs for outcome in outcomes)),
        ("bytes sent again as they were", *(outcome.again for outcome in outcomes)),
        ("sections delivered", *(str(outcome.delivered) for outcome in outcomes)),
        ("kept at their place in the last request", *(outcome.kept for outcome in outcomes)),
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip())


def main() -> None:
    with stage() as (emacs, server):
        outcomes = [converse(emacs, server, retention=on) for on in (False, True)]
    mode = outcomes[1]
    print("The conversation in Emacs, with the mode on:\n")
    print("\n".join(f"    {line}" for line in mode.transcript.splitlines()))
    print("\nWhat the model was given beside it, in its last request:\n")
    print("\n".join(f"    [{title}]" for title in blocks(mode.requests[-1])))
    print()
    show(outcomes)


if __name__ == "__main__":
    main()
