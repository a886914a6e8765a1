"""Which result answers which call, for APIs where only the order of results tells."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def match_calls(seen: Sequence[Hashable], own: Sequence[Hashable]) -> list[int] | None:
    """Return for each call of OWN its index in SEEN, the same calls in another order.

    Equal calls keep their relative order, unless SEEN as a whole is OWN reversed.  None if the two
    do not hold the same calls.
    """
    last = len(seen) - 1
    if list(seen) != list(own) and list(seen) == list(reversed(own)):
        return [last - n for n in range(len(own))]
    places: dict[Hashable, list[int]] = {}
    for n, call in reversed(list(enumerate(seen))):
        places.setdefault(call, []).append(n)
    found = [places[call].pop() for call in own if places.get(call)]
    return found if len(found) == len(seen) == len(own) else None
