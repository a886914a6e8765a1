"""What the provider answers.

A script is a JSON list.  An entry is a response, taken in order by whichever request comes next, or
`{"match": TEXT, "responses": [...]}`, which answers the requests whose newest prompt contains TEXT.
A response has any of

    text, calls [{name, args}], reasoning     what the model says: reasoning, then text, then calls
    blocks                                    what the model says, as a list in its own order
    delay                                     seconds before the first byte
    status, error                             an HTTP error, with the message `error`
    error                                     alone: an error event after the text
                                              (HTTP 500 if the answer is not streamed)
    quirks                                    names of `quirks.py`: how the stream is written
    cut                                       close the connection after so many bytes of the body

A block is one of

    {"thinking": TEXT}                        reasoning, signed even if TEXT is empty
    {"redacted": true}                        reasoning that is not shown
    {"text": TEXT}
    {"empty_text": true}                      a text part without text that carries a signature
    {"call": {name, args or raw}}             raw: the arguments as the model writes them

Responses of a match are not used up: the results that follow the prompt say which one is due (the
first is due until its calls have results, and so on), so a request that is sent again gets the same
answer, whatever happens in other conversations and however the results are grouped.  Faults (the
last three fields) are used up: each is served once, before the response that follows it.  When
nothing is left the answer is "Reply N.", with N the number of prompts in the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.loopback.model import (
    Answer,
    Block,
    Call,
    EmptyText,
    Json,
    Redacted,
    Step,
    Text,
    Thinking,
)
from tests.loopback.prompts import find_place
from tests.loopback.wire import dumps

FIELDS: dict[str, tuple[type, ...]] = {
    "reasoning": (str,),
    "text": (str,),
    "calls": (list,),
    "blocks": (list,),
    "status": (int,),
    "error": (str,),
    "delay": (int, float),
    "cut": (int,),
    "quirks": (list,),
}


class ScriptError(ValueError):
    """A script is not of the form above, or asks for what an API cannot say."""


@dataclass(slots=True)
class Match:
    """The responses to one prompt, and how many faults before each response were served."""

    text: str
    responses: tuple[Answer, ...]
    served: dict[int, int] = field(default_factory=dict)

    def find(self, results: int) -> Answer | None:
        """The response that is due when RESULTS tool results follow the prompt."""
        calls, faults, position = 0, [], 0
        for response in self.responses:
            if response.is_fault:
                faults.append(response)
                continue
            if calls >= results:
                return self._fault(position, faults) or response
            calls, faults, position = calls + len(response.calls), [], position + 1
        return self._fault(position, faults) if calls >= results else None

    def _fault(self, position: int, faults: Sequence[Answer]) -> Answer | None:
        served = self.served.get(position, 0)
        if served >= len(faults):
            return None
        self.served[position] = served + 1
        return faults[served]


class Script:
    """A script being played.  Not thread-safe: the server holds its lock."""

    def __init__(self, entries: Iterable[Json] = ()) -> None:
        self._queue: deque[Answer] = deque()
        self._matches: list[Match] = []
        for entry in entries:
            if isinstance(entry, dict) and "match" in entry:
                self._matches.append(parse_match(entry))
            else:
                self._queue.append(parse_answer(entry))

    def next(self, steps: Sequence[Step]) -> Answer:
        """The answer to a conversation of STEPS."""
        place = find_place(steps)
        match = next((each for each in self._matches if each.text in place.prompt), None)
        if match is not None:
            found = match.find(place.results)
        else:
            found = self._queue.popleft() if self._queue else None
        return found or Answer(blocks=(Text(f"Reply {place.prompts}."),))


def parse_match(entry: dict[str, Any]) -> Match:
    """A `match` entry."""
    if set(entry) != {"match", "responses"} or not isinstance(entry["match"], str):
        raise ScriptError(f"script: not a match entry: {entry!r}")
    if not isinstance(entry["responses"], list):
        raise ScriptError(f"script: responses is not a list: {entry!r}")
    return Match(entry["match"], tuple(map(parse_answer, entry["responses"])))


def parse_answer(entry: Json) -> Answer:
    """A response."""
    if isinstance(entry, Answer):
        return entry
    if not isinstance(entry, dict):
        raise ScriptError(f"script: not an object: {entry!r}")
    for name, value in entry.items():
        if name not in FIELDS or not isinstance(value, FIELDS[name]):
            raise ScriptError(f"script: no field {name!r} with value {value!r}")
    said = {"reasoning", "text", "calls"} & set(entry)
    if said and "blocks" in entry:
        raise ScriptError(f"script: blocks are all that a model says: {entry!r}")
    blocks = entry.get("blocks") or [
        *({"thinking": entry["reasoning"]} for _ in said & {"reasoning"}),
        *({"text": entry["text"]} for _ in said & {"text"} if entry["text"]),
        *({"call": call} for call in entry.get("calls", ())),
    ]
    others = {name: entry[name] for name in entry if name not in {*said, "blocks", "quirks"}}
    quirks = tuple(map(str, entry.get("quirks", ())))
    return Answer(blocks=tuple(map(parse_block, blocks)), quirks=quirks, **others)


def parse_block(entry: Json) -> Block:
    """A block of a response."""
    match entry:
        case {"thinking": str(text), **rest} if not rest:
            return Thinking(text)
        case {"redacted": True, **rest} if not rest:
            return Redacted()
        case {"text": str(text), **rest} if not rest:
            return Text(text)
        case {"empty_text": True, **rest} if not rest:
            return EmptyText()
        case {"call": dict(call), **rest} if not rest:
            return parse_call(call)
    raise ScriptError(f"script: not a block: {entry!r}")


def parse_call(entry: dict[str, Any]) -> Call:
    """A call of a response."""
    match entry:
        case {"name": str(name), "raw": str(raw), **rest} if not rest:
            call = Call(name, raw)
        case {"name": str(name), "args": dict(args), **rest} if not rest:
            call = Call(name, dumps(args))
        case {"name": str(name), **rest} if not rest:
            call = Call(name)
        case _:
            raise ScriptError(f"script: not a call: {entry!r}")
    try:
        call.args.keys()
    except (AttributeError, ValueError) as error:
        raise ScriptError(f"script: arguments are not a JSON object: {entry!r}") from error
    return call


def want_thinking(answer: Answer, api: str) -> None:
    """Refuse to have API say reasoning that is not plain text."""
    if not all(isinstance(block, Thinking) for block in answer.hidden):
        raise ScriptError(f"script: the {api} API has no reasoning but text")
