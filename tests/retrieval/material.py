"""What stands around the answers: long outputs, logs of failed runs, and conversations about
nothing that is asked.  All of it follows from a seed.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.outputs import OUTPUTS
from tests.outputs.large import grow, vary
from tests.retrieval import ROOT
from tests.retrieval.chats import Turn, render

CHATS = 64  # conversations about nothing that is asked
LENGTH = 45_000  # characters of one of them
MODES = ("org", "org", "md", "txt")  # of chat files
RUNS = 40  # failed runs that nobody asks about
LEAST = 16_000  # characters to which a short recording is grown, so that it is kept whole


class Output(NamedTuple):
    """A tool's result; `name` is "" where nobody asks for it."""

    name: str
    tool: str
    call: str
    text: str


class Run(NamedTuple):
    """A failed run: its log and its facts, as `gh` prints them."""

    id: int
    log: str
    facts: str


# Outputs


def planted_outputs() -> Iterator[Output]:
    """Yield the long outputs, each with its facts in the middle."""
    for output in tomllib.loads((ROOT / "outputs.toml").read_text(encoding="utf-8"))["output"]:
        text = grow(recording(output["recording"]), output["size"])
        lines = text.split("\n")
        middle = len(lines) // 2
        lines[middle:middle] = output["lines"]
        yield Output(output["name"], output["tool"], json.dumps(output["call"]), "\n".join(lines))


def other_outputs() -> Iterator[Output]:
    """Yield each recording as it is, grown where it would be too short to be kept."""
    for file in sorted(OUTPUTS.glob("*.txt")):
        call = json.dumps({"command": f"make {file.stem}"})
        yield Output("", "run_command", call, grow(recording(file.name), LEAST))


def recording(name: str) -> str:
    """Return the recorded output NAME."""
    return (OUTPUTS / name).read_bytes().decode("utf-8", "surrogateescape")


# Runs


def planted_runs() -> Iterator[Run]:
    """Yield the failed runs that are asked about."""
    for run in tomllib.loads((ROOT / "runs.toml").read_text(encoding="utf-8"))["run"]:
        yield _make_run(random.Random(run["id"]), run)


def other_runs() -> Iterator[Run]:
    """Yield failed runs of the same workflows that fail in a few common ways."""
    for number in range(RUNS):
        rng = random.Random(f"run {number}")
        thing = f"{rng.choice(THINGS)}-{number}"
        error = [line.format(thing=thing, number=number) for line in rng.choice(_FAILURES)]
        yield _make_run(
            rng,
            {
                "id": 30_300_000_000 + 7919 * number,
                "workflow": rng.choice(_WORKFLOWS),
                "title": f"Change the {thing}",
                "job": rng.choice(_JOBS),
                "step": rng.choice(_STEPS),
                "error": [*error, "##[error]Process completed with exit code 1."],
            },
        )


def _make_run(rng: random.Random, run: dict[str, Any]) -> Run:
    """Return RUN, a table of what it was and of the lines of its error."""
    job, step = run["job"], run["step"]
    noise = iter(recording("ci_log.txt").split("\n"))
    said = [vary(line.rpartition("Z ")[2], rng.randrange(1, 999)) for line in noise]
    quiet = [line for line in said if "##[" not in line]
    begin = rng.randrange(len(quiet) // 2)
    steps = [
        ("Set up job", quiet[begin : begin + 40]),
        ("Check out", quiet[begin + 40 : begin + 60]),
        (step, [*quiet[begin + 60 : begin + 130], *run["error"]]),
        ("Clean up", ["Cleaning up orphan processes"]),
    ]
    lines = [(name, line) for name, said in steps for line in said]
    day = f"2026-0{rng.randrange(1, 7)}-{rng.randrange(10, 28)}"
    log = "".join(
        f"{job}\t{name}\t{day}T08:{at // 60 % 60:02}:{at % 60:02}.4180000Z {line}\n"
        for at, (name, line) in enumerate(lines)
    )
    facts = {
        "databaseId": run["id"],
        "workflowName": run["workflow"],
        "displayTitle": run["title"],
        "conclusion": "failure",
        "event": "push",
        "headBranch": "main",
        "headSha": f"{rng.getrandbits(160):040x}",
        "createdAt": f"{day}T08:00:00Z",
        "jobs": [
            {
                "name": job,
                "conclusion": "failure",
                "steps": [
                    {"name": name, "conclusion": "failure" if name == step else "success"}
                    for name, _ in steps
                ],
            }
        ],
    }
    return Run(run["id"], log, json.dumps(facts))


# Conversations


def other_chats() -> Iterator[tuple[str, str]]:
    """Yield chat files about nothing that is asked: their names and texts."""
    for number in range(CHATS):
        rng = random.Random(f"chat {number}")
        mode = rng.choice(MODES)
        yield f"notes-{number:05}.{mode}", render(talk(rng, LENGTH, THINGS), mode)


def talk(rng: random.Random, length: int, things: Sequence[str]) -> Iterator[Turn]:
    """Yield turns of about LENGTH characters together, which speak of THINGS."""
    project = rng.choice(_PROJECTS)
    while length > 0:
        turns = [Turn("user", " ".join(_say(rng, project, things, _ASKED) for _ in range(2)))]
        if rng.random() < 0.4:
            turns.append(_run_tool(rng))
        turns.append(Turn("assistant", _paragraphs(rng, project, things)))
        yield from turns
        length -= sum(len(turn.text) for turn in turns)


def _paragraphs(rng: random.Random, project: str, things: Sequence[str]) -> str:
    return "\n\n".join(
        " ".join(_say(rng, project, things, _SAID) for _ in range(rng.randrange(2, 6)))
        for _ in range(rng.randrange(1, 4))
    )


def _run_tool(rng: random.Random) -> Turn:
    lines = _RECORDED[rng.randrange(len(_RECORDED))]
    begin = rng.randrange(max(1, len(lines) - 30))
    copy = rng.randrange(1, 9_999)
    text = "\n".join(vary(line, copy) for line in lines[begin : begin + rng.randrange(5, 30)])
    return Turn("tool", text, "run_command", {"command": f"make {rng.choice(THINGS)}"})


def _say(rng: random.Random, project: str, things: Sequence[str], sentences: Sequence[str]) -> str:
    return rng.choice(sentences).format(
        project=project,
        thing=rng.choice(things),
        other=rng.choice(things),
        name=f"{rng.choice(_VERBS)}_{rng.choice(things)}{rng.randrange(100)}",
        path=f"src/{rng.choice(things)}/{rng.choice(_VERBS)}_{rng.randrange(1000)}.py",
        number=rng.randrange(2, 5_000),
        less=rng.randrange(2, 500),
        when=rng.choice(_DAYS),
        fault=rng.choice(_FAULTS),
    )


_RECORDED = [
    recording(name).split("\n")
    for name in ("log_plain.txt", "pytest_fail.txt", "git_diff.txt", "mypy.txt", "dpkg_l.txt")
]
_PROJECTS = ("Millrace", "Osprey", "Bramble", "Halyard", "Kestrel", "Quarry", "Tannery", "Windlass")
THINGS = tuple(
    "cache queue index parser worker ledger invoice ticket schema cursor token buffer router mailer"
    " exporter importer sampler timer lock batch replica snapshot journal catalogue calendar basket"
    " upload thumbnail filter report session tariff crane berth pilot harbour".split()
)
_VERBS = tuple("load store merge split check close open retry flush sort count move".split())
_DAYS = ("on Monday", "next week", "in April", "after the release", "last night", "since Tuesday")
_FAULTS = (
    "TimeoutError: no answer",
    "permission denied",
    "connection reset by peer",
    "KeyError: 'id'",
    "lock wait timeout exceeded",
    "checksum mismatch",
    "out of memory",
    "could not serialize access",
)
_ASKED = (
    "Why does the {thing} of {project} need {number} ms since we changed the {other}?",
    'The {thing} stops with "{fault}", {when} it was fine.',
    "Please have a look at {path}, I think {name} is called twice.",
    "Should the {thing} be part of the {other} or stand alone?",
    "How do we test the {thing} without the {other}?",
    "I would rather keep the {thing} as it is and change the {other} {when}.",
    "What did you find out about the {thing}?",
    "Can we delete the old {thing} {when}?",
    "Users see the {other} of somebody else when the {thing} is full.",
    "We decided against a second {thing}, remember.",
)
_SAID = (
    "The {thing} holds {number} entries, more than the {other} can take.",
    "`{name}` in `{path}` returns before the {thing} is closed.",
    "I would move it {when}, together with the {other}.",
    "The reason is simple: nobody empties the {thing}.",
    "With {number} at once the {other} waits for the {thing}, and the {thing} for the {other}.",
    "We agreed to keep the {thing} for {number} days.",
    'That explains "{fault}" in the log of {project}.',
    "A test with {number} rows passes, one with an empty {thing} does not.",
    "It is cheaper to compute the {other} again than to store it.",
    "Then `{name}` may go, the {thing} does the same.",
    "I measured {number} ms before, and {less} ms after.",
    "Nothing in {path} depends on the order of the {thing}.",
    "The decision stands: one {thing} for each {other}, no exceptions.",
    "First the {thing}, then the {other}; the other way round loses data.",
    "{project} does not need the {thing} at night.",
)
_WORKFLOWS = ("test", "lint", "release", "docs", "nightly", "deploy", "images")
_JOBS = ("unit (ubuntu-24.04)", "unit (windows-2022)", "integration", "build", "browser", "style")
_STEPS = ("Run tests", "Build", "Install", "Start services", "Check formatting", "Upload")
_FAILURES = (
    ("FAILED tests/test_{thing}.py::test_{thing}_is_closed - assert {number} == 0", "1 failed"),
    ("npm ERR! code ERESOLVE", "npm ERR! Could not resolve dependency: peer {thing}@^{number}"),
    ("error[E0308]: mismatched types in src/{thing}.rs:{number}",),
    ("fatal: unable to access the repository {thing}: Could not resolve host",),
    ("TimeoutError: service {thing} did not start within {number} seconds",),
    ("error: no space left on device while writing {thing}.tar",),
    ("ModuleNotFoundError: No module named '{thing}{number}'",),
)
