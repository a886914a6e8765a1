"""Digests (rule I3) have known answers, so that a store stays readable by every later version."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from retention.digest import digest, digest_fields, from_hex, to_hex

VECTORS = msgspec.json.decode(
    (Path(__file__).parent.parent / "fixtures/digest/vectors.json").read_bytes()
)


@pytest.mark.parametrize("vector", VECTORS["digest"], ids=lambda v: f"{v['domain']}-{v['hex'][:8]}")
def test_i3_digest_has_the_known_answer(vector: dict[str, str]) -> None:
    assert to_hex(digest(vector["domain"], vector["data"].encode())) == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["fields"], ids=lambda v: v["hex"][:8])
def test_i3_digest_of_fields_has_the_known_answer(vector: dict[str, str]) -> None:
    assert to_hex(digest_fields(vector["domain"], vector["fields"])) == vector["hex"]


def test_i3_digests_of_other_domains_and_other_fields_differ() -> None:
    found = [vector["hex"] for vector in VECTORS["digest"] + VECTORS["fields"]]

    assert len(set(found)) == len(found) > 40


def test_i3_known_answers_cover_every_domain() -> None:
    domains = {vector["domain"] for vector in VECTORS["digest"]}

    assert domains == {
        "message",
        "part",
        "head",
        "delivery",
        "section",
        "reminder",
        "identity",
        "blob",
    }


def test_from_hex_reads_what_to_hex_writes() -> None:
    value = digest("part", b"a")

    assert from_hex(to_hex(value)) == value


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33])
def test_from_hex_refuses_what_is_no_digest(text: str) -> None:
    with pytest.raises(ValueError, match=r"digit|hexadecimal"):
        from_hex(text)
