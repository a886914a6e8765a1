"""Cache marks of messages: where they stand (rule C3).  Pure.

A provider with marks reads its cache from each mark, looking back over LOOKBACK positions for what
an earlier request wrote at a mark of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retention.arrays import Held, Item, Sent

LOOKBACK = 20  # positions, perhaps with that of the mark itself; each part counts as one


def wants_marks(cache: str) -> bool:
    """Whether the cache policy CACHE of an identity asks for message caching."""
    return cache == "t" or "message" in cache.split(",")


def given_marks(items: Sequence[Item], held: Held) -> tuple[int, ...]:
    """Return the indices of the elements of ITEMS that carry a mark as the client has them."""
    known = [n for n in held.marks if n < held.same]
    return tuple(known + [n for n in range(held.same, len(items)) if items[n].message.marks])


def trim_marks(items: Sequence[Item], given: Sequence[int], budget: int) -> tuple[int, ...]:
    """Return the last ones of GIVEN, indices of ITEMS, whose marks are at most BUDGET."""
    kept: list[int] = []
    for n in reversed(given):
        budget -= max(1, len(items[n].message.marks))
        if budget < 0:
            break
        kept.append(n)
    return tuple(reversed(kept))


def asked_lifetime(items: Sequence[Item]) -> str:
    """Return the lifetime that the client asks for with its newest mark among ITEMS."""
    marks = (item.message.marks for item in reversed(items))
    return next((found[0] for found in marks if found), "5m")


def plan_marks(
    items: Sequence[Item],
    budget: int,
    able: Callable[[int], bool],
    last: Sent | None,
    common: int,
) -> tuple[int, ...]:
    """Return the indices of at most BUDGET elements of ITEMS that get a mark.

    One is on the last element that is ABLE to carry one, and one where the array sent LAST ended if
    that is out of reach; the first COMMON elements of both are equal.
    """
    if budget <= 0:
        return ()
    end = next((n for n in reversed(range(len(items))) if able(n)), -1)
    if end < 0:
        return ()
    written = max((n for n in (last.marks if last else ()) if n < min(common, end)), default=-1)
    far = written >= 0 and budget > 1 and _positions(items[written + 1 : end + 1]) >= LOOKBACK
    return (written, end) if far else (end,)


def _positions(items: Sequence[Item]) -> int:
    return sum(len(item.message.parts) + item.message.reasoned for item in items)
