"""Published message rules, as functions over a read array; a provider names those that it has.

Each rule yields a `Reason` per breach: a stable code, and a detail that begins with the index of
the element.  The sources and wordings of the refusals are in docs/providers.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from retention.errors import InvalidPayload
from retention.model import PartKind, Reason, Role
from retention.providers.canonical import WHITE, Element, Piece

Rule = Callable[[list[Element]], Iterator[Reason]]

MAX_MARKS = 4  # cache marks of one request, Anthropic and Bedrock with Claude


def make_check(
    read: Callable[[bytes], Element], *rules: Rule
) -> Callable[[list[bytes]], tuple[Reason, ...]]:
    """Return the `check` of a provider: elements that READ refuses, else what breaks RULES."""

    def check(array: list[bytes]) -> tuple[Reason, ...]:
        elements: list[Element] = []
        unread: list[Reason] = []
        for at, raw in enumerate(array):
            try:
                elements.append(read(raw))
            except InvalidPayload as error:
                unread.append(Reason(code="shape", detail=f"{at}: {error}"))
        if unread:
            return tuple(unread)
        return tuple(reason for rule in rules for reason in rule(elements))

    return check


def _reason(code: str, at: int, detail: str = "") -> Reason:
    return Reason(code=code, detail=f"{at}: {detail}" if detail else str(at))


# Calls and results


def pair_calls(elements: list[Element], single: bool = False) -> Iterator[Reason]:
    """Results follow their calls at once and completely, nothing else before or between them.

    SINGLE: all results of a group stand in one element.  Calls without an id are told apart by
    their number alone.
    """
    due: list[str | None] = []
    done: set[str | None] = set()
    for at, element in enumerate(elements):
        for piece in element.pieces:
            if piece.kind is PartKind.RESULT:
                if element.role is Role.ASSISTANT:
                    yield _reason("result_role", at, str(piece.id))
                elif piece.id in due:
                    due.remove(piece.id)
                    done.add(piece.id)
                elif piece.id is not None and piece.id in done:
                    yield _reason("result_duplicate", at, piece.id)
                else:
                    yield _reason("result_orphan", at, str(piece.id))
            elif element.role is not Role.ASSISTANT and due:
                yield from _name_due(due, at)
        if due and (single or element.role is Role.ASSISTANT or not element.pieces):
            yield from _name_due(due, at)
        if element.role is Role.ASSISTANT:
            done.clear()
            due = [piece.id for piece in element.pieces if piece.kind is PartKind.CALL]
    yield from _name_due(due, len(elements))


def pair_calls_single(elements: list[Element]) -> Iterator[Reason]:
    """As `pair_calls`, all results of a group in the one next element."""
    return pair_calls(elements, single=True)


def pair_calls_merged(elements: list[Element]) -> Iterator[Reason]:
    """As `pair_calls`, after neighbours of one role were combined (Anthropic)."""
    return pair_calls(merge_roles(elements))


def answer_calls(elements: list[Element]) -> Iterator[Reason]:
    """Each call has one result somewhere after it, each result a call before it (Responses)."""
    due: dict[str | None, int] = {}
    done: set[str | None] = set()
    for at, element in enumerate(elements):
        for piece in element.pieces:
            if piece.kind is PartKind.CALL:
                due[piece.id] = at
            elif piece.kind is PartKind.RESULT:
                if piece.id in due:
                    del due[piece.id]
                    done.add(piece.id)
                else:
                    code = "result_duplicate" if piece.id in done else "result_orphan"
                    yield _reason(code, at, str(piece.id))
    for id, at in due.items():
        yield _reason("call_unanswered", at, str(id))


def _name_due(due: list[str | None], at: int) -> Iterator[Reason]:
    for id in due:
        yield _reason("call_unanswered", at, str(id))
    due.clear()


def merge_roles(elements: list[Element]) -> list[Element]:
    """Combine neighbours of one role; a message with results counts as the user's."""
    merged: list[Element] = []
    for element in elements:
        role = Role.USER if element.role is Role.TOOL else element.role
        if merged and merged[-1].role is role:
            last = merged[-1]
            merged[-1] = Element(role, last.pieces + element.pieces, last.marks + element.marks)
        else:
            merged.append(Element(role, element.pieces, element.marks))
    return merged


def _calls(elements: list[Element]) -> Iterator[tuple[int, Piece]]:
    for at, element in enumerate(elements):
        for piece in element.pieces:
            if piece.kind is PartKind.CALL:
                yield at, piece


def unique_ids(elements: list[Element]) -> Iterator[Reason]:
    """No two calls of a request share an id."""
    seen: set[str] = set()
    for at, piece in _calls(elements):
        if piece.id is not None and piece.id in seen:
            yield _reason("call_duplicate", at, piece.id)
        elif piece.id is not None:
            seen.add(piece.id)


def match_ids(pattern: str) -> Rule:
    """Each call has an id that matches PATTERN as a whole."""
    compiled = re.compile(pattern)

    def rule(elements: list[Element]) -> Iterator[Reason]:
        for at, piece in _calls(elements):
            if not compiled.fullmatch(piece.id or ""):
                yield _reason("call_id", at, str(piece.id))

    return rule


def match_names(pattern: str) -> Rule:
    """Each call names a tool that matches PATTERN as a whole."""
    compiled = re.compile(pattern)

    def rule(elements: list[Element]) -> Iterator[Reason]:
        for at, piece in _calls(elements):
            if not compiled.fullmatch(piece.text):
                yield _reason("call_name", at, piece.text)

    return rule


# Roles


def last_role(*roles: Role) -> Rule:
    """The last element has one of ROLES."""

    def rule(elements: list[Element]) -> Iterator[Reason]:
        if not elements:
            yield _reason("no_messages", 0)
        elif elements[-1].role not in roles:
            yield _reason("last_role", len(elements) - 1, elements[-1].role.value)

    return rule


def first_role(*roles: Role) -> Rule:
    """The first element has one of ROLES."""

    def rule(elements: list[Element]) -> Iterator[Reason]:
        if elements and elements[0].role not in roles:
            yield _reason("first_role", 0, elements[0].role.value)

    return rule


def alternate(elements: list[Element]) -> Iterator[Reason]:
    """The user's elements, with or without results, and the assistant's take turns (Bedrock)."""
    previous: bool | None = None
    for at, element in enumerate(elements):
        assistant = element.role is Role.ASSISTANT
        if assistant is previous:
            yield _reason("alternation", at, element.role.value)
        previous = assistant


def follow_roles(table: dict[Role, tuple[Role, ...]]) -> Rule:
    """After an element of a role in TABLE comes one of the roles that TABLE lists (Mistral)."""

    def rule(elements: list[Element]) -> Iterator[Reason]:
        for at in range(1, len(elements)):
            before, role = elements[at - 1].role, elements[at].role
            if role not in table[before]:
                yield _reason("role_order", at, f"{role.value} after {before.value}")

    return rule


def place_calls(elements: list[Element]) -> Iterator[Reason]:
    """An element with calls comes after one of the user, with or without results (Gemini)."""
    for at, element in enumerate(elements):
        calls = any(piece.kind is PartKind.CALL for piece in element.pieces)
        if calls and (at == 0 or elements[at - 1].role is Role.ASSISTANT):
            yield _reason("call_place", at)


# Content


def no_empty_content(elements: list[Element]) -> Iterator[Reason]:
    """Each element has content.

    Anthropic lets a last one of the assistant go without; `last_role` names that one anyway.
    """
    for at, element in enumerate(elements):
        if not element.pieces:
            yield _reason("empty_content", at)


def no_empty_text(elements: list[Element]) -> Iterator[Reason]:
    """No piece of text is empty or blank."""
    for at, element in enumerate(elements):
        if any(p.kind is PartKind.TEXT and not p.text.strip(WHITE) for p in element.pieces):
            yield _reason("empty_text", at)


def results_alone(elements: list[Element]) -> Iterator[Reason]:
    """An element with results holds nothing else."""
    for at, element in enumerate(elements):
        kinds = {piece.kind for piece in element.pieces}
        if PartKind.RESULT in kinds and kinds & {PartKind.TEXT, PartKind.MEDIA, PartKind.CALL}:
            yield _reason("mixed_results", at)


def few_marks(elements: list[Element]) -> Iterator[Reason]:
    """The array has at most four cache marks, those of an hour before those of minutes."""
    count, short = 0, False
    for at, element in enumerate(elements):
        for lifetime in element.marks:
            count += 1
            if count > MAX_MARKS:
                yield _reason("marks", at, f"{count} of {MAX_MARKS}")
            if lifetime == "1h" and short:
                yield _reason("mark_order", at, "1h after 5m")
            short = short or lifetime != "1h"
