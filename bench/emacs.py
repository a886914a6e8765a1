"""Our share of a dispatch in Emacs, beside what gptel itself spends in the same run."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tests.e2e.chat import Chat, observe
from tests.e2e.emacs import start_emacs
from tests.loopback import Loopback

RUNS = 9


def emacs_share(size: int) -> tuple[float, float]:
    """Return (our median, gptel's median) seconds per dispatch with a payload of SIZE bytes.

    Ours is from the entry of the advice to its return, without gptel's dispatcher inside it;
    gptel's from `gptel-send` to the hand-over to curl, without ours.
    """
    with (
        tempfile.TemporaryDirectory(prefix="gptel-retention-bench-") as home,
        Loopback() as server,
        start_emacs(Path(home), server.port) as emacs,
    ):
        emacs.call("load", str(Path(__file__).parent / "share.el"))
        observe(emacs, "weather", "sunny")
        observe(emacs, "rules", "be brief")
        chat = Chat(emacs, server, "openai", "text-mode", sections=("weather", "rules"))
        chat.send("start")
        emacs.eval(f'(driver-type "{chat.name}" (make-string {size} ?x))')
        chat.send("first contact")
        chat.send("once more")
        samples = []
        for _ in range(RUNS):
            emacs.eval("(bench-share-reset)")
            chat.send("again")
            whole, advice, dispatch = (float(x) for x in emacs.eval("(bench-share)"))
            ours = advice - dispatch
            samples.append((ours, whole - ours))
    return (
        statistics.median(ours for ours, _ in samples),
        statistics.median(gptel for _, gptel in samples),
    )
