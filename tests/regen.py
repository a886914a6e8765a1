"""Write generated fixtures again: `python -m tests.regen NAME`; review the difference, then commit.

Never called by a test.  A generator is a row of `GENERATORS`; each writes below fixtures/ and is
deterministic, so a second run changes nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from retention.digest import digest, digest_fields
from retention.providers import splice
from tests.loopback import Loopback
from tests.providers.samples import make_vectors

ROOT = Path(__file__).absolute().parent.parent
FIXTURES = ROOT / "fixtures"
CASES = ("prompt", "loop", "rebuilt", "media", "split", "odd", "cache")  # in the order of regen.el
APIS = (
    "anthropic",
    "openai",
    "responses",
    "gemini",
    "ollama",
    "bedrock",
    "deepseek",
    "mistral",
    "copilot",
)
ARRAYS = {"responses": "input", "gemini": "contents"}
CALLS = [
    {"name": "read", "args": {"path": "a.txt", "limit": 10}},
    {"name": "read", "args": {"path": "b.txt", "limit": None}},
]


def make_script(api: str) -> list[object]:
    """What the provider says: text and two calls, then text; reasoning where it can."""
    first: dict[str, object] = {"text": "Let me **look** at both.", "calls": CALLS}
    if api == "mistral":
        first.pop("text")  # content or calls, not both
    if api == "deepseek":
        first["reasoning"] = "Two files to read."
    responses = [first, {"text": "They differ in one line.\n"}]
    return [{"match": "Compare the two files", "responses": responses}]


def cut_array(body: bytes, api: str) -> bytes:
    """The array of a request body, byte for byte."""
    start, end = splice.members(body, splice.whole(body))[ARRAYS.get(api, "messages")]
    return body[start:end]


def write_providers(emacs: list[str]) -> None:
    """fixtures/providers/API/CASE.json: arrays as the real gptel sends them."""
    base = FIXTURES / "providers"
    version = ""
    for api in APIS:
        folder = base / api
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for mode in ("stream", "whole"):
            with Loopback(make_script(api)) as server:
                command = [*emacs, "-l", str(ROOT / "tests/elisp/regen.el")]
                done = subprocess.run(
                    [*command, api, mode, str(server.port), str(base)],
                    capture_output=True,
                    text=True,
                    check=False,
                    env={**os.environ, "TZ": "UTC0", "LC_ALL": "C.UTF-8"},
                )
                requests = server.requests
            if done.returncode:
                raise SystemExit(f"{api} {mode}: Emacs failed\n{done.stderr}")
            version = done.stderr.strip().splitlines()[-1]
            cases = CASES if api == "anthropic" else CASES[:-1]
            if len(requests) != len(cases):
                told = [f"{each.status} {each.refusal}" for each in requests]
                raise SystemExit(f"{api} {mode}: {told}\n{done.stderr}")
            for case, request in zip(cases, requests, strict=True):
                shared = case not in ("loop", "rebuilt")  # the others do not depend on streaming
                name = case if shared else f"{case}-{mode}"
                (folder / f"{name}.json").write_bytes(cut_array(request.body, api))
    (base / "about.toml").write_text(ABOUT.format(version=version), encoding="utf-8")


ABOUT = """\
# Arrays of requests (`messages`, `input` or `contents`), byte for byte as gptel wrote them.
source = "{version}, in batch, against tests/loopback; python -m tests.regen providers"
date = "2026-11-30"
redactions = "none: the conversation is made up, and no header is kept"

[cases]
prompt = "the first prompt"
loop-stream = "the same turn with the results of two parallel calls of one tool, streamed"
loop-whole = "the same, not streamed"
rebuilt-stream = "the next turn: calls and results parsed from the buffer, after streaming"
rebuilt-whole = "the same, not streamed"
media = "a prompt with a picture (dot.png) between two texts"
split = "a prompt that an ignored region splits in two"
odd = "a prompt of quotes, control characters and characters outside ASCII"
cache = "a prompt with gptel-cache, where gptel marks messages"
"""


def write_canonical(_emacs: list[str]) -> None:
    """fixtures/canonical/vectors.json: one meaning, its message in each API, and its parts."""
    write_json(FIXTURES / "canonical" / "vectors.json", make_vectors())


def write_digest(_emacs: list[str]) -> None:
    """fixtures/digest/vectors.json: known answers of retention/digest.py."""
    domains = ("message", "part", "head", "delivery", "section", "reminder", "identity", "blob")
    data = ("", "a", "The quick brown fox", "naïve – 😀", "x" * 200)
    fields = ([""], ["", ""], ["ab", "c"], ["a", "bc"], ["text", "user", "hello"], ["é"])
    vectors = {
        "digest": [
            {"domain": domain, "data": text, "hex": digest(domain, text.encode()).hex()}
            for domain in domains
            for text in data
        ],
        "fields": [
            {"domain": "part", "fields": each, "hex": digest_fields("part", each).hex()}
            for each in fields
        ],
    }
    write_json(FIXTURES / "digest" / "vectors.json", vectors)


def write_json(path: Path, value: object) -> None:
    """Write VALUE readably: these files are compared as values, not as bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


GENERATORS: dict[str, Callable[[list[str]], None]] = {
    "providers": write_providers,
    "canonical": write_canonical,
    "digest": write_digest,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.regen", description=__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(GENERATORS), metavar="NAME")
    parser.add_argument(
        "--emacs",
        default=os.environ.get("EMACS", "emacs"),
        help="with --load-path as .ci/emacs-deps prints it",
    )
    parser.add_argument("--load-path", default="", help="-L arguments for gptel")
    options = parser.parse_args()
    emacs = [options.emacs, "-Q", "--batch", *options.load_path.split()]
    for name in options.names:
        GENERATORS[name](emacs)


if __name__ == "__main__":
    main()
