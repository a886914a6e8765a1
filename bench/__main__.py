"""Print the hot-path figures as one table of medians: `make bench`."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.emacs import emacs_share
from retention.framing import Decoder, encode
from retention.protocol import MAX_FRAME
from retention.service import Service
from retention.store import Store

IDENTITY = {"api": "openai", "model": "bench"}
SECTIONS = [{"name": "weather", "title": "Weather", "body": "sunny " * 40}]
RUNS = 200
HISTORY = 200  # bytes of each earlier message


class Client:
    """Calls a service the way the adapter does: whole once, then deltas."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.call("initialize", protocol=1)
        self.id = self.call("conversation/open").id

    def call(self, method: str, **params: Any) -> Any:
        return self.service.call(method, json.dumps(params).encode())

    def prepare(self, tail: list[dict[str, str]], **params: Any) -> Any:
        return self.call(
            "request/prepare", conversation=self.id, request=params.pop("request", "r"),
            origin="buffer", array="messages", identity=IDENTITY, tail=json.dumps(tail),
            sections=params.pop("sections", SECTIONS), **params,
        )  # fmt: skip


@contextmanager
def client() -> Iterator[Client]:
    """Yield a client on a store of its own."""
    with tempfile.TemporaryDirectory(prefix="gptel-retention-bench-") as directory:
        store = Store.open(Path(directory) / "store")
        yield Client(Service(store, clock=time.time, random_id=lambda: uuid.uuid4().hex))
        store.close()


def history(count: int) -> list[dict[str, str]]:
    """Return COUNT earlier messages, user and assistant by turns."""
    roles = ("user", "assistant")
    return [
        {"role": roles[n % 2], "content": f"message {n} ".ljust(HISTORY, "x")} for n in range(count)
    ]


def median_ms(run: Callable[[], object], runs: int = RUNS) -> float:
    """Return the median of RUNS calls, in milliseconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def delta(count: int) -> float:
    """Return the median of a prepare in delta mode behind COUNT messages."""
    with client() as c:
        plan = c.prepare(history(count))
        c.call("request/commit", plan=plan.plan)
        tail = [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "next"}]

        def run() -> None:
            made = c.prepare(tail, base=plan.ordinary, keep=count, have=[plan.sent])
            c.call("request/abandon", plan=made.plan)

        return median_ms(run)


def replay_delta(count: int) -> float:
    """Return the median of a prepare in delta mode behind COUNT messages that were replayed.

    Four messages a turn: prompt, calls, result, answer; the last turn is replayed in the prepare.
    """
    with client() as c:
        array: list[dict[str, Any]] = []
        ordinary, have, keep = "", "", 0
        for n in range(count // 4):
            array.append({"role": "user", "content": f"prompt {n}"})
            plan = c.prepare(array[keep:], base=ordinary, keep=keep, have=[have], request=f"r{n}")
            c.call("request/commit", plan=plan.plan)
            ordinary, keep = plan.ordinary, len(array)
            have = turn(c, n, plan, array)
        tail = [*array[keep:], {"role": "user", "content": "next"}]

        def run() -> None:
            made = c.prepare(tail, base=ordinary, keep=keep, have=[have], request="last")
            assert made.replayed >= count // 4
            c.call("request/abandon", plan=made.plan)

        return median_ms(run)


def turn(c: Client, n: int, plan: Any, array: list[dict[str, Any]]) -> str:
    """Play the rest of turn N behind PLAN; append to ARRAY; return the name of what was sent."""
    made = {"id": f"call_{n}", "type": "function"}
    made["function"] = {"name": "read", "arguments": f'{{"path":"{n}"}}'}
    said = {"role": "assistant", "content": "I look.", "tool_calls": [made]}
    result = {"role": "tool", "tool_call_id": f"call_{n}", "content": f"contents {n}"}
    answer = {"role": "assistant", "content": f"answer {n}"}
    common = {"request": f"r{n}", "array": "messages", "identity": IDENTITY}
    for message in (said, answer):
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})
        c.call("response/record", conversation=c.id, plan=plan.plan, body=body, **common)
        if message is said:
            work = [said, result]
            plan = c.call(
                "request/prepare", conversation=c.id, origin="loop", base=plan.sent,
                keep=len(array) + 1, tail=json.dumps(work),
                span=json.dumps(work), sections=SECTIONS, **common,
            )  # fmt: skip
            c.call("request/commit", plan=plan.plan)
    c.call("turn/complete", conversation=c.id, span=json.dumps([answer]), **common)
    array += [said, result, answer]
    return str(plan.sent)


def stream(size: int) -> str:
    """Return a streamed chat response of about SIZE bytes as it comes over the wire."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "bench"}
    chunk = head | {"choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}]}
    end = head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    line = f"data: {json.dumps(chunk)}\n\n"
    return line * (size // len(line)) + f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"


def responses(size: int) -> tuple[float, float]:
    """Return the medians of recording a response of SIZE bytes and of ending a turn with it."""
    body = stream(size)
    records, ends = [], []
    with client() as c:
        messages = history(100)
        common = {"array": "messages", "identity": IDENTITY, "conversation": c.id}
        for n in range(RUNS // 4):
            plan = c.prepare([*messages, {"role": "user", "content": f"u{n}"}], request=f"r{n}")
            c.call("request/commit", plan=plan.plan)
            span = json.dumps([{"role": "assistant", "content": "x" * size}])
            start = time.perf_counter()
            c.call("response/record", plan=plan.plan, body=body, request=f"r{n}", **common)
            records.append(time.perf_counter() - start)
            start = time.perf_counter()
            c.call("turn/complete", span=span, request=f"r{n}", **common)
            ends.append(time.perf_counter() - start)
    return 1000 * statistics.median(records), 1000 * statistics.median(ends)


def commits() -> float:
    """Return the median of a commit in a growing conversation."""
    with client() as c:
        plan = c.prepare(history(100))
        c.call("request/commit", plan=plan.plan)
        times, count = [], 100
        for n in range(RUNS):
            tail = [
                {"role": "assistant", "content": f"a{n}"}, {"role": "user", "content": f"u{n}"},
            ]  # fmt: skip
            plan = c.prepare(tail, base=plan.ordinary, keep=count, have=[plan.sent])
            count += 2
            start = time.perf_counter()
            c.call("request/commit", plan=plan.plan)
            times.append(time.perf_counter() - start)
        return 1000 * statistics.median(times)


def resync(size: int) -> float:
    """Return the median of a prepare of a whole payload of SIZE bytes that the log knows."""
    messages = history(size // (HISTORY + 40))
    with client() as c:
        c.call("request/commit", plan=c.prepare(messages).plan)
        return median_ms(lambda: c.prepare(messages), runs=20)


class Process:
    """A real backend over pipes."""

    def __init__(self, directory: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "retention", "--store", directory, "serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.decoder = Decoder(MAX_FRAME)

    def call(self, method: str, **params: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(encode(body.encode()))
        self.process.stdin.flush()
        while (answer := self.decoder.next_body()) is None:
            self.decoder.feed(os.read(self.process.stdout.fileno(), 1 << 16))
        return json.loads(answer)["result"]

    def end(self) -> None:
        self.call("shutdown")
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def memory(self) -> float:
        """Return the anonymous resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        return int(found.group(1)) / 1024 if found else float("nan")


def start_up() -> float:
    """Return the median time from starting the backend to its first answer."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            process = Process(directory)
            process.call("initialize", protocol=1)
            process.end()

    return median_ms(run, runs=9)


def resident(count: int) -> float:
    """Return the anonymous memory after COUNT messages were prepared and committed, in MB."""
    with tempfile.TemporaryDirectory() as directory:
        process = Process(str(Path(directory) / "store"))
        process.call("initialize", protocol=1)
        conversation = process.call("conversation/open")["id"]
        file = Path(directory) / "tail"
        file.touch(mode=0o600)
        file.write_text(json.dumps(history(count)))
        tail = {"file": str(file), "bytes": file.stat().st_size}
        plan = process.call(
            "request/prepare", conversation=conversation, request="r", origin="buffer",
            array="messages", identity=IDENTITY, tail=tail, sections=SECTIONS,
        )  # fmt: skip
        process.call("request/commit", plan=plan["plan"])
        memory = process.memory()
        process.end()
        return memory


def main() -> None:
    rows = [
        (f"prepare, delta behind {count} messages", f"{delta(count):.2f} ms", "1.5 ms")
        for count in (10, 100, 1_000, 10_000)
    ]
    rows += [
        (f"the same, all of {count} replayed", f"{replay_delta(count):.2f} ms", "1.5 ms")
        for count in (100, 10_000)
    ]
    rows.append(("prepare, whole payload of 1 MB", f"{resync(1_000_000):.1f} ms", "40 ms"))
    rows.append(("commit of one turn", f"{commits():.2f} ms", ""))
    record, end = responses(100_000)
    rows.append(("response/record of 100 KB", f"{record:.2f} ms", "10 ms"))
    rows.append(("turn/complete of 100 KB", f"{end:.2f} ms", "10 ms"))
    rows.append(("backend start to first answer", f"{start_up():.0f} ms", "300 ms"))
    rows.append(("anonymous memory, 10,000 messages", f"{resident(10_000):.0f} MB", "80 MB"))
    ours, gptel = emacs_share(1_000_000)
    rows.append(
        (
            "Emacs, our share of a dispatch at 1 MB",
            f"{1000 * ours:.2f} ms",
            f"{1000 * gptel / 10:.2f} ms",
        )
    )
    width = max(len(row[0]) for row in rows)
    print(f"{'median of':{width}}  {'measured':>10}  {'at most':>10}")
    for name, value, limit in rows:
        print(f"{name:{width}}  {value:>10}  {limit:>10}")


if __name__ == "__main__":
    main()
