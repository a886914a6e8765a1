"""One hook event of Claude Code in, the answer to it out.

Whatever goes wrong, the client goes on as it would without us: no output, and one line on standard
error.  What was offered and not recorded by the session is due again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from retention import receipts
from retention.errors import RetentionError
from retention.hooks import CLIENT
from retention.hooks.observing import FILE, observe, read_sources
from retention.hooks.transcript import read_echoes
from retention.model import Reason
from retention.receipts import Boundary
from retention.store import Store

LIMIT = 10_000  # UTF-16 code units of one text; the client makes a preview of a longer one
TIME = 8.0  # seconds for an answer; the client waits a little longer
COMPACTED = "SessionStart/compact"

# The events that we ask for, and where a text in the answer goes: nowhere, for most.  The client
# puts texts behind a prompt, behind all results of a round, or behind the summary.
BOUNDARIES = {
    "UserPromptSubmit": "prompt",
    "PostToolBatch": "results",
    COMPACTED: "compacted",
}
EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolBatch", "PreCompact", "Stop")

WAITS = {
    "oversized": "{} characters; the client shortens more, so it waits (see `limit`)",
    "no_room": "{} characters; it goes with the next request",
}


class Event(msgspec.Struct):
    """What the client tells of an event, as far as it matters here."""

    session_id: str
    hook_event_name: str
    transcript_path: str = ""
    cwd: str = "."
    source: str = ""
    agent_id: str = ""  # set inside a sub-agent, which has a history of its own

    @property
    def boundary(self) -> str:
        """Where a text goes, as in receipts; "" for nowhere."""
        name = self.hook_event_name
        return BOUNDARIES.get(f"{name}/{self.source}" if self.source else name, "")


def respond(
    data: bytes, open_store: Callable[[], Store], *, project: str = "", sections: str = ""
) -> tuple[str, str]:
    """Return the answer to the event DATA as JSON text, or "", and a line about what went wrong.

    PROJECT is the project's directory, by default that of the event; SECTIONS is the file of
    sections, by default FILE below it.  Never raises, and takes no longer than TIME.
    """
    answers: list[tuple[str, str]] = []

    def work() -> None:
        try:
            event = msgspec.json.decode(data, type=Event)
            store = open_store()
            try:
                answers.append((answer(event, store, project, sections), ""))
            finally:
                store.close()
        except (RetentionError, msgspec.MsgspecError, OSError) as error:
            answers.append(("", f"retention: {error}"))
        except Exception as error:  # noqa: BLE001 - the client must not be held up
            answers.append(("", f"retention: {type(error).__name__}"))  # it may quote (rule Z5)

    # A thread, since a wait for the store's lock cannot be interrupted.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIME)
    return answers[0] if answers else ("", f"retention: no answer within {TIME:.0f} seconds")


def answer(event: Event, store: Store, project: str = "", sections: str = "") -> str:
    """Return the answer to EVENT as JSON text, "" for none; what it recorded is acknowledged."""
    if event.agent_id:
        return ""
    root = Path(project or event.cwd)
    now = time.time()
    id = receipts.name_conversation(CLIENT, event.session_id)
    receipts.open_conversation(store, id, f"Claude Code: {root}", now)
    _acknowledge(event, store, id)
    if not event.boundary:
        return ""
    observed = observe(read_sources(root / (sections or FILE)), root)
    boundary = Boundary(kind=event.boundary, limit=LIMIT, wrapped=True)
    offered = receipts.offer(store, id, observed, boundary, now)
    said: dict[str, Any] = {}
    if offered.text:
        said["hookSpecificOutput"] = {
            "hookEventName": event.hook_event_name,
            "additionalContext": offered.text,
        }
    if offered.news and offered.waiting:
        said["systemMessage"] = "\n".join(map(_notice, offered.waiting))
    return msgspec.json.encode(said).decode() if said else ""


def _acknowledge(event: Event, store: Store, id: str) -> None:
    """Acknowledge what the session recorded, and note what it has lost (rules X1, A4)."""
    with store.read() as reader:
        offers = list(reader.offers(id))
    if not offers:
        return
    echoes = read_echoes(Path(event.transcript_path), event.session_id)
    for echo in echoes:
        found = receipts.find_offer(offers, echo.text, echo.at)
        if found and not receipts.acknowledge(store, id, found.id, echo.text, echo=echo.id):
            offers.remove(found)
    receipts.lose(store, id, {echo.id for echo in echoes if echo.live})


def _notice(reason: Reason) -> str:
    name, _, size = reason.detail.rpartition(": ")
    return f"gptel-retention: {name} has " + WAITS[reason.code].format(size)
