"""Whatever a tool returns: excerpts are verbatim and bounded, and all of it can be recalled."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from retention.saver import recalling
from retention.saver.excerpting import Options, Output, Strategy, decode, excerpt, legible
from retention.saver.lines import read_lines, read_pieces
from retention.saver.scoring import weigh
from retention.saver.segments import MOST, bytes_of, split
from retention.saver.selecting import select

SMALL = Options(
    tail_min_chars=300, excerpt_max_chars=1_500, segment_max_fraction=0.9, saved_min_chars=50
)

# Lines as tools print them, and what is hard about them: colours, progress, length, other bytes.
words = st.sampled_from(
    "error FAIL warning ok src/a.py:12: 2026-04-21T20:32:12 at def {} [x] 17".split()
)
lines = st.one_of(
    st.lists(words, max_size=12).map(" ".join),
    st.sampled_from(["", "  ", "diff --git a/x b/x", "Traceback (most recent call last):"]),
    st.sampled_from(["\x1b[31mFAILED\x1b[0m x", "10%\r50%\r100%", "{" + '"k": 1, ' * 300 + "}"]),
    st.sampled_from(
        ['[segment 4 of 16 omitted, 2.1 KB, "x"]', "[lines 2-3 of segment 1 omitted, 0.1 KB]"]
    ),
    st.text(max_size=60),
    st.integers(1_001, 3_000).map(lambda count: "x" * count),
)
texts = st.lists(lines, max_size=120).flatmap(
    lambda some: st.integers(1, 6).map(lambda times: "\n".join(some * times))
)
outputs = st.one_of(
    texts.map(str.encode),
    st.binary(max_size=3_000),
    st.binary(max_size=40).map(lambda data: data * 100),
)
tasks = st.sampled_from(["", "why does src/a.py fail?", "sum it up", "x" * 50])


@given(outputs)
def test_pieces_and_segments_join_to_the_text(data):
    text = decode(data)
    pieces = read_pieces(read_lines(text))
    segments = split(pieces)

    assert "".join(text[a:b] for a, b in pairwise(pieces.starts)) == text
    assert len(pieces.clean) == len(pieces.owners) == len(pieces.starts) - 1
    assert "".join(text[one.start : one.end] for one in segments) == text
    assert len(segments) <= MOST
    assert [one.number for one in segments] == list(range(1, len(segments) + 1))
    assert sum(one.size for one in segments) == len(data)


@given(texts, st.lists(st.integers(0, 200), max_size=40))
def test_any_boundaries_give_segments_that_join_to_the_text(text, boundaries):
    pieces = read_pieces(read_lines(text))
    count = len(read_lines(text).clean)
    segments = split(pieces, [line for line in sorted(set(boundaries)) if line < count])

    assert "".join(text[one.start : one.end] for one in segments) == text


@given(texts, tasks, st.integers(0, 4_000))
def test_a_selection_is_verbatim_in_order_and_within_its_bound(text, task, limit):
    pieces = read_pieces(read_lines(text))
    segments = split(pieces)
    if not segments:
        return
    kept = select(pieces, segments, weigh(pieces, task), limit=limit)
    numbers = [at for at, keep in enumerate(kept.kept) if keep]
    rendered = kept.render()

    assert kept.cost <= limit or not numbers
    assert len(rendered) <= kept.cost
    # The text is the kept pieces, and between them one line for each gap, whatever the text says.
    rest, at = rendered, 0
    for gap in [*kept.gaps(), None]:
        end = gap.first if gap else len(pieces.clean)
        shown = text[pieces.starts[at] : pieces.starts[end]]
        assert rest.startswith(shown)
        rest = rest[len(shown) :]
        if gap is None:
            break
        if shown and not shown.endswith("\n"):
            rest = rest.removeprefix("\n")
        mark, rest = rest.split("\n", 1)
        assert re.fullmatch(r"\[.* omitted, [\d,]+\.\d KB.*\]", mark)
        at = gap.after
    assert rest == ""
    gone = sum(gap.after - gap.first for gap in kept.gaps())
    assert gone + len(numbers) == len(pieces.clean)


@given(outputs, tasks)
def test_an_excerpt_is_never_longer_than_the_original_or_the_cap(data, task):
    made = excerpt(Output(data=data, task=task), SMALL)

    assert len(made.text) <= max(len(decode(data)), 0)
    assert len(made.text) <= SMALL.excerpt_max_chars
    if made.strategy is Strategy.WHOLE:
        assert made.text == legible(decode(data))
    made.text.encode()  # can be sent


@given(outputs, tasks)
def test_equal_outputs_give_equal_excerpts(data, task):
    assert excerpt(Output(data=data, task=task), SMALL) == excerpt(
        Output(data=data, task=task), SMALL
    )


@given(texts, st.floats(0, 1), st.integers(600, 1_500), st.floats(0.2, 0.9))
def test_no_threshold_changes_an_id(text, keep, most, fraction):
    output = Output(data=text.encode("utf-8", "surrogatepass"))
    other = Options(
        tail_min_chars=300,
        excerpt_max_chars=most,
        segment_max_fraction=fraction,
        saved_min_chars=50,
        segment_keep=keep,
    )
    first, second = excerpt(output, SMALL), excerpt(output, other)

    assert first.id == second.id
    if first.segments and second.segments:
        assert first.segments == second.segments


def walk(page, *args, **options):
    """Return all spans that the pages of a part show, one after the other."""
    spans, offset = [], 0
    while offset is not None:
        found = page(*args, offset=offset, **options)
        assert len(found.answer) <= options["limit"]
        spans += found.spans
        assert found.resume is None or found.resume > offset
        offset = found.resume
    return spans


@given(outputs, st.integers(150, 3_000))
def test_the_pages_of_an_output_are_all_of_it_once(data, limit):
    text = decode(data)
    spans = walk(recalling.recall_whole, "o1", text, limit=limit)

    assert "".join(text[a:b] for a, b in spans) == text


@given(outputs, st.integers(150, 3_000))
def test_the_pages_of_each_segment_are_its_bytes(data, limit):
    text = decode(data)
    segments = split(read_pieces(read_lines(text)))
    for segment in segments:
        spans = walk(recalling.recall_segment, "o1", text, segments, segment.id, limit=limit)
        shown = bytes_of("".join(text[a:b] for a, b in spans))
        assert shown == bytes_of(text[segment.start : segment.end])


@given(
    texts,
    st.sampled_from(["error", "fail|warning", r"src/\w+", "x"]),
    st.integers(0, 3),
    st.integers(200, 3_000),
)
def test_the_pages_of_a_pattern_show_each_match_once_and_nothing_twice(
    text, pattern, context, limit
):
    pieces = read_pieces(read_lines(text))
    spans = walk(recalling.recall_pattern, "o1", text, pattern, context=context, limit=limit)

    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    shown = [(a, b) for a, b in spans if a < b]
    for at, line in enumerate(pieces.clean):
        if re.search(pattern, line, re.IGNORECASE):
            assert any(a < pieces.starts[at + 1] and pieces.starts[at] < b for a, b in shown)
