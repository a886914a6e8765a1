"""The settings that a store keeps, with their ranges: read at each use, none needs a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from retention.errors import InvalidParams


class Setting(NamedTuple):
    """A whole number: its default, its least and its greatest value, and what it is."""

    default: int
    least: int
    most: int
    what: str


SETTINGS: dict[str, Setting] = {
    "reload.budget": Setting(24_000, 83, 200_000, "code points of an evidence section"),
    "reload.rows": Setting(1_000, 289, 10_000, "tool results that are looked at for one"),
    "log.context": Setting(3, 1, 1_000, "lines in front of an error that go with it, in CI logs"),
    "keep.days": Setting(0, 0, 36_500, "after which unused conversations go with `gc`; 0: never"),
}


def changed(stored: Mapping[str, int], change: Mapping[str, int]) -> dict[str, int]:
    """Return STORED with CHANGE; a value of 0 takes the default again.

    Raise InvalidParams for a name that is none and a value out of its range.
    """
    result = dict(stored)
    for name, value in change.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise InvalidParams(f"no setting {name!r}; there are {', '.join(SETTINGS)}")
        if value == 0:
            result.pop(name, None)
        elif setting.least <= value <= setting.most:
            result[name] = value
        else:
            raise InvalidParams(f"{name} is {setting.least} to {setting.most}, not {value}")
    return result


def in_use(stored: Mapping[str, int]) -> dict[str, int]:
    """Return the value of each setting: the stored one where it is in its range."""
    return {
        name: value if setting.least <= (value := stored.get(name, -1)) <= setting.most
        else setting.default
        for name, setting in SETTINGS.items()
    }  # fmt: skip
