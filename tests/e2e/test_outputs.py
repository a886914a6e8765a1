"""Tools that return too much, in real Emacs with real gptel and the real backend.

The tool `show` returns what is in a file, `later` the same after a while, `count` the number of the
call and the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retention.encoding import HOW_TO_READ
from retention.outputs import read_output, segments_of
from retention.store import Store
from tests.e2e.chat import CORNERS, Chat, accepted, array, is_prefix, strings
from tests.e2e.emacs import Emacs, start_emacs
from tests.loopback import Loopback
from tests.loopback.recorder import Recorded

CAP = 16_000  # characters of an excerpt
BLOCKED = 0.2  # seconds that Emacs may be blocked for 1 MB
FILES = ("log.txt", "rows.json", "data.bin", "line.txt")
ENDINGS = {"org-mode": "org", "markdown-mode": "md", "text-mode": "txt"}
OURS = ["recall_output", "search_output"]
SCORER = "A tool returned an output"  # how the question to a model begins

SHOW = (
    "(progn (defvar outputs-count 0)"
    " (defun outputs-show (path) (with-temp-buffer (if (string-suffix-p {bin} path)"
    " (progn (set-buffer-multibyte nil) (insert-file-contents-literally path))"
    " (insert-file-contents path)) (buffer-string)))"
    " (defun outputs-tool (name function) (gptel-make-tool :name name :function function"
    " :async t :include t :category {test} :description {test}"
    " :args (list (list :name {path} :type 'string :description {test}))))"
    " (list (outputs-tool {show} (lambda (then path) (funcall then (outputs-show path))))"
    " (outputs-tool {later} (lambda (then path) (run-at-time 0.05 nil"
    " (lambda () (funcall then (outputs-show path))))))"
    " (outputs-tool {count} (lambda (then path) (funcall then (format {format}"
    " (setq outputs-count (1+ outputs-count)) (outputs-show path)))))))"
).format(
    **{name: f'"{name}"' for name in ("show", "later", "count", "path", "test")},
    bin='".bin"',
    format='"call %d\\n%s"',
)


class Corner(NamedTuple):
    """What a chat is like."""

    api: str
    mode: str
    stream: bool


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with outputs of the kinds that hurt."""
    home = tmp_path_factory.mktemp("outputs")
    log = [f"{n:06d} step {n % 97} of the stage {n % 13} took {n % 331} ms" for n in range(28_000)]
    log[14_000] = "src/parser.c:88:5: error: use of undeclared identifier 'zygote'"
    rows = [{"id": n, "name": f"row {n}", "tags": ["a", "é"]} for n in range(4_000)]
    (home / "log.txt").write_text("\n".join(log) + "\n")
    (home / "rows.json").write_text(json.dumps(rows, separators=(",", ":"), ensure_ascii=False))
    (home / "data.bin").write_bytes(bytes(n * n % 251 + n % 5 for n in range(60_000)))
    (home / "notes.txt").write_text("".join(f"{n} and {n * n}\n" for n in range(6_000)))
    (home / "line.txt").write_text(" ".join(f"word{n}" for n in range(62_000)))
    return home


@pytest.fixture(params=[each.values for each in CORNERS], ids=[each.id for each in CORNERS])
def corner(request: pytest.FixtureRequest) -> Corner:
    """Return an API, a mode and whether answers are streamed, as other tests combine them."""
    return Corner(*request.param)


def open_chat(
    emacs: Emacs,
    provider: Loopback,
    api: str,
    mode: str = "text-mode",
    stream: bool = True,
    **options: Any,
) -> Chat:
    """Open a chat with the tools of this module."""
    chat = Chat(emacs, provider, api, mode, stream=stream, **options)
    chat.lisp(f"(progn (setq-local gptel-tools {SHOW}) t)")
    return chat


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a response with one call."""
    return {"calls": [{"name": name, "args": arguments}]}


def results(request: Recorded, count: int = 1) -> list[str]:
    """Return the results of the COUNT calls that were made last."""
    found = [text for element in array(request)[-count:] for text in strings(element)]
    return sorted(sorted(found, key=len)[-count:])


def identify(excerpt: str) -> str:
    """Return the id of the output of which EXCERPT shows parts."""
    found = re.search(r"\[Whole output: id (o[0-9a-f]{12})\.", excerpt)
    assert found is not None, excerpt[-500:]
    return found.group(1)


def tools(request: Recorded) -> str:
    """Return the tools of REQUEST, as JSON text."""
    return json.dumps(request.json.get("tools"), ensure_ascii=False)


def prefixes(requests: list[Recorded]) -> None:
    """Assert that each of REQUESTS was accepted and begins with the one before it."""
    accepted(requests)
    assert all(is_prefix(*pair) for pair in pairwise(requests))
    assert len({tools(request) for request in requests}) == 1


def test_what_is_too_much_is_sent_as_an_excerpt_and_kept_whole(
    emacs: Emacs, provider: Loopback, home: Path, outputs: Path, corner: Corner
) -> None:
    """Rules O1, O2, O6, S8: a log of 1 MB, minified JSON, bytes, and a line of 600 KB."""
    chat = open_chat(emacs, provider, *corner)
    requests = []
    for name in FILES:
        requests += chat.send(
            "Why does it fail?", call("show", path=str(outputs / name)), {"text": "So."}
        )
        excerpt = results(requests[-1])[0]
        assert 1_000 < len(excerpt) <= CAP
        with closing(Store.open(home / "store")) as store:
            assert read_output(store, identify(excerpt)) == (outputs / name).read_bytes()
        assert f"[whole output {identify(excerpt)}, " not in chat.text()
        assert chat.lisp("(overlay-get (car (last (overlays-in 1 (point-max)))) 'output)")

    prefixes(requests)
    assert len(chat.text()) < len(FILES) * (CAP + 2_000)
    assert "zygote" in results(requests[1])[0]


def test_the_model_recalls_a_segment_and_gets_it_exactly(
    emacs: Emacs, provider: Loopback, outputs: Path, corner: Corner
) -> None:
    """Rules O7, T6, K3: by the ids in the excerpt, page by page; a search; what is not there."""
    chat = open_chat(emacs, provider, *corner)
    whole = (outputs / "log.txt").read_text()
    requests = chat.send("Look.", call("show", path=str(outputs / "log.txt")), {"text": "So."})
    excerpt = results(requests[-1])[0]
    # Which segments are left out as a whole follows from the prompt, whose numbers are in the log.
    segments = {segment.id for segment in segments_of(whole)}
    named = re.findall(r"\b\d+ = (s[0-9a-f]{8})\b", excerpt)
    assert segments.issuperset(named)
    segment = segments_of(whole)[4].id
    asked: dict[str, Any] = {"id": identify(excerpt), "segment": segment}
    text = ""
    for _ in range(3):
        requests += chat.send("More.", call("recall_output", **asked), {"text": "So."})
        page = results(requests[-1])[0]
        found = re.match(
            r"\[\w+: characters (\d+)-(\d+) of (\d+); go on with offset (\d+)\]\n", page
        )
        assert found is not None
        assert len(page) <= 6_000
        assert page[found.end() :] == whole[int(found[1]) : int(found[2])]
        assert int(found[3]) == len(whole)
        text += page[found.end() :]
        asked["offset"] = int(found[4])
    assert len(text) > 12_000
    assert text in whole

    for name, asked, expected in (
        ("search_output", {"query": "zygote"}, f"{identify(excerpt)}:14001: src/parser.c:88:5:"),
        ("recall_output", {"id": "o000000000000"}, "recall_output failed and has no result"),
    ):
        requests += chat.send("More.", call(name, **asked), {"text": "So."})
        assert expected in results(requests[-1])[0]
    assert "\n" not in results(requests[-1])[0]

    prefixes(requests)
    assert [name in tools(requests[0]) for name in OURS] == [True, True]
    assert json.dumps(HOW_TO_READ, ensure_ascii=False)[1:-1] in tools(requests[0])


def test_equal_calls_in_one_round_keep_their_own_results(
    emacs: Emacs, provider: Loopback, outputs: Path, corner: Corner
) -> None:
    """Rule O9: two parallel calls with equal arguments and unlike results."""
    chat = open_chat(emacs, provider, *corner)
    emacs.eval("(setq outputs-count 0)")
    both = {"calls": call("count", path=str(outputs / "log.txt"))["calls"] * 2}
    requests = chat.send("Go.", both, {"text": "So."})
    sent = [text for text in strings(array(requests[-1])) if "[Whole output" in text]

    assert [re.findall(r"^call (\d)$", text, re.MULTILINE) for text in sorted(sent)]
    assert len({identify(text) for text in sent}) == 2
    assert sorted("".join(re.findall(r"^call (\d)$", text, re.MULTILINE)) for text in sent) == [
        "1", "2",
    ]  # fmt: skip
    prefixes(requests + chat.send("And?"))


def test_a_repeated_result_is_told_as_such(emacs: Emacs, provider: Loopback, outputs: Path) -> None:
    """Rule O3: what an earlier result said already is not sent again."""
    chat = open_chat(emacs, provider, "openai")
    show = call("later", path=str(outputs / "log.txt"))
    first = chat.send("Go.", show, {"text": "So."})
    second = chat.send("Again.", show, {"text": "So."})

    note = results(second[-1])[0]
    assert len(note) < 1_000
    assert identify(results(first[-1])[0]) in note
    prefixes(first + second)


def test_a_sub_agent_gets_excerpts_and_recalls(
    emacs: Emacs, provider: Loopback, outputs: Path
) -> None:
    """Rule O9: a request of its own prompt, as a tool of the chat may make it."""
    chat = open_chat(emacs, provider, "anthropic")
    chat.send("Hello.")
    prompt = "sub-agent, look at the log"
    chat.answer(prompt, [call("show", path=str(outputs / "log.txt")), {"text": "found it"}])
    before = len(provider.requests)
    answer = chat.lisp(
        f'(let (done) (gptel-request "{prompt}" :callback (lambda (r _i) (when (stringp r)'
        " (setq done r)))) (with-timeout (20) (while (not done) (accept-process-output nil 0.02)))"
        " done)"
    )

    requests = provider.requests[before:]
    assert answer == "found it"
    assert "zygote" in results(requests[-1])[0]
    assert len(results(requests[-1])[0]) <= CAP
    assert [name in tools(requests[0]) for name in OURS] == [True, True]
    prefixes(requests)
    assert identify(results(requests[-1])[0]) in listed(chat)


def listed(chat: Chat) -> str:
    """Return the view of the outputs of CHAT."""
    return str(
        chat.lisp("(save-window-excursion (with-current-buffer (gptel-retention-outputs)"
                  " (buffer-substring-no-properties (point-min) (point-max))))")
    )  # fmt: skip


def test_a_saved_chat_goes_on_with_the_same_excerpt_and_tools(
    tmp_path: Path, provider: Loopback, outputs: Path, corner: Corner
) -> None:
    """Rules O2, O7: save, kill Emacs, reopen; the whole output is there and can be recalled."""
    file = tmp_path / f"chat.{ENDINGS[corner.mode]}"
    with start_emacs(tmp_path, provider.port) as emacs:
        chat = open_chat(emacs, provider, *corner, file=str(file))
        requests = chat.send("Go.", call("show", path=str(outputs / "log.txt")), {"text": "So."})
        chat.lisp("(let ((inhibit-message t)) (save-buffer))")
    id = identify(results(requests[-1])[0])
    assert "[whole output" not in file.read_text()

    with start_emacs(tmp_path, provider.port) as emacs:
        emacs.eval("(setq gptel-retention-output-tools nil)")
        chat = open_chat(emacs, provider, *corner, file=str(file))
        requests += chat.send("And?", call("recall_output", id=id, pattern="zygote"), {"text": "!"})
        assert id in listed(chat)
        shown = chat.lisp(
            f'(save-window-excursion (with-current-buffer (gptel-retention-show-output "{id}")'
            " (secure-hash 'sha256 (current-buffer))))"
        )
        assert shown == chat.lisp(
            f'(with-temp-buffer (insert-file-contents "{outputs / "log.txt"}")'
            " (secure-hash 'sha256 (current-buffer)))"
        )

    assert "src/parser.c:88:5: error" in results(requests[-1])[0]
    prefixes(requests)


def test_without_a_backend_the_original_goes_on(
    tmp_path: Path, provider: Loopback, outputs: Path
) -> None:
    """Rules O1, S8: whole, and fit for JSON."""
    with start_emacs(tmp_path, provider.port, ["/nonexistent/retention"]) as emacs:
        chat = open_chat(emacs, provider, "openai")
        requests = []
        for name in ("line.txt", "data.bin"):
            requests += chat.send("Go.", call("show", path=str(outputs / name)), {"text": "So."})

    accepted(requests)
    assert results(requests[1])[0] == (outputs / "line.txt").read_text()
    assert "\ufffd" in results(requests[3])[0]


def test_a_model_scores_the_segments(emacs: Emacs, provider: Loopback, outputs: Path) -> None:
    """Rule O5: the question goes out apart from the chat; what the answer says is kept."""
    chat = open_chat(emacs, provider, "openai")
    scores = {"whole": 0.0} | {f"segment_{n}": 0.95 if n == 7 else 0.0 for n in range(1, 17)}
    show = call("count", path=str(outputs / "notes.txt"))
    chosen = chat.send("Go.", show, {"text": "So."})
    chat.lisp("(setq-local gptel-retention-output-scorer 'model)")
    prompt = chat.prompt()
    chat.answer(prompt, [show, {"text": "So."}])
    chat.answer(SCORER, [{"text": json.dumps(scores)}])  # the question quotes the prompt
    emacs.call("driver-type", chat.name, prompt)
    scored = chat.send(None)

    asked = [request for request in scored if SCORER in str(array(request)[-1])]
    assert len(asked) == 1
    assert "tools" not in asked[0].json
    assert len(asked[0].body) < 70_000
    omitted = [re.findall(r"\b(\d+) = s", results(each[-1])[0]) for each in (chosen, scored)]
    assert ["7" in numbers for numbers in omitted] == [True, False]
    prefixes([request for request in chosen + scored if request not in asked])


@pytest.fixture
def watched(emacs: Emacs) -> Iterator[Emacs]:
    """Let Emacs note the longest time in which no timer ran."""
    emacs.eval(
        "(progn (defvar outputs-longest 0) (defvar outputs-last nil)"
        " (defvar outputs-timer nil) (setq outputs-timer (run-at-time 0 0.005 (lambda ()"
        " (let ((now (float-time))) (when outputs-last (setq outputs-longest"
        " (max outputs-longest (- now outputs-last)))) (setq outputs-last now))))) t)"
    )
    yield emacs
    emacs.eval("(cancel-timer outputs-timer)")


def test_emacs_is_not_blocked(watched: Emacs, provider: Loopback, outputs: Path) -> None:
    """A result of 1 MB blocks Emacs for less than 200 ms, from the tool to the next request."""
    assert (outputs / "log.txt").stat().st_size > 1_000_000
    times = []
    for _ in range(3):
        chat = open_chat(watched, provider, "openai")
        watched.eval("(setq outputs-longest 0 outputs-last nil)")
        chat.send("Go.", call("show", path=str(outputs / "log.txt")), {"text": "So."})
        times.append(float(watched.eval("outputs-longest")))
    print("longest time without a timer, in seconds:", times)
    assert 0 < min(times) < BLOCKED
