"""The backend as Emacs runs it: a real process over pipes on a real store."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from retention.framing import encode
from tests.wire import DEADLINE, Backend

INITIALIZE = {"protocol": 1, "client": "test"}
IDENTITY = {"api": "anthropic", "model": "claude-sonnet-4-5"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def serve(store: Path) -> Backend:
    return Backend("serve", "--store", str(store))


def prepare(conversation: str, prompt: str, **changes: object) -> dict[str, Any]:
    tail = json.dumps([{"role": "user", "content": prompt}])
    sections = [{"name": "environment", "title": "Environment", "body": "~/notes"}]
    return {
        "conversation": conversation, "request": "r1", "origin": "buffer", "array": "messages",
        "identity": IDENTITY, "tail": tail, "sections": sections,
    } | changes  # fmt: skip


def test_initialize_open_shutdown(store: Path) -> None:
    with serve(store) as backend:
        peer = backend.peer
        assert peer.result("initialize", INITIALIZE)["store"] == str(store)
        opened = peer.result("conversation/open", {"title": "x"})
        assert opened["created"]
        assert peer.result("shutdown") == {}
        assert peer.receive() is None
        assert backend.wait() == 0
        assert backend.stderr == ""


def test_z2_store_is_private(store: Path) -> None:
    with serve(store) as backend:
        backend.peer.result("initialize", INITIALIZE)
        backend.peer.result("conversation/open", {"title": "x"})
    modes = {path.stat().st_mode & 0o777 for path in store.rglob("*") if path.is_file()}
    assert store.stat().st_mode & 0o777 == 0o700
    assert modes == {0o600}


def test_a_request_is_prepared_committed_and_found_after_a_restart(store: Path) -> None:
    """L3: a restarted backend knows what was sent, and repeats no section that is there."""
    with serve(store) as backend:
        peer = backend.peer
        peer.result("initialize", INITIALIZE)
        conversation = peer.result("conversation/open", {"title": "x"})["id"]
        plan = peer.result("request/prepare", prepare(conversation, "hello"))
        assert [section["name"] for section in plan["sections"]] == ["environment"]
        assert peer.result("request/commit", {"plan": plan["plan"]}) == {"seq": 1}
        backend.process.kill()
        assert backend.wait() == -signal.SIGKILL

    with serve(store) as backend:
        peer = backend.peer
        peer.result("initialize", INITIALIZE)
        again = peer.result("request/prepare", prepare(conversation, "hello"))
        assert again.get("sections", []) == []
        assert again["restored"] == 1
        lost = peer.request("request/commit", {"plan": plan["plan"]})
        assert lost["error"]["data"] == {"code": "unknown_plan"}
        old = peer.request(
            "request/prepare", prepare(conversation, "x", base=plan["ordinary"], keep=1)
        )
        assert old["error"]["data"] == {"code": "resync"}
        assert peer.result("inspect/check")["problems"] == []


def test_methods_before_initialize_and_unknown_ones_are_refused(store: Path) -> None:
    with serve(store) as backend:
        early = backend.peer.request("conversation/open", {})
        assert early["error"]["data"] == {"code": "not_initialized"}
        unknown = backend.peer.request("conversation/paint", {})
        assert unknown["error"]["code"] == -32601
        backend.peer.result("initialize", INITIALIZE)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, encode(b"x" * (1 << 16) + b"y")]
)
def test_garbage_and_oversized_frames_are_answered_once_and_end_the_process(
    store: Path, garbage: bytes
) -> None:
    with serve(store) as backend:
        backend.peer.result("initialize", INITIALIZE)
        backend.peer.send(garbage[:60_000])
        answer = backend.peer.receive()
        assert answer is not None
        assert answer["error"]["data"] == {"code": "framing"}
        assert backend.peer.receive() is None
        assert backend.wait() == 2
        assert "Traceback" not in backend.stderr


def test_half_a_frame_and_then_the_end_is_a_clean_end(store: Path) -> None:
    with serve(store) as backend:
        backend.peer.result("initialize", INITIALIZE)
        backend.peer.send(b'Content-Length: 100\r\n\r\n{"jsonrpc":')
        backend.peer.hang_up()
        assert backend.peer.receive() is None
        assert backend.wait() == 0
        assert "Traceback" not in backend.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_the_process_cleanly(store: Path, number: signal.Signals) -> None:
    with serve(store) as backend:
        backend.peer.result("initialize", INITIALIZE)
        backend.process.send_signal(number)
        assert backend.peer.receive() is None
        assert (backend.wait(), backend.stderr) == (0, "")


def test_l4_two_backends_share_one_store(store: Path) -> None:
    """L4: what one commits, the other reads; neither loses a write."""
    with serve(store) as first, serve(store) as second:
        one, two = first.peer, second.peer
        for peer in (one, two):
            peer.result("initialize", INITIALIZE)
        conversation = one.result("conversation/open", {"title": "x"})["id"]
        assert two.result("conversation/open", {"id": conversation}).get("created", False) is False

        for number in range(1, 7):
            peer = (one, two)[number % 2]
            prompt = prepare(conversation, f"prompt {number}")
            plan = peer.result("request/prepare", prompt)["plan"]
            assert peer.result("request/commit", {"plan": plan}) == {"seq": number}

        requests = one.result("inspect/requests", {"id": conversation})["requests"]
        assert [request["request"] for request in requests] == [6, 5, 4, 3, 2, 1]
        assert two.result("inspect/requests", {"id": conversation})["requests"] == requests
        assert one.result("inspect/check")["problems"] == []


STRAY = """
import os, subprocess, sys
from retention import server
class Service:
    def call(self, method, params):
        print("print")
        sys.__stdout__.write("original object"); sys.__stdout__.flush()
        os.write(1, b"descriptor")
        subprocess.run(["echo", "child"], check=True)
        assert sys.stdin.read() == ""
        return {"ok": True}
sys.exit(server.run(Service))
"""


def test_p4_stray_output_does_not_reach_the_client() -> None:
    """P4: neither Python, C nor a child can write into the stream, or read from it."""
    with Backend(code=STRAY) as backend:
        assert backend.peer.result("inspect/check") == {"ok": True}
        assert backend.peer.result("shutdown") == {"ok": True}
        assert backend.peer.receive() is None
        assert backend.wait() == 0
        for stray in ("print", "original object", "descriptor", "child"):
            assert backend.stderr.count(stray) == 2


def test_closed_standard_error_does_not_give_its_descriptor_to_the_store(store: Path) -> None:
    """A file opened as descriptor 2 would receive every later log line."""
    command = f'exec "{sys.executable}" -m retention serve --store "{store}" 2>&-'
    frames = b"".join(
        encode(json.dumps({"jsonrpc": "2.0", "id": 1, "method": name, "params": params}).encode())
        for name, params in [
            ("initialize", INITIALIZE | {"handover": "/no/such/directory"}),
            ("conversation/open", {"title": "x"}),
            ("inspect/check", {}),
        ]
    )
    done = subprocess.run(
        ["sh", "-c", command], input=frames, capture_output=True, timeout=DEADLINE, check=True
    )
    assert b'"problems":[]' in done.stdout


def test_a_store_that_cannot_be_opened_is_told_to_the_client(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with serve(blocked) as backend:
        answer = backend.peer.request("initialize", INITIALIZE)
        assert answer["error"]["code"] == -32000
        assert answer["error"]["data"]["code"].startswith("store")
        backend.peer.hang_up()
        assert backend.wait() == 3
        assert "Traceback" not in backend.stderr


def test_store_may_be_named_by_the_environment(tmp_path: Path) -> None:
    with Backend("serve", XDG_DATA_HOME=str(tmp_path)) as backend:
        found = backend.peer.result("initialize", INITIALIZE)
    assert found["store"] == str(tmp_path / "gptel-retention")


def test_first_answer_comes_within_300_ms(store: Path) -> None:
    """The best of five starts, so that a busy machine does not fail the test."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        with serve(store) as backend:
            backend.peer.result("initialize", INITIALIZE)
            times.append(time.perf_counter() - began)
    assert min(times) < 0.3, times
