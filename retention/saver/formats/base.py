"""What every format fills in: the `Format` record, and the `Parsed` that its parser returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from retention.saver.lines import Lines

SURE: Final = 1.0  # weight of a line that says what failed, or how it all ended


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a parser found: numbers of lines, from 0, each in growing order.

    `kept` are the lines of the excerpt, `boundaries` those that begin a part of the output's own
    structure.  `weights` says of lines among `kept` how much they matter, from 0 to 1: the others
    come along as far as there is room.
    """

    kept: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    weights: dict[int, float] = {}


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of output, recognised by its structure alone.

    `marks` tells from the clean lines whether an output may be of the kind, at little cost; `parse`
    returns None where it is not after all.
    """

    name: str
    marks: Callable[[list[str]], bool]
    parse: Callable[[Lines], Parsed | None]
