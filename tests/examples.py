"""The RPC examples: one walk through every method that a service repeats exactly.

fixtures/rpc/<method>/<case>.json holds {params, result} or {params, error}.  `python -m
tests.examples` runs the walk and writes the results again, also where docs/protocol.md shows them;
review the difference, then commit.  The tests run the same walk and compare.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from retention.server import Endpoint
from retention.service import Service
from retention.store import Store

ROOT = Path(__file__).absolute().parent.parent
RPC = ROOT / "fixtures" / "rpc"
PAGE = ROOT / "docs" / "protocol.md"
NOW = 1767225600.0  # seconds; the walk's clock stands still
STORE = "/home/user/.local/share/gptel-retention"  # shown instead of the real directory

# The order matters: an example relies on what the ones before it did.
WALK = (
    "conversation/open/uninitialized",
    "initialize/newer",
    "initialize/first",
    "conversation/open/new",
    "conversation/open/known",
    "request/prepare/first",
    "request/commit/first",
    "response/record/first",
    "response/record/refused",
    "request/prepare/loop",
    "request/commit/loop",
    "turn/complete/first",
    "request/prepare/next",
    "request/abandon/next",
    "request/prepare/again",
    "request/commit/again",
    "request/refused/again",
    "request/prepare/refused",
    "request/prepare/unknown-state",
    "request/prepare/unknown-api",
    "request/prepare/bad-payload",
    "request/prepare/bad-params",
    "request/prepare/missing-file",
    "request/commit/unknown",
    "conversation/list/one",
    "output/save/first",
    "output/save/unknown",
    "output/score/none",
    "output/recall/lines",
    "output/recall/unknown",
    "output/search/words",
    "output/list/all",
    "evidence/learn/conversation",
    "evidence/learn/again",
    "evidence/learn/missing",
    "evidence/search/words",
    "evidence/search/model",
    "evidence/search/nothing",
    "evidence/sources/all",
    "evidence/chunks/output",
    "evidence/expand/error",
    "evidence/expand/unknown",
    "evidence/explain/unnamed",
    "evidence/reload/conversation",
    "conversation/open/other",
    "evidence/resume/first",
    "settings/change/budget",
    "settings/change/unknown",
    "inspect/log/first",
    "inspect/log/bodies",
    "inspect/requests/first",
    "inspect/explain/newest",
    "inspect/explain/unknown",
    "inspect/object/delivery",
    "inspect/object/unknown",
    "inspect/check/fine",
    "receipt/offer/first",
    "receipt/acknowledge/altered",
    "receipt/acknowledge/first",
    "receipt/offer/limited",
    "conversation/fork/first",
    "conversation/fork/unknown",
    "conversation/retire/offer",
    "conversation/retire/inside",
    "conversation/retire/confirm",
    "conversation/export/first",
    "conversation/import/same",
    "conversation/import/relative",
    "store/collect/told",
    "conversation/forget/first",
    "conversation/forget/unknown",
    "shutdown/end",
)

_BLOCK = re.compile(r"<!-- fixtures/rpc/(\S+)\.json -->\n```json\n(.*?)```\n", re.DOTALL)


def path(example: str) -> Path:
    return RPC / f"{example}.json"


def load(example: str) -> dict[str, Any]:
    return msgspec.json.decode(path(example).read_bytes())


def encode(value: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def method(example: str) -> str:
    return example.rpartition("/")[0]


def walk() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each example of WALK with what a fresh service answers to its parameters now."""
    numbers = itertools.count(1)

    def random_id() -> str:
        return hashlib.sha256(b"%d" % next(numbers)).hexdigest()[:32]

    with tempfile.TemporaryDirectory() as directory:
        store = Store.open(Path(directory, "store"))
        service = Service(store, clock=lambda: NOW, random_id=random_id, embedder=lambda: None)
        endpoint = Endpoint(service, clock=lambda: NOW)
        try:
            for example in WALK:
                params = load(example)["params"]
                moved = _moved(method(example), params, directory)
                yield example, {"params": params} | _answer(endpoint, method(example), moved)
        finally:
            service.close()
            store.close()


def _moved(name: str, params: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return PARAMS of the method NAME with the archive that it names inside DIRECTORY."""
    archive = Path(params.get("file", ""))
    if name not in {"conversation/export", "conversation/import"} or not archive.is_absolute():
        return params
    return params | {"file": str(Path(directory, archive.name))}


def _answer(endpoint: Endpoint, name: str, params: object) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": 1, "method": name, "params": params}
    body = endpoint.answer(msgspec.json.encode(request))
    assert body is not None
    answer = msgspec.json.decode(body)
    if name == "initialize" and "result" in answer:
        answer["result"]["store"] = STORE
    return {key: answer[key] for key in ("result", "error") if key in answer}


def blocks(page: str) -> list[tuple[str, str]]:
    """Return (example, text) for each example that PAGE shows."""
    return _BLOCK.findall(page)


def render(page: str) -> str:
    """Return PAGE with each example as its fixture has it."""

    def block(match: re.Match[str]) -> str:
        example = match[1]
        text = path(example).read_text(encoding="utf-8")
        return f"<!-- fixtures/rpc/{example}.json -->\n```json\n{text}```\n"

    return _BLOCK.sub(block, page)


def main() -> None:
    for example, found in walk():
        path(example).write_bytes(encode(found))
        sys.stderr.write(f"{example}: {'error' if 'error' in found else 'result'}\n")
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
