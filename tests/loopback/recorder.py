"""Keeps every request, in memory and, if asked, as files.

`NNNN.json` is the body as it came, `NNNN.meta.json` what became of it.  The meta file is written
last, so whoever waits for it finds both.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.loopback.model import Recorded


class Recorder:
    """Not thread-safe: the server holds its lock."""

    def __init__(self, directory: Path | None = None) -> None:
        self.requests: list[Recorded] = []
        self._directory = directory
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def add(self, recorded: Recorded) -> None:
        """Keep RECORDED."""
        self.requests.append(recorded)
        if self._directory is None:
            return
        stem = self._directory / f"{recorded.seq:04}"
        meta = {name: value for name, value in recorded.meta.items() if name != "seq"}
        stem.with_suffix(".json").write_bytes(recorded.body)
        stem.with_suffix(".meta.json").write_text(json.dumps(meta), encoding="utf-8")

    def clear(self) -> None:
        """Forget everything; the files of a directory too, since numbers start again."""
        self.requests.clear()
        if self._directory is not None:
            for path in self._directory.glob("[0-9][0-9][0-9][0-9].*json"):
                path.unlink()
