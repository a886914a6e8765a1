"""What was learned, searched and resumed from real Emacs with real gptel and the real backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chat import CORNERS, Chat, accepted, array, blocks, strings
from tests.e2e.emacs import Emacs, start_emacs
from tests.loopback import Loopback

pytestmark = pytest.mark.e2e

ENDINGS = {"org-mode": "org", "markdown-mode": "md", "text-mode": "txt"}
# Search, wait for the answer, and return the buffer's text; until it has a word.
SEARCH = """
(save-window-excursion
 (let ((deadline (+ (float-time) 30)) text)
  (while (null text)
   (gptel-retention-search %s)
   (with-current-buffer "*gptel-retention-search*"
    (while (string-suffix-p "searching" header-line-format)
     (when (> (float-time) deadline) (error "No answer"))
     (accept-process-output nil 0.02))
    (if (or (string-match-p %s (buffer-string)) (> (float-time) deadline))
        (setq text (concat header-line-format "\\n" (buffer-string)))
     (sleep-for 0.1))))
  (substring-no-properties text)))
""".replace("\n", " ")


def word(animal: str, chat: Chat) -> str:
    """Return a word that no other chat says, of letters alone."""
    return animal + "".join("abcdefghij"[int(digit)] for digit in str(chat.number))


def talk(chat: Chat, mark: str) -> None:
    """Have two turns, one with a tool; MARK is a word of this test alone."""
    chat.send(
        f"Where is the {mark}?",
        {"text": "I look.", "calls": [{"name": "look", "args": {"path": f"{mark}.txt"}}]},
        {"text": f"The {mark} sleeps\nunder the old bridge."},
    )
    chat.send("Thanks.", {"text": "Any time."})


def search(emacs: Emacs, query: str) -> str:
    """Search as a user does, and return what the buffer says."""
    return str(emacs.eval(SEARCH % (json.dumps(query), '""')))


def until_found(emacs: Emacs, query: str) -> str:
    """Search until the background has learned it."""
    return str(emacs.eval(SEARCH % (json.dumps(query), json.dumps(query))))


def visit(emacs: Emacs) -> tuple[str, str]:
    """Go to the first place; return the buffer's name and its line."""
    name, line = emacs.eval(
        '(save-window-excursion (pop-to-buffer "*gptel-retention-search*")'
        " (goto-char (point-min)) (gptel-retention-search-next 1)"
        " (gptel-retention-search-visit) (accept-process-output nil 0.2)"
        " (list (buffer-name (window-buffer)) (with-current-buffer (window-buffer)"
        " (buffer-substring-no-properties (line-beginning-position) (line-end-position)))))"
    )
    return name, line


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_live_chat_is_learned_by_itself_and_its_place_found(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """V1, V5: at the end of a turn, in the background; RET goes to the buffer."""
    chat = Chat(emacs, provider, api, mode, stream=stream)
    mark = word("axolotl", chat)
    talk(chat, mark)
    text = until_found(emacs, mark)
    name, line = visit(emacs)

    assert "under the old bridge" in text
    assert name == chat.name
    assert mark in line or "under the old bridge" in line


@pytest.mark.parametrize("mode", ENDINGS)
def test_a_chat_of_plain_gptel_is_learned_searched_and_resumed(
    emacs: Emacs, provider: Loopback, home: Path, mode: str
) -> None:
    """V1, V5, L1: from the file alone; the new chat's first request has what the tool found."""
    old = Chat(emacs, provider, "openai", mode, plain=True,
               file=str(home / f"plain-{mode}.{ENDINGS[mode]}"))  # fmt: skip
    old.lisp("(setq-local gptel-include-tool-results t)")
    mark = f"quokka{mode[0]}"
    talk(old, mark)
    old.lisp("(progn (save-buffer) (set-buffer-modified-p nil) (kill-buffer) t)")
    file = home / f"plain-{mode}.{ENDINGS[mode]}"
    assert "RETENTION" not in file.read_text().upper()

    emacs.eval(f"(gptel-retention-learn {json.dumps(str(file))})")
    until_found(emacs, mark)
    name, line = visit(emacs)
    assert (name.startswith(file.stem), mark in line) == (True, True)

    new = Chat(emacs, provider, "anthropic", mode)
    new.lisp(
        "(let* ((sources (gptel-retention-search--sources nil)) (source (seq-find (lambda (s)"
        f" (equal (plist-get s :path) {json.dumps(str(file))})) sources)))"
        " (save-window-excursion (gptel-retention-resume source t)) t)"
    )
    emacs.eval("(progn (accept-process-output nil 0.5) t)")
    before = new.text()
    first = new.send("Go on.")
    second = new.send("And on.")

    accepted(first + second)
    assert "Evidence" not in before + new.text()
    for request in (first[-1], second[-1]):
        assert blocks(request).count("Prior evidence") == 1
        said = "\n".join(strings(array(request)))
        assert f"look says: contents of {mark}.txt" in said
    assert mark not in new.text()


def test_the_model_searches_and_expands_when_it_may(tmp_path: Path, provider: Loopback) -> None:
    """V5: off by default; the answer is within the cap and expands exactly."""
    with start_emacs(tmp_path, provider.port) as emacs:
        first = Chat(emacs, provider, "openai", "text-mode")
        mark = word("bilby", first)
        talk(first, mark)
        until_found(emacs, mark)
        emacs.eval("(setq gptel-retention-evidence-tools t)")
        second = Chat(emacs, provider, "openai", "text-mode")
        requests = second.send(
            "Search.",
            {"calls": [{"name": "search_evidence", "args": {"query": f"{mark} sleeps"}}]},
            {"text": "So."},
        )
        answer = strings(array(requests[-1])[-1])[-1]
        id = next(word for word in answer.replace('"', " ").split() if word.startswith("c"))
        requests += second.send(
            "More.",
            {"calls": [{"name": "expand_evidence", "args": {"id": id.split(",")[0]}}]},
            {"text": "So."},
        )

    accepted(requests)
    assert "search_evidence" not in tools(provider.requests[0])
    assert "search_evidence" in tools(requests[0])
    assert mark in answer
    assert f"The {mark} sleeps\nunder the old bridge." in strings(array(requests[-1])[-1])[-1]


def tools(request: Any) -> str:
    return json.dumps(request.json.get("tools"))


def test_an_empty_answer_is_told_in_full(tmp_path: Path, provider: Loopback) -> None:
    """V5: in words that cannot be read as absence of the fact."""
    with start_emacs(tmp_path, provider.port) as emacs:
        chat = Chat(emacs, provider, "openai", "text-mode")
        chat.send("Hello.")
        text = search(emacs, "zyzzyva")

    assert "does not show that the fact does not exist" in text or "Nothing is indexed" in text
