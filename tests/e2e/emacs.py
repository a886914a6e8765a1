"""A real batch Emacs with real gptel, driven a form at a time."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
REPLY_TIME = 60.0  # seconds that one form may take


@cache
def load_path() -> tuple[str, ...]:
    """Return the -L arguments that bring gptel; installs it on the first call if need be."""
    script = subprocess.run(
        [ROOT / ".ci" / "emacs-deps"], stdout=subprocess.PIPE, text=True, check=True
    )
    return tuple(script.stdout.split())


class EmacsError(AssertionError):
    """A form signalled an error in Emacs."""


class Emacs:
    """One Emacs process; a context manager.  Its messages are shown when a test fails."""

    def __init__(self, home: Path) -> None:
        self.log = home / "emacs.log"
        environment = {
            "PYTHONPATH": str(ROOT),
            **os.environ,
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
        }
        self._stderr = self.log.open("ab")
        self.process = subprocess.Popen(
            [
                os.environ.get("EMACS", "emacs"), "--batch", "-Q", *load_path(),
                "-L", str(ROOT / "elisp"), "-L", str(ROOT / "tests" / "e2e"),
                "-l", "driver", "-f", "driver-loop",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            env=environment, cwd=home,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        sys.stderr.write(self.log.read_text("utf-8", "replace")[-8000:])

    def call(self, function: str, *arguments: Any, **keywords: Any) -> Any:
        """Call FUNCTION of the driver with Python values; keywords become keyword arguments."""
        words = [quote(argument) for argument in arguments]
        for name, value in keywords.items():
            words += [":" + name.replace("_", "-"), quote(value)]
        return self.eval(f"({function} {' '.join(words)})")

    def eval(self, form: str, timeout: float = REPLY_TIME) -> Any:
        """Evaluate FORM, one line of Lisp; raise EmacsError if it signals."""
        assert "\n" not in form
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(form.encode() + b"\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise EmacsError(f"no answer in {timeout} s to {form[:200]}")
        line = self.process.stdout.readline()
        if not line:
            raise EmacsError(f"Emacs ended during {form[:200]}\n{self.log.read_text()[-4000:]}")
        reply = json.loads(line)
        if "error" in reply:
            raise EmacsError(f"{reply['error']} in {form[:300]}")
        return reply["value"]

    def kill(self) -> None:
        """End it as a crash would: no hooks run."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            if stream is not None:
                stream.close()


def quote(value: Any) -> str:
    """Return the Lisp form of a Python value: strings, numbers, booleans, None, lists of these."""
    if value is None or value is False:
        return "nil"
    if value is True:
        return "t"
    if isinstance(value, Symbol):
        return f"'{value}"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return text.replace("\\u", "\\\\u")
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, Iterable):
        return "(list " + " ".join(quote(item) for item in value) + ")"
    raise TypeError(f"no Lisp form for {value!r}")


class Symbol(str):
    """A Lisp symbol."""

    __slots__ = ()


def backend_command() -> list[str]:
    """Return the command that starts the backend under test."""
    return [sys.executable, "-m", "retention"]


def start_emacs(home: Path, port: int, command: list[str] | None = None) -> Emacs:
    """Start an Emacs that talks to the provider on PORT, with its store below HOME."""
    process = Emacs(home)
    backend = [*backend_command(), "serve"] if command is None else command
    process.call("driver-setup", port, str(home / "store"), backend)
    process.call("driver-define-section", "weather", "fact", True)
    process.call("driver-define-section", "rules", "guidance", False)
    return process
