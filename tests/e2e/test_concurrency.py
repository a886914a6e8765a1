"""Several chats at once, in tool loops: with a slow backend, and with one that does not read."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.chat import Chat, blocks, is_prefix, observe, two_calls
from tests.e2e.emacs import Emacs, start_emacs
from tests.loopback import Loopback

CHATS = 5
SLOW = """
import sys, time
from retention.service import Service
call = Service.call
def slow(self, method, params):
    time.sleep(0.1 if method == "request/prepare" else 0)
    return call(self, method, params)
Service.call = slow
from retention.cli import main
sys.exit(main())
"""  # seconds of delay: what a loaded machine takes, far below the time-out


def together(emacs: Emacs, chats: list[Chat], turn: int) -> None:
    """Send from all CHATS at once and wait until every request has finished."""
    for chat in chats:
        prompt = chat.prompt(f"turn {turn}")
        chat.answer(prompt, [two_calls("a", "b"), two_calls("c", "d"), {"text": "done"}])
        emacs.call("driver-start", chat.name, prompt)
    names = " ".join(json.dumps(chat.name) for chat in chats)
    assert emacs.eval(f"(driver-await {names})") == ["DONE 200"] * len(chats)


@pytest.mark.parametrize("run", range(20))
def test_five_chats_in_overlapping_tool_loops_all_finish(
    tmp_path: Path, provider: Loopback, run: int
) -> None:
    """Rule P1: no wait of ours keeps another chat's request from finishing."""
    command = [sys.executable, "-c", SLOW, "serve"]
    api = ("anthropic", "openai", "responses", "ollama")[run % 4]
    with start_emacs(tmp_path, provider.port, command) as emacs:
        observe(emacs, "weather", f"run {run}")
        chats = [Chat(emacs, provider, api, sections=["weather"]) for _ in range(CHATS)]
        before = len(provider.requests)
        together(emacs, chats, 1)

    requests = provider.requests[before:]
    assert len(requests) == 3 * CHATS
    assert [request.refusal for request in requests] == [None] * len(requests)
    assert all(blocks(request) == ["Weather"] for request in requests)


def test_a_backend_that_stops_reading_costs_one_time_out(
    tmp_path: Path, provider: Loopback
) -> None:
    """Rule P2: Emacs waits at most the time-out once, and every request goes out."""
    with start_emacs(tmp_path, provider.port) as emacs:
        observe(emacs, "weather", "sunny")
        chats = [Chat(emacs, provider, "openai", sections=["weather"]) for _ in range(4)]
        first = [chat.send("one")[-1] for chat in chats]
        emacs.eval(
            '(dolist (p (process-list)) (when (string-match-p "retention-[0-9]+\\\\\'"'
            " (process-name p)) (signal-process p 'SIGSTOP)))"
        )

        start = time.monotonic()
        second = [chat.send("two")[-1] for chat in chats]
        spent = time.monotonic() - start

    assert [request.refusal for request in second] == [None] * 4
    assert spent < 1.0 + 2.0  # the time-out once, and four requests of plain gptel
    assert not any(is_prefix(a, b) for a, b in zip(first, second, strict=True))
