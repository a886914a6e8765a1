r"""Canonical bytes and domain-tagged blake3 digests (rule I3).

A digest is 32 bytes: blake3 over ``b"gptel-retention/1 " + domain + b"\0" + data``.  The tag keeps
digests of different kinds apart, so that a message never acknowledges a delivery text by having the
same bytes.  Known-answer vectors are in ``fixtures/digest/vectors.json``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NewType, get_args

from blake3 import blake3

Digest = NewType("Digest", bytes)
Domain = Literal[
    "message", "part", "head", "delivery", "section", "reminder", "identity", "blob", "prefix"
]

SIZE = 32  # bytes of a digest
_PREFIXES = {domain: b"gptel-retention/1 " + domain.encode() + b"\0" for domain in get_args(Domain)}


def digest(domain: Domain, data: bytes) -> Digest:
    """Return the digest of DATA as an object of the kind DOMAIN."""
    # One call: a copy of the bytes costs less than a second call into the hasher.
    return Digest(blake3(_PREFIXES[domain] + data).digest())


def digest_fields(domain: Domain, fields: Iterable[str]) -> Digest:
    """Return the digest of a sequence of strings, each preceded by its length in bytes.

    The length prefix makes the encoding injective: ("ab", "c") and ("a", "bc") differ.
    """
    encoded = [field.encode("utf-8", "surrogatepass") for field in fields]
    return digest(domain, b"".join([b"%d:%b" % (len(data), data) for data in encoded]))


def to_hex(value: bytes) -> str:
    """Return the lower-case hexadecimal form that the CLI and the wire use."""
    return value.hex()


def from_hex(text: str) -> Digest:
    """Return the digest that TEXT writes; raise ValueError unless it is 64 hex digits."""
    value = bytes.fromhex(text)
    if len(value) != SIZE:
        raise ValueError(f"a digest has {2 * SIZE} hex digits, not {len(text)}")
    return Digest(value)
