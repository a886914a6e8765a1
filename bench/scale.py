"""Learning and searching at scale, as one table: `python -m bench.scale [SHARE]`.

Learned are SHARE (by default 1) times 120 million characters in about 25,000 chunks: short and long
conversations, whose words are as frequent as words are, and tool outputs.  Each stage runs in a
process of its own, so that its memory is its own.  A row says what was measured beside what is
wanted; times are of one process, with the store and the index on the same disk.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import re
import statistics
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.__main__ import Client, history
from bench.retrieval import BATCH
from retention import indexing, sources
from retention.service import INDEX, Service
from retention.store import Store
from retention.working import Worker
from tests.outputs.large import grow
from tests.retrieval.chats import render
from tests.retrieval.material import MODES, recording, talk

SHORT, LONG, OUTPUTS = 11_000, 170, 900  # how many of each
SHORT_SIZE, LONG_SIZE, OUTPUT_SIZE = 2_600, 350_000, 16_000  # characters of each, about
WORDS = 30_000  # different ones
ADDED = 60  # outputs that are added one at a time
PREPARED = 60  # requests that are prepared with and without learning in the background
PAUSE = 0.1  # seconds between them
QUERIES = 300
SAMPLE = 500  # files that are learned again


class Figure(NamedTuple):
    """One row of the table."""

    name: str
    measured: str
    wanted: str = ""


# What is learned


def words() -> list[str]:
    """Return words, each as often as its rank in the language makes it."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ai", "en")]
    rng = random.Random("words")
    made = dict.fromkeys(
        "".join(rng.choices(syllables, k=rng.randrange(2, 5))) for _ in range(2 * WORDS)
    )
    return [
        word
        for rank, word in enumerate(itertools.islice(made, WORDS), 1)
        for _ in range(1 + WORDS // (8 * rank))
    ]


def write_files(directory: Path, share: float) -> None:
    """Write the conversations, and what the tools returned, into DIRECTORY."""
    vocabulary = words()
    directory.mkdir()
    sizes = [SHORT_SIZE] * int(SHORT * share) + [LONG_SIZE] * int(LONG * share)
    for number, size in enumerate(sizes):
        rng = random.Random(f"scale {number}")
        mode = rng.choice(MODES)
        text = render(talk(rng, size, vocabulary), mode)
        (directory / f"chat-{number:05}.{mode}").write_text(text, encoding="utf-8")


def outputs(count: int, seed: str) -> Iterator[str]:
    """Yield COUNT tool outputs of which no two are alike."""
    names = ("log_plain.txt", "pytest_fail.txt", "git_diff.txt", "mypy.txt", "strace.txt")
    lines = [recording(name).split("\n") for name in names]
    rng = random.Random(seed)
    for number in range(count):
        some = rng.choice(lines)
        begin = rng.randrange(len(some) // 2)
        text = "\n".join(some[begin : begin + 60])
        yield f"{seed} {number}\n" + grow(
            text, rng.randrange(OUTPUT_SIZE - 3_000, OUTPUT_SIZE + 3_000)
        )


# One backend


@contextmanager
def backend(directory: Path) -> Iterator[tuple[Service, Client]]:
    """Yield a service on the store in DIRECTORY, and a client of it."""
    store = Store.open(directory / "store")
    service = Service(store, clock=time.time, random_id=lambda: uuid.uuid4().hex)
    try:
        yield service, Client(service)
    finally:
        service.close()
        store.close()


def save(client: Client, text: str) -> None:
    client.call("output/save", conversation=client.id, tool="run_command", body=text)


def timed(work: Callable[[], object]) -> float:
    """Return how long WORK takes, in seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def spread(times: Sequence[float]) -> str:
    """Return the median, the 95th percentile and the greatest of TIMES, given in seconds."""
    ordered = sorted(1000 * each for each in times)
    values = (statistics.median(ordered), ordered[len(ordered) * 95 // 100], ordered[-1])
    return "p50 {:.1f} ms, p95 {:.1f} ms, max {:.1f} ms".format(*values)


def memory() -> str:
    """Return the resident memory of this process: all, and without the pages of mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = {
        name: int(rest.split()[0]) // 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if name.startswith(("VmRSS", "RssAnon"))
    }
    return f"{sizes['VmRSS']} MB, of them {sizes['RssAnon']} MB its own"


# Stages: each takes the directory and returns rows of the table


def learn(directory: Path, share: float) -> list[Figure]:
    files = sorted((directory / "chats").iterdir())
    with backend(directory) as (_, client):
        counts = [0, 0]

        def count(**params: Any) -> None:
            for source in client.call("evidence/learn", **params).sources:
                counts[0] += source.chunks
                counts[1] += source.chars

        seconds = 0.0
        for text in outputs(int(OUTPUTS * share), "output"):
            save(client, text)
        seconds += timed(lambda: count(conversation=client.id))
        for file in files:
            seconds += timed(lambda file=file: count(path=str(file)))
        same = files[:SAMPLE]
        again = timed(lambda: [client.call("evidence/learn", path=str(file)) for file in same])
        return [
            Figure("chunks", f"{counts[0]:,}", "25,000"),
            Figure("characters", f"{counts[1] / 1e6:.1f} M", "120 M"),
            Figure("learned, without vectors", f"{seconds:.0f} s", "600 s"),
            Figure(
                "learned again, a file that did not change", f"{1000 * again / len(same):.1f} ms"
            ),
            Figure("resident memory after learning", memory(), "300 MB"),
        ]


def serve(directory: Path) -> list[Figure]:
    queries = list(asked(directory))
    with backend(directory) as (service, client):
        service.index()
        added = []
        for text in outputs(ADDED, "added"):
            save(client, text)
            added.append(timed(lambda: client.call("evidence/learn", conversation=client.id)))
        words = {kind: search(client, texts, "lexical") for kind, texts in queries}
        rows = [
            Figure("one output added while serving", spread(added), "20 ms"),
            *(
                Figure(f"lexical query, {kind}", spread(times), "p50 5 ms, p95 20 ms")
                for kind, times in words.items()
            ),
            Figure("resident memory while serving", memory(), "300 MB"),
        ]
    with backend(directory) as (service, client):
        alone = prepare(client)
        for text in outputs(2 * ADDED, "waiting"):
            save(client, text)
        worker = Worker(service.store, service.index, lambda: service.asked)
        worker.start()
        worker.notify(client.id)
        beside = prepare(client)
        worker.stop()
    return [
        *rows,
        Figure("prepare, nothing in the background", spread(alone)),
        Figure("prepare beside the worker", spread(beside)),
    ]


def prepare(client: Client) -> list[float]:
    """Return how long requests took to be prepared, one after the other with pauses."""
    before = history(200)
    made = client.prepare(before)
    client.call("request/commit", plan=made.plan)
    tail = [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "next"}]
    times = []
    for _ in range(PREPARED):
        time.sleep(PAUSE)
        begin = time.perf_counter()
        plan = client.prepare(tail, base=made.ordinary, keep=len(before), have=[made.sent]).plan
        times.append(time.perf_counter() - begin)
        client.call("request/abandon", plan=plan)
    return times


def asked(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield kinds of queries: a name, a few words of one place, a question in ordinary words."""
    rng = random.Random("queries")
    files = sorted((directory / "chats").iterdir())
    texts = [rng.choice(files).read_text(encoding="utf-8") for _ in range(QUERIES)]
    names = [re.findall(r"\b[a-z]+_[a-z]+\d+\b", text) for text in texts]
    lines = [[line for line in text.split("\n") if len(line.split()) > 8] for text in texts]
    some = [rng.choice(each).split() for each in lines if each]
    yield "a name", [rng.choice(each) for each in names if each]
    yield "five words of a place", [" ".join(rng.sample(line, 5)) for line in some]
    yield (
        "a question",
        [f"what did we decide about {' and the '.join(rng.sample(line, 3))}" for line in some],
    )


def search(client: Client, queries: Iterable[str], mode: str) -> list[float]:
    return [
        timed(lambda query=query: client.call("evidence/search", query=query, mode=mode))
        for query in queries
    ]


def embed(directory: Path) -> list[Figure]:
    queries = list(asked(directory))
    with backend(directory) as (service, client):
        index = service.index()
        read = partial(sources.read_chunk, service.store)
        if not client.call("evidence/sources").dense:
            return [Figure("combined query", "not measured: the extra `dense` is not installed")]

        def run() -> None:
            while index.embed_some(read, BATCH):
                pass

        seconds = timed(run)
        peak = memory()
    with backend(directory) as (_, client):
        client.call("evidence/search", query="warm up")
        return [
            Figure("vectors of everything", f"{seconds:.0f} s"),
            Figure("resident memory after it", peak),
            *(
                Figure(
                    f"combined query, {kind}",
                    spread(search(client, texts, "combined")),
                    "p95 60 ms",
                )
                for kind, texts in queries
            ),
            Figure("resident memory while serving, with vectors", memory()),
        ]


def rebuild(directory: Path, damage: str) -> list[Figure]:
    files = list((directory / "store" / INDEX).glob("index.sqlite*"))
    for file in files:
        if damage == "deleted":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with backend(directory) as (service, client):
        index = service.index()
        seconds = timed(lambda: deque(indexing.reconcile(service.store, index), maxlen=0))
        total = client.call("evidence/sources").chunks
        return [
            Figure(
                f"rebuilt from the store after it was {damage}",
                f"{seconds:.0f} s, {index.counts().chunks:,} of {total:,} chunks",
            ),
            Figure("resident memory after it", memory(), "300 MB"),
        ]


def main() -> None:
    share = float(sys.argv[1]) if sys.argv[1:] else 1.0
    with tempfile.TemporaryDirectory(prefix="gptel-retention-scale-") as name:
        directory = Path(name)
        write_files(directory / "chats", share)
        stages: list[tuple[Callable[..., list[Figure]], tuple[object, ...]]] = [
            (learn, (directory, share)),
            (serve, (directory,)),
            (rebuild, (directory, "deleted")),
            (rebuild, (directory, "torn")),
            (embed, (directory,)),
        ]
        print("| figure | measured | wanted |\n|---|---|---|", flush=True)
        for stage, arguments in stages:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                for row in pool.apply(stage, arguments):
                    print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
