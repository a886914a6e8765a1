"""Reading JSON of an expected shape.  Each API words the refusal its own way (`Api.misshapen`)."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class ShapeError(Exception):
    """The value at `path` is missing (`expected` is "") or is not a `expected`."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(path, expected)
        self.path = path
        self.expected = expected


NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}


def want(value: Any, kind: type[T], path: str) -> T:
    """VALUE, which must be of KIND."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ShapeError(path, NAMES[kind])
    return value


def need(parent: dict[str, Any], key: str, kind: type[T], path: str = "") -> T:
    """The value of KEY in the object at PATH, which must be there and of KIND."""
    full = f"{path}.{key}" if path else key
    if key not in parent:
        raise ShapeError(full, "")
    return want(parent[key], kind, full)


def optional(parent: dict[str, Any], key: str, kind: type[T], path: str = "") -> T | None:
    """Like `need`, but None when KEY is absent."""
    return need(parent, key, kind, path) if key in parent else None


def nullable(parent: dict[str, Any], key: str, kind: type[T], path: str = "") -> T | None:
    """Like `optional`, but null counts as absent."""
    return None if parent.get(key) is None else need(parent, key, kind, path)
