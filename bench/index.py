"""Print what the search index takes at scale: `python -m bench.index [CHUNKS]`.

Texts are made up but have the shape of real ones: words by Zipf's law, names, paths, numbers, logs;
most chunks are of a few thousand characters, a few are long tool outputs.  tantivy indexes the same
texts in the same run where it is installed.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from retention.index import Counts, Document, Entry, Filters, Index, Mode
from retention.index.embedding import load_wordllama
from retention.model import Chunk, EventKind

CHUNKS = 25_000
SOURCE = 25  # chunks of one source
QUESTIONS = 300
ADDED = 200  # sources that are added while others search
LONG = 60  # one chunk in so many is a long tool output
SYLLABLES = "ka lo mi ren tas vel dor qui sha bru nel pho zim gar ost uth lin mev cor dra".split()


@cache
def vocabulary() -> tuple[list[str], list[float]]:
    """Return words, the frequent ones first, and their cumulated weights."""
    seeded = random.Random(1)
    words = dict.fromkeys(
        "".join(seeded.choices(SYLLABLES, k=seeded.choice((1, 2, 2, 3, 3, 4))))
        for _ in range(90_000)
    )
    return list(words), list(accumulate(1 / (rank + 3) for rank in range(len(words))))


def text_of(number: int) -> str:
    """Return the text of chunk NUMBER, always the same."""
    seeded = random.Random(number)
    if number % LONG == 0:
        return "".join(lines(seeded, int(seeded.lognormvariate(10.6, 0.9)), log_line))
    return "".join(
        lines(seeded, seeded.randint(1_200, 7_200), seeded.choice((prose, log_line, code)))
    )


def lines(seeded: random.Random, size: int, line: Callable[[random.Random], str]) -> Iterator[str]:
    """Yield lines of SIZE characters in all, at most 262,144."""
    left = min(size, 262_144)
    while left > 0:
        made = line(seeded)[:left]
        yield made
        left -= len(made)


def words(seeded: random.Random, count: int) -> list[str]:
    known, weights = vocabulary()
    return seeded.choices(known, cum_weights=weights, k=count)


def prose(seeded: random.Random) -> str:
    return " ".join(words(seeded, seeded.randint(6, 20))) + ".\n"


def log_line(seeded: random.Random) -> str:
    level = seeded.choices(("INFO", "DEBUG", "WARNING", "ERROR"), (80, 15, 3, 1))[0]
    one, *rest = words(seeded, 9)
    head = f"2026-03-{seeded.randint(1, 28):02} {level} {one}[{seeded.randint(1, 9999)}]"
    return f"{head} {' '.join(rest)}\n"


def code(seeded: random.Random) -> str:
    one, two, three, four, five = words(seeded, 5)
    call = f"{three}.{four}{five.title()}(src/{one}/{five}.py, {seeded.random():.3f})"
    return f"    {one}_{two} = {call}\n"


def documents(first: int, count: int) -> list[Document]:
    """Return COUNT chunks from number FIRST on, as one source has them."""
    return [
        Document(n, Chunk(start=0, end=len(text), kind=EventKind.TOOL_OUTPUT), text)
        for n, text in enumerate(map(text_of, range(first, first + count)))
    ]


def add(index: Index, first: int, count: int = SOURCE) -> None:
    index.update(Entry("bench", f"s{first}", b"1", "output"), documents(first, count))


class Question(NamedTuple):
    text: str
    source: str
    number: int


def questions(chunks: int, *, long: bool) -> list[Question]:
    """Return questions of five words from one place of a chunk: two rarer ones, three common."""
    seeded = random.Random(7)
    rank = {word: n for n, word in enumerate(vocabulary()[0])}
    asked = list[Question]()
    while len(asked) < QUESTIONS:
        chunk = seeded.randrange(chunks) // LONG * LONG + (0 if long else seeded.randrange(1, LONG))
        if chunk >= chunks:
            continue
        known = [word for word in text_of(chunk).split() if word in rank]
        at = seeded.randrange(max(1, len(known) - 30))
        near = sorted(set(known[at : at + 30]), key=lambda word: rank[word])
        if len(near) < 12:
            continue
        picked = seeded.sample(near[: len(near) // 2], 3) + seeded.sample(near[len(near) // 2 :], 2)
        asked.append(Question(" ".join(picked), f"s{chunk // SOURCE * SOURCE}", chunk % SOURCE))
    return asked


def row(name: str, value: str) -> None:
    print(f"| {name} | {value} |", flush=True)


def spread(times: list[float], *parts: int) -> str:
    """Return percentiles of TIMES, seconds, in milliseconds."""
    cuts = statistics.quantiles(times, n=100)
    return ", ".join(f"p{part} {1000 * cuts[part - 1]:.2f} ms" for part in parts)


def memory() -> int:
    """Return the resident memory of this process in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def rank_of(index: Index, question: Question, mode: Mode) -> tuple[float, int, list[Any]]:
    """Return the time that QUESTION took, its answer's place from 1 (0: none), and the matches."""
    start = time.perf_counter()
    found = index.search(question.text, Filters(), 10, mode)
    took = time.perf_counter() - start
    places = [n for n, m in enumerate(found, 1) if (m.id, m.number) == question[1:]]
    return took, places[0] if places else 0, found


def ask(index: Index, asked: list[Question], mode: Mode, name: str) -> None:
    results = [rank_of(index, question, mode) for question in asked]
    places = [place for _, place, _ in results]
    row(f"{name}: time", spread([took for took, _, _ in results], 50, 95, 99))
    first = sum(place == 1 for place in places) / len(places)
    row(
        f"{name}: found",
        f"@1 {first:.3f}, @10 {sum(map(bool, places)) / len(places):.3f},"
        f" MRR {sum(1 / place for place in places if place) / len(places):.3f}",
    )
    hits = [(int(m.id[1:]) + m.number) % LONG == 0 for _, _, found in results for m in found]
    row(
        f"{name}: long chunks among hits",
        f"{sum(hits) / max(1, len(hits)):.3f} (of all {1 / LONG:.3f})",
    )


def add_while_searching(index: Index, asked: list[Question], chunks: int) -> None:
    """Time the adding of one output a time beside a thread that searches, and its searches."""
    done, times = threading.Event(), list[float]()

    def search() -> None:
        while not done.is_set():
            for question in asked:
                times.append(rank_of(index, question, "lexical")[0])
                time.sleep(0.01)

    thread = threading.Thread(target=search)
    thread.start()
    adding = list[float]()
    for n in range(ADDED):
        made = documents(chunks + n, 1)
        start = time.perf_counter()
        index.update(Entry("bench", f"s{chunks + n}", b"1", "output"), made)
        adding.append(time.perf_counter() - start)
        time.sleep(0.005)
    done.set()
    thread.join()
    row(
        "add one output while searching",
        spread(adding, 50, 95, 99) + f", max {1000 * max(adding):.1f}",
    )
    row("search while adding", spread(times, 50, 95))


def embed_all(index: Index) -> Counts:
    while index.embed_some(lambda _, source, number: text_of(int(source[1:]) + number), 64):
        pass
    return index.counts()


def main() -> None:
    chunks = int(sys.argv[1]) if len(sys.argv) > 1 else CHUNKS
    loaded = load_wordllama()
    vocabulary()
    with tempfile.TemporaryDirectory(prefix="gptel-retention-bench-") as name:
        directory = Path(name) / "index"
        index = Index.open(directory, loaded.embedder)
        index.clear()
        print("| what | figure |\n|---|---|")
        fill(index, chunks)
        short, long = questions(chunks, long=False), questions(chunks, long=True)
        ask(index, short, "lexical", "lexical, short chunks")
        ask(index, long, "lexical", "lexical, a passage of a long chunk")
        add_while_searching(index, short, chunks)
        if loaded.embedder is None:
            row("vectors", loaded.reason)
        else:
            start = time.perf_counter()
            counts = embed_all(index)
            row(
                "vectors",
                f"{counts.vectors} in {time.perf_counter() - start:.0f} s (with making the texts)",
            )
            start = time.perf_counter()
            index.search(short[0].text, mode="dense")
            row("first search by meaning", f"{1000 * (time.perf_counter() - start):.0f} ms")
            ask(index, short, "combined", "combined, short chunks")
            weak = [q._replace(text=q.text + " unheard") for q in short]
            ask(index, weak, "combined", "combined, with a word that is nowhere")
        row("memory", f"{memory()} MB")
        row("files", f"{sum(f.stat().st_size for f in directory.iterdir()) / 1e6:.0f} MB")
        start = time.perf_counter()
        index.close()
        index = Index.open(directory, loaded.embedder)
        row("open, with a check of all pages", f"{1000 * (time.perf_counter() - start):.0f} ms")
        start = time.perf_counter()
        index.clear()
        row("clear", f"{time.perf_counter() - start:.2f} s")
        fill(index, chunks)
        start = time.perf_counter()
        index.purge()
        row("purge", f"{time.perf_counter() - start:.2f} s")
        index.close()
    tantivy(chunks, short)


def fill(index: Index, chunks: int) -> None:
    """Add CHUNKS chunks, and tell how long it took, without the making of the texts."""
    total, size = 0.0, 0
    for first in range(0, chunks, SOURCE):
        made = documents(first, SOURCE)
        size += sum(len(document.text) for document in made)
        start = time.perf_counter()
        index.update(Entry("bench", f"s{first}", b"1", "output"), made)
        total += time.perf_counter() - start
    row("add all", f"{chunks} chunks, {size / 1e6:.0f} M characters: {total:.1f} s")


def tantivy(chunks: int, asked: list[Question]) -> None:
    """Do the same with tantivy, a commit for each source."""
    try:
        import tantivy as engine  # noqa: PLC0415 - not ours to install
    except ImportError:
        row("tantivy", "not installed")
        return
    with tempfile.TemporaryDirectory(prefix="gptel-retention-bench-") as directory:
        builder = engine.SchemaBuilder()
        builder.add_text_field("body")
        builder.add_integer_field("chunk", stored=True)
        index = engine.Index(builder.build(), path=directory)
        writer = index.writer(50_000_000, 1)
        times = list[float]()
        for first in range(0, chunks, SOURCE):
            made = documents(first, SOURCE)
            start = time.perf_counter()
            for document in made:
                entry = engine.Document(body=document.text)
                entry.add_integer("chunk", first + document.number)
                writer.add_document(entry)
            writer.commit()
            times.append(time.perf_counter() - start)
        row(
            "tantivy: add all",
            f"{sum(times):.1f} s; a source with its commit {spread(times, 50, 99)}",
        )
        index.reload()
        searcher = index.searcher()
        took, places = list[float](), list[int]()
        for question in asked:
            start = time.perf_counter()
            query = index.parse_query(" ".join(f"+{w}" for w in question.text.split()), ["body"])
            hits = searcher.search(query, 10).hits
            took.append(time.perf_counter() - start)
            wanted = int(question.source[1:]) + question.number
            found = [searcher.doc(address)["chunk"][0] for _, address in hits]
            places.append(found.index(wanted) + 1 if wanted in found else 0)
        row("tantivy: time", spread(took, 50, 95, 99))
        first = sum(place == 1 for place in places) / len(places)
        row("tantivy: found", f"@1 {first:.3f}, @10 {sum(map(bool, places)) / len(places):.3f}")


if __name__ == "__main__":
    main()
