"""Conversations as gptel saves them: the script of one becomes a chat file with its bounds.

A script is text below lines that say whose it is: `@@ user`, `@@ assistant`, `@@ reasoning` and
`@@ tool NAME ARGUMENTS`, the arguments a JSON object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.retrieval import ROOT

SCRIPTS = ROOT / "scripts"

_SPEAKER = re.compile(r"^@@ (user|assistant|reasoning|tool)(?: (\S+) (\{.*\}))?\n", re.MULTILINE)
_PREFIXES = {"org": "*** ", "md": "### ", "txt": "### "}  # of prompts, by extension
_ORG_MARKUP = re.compile(r"^([ \t]*)(,*(?:\*|#\+))", re.MULTILINE)


class Turn(NamedTuple):
    """What somebody says; `tool` and `call` are those of a tool's result."""

    who: str
    text: str
    tool: str = ""
    call: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Stretch(NamedTuple):
    """A piece of a buffer and its `gptel` text property, "" for none."""

    text: str
    property: str = ""
    value: str = ""  # the id of a call


def read_script(script: str) -> list[Turn]:
    """Return the turns of SCRIPT."""
    found = list(_SPEAKER.finditer(script))
    ends = [turn.start() for turn in found[1:]] + [len(script)]
    texts = [script[turn.end() : end].strip("\n") for turn, end in zip(found, ends, strict=True)]
    return [
        Turn(turn[1], text, turn[2] or "", json.loads(turn[3] or "{}"))
        for turn, text in zip(found, texts, strict=True)
    ]


def render(turns: Iterable[Turn], mode: str) -> str:
    """Return TURNS as a saved chat; MODE is the extension of its name: org, md or txt."""
    stretches = list(_stretches(turns, mode))
    body = "".join(stretch.text for stretch in stretches)
    if mode != "org":
        return body + _file_locals(_bounds(stretches, 0), mode)
    head, before = "", None
    while head != before:  # the drawer stands in front of what it counts, and grows with it
        head, before = _drawer(_bounds(stretches, len(head))), head
    return head + body


def write_chats(directory: Path) -> list[Path]:
    """Write the chat of each script into DIRECTORY, and return the files."""
    files = []
    for script in sorted(SCRIPTS.glob("*.txt")):
        file = directory / script.stem
        text = render(read_script(script.read_text(encoding="utf-8")), file.suffix[1:])
        file.write_text(text, encoding="utf-8")
        files.append(file)
    return files


def _stretches(turns: Iterable[Turn], mode: str) -> Iterator[Stretch]:
    before = ""
    for number, turn in enumerate(turns):
        made = _BLOCKS.get((turn.who, mode == "org"), _answer)
        if turn.who == "user":
            gap = "\n\n" if before else ""
            yield Stretch(f"{gap}{_PREFIXES[mode]}{turn.text}")
        elif before in {"", "user"}:
            yield Stretch("\n\n")
        else:
            yield Stretch("\n\n", "response" if turn.who == before == "assistant" else "")
        if turn.who != "user":
            yield from made(turn, f"call_{number}")
        before = turn.who
    yield Stretch(f"\n\n{_PREFIXES[mode]}")


def _answer(turn: Turn, _id: str) -> Iterator[Stretch]:
    yield Stretch(turn.text, "response")


def _org_tool(turn: Turn, id: str) -> Iterator[Stretch]:
    yield Stretch(f"#+begin_tool {_shown(turn)}")
    body = f"\n{_called(turn)}\n\n{turn.text}"
    yield Stretch(_ORG_MARKUP.sub(r"\1,\2", body), "tool", id)
    yield Stretch("\n#+end_tool\n")


def _markdown_tool(turn: Turn, id: str) -> Iterator[Stretch]:
    yield Stretch(f"``` tool {_shown(turn)}", "ignore")
    yield Stretch(f"\n{_called(turn)}\n\n{turn.text}", "tool", id)
    yield Stretch("\n```\n", "ignore")


def _org_reasoning(turn: Turn, _id: str) -> Iterator[Stretch]:
    yield Stretch("#+begin_reasoning\n")
    yield Stretch(turn.text, "ignore")
    yield Stretch("\n#+end_reasoning")


def _markdown_reasoning(turn: Turn, _id: str) -> Iterator[Stretch]:
    yield Stretch(f"``` reasoning\n{turn.text}\n```", "ignore")


_BLOCKS: dict[tuple[str, bool], Callable[[Turn, str], Iterator[Stretch]]] = {
    ("tool", True): _org_tool,
    ("tool", False): _markdown_tool,
    ("reasoning", True): _org_reasoning,
    ("reasoning", False): _markdown_reasoning,
}


def _shown(turn: Turn) -> str:
    """Return the call of TURN as its block's first line shows it, cut like in a narrow window."""
    arguments = "".join(f" :{key} {_lisp(value)}" for key, value in turn.call.items())
    call = f"({turn.tool}{arguments})"
    return call if len(call) <= 60 else f"{call[:55]} ...)"


def _called(turn: Turn) -> str:
    arguments = " ".join(f":{key} {_lisp(value)}" for key, value in turn.call.items())
    return f"(:name {_lisp(turn.tool)} :args ({arguments}))"


def _lisp(value: object) -> str:
    """Return VALUE, a string or a number, as Emacs prints it."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _bounds(stretches: Iterable[Stretch], offset: int) -> str:
    """Return the bounds of STRETCHES that begin OFFSET characters into the buffer.

    Each property has a list of (begin end) or (begin end value), positions from 1.  Neighbours with
    one property are one; the properties stand in the order of their last stretches.
    """
    lists: dict[str, list[tuple[int, int, str]]] = {}
    position = offset + 1
    for stretch in stretches:
        end = position + len(stretch.text)
        if stretch.property and stretch.text:
            bounds = lists.pop(stretch.property, [])
            if bounds and bounds[-1][1:] == (position, stretch.value):
                position = bounds.pop()[0]
            lists[stretch.property] = [*bounds, (position, end, stretch.value)]
        position = end
    return "(" + " ".join(f"({name} {_pairs(bounds)})" for name, bounds in lists.items()) + ")"


def _pairs(bounds: Iterable[tuple[int, int, str]]) -> str:
    return " ".join(f"({begin} {end}{f' {_lisp(id)}' if id else ''})" for begin, end, id in bounds)


def _drawer(bounds: str) -> str:
    lines = (":GPTEL_MODEL: quill-large", ":GPTEL_BACKEND: Quill", f":GPTEL_BOUNDS: {bounds}")
    return "\n".join((":PROPERTIES:", *lines, ":END:", ""))


def _file_locals(bounds: str, mode: str) -> str:
    lines = ("Local Variables:", "gptel-model: quill-large", f"gptel--bounds: {bounds}", "End:")
    frame = "<!-- {} -->\n" if mode == "md" else "{}\n"
    return "\n\n" + "".join(map(frame.format, lines))
