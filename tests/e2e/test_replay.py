"""The scenarios of exact replay: real Emacs, real gptel, a provider that signs and verifies.

The provider is as strict as any of the real ones was seen to be, and more: whatever it issued in a
response that a request returns must be there complete, in place and unmodified.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chat import (
    APIS,
    CELLS,
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
from tests.loopback import Loopback
from tests.loopback.recorder import Recorded
from tests.loopback.strictness import Strictness

SECTIONS = ("weather", "rules")
STRICT = Strictness(
    exact=True, thinking="required", strict_ids=True, strict_reasoning=True,
    strict_signatures=True, exclusive_content=False,
)  # fmt: skip
# gptel reads no content lists, in which Mistral's reasoning comes; chat has none at all.
THINKING = tuple(api for api in APIS if api not in {"mistral", "openai"})


@pytest.fixture(autouse=True)
def strict(provider: Loopback) -> Iterator[None]:
    """Have the provider check everything, whatever the test before asked for."""
    provider.strictness, provider.chunk = STRICT, 7
    yield
    provider.strictness, provider.chunk = STRICT, 7


def work(api: str, *paths: str, text: str = "Let me **look**. ") -> dict[str, Any]:
    """Return a response: reasoning where the API has it, text, and a call of `read` for each."""
    calls = [{"name": "read", "args": {"path": path}} for path in paths]
    return {"text": text, "calls": calls} | thought(api, f"What is in {paths[0]}?")


def answer(api: str, text: str) -> dict[str, Any]:
    """Return a last response."""
    return {"text": text} | thought(api, "That is all.")


def thought(api: str, text: str) -> dict[str, str]:
    return {"reasoning": text} if api in THINKING else {}


def whole(requests: list[Recorded]) -> None:
    """Assert that each request begins with all of the one before it."""
    assert all(is_prefix(earlier, later) for earlier, later in pairwise(requests))


def last(chat: Chat) -> str:
    """Return what the last prepare of CHAT answered, as Lisp prints it."""
    return str(chat.lisp("(prin1-to-string (gptel-retention-turn-last))"))


def has(request: Recorded, text: str) -> bool:
    """Whether TEXT stands anywhere in the conversation of a request."""
    return any(text in value for element in array(request) for value in strings(element))


@pytest.mark.parametrize(("api", "mode", "stream"), CELLS)
def test_ten_turns_keep_every_request_as_the_prefix_of_the_next(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 1, rules F1, F2, R1, R4, B1: parallel calls of one tool, sections that change."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    emacs.eval(
        '(setf (alist-get "weather" driver-sections nil nil #\'equal) (let ((n 0))'
        ' (lambda () (format "state %d" (/ (setq n (1+ n)) 2)))))'
    )

    requests = []
    for turn in range(10):
        observe(emacs, "rules", f"rule {turn // 3}")
        requests += chat.send(
            f"turn {turn}", work(api, f"a{turn}", f"b{turn}"), answer(api, f"Done *{turn}*.")
        )

    accepted(requests)
    assert len(requests) == 20
    whole(requests)
    assert len(blocks(requests[-1])) > 10
    assert "system-reminder" not in chat.text()


@pytest.mark.parametrize("chunk", [1, 7, 120, None])
@pytest.mark.parametrize(("api", "mode"), [(api, MODES[n % 3]) for n, api in enumerate(APIS)])
def test_everything_comes_back_whatever_the_chunks(
    emacs: Emacs, provider: Loopback, api: str, mode: str, chunk: int | None
) -> None:
    """Scenario 10, rules R1, F5: three rounds with reasoning, text and parallel calls."""
    provider.chunk = chunk
    chat = Chat(emacs, provider, api, mode, sections=SECTIONS)

    requests = [
        request
        for turn in range(2)
        for request in chat.send(
            "go", *(work(api, f"a{turn}{n}", f"b{turn}{n}") for n in range(3)), answer(api, "Done.")
        )
    ]

    accepted(requests)
    assert len(requests) == 8
    whole(requests)


INTERLEAVED = (
    {"blocks": [
        {"thinking": "First."}, {"text": "I look. "}, {"redacted": True},
        {"call": {"name": "read", "raw": '{ "path" :  "a"}'}},
        {"call": {"name": "read", "args": {"path": "b"}}},
    ]},
    {"blocks": [
        {"thinking": ""}, {"text": "And once more. "}, {"thinking": "Second."},
        {"call": {"name": "read", "args": {"path": "c"}}},
    ]},
    {"blocks": [{"call": {"name": "read", "args": {"path": "d"}}}]},
    {"blocks": [{"thinking": "Third."}, {"text": "Done."}]},
)  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("thinking", ["lenient", "required", "bound"])
def test_interleaved_and_redacted_thinking(
    emacs: Emacs, provider: Loopback, thinking: str, mode: str, stream: bool
) -> None:
    """Scenario 10, cases S1, S2, E5, N25: Claude's blocks, in each way in which it checks them."""
    rounds = INTERLEAVED
    if thinking == "required":  # then a message without it may not be the latest
        rounds = (*INTERLEAVED[:2], INTERLEAVED[3])
    provider.strictness = Strictness(exact=True, thinking=thinking)
    chat = Chat(emacs, provider, "anthropic", mode, stream=stream, sections=SECTIONS)
    chat.lisp("(setq-local gptel-model 'claude-opus-5-5)")

    requests = []
    for turn in range(3):
        observe(emacs, "weather", f"state {turn}")
        requests += chat.send("go", *rounds)

    accepted(requests)
    assert len(requests) == 3 * len(rounds)
    whole(requests)


@pytest.mark.parametrize("stream", [True, False])
def test_bound_thinking_is_left_out_behind_an_edit(
    emacs: Emacs, provider: Loopback, stream: bool
) -> None:
    """Rule C4: behind an edit old reasoning would be refused; what is new is kept, also after."""
    provider.strictness = Strictness(thinking="bound")
    chat = Chat(emacs, provider, "anthropic", "text-mode", stream=stream, sections=SECTIONS)
    chat.lisp("(setq-local gptel-model 'claude-opus-5-5)")
    before = chat.send("one", work("anthropic", "a", "b"), answer("anthropic", "Done."))
    before += chat.send("two", work("anthropic", "c", "d"), answer("anthropic", "Done too."))

    replace(chat, "one", "uno")
    edited = chat.send("three", work("anthropic", "e", "f"), answer("anthropic", "Three."))
    edited += chat.send("four")
    replace(chat, "uno", "one")
    undone = chat.send("five")

    accepted(before + edited + undone)
    whole(edited)
    assert thoughts(before[-1]) == 3
    assert thoughts(edited[0]) == 0
    assert thoughts(edited[-1]) == 2
    assert thoughts(undone[-1]) == 4, "what was made behind the edit is not valid behind the undo"


def thoughts(request: Recorded) -> int:
    """Return how many thinking blocks a request to Claude carries."""
    return sum(
        block.get("type") == "thinking"
        for element in array(request)
        if isinstance(element["content"], list)
        for block in element["content"]
    )


def replace(chat: Chat, old: str, new: str) -> None:
    """Replace the first OLD in the buffer of CHAT by NEW, which is the user's or the tool's."""
    chat.lisp(
        f"(save-excursion (goto-char (point-min)) (search-forward {json.dumps(old)})"
        f" (let ((role (get-text-property (match-beginning 0) 'gptel)))"
        f" (replace-match {json.dumps(new)} t t)"
        " (when role (put-text-property (match-beginning 0) (match-end 0) 'gptel role))))"
    )


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_an_edited_result_costs_its_own_fragment(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 5, rules F2, B5: gptel serializes what was edited; the undo replays it again."""
    provider.strictness = Strictness(
        strict_ids=True, strict_reasoning=True, strict_signatures=True, exclusive_content=False
    )
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    turns = chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))
    turns += chat.send("two", work(api, "cc", "dd"), answer(api, "Done too."))

    replace(chat, "contents of aa", "contents of zz")
    edited = chat.send("three")
    report = last(chat)
    replace(chat, "contents of zz", "contents of aa")
    undone = chat.send("four")

    accepted(turns + edited + undone)
    assert has(edited[0], "contents of zz")
    assert not has(edited[0], "contents of aa")
    assert "not_replayed" in report
    assert "edited" in report
    later = [element for element in array(turns[-1]) if "cc" in json.dumps(element)]
    assert all(element in array(edited[0]) for element in later), "the other turn was not replayed"
    assert is_prefix(turns[-1], undone[0])


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_hidden_or_removed_rounds_do_not_come_back(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 6, rules F3, F4: an ignored tool region, and a deleted one."""
    provider.strictness = Strictness(strict_ids=True, exclusive_content=False)
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))
    chat.send("two", work(api, "cc", "dd"), answer(api, "Done too."))

    chat.lisp(
        "(let ((pos (point-min))) (while (< pos (point-max))"
        " (let ((end (next-single-property-change pos 'gptel nil (point-max))))"
        " (when (and (eq (car-safe (get-text-property pos 'gptel)) 'tool)"
        ' (string-search "contents of aa" (buffer-substring pos end)))'
        " (put-text-property pos end 'gptel 'ignore)) (setq pos end))))"
    )
    hidden = chat.send("three")

    accepted(hidden)
    assert not has(hidden[0], "contents of aa")
    assert has(hidden[0], "contents of bb")
    assert has(hidden[0], "contents of cc")


@pytest.mark.parametrize("keep", ["nil", "call"])
@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_excluded_results_are_never_replayed(
    emacs: Emacs, provider: Loopback, *, api: str, mode: str, stream: bool, keep: str
) -> None:
    """Rule F3: `gptel-include-tool-results` nil, or its placeholder for a result."""
    provider.strictness = Strictness(
        strict_ids=True, strict_reasoning=True, strict_signatures=True, exclusive_content=False
    )
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    chat.lisp(f"(setq-local gptel-include-tool-results '{keep})")

    turn = chat.send("one", work(api, "aa", "bb"), work(api, "cc"), answer(api, "Done."))
    later = chat.send("two") + chat.send("three")

    accepted(turn + later)
    assert not any(has(request, "contents of") for request in later)
    assert not any(has(request, "What is in aa?") for request in later)
    whole(later)


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_another_model_gets_no_foreign_fragment(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 8, rules F2, F7: switch the model and back; ids stay those that were issued."""
    provider.strictness = Strictness(
        strict_ids=True, strict_reasoning=True, strict_signatures=True, exclusive_content=False
    )
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    first = chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))

    chat.lisp("(setq-local gptel-model 'other-model)")
    other = chat.send("two", work(api, "cc", "dd"), answer(api, "Two."))
    report = last(chat)
    chat.lisp("(setq-local gptel-model 'test-model)")
    back = chat.send("three")

    accepted(first + other + back)
    assert not has(other[0], "What is in aa?")
    whole(other)
    assert is_prefix(first[-1], back[0])
    assert "continuity" in report
    assert blocks(back[0]) == ["Weather", "Rules"]
    if api != "gemini":  # whose calls need no ids
        assert ids(other[0]) == ids(first[-1])


def ids(request: Recorded) -> set[str]:
    """Return the ids of the calls and the results in a request."""
    names = {"id", "call_id", "tool_call_id", "tool_use_id", "toolUseId"}

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            made = value.get("type") not in {"reasoning", "message"}
            for key, inner in value.items():
                if key in names and isinstance(inner, str) and made and inner[:3] != "fc_":
                    yield inner
                else:
                    yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)

    return set(walk(array(request)))


@pytest.mark.parametrize("stream", [True, False])
def test_another_cache_policy_replays_nothing(
    emacs: Emacs, provider: Loopback, stream: bool
) -> None:
    """Scenario 15, rules F2, C3: `gptel-cache` changed, and changed back."""
    provider.strictness = Strictness()
    chat = Chat(emacs, provider, "anthropic", "org-mode", stream=stream, sections=SECTIONS)
    first = chat.send("one", work("anthropic", "aa", "bb"), answer("anthropic", "Done."))

    chat.lisp("(setq-local gptel-cache t)")
    cached = chat.send("two", work("anthropic", "cc", "dd"), answer("anthropic", "Done."))
    cached += chat.send("three")
    chat.lisp("(setq-local gptel-cache nil)")
    back = chat.send("four")

    accepted(first + cached + back)
    assert thoughts(cached[0]) == 0
    assert [marks(request) for request in cached] == [1] * len(cached)
    whole(cached)
    assert thoughts(back[0]) == 2
    assert marks(back[0]) == 0


def marks(request: Recorded) -> int:
    """Return how many cache marks the messages of a request carry."""
    return json.dumps(array(request)).count("cache_control")


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_an_error_in_the_middle_keeps_the_rounds_before_it(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Rules F8, G4: the provider fails in round two; what was committed is a fragment."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)

    failed = chat.send("one", work(api, "aa", "bb"), {"status": 500, "error": "boom"})
    # A prompt right behind results is refused by Mistral, whoever asks.
    again = chat.send(None if api == "mistral" else "go on")

    assert [request.status for request in failed] == [200, 500]
    accepted(again)
    assert is_prefix(failed[-1], again[0])


@pytest.mark.parametrize("fault", [{"cut": 100}, {"error": "overloaded"}])
@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_an_answer_that_broke_off_is_no_fragment(
    emacs: Emacs, provider: Loopback, *, api: str, mode: str, stream: bool, fault: dict[str, Any]
) -> None:
    """Rule F8: the transfer breaks in the answer, or the provider says so in the middle of it."""
    if stream and "cut" in fault:
        pytest.skip("gptel itself never ends a streamed request that was cut")
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)

    turn = chat.send("one", work(api, "aa", "bb"), {"text": "half an answer"} | fault)
    # A prompt right behind results is refused by Mistral, whoever asks.
    again = chat.send(None if api == "mistral" and not stream else "go on")

    assert len(turn) == 2
    accepted(again)
    assert is_prefix(turn[-1], again[0])
    if stream:
        assert has(again[0], "half an answer"), "what the buffer shows is not taken away"


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_note_in_a_result_leaves_it_whole(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 16, rule F9: a button inserted into a result, marked as hidden."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    turn = chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))

    chat.lisp(
        '(progn (goto-char (point-min)) (search-forward "contents of aa")'
        " (with-silent-modifications (insert (propertize \" [whole] \" 'gptel 'ignore))))"
    )
    later = chat.send("two")

    accepted(turn + later)
    assert is_prefix(turn[-1], later[0])
    assert "[whole]" in chat.text()
    assert not has(later[0], "[whole]")


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_preset_prompt_stays_as_it_was_sent(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Rule Q6: "@tidy text" goes out as "text", in this turn and in the later ones."""
    emacs.eval('(gptel-make-preset "tidy" :description "Nothing")')
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)

    first = chat.send("@tidy please", work(api, "aa"), answer(api, "Done."))
    later = chat.send("two") + chat.send("three")

    accepted(first + later)
    whole(first + later)
    assert not has(first[0], "@tidy")


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_context_stays_at_its_first_prompt(
    emacs: Emacs, provider: Loopback, *, api: str, mode: str, stream: bool, keep: bool
) -> None:
    """Case S16: gptel puts context before the newest prompt; it stays there, or moves as before."""
    provider.strictness = Strictness(
        strict_ids=True, strict_reasoning=True, strict_signatures=True, exclusive_content=False
    )
    emacs.eval('(with-current-buffer (get-buffer-create "notes") (erase-buffer) (insert "fact 1"))')
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    chat.lisp(
        f"(setq-local gptel-retention-keep-context {'t' if keep else 'nil'}"
        ' gptel-use-context \'user gptel-context (list (get-buffer "notes")))'
    )

    requests = chat.send("one", work(api, "aa"), answer(api, "Done.")) + chat.send("two")
    emacs.eval('(with-current-buffer "notes" (erase-buffer) (insert "fact 2"))')
    requests += chat.send("three")

    accepted(requests)
    assert has(requests[-1], "fact 2")
    assert has(requests[-1], "fact 1") is keep
    texts = json.dumps(array(requests[2]))
    assert texts.count("fact 1") == 1
    assert is_prefix(requests[1], requests[2]) is keep
    assert is_prefix(requests[2], requests[3]) is keep


@pytest.mark.parametrize("api", APIS)
def test_url_el_replays_the_same(emacs: Emacs, provider: Loopback, api: str) -> None:
    """H1: the other transport, whose responses are read from its own buffer."""
    chat = Chat(emacs, provider, api, "org-mode", stream=False, sections=SECTIONS)
    emacs.eval("(setq gptel-use-curl nil)")
    try:
        requests = chat.send("ünï", work(api, "aa", "bb"), answer(api, "Döne 🎉."))
        requests += chat.send("two")
    finally:
        emacs.eval("(setq gptel-use-curl t)")

    accepted(requests)
    whole(requests)


ENDINGS = {"org-mode": "org", "markdown-mode": "md", "text-mode": "txt"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("api", APIS)
def test_a_reopened_file_replays_from_the_store(
    tmp_path: Path, provider: Loopback, api: str, mode: str
) -> None:
    """Scenario 7, rules L3, Z4: Emacs is killed, the file is opened again; the backend, too.

    Cases S5, N23, E39: calls without ids are restored, nothing depends on the process.
    """

    def opened(emacs: Emacs) -> Chat:
        observe(emacs, "weather", "sunny")
        observe(emacs, "rules", "be brief")
        file = tmp_path / f"chat.{ENDINGS[mode]}"
        return Chat(emacs, provider, api, mode, file=str(file), sections=SECTIONS)

    with start_emacs(tmp_path, provider.port) as emacs:
        chat = opened(emacs)
        requests = chat.send("one", work(api, "aa", "bb"), answer(api, "Done."))
        chat.lisp("(let ((inhibit-message t)) (save-buffer))")
    with start_emacs(tmp_path, provider.port) as emacs:
        chat = opened(emacs)
        requests += chat.send("two", work(api, "cc", "dd"), answer(api, "Done."))
        emacs.eval(
            '(dolist (p (process-list)) (when (string-prefix-p "gptel-retention"'
            " (process-name p)) (ignore-errors (signal-process p 'SIGKILL))))"
        )
        emacs.call("driver-settle")
        emacs.eval("(gptel-retention-rpc-retry)")
        requests += chat.send("three")
        chat.lisp("(let ((inhibit-message t)) (save-buffer))")
    (tmp_path / "store").rename(tmp_path / "moved")
    provider.strictness = Strictness(exclusive_content=False)
    with start_emacs(tmp_path, provider.port) as emacs:
        lost = opened(emacs).send("four") if api != "deepseek" else []

    accepted(requests)
    whole(requests)
    if lost:
        accepted(lost)
        assert blocks(lost[0]) == ["Weather", "Rules"]


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_steering_in_the_loop_is_part_of_its_round(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Q4, F1: what the user says while tools run stands behind their results, also later."""
    if api == "mistral":
        pytest.skip("its API refuses a user message behind results, whoever sends it")
    if not emacs.eval("(if (fboundp 'gptel--handle-tool-steer) 1 0)"):
        pytest.skip("this gptel has no steering")
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    steer = f"Rather be quick, chat {chat.number}!"
    chat.answer(steer, [work(api, "cc"), answer(api, "Done.")])
    chat.lisp(
        "(add-hook 'gptel-post-tool-call-functions"
        " (let ((said nil)) (lambda (&rest _) (unless said (setq said t)"
        f" (plist-put (gptel-fsm-info gptel--fsm-last) :steering-message {json.dumps(steer)})"
        " nil))) nil t)"
    )

    turn = chat.send("one", work(api, "aa", "bb"))
    later = chat.send("two") + chat.send("three")

    accepted(turn + later)
    assert len(turn) == 3
    whole(turn + later)
    assert has(turn[1], steer)
    assert json.dumps(array(later[-1])).count(steer) == 1
