"""What a saved chat is read as, whole and damaged (evidence.md V1).

The files in fixtures/chats were written by gptel: stream.org and plain.txt with reasoning marked as
no part of the conversation, whole.md with it as text, plain.txt without our mode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retention.evidence.chatfiles import BOUNDS, CALL, TITLE, ChatFile, read_chat
from retention.evidence.snapshots import Span
from retention.model import EventKind

CHATS = Path(__file__).resolve().parents[2] / "fixtures" / "chats"
NAMES = ("stream.org", "whole.md", "plain.txt")
USER, ASSISTANT, TEXT = EventKind.USER, EventKind.ASSISTANT, EventKind.TEXT
TOOL, ANALYSIS = EventKind.TOOL_OUTPUT, EventKind.ANALYSIS

QUOTE = "'"
PROMPT = "How is this built? Grüße 😀"


def told(chat: ChatFile) -> list[tuple[EventKind, str]]:
    """Return the events of CHAT that are more than white space, without what is around them."""
    text = chat.snapshot.text
    events = [(span.kind, text[span.start : span.end].strip()) for span in chat.snapshot.spans]
    return [event for event in events if event[1]]


def kinds(chat: ChatFile) -> list[EventKind]:
    return [kind for kind, _ in told(chat)]


def facts(chat: ChatFile) -> set[tuple[EventKind, str]]:
    """Return what is said of any text but that it is text."""
    return {event for event in told(chat) if event[0] is not TEXT}


def tools(chat: ChatFile) -> list[Span]:
    return [span for span in chat.snapshot.spans if span.kind is TOOL]


def saved(name: str) -> str:
    return (CHATS / name).read_bytes().decode()


def read(text: str, name: str) -> ChatFile:
    chat = read_chat(text.encode("utf-8", "surrogateescape"), name)
    assert_exact(chat, text.encode("utf-8", "surrogateescape"))
    return chat


def assert_exact(chat: ChatFile, data: bytes) -> None:
    text, spans = chat.snapshot.text, chat.snapshot.spans
    assert text.encode("utf-8", "surrogateescape") == data
    assert all(span.start < span.end for span in spans)
    assert all(before.end == after.start for before, after in pairwise(spans))
    assert (spans[0].start, spans[-1].end) == (0, len(text)) if text else not spans


def org(bounds: str, text: str) -> str:
    return f":PROPERTIES:\n:GPTEL_BOUNDS: {bounds}\n:END:\n{text}"


def chat_of(text: str, mark: str, *parts: str) -> ChatFile:
    """Return the Markdown chat TEXT, of whose PARTS gptel saved the bounds as MARK says."""
    starts = [text.index(part) + 1 for part in parts]
    pairs = ((at, at + len(part)) for at, part in zip(starts, parts, strict=True))
    written = mark.format(*(place for pair in pairs for place in pair))
    variables = f"<!-- Local Variables: -->\n<!-- gptel--bounds: {written} -->\n<!-- End: -->\n"
    return read(f"{text}\n\n{variables}", "x.md")


def marked(**marks: str) -> str:
    return "(" + " ".join(f"({mark} {places})" for mark, places in marks.items()) + ")"


# What gptel writes


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_chat_tells_who_wrote_what(name: str) -> None:
    chat = read(saved(name), name)

    assert chat.snapshot.warnings == ()
    assert chat.is_chat
    spoken = [event for event in told(chat) if event[0] not in {TEXT, TOOL}]
    analysis = "There are notes.\n```sh\nls\n```\nI read them."
    strong = "*" if name.endswith("org") else "**"
    code = "#+begin_src sh\nmake test\n#+end_src" if strong == "*" else "```sh\nmake test\n```"
    assert [kind for kind, _ in spoken] == [
        USER, ANALYSIS, ASSISTANT, ANALYSIS, ASSISTANT, USER, ASSISTANT, USER,
    ]  # fmt: skip
    assert spoken[0][1] == PROMPT
    assert spoken[1][1].splitlines()[0] in {"#+begin_reasoning", "``` reasoning"}
    assert analysis in spoken[1][1]
    assert spoken[2][1] == "I look at both."
    assert spoken[4][1] == f"With {strong}make all{strong}.\n\nIt says so in the notes."
    assert spoken[5][1].endswith("And tested?")
    assert spoken[6][1] == f"With make test.\n\n{code}"


@pytest.mark.parametrize("name", NAMES)
def test_a_tool_event_is_a_whole_block_with_its_call(name: str) -> None:
    chat = read(saved(name), name)
    first, second = tools(chat)
    text = chat.snapshot.text[first.start : first.end]

    assert re.match(r"(#\+begin_|``` )tool \(read ", text)
    assert text.endswith(("second line\n\n#+end_tool\n", "second line\n\n```\n"))
    assert (first.tool, second.tool) == ("read", "look")
    path = "notes.txt\n```sh\nmake all\n```\n* a star\n#+end_tool"
    assert first.call == json.dumps({"path": path}, separators=(",", ":"))
    assert second.call == '{"path":"Makefile \\"x\\""}'


@pytest.mark.parametrize(("name", "count"), [("stream.org", 0), ("plain.txt", 0), ("whole.md", 2)])
def test_white_space_goes_with_a_message_or_stands_between_blocks(name: str, count: int) -> None:
    chat = read(saved(name), name)
    text, spans = chat.snapshot.text, chat.snapshot.spans
    blank = [at for at, span in enumerate(spans) if text[span.start : span.end].isspace()]

    assert len(blank) == count
    for at in blank:
        assert spans[at].kind is TEXT
        assert {spans[at - 1].kind, spans[at + 1].kind} <= {TOOL, ANALYSIS}


@pytest.mark.parametrize(
    ("name", "mode", "id"),
    [
        ("stream.org", "org", "3f3919bb876266c54987ad9f2b8cbe3b"),
        ("whole.md", "markdown", "294eeca56118e21c305c73ce17f97fc5"),
        ("plain.txt", "text", ""),
    ],
)
def test_what_is_saved_beside_the_conversation_is_plain_text(name: str, mode: str, id: str) -> None:
    chat = read(saved(name), name)

    assert (chat.mode, chat.conversation) == (mode, id)
    beside = [text for kind, text in told(chat) if kind is TEXT]
    assert len(beside) == 1
    assert "_BOUNDS:" in beside[0] or "gptel--bounds:" in beside[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alike", [
    lambda text: text.replace("\n", "\r\n"),
    lambda text: "\ufeff" + text,
    lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    lambda text: text.replace("Grüße", "Gr\0\udcffe"),
    lambda text: text.removesuffix("\n"),
], ids=["dos", "mark", "mark-dos", "raw-bytes", "no-newline"])  # fmt: skip
def test_positions_are_those_of_emacs(name: str, alike: Callable[[str], str]) -> None:
    """A line end of two bytes is one character to Emacs, a byte order mark is none."""
    chat, changed = read(saved(name), name), read(alike(saved(name)), name)

    assert changed.snapshot.warnings == ()
    assert kinds(changed) == kinds(chat)
    assert [(span.tool, span.call) for span in tools(changed)] == [
        (span.tool, span.call) for span in tools(chat)
    ]
    assert changed.conversation == chat.conversation
    for (kind, before), (_, after) in zip(told(chat), told(changed), strict=True):
        if kind is ASSISTANT or kind is TOOL:
            assert after.replace("\r\n", "\n") == before


def test_lines_that_end_in_different_ways_are_as_emacs_has_them() -> None:
    chat = chat_of("hi\r\n\nA\r\nB\n\nmore", "((response ({} {})))", "A\r\nB")

    assert told(chat)[:-1] == [(USER, "hi"), (ASSISTANT, "A\r\nB"), (USER, "more")]
    assert chat.snapshot.warnings == ()


def test_blocks_of_variables_are_no_conversation_and_the_last_counts() -> None:
    """Emacs starts another block when the last is too long for it to be found again."""
    text = saved("plain.txt")
    older = text[text.index(";; Local") :].replace("(response (92 107)", "(response (1 9)")
    chat = read(text.replace(";; Local", f"{older}\n{older}\n;; LOCAL", 1), "plain.txt")

    assert chat.snapshot.warnings == ()
    assert facts(chat) == facts(read(text, "plain.txt"))


def test_a_block_that_is_quoted_in_a_prompt_is_the_users() -> None:
    text = saved("plain.txt").replace("### \n\n;;", "### Why ;; Local Variables:\n;; a: b\n\n;;")
    chat = read(text, "plain.txt")

    assert kinds(chat)[-2:] == [USER, TEXT]
    assert told(chat)[-2][1].endswith(";; a: b")


@pytest.mark.parametrize(
    "before", ["", "# a comment\n\n", "#+TITLE: T\n", "* Heading\nSCHEDULED: <2025-01-01>\n"]
)
def test_the_drawer_may_stand_below_comments_or_the_first_heading(before: str) -> None:
    drawer = org("nil", "")
    chat = read(f"{before}{drawer}text", "x.org")

    assert chat.is_chat
    assert told(chat)[-2:] == [(TEXT, drawer.strip()), (USER, "text")]
    assert not read(f"text\n{before}{drawer}text", "x.org").is_chat


def test_a_chat_without_a_response_yet_is_the_users() -> None:
    chat = read(
        "Hi\n\n<!-- Local Variables: -->\n<!-- gptel--bounds: nil -->\n<!-- End: -->\n", "x.md"
    )

    assert kinds(chat) == [USER, TEXT]
    assert chat.snapshot.warnings == ()


BLOCK = '``` tool (f :a 1)\n(:name "f" :args (:a 1))\n\nresult\n```'


def test_pairs_of_an_early_gptel_are_responses() -> None:
    """It saved no bounds of tools: their blocks tell of them, and a warning of that."""
    chat = chat_of(f"hi\n\nhello\n\n{BLOCK}\n\nbye", "(({} . {}) ({} . {}))", "hello", "bye")
    plain = chat_of("hi\n\nhello", "(({} . {}))", "hello")

    assert kinds(chat) == [USER, ASSISTANT, TOOL, ASSISTANT, TEXT]
    assert "early gptel" in chat.snapshot.warnings[0]
    assert kinds(plain) == [USER, ASSISTANT, TEXT]
    assert plain.snapshot.warnings == ()


def test_a_block_that_the_user_quotes_is_the_users() -> None:
    chat = chat_of(f"see\n{BLOCK}\n\nOK", "((response ({} {})))", "OK")

    assert told(chat)[:-1] == [(USER, f"see\n{BLOCK}"), (ASSISTANT, "OK")]
    assert chat.snapshot.warnings == ()


@pytest.mark.parametrize(
    ("written", "call"),
    [
        ("nil", "{}"),
        ("(:a nil :b t :c :json-false :d :null)", '{"a":{},"b":true,"c":false,"d":{}}'),
        ('(:a [1 2.5 "x"] :b (:c [(:d "e\\"")]))', '{"a":[1,2.5,"x"],"b":{"c":[{"d":"e\\""}]}}'),
        ('(:a "paren ) and ; \\\\")', '{"a":"paren ) and ; \\\\"}'),
    ],
)
def test_arguments_are_canonical_json(written: str, call: str) -> None:
    content = f'\n(:name "f" :args {written})\n\nresult'
    chat = chat_of(f"hi\n``` tool (f){content}\n```\n", '((tool ({} {} "id")))', content)

    assert [(span.tool, span.call) for span in tools(chat)] == [("f", call)]
    assert chat.snapshot.warnings == ()


@pytest.mark.parametrize(
    "written",
    [
        '(:name "f" :args (:a "no end)', '(:name "f" :args (:a))', "(:name 3 :args nil)", "x", "",
        '(:name "f" :args (:a 1e999))', "(" * 500 + ")" * 500, f"(:name 1 {5000 * QUOTE})",
        f'(:name "f" :args (:a {5 * QUOTE}b))',
        f'(:name "f" :args (:a "{"x" * CALL}"))',
    ],
    ids=range(10),
)  # fmt: skip
def test_a_call_that_cannot_be_read_is_known_by_its_first_line(written: str) -> None:
    text = f"hi\n#+begin_tool (f :a)\n{written}\n\nresult\n#+end_tool\n"
    chat = read(org(marked(response="..."), text), "x.org")

    assert [(span.tool, span.call) for span in tools(chat)] == [("f", "")]
    assert "arguments of 1 calls" in chat.snapshot.warnings[-1]


# Titles


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("#+OPTIONS: x\n#+title: My  chat\n*** Hello\n", "My chat"),
        ("*** Hello *there*\nx\n", "Hello *there*"),
        ("*** \n\nx\n", "x"),
        ("***\n#+begin_src\nx\n", "x"),
        ("word " * 100, ("word " * 100)[:TITLE].rstrip()),
        ("a\udcffb", "a\ufffdb"),
        ("", "x.org"),
    ],
)
def test_the_title_is_orgs_or_the_first_line_of_the_first_prompt(text: str, title: str) -> None:
    assert read(org("nil", text), "x.org").snapshot.title == title


def test_a_title_in_a_response_is_none_of_the_chat() -> None:
    chat = chat_of("hi\n\n#+title: No\n\nmore", "((response ({} {})))", "#+title: No")

    assert chat.snapshot.title == "hi"


def test_a_file_without_prompts_is_called_by_its_name() -> None:
    assert read("some text", "notes.txt").snapshot.title == "notes.txt"


# Damage


def test_a_file_without_bounds_is_one_plain_text() -> None:
    text = re.sub(r":GPTEL_BOUNDS.*\n", "", saved("stream.org"))
    for chat in (read(text, "stream.org"), read("Just a file.\n", "x.md")):
        assert kinds(chat) == [TEXT]
        assert len(chat.snapshot.warnings) == 1
        assert "no bounds" in chat.snapshot.warnings[0]
    assert read(text, "stream.org").is_chat
    assert not read("Just a file.\n", "x.md").is_chat


def test_no_bytes_are_no_event() -> None:
    chat = read("", "x.org")

    assert not chat.snapshot.spans
    assert not chat.is_chat


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda bounds: bounds[:-20],
        lambda bounds: "(" + bounds,
        lambda bounds: bounds.replace("((", "((" + "(" * 2_000),
        lambda bounds: "(" + "'" * 5_000 + ")",
        lambda bounds: "#<marker at 1>",
        lambda bounds: bounds.replace("((", f"((x {'(1 2)' * (BOUNDS // 5)}) ("),
        lambda bounds: '"' + bounds,
    ],
    ids=["cut", "open", "deep", "quotes", "object", "huge", "string"],
)
def test_unreadable_bounds_leave_all_but_the_blocks_in_doubt(
    name: str, damage: Callable[[str], str]
) -> None:
    chat = read(re.sub(r"(?<=[Ss]: )\(\(tool.*\)\)", lambda m: damage(m[0]), saved(name)), name)

    assert "cannot be read" in chat.snapshot.warnings[0]
    assert set(kinds(chat)) == {TEXT, TOOL, ANALYSIS}
    assert [span.tool for span in tools(chat)] == ["read", "look"]


CUT = re.compile(r"(\(response \(\d+ \d+\))[^)]*.*?\)\)\)")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_print_left_out_is_in_doubt(name: str) -> None:
    """With `print-length` the later bounds of each kind are `...`: the responses from there on."""
    chat = read(CUT.sub(lambda m: f"{m[1]} ...))".ljust(len(m[0])), saved(name)), name)

    assert "missing" in chat.snapshot.warnings[0]
    assert facts(chat) < facts(read(saved(name), name))
    assert (USER, PROMPT) in told(chat)
    # The first response of whole.md is its reasoning.
    assert kinds(chat).count(ASSISTANT) == (name != "whole.md")
    assert "And tested?" not in "".join(text for _, text in facts(chat))


def test_missing_bounds_of_tools_leave_responses_and_blocks_as_they_are() -> None:
    text = f"hi\n\nhello\n\n{BLOCK}\n\nbye\n\nmore"
    chat = chat_of(text, "((tool ...) (response ({} {}) ({} {})))", "hello", "bye")

    assert kinds(chat) == [TEXT, ASSISTANT, TOOL, ASSISTANT, TEXT]
    assert "missing" in chat.snapshot.warnings[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delta", [*range(-8, 0), *range(1, 25)])
def test_an_edit_without_gptel_is_noticed(name: str, delta: int) -> None:
    """All bounds behind it are moved: nothing is told of any text but its blocks."""
    text = saved(name)
    at = text.index("is this built")
    edited = text[:at] + "q" * delta + text[at - min(delta, 0) :]
    chat = read(edited, name)

    assert "do not fit" in chat.snapshot.warnings[0]
    assert not {USER, ASSISTANT} & set(kinds(chat))
    assert not any("With" in text for _, text in facts(chat))  # as the responses have it
    assert [span.tool for span in tools(chat)] == ["read", "look"]


def many_turns(count: int, edit: Callable[[str, int], str]) -> str:
    """Return a Markdown chat of COUNT turns, where EDIT changed what gptel saved of each."""
    text, places = "", []
    for turn in range(count):
        text += f"### Question {turn}\n\n"
        answer = f"Answer number {turn} it is."
        places.append(f"({len(text) + 1} {len(text) + 1 + len(answer)})")
        text += answer + "\n\n"
    lines = "".join(
        edit(line, number) for number, line in enumerate(text.splitlines(keepends=True))
    )
    bounds = marked(response=" ".join(places))
    return f"{lines}<!-- Local Variables: -->\n<!-- gptel--bounds: {bounds} -->\n<!-- End: -->\n"


def test_bounds_in_front_of_an_edit_stay_facts() -> None:
    text = many_turns(20, lambda line, number: "added\n" + line if number == 40 else line)
    chat = read(text, "x.md")

    answers = [text for kind, text in told(chat) if kind is ASSISTANT]
    assert answers == [f"Answer number {turn} it is." for turn in range(9)]
    assert len(chat.snapshot.warnings) == 2


def test_bounds_that_fit_by_chance_among_many_that_do_not_are_no_facts() -> None:
    """Three characters more: each answer of one letter is the next question of one letter."""
    long = [f"Some question {number}" for number in range(8)]
    words = [*long, *"abcdefghijkl", *long]
    text = "\n\n".join(words)
    starts = [len("\n\n".join(words[:at])) + 2 for at in range(1, len(words), 2)]
    places = "".join(f"({at + 1} {text.index(chr(10), at) + 1})" for at in starts[:-1])
    before, moved = (
        read(
            f"{edited}\n\n;; Local Variables:\n;; gptel--bounds: ((response {places}))\n;; End:\n",
            "x.txt",
        )
        for edited in (text, "abc" + text)
    )

    assert before.snapshot.warnings == ()
    assert kinds(before)[:-1] == [USER, ASSISTANT] * (len(words) // 2 - 1) + [USER]
    assert facts(moved) == set()


@pytest.mark.parametrize(
    ("text", "mark", "part", "fits"),
    [
        ("hi AI: hello\n\nmore", "response", "hello", True),
        ("hi AI:hello\n\nmore", "response", "hello", False),
        ("hi\n\nhello more", "response", "hello", False),
        ("hi\n\nhello\n\nmore", "ignore", "hell", False),
        ("``` reasoning\nhm\n```", "response", "hm", True),
        ("``` reasoning\n\nhm\n```", "response", "hm", False),
        ("``` reasoning\nhm\n```", "ignore", "``` reasoning\nhm\n```", True),
        ("``` reasoning\nhm\n```", "ignore", "asoning\nhm", False),
        (BLOCK, "tool", BLOCK[17:-4], True),
        (BLOCK, "tool", BLOCK[8:-4], True),  # words typed at the end of the first line
        (BLOCK, "tool", BLOCK[17:-5], True),  # or at that of the result
        (BLOCK, "tool", BLOCK[8:-5], False),
        (BLOCK, "tool", BLOCK[18:-4], False),
        (f"{BLOCK}\n\n{BLOCK}", "tool", BLOCK[3:], False),
    ],
)
def test_a_bound_fits_where_gptel_puts_it(text: str, mark: str, part: str, fits: bool) -> None:
    written = f'(({mark} ({{}} {{}} "id")))'
    warned = [w for w in chat_of(text, written, part).snapshot.warnings if "do not fit" in w]

    assert bool(warned) is not fits


def test_bounds_that_overlap_are_no_facts() -> None:
    text, mark = "hello\n\nthere\n\nworld", "((response ({} {}) ({} {})))"
    chat = chat_of(text, mark, "hello\n\nthere", "there\n\nworld")

    assert facts(chat) == set()
    assert "do not fit" in chat.snapshot.warnings[0]


def test_one_response_that_goes_on_in_its_line_is_a_matter_of_its_surroundings() -> None:
    """The user may well write behind the last word of a response."""
    text = many_turns(20, lambda line, _: line)
    odd = text.replace("10 it is.\n\n", "10 it is.!\n", 1)  # without moving what follows
    chat = read(odd, "x.md")

    answers = {text for kind, text in told(chat) if kind is ASSISTANT}
    doubted = {f"Answer number {turn} it is." for turn in (9, 10, 11)}
    assert answers == {f"Answer number {turn} it is." for turn in range(20)} - doubted
    assert "do not fit" in chat.snapshot.warnings[0]


@pytest.mark.parametrize("written", ["nil", "()", "( )", "((response))"])
def test_a_chat_whose_bounds_are_none_is_the_users(written: str) -> None:
    chat = read(org(written, "Hi\n"), "x.org")

    assert told(chat)[1:] == [(USER, "Hi")]
    assert chat.snapshot.warnings == ()


@pytest.mark.parametrize(
    "places",
    ["(40 5)", "(0 9)", "(-5 9)", "(9 99999999999999999999)", "(7 9) (8 12)", "(x y)", "5", "(1)",
     "(5 . x)", "#", '("a" "b")'],
)  # fmt: skip
def test_a_bound_that_cannot_be_is_no_fact(places: str) -> None:
    chat = read(org(marked(response=places), "hello there\nand on and on\n"), "x.org")

    assert facts(chat) == set()
    assert chat.snapshot.warnings


def test_text_that_gptel_keeps_out_is_plain_where_no_block_tells_what_it_is() -> None:
    chat = chat_of("hi\n\nhidden\n\nmore", "((ignore ({} {})))", "hidden")

    assert told(chat)[:-1] == [(USER, "hi"), (TEXT, "hidden"), (USER, "more")]
    assert chat.snapshot.warnings == (
        "gptel keeps text out of the conversation that is in no block: lines 3-3.",
    )


def test_a_block_without_an_end_is_no_block() -> None:
    call = '(:name "f" :args nil)\n\nresult\n'
    text = f"#+begin_tool (f)\n{call}#+begin_tool (g)\n{call.replace('f', 'g')}#+end_tool\n"
    chat = read(org("(x)", text), "x.org")

    assert [span.tool for span in tools(chat)] == ["g"]


# Any bytes

PIECES = st.sampled_from(
    [
        ":PROPERTIES:\n", ":END:\n", "#+begin_tool (f)\n", "#+end_tool\n", "#+begin_reasoning\n",
        "#+end_reasoning\n", "``` tool (f)\n", "``` reasoning\n", "```\n",
        '(:name "f" :args nil)\n', ";; Local Variables:\n", ";; End:\n", ";; gptel--bounds: ",
        ":GPTEL_BOUNDS: ", "\n", "\r\n", "* ", "text ", "\ufeff", "\udcff", "\0", "😀", "\u2028",
    ]
)  # fmt: skip
PLACE = st.integers(-3, 200) | st.just(10**30)
BOUND = st.one_of(
    st.builds("({} {})".format, PLACE, PLACE),
    st.builds('({} {} "id")'.format, PLACE, PLACE),
    st.builds("({} . {})".format, PLACE, PLACE),
    st.sampled_from(["...", "#", "nil", '"', "("]),
)
MARK = st.builds(
    "({} {})".format, st.sampled_from(["response", "tool", "ignore", "...", ""]),
    st.lists(BOUND, max_size=6).map(" ".join),
)  # fmt: skip
WRITTEN = st.lists(MARK, max_size=4).map(lambda marks: f"({' '.join(marks)})")


@given(st.binary(), st.sampled_from(NAMES))
@example(b"\r\n", "stream.org")
def test_any_bytes_are_exact_and_covered(data: bytes, name: str) -> None:
    assert_exact(read_chat(data, name), data)


@given(st.lists(PIECES | st.text(max_size=5), max_size=30), WRITTEN, st.booleans(), st.booleans())
def test_any_bounds_of_any_text_leave_it_exact_and_covered(
    pieces: list[str], written: str, in_org: bool, dos: bool
) -> None:
    text = "".join(pieces).encode("utf-8", "replace").decode()
    variables = f";; Local Variables:\n;; gptel--bounds: {written}\n;; End:\n"
    whole = org(written, text) if in_org else f"{text}\n{variables}"
    whole = whole.replace("\n", "\r\n") if dos else whole

    chat = read(whole, "x.org" if in_org else "x.md")

    assert chat.is_chat
    assert_exact(chat, whole.encode())
