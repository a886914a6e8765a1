"""What a provider's prompt cache would say of a request.

A request is a list of entries, each an exact text that stands for a part of the prompt.  The key of
an entry is a digest of everything up to it.  At a marked entry the provider remembers the key, and
looks for the longest prefix that it remembers, at the entry itself or a number of positions before.
There is no clock: what is remembered stays.  Tokens are bytes divided by four.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.loopback.model import Json, Object
from tests.loopback.wire import canonical, dumps

LOOKBACK = 20  # positions
MARKS = ("cache_control", "copilot_cache_control")
ORDERED = ("input", "input_schema", "inputSchema", "parameters", "args", "arguments")
HEAD = ("model", "tools", "system", "instructions", "systemInstruction", "toolConfig")


class Entry(NamedTuple):
    """A part of a prompt; neighbours of one RUN are one position, "" is a run of its own.

    MARK is the lifetime of the mark on it, "" for none.
    """

    text: str
    run: str = ""
    mark: str = ""
    counted: bool = True


class Cached(NamedTuple):
    """Tokens of a request that were read and written, and the lifetime of what was written."""

    read: int = 0
    written: int = 0
    lifetime: str = ""


class Cache:
    """The keys that one server remembers.  Not thread-safe: the server holds its lock."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def use(self, entries: Sequence[Entry]) -> Cached:
        """Look ENTRIES up, then remember them."""
        keys = list(iter_keys(entries))
        marked = [index for index, entry in enumerate(entries) if entry.mark]
        found = (
            index
            for mark in marked
            for index in iter_positions(entries, mark)
            if keys[index] in self._keys
        )
        read = max(found, default=-1)
        self._keys.update(keys[index] for index in marked)
        last = marked[-1] if marked else -1
        return Cached(
            read=count(entries[: read + 1]),
            written=count(entries[read + 1 : last + 1]),
            lifetime=entries[last].mark,
        )


def iter_keys(entries: Iterable[Entry]) -> Iterator[bytes]:
    key = b""
    for entry in entries:
        key = hashlib.sha256(key + entry.text.encode(errors="surrogatepass")).digest()
        yield key


def iter_positions(entries: Sequence[Entry], mark: int) -> Iterator[int]:
    """Where a lookup from MARK looks; of a run all places are one position."""
    position = 0
    for index in range(mark, -1, -1):
        if index < mark and not (
            entries[index].run and entries[index].run == entries[index + 1].run
        ):
            position += 1
        if position > LOOKBACK:
            return
        yield index


def count(entries: Iterable[Entry]) -> int:
    size = sum(len(e.text.encode(errors="surrogatepass")) for e in entries if e.counted)
    return size // 4


def whole(body: Object, array: str) -> list[Entry]:
    """The entries of an API that remembers every prefix: what stands in front, then each element.

    What stands in front counts for nothing, so that reuse is of messages alone.
    """
    head = render({name: body.get(name) for name in HEAD})
    elements = body.get(array)
    if not isinstance(elements, list):
        elements = [elements]
    return [
        Entry(head, counted=False),
        *(Entry(render(each), run="element", mark="always") for each in elements),
    ]


def render(value: Json) -> str:
    """VALUE as the model is shown it: no marks, and the order of keys only where it is shown."""
    return canonical(bare(value))


def bare(value: Json) -> Json:
    if isinstance(value, dict):
        return {
            name: dumps(each) if name in ORDERED else bare(each)
            for name, each in value.items()
            if name not in MARKS
        }
    return [bare(each) for each in value] if isinstance(value, list) else value
