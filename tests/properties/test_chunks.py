"""Any text with any table of events is covered by its chunks; views and sections keep in bounds."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.evidence import chunking, views
from retention.evidence.chunking import HARD_MAX, PIECE, SIZE, cut_output, cut_snapshot, rebuild
from retention.evidence.reloading import Bounds, Finding, reload, render_section
from retention.evidence.snapshots import TOOLS, Piece, Snapshot, join_pieces
from retention.evidence.views import SEGMENT, SEGMENTS, embedded_text, short_segments
from retention.model import Chunk, EventKind

# Texts as tools and people write them, and what is hard about them, long enough to be cut.
words = st.sampled_from(
    ["error:", "FAILED", "0 errors", "warning", "ok", "a.py:12", "deadbeef01", "\udc80", "é", "😀"]
)
lines = st.one_of(
    st.lists(words, max_size=12).map(" ".join),
    st.sampled_from(["", " ", "\r", "a\x0cb\u2028c\x1cd", "\x1b[31mfatal\x1b[0m x", "10%\r99%"]),
    st.text(max_size=80),
    st.integers(500, 9_000).map(lambda size: "x" * size),
    st.integers(50, 500).map(lambda times: "error in some field, " * times),
)


texts = st.text(max_size=200) | st.builds(
    lambda some, end, times: end.join(some * times),
    st.lists(lines, max_size=20),
    st.sampled_from(["\n", "\r\n", "\n\n", " "]),
    st.sampled_from([1, 2, 30]),
)
pieces = st.builds(Piece, st.sampled_from(EventKind), texts, st.sampled_from(["", "bash"]))
snapshots = st.lists(pieces, max_size=8).map(join_pieces)


def check_coverage(chunks: tuple[Chunk, ...], text: str) -> None:
    """The invariants of every cut of TEXT."""
    plain = [chunk for chunk in chunks if not chunk.name]
    assert chunks[: len(plain)] == tuple(plain), "named chunks stand behind the others"
    assert bool(plain) == bool(text)
    if plain:
        assert (plain[0].start, plain[-1].end) == (0, len(text))
    for before, after in pairwise(plain):
        assert before.start < after.start <= before.end < after.end
    assert rebuild(chunks, lambda start, end: text[start:end]) == text


@given(snapshots)
@settings(deadline=None)
def test_chunks_cover_any_snapshot_and_rebuild_it(snapshot: Snapshot):
    chunks = cut_snapshot(snapshot)

    check_coverage(chunks, snapshot.text)
    long = {
        (span.start, span.end)
        for span in snapshot.spans
        if span.kind in TOOLS and span.end - span.start > HARD_MAX
    }
    assert {chunk.start for chunk in chunks if chunk.whole} == {start for start, _ in long}
    for chunk in chunks:
        inside = [span for span in long if span[0] <= chunk.start < span[1]]
        assert chunk.end - chunk.start <= (PIECE if inside else SIZE)
        assert all(chunk.end <= end for _, end in inside)
        assert inside or not any(chunk.start < start < chunk.end for start, _ in long)
        owner = next(span for span in snapshot.spans if span.start <= chunk.start < span.end)
        assert (chunk.kind, chunk.tool) == (owner.kind, owner.tool)
    for before, after in pairwise(chunks):
        overlaps = after.start < before.end
        ordinary = not any(a <= one.start < b for a, b in long for one in (before, after))
        assert ordinary or not overlaps
        assert before.end - after.start <= chunking.OVERLAP


@given(snapshots)
@settings(deadline=None)
def test_small_pieces_end_with_a_line_where_there_is_one(snapshot: Snapshot):
    """The same, with pieces so small that every long event is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "PIECE", 9_000)
        chunks = cut_snapshot(snapshot)

    text = snapshot.text
    check_coverage(chunks, text)
    for before, after in pairwise(chunks):
        same = [
            span for span in snapshot.spans if span.start <= before.start < after.start < span.end
        ]
        if not (same and same[0].kind in TOOLS and same[0].end - same[0].start > HARD_MAX):
            continue
        assert before.end == after.start
        assert before.end - before.start <= 9_000
        cut = text[before.start : before.end]
        assert cut.endswith("\n") or ("\n" not in cut and len(cut) == 9_000)


@given(texts)
@settings(deadline=None)
def test_chunks_cover_any_output_and_its_error_stands_beside(text: str):
    chunks = cut_output(text, "bash")

    check_coverage(chunks, text)
    assert all(chunk.kind is EventKind.TOOL_OUTPUT and chunk.tool == "bash" for chunk in chunks)
    for named in (chunk for chunk in chunks if chunk.name):
        assert 0 < named.end - named.start <= HARD_MAX
        assert named.end <= len(text)


GAP = re.compile(r"\[\.\.\. (\d+) lines? omitted\]")
RUN = re.compile(r" \[x(\d+) similar lines\]$")
CUT = re.compile(r"\[\.\.\. (\d+) characters omitted\]")


@given(texts)
@settings(deadline=None)
def test_a_view_is_bounded_repeatable_and_accounts_for_every_line(text: str):
    view = embedded_text(text, whole=True)

    assert embedded_text(text, whole=False) == text
    assert view == embedded_text(text, whole=True)
    if len(text) <= HARD_MAX:
        assert view == text
        return
    assert len(view) <= HARD_MAX
    count = 0
    for part in view.split("\n"):
        gap, run = GAP.fullmatch(part), RUN.search(part)
        count += int(gap[1]) if gap else int(run[1]) if run else 1
    # A line that is cut stands there in one part or, if it is all there is, in two, with a mark.
    cuts = sum(1 for part in view.split("\n") if CUT.fullmatch(part))
    lines = text.removesuffix("\n").split("\n")
    alone = len(lines) == (2 if len(lines[0]) <= views.HEADER else 1)
    assert count - cuts - alone == len(lines)


@given(texts)
@settings(deadline=None)
def test_short_segments_are_short_few_and_in_order(text: str):
    found = short_segments(text)

    assert found == short_segments(text)
    assert found == sorted(set(found))
    assert len(found) <= SEGMENTS
    assert all(0 <= start < end <= len(text) and end - start <= SEGMENT for start, end in found)


findings = st.builds(
    Finding,
    id=st.text(max_size=8),
    tool=st.sampled_from(["", "bash", "read"]),
    input=st.sampled_from(["", "{}", '{"a":1,"b":2}', '{"b":2,"a":1}', "[1]", "not json"]),
    output=st.text(max_size=300) | st.sampled_from(["{}", "[]", '{"a":[1,2]}', "1", "null"]),
    at=st.floats() | st.integers(0, 2**31).map(float),
)


@given(st.lists(findings, max_size=30), st.integers(0, 3_000), st.integers(1, 40))
def test_a_section_keeps_within_its_budget_and_leaves_out_only_what_does_not_fit(
    read: list[Finding], budget: int, rows: int
):
    made = reload(read, Bounds(budget=budget, rows=rows))

    section = render_section(made.items)
    assert len(section) <= budget
    section.encode()  # a request can carry it
    assert made.lines == len(made.items) + made.skipped
    assert made.rows == len(read)
    kept, rest, seen = list[Finding](), list(made.items), set[tuple[str, str]]()
    for finding in read:
        key = finding.tool, _value(finding.input)
        if rest and finding == rest[0] and key not in seen:
            kept.append(rest.pop(0))
        else:
            assert key in seen or _size([*kept, finding]) > budget
        seen.add(key)
    assert not rest


def _value(text: str) -> str:
    return "".join(sorted(text)) if text.startswith("{") else text  # the same but for its order


def _size(items: list[Finding]) -> float:
    """The length of the section with ITEMS; more than any budget if there is none."""
    try:
        return len(render_section(items))
    except (ValueError, OverflowError, OSError):
        return math.inf
