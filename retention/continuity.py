"""A request compared with the one before it: what repeats, and why the rest does not.  Pure.

`compare` finds the first difference and its cause (rule C1), `judge` sets what should repeat beside
what the provider reports (rule C2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from retention.arrays import Item, Read, Sent
from retention.digest import Digest
from retention.estimating import estimate_size
from retention.model import (
    START,
    Cause,
    Continuity,
    Face,
    Message,
    Reason,
    Role,
    Struct,
    Usage,
)
from retention.providers import Head

CONTEXT = 60  # characters shown on either side of a difference
VALUE = 40  # characters of a parameter's value in `Continuity.detail`
NAMES = 3  # tools named in `Continuity.detail` for each kind of change
PATH = 200  # characters of a path; names inside a call's arguments are the model's own


class Compared(Struct, frozen=True):
    """One side of a comparison: where the request goes, what stands in front of the array (None if
    not known), the array as it goes out; of the later one also the REASONS of its plan.
    """

    identity: Digest
    head: Head | None
    sent: Sent
    reasons: tuple[Reason, ...] = ()


# What differs


def compare(
    before: Compared | None, after: Compared, *, common: int, array: str, read: Read
) -> Continuity:
    """Return how AFTER compares with BEFORE, None if the conversation has sent nothing.

    COMMON elements are equal from the start; work is proportional to those behind them.  ARRAY
    names the payload's array in paths.  READ returns the text of a stored element; "…" stands for
    one that cannot be read.
    """
    total = after.sent.ends[-1] if after.sent.ends else 0
    if before is None:
        return Continuity(cause=Cause.FIRST, total=total)
    if before.identity != after.identity:
        return Continuity(cause=Cause.PROVIDER, total=total)
    found = _head_change(before.head, after.head)
    if found is None:
        found = _array_change(before, after, common, array, read)
    head = after.head or Head()
    sizes = (len(head.tools), len(head.system), after.sent.ends[common - 1] if common else 0)
    # Nothing repeats behind a change in front of the array, in the order that providers read.
    kept = _READ_BEFORE.get(found.cause, len(sizes)) if found.element < 0 else len(sizes)
    return msgspec.structs.replace(
        found,
        reused=sum(sizes[2:kept]),
        total=total,
        tokens=estimate_size(sum(sizes[:kept])),
    )


# How many of (tools, system, array) a provider reads before the change.  What a parameter spoils
# differs by provider and model: all of them still repeat.
_READ_BEFORE = {Cause.TOOLS: 0, Cause.SYSTEM: 1}


def _head_change(before: Head | None, after: Head | None) -> Continuity | None:
    """Return the first change in front of the array, None if there is none or it is not known."""
    if before is None or after is None:
        return None
    if before.tools != after.tools:
        detail = _tools_change(before.tools, after.tools)
        return _change(Cause.TOOLS, detail, "tools", before.tools, after.tools)
    if before.system != after.system:
        return _change(Cause.SYSTEM, "", "system", before.system, after.system)
    for name in before.parameters | after.parameters:
        old, new = before.parameters.get(name, b""), after.parameters.get(name, b"")
        if old != new:
            detail = f"{name}: {_value(old)} -> {_value(new)}"
            return _change(Cause.PARAMETER, detail, name, old, new)
    return None


def _value(text: bytes) -> str:
    return _cut(text.decode("utf-8", "replace"), VALUE) if text else "absent"


def _tools_change(before: bytes, after: bytes) -> str:
    """Return which tools were added, removed and changed, or that only their order was."""
    old, new = dict(_definitions(_decode(before))), dict(_definitions(_decode(after)))
    kinds = {
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    changes = [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]
    if not changes and list(old) != list(new):
        return "reordered"
    return "; ".join(changes)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(_cut(name, VALUE) for name in names[:NAMES]) + more


# What APIs wrap around the definitions of tools.
_WRAPPERS = ("function", "function_declarations", "functionDeclarations", "tools", "toolSpec")


def _definitions(value: object) -> Iterator[tuple[str, object]]:
    """Yield the definitions in the tools VALUE of any API, each with its name."""
    if isinstance(value, list):
        for item in value:
            yield from _definitions(item)
    elif isinstance(value, dict):
        inner = [value[name] for name in _WRAPPERS if name in value]
        if inner:
            yield from _definitions(inner)
        else:  # a tool that the provider runs itself may have but a type, or a key of its own
            yield str(value.get("name") or value.get("type") or next(iter(value), "")), value


def _array_change(
    before: Compared, after: Compared, common: int, array: str, read: Read
) -> Continuity:
    ours, theirs = before.sent.items[common:], after.sent.items[common:]
    if not ours:
        return Continuity(cause=Cause.NONE)
    old, new = ours[0], theirs[0] if theirs else None
    cause, detail = _array_cause(ours, theirs, after.reasons)
    same_place = cause is not Cause.FILTERED and detail not in {INSERTED, MOVED}
    change = _change(
        cause,
        detail,
        f"{array}.{common}",
        _text(old, read),
        _text(new, read) if new else b"",
        inside=same_place and new is not None and new.message.role is old.message.role,
    )
    return msgspec.structs.replace(change, element=common)


UNREAD = "…"  # stands for a text that cannot be read


def _text(item: Item, read: Read) -> bytes:
    return item.message.raw or read(item.message.exact) or UNREAD.encode()


INSERTED, MOVED = "inserted", "moved"  # details of messages that were edited

# Why a row that both requests have went out otherwise, by the code of the plan's reason.
_ALTERED = {
    "context_moved": (Cause.EDITED, "context moved"),
    "repaired": (Cause.FRAGMENT, "repaired"),
}

# Why a delivery does not stand where it did, by the code of the plan's reason.
_UNPLACED = {
    "refused": "edits are held back",
    "delivery_lost": "its text cannot be read",
    "host_lost": "the message that it was in cannot be read",
    "no_boundary": "it may stand nowhere",
}


def _array_cause(
    ours: Sequence[Item], theirs: Sequence[Item], reasons: Sequence[Reason]
) -> tuple[Cause, str]:
    """Return why THEIRS follow where OURS did: elements of two arrays from the first difference."""
    old, new = ours[0], theirs[0] if theirs else None
    known = {id for item in ours for id in item.ids}
    kept = {id for item in theirs for id in item.ids}
    if Role.SYSTEM in {item.message.role for item in (*ours[:1], *theirs[:1])}:
        return Cause.SYSTEM, ""
    if (old.row == START or old.row in kept) and not kept.issuperset(old.deliveries):
        return Cause.DELIVERY, _why_unplaced(reasons)
    if new is None or (new.row == START and new.last < START):
        return Cause.FILTERED, "it ends earlier"  # at most the new delivery follows
    if new.row in {START, old.row} and not known.issuperset(new.deliveries):
        again = any(id > START and id not in known for id in new.deliveries)
        return Cause.DELIVERY, "it stands there again" if again else "it joined a message"
    if old.ids[0] == new.ids[0]:
        return _why_altered(old.message, new.message, reasons)
    stays = not kept.isdisjoint(old.ids)
    if not known.isdisjoint(new.ids):
        if stays:
            return Cause.EDITED, MOVED
        if _lead_to(ours, new):
            return Cause.FRAGMENT, "reasoning left out"
        return Cause.FILTERED, ""
    if stays:
        if _lead_to(theirs, old):
            return Cause.FRAGMENT, "reasoning sent again"
        return Cause.EDITED, INSERTED
    if old.face is Face.ACTUAL and new.face is not Face.ACTUAL:
        return Cause.FRAGMENT, _first_detail(reasons, "not_replayed")
    if new.face is Face.ACTUAL and old.face is not Face.ACTUAL and new.row > START:
        return Cause.FRAGMENT, "it is replayed again"
    return Cause.EDITED, ""


def _why_altered(old: Message, new: Message, reasons: Sequence[Reason]) -> tuple[Cause, str]:
    """Return why one row went out as NEW after it had gone out as OLD."""
    if old.reasoned != new.reasoned:
        detail = "reasoning left out" if old.reasoned else "reasoning sent again"
        return Cause.FRAGMENT, detail
    codes = [reason.code for reason in reasons if reason.code in _ALTERED]
    return _ALTERED[codes[0]] if codes else (Cause.UNKNOWN, "")


def _lead_to(items: Sequence[Item], goal: Item) -> bool:
    """Whether ITEMS begin with reasoning alone, and GOAL of the same response behind it.

    Some APIs have reasoning as elements of its own (Responses).
    """
    at = next((n for n, item in enumerate(items) if item.ids == goal.ids), 0)
    run = (*items[:at], goal)
    reasoned = all(item.message.reasoned for item in items[:at])
    return at > 0 and reasoned and all(item.face is Face.ACTUAL for item in run)


def _first_detail(reasons: Iterable[Reason], code: str) -> str:
    return next((reason.detail for reason in reasons if reason.code == code), "")


def _why_unplaced(reasons: Iterable[Reason]) -> str:
    codes = [reason.code for reason in reasons if reason.code in _UNPLACED]
    return _UNPLACED[codes[0]] if codes else "the messages around it are gone"


# Where it differs


def _change(
    cause: Cause, detail: str, path: str, before: bytes, after: bytes, *, inside: bool = True
) -> Continuity:
    """Return the change from the JSON text BEFORE to AFTER, b"" for none, at PATH or INSIDE it."""
    left, right = before.decode("utf-8", "replace"), after.decode("utf-8", "replace")
    if inside:
        path, left, right = _descend(path, left, right)
    at = _shared_start(left, right)
    start = max(0, at - CONTEXT)
    return Continuity(
        cause=cause,
        detail=detail,
        path=_cut(path, PATH),
        before=left[start : at + CONTEXT],
        after=right[start : at + CONTEXT],
    )


_ABSENT = object()


def _descend(path: str, before: str, after: str) -> tuple[str, str, str]:
    """Return the path of the innermost values of two JSON texts that differ, and the two as texts.

    Texts that cannot be read, or are equal as values (other white space, other order of keys), are
    compared as they are.
    """
    old, new = _decode(before), _decode(after)
    if old is None or new is None or old == new:
        return path, before, after
    while type(old) is type(new) and (ours := _members(old)) and (theirs := _members(new)):
        names = {**ours, **theirs}
        name = next(n for n in names if ours.get(n, _ABSENT) != theirs.get(n, _ABSENT))
        path = f"{path}.{name}"
        old, new = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
    return path, _plain(old), _plain(new)


def _members(value: object) -> Mapping[str, object]:
    if isinstance(value, dict):
        return value
    return {str(n): item for n, item in enumerate(value)} if isinstance(value, list) else {}


def _plain(value: object) -> str:
    if value is _ABSENT:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _decode(text: str | bytes) -> object:
    """Return the value of a JSON text, None for one that cannot be read."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _shared_start(ours: str, theirs: str) -> int:
    """Return how many characters two texts share from the start."""
    low, high = 0, min(len(ours), len(theirs))
    while low < high:  # halving compares each character about once, at the speed of memory
        middle = (low + high + 1) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# In words

_SENTENCES = {
    Cause.NONE: "The request repeats all of the one before it.",
    Cause.FIRST: "This is the first request of the conversation.",
    Cause.PROVIDER: (
        "The provider, the model or the cache setting changed, so nothing of it can be reused."
    ),
    Cause.TOOLS: (
        "The list of tools changed{detail}, so the provider has to read everything again."
    ),
    Cause.SYSTEM: (
        "The system prompt changed, so the provider has to read it and all messages again."
    ),
    Cause.PARAMETER: (
        "A parameter changed{detail}; many providers then have to read everything again."
    ),
    Cause.EDITED: (
        "An earlier message changed{detail}, so the provider has to read it and what follows again."
    ),
    Cause.FILTERED: (
        "Messages of the request before are missing{detail}, so the provider has to read again"
        " what followed them."
    ),
    Cause.DELIVERY: (
        "A delivery does not stand where it did{detail}, so the provider has to read again what"
        " follows it."
    ),
    Cause.FRAGMENT: (
        "A response does not go back as it did before{detail}, so the provider has to read it and"
        " what follows again."
    ),
    Cause.UNKNOWN: (
        "An earlier message has the same content but another text, for a reason that is not known;"
        " the provider has to read it and what follows again."
    ),
}


def sentence(continuity: Continuity) -> str:
    """Return the cause of CONTINUITY in one sentence for the user."""
    detail = f" ({continuity.detail})" if continuity.detail else ""
    return _SENTENCES[continuity.cause].format(detail=detail)


# What the provider reports

# The fewest tokens that are cached at all, by the model's name in lower case with hyphens for dots;
# the first that matches counts, 0 stands for "not known".  Sources are in docs/providers.md.
_MINIMA = (
    (r"claude-(opus-4-[56]|haiku-4-5)", 4096),
    (r"claude-(opus-4-7|mythos-preview|3-5-haiku|3-haiku)", 2048),
    (r"claude-(opus-5|sonnet-5-5|fable|mythos)", 512),
    (r"claude", 1024),
    (r"gemini-2-5", 2048),
    (r"gemini", 4096),
    (r"gpt-oss", 0),
    (r"gpt-|\bo[134]\b", 1024),
    (r"mistral|ministral|magistral|codestral|devstral|pixtral", 64),
)

AGREES = 0.5  # of what was predicted; it is an estimate, and caches end at marks or blocks

_SHORTFALLS = {
    Cause.NONE: (
        "Nothing changed on our side: the provider did not have it in its cache any more, or did"
        " not find it."
    ),
    Cause.PARAMETER: "The provider's cache seems to depend on that parameter.",
}
_SHORTFALL = "The provider's cache has no end at this place, or the provider did not find it."


def minimum_tokens(model: str) -> int:
    """Return how many tokens MODEL's provider caches at least, 0 if that is not known."""
    name = model.lower().replace(".", "-")
    return next((tokens for pattern, tokens in _MINIMA if re.search(pattern, name)), 0)


def judge(
    continuity: Continuity, usage: Usage | None, model: str, previous: Usage | None = None
) -> str:
    """Return in words how the USAGE of a request differs from what its CONTINUITY predicts.

    "" where they agree; a provider that read more than predicted agrees (another conversation may
    have begun the same).  PREVIOUS is the usage of the request compared with.
    """
    if usage is None or usage.cached is None:
        return "It is not known what the provider read from its cache."
    expected = continuity.tokens
    if continuity.cause is Cause.NONE and previous and previous.input is not None:
        expected = previous.input  # the provider's own count of what repeats
    if usage.cached >= AGREES * expected:
        return ""
    read = f"The provider read {usage.cached} of about {expected} tokens from its cache. "
    least = minimum_tokens(model)
    if expected < least:
        return f"{read}This model's are not cached below {least} tokens."
    if previous and previous.cached == previous.written == 0:
        return f"{read}The request before left nothing there: was caching asked for?"
    return read + _SHORTFALLS.get(continuity.cause, _SHORTFALL)
