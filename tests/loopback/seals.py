"""Opaque texts that only the provider can make: signatures and encrypted reasoning.

A token is the base64 of a nonce, an HMAC-SHA256 over the nonce and everything that the token
vouches for, and, for reasoning that is bound to its prefix, the nonce of the token before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

SECRET = b"the secret of the loopback provider"  # a constant, so that runs are equal
NONCE = 12  # letters and digits
MAC = 32  # bytes


def seal(nonce: str, *what: str, before: str = "") -> str:
    """A token with NONCE that vouches for WHAT; BEFORE is the nonce of the token before it."""
    return base64.b64encode(nonce.encode() + sign(nonce, before, *what) + before.encode()).decode()


def opens(token: str, *what: str) -> bool:
    """Whether TOKEN is one of ours and vouches for WHAT."""
    nonce, mac, before = take_apart(token)
    return hmac.compare_digest(mac, sign(nonce, before, *what))


def take_apart(token: str) -> tuple[str, bytes, str]:
    """Nonce, MAC and the nonce of the token before; empty where TOKEN is not one of ours."""
    try:
        raw = base64.b64decode(token, validate=True)
        return raw[:NONCE].decode(), raw[NONCE : NONCE + MAC], raw[NONCE + MAC :].decode()
    except (binascii.Error, ValueError):
        return "", b"", ""


def sign(*parts: str) -> bytes:
    """The MAC of PARTS, each framed by its length."""
    framed = b"".join(
        len(data).to_bytes(8) + data
        for data in (part.encode(errors="surrogatepass") for part in parts)
    )
    return hmac.digest(SECRET, framed, hashlib.sha256)
