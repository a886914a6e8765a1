"""How well what was learned is found: `python -m bench.retrieval [-v]`.

Learned are the conversations, outputs and failed runs of tests/retrieval among at least 600 chunks
of others; asked are its questions.  A hit counts if it is in the expected source and the text of
its chunk, or for a line in the middle of an output its excerpt, holds what the question expects.
A row says of one class of questions and one way to search:

  n           questions
  @1, @5      share of them whose first, or one of whose first five hits counts
  MRR         mean of 1 / the place of the first hit that counts, among ten

With -v, also each question that combined search does not answer first, and where the others do.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from retention import sources
from retention.service import Service
from retention.store import Store
from tests.retrieval import ROOT
from tests.retrieval.chats import write_chats
from tests.retrieval.material import (
    Output,
    Run,
    other_chats,
    other_outputs,
    other_runs,
    planted_outputs,
    planted_runs,
)

KINDS = ("identifier", "path", "error", "middle", "paraphrase", "conversation", "log")
LIMIT = 10  # hits of one search
BATCH = 256  # texts that get vectors at a time


class Question(NamedTuple):
    """What is asked: `contains` is part of the chunk in `source` that answers it."""

    kind: str
    text: str
    source: str
    contains: str


class Figures(NamedTuple):
    """How well N questions were answered."""

    n: int
    first: float
    five: float
    mrr: float


class Client:
    """A service on a store of its own; `sources` are the ids of what was learned, by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store.open(directory / "store")
        self.service = Service(self.store, clock=time.time, random_id=lambda: uuid.uuid4().hex)
        self.call("initialize", protocol=1)
        self.conversation = self.call("conversation/open", title="outputs").id
        self.sources: dict[str, str] = {}
        self.chunks = 0

    def call(self, method: str, **params: Any) -> Any:
        return self.service.call(method, json.dumps(params).encode())

    def learn_file(self, file: Path) -> None:
        for source in self.call("evidence/learn", path=str(file)).sources:
            self.sources[file.name if source.kind == "file" else source.source] = source.source
            self.chunks += source.chunks

    def save_output(self, output: Output) -> None:
        saved = self.call(
            "output/save", conversation=self.conversation, tool=output.tool, call=output.call,
            body=output.text,
        )  # fmt: skip
        if output.name:
            self.sources[output.name] = saved.id

    def learn_outputs(self) -> None:
        for source in self.call("evidence/learn", conversation=self.conversation).sources:
            self.chunks += source.chunks

    def learn_run(self, run: Run) -> None:
        for name, text in ((f"{run.id}.json", run.facts), (f"{run.id}.failed.log", run.log)):
            file = self.directory / name
            file.write_text(text, encoding="utf-8")
            self.learn_file(file)

    def embed(self) -> bool:
        """Compute the vectors that are missing; tell whether there are any."""
        index = self.service.index()
        while index.embed_some(partial(sources.read_chunk, self.store), BATCH):
            pass
        return bool(self.call("evidence/sources").dense)

    def close(self) -> None:
        self.service.close()
        self.store.close()


@contextmanager
def learned() -> Iterator[Client]:
    """Yield a client that has learned all of the material."""
    with tempfile.TemporaryDirectory(prefix="gptel-retention-bench-") as name:
        client = Client(Path(name))
        for file in write_chats(client.directory):
            client.learn_file(file)
        for chat, text in other_chats():
            file = client.directory / chat
            file.write_text(text, encoding="utf-8")
            client.learn_file(file)
        for output in (*planted_outputs(), *other_outputs()):
            client.save_output(output)
        client.learn_outputs()
        for run in (*planted_runs(), *other_runs()):
            client.learn_run(run)
        try:
            yield client
        finally:
            client.close()


def read_questions() -> list[Question]:
    """Return the questions, by class."""
    text = (ROOT / "questions.toml").read_text(encoding="utf-8")
    found = [Question(**question) for question in tomllib.loads(text)["question"]]
    return sorted(found, key=lambda question: KINDS.index(question.kind))


def place(client: Client, question: Question, mode: str) -> int:
    """Return the place of the first hit that answers QUESTION, from 1; 0 for none."""
    hits = client.call("evidence/search", query=question.text, limit=LIMIT, mode=mode).hits
    wanted = client.sources[question.source]
    for number, hit in enumerate(hits, 1):
        if hit.source == wanted and question.contains in _said(client, question, hit):
            return number
    return 0


def _said(client: Client, question: Question, hit: Any) -> str:
    if question.kind == "middle":
        return str(hit.excerpt)
    return str(client.call("evidence/expand", id=hit.id).text)


def figures(places: Iterable[int]) -> Figures:
    """Return the figures of answers in PLACES."""
    found = list(places)
    return Figures(
        len(found),
        statistics.mean(at == 1 for at in found),
        statistics.mean(0 < at <= 5 for at in found),
        statistics.mean(1 / at if at else 0 for at in found),
    )


def by_kind(questions: list[Question], places: list[int]) -> dict[str, Figures]:
    """Return the figures of each class, and of all under ""."""
    pairs = list(zip(questions, places, strict=True))
    return {
        kind: figures(at for question, at in pairs if kind in {"", question.kind})
        for kind in (*KINDS, "")
    }


def main() -> None:
    questions = read_questions()
    with learned() as client:
        print(f"{client.chunks} chunks, {len(questions)} questions\n")
        modes = ("lexical", "dense", "combined") if client.embed() else ("lexical",)
        places = {mode: [place(client, q, mode) for q in questions] for mode in modes}
    print("| class | n |" + "".join(f" {mode} @1 | @5 | MRR |" for mode in modes))
    print("|---|---|" + "---|" * 3 * len(modes))
    tables = {mode: by_kind(questions, places[mode]) for mode in modes}
    for kind in (*KINDS, ""):
        cells = [f"{value:.2f}" for mode in modes for value in tables[mode][kind][1:]]
        print(f"| {kind or 'all'} | {tables['lexical'][kind].n} | {' | '.join(cells)} |")
    if "-v" in sys.argv[1:]:
        print()
        for number, question in enumerate(questions):
            found = {mode: places[mode][number] for mode in modes}
            if found[modes[-1]] != 1:
                print(f"{question.kind:12} {found} {question.text}")


if __name__ == "__main__":
    main()
