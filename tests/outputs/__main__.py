"""Record the corpus of outputs: `python -m tests.outputs [NAME...]`.

Each recording runs its real tools in a fresh copy of its sample project below /home/user, and what
they print becomes fixtures/outputs/NAME.txt, with everything that would name the machine or a
registry rewritten (`SCRUBS`).  Times and orders that a tool chooses differ between runs: a new
recording is reviewed like any other change.  Labels are computed from the table and the files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.outputs import OUTPUTS
from tests.outputs.labels import label_all
from tests.outputs.recordings import RECORDINGS, Recording

ROOT = Path(__file__).absolute().parent
SCRIPTS = ROOT / "scripts"
HOME = Path("/home/user")
LIMIT = 60_000  # bytes of one file

MACHINE = Path.home()
REGISTRIES = r"registry\.npmjs\.org|(?:test\.)?pypi\.org|pypi\.python\.org|files\.pythonhosted\.org"

# What would name the machine, its user or a registry, and what stands there instead.
SCRUBS = tuple(
    (re.compile(pattern.encode()), replacement.encode())
    for pattern, replacement in (
        (rf"(?:https?://)?(?:{REGISTRIES})", "https://registry.example"),
        (r"https?://(deb|security|snapshot)\.debian\.org\S*", "http://archive.example/debian"),
        (r"(Looking in (indexes|links): ).*", r"\1https://registry.example/simple"),
        (r"file:///opt/[\w/.+-]*", "https://registry.example/simple"),
        (r"/opt/(wheels|pypi[\w-]*)", "/home/user/wheels"),
        (r"/etc/xdg/pip/constraints\.txt", "constraints.txt"),
        (f"{sys.prefix}|{sys.base_prefix}", "/usr/local"),
        (f"{ROOT.parent.parent}", "/home/user/app"),
        (rf"{MACHINE}\b|/tmp(?=/)", "/home/user"),
        (r"\broot( +)root\b", r"user\1user"),
        (r"(?m)^((?:\x1b\[[\d;]*m)?Author: ).*$", r"\1Dev Eloper <dev@example.com>"),
        (r"\b[\w.+-]+@(?:[\w-]+\.)+[a-z]{2,}\b", "dev@example.com"),
    )
)


def environment() -> dict[str, str]:
    """Return what the tools see: a neutral home, and how this machine reaches registries."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or "CERT" in name
    }
    folders = [f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", f"{MACHINE}/.cargo/bin"]
    return kept | {
        "HOME": str(HOME),
        "MACHINE": str(MACHINE),  # where Maven keeps what it has downloaded
        "PATH": ":".join([*folders, "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]),
        "LANG": "C.UTF-8",
        "USER": "user",
        "COLUMNS": "100",
        "RUSTUP_HOME": f"{MACHINE}/.rustup",
        "CARGO_HOME": f"{MACHINE}/.cargo",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_PAGER": "cat",
        "DEBIAN_FRONTEND": "noninteractive",
    }


def lay_out(project: str) -> Path:
    """Copy the samples below the home, and return the folder of PROJECT."""
    samples = ROOT / "samples"
    for sample in sorted(samples.rglob("*.txt")):
        target = HOME / "app" / sample.relative_to(samples).with_suffix("")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sample, target)
    folder = HOME / "app" / project
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def scrub(output: bytes) -> bytes:
    """Return OUTPUT without what would name the machine, cut at the last line below the limit."""
    for pattern, replacement in SCRUBS:
        output = pattern.sub(replacement, output)
    if len(output) > LIMIT:
        return output[: output.rindex(b"\n", 0, LIMIT) + 1]
    return output


def record(recording: Recording) -> None:
    """Run RECORDING's script and write what it prints."""
    shutil.rmtree(HOME / "app", ignore_errors=True)
    folder = lay_out(recording.project)
    done = subprocess.run(
        ["bash", SCRIPTS / f"{recording.name}.sh"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    (OUTPUTS / f"{recording.name}.txt").write_bytes(scrub(done.stdout))
    print(f"{recording.name}: {len(done.stdout)} bytes, status {done.returncode}", flush=True)


def main() -> None:
    """Record what the arguments name, or everything; then write the labels."""
    parser = argparse.ArgumentParser(prog="python -m tests.outputs", description=__doc__)
    parser.add_argument("names", nargs="*", help="recordings to make again; none: all")
    parser.add_argument("--labels", action="store_true", help="only compute the labels again")
    options = parser.parse_args()
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    for recording in RECORDINGS:
        wanted = not options.names or recording.name in options.names
        if wanted and not options.labels and (SCRIPTS / f"{recording.name}.sh").exists():
            record(recording)
    text = json.dumps(label_all(), indent=1, ensure_ascii=False, sort_keys=True)
    (OUTPUTS / "labels.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
