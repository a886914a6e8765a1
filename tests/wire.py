"""Both ends of the wire for tests: a server loop in a thread, and a backend process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from retention import framing, server

DEADLINE = 20.0  # seconds; a slow machine needs two for what takes a tenth of one
LIMIT = 1 << 30  # bytes of a frame that the tests' own reader takes


class EchoService:
    """Answers with the method and the parameters it got; `answers` replaces that per method."""

    def __init__(self, **answers: Callable[[dict[str, Any]], object]) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers

    def call(self, method: str, params: bytes) -> object:
        decoded = msgspec.json.decode(params)
        self.calls.append((method, decoded))
        answer = self._answers.get(method.replace("/", "_"))
        return answer(decoded) if answer else {"method": method, "params": decoded}


class Peer:
    """The client's end of two pipes: raw bytes and messages, each with a deadline."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads = reads
        self.writes = writes
        self._decoder = framing.Decoder(LIMIT)
        self._next_id = 0

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.writes, rest) :]

    def send_body(self, body: bytes) -> None:
        self.send(framing.encode(body))

    def request(self, method: str, params: object = None, **members: object) -> dict[str, Any]:
        """Send a request and return the whole answer to it."""
        self._next_id += 1
        message = {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params}
        self.send_body(msgspec.json.encode(message | members))
        answer = self.receive()
        assert answer is not None, f"the stream ended instead of an answer to {method}"
        return answer

    def result(self, method: str, params: object = None) -> Any:
        answer = self.request(method, params)
        assert "result" in answer, answer
        return answer["result"]

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None at the end of the stream."""
        body = self.receive_body()
        return None if body is None else msgspec.json.decode(body)

    def receive_body(self) -> bytes | None:
        while True:
            body = self._decoder.next_body()
            if body is not None:
                return body
            chunk = self._read()
            if not chunk:
                self._decoder.end()
                return None
            self._decoder.feed(chunk)

    def hang_up(self) -> None:
        """Close the sending side: the server sees the end of its input."""
        if self.writes >= 0:
            os.close(self.writes)
            self.writes = -1

    def _read(self) -> bytes:
        if not select.select([self.reads], [], [], DEADLINE)[0]:
            raise TimeoutError(f"nothing to read within {DEADLINE} s")
        return os.read(self.reads, 1 << 16)


class RpcPair:
    """`server.serve` in a thread over two pipes, and the peer that talks to it."""

    def __init__(self, service: server.Service, *, debug: bool = False) -> None:
        self._stdin, writes = os.pipe()
        reads, self._stdout = os.pipe()
        wake, self._waker = os.pipe()
        self._wake = wake
        self.peer = Peer(reads, writes)
        self.status: int | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(service, debug), daemon=True)
        self._thread.start()

    def _run(self, service: server.Service, debug: bool) -> None:
        try:
            self.status = server.serve(
                self._stdin, self._stdout, service, wake=self._wake, clock=lambda: 0.0, debug=debug
            )
        except BaseException as error:
            self.failure = error
            raise
        finally:
            os.close(self._stdout)

    def wake(self) -> None:
        os.write(self._waker, b"!")

    def join(self) -> int:
        """Return the status with which the loop ended."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the loop did not end"
        assert self.failure is None, self.failure
        assert self.status is not None
        return self.status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.hang_up()
        if self._thread.is_alive():
            self.wake()
        self._thread.join(DEADLINE)
        for descriptor in (self._stdin, self.peer.reads, self._wake, self._waker):
            os.close(descriptor)


class Backend:
    """A real process over pipes; its standard error is in `stderr` once it ended."""

    def __init__(self, *arguments: str, code: str = "", **environment: str) -> None:
        command = ["-c", code] if code else ["-m", "retention", *arguments]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
            env=os.environ | environment,
        )
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        # The process object closes its own pipes; the peer gets copies.
        self.peer = Peer(os.dup(stdout.fileno()), os.dup(stdin.fileno()))
        stdin.close()
        self.stderr = ""

    def wait(self) -> int:
        """Return the exit status once the process ended by itself."""
        assert self.process.stderr is not None
        self.stderr = self.process.stderr.read().decode(errors="replace")
        return self.process.wait(DEADLINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.hang_up()
        os.close(self.peer.reads)
        self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
