"""Compaction in real Emacs: a summary in the place of the history, and the way back (rule L1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chat import (
    APIS,
    CORNERS,
    MODES,
    Chat,
    accepted,
    array,
    blocks,
    is_prefix,
    observe,
    strings,
)
from tests.e2e.emacs import Emacs, start_emacs
from tests.e2e.reasoned import ENDINGS, SAVE, STRICT, answer, has, work
from tests.loopback import Loopback
from tests.loopback.recorder import Recorded

SECTIONS = ("weather", "rules")
SUMMARY = "The user had **aa** and `bb` read"
EDITED = ", and knows it."  # what the user adds to the summary
OFFERED = "# What was said"  # a heading of what a model is asked to summarize
REQUEST = "Summarize our conversation so far."


@pytest.fixture(autouse=True)
def strict(provider: Loopback) -> None:
    """Have the provider check everything."""
    provider.strictness, provider.chunk = STRICT, 7


def talk(chat: Chat) -> list[Recorded]:
    """Have three turns; return their requests."""
    api = chat.api
    requests = chat.send("one", work(api, "aa", "bb"), answer(api, "Done *once*."))
    requests += chat.send("two", work(api, "cc", "dd"), answer(api, "Done *twice*."))
    return requests + chat.send("three", work(api, "ee"), answer(api, "Done *thrice*."))


def until(emacs: Emacs, condition: str) -> None:
    """Let Emacs run until CONDITION, a form, is true there."""
    assert emacs.eval(
        f"(let ((end (+ (float-time) 30))) (while (and (not {condition}) (< (float-time) end))"
        f" (accept-process-output nil 0.02)) (and {condition} t))"
    ), condition


def goto(chat: Chat, text: str) -> None:
    """Put point behind the first TEXT in the buffer of CHAT."""
    chat.lisp(f"(progn (goto-char (point-min)) (search-forward {json.dumps(text)}) nil)")


def compact(chat: Chat, behind: str, summary: str = SUMMARY) -> list[Recorded]:
    """Ask for a summary of the history before the first BEHIND; return the requests for it."""
    chat.answer(OFFERED, [{"text": summary}])
    goto(chat, behind)
    before = len(chat.server.requests)
    chat.lisp("(save-window-excursion (gptel-retention-compact) nil)")
    until(chat.emacs, f'(get-buffer "{edited(chat)}")')
    return chat.server.requests[before:]


def edited(chat: Chat) -> str:
    return f"*retention summary of {chat.name}*"


def accept(chat: Chat) -> None:
    """Edit and accept the summary, and wait until it stands in the buffer of CHAT."""
    chat.emacs.eval(
        f'(with-current-buffer "{edited(chat)}" (goto-char (point-max))'
        f' (unless (search-backward "{EDITED}" nil t) (insert "{EDITED}"))'
        ' (call-interactively (key-binding (kbd "C-c C-c"))))'
    )
    until(chat.emacs, f'(not (get-buffer "{edited(chat)}"))')


def undo(chat: Chat) -> None:
    """Undo in CHAT, step by step, until the summary is gone."""
    chat.lisp(
        "(let ((last-command nil) (inhibit-message t)) (undo-boundary)"
        " (while (save-excursion (goto-char (point-min))"
        f" (search-forward {json.dumps(REQUEST)} nil t))"
        " (undo) (setq last-command 'undo)))"
    )


def transcript(chat: Chat) -> str:
    """Return the text of CHAT with the roles that gptel sees in it."""
    return str(
        chat.lisp(
            "(let ((pos (point-min)) runs) (while (< pos (point-max))"
            " (let ((end (next-single-property-change pos 'gptel nil (point-max))))"
            " (push (cons (buffer-substring-no-properties pos end)"
            " (get-text-property pos 'gptel)) runs) (setq pos end)))"
            " (prin1-to-string (nreverse runs)))"
        )
    )


def inner(request: Recorded) -> str:
    """Return the elements of the conversation array of a request as they were sent."""
    body = request.body.decode()
    start = min(
        at + len(key) for key in ('"messages":[', '"input":[', '"contents":[')
        if (at := body.find(key)) >= 0
    )  # fmt: skip
    end = json.JSONDecoder().raw_decode(body, start - 1)[1]
    return body[start : end - 1]


def place(request: Recorded, text: str) -> int:
    """Return the index of the first element of a request that has TEXT."""
    return next(n for n, e in enumerate(array(request)) if any(text in s for s in strings(e)))


def cause(chat: Chat) -> str:
    """Return why the last request of CHAT does not begin with the whole one before it."""
    return str(
        chat.lisp(
            '(plist-get (plist-get (aref (plist-get (gptel-retention-inspect-ask "inspect/explain"'
            " (list :id (gptel-retention-turn-id))) :requests) 0) :continuity) :cause)"
        )
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("api", APIS)
def test_a_summary_replaces_the_history(
    emacs: Emacs, provider: Loopback, api: str, mode: str
) -> None:
    """Rules L1, A1, B5: what follows it goes out as before, what applies is told again."""
    chat = Chat(emacs, provider, api, mode, sections=SECTIONS)
    before = talk(chat)
    tail = array(before[-1])[place(before[-1], f"{chat.number}.2!") :]

    asked = compact(chat, f"{chat.number}.2!")
    assert f"{chat.number}.1!" in chat.text()
    accept(chat)
    text = chat.text()
    sent = chat.send("four")
    assert cause(chat) == "message_edited"
    sent += chat.send("five", work(api, "ff"), answer(api, "Done."))
    later = chat.send("six")
    assert cause(chat) == "none"

    accepted(before + asked + sent + later)
    assert len(asked) == 1
    assert blocks(asked[0]) == []
    assert "contents of aa" in asked[0].body.decode()
    assert "contents of cc" not in asked[0].body.decode()
    assert f"{chat.number}.1!" not in text
    assert "contents of cc" in text
    at = place(sent[0], REQUEST)
    assert place(sent[0], "The user had") == at + 1
    assert array(sent[0])[at + 2 : at + 2 + len(tail)] == tail
    assert not has(sent[0], "contents of aa")
    assert blocks(sent[0]) == ["Weather", "Rules"]
    assert is_prefix(sent[0], sent[1])
    assert is_prefix(sent[1], later[0])


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_undo_brings_the_old_request_back(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Rule L1: byte for byte, also when requests were sent in between."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    before = talk(chat)
    text = transcript(chat)

    compact(chat, f"{chat.number}.3!")
    accept(chat)
    undo(chat)
    assert transcript(chat) == text
    undone = chat.send("four")
    text = transcript(chat)
    compact(chat, f"{chat.number}.3!")
    accept(chat)
    between = chat.send("five")
    undo(chat)
    assert transcript(chat) == text
    again = chat.send("six")

    accepted(before + undone + between + again)
    assert inner(undone[0]).startswith(inner(before[-1]))
    assert not inner(between[0]).startswith(inner(before[-1]))
    assert inner(again[0]).startswith(inner(undone[0]))
    assert blocks(again[0]) == ["Weather", "Rules"]


@pytest.mark.parametrize("mode", MODES)
def test_a_compacted_chat_goes_on_in_another_emacs(
    tmp_path: Path, provider: Loopback, mode: str
) -> None:
    """Rules L1, L3: what is saved stands for what was sent; what the file keeps of us stays."""
    file = tmp_path / f"chat.{ENDINGS[mode]}"
    if mode == "markdown-mode":
        file.write_text("<!-- -*- fill-column: 72 -*- -->\n")

    def opened(emacs: Emacs) -> Chat:
        observe(emacs, "weather", "sunny")
        observe(emacs, "rules", "be brief")
        return Chat(emacs, provider, "anthropic", mode, file=str(file), sections=SECTIONS)

    with start_emacs(tmp_path, provider.port) as emacs:
        chat = opened(emacs)
        before = talk(chat)
        compact(chat, f"{chat.number}.3!")
        chat.lisp(SAVE)  # which writes what gptel and we keep at the top, or the end
        accept(chat)
        sent = chat.send("four")
        chat.lisp(SAVE)
        id = chat.lisp("gptel-retention-id")
    with start_emacs(tmp_path, provider.port) as emacs:
        chat = opened(emacs)
        after = chat.send("five")
        assert chat.lisp("gptel-retention-id") == id

    accepted(before + sent + after)
    assert is_prefix(sent[0], after[0])
    assert str(id) in file.read_text()
    assert mode != "markdown-mode" or "fill-column" in file.read_text()


def test_nothing_is_left_of_a_conversation_but_the_summary(
    emacs: Emacs, provider: Loopback
) -> None:
    """Rule L1: at the end of the buffer all is history; the answer to the next prompt follows."""
    chat = Chat(emacs, provider, "anthropic", "text-mode", sections=SECTIONS)
    talk(chat)

    compact(chat, "Done *thrice*.")
    accept(chat)
    sent = chat.send("four")

    accepted(sent)
    assert [element["role"] for element in array(sent[0])] == [
        "user", "assistant", "user", "user",
    ]  # fmt: skip
    assert blocks(sent[0]) == ["Weather", "Rules"]


@pytest.mark.parametrize(
    ("behind", "kept"),
    [
        (".2! two", ".2! two"),
        ("contents of dd", ".2! two"),
        ("Done *twice", ".2! two"),
        (".3! thr", ".3! three"),
    ],
)
def test_a_cut_is_made_between_turns(
    emacs: Emacs, provider: Loopback, behind: str, kept: str
) -> None:
    """Rule L1: wherever point is, calls and results stay together."""
    chat = Chat(emacs, provider, "openai", "text-mode", sections=SECTIONS)
    talk(chat)

    compact(chat, behind)
    accept(chat)
    sent = chat.send("four")

    accepted(sent)
    # What stands behind a prefix differs with the version of gptel.
    assert f"{REQUEST}\n\n{SUMMARY}{EDITED}\n\n### prompt {chat.number}{kept}" in (
        chat.text().replace("### \n", "### ")
    )


def test_the_turns_in_the_region_alone_are_replaced(emacs: Emacs, provider: Loopback) -> None:
    """Rule L1: from the second turn on, as far as whole turns are marked."""
    chat = Chat(emacs, provider, "anthropic", "markdown-mode", sections=SECTIONS)
    before = talk(chat)
    chat.answer(OFFERED, [{"text": SUMMARY}])

    chat.lisp(
        f'(progn (goto-char (point-min)) (search-forward "{chat.number}.2!") (forward-line 0)'
        ' (push-mark (point) t t) (search-forward "contents of ee") (setq transient-mark-mode t)'
        " (save-window-excursion (gptel-retention-compact)) nil)"
    )
    until(emacs, f'(get-buffer "{edited(chat)}")')
    accept(chat)
    sent = chat.send("four")

    accepted(before + sent)
    assert has(sent[0], "contents of aa")
    assert not has(sent[0], "contents of cc")
    assert has(sent[0], "contents of ee")
    assert place(sent[0], f"{chat.number}.3!") == place(sent[0], "The user had") + 1


def test_nothing_is_replaced_when_the_backend_fails(tmp_path: Path, provider: Loopback) -> None:
    """Rules L1, Z1: the text and the records change together, or neither does."""
    with start_emacs(tmp_path, provider.port) as emacs:
        chat = Chat(emacs, provider, "openai", "text-mode", sections=SECTIONS)
        talk(chat)
        compact(chat, f"{chat.number}.3!")
        text = transcript(chat)
        emacs.eval("(progn (gptel-retention-rpc-shutdown) t)")

        emacs.eval(f'(with-current-buffer "{edited(chat)}" (gptel-retention-compact-accept))')
        emacs.call("driver-settle")

        assert transcript(chat) == text
        assert emacs.eval(f'(buffer-live-p (get-buffer "{edited(chat)}"))')
        emacs.eval("(progn (gptel-retention-rpc-retry) (gptel-retention-rpc-ensure) t)")
        accept(chat)
        assert REQUEST in chat.text()


@pytest.mark.parametrize(
    "change",
    [
        '(replace-match "uno" t t)',
        "(put-text-property (match-beginning 0) (match-end 0) 'gptel 'ignore)",
        "(insert (propertize \" note \" 'gptel 'ignore))",
    ],
)
def test_a_history_that_changed_is_not_replaced(
    emacs: Emacs, provider: Loopback, change: str
) -> None:
    """Rule L1: the summary is of something else; an edit behind it does no harm."""
    chat = Chat(emacs, provider, "openai", "text-mode", sections=SECTIONS)
    talk(chat)
    compact(chat, f"{chat.number}.3!")
    goto(chat, "contents of ee")
    chat.lisp('(insert " and more")')
    goto(chat, "one")
    chat.lisp(f"(progn (set-match-data (list (- (point) 3) (point))) {change} nil)")
    text = transcript(chat)

    with pytest.raises(AssertionError, match="has changed"):
        accept(chat)

    assert transcript(chat) == text
    undo_change = "(let ((last-command nil) (inhibit-message t)) (undo-boundary) (undo) nil)"
    chat.lisp(undo_change)
    if "ee and more" in chat.text() and "one" in chat.text():
        accept(chat)
        assert "contents of ee and more" in chat.text()


def test_there_is_no_compaction_while_a_request_is_under_way(
    emacs: Emacs, provider: Loopback
) -> None:
    """Rule L1: neither started nor finished, also in the middle of a tool exchange."""
    chat = Chat(emacs, provider, "openai", "text-mode", sections=SECTIONS)
    talk(chat)
    compact(chat, f"{chat.number}.3!")
    chat.lisp(
        '(setq-local gptel-tools (list (gptel-make-tool :name "read" :description "Slow"'
        ' :args \'((:name "path" :type string :description "Which")) :async t :category "t"'
        " :function (lambda (answer path) (setq driver-answer answer)))))"
    )
    emacs.eval("(defvar driver-answer nil)")
    prompt = chat.prompt("four")
    chat.answer(prompt, [work("openai", "ff"), answer("openai", "Done.")])

    emacs.call("driver-start", chat.name, prompt)
    until(emacs, "driver-answer")
    with pytest.raises(AssertionError, match="under way"):
        accept(chat)
    emacs.eval(f'(progn (kill-buffer "{edited(chat)}") t)')
    with pytest.raises(AssertionError, match="under way"):
        chat.lisp("(gptel-retention-compact)")
    emacs.eval('(progn (funcall driver-answer "at last") t)')
    emacs.call("driver-await", chat.name)

    assert REQUEST not in chat.text()
    assert "at last" in chat.text()


@pytest.fixture
def window(emacs: Emacs) -> Iterator[None]:
    """Have the model hold any number of tokens again after a test."""
    yield
    emacs.eval("(put 'test-model :context-window nil)")


def full(chat: Chat, **options: str) -> None:
    """Have CHAT compacted when half its window is filled, which is small; OPTIONS are Lisp."""
    settings = {"auto-compact": "0.5", "auto-compact-keep": "1"} | options
    chat.lisp(
        "(progn (setq-local "
        + " ".join(f"gptel-retention-{name.replace('_', '-')} {v}" for name, v in settings.items())
        + ") (put 'test-model :context-window 0.005) nil)"
    )


@pytest.mark.usefixtures("window")
def test_a_full_conversation_is_compacted_by_itself(emacs: Emacs, provider: Loopback) -> None:
    """Rule L1: behind the last request of a turn; the last turns stay, without a question."""
    chat = Chat(emacs, provider, "anthropic", "org-mode", sections=SECTIONS)
    first = chat.send("one", work("anthropic", "aa", "bb"), answer("anthropic", "Done *once*."))
    chat.answer(OFFERED, [{"text": SUMMARY}])
    full(chat, auto_compact_ask="nil")
    before = len(provider.requests)

    chat.send("two", work("anthropic", "cc", "dd"), answer("anthropic", "Done *twice*."))
    until(
        emacs,
        f'(with-current-buffer "{chat.name}" (save-excursion (goto-char (point-min))'
        f' (search-forward "{REQUEST}" nil t)))',
    )
    made = provider.requests[before:]
    chat.lisp("(setq-local gptel-retention-auto-compact nil)")
    sent = chat.send("three")

    accepted(first + made + sent)
    assert [OFFERED in request.body.decode() for request in made] == [False, False, True]
    assert not has(sent[0], "contents of aa")
    assert has(sent[0], "contents of cc")


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("yes", [True, False])
def test_the_user_is_asked_before(emacs: Emacs, provider: Loopback, *, yes: bool) -> None:
    """Rule L1: once, and then the summary is shown; not where nobody looks."""
    chat = Chat(emacs, provider, "openai", "text-mode", sections=SECTIONS)
    chat.send("one", work("openai", "aa", "bb"), answer("openai", "Done *once*."))
    chat.answer(OFFERED, [{"text": SUMMARY}])
    full(chat)
    emacs.eval(
        "(progn (defvar driver-asked 0) (setq driver-asked 0)"
        " (defun driver-y-or-n (&rest _) (setq driver-asked (1+ driver-asked))"
        f" {'t' if yes else 'nil'})"
        " (advice-add 'y-or-n-p :override #'driver-y-or-n) t)"
    )
    try:
        chat.send("two")
        assert emacs.eval("driver-asked") == 0
        emacs.eval(f'(progn (switch-to-buffer "{chat.name}") t)')
        chat.send("three")
        if yes:
            until(emacs, f'(get-buffer "{edited(chat)}")')
        chat.send("four")
        assert emacs.eval("driver-asked") == 1
        assert bool(emacs.eval(f'(buffer-live-p (get-buffer "{edited(chat)}"))')) is yes
    finally:
        emacs.eval("(progn (advice-remove 'y-or-n-p #'driver-y-or-n) t)")
        emacs.eval('(progn (delete-other-windows) (switch-to-buffer "*scratch*") t)')
