"""Ids that look like a provider's and never repeat, without randomness."""

from __future__ import annotations

import hashlib
import string

ALPHABET = string.digits + string.ascii_letters


def make_id(length: int, *seed: bytes | str | int) -> str:
    """LENGTH letters and digits that depend on SEED alone."""
    hashed = hashlib.sha512()
    for part in seed:
        data = part if isinstance(part, bytes) else str(part).encode()
        hashed.update(len(data).to_bytes(8) + data)
    number = int.from_bytes(hashed.digest())
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(digits)
