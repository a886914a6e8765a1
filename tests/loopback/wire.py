"""Bytes of an answer: JSON, server-sent events, event-stream frames, and how they are split."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from zlib import crc32

from tests.loopback.model import Json

PIECE = 12  # characters of a text delta; small, so that a short answer has several


def dumps(value: Json) -> str:
    """VALUE as compact JSON, non-ASCII as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def canonical(value: Json) -> str:
    """VALUE as JSON text that does not depend on the order of keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """TEXT in deltas of SIZE characters."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def sse(data: Json, *, event: str | None = None, newline: str = "\n") -> bytes:
    """One server-sent event."""
    head = f"event: {event}{newline}" if event else ""
    return f"{head}data: {dumps(data)}{newline}{newline}".encode()


def frame(headers: dict[str, str], payload: Json) -> bytes:
    """One frame of `application/vnd.amazon.eventstream`.

    Layout, big-endian: total length u32, header length u32, crc32 of these eight bytes, headers,
    payload, crc32 of everything before.  A header: name length u8, name, type u8 (7 is a string),
    value length u16, value.
    """
    packed = b"".join(
        struct.pack(">B", len(name))
        + name.encode()
        + struct.pack(">BH", 7, len(value.encode()))
        + value.encode()
        for name, value in headers.items()
    )
    data = dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(packed) + len(data), len(packed))
    message = prelude + struct.pack(">I", crc32(prelude)) + packed + data
    return message + struct.pack(">I", crc32(message))


def split(data: bytes, size: int | None) -> Iterator[bytes]:
    """DATA in runs of SIZE bytes, wherever that falls; whole when SIZE is None."""
    step = size or max(len(data), 1)
    for start in range(0, len(data), step):
        yield data[start : start + step]
