"""One text in several places: branches, copies, variants, other machines (rules L2, L5, B5)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chat import (
    APIS,
    CORNERS,
    MODES,
    Chat,
    accepted,
    blocks,
    is_prefix,
    observe,
)
from tests.e2e.emacs import Emacs, start_emacs
from tests.e2e.reasoned import ENDINGS, SAVE, STRICT, answer, has, work
from tests.loopback import Loopback
from tests.loopback.recorder import Recorded
from tests.loopback.strictness import Strictness

SECTIONS = ("weather", "rules")
# What gptel builds itself has no reasoning, so it is none of what the provider issued.
LENIENT = Strictness(strict_ids=True, exclusive_content=False)


@pytest.fixture(autouse=True)
def strict(provider: Loopback) -> None:
    """Have the provider check everything, whatever the test before asked for."""
    provider.strictness, provider.chunk = STRICT, 7


def cause(chat: Chat) -> str:
    """Return why the last request of CHAT does not begin with the whole one before it."""
    return str(
        chat.lisp(
            '(let ((request (aref (plist-get (gptel-retention-inspect-ask "inspect/explain"'
            " (list :id (gptel-retention-turn-id))) :requests) 0)))"
            ' (or (plist-get (plist-get request :continuity) :cause) "first_request"))'
        )
    )


def id_of(chat: Chat) -> str:
    return str(chat.lisp("gptel-retention-id"))


def send_at(chat: Chat, place: str, text: str, *responses: dict[str, Any]) -> list[Recorded]:
    """Type a prompt where PLACE, a form, goes, and send it from there."""
    prompt = chat.prompt(text)
    chat.answer(prompt, list(responses) or [{"text": f"answer to {prompt}"}])
    before = len(chat.server.requests)
    chat.lisp(f"(progn {place} (insert {json.dumps(prompt)}) (gptel-send) nil)")
    chat.emacs.call("driver-await", chat.name)
    return chat.server.requests[before:]


@pytest.mark.parametrize("api", APIS)
def test_each_branch_gets_its_own_lineage(emacs: Emacs, provider: Loopback, api: str) -> None:
    """Rules A4, B5, G1: `gptel-org-branching-context`: a sibling's turns are not in it."""
    chat = Chat(emacs, provider, api, "org-mode", sections=SECTIONS)
    chat.lisp(
        '(setq-local gptel-org-branching-context t gptel-prompt-prefix-alist \'((org-mode . "")))'
    )
    end = '(progn (goto-char (point-max)) (insert "\\n** {}\\n"))'
    root = send_at(chat, '(insert "* Root\\n")', "0", work(api, "aa", "bb"), answer(api, "0."))
    left = send_at(chat, end.format("Left"), "1", work(api, "cc"), answer(api, "1."))
    right = send_at(chat, end.format("Right"), "2")
    assert cause(chat) == "message_edited"
    observe(emacs, "weather", "rain")
    before_right = (
        '(progn (goto-char (point-min)) (search-forward "\\n** Right") (forward-line 0)'
        ' (insert "\\n") (backward-char 1))'
    )
    back = send_at(chat, before_right, "1 again")
    assert cause(chat) == "message_edited"
    there = send_at(chat, "(goto-char (point-max))", "2 again")
    there += chat.send("2 once more")
    assert cause(chat) == "none"

    accepted(root + left + right + back + there)
    assert is_prefix(root[-1], left[0])
    assert is_prefix(root[-1], right[0])
    assert not has(right[0], "contents of cc")
    assert is_prefix(left[-1], back[0])
    assert is_prefix(right[-1], there[0])
    assert not has(there[0], "contents of cc")
    assert blocks(right[0]) == ["Weather", "Rules"]
    assert blocks(back[0]) == ["Weather", "Rules", "Weather"]
    assert blocks(there[0]) == ["Weather", "Rules", "Weather"], "it was told on the other branch"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("api", APIS)
def test_a_copied_file_goes_its_own_way(
    emacs: Emacs, provider: Loopback, tmp_path: Path, api: str, mode: str
) -> None:
    """Rules L2, H4: with the past of the first, byte for byte; the first goes on as before."""
    file = tmp_path / f"chat.{ENDINGS[mode]}"
    chat = Chat(emacs, provider, api, mode, file=str(file), sections=SECTIONS)
    first = chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))
    chat.lisp(SAVE)
    other = tmp_path / f"copy.{ENDINGS[mode]}"
    shutil.copy(file, other)

    copy = Chat(emacs, provider, api, mode, file=str(other), sections=SECTIONS)
    copied = copy.send("two", work(api, "cc"), answer(api, "Done too."))
    goes_on = chat.send("three")
    copied += copy.send("four")
    copy.lisp(SAVE)

    accepted(first + copied + goes_on)
    assert is_prefix(first[-1], copied[0])
    assert is_prefix(first[-1], goes_on[0])
    assert is_prefix(copied[-2], copied[-1])
    assert not has(goes_on[0], "contents of cc")
    assert id_of(copy) != id_of(chat)
    assert id_of(copy) in other.read_text()
    assert id_of(chat) not in other.read_text()
    assert (cause(chat), cause(copy)) == ("none", "none")


@pytest.mark.parametrize("drawer", [True, False])
@pytest.mark.parametrize("api", APIS)
def test_a_text_yanked_with_its_id_is_a_fork(
    emacs: Emacs, provider: Loopback, tmp_path: Path, *, api: str, drawer: bool
) -> None:
    """Rules L2, I1, F10: without it, a conversation of its own that begins with what stands there.

    The buffer that was yanked from goes on in either case.
    """
    file = tmp_path / "chat.org"
    chat = Chat(emacs, provider, api, "org-mode", file=str(file), sections=SECTIONS)
    first = chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))
    chat.lisp(SAVE)
    start = "(point-min)" if drawer else '(search-forward "prompt")'
    chat.lisp(f"(progn (goto-char (point-min)) (copy-region-as-kill {start} (point-max)) nil)")
    copy = Chat(emacs, provider, api, "org-mode", sections=SECTIONS)
    copy.lisp("(progn (gptel-mode -1) (yank) (gptel-mode 1) (gptel-retention-mode 1) nil)")
    provider.strictness = STRICT if drawer else LENIENT

    copied = copy.send("two")
    assert cause(copy) == "first_request"
    goes_on = chat.send("three")
    copied += copy.send("four")

    accepted(first + copied + goes_on)
    assert is_prefix(first[-1], goes_on[0])
    assert is_prefix(first[-1], copied[0]) is drawer
    assert is_prefix(copied[0], copied[1])
    assert has(copied[0], "contents of aa")
    assert blocks(copied[0]) == ["Weather", "Rules"]
    assert id_of(copy) != id_of(chat)
    assert cause(chat) == "none"


@pytest.mark.parametrize("mode", MODES)
def test_a_cloned_buffer_is_a_fork(emacs: Emacs, provider: Loopback, mode: str) -> None:
    """Rule L2: they share no state from there on."""
    chat = Chat(emacs, provider, "anthropic", mode, sections=SECTIONS)
    first = chat.send("one", work("anthropic", "aa", "bb"), answer("anthropic", "Done."))
    copy = Chat(emacs, provider, "anthropic", mode, sections=SECTIONS)
    emacs.eval(
        f'(progn (kill-buffer "{copy.name}") (with-current-buffer "{chat.name}"'
        f' (clone-buffer "{copy.name}")) t)'
    )

    if mode == "org-mode":  # whose cache the clone shares
        emacs.eval(f'(with-current-buffer "{copy.name}" (org-element-cache-reset))')
    copied = copy.send("two", work("anthropic", "cc"), answer("anthropic", "Done too."))
    goes_on = chat.send("three")
    emacs.eval(f'(progn (kill-buffer "{chat.name}") t)')
    copied += copy.send("four")

    accepted(first + copied + goes_on)
    assert is_prefix(first[-1], copied[0])
    assert is_prefix(first[-1], goes_on[0])
    assert is_prefix(copied[-2], copied[-1])
    assert not has(goes_on[0], "contents of cc")
    assert cause(copy) == "none"


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_reverted_buffer_goes_on_from_its_file(
    emacs: Emacs, provider: Loopback, tmp_path: Path, *, api: str, mode: str, stream: bool
) -> None:
    """Rule L3: what was saved is sent as it was; what came after that is gone."""
    file = tmp_path / f"chat.{ENDINGS[mode]}"
    chat = Chat(emacs, provider, api, mode, stream=stream, file=str(file), sections=SECTIONS)
    first = chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))
    chat.lisp(SAVE)
    id = id_of(chat)
    lost = chat.send("two", work(api, "cc"), answer(api, "Done too."))

    chat.lisp("(let ((inhibit-message t)) (revert-buffer t t))")
    emacs.eval(
        f'(with-current-buffer "{chat.name}" ({mode}) (driver-configure "{api}"'
        f' :stream {"t" if stream else "nil"} :sections \'("weather" "rules")) t)'
    )
    after = chat.send("three")
    assert cause(chat) == "message_edited"
    after += chat.send("four")

    accepted(first + lost + after)
    assert id_of(chat) == id
    assert is_prefix(first[-1], after[0])
    assert not has(after[0], "contents of cc")
    assert blocks(after[0]) == ["Weather", "Rules"]
    assert cause(chat) == "none"


@pytest.mark.parametrize("mode", MODES)
def test_a_buffer_whose_file_became_another_chat_goes_on_with_that(
    emacs: Emacs, provider: Loopback, tmp_path: Path, mode: str
) -> None:
    """Rules I1, L2: nothing of what the buffer had before is taken for what it has now."""
    files = [tmp_path / f"{name}.{ENDINGS[mode]}" for name in ("chat", "other")]
    chats = [
        Chat(emacs, provider, "openai", mode, file=str(file), sections=SECTIONS) for file in files
    ]
    sent = [chat.send("one", work("openai", "aa"), answer("openai", "Done.")) for chat in chats]
    for chat in chats:
        chat.lisp(SAVE)
    chat, other = chats

    shutil.copy(files[1], files[0])
    chat.lisp("(let ((inhibit-message t)) (revert-buffer t t))")
    emacs.eval(
        f'(with-current-buffer "{chat.name}" ({mode}) (driver-configure "openai"'
        ' :sections \'("weather" "rules")) t)'
    )
    after = chat.send("two")
    goes_on = other.send("three")

    accepted(sent[0] + sent[1] + after + goes_on)
    assert is_prefix(sent[1][-1], after[0])
    assert is_prefix(sent[1][-1], goes_on[0])
    assert id_of(chat) != id_of(other)
    assert (cause(chat), cause(other)) == ("first_request", "none")


def vary(chat: Chat) -> list[Recorded]:
    """Have a turn, and another answer to the same prompt; return the requests."""
    api, prompt = chat.api, chat.prompt("one")
    before = chat.send("zero", work(api, "aa", "bb"), answer(api, "Ready."))
    chat.answer(prompt, [answer(api, "The *first* answer.")])
    chat.emacs.call("driver-send", chat.name, prompt)
    chat.answer(prompt, [answer(api, "A *later* one.")])
    chat.lisp(
        '(progn (require \'gptel-transient) (goto-char (point-max)) (search-backward "answer")'
        " (gptel--regenerate) nil)"
    )
    chat.emacs.call("driver-await", chat.name)
    return before


def switch(chat: Chat, shown: str) -> None:
    """Let the buffer of CHAT show the other variant of the answer that has SHOWN."""
    chat.lisp(
        f"(progn (goto-char (point-min)) (search-forward {json.dumps(shown)})"
        " (gptel--previous-variant 1) nil)"
    )


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_each_variant_of_an_answer_is_sent_as_it_was_received(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Rules F2, G1: regenerated, on with the first one, on with the other, and back."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    before = vary(chat)

    switch(chat, "later")
    first = chat.send("two")
    assert cause(chat) == "none"
    switch(chat, "first")
    second = chat.send("three")
    assert cause(chat) == "message_edited"
    switch(chat, "later")
    first += chat.send("four")
    assert cause(chat) == "message_edited"

    accepted(before + first + second)
    assert all(has(request, "The *first* answer.") for request in first)
    assert not any(has(request, "A *later* one.") for request in first)
    assert has(second[0], "A *later* one.")
    assert not has(second[0], "The *first* answer.")
    assert is_prefix(first[0], first[1])
    for request in first + second:
        assert is_prefix(before[-1], request)
        assert blocks(request) == ["Weather", "Rules"]


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_an_answer_comes_back_although_the_other_was_gone_on_from(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Rules F2, G1: each variant stands in front of what followed any of them."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    before = vary(chat)
    second = chat.send("two")

    switch(chat, "later")
    first = chat.send("three")
    assert cause(chat) == "message_edited"
    switch(chat, "first")
    second += chat.send("four")

    accepted(before + first + second)
    assert has(first[0], "The *first* answer.")
    assert not has(first[0], "A *later* one.")
    assert is_prefix(second[0], second[1])
    for request in first + second:
        assert is_prefix(before[-1], request)
        assert blocks(request) == ["Weather", "Rules"]


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_goes_on_with_another_store(
    tmp_path: Path, provider: Loopback, mode: str
) -> None:
    """Rule L5: exported, and imported where its file is opened then."""
    here, there = tmp_path / "here", tmp_path / "there"
    archive = tmp_path / "chat.zip"
    name = f"chat.{ENDINGS[mode]}"
    requests = []
    for home in (here, there):
        home.mkdir()
        with start_emacs(home, provider.port) as emacs:
            observe(emacs, "weather", "sunny")
            observe(emacs, "rules", "be brief")
            if home is there:
                shutil.move(here / name, there / name)
                emacs.eval(f'(progn (gptel-retention-import "{archive}") t)')
                emacs.call("driver-settle")
            chat = Chat(
                emacs, provider, "anthropic", mode, file=str(home / name), sections=SECTIONS
            )
            requests += chat.send("go", work("anthropic", "aa", "bb"), answer("anthropic", "Done."))
            chat.lisp(SAVE)
            if home is here:
                chat.lisp(f'(progn (gptel-retention-export "{archive}") t)')
                emacs.eval(
                    f'(let ((n 0)) (while (and (not (file-exists-p "{archive}")) (< n 200))'
                    " (accept-process-output nil 0.02) (setq n (1+ n))))"
                )
            assert cause(chat) == "none"

    accepted(requests)
    assert is_prefix(requests[1], requests[2])
    assert blocks(requests[2]) == ["Weather", "Rules"]
