"""The scenarios of retained delivery, in real Emacs with real gptel and a strict provider."""

from __future__ import annotations

import json

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
    bodies,
    is_prefix,
    observe,
    strings,
    two_calls,
)
from tests.e2e.emacs import Emacs
from tests.loopback import Loopback

SECTIONS = ("weather", "rules")


@pytest.mark.parametrize(("api", "mode", "stream"), CELLS)
def test_unchanged_sections_are_not_repeated_and_a_changed_one_comes_alone(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 2, rules D2, A1, B1: one delivery at first, none unchanged, one that changed.

    Cases N1, N2, N3, N4, N6, N7: what a client adds to the newest prompt moves on, or is replaced.
    """
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)

    first = chat.send("first")
    second = chat.send("second")
    observe(emacs, "weather", "rain")
    third = chat.send("third")

    accepted(first + second + third)
    assert blocks(first[-1]) == ["Weather", "Rules"]
    assert blocks(second[-1]) == ["Weather", "Rules"]
    assert blocks(third[-1]) == ["Weather", "Rules", "Weather"]
    assert "rain" in bodies(third[-1])[-1]
    assert is_prefix(first[-1], second[-1])
    assert is_prefix(second[-1], third[-1])
    assert "system-reminder" not in chat.text()


@pytest.mark.parametrize(("api", "mode", "stream"), CELLS)
def test_a_delivery_inside_the_tool_loop_keeps_its_place(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Rules B1, B4, D4, Q3: made behind complete results, and there again in the next turn.

    Cases N35, E45: with Mistral, inside the last of them.
    """
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    emacs.eval(
        '(setf (alist-get "weather" driver-sections nil nil #\'equal) (let ((n 0))'
        ' (lambda () (format "state %d" (setq n (1+ n))))))'
    )

    turn = chat.send("go", two_calls("a", "b"), two_calls("c", "d"), {"text": "done"})
    observe(emacs, "weather", "state 3")
    later = chat.send("and now")

    accepted(turn + later)
    assert [blocks(request) for request in turn] == [
        ["Weather", "Rules"],
        ["Weather", "Rules", "Weather"],
        ["Weather", "Rules", "Weather", "Weather"],
    ]
    assert is_prefix(turn[0], turn[1])
    assert is_prefix(turn[1], turn[2])
    assert blocks(later[0]) == ["Weather", "Rules", "Weather", "Weather"]
    # gptel shows the results of an unstreamed round in reverse order.
    for result in ("contents of a", "contents of b"):
        assert order(later[0], "be brief", result, "state 2", "contents of c")
    for result in ("contents of c", "contents of d"):
        assert order(later[0], "state 2", result, "state 3", "done", "and now")


def order(request, *texts: str) -> bool:
    """Whether TEXTS stand in the request in this order."""
    whole = "\n".join(text for element in array(request) for text in strings(element))
    places = [whole.find(text) for text in texts]
    return -1 not in places and places == sorted(places)


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_quit_before_dispatch_leaves_everything_due(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 3, rule D5: a request that never went out delivered nothing."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    emacs.eval(
        '(setf (alist-get "weather" driver-sections nil nil #\'equal)'
        " (lambda () (signal 'quit nil)))"
    )

    quit_at = len(provider.requests)
    result = emacs.eval(
        f'(condition-case nil (driver-send {json.dumps(chat.name)} "never") (quit "quit"))'
    )
    sent = provider.requests[quit_at:]
    observe(emacs, "weather", "sunny")
    first = chat.send("now")

    assert result == "quit"
    assert sent == []
    accepted(first)
    assert blocks(first[-1]) == ["Weather", "Rules"]


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_retry_after_an_error_has_one_delivery_in_place(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 3, rule D6: the provider fails with 500; the retry carries the same payload."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)

    failed = chat.send("try", {"status": 500, "error": "boom"}, {"text": "fine"})
    again = chat.send(None)

    assert [request.status for request in failed] == [500]
    accepted(again)
    assert array(again[0]) == array(failed[0])
    assert blocks(again[0]) == ["Weather", "Rules"]


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_deleted_history_brings_back_only_what_went_with_it(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 4, rules A4, B3: delete the first half; undo gives the old payload again."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    chat.send("one")
    observe(emacs, "weather", "rain")
    before = chat.send("two")
    chat.lisp("(progn (buffer-enable-undo) (setq buffer-undo-list nil) (undo-boundary))")

    chat.lisp(
        '(progn (goto-char (point-min)) (search-forward "two") (beginning-of-line)'
        " (delete-region (point-min) (point)))"
    )
    after = chat.send("three")

    accepted(before + after)
    assert blocks(before[-1]) == ["Weather", "Rules", "Weather"]
    assert blocks(after[-1]) == ["Weather", "Rules"]
    assert "rain" in bodies(after[-1])[0]
    assert order(after[-1], "two", "rain", "three", "be brief")


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_undo_of_a_deletion_restores_the_payload(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 4: after the undo the next payload begins with the one before the deletion."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    first = chat.send("one")
    observe(emacs, "weather", "rain")
    before = chat.send("two")
    kept = "(buffer-substring (point-min) (point-max))"

    chat.lisp(f"(setq-local driver--kept {kept})")
    chat.lisp("(delete-region (point-min) (/ (point-max) 2))")
    chat.lisp("(progn (erase-buffer) (insert driver--kept))")
    after = chat.send("three")

    accepted(first + before + after)
    assert is_prefix(before[-1], after[-1])
    assert blocks(after[-1]) == ["Weather", "Rules", "Weather"]


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_hidden_text_does_not_come_back(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 6, rules F4, A4: an ignored response stays away; narrowing hides what it hides."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    chat.send("one", {"text": "secret answer"})
    chat.lisp(
        '(progn (goto-char (point-min)) (search-forward "secret answer")'
        " (put-text-property (match-beginning 0) (match-end 0) 'gptel 'ignore))"
    )

    hidden = chat.send("two", {"text": "second answer"})
    chat.lisp(
        '(progn (goto-char (point-min)) (search-forward "second answer")'
        " (forward-line 1) (narrow-to-region (point) (point-max)))"
    )
    narrowed = chat.send("three")

    accepted(hidden + narrowed)
    assert not order(hidden[-1], "secret answer")
    assert not order(narrowed[-1], "second answer")
    assert not order(narrowed[-1], "two")
    assert blocks(narrowed[-1]) == ["Weather", "Rules"]


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_pasted_or_quoted_delivery_acknowledges_nothing(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 9, rules A2, Q2: trust comes from the log, never from how a text looks."""
    giver = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    text = "\\n".join(
        f"<system-reminder>\\n{body}\\n</system-reminder>".replace("\n", "\\n")
        for body in bodies(giver.send("give")[-1])
    )
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    emacs.eval(f'(driver-type {json.dumps(chat.name)} "{text} quoted: ")')

    sent = chat.send("look")

    accepted(sent)
    assert blocks(sent[-1]) == ["Weather", "Rules"] * 2


@pytest.mark.parametrize("mode", MODES)
def test_deliveries_stay_when_the_provider_changes(
    emacs: Emacs, provider: Loopback, mode: str
) -> None:
    """Scenario 8, rule I4: switch the API, go on, switch back; nothing is delivered again."""
    chat = Chat(emacs, provider, "anthropic", mode, sections=SECTIONS)
    first = chat.send("one", two_calls("a", "b"), {"text": "done"})

    switched = []
    for api in ("openai", "gemini", "responses", "ollama", "mistral", "anthropic"):
        chat.lisp(f'(setq-local gptel-backend (driver-backend "{api}"))')
        switched += chat.send(f"with {api}")

    accepted(first + switched)
    assert [blocks(request) for request in switched] == [["Weather", "Rules"]] * len(switched)
    assert all(order(request, "one", "sunny", "contents of a") for request in switched)


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_interleaved_conversations_keep_apart(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 11: two buffers by turns, each with its own deliveries."""
    left = Chat(emacs, provider, api, mode, stream=stream, sections=["weather"])
    right = Chat(emacs, provider, api, mode, stream=stream, sections=["rules"])

    requests = [chat.send(f"turn {n}")[-1] for n in range(3) for chat in (left, right)]

    accepted(requests)
    assert [blocks(r) for r in requests] == [["Weather"], ["Rules"]] * 3
    assert is_prefix(requests[0], requests[2])
    assert is_prefix(requests[3], requests[5])


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_reminder_keeps_its_place_and_a_staged_one_leaves_no_trace(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 13, rules B1, D5, D8: delivered in turn 2, it stands there in turn 9."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=["weather"])
    chat.send("turn 1")
    chat.lisp('(gptel-retention-remind "tests" "Run the tests.")')

    turns = [chat.send(f"turn {n}")[-1] for n in range(2, 10)]

    accepted(turns)
    assert blocks(turns[0]) == ["Weather", "Run the tests."]
    assert all(is_prefix(turns[0], later) for later in turns[1:])
    assert blocks(turns[-1]) == ["Weather", "Run the tests."]


def test_an_agents_request_gets_its_own_selection(emacs: Emacs, provider: Loopback) -> None:
    """Scenario 14, rule D7: a request with a prompt string is detached from the conversation."""
    chat = Chat(emacs, provider, "anthropic", "text-mode", sections=SECTIONS)
    chat.send("one")
    before = len(provider.requests)

    for selection in ("nil", "'(rules)"):
        chat.lisp(
            f"(let ((gptel-retention-request-sections {selection}) (done nil))"
            ' (gptel-request "sub task" :callback (lambda (_r _i) (setq done t)))'
            " (with-timeout (10) (while (not done) (accept-process-output nil 0.02))))"
        )
    agent = provider.requests[before:]
    after = chat.send("two")

    accepted(agent + after)
    assert [blocks(request) for request in agent] == [[], ["Rules"]]
    assert blocks(after[-1]) == ["Weather", "Rules"]


@pytest.mark.parametrize(("api", "mode", "stream"), CORNERS)
def test_a_limited_history_or_a_region_brings_nothing_hidden(
    emacs: Emacs, provider: Loopback, api: str, mode: str, stream: bool
) -> None:
    """Scenario 6, rule A4: the last exchanges, or a region, and what is current with them."""
    chat = Chat(emacs, provider, api, mode, stream=stream, sections=SECTIONS)
    for question in ("first question", "second question", "another", "one more"):
        chat.send(question)  # gptel lets more through on some APIs than it is told

    chat.lisp("(setq-local gptel--num-messages-to-send 1)")
    limited = chat.send("third question")
    chat.lisp("(setq-local gptel--num-messages-to-send nil)")
    prompt = chat.prompt("only this")
    chat.answer(prompt, [{"text": "fine"}])
    before = len(provider.requests)
    chat.lisp(
        f"(progn (goto-char (point-max)) (insert {json.dumps(prompt)}) (transient-mark-mode 1)"
        f" (set-mark (- (point) {len(prompt)})) (activate-mark) (gptel-send))"
    )
    emacs.call("driver-await", chat.name)
    region = provider.requests[before:]

    accepted(limited + region)
    assert not order(limited[-1], "first question")
    assert blocks(limited[-1]) == ["Weather", "Rules"]
    assert not order(region[-1], "third question")
    assert blocks(region[-1]) == ["Weather", "Rules"]


@pytest.mark.parametrize("api", APIS)
def test_url_el_carries_the_same_deliveries(emacs: Emacs, provider: Loopback, api: str) -> None:
    """H1: the other dispatcher, with a delivery before a tool loop and one behind it."""
    chat = Chat(emacs, provider, api, "org-mode", stream=False, sections=SECTIONS)
    emacs.eval("(setq gptel-use-curl nil)")
    try:
        turn = chat.send("go", two_calls("a", "b"), {"text": "done"})
        observe(emacs, "weather", "rain")
        later = chat.send("and now")
    finally:
        emacs.eval("(setq gptel-use-curl t)")

    accepted(turn + later)
    assert is_prefix(turn[0], turn[1])
    assert blocks(later[0]) == ["Weather", "Rules", "Weather"]
    assert order(later[0], "go", "sunny", "contents of a", "done", "and now", "rain")
