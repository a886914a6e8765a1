"""The public cases that exact replay repairs, each as the conversation that shows it.

A case has its name in the id or in the docstring of its test.  Emacs and gptel are real, and the
provider is as strict as in `test_replay`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from tests.e2e.chat import Chat, accepted, array, is_prefix
from tests.e2e.chat import blocks as reminders
from tests.e2e.emacs import Emacs
from tests.e2e.test_replay import STRICT, has, ids, thoughts, whole
from tests.e2e.test_replay import replace as edit
from tests.loopback import Loopback
from tests.loopback.apis import APIS
from tests.loopback.cache import Cache, count
from tests.loopback.kept import kept
from tests.loopback.recorder import Recorded

SECTIONS = ("weather", "rules")
MODELS = {"bedrock": "claude-opus-4-6"}  # gptel knows the ids of certain models alone
COPILOTS = "new-model"  # that of Copilot's which speaks the Responses API


@pytest.fixture(autouse=True)
def strict(provider: Loopback) -> Iterator[None]:
    """Have the provider check everything, whatever the test before asked for."""
    provider.strictness, provider.chunk = STRICT, 7
    yield
    provider.strictness, provider.chunk = STRICT, 7


def start(
    emacs: Emacs,
    provider: Loopback,
    api: str,
    mode: str = "text-mode",
    model: str = "test-model",
    **options: Any,
) -> Chat:
    """Open a chat with MODEL, or that which API has for it."""
    chat = Chat(emacs, provider, api, mode, **{"sections": SECTIONS} | options)
    choose(chat, MODELS.get(api, model))
    return chat


def choose(chat: Chat, model: str) -> None:
    """Go on with MODEL, also elsewhere: gptel's Copilot looks there at times (case S15)."""
    chat.lisp(
        f"(progn (cl-pushnew '{model} (gptel-backend-models gptel-backend))"
        f" (setq-local gptel-model '{model}) (setq-default gptel-model '{model}))"
    )


def give_tool(chat: Chat, name: str, function: str) -> None:
    """Give CHAT a tool without arguments that does FUNCTION, a Lisp form."""
    chat.lisp(
        f"(setq-local gptel-tools (cons (gptel-make-tool :name {json.dumps(name)} :description"
        f' "Do it" :category "test" :args nil :include t :function {function}) gptel-tools))'
    )


def blocks(*parts: str | dict[str, Any]) -> dict[str, Any]:
    """Return a response that says PARTS: a string is text."""
    return {"blocks": [{"text": part} if isinstance(part, str) else part for part in parts]}


def think(text: str) -> dict[str, Any]:
    return {"thinking": text}


def read(path: str) -> dict[str, Any]:
    """Return a call of `read`."""
    return {"call": {"name": "read", "args": {"path": path}}}


def raw(arguments: str, name: str = "read") -> dict[str, Any]:
    """Return a call whose ARGUMENTS the model wrote so."""
    return {"call": {"name": name, "raw": arguments}}


# Whatever was said comes back

END = blocks("That is all.")
THOUGHT = blocks(think("So it is."), "That is all.")
TWICE = [blocks(think("I look."), "Let me look. ", read("a"), read("b")), THOUGHT]
BY_ROUNDS = [
    blocks(think("One. "), "Let me look. ", read("a")),
    blocks(think("Two. "), read("b")),
    blocks(think("Three. "), "And again. ", read("c")),
    THOUGHT,
]
BESIDE = [blocks("Let me look. ", read("a"), read("b")), END]
THREE = [blocks(read("a"), read("b"), read("c")), END]
BARE = [blocks("It is ", raw("", "now")), END]
NOTHING = [blocks(raw("{}", "clear"), read("a")), END]
ODD = '{ "z": null, "path": "a\\/b", "a": 1e3 ,"m": [1.50, {}] }'
MARKDOWN = "# Not a comment\n\n**Bold**, *slanted* and `code`:\n\n```sh\n# a comment\n* star\n```\n"
BLOCKS = "a\n* star\n#+begin_src sh\n,* comma"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A conversation of two equal turns in which `rounds` are what the provider says.

    `strictness` are flags beside those of `STRICT`.
    """

    names: str
    api: str
    rounds: list[dict[str, Any]]
    mode: str = "text-mode"
    stream: bool = True
    chunk: int | None = 7
    strictness: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What pytest calls it."""
        return f"{self.names}-{self.api}-{'stream' if self.stream else 'whole'}"


def both(names: str, api: str, rounds: list[dict[str, Any]], **options: Any) -> list[Case]:
    """Return the case streamed, and not."""
    return [
        Case(names=names, api=api, rounds=rounds, stream=stream, **options)
        for stream in (True, False)
    ]


def each(names: str, apis: str, rounds: list[dict[str, Any]], **options: Any) -> list[Case]:
    """Return the case, streamed, with each of APIS."""
    return [Case(names=names, api=api, rounds=rounds, **options) for api in apis.split()]


CASES = [
    # Reasoning and signatures
    *both("E1-E2-N29", "deepseek", TWICE),
    *each("E3-S3", "deepseek openrouter copilot ollama", BY_ROUNDS),
    *both("E4", "openai", BESIDE),
    *both("E4", "deepseek", BY_ROUNDS),
    *both("E5-N25-N26", "anthropic", TWICE),
    *both("S1", "anthropic", BY_ROUNDS),
    *each("S2", "anthropic", BY_ROUNDS, chunk=None),
    *both("E7-N33-N40", "gemini", TWICE),
    *both("E8", "gemini", [blocks(think("Hm."), "Hello.", {"empty_text": True})]),
    *both("E9-E13-N30", "responses", TWICE, strictness={"encrypted_by_default": False}),
    *both("N32", "openrouter", [blocks(think("Hm."), {"redacted": True}, "So. ", read("a")), END]),
    *both("N32-N33", "copilot", TWICE),
    # Ids, pairs, order
    *both("E14-E15", "mistral", BESIDE),
    *both("E16-E20-N34", "bedrock", TWICE),
    *each("E24", "anthropic openai deepseek mistral responses gemini ollama bedrock", BARE),
    *each("E23", "anthropic openai deepseek gemini ollama bedrock", NOTHING),
    *each("S4-N39", "anthropic openai mistral responses bedrock", THREE),
    *both("N38-N40", "gemini", THREE, strictness={"gemini_echo_ids": True}),
    # Values and texts
    *each(
        "S9-N22",
        "anthropic openai deepseek mistral responses gemini ollama bedrock",
        [blocks(raw(ODD)), END],
    ),
    *both("S10", "openai", [blocks("\n\n  I look.\n\n", read("a")), blocks("\nIt is so.\n\n")]),
    *each("S10", "anthropic ollama", [blocks("\n I look. \n", read("a")), blocks("\nSo.\n")]),
    *both("E29", "openai", [blocks(MARKDOWN, read("a")), blocks(MARKDOWN)], mode="org-mode"),
    *both("E27-E28", "openai", [blocks(read(BLOCKS)), END], mode="org-mode"),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_what_was_said_comes_back_as_it_was(emacs: Emacs, provider: Loopback, case: Case) -> None:
    """Rules R1, F1, F5, F6: in the loop, and in the next turn."""
    provider.strictness = replace(STRICT, **case.strictness)
    provider.chunk = case.chunk
    chat = start(emacs, provider, case.api, case.mode, stream=case.stream)
    give_tool(chat, "now", '(lambda () "noon")')
    give_tool(chat, "clear", "#'ignore")

    requests = [request for _ in range(2) for request in chat.send("go", *case.rounds)]
    requests += chat.send("and now")

    accepted(requests)
    assert len(requests) == 2 * len(case.rounds) + 1
    whole(requests)
    issued, returned = kept(requests)
    assert returned == issued


# Reasoning


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_that_is_not_asked_for_is_left_out(
    emacs: Emacs, provider: Loopback, stream: bool
) -> None:
    """Case E9: asking is an option; what the server did not keep and did not send stays away."""
    provider.strictness = replace(STRICT, encrypted_by_default=False)
    chat = start(emacs, provider, "responses", stream=stream)
    chat.lisp("(setq-local gptel-retention-request-encrypted-reasoning nil)")

    requests = chat.send("one", *TWICE) + chat.send("two", *TWICE)
    chat.lisp("(kill-local-variable 'gptel-retention-request-encrypted-reasoning)")
    asked = chat.send("three", *TWICE)

    accepted(requests + asked)
    whole(requests + asked)
    assert not any("include" in request.json for request in requests)
    assert kinds(requests[-1]) == {"message", "function_call", "function_call_output"}
    assert all("reasoning.encrypted_content" in request.json["include"] for request in asked)
    assert kinds(asked[-1]) > kinds(requests[-1])


def kinds(request: Recorded) -> set[str]:
    """Return the types of the items of a request."""
    return {item.get("type", "message") for item in array(request)}


@pytest.mark.parametrize("stream", [True, False])
def test_an_edited_answer_goes_out_without_its_thinking(
    emacs: Emacs, provider: Loopback, stream: bool
) -> None:
    """Case N26: blocks of the latest message that changed are left out, those before it stay."""
    provider.strictness = replace(STRICT, exact=False)
    chat = start(emacs, provider, "anthropic", stream=stream)
    turn = chat.send("one", *TWICE)

    chat.lisp(
        '(save-excursion (goto-char (point-max)) (search-backward "That is all.")'
        " (delete-char 4) (insert (propertize \"This\" 'gptel 'response)))"
    )
    later = chat.send("two", *TWICE)

    accepted(turn + later)
    assert has(later[0], "This is all.")
    assert [thoughts(request) for request in (turn[-1], *later)] == [1, 1, 2]


def test_reasoning_stays_with_the_model_that_wrote_it(emacs: Emacs, provider: Loopback) -> None:
    """Case N29: another API is sent none of it; back there, each message has its own."""
    provider.strictness = replace(STRICT, exact=False)
    chat = start(emacs, provider, "deepseek")
    first = chat.send("one", *TWICE)

    chat.lisp('(setq-local gptel-backend (driver-backend "openai"))')
    other = chat.send("two", *BESIDE)
    chat.lisp('(setq-local gptel-backend (driver-backend "deepseek"))')
    back = chat.send("three", *TWICE)

    accepted(first + other + back)
    assert not any(b"reasoning_content" in request.body for request in other)
    assert is_prefix(first[-1], back[0])


# Ids, pairs, roles


@pytest.mark.parametrize("api", ["anthropic", "openai", "mistral", "responses", "bedrock"])
def test_calls_without_ids_get_lasting_ones(emacs: Emacs, provider: Loopback, api: str) -> None:
    """Case E26, rules F7, F10: of a history without the mode, from an API that has no ids."""
    chat = start(emacs, provider, "ollama", plain=True)
    provider.strictness = replace(STRICT, exact=False)
    chat.send("one", blocks(read("a"), read("b")), END)

    chat.lisp(f'(progn (gptel-retention-mode 1) (setq gptel-backend (driver-backend "{api}")))')
    if api in MODELS:
        choose(chat, MODELS[api])
    later = chat.send("two") + chat.send("three")

    accepted(later)
    whole(later)
    assert len(ids(later[0])) == 2


def test_ids_of_another_provider_are_made_legal(emacs: Emacs, provider: Loopback) -> None:
    """Case N37: the same new id for a call and its result; back at the first, its own again."""
    provider.strictness = replace(STRICT, exact=False)
    chat = start(emacs, provider, "responses")
    first = chat.send("one", *TWICE)

    switched = []
    for api in ("mistral", "anthropic", "bedrock", "openai", "responses"):
        chat.lisp(f'(setq-local gptel-backend (driver-backend "{api}"))')
        choose(chat, MODELS.get(api, "test-model"))
        switched += chat.send(f"with {api}")

    accepted(first + switched)
    assert is_prefix(first[-1], switched[-1])
    assert ids(switched[3]) == ids(first[-1]), "what is legal is not rewritten"
    assert not ids(switched[0]) & ids(first[-1])


@pytest.mark.parametrize("api", ["anthropic", "openai", "mistral", "responses", "gemini"])
def test_an_interrupted_call_is_gone(emacs: Emacs, provider: Loopback, api: str) -> None:
    """Case N39, rule F8: C-g while a tool runs; what came before it comes back, it does not."""
    provider.strictness = replace(STRICT, exact=False)
    chat = start(emacs, provider, api)
    give_tool(chat, "hang", "#'ignore :async t")
    prompt = chat.prompt("go")
    chat.answer(prompt, [blocks(read("a"), read("b")), blocks("Wait. ", raw("{}", "hang"))])
    before = len(provider.requests)

    emacs.call("driver-start", chat.name, prompt)
    chat.lisp(
        "(with-timeout (10) (while (not (memq (gptel-fsm-state gptel--fsm-last) '(TOOL)))"
        " (accept-process-output nil 0.02)))"
    )
    turn = provider.requests[before:]
    chat.lisp("(gptel-abort (current-buffer))")
    later = chat.send("two")

    accepted(turn + later)
    assert "hang" not in json.dumps(array(later[0]))
    assert is_prefix(turn[-1], later[0])


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        ("google/gemma-3-27b-it", {("user", "user")}),
        ("ministral-3-14b", {("user", "user"), ("tool", "user")}),
        ("mistral/devstral-2", {("tool", "user")}),
    ],
)
def test_what_is_delivered_fits_the_template(
    emacs: Emacs, provider: Loopback, model: str, refused: set[tuple[str, str]]
) -> None:
    """Cases N5, N35, E45, rule D4: after a prompt and in the loop, and there in the next turn."""
    provider.strictness = replace(STRICT, exact=False)
    chat = start(emacs, provider, "openai", model=model)
    emacs.eval(
        '(setf (alist-get "weather" driver-sections nil nil #\'equal) (let ((n 0))'
        ' (lambda () (format "state %d" (setq n (1+ n))))))'
    )

    requests = chat.send("one", *BESIDE) + chat.send("two", *BESIDE)

    accepted(requests)
    whole(requests)
    assert len(reminders(requests[-1])) == 5
    roles = [element["role"] for element in array(requests[-1])]
    assert not refused & {*pairwise(roles)}


# Cache marks

ANTHROPIC = next(api for api in APIS if api.name == "anthropic")


def use_cache(requests: list[Recorded]) -> list[tuple[int, int, bool]]:
    """Return for each request the tokens that its cache had of it, all of it, and if it has it."""
    cache = Cache()
    found = []
    for request in requests:
        entries = ANTHROPIC.entries(request.json)
        used = cache.use(entries)
        found.append((used.read, count(entries), bool(entries[-1].mark)))
    return found


def marks(request: Recorded, *parts: str) -> int:
    """Return how many cache marks PARTS of a request to Claude carry."""
    return sum(json.dumps(request.json[part]).count("cache_control") for part in parts)


@pytest.mark.parametrize("stream", [True, False])
def test_each_request_reads_all_of_the_one_before(
    emacs: Emacs, provider: Loopback, stream: bool
) -> None:
    """Cases S12, N9, N12, N16, rule C3: in the loop too, and behind more than is looked at."""
    chat = start(emacs, provider, "anthropic", stream=stream)
    chat.lisp("(setq-local gptel-cache t)")
    many = blocks(think("So many."), *(read(f"p{n}") for n in range(12)))

    requests = [r for n in range(2) for r in chat.send(f"turn {n}", BY_ROUNDS[0], many, THOUGHT)]

    accepted(requests)
    whole(requests)
    used = use_cache(requests)
    assert all(kept_whole for *_, kept_whole in used)
    assert [read for read, *_ in used[1:]] == [size for _, size, _ in used[:-1]]
    assert [marks(request, "tools", "system") for request in requests] == [2] * len(requests)
    assert {marks(request, "messages") for request in requests} == {1, 2}


@pytest.mark.parametrize("parts", [2, 3])
def test_marks_of_tools_and_system_leave_as_many_as_they_leave(
    emacs: Emacs, provider: Loopback, parts: int
) -> None:
    """Cases S12, N11, N14: gptel marks each part of a system prompt; a fifth mark is refused."""
    chat = start(emacs, provider, "anthropic")
    system = " ".join(f'"part {n}"' for n in range(parts))
    chat.lisp(f"(setq-local gptel-cache t gptel-system-prompt '(({system})))")

    requests = chat.send("one", *BY_ROUNDS) + chat.send("two", *BY_ROUNDS)

    accepted(requests)
    whole(requests)
    assert {marks(request, "tools", "system") for request in requests} == {parts + 1}
    assert {marks(request, "messages") for request in requests} == {3 - parts}


# The scenarios with the backends that only play here

HOSTS = [
    pytest.param(api, model, stream, id=f"{api}-{model}-{'stream' if stream else 'whole'}")
    for api, model in (
        ("bedrock", "claude-opus-4-6"),
        ("openrouter", "test-model"),
        ("copilot", "test-model"),
        ("copilot", COPILOTS),
    )
    for stream in (True, False)
]
OTHER = {"bedrock": "nova-2-lite-v1", "openrouter": "other-model"}


@pytest.mark.parametrize(("api", "model", "stream"), HOSTS)
def test_scenarios_of_the_other_backends(
    emacs: Emacs, provider: Loopback, api: str, model: str, stream: bool
) -> None:
    """Scenarios 1, 5, 8 and 10: rounds that think, an edit and its undo, a model and back."""
    chat = start(emacs, provider, api, "org-mode", model, stream=stream)
    emacs.eval(
        '(setf (alist-get "weather" driver-sections nil nil #\'equal) (let ((n 0))'
        ' (lambda () (format "state %d" (/ (setq n (1+ n)) 2)))))'
    )

    turns = [r for turn in range(3) for r in chat.send(f"turn {turn}", *BY_ROUNDS)]
    accepted(turns)
    whole(turns)
    issued, returned = kept(turns)
    assert returned == issued
    assert len(reminders(turns[-1])) > 3

    provider.strictness = replace(STRICT, exact=False)
    edit(chat, "contents of a", "contents of z")
    edited = chat.send("edited")
    edit(chat, "contents of z", "contents of a")
    undone = chat.send("undone")
    choose(chat, OTHER.get(api, COPILOTS if model != COPILOTS else "test-model"))
    other = chat.send("with another model", *BESIDE)
    choose(chat, model)
    back = chat.send("and back")

    accepted(edited + undone + other + back)
    assert has(edited[0], "contents of z")
    assert is_prefix(turns[-1], undone[0])
    assert not has(other[0], "One. ")
    assert is_prefix(undone[0], back[0])
