"""Chats that real gptel saves are read as Emacs has them in its buffer (evidence.md V1)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retention.evidence.chatfiles import ChatFile, read_chat
from retention.model import EventKind
from tests.e2e.chat import MODES, Chat
from tests.e2e.emacs import Emacs
from tests.loopback import Loopback

ENDINGS = {"org-mode": "org", "markdown-mode": "md", "text-mode": "txt"}
CODINGS = ("utf-8-unix", "utf-8-with-signature-dos")
SAID, SHOWN = "Both “files” 😀 say so.\n\n- a\n- b", "Not tested."
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def provider() -> Iterator[Loopback]:
    """Return a provider that sends whole events: of smaller pieces gptel loses some by itself."""
    with Loopback() as server:
        yield server


def talk(
    emacs: Emacs,
    provider: Loopback,
    home: Path,
    mode: str,
    *,
    reasoning: str = "ignore",
    stream: bool = True,
    **options: Any,
) -> tuple[Chat, Path]:
    """Have two turns, with reasoning and two calls, in a file of a new name."""
    file = home / f"saved-{next(_numbers)}.{ENDINGS[mode]}"
    chat = Chat(emacs, provider, "anthropic", mode, file=str(file), stream=stream, **options)
    chat.lisp(f"(setq-local gptel-include-reasoning '{reasoning} gptel-include-tool-results t)")
    chat.send(
        "Read them.",
        {
            "reasoning": "I need\n```\nboth\n```\nof them.",
            "text": "I read.",
            "calls": [
                {"name": "read", "args": {"path": "* a\n```\n#+end_tool\n```"}},
                {"name": "look", "args": {"path": 'é "b"'}},
            ],
        },
        {"reasoning": "I see.", "text": SAID},
    )
    chat.send("Tested?", {"reasoning": "No.", "text": SHOWN})
    return chat, file


def save(chat: Chat, form: str = "(save-buffer)") -> None:
    chat.lisp(f"(let ((inhibit-message t)) (set-buffer-modified-p t) {form})")


def read_file(file: Path) -> ChatFile:
    chat = read_chat(file.read_bytes(), file.name)
    text = chat.snapshot.text
    assert text.encode("utf-8", "surrogateescape") == file.read_bytes()
    assert "".join(text[span.start : span.end] for span in chat.snapshot.spans) == text
    return chat


def texts(chat: ChatFile, kind: EventKind) -> list[str]:
    found = [span for span in chat.snapshot.spans if span.kind is kind]
    whole = [chat.snapshot.text[span.start : span.end].strip() for span in found]
    return [text.replace("\r\n", "\n") for text in whole if text]


def responses(chat: Chat) -> list[str]:
    """Return what gptel's own text properties say the model wrote."""
    found = chat.lisp(
        "(save-excursion (goto-char (point-min)) (let (found match)"
        " (while (setq match (text-property-search-forward (quote gptel) (quote response) t))"
        " (push (buffer-substring-no-properties"
        " (prop-match-beginning match) (prop-match-end match)) found))"
        " (json-encode (vconcat (nreverse found)))))"
    )
    return [text.strip() for text in json.loads(found)]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("mode", MODES)
def test_a_saved_chat_is_read_as_gptel_has_it(
    emacs: Emacs, provider: Loopback, home: Path, mode: str, stream: bool
) -> None:
    for reasoning, coding in itertools.product(("ignore", "t"), CODINGS):
        chat, file = talk(emacs, provider, home, mode, reasoning=reasoning, stream=stream)
        chat.lisp(f"(set-buffer-file-coding-system '{coding})")
        save(chat)
        saved = read_file(file)

        assert saved.snapshot.warnings == ()
        assert saved.conversation == chat.lisp("gptel-retention-id")
        assert texts(saved, EventKind.ASSISTANT) == ["I read.", SAID, SHOWN]
        assert [len(texts(saved, kind)) for kind in (EventKind.USER, EventKind.ANALYSIS)] == [3, 3]
        shown = responses(chat)
        if reasoning == "ignore":
            assert shown == texts(saved, EventKind.ASSISTANT)
        else:
            inside = "\n".join(texts(saved, EventKind.ANALYSIS))
            assert [text for text in shown if text not in inside] == ["I read.", SAID, SHOWN]
        calls = [(s.tool, s.call) for s in saved.snapshot.spans if s.tool]
        assert calls == [
            ("read", '{"path":"* a\\n```\\n#+end_tool\\n```"}'),
            ("look", '{"path":"é \\"b\\""}'),
        ]
        dos = coding.endswith("dos")
        assert file.read_bytes().startswith(b"\xef\xbb\xbf") == dos
        assert (b"\r\n" in file.read_bytes()) == dos


@pytest.mark.parametrize("mode", MODES)
def test_a_chat_of_gptel_alone_is_read_too(
    emacs: Emacs, provider: Loopback, home: Path, mode: str
) -> None:
    chat, file = talk(emacs, provider, home, mode, plain=True, stream=False)
    save(chat)
    saved = read_file(file)

    assert saved.snapshot.warnings == ()
    assert (saved.is_chat, saved.conversation) == (True, "")
    assert texts(saved, EventKind.ASSISTANT) == ["I read.", SAID, SHOWN]


def test_bounds_that_emacs_printed_in_part_are_missing(
    emacs: Emacs, provider: Loopback, home: Path
) -> None:
    chat, file = talk(emacs, provider, home, "markdown-mode")
    save(chat, "(let ((print-length 3)) (save-buffer))")
    saved = read_file(file)

    assert b"..." in file.read_bytes()
    assert "missing" in saved.snapshot.warnings[0]
    assert texts(saved, EventKind.ASSISTANT) == ["I read.", SAID]


def test_several_blocks_of_variables_count_as_one(
    emacs: Emacs, provider: Loopback, home: Path
) -> None:
    """Emacs finds the first no more once it is longer than 3,000 characters."""
    chat, file = talk(emacs, provider, home, "markdown-mode")
    chat.lisp("(setq-local gptel-system-prompt (make-string 3100 ?x))")
    save(chat)
    chat.send("More?", {"text": "No more."})
    save(chat)
    saved = read_file(file)

    assert file.read_text("utf-8").count("Local Variables:") > 1
    assert saved.conversation == chat.lisp("gptel-retention-id")
    assert texts(saved, EventKind.ASSISTANT)[-1] == "No more."
    assert saved.snapshot.warnings == ()


@pytest.mark.parametrize("mode", MODES)
def test_a_chat_that_was_edited_without_gptel_leaves_no_false_facts(
    emacs: Emacs, provider: Loopback, home: Path, mode: str
) -> None:
    chat, file = talk(emacs, provider, home, mode)
    save(chat)
    text = file.read_text("utf-8")
    file.write_text(text.replace("Read them.", "Read them both.", 1), "utf-8")
    saved = read_file(file)

    assert "do not fit" in saved.snapshot.warnings[0]
    assert texts(saved, EventKind.ASSISTANT) == []
    assert [span.tool for span in saved.snapshot.spans if span.tool] == ["read", "look"]
