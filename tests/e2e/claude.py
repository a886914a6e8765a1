"""The real Claude Code, in a home of its own, against the provider on the loopback interface.

The client comes from npm, once for a machine, into .npm-deps.  Without npm the tests are skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from retention import receipts
from retention.hooks import CLIENT
from retention.model import Offer
from retention.store import Store
from tests.loopback import Loopback

VERSION = "2.1.332"  # the one that docs/engines.md describes
CACHE = Path(__file__).absolute().parent.parent.parent / ".npm-deps" / f"claude-code-{VERSION}"
INSTALL_TIME = 600.0  # seconds; the client has 400 MB
RUN_TIME = 60.0  # seconds for a prompt with its tool calls
SETTINGS = Path(".claude", "settings.local.json")
CONTEXT = "hook additional context: "  # what the client puts in front of a hook's text


def find_client() -> Path:
    """Return the client's program, installed if need be; skip the test where that cannot be."""
    if not (found := _programs()) and shutil.which("npm") is None:
        pytest.skip("npm is not installed, which brings Claude Code")
    return found[0] if found else _install()


def _programs() -> list[Path]:
    # The program itself: the package's script wants a newer node than the program does.
    return list(CACHE.glob("node_modules/@anthropic-ai/claude-code-*/claude"))


def _install() -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _programs():
            package = f"@anthropic-ai/claude-code@{VERSION}"
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), package],
                capture_output=True, text=True, check=False, timeout=INSTALL_TIME,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"npm cannot bring {package}: {done.stderr.strip()[-300:]}")
    return _programs()[0]


@dataclass
class Claude:
    """The client in PROJECT; what it sends is in `provider.requests`."""

    program: Path
    root: Path
    provider: Loopback
    project: Path = field(init=False)
    store: Path = field(init=False)

    def __post_init__(self) -> None:
        self.project, self.store = self.root / "project", self.root / "store"
        for directory in (self.root / "home", self.project / ".claude"):
            directory.mkdir(parents=True)

    def hook(self, action: str, *arguments: str) -> None:
        """Run `retention hook ACTION` in the project."""
        command = [sys.executable, "-m", "retention", "hook", action, "--project"]
        store = ("--store", str(self.store)) if action == "install" else ()
        subprocess.run([*command, str(self.project), *store, *arguments], check=True)

    def tell(self, toml: str) -> None:
        """Have the file of sections say TOML."""
        (self.project / ".claude" / "retention.toml").write_text(toml)

    def ask(self, prompt: str, session: str, *options: str) -> list[dict[str, Any]]:
        """Send PROMPT in SESSION, a new one or one that goes on; return the requests that it makes.

        Raise AssertionError if a request is refused.
        """
        before = len(self.provider.requests)
        known = ("--resume", session) if self.transcript(session).exists() else None
        done = subprocess.run(
            [str(self.program), "-p", "--output-format", "json", prompt,
             *(known or ("--session-id", session)), *options],
            cwd=self.project, env=self._environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=RUN_TIME,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        sent = self.provider.requests[before:]
        assert [request.status for request in sent] == [200] * len(sent)
        return [request.json for request in sent]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "ANTHROPIC_BASE_URL": self.provider.url,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def transcript(self, session: str) -> Path:
        """Return the client's own record of SESSION."""
        found = list((self.root / "home").glob(f".claude/projects/*/{session}.jsonl"))
        return found[0] if found else self.root / "none"

    def entries(self, session: str) -> list[dict[str, Any]]:
        """Return the entries of the client's record of SESSION."""
        return [json.loads(line) for line in self.transcript(session).read_text().splitlines()]

    def offers(self, session: str) -> list[Offer]:
        """Return what SESSION was offered."""
        store = Store.open(self.store)
        try:
            with store.read() as reader:
                return list(reader.offers(receipts.name_conversation(CLIENT, session)))
        finally:
            store.close()


def texts(request: dict[str, Any]) -> list[str]:
    """Return every text of the messages of REQUEST, in order."""
    found: list[str] = []
    for message in request["messages"]:
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content
        found += [block["text"] for block in blocks if "text" in block]
    return found


def told(request: dict[str, Any], *words: str) -> dict[str, int]:
    """Return how often the messages of REQUEST have each of WORDS."""
    whole = "\n".join(texts(request))
    return {word: whole.count(word) for word in words}
