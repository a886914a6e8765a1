"""Where texts are cut, and that they come together again (V1, V2)."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from retention.errors import DamagedObject
from retention.evidence.chunking import (
    CONTEXT,
    HARD_MAX,
    OVERLAP,
    PIECE,
    SILENCE,
    SIZE,
    cut_output,
    cut_snapshot,
    rebuild,
)
from retention.evidence.snapshots import Piece, Snapshot, join_pieces, make_event
from retention.model import Chunk, EventKind

PROSE = "".join(f"Line {n} of a talk about the weather.\n" for n in range(700))  # 27,000
LOG = "".join(f"step {n} done\n" for n in range(1_000))  # 14,900


def event(kind: EventKind, body: str, tool: str = "") -> Piece:
    return Piece(kind, make_event(kind, body, tool), tool)


def spans(chunks: tuple[Chunk, ...]) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end) for chunk in chunks]


def rebuilt(snapshot: Snapshot) -> str:
    return rebuild(cut_snapshot(snapshot), lambda start, end: snapshot.text[start:end])


# Long tool events


@pytest.mark.parametrize("kind", [EventKind.TOOL_CALL, EventKind.TOOL_OUTPUT])
def test_a_long_tool_event_is_one_chunk_from_its_header_through_its_newline(kind: EventKind):
    before, long = event(EventKind.USER, "Build it."), event(kind, LOG, "bash")
    after = event(EventKind.ASSISTANT, "Done.")
    snapshot = join_pieces([before, long, after])

    start, end = len(before.text), len(before.text + long.text)
    assert cut_snapshot(snapshot) == (
        Chunk(start=0, end=start, kind=EventKind.USER),
        Chunk(start=start, end=end, kind=kind, tool="bash", whole=True),
        Chunk(start=end, end=len(snapshot.text), kind=EventKind.ASSISTANT),
    )
    assert rebuilt(snapshot) == snapshot.text


def test_an_event_is_long_only_beyond_the_bound():
    """The whole span counts, header and closing newline too."""
    exact = Piece(EventKind.TOOL_OUTPUT, "x" * (HARD_MAX - 1) + "\n")
    longer = Piece(EventKind.TOOL_OUTPUT, "x" * HARD_MAX + "\n")

    assert len(cut_snapshot(join_pieces([exact]))) == 2
    assert [chunk.whole for chunk in cut_snapshot(join_pieces([longer]))] == [True]


def test_an_event_longer_than_a_piece_is_cut_at_lines_without_gaps():
    long = event(EventKind.TOOL_OUTPUT, LOG * 40, "bash")
    snapshot = join_pieces([long])
    chunks = cut_snapshot(snapshot)

    assert len(chunks) == 3
    assert [chunk.end for chunk in chunks[:-1]] == [chunk.start for chunk in chunks[1:]]
    assert all(chunk.end - chunk.start <= PIECE for chunk in chunks)
    assert all(snapshot.text[chunk.end - 1] == "\n" for chunk in chunks)
    assert [chunk.whole for chunk in chunks] == [True, False, False]
    assert rebuilt(snapshot) == snapshot.text


def test_a_giant_line_is_cut_where_a_piece_ends():
    snapshot = join_pieces([Piece(EventKind.TOOL_OUTPUT, "x" * (2 * PIECE + 5))])

    assert spans(cut_snapshot(snapshot)) == [
        (0, PIECE),
        (PIECE, 2 * PIECE),
        (2 * PIECE, 2 * PIECE + 5),
    ]


def test_only_the_line_feed_ends_a_line_of_a_piece():
    text = "a\u2028b\x0cc\rd" * (PIECE // 4) + "\n" + "z" * PIECE

    assert all(
        text[end - 1] == "\n" or end - start == PIECE
        for start, end in spans(cut_output(text, ""))[:-1]
    )


# Ordinary text


def test_without_long_tool_events_a_text_is_cut_as_prose_alone():
    """Short events of any kind, and long messages, change nothing about the cuts."""
    alone = join_pieces([Piece(EventKind.TEXT, PROSE)])
    third = len(PROSE) // 3
    parts = [
        Piece(EventKind.ASSISTANT, PROSE[:third]),  # longer than a tool event may be
        Piece(EventKind.TOOL_OUTPUT, PROSE[third : third + HARD_MAX], "bash"),
        Piece(EventKind.USER, PROSE[third + HARD_MAX :]),
    ]
    mixed = join_pieces(parts)

    assert len(parts[0].text) > HARD_MAX
    assert spans(cut_snapshot(mixed)) == spans(cut_snapshot(alone))
    assert [chunk.whole for chunk in cut_snapshot(mixed)] == [False] * len(cut_snapshot(mixed))


def test_around_a_long_event_prose_is_cut_as_if_it_stood_alone():
    long = event(EventKind.TOOL_OUTPUT, LOG)
    prose = Piece(EventKind.USER, PROSE)
    alone = spans(cut_snapshot(join_pieces([prose])))
    place = len(PROSE + long.text)

    assert spans(cut_snapshot(join_pieces([prose, long, prose]))) == [
        *alone,
        (len(PROSE), place),
        *((place + start, place + end) for start, end in alone),
    ]


@pytest.mark.parametrize("kind", [EventKind.USER, EventKind.ASSISTANT, EventKind.ANALYSIS])
def test_a_long_message_is_cut_as_prose(kind: EventKind):
    chunks = cut_snapshot(join_pieces([Piece(kind, PROSE)]))

    assert len(chunks) == 5
    assert all(chunk.end - chunk.start <= SIZE and not chunk.whole for chunk in chunks)


def test_prose_is_cut_at_a_blank_line_rather_than_a_later_newline_or_space():
    half = SIZE // 2
    text = "a b\n" * ((half + 400) // 4) + "\n" + "c d\n" * SIZE

    (first, *_) = cut_snapshot(join_pieces([Piece(EventKind.USER, text)]))

    assert text[: first.end].endswith("\n\n")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("x" * 3 * SIZE, SIZE),  # nothing to cut at
        ("x" * (SIZE - 10) + " " + "y" * SIZE, SIZE - 9),
        ("x" * (SIZE // 2 - 10) + "\n\n" + "y" * SIZE, SIZE),  # too early
        ("x" * (SIZE - 100) + "\n" + "y" * 50 + " " + "z" * SIZE, SIZE - 99),
    ],
)
def test_prose_is_cut_at_the_best_place_of_the_second_half(text: str, end: int):
    (first, *_) = cut_snapshot(join_pieces([Piece(EventKind.USER, text)]))

    assert first.end == end


def test_the_next_chunk_begins_with_a_line_of_the_end_of_the_one_before():
    chunks = cut_snapshot(join_pieces([Piece(EventKind.USER, PROSE)]))

    for before, after in pairwise(chunks):
        assert OVERLAP // 2 < before.end - after.start <= OVERLAP
        assert PROSE[after.start - 1] == "\n"


@pytest.mark.parametrize(
    "text",
    [
        "x" * 3 * SIZE,
        "x" * (SIZE - 100) + "\n" + "z" * SIZE,  # the only line begins at its end
    ],
)
def test_the_overlap_is_whole_where_no_line_begins_in_its_first_half(text: str):
    first, second, *_ = cut_snapshot(join_pieces([Piece(EventKind.USER, text)]))

    assert first.end - second.start == OVERLAP


def test_a_chunk_has_the_kind_and_tool_of_the_event_that_it_begins_in():
    pieces = [
        Piece(EventKind.USER, "u" * 5_600),
        Piece(EventKind.TOOL_CALL, "c" * 3_400, "read"),
        Piece(EventKind.ASSISTANT, "a" * 6_000),
    ]

    chunks = cut_snapshot(join_pieces(pieces))

    assert [(chunk.start, chunk.kind, chunk.tool) for chunk in chunks] == [
        (0, EventKind.USER, ""),
        (5_600, EventKind.TOOL_CALL, "read"),
        (11_200, EventKind.ASSISTANT, ""),
    ]


def test_a_text_of_the_size_of_a_chunk_is_one():
    assert len(cut_snapshot(join_pieces([Piece(EventKind.USER, "x" * SIZE)]))) == 1
    assert len(cut_snapshot(join_pieces([Piece(EventKind.USER, "x" * (SIZE + 1))]))) == 2


def test_nothing_has_no_chunks():
    assert cut_snapshot(join_pieces([])) == ()
    assert cut_output("", "bash") == ()
    assert rebuild((), lambda start, end: "") == ""


def test_a_hundred_million_characters_are_cut_in_linear_time():
    text = PROSE * 3_700
    snapshot = join_pieces(
        [Piece(EventKind.USER, text), Piece(EventKind.TOOL_OUTPUT, text[:9_000])]
    )

    begun = time.perf_counter()
    chunks = cut_snapshot(snapshot)

    assert len(chunks) > 17_000
    assert time.perf_counter() - begun < 3


# Saved outputs


@pytest.mark.parametrize(("length", "whole"), [(HARD_MAX, False), (HARD_MAX + 1, True)])
def test_an_output_is_one_chunk(length: int, whole: bool):
    assert cut_output("x" * length, "bash") == (
        Chunk(start=0, end=length, kind=EventKind.TOOL_OUTPUT, tool="bash", whole=whole),
    )


def test_an_output_longer_than_a_piece_is_cut_at_lines():
    text = LOG * 20

    chunks = cut_output(text, "bash")

    assert [chunk.whole for chunk in chunks] == [True, False]
    assert text[chunks[0].end - 1] == "\n"
    assert rebuild(chunks, lambda start, end: text[start:end]) == text


def cluster(text: str) -> str | None:
    """The text of the error cluster of TEXT, which must be its last chunk and no other."""
    *plain, last = cut_output(text, "bash")
    assert not any(chunk.name for chunk in plain)
    assert last.name in {"", "error1"}
    return text[last.start : last.end] if last.name else None


def test_the_error_cluster_of_an_output_stands_beside_its_chunk():
    lines = LOG.splitlines(keepends=True)
    lines[500:500] = ["src/a.c:1: error: no x\n", "note: here\n", "make: *** Error 2, failed\n"]
    text = "".join(lines)

    chunks = cut_output(text, "bash")

    assert [(chunk.name, chunk.whole) for chunk in chunks] == [("", True), ("error1", False)]
    assert chunks[1].kind is EventKind.TOOL_OUTPUT
    assert chunks[1].tool == "bash"
    assert cluster(text) == "".join(lines[500 - CONTEXT : 503])
    assert rebuild(chunks, lambda start, end: text[start:end]) == text


@pytest.mark.parametrize(
    "line", ["0 errors, 0 failed", "warning: deprecated", "connection refused", "all good"]
)
def test_a_line_that_is_not_surely_an_error_makes_no_cluster(line: str):
    assert cluster(f"a\n{line}\nb\n") is None


def test_the_cluster_ends_with_the_last_error_that_is_near():
    quiet = "ok\n" * (SILENCE - 1)
    near, far = f"error: a\n{quiet}error: b\n", "ok\n" * SILENCE + "error: c\n"

    assert cluster(near + far) == near


def test_the_cluster_keeps_within_its_bound_and_ends_with_a_line():
    text = "".join(f"error: number {n} went wrong\n" for n in range(1_000))

    found = cluster(text)

    assert found is not None
    assert HARD_MAX - 40 < len(found) <= HARD_MAX
    assert found.endswith("\n")
    assert text.startswith(found)


def test_a_giant_line_does_not_push_the_error_out_of_the_cluster():
    found = cluster("{" + '"k": 1, ' * 20_000 + "}\nerror: broken\n")

    assert found is not None
    assert found.endswith("error: broken\n")
    assert len(found) <= HARD_MAX


# Rebuilding


def chunk(start: int, end: int, name: str = "") -> Chunk:
    return Chunk(start=start, end=end, name=name)


TEXT = "0123456789"


def test_rebuilding_leaves_out_overlaps_and_named_chunks():
    chunks = [chunk(0, 4), chunk(2, 7), chunk(7, 10), chunk(3, 8, "error1")]

    assert rebuild(chunks, lambda start, end: TEXT[start:end]) == TEXT


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(1, 10)],  # nothing covers the beginning
        [chunk(0, 4), chunk(5, 10)],  # a gap
        [chunk(0, 4), chunk(0, 10)],  # does not begin later
        [chunk(0, 10), chunk(2, 8)],  # does not end later
        [chunk(0, 4), chunk(4, 4)],  # empty
    ],
)
def test_chunks_that_do_not_join_are_refused(chunks: list[Chunk]):
    with pytest.raises(DamagedObject, match="does not join"):
        rebuild(chunks, lambda start, end: TEXT[start:end])


def test_a_chunk_of_another_length_is_refused():
    with pytest.raises(DamagedObject, match="has 10 code points"):
        rebuild([chunk(0, 12)], lambda start, end: TEXT[start:end])


def test_an_overlap_that_differs_is_refused():
    contents = {(0, 4): "0123", (2, 7): "2X456", (2, 6): "2345"}

    with pytest.raises(DamagedObject, match="does not repeat"):
        rebuild([chunk(0, 4), chunk(2, 7)], lambda *span: contents[span])
    assert rebuild([chunk(0, 4), chunk(2, 6)], lambda *span: contents[span]) == "012345"
