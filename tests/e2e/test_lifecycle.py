"""Restarts, two processes and a failing backend, in real Emacs with real gptel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.chat import APIS, MODES, Chat, array, blocks, is_prefix, observe, two_calls
from tests.e2e.emacs import Emacs, start_emacs
from tests.loopback import Loopback

SECTIONS = ("weather", "rules")
ENDINGS = {"org-mode": "org", "markdown-mode": "md", "text-mode": "txt"}


def started(home: Path, provider: Loopback, command: list[str] | None = None) -> Emacs:
    process = start_emacs(home, provider.port, command)
    observe(process, "weather", "sunny")
    observe(process, "rules", "be brief")
    return process


def reopen(emacs: Emacs, provider: Loopback, api: str, mode: str, file: Path) -> Chat:
    """Open FILE as a user does who comes back."""
    return Chat(emacs, provider, api, mode, file=str(file), sections=SECTIONS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("api", APIS)
def test_a_saved_chat_goes_on_after_emacs_was_killed(
    tmp_path: Path, provider: Loopback, api: str, mode: str
) -> None:
    """Scenario 7, rules L3, I1: save, kill Emacs and the backend, reopen: the whole prefix."""
    file = tmp_path / f"chat.{ENDINGS[mode]}"
    with started(tmp_path, provider) as emacs:
        chat = reopen(emacs, provider, api, mode, file)
        chat.send("one", two_calls("a", "b"), {"text": "done"})
        before = chat.send("two")
        chat.lisp("(let ((inhibit-message t)) (save-buffer))")

    with started(tmp_path, provider) as emacs:
        chat = reopen(emacs, provider, api, mode, file)
        after = chat.send("three")

    assert [request.refusal for request in before + after] == [None, None]
    assert is_prefix(before[0], after[0])
    assert blocks(after[0]) == ["Weather", "Rules"]


def test_a_moved_store_leads_to_full_redelivery(tmp_path: Path, provider: Loopback) -> None:
    """Scenario 7: with the store gone everything is delivered again, and nothing else changes."""
    file = tmp_path / "chat.org"
    with started(tmp_path, provider) as emacs:
        chat = reopen(emacs, provider, "openai", "org-mode", file)
        chat.send("one")
        chat.lisp("(let ((inhibit-message t)) (save-buffer))")
    (tmp_path / "store").rename(tmp_path / "moved")

    with started(tmp_path, provider) as emacs:
        after = reopen(emacs, provider, "openai", "org-mode", file).send("two")

    assert blocks(after[0]) == ["Weather", "Rules"]
    assert "system-reminder" in str(array(after[0])[-1])


def test_two_emacs_processes_share_one_store(tmp_path: Path, provider: Loopback) -> None:
    """Scenario 11, rule L4: each has its own conversation in the same store."""
    with started(tmp_path, provider) as left, started(tmp_path, provider) as right:
        chats = [Chat(e, provider, "openai", sections=SECTIONS) for e in (left, right)]
        requests = [chat.send(f"turn {n}")[-1] for n in range(3) for chat in chats]

    assert [blocks(request) for request in requests] == [["Weather", "Rules"]] * 6
    assert is_prefix(requests[2], requests[4])
    assert is_prefix(requests[3], requests[5])


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["/nonexistent/retention"], id="missing"),
        pytest.param([sys.executable, "-c", "import time; time.sleep(60)"], id="hanging"),
        pytest.param(["sh", "-c", "echo garbage; cat >/dev/null"], id="garbage"),
        pytest.param(["false"], id="dying"),
    ],
)
def test_a_request_goes_out_unchanged_when_the_backend_fails(
    tmp_path: Path, provider: Loopback, command: list[str]
) -> None:
    """Scenario 12, rule Z1: gptel's request goes out as gptel made it, within the time-out."""
    with started(tmp_path, provider, command) as emacs:
        emacs.eval("(setq gptel-retention-start-timeout 0.5)")
        chat = Chat(emacs, provider, "openai", "text-mode", sections=SECTIONS)
        plain = Chat(emacs, provider, "openai", "text-mode", plain=True)

        sent = chat.send("hello")
        other = plain.send("hello")

    assert [request.refusal for request in sent] == [None]
    assert [element["role"] for element in array(sent[0])] == [
        element["role"] for element in array(other[0])
    ]
    assert blocks(sent[0]) == []


def test_a_backend_killed_between_requests_is_started_again(
    tmp_path: Path, provider: Loopback
) -> None:
    """Scenario 7, rule L3: SIGKILL of the backend in the middle of a conversation."""
    with started(tmp_path, provider) as emacs:
        chat = Chat(emacs, provider, "anthropic", "org-mode", sections=SECTIONS)
        first = chat.send("one")
        emacs.eval(
            '(dolist (p (process-list)) (when (string-match-p "retention-[0-9]+\\\\\'"'
            " (process-name p)) (signal-process p 'SIGKILL)))"
        )
        emacs.call("driver-settle")
        emacs.eval("(gptel-retention-rpc-retry)")
        second = chat.send("two")

    assert blocks(second[-1]) == ["Weather", "Rules"]
    assert is_prefix(first[-1], second[-1])


DYING = """
import os, sys
from retention.service import Service
call = Service.call
def dying(self, method, params):
    if method == "request/prepare":
        os._exit(1)
    return call(self, method, params)
Service.call = dying
from retention.cli import main
sys.exit(main())
"""


def test_a_backend_that_dies_in_a_request_lets_it_go_out(
    tmp_path: Path, provider: Loopback
) -> None:
    """Scenario 12, rule Z1: it had accepted the conversation and dies while it plans."""
    with started(tmp_path, provider, [sys.executable, "-c", DYING, "serve"]) as emacs:
        chat = Chat(emacs, provider, "openai", "text-mode", sections=SECTIONS)

        sent = chat.send("hello", two_calls("a", "b"), {"text": "done"})

    assert [request.refusal for request in sent] == [None, None]
    assert [blocks(request) for request in sent] == [[], []]
