"""Which formats take which recordings: `python -m tests.outputs.confusion` prints the matrix."""

from __future__ import annotations

from retention.saver.formats import FORMATS
from retention.saver.formats.base import sample
from retention.saver.lines import Lines, read_lines
from tests.outputs import OUTPUTS
from tests.outputs.recordings import RECORDINGS


def read_recording(name: str) -> Lines:
    """Return the lines of the recording NAME."""
    data = (OUTPUTS / f"{name}.txt").read_bytes()
    return read_lines(data.decode("utf-8", "surrogateescape"))


def takers(lines: Lines) -> list[str]:
    """Return the names of the formats that would take LINES, in the order of detection."""
    text = sample(lines.clean)
    return [
        format.name for format in FORMATS if format.marks(text) and format.parse(lines) is not None
    ]


def main() -> None:
    """Print for each recording its format, and in brackets who else would have taken it."""
    for recording in RECORDINGS:
        names = takers(read_recording(recording.name))
        found = names[0] if names else "-"
        verdict = "" if found == (recording.format or "-") else f"  NOT {recording.format}"
        print(f"{recording.name:20} {found:12} {names[1:] or ''}{verdict}")


if __name__ == "__main__":
    main()
