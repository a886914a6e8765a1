"""Whatever a log holds: its chunks are its text, and errors keep their names and their markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retention.evidence.causes import Facts, Record, Records, explain, is_supported
from retention.evidence.runs import MARKER, clean_log, parse_log

RUN, EARLIER = "20000000002", "20000000001"

messages = st.one_of(
    st.sampled_from(
        ["", MARKER, "ok", f"{MARKER}disk full", f"\x1b[31m{MARKER}x\x1b[0m\r", '##[error]a "b"']
    ),
    st.sampled_from([f"{MARKER}Process completed with exit code -1.", "10%\r20%", "ERROR E1: x"]),
    st.text(st.characters(exclude_characters="\n", exclude_categories=()), max_size=20),
)
heads = st.sampled_from(
    ["a\tb\t", "a\tc\t", "\ufeffa\tb\t", "a / b\tc\t\ufeff", "a\tUNKNOWN STEP\t"]
).map(lambda head: head + "2026-03-05T06:33:20.1Z ")
lines = st.builds(str.__add__, st.one_of(heads, heads, st.just("")), messages)
logs = st.lists(lines, max_size=40).flatmap(
    lambda some: st.sampled_from(["", "\n", "\r\n"]).map(lambda end: "\n".join(some) + end)
)


def cut(text, context=3):
    """Return the texts of the chunks of TEXT by name."""
    return {chunk.name: text[chunk.start : chunk.end] for chunk in parse_log(text, context)}


@given(logs, st.integers(0, 50))
def test_chunks_join_to_the_text_and_are_whole_lines(text, context):
    chunks = parse_log(text, context)

    assert "".join(text[one.start : one.end] for one in chunks) == text
    assert all(one.start < one.end for one in chunks)
    assert all(one.start == 0 or text[one.start - 1] == "\n" for one in chunks)
    assert len({one.name for one in chunks}) == len(chunks)


@given(logs, st.integers(0, 50))
def test_no_context_renames_an_error_or_takes_a_marker_from_it(text, context):
    narrow, wide = cut(text, 0), cut(text, context)
    errors = [name for name in narrow if name.startswith("error")]

    assert errors == [name for name in wide if name.startswith("error")]
    assert all(wide[name].endswith(narrow[name]) for name in errors)
    assert all(MARKER in narrow[name].partition("\n")[0] for name in errors)


@given(logs, logs)
def test_whatever_two_logs_hold_every_claim_is_supported(text, before):
    texts = {RUN: text, EARLIER: before}
    runs = {
        run: Facts({"status": "failed", "started": f"2026-03-0{run[-1]}"}, f"Run: {run}\n")
        for run in texts
    }
    chunks = {
        run: {f"{run}.failed:{name}": part for name, part in cut(log).items() if "error" in name}
        for run, log in texts.items()
    }
    known = {
        **{f"Run:{run}": Record(facts.text, f"Run:{run}") for run, facts in runs.items()},
        **{id: Record(part, f"{run}.failed") for run in chunks for id, part in chunks[run].items()},
    }
    said = explain(RUN, Records(runs, chunks.__getitem__))

    assert all(is_supported(claim, known) for claim in said.claims)
    assert [id for claim in said.claims if not claim.label for id in claim.support] == [
        f"Run:{RUN}", *chunks[RUN],
    ]  # fmt: skip
    assert said.signature in clean_log(known[said.anchor].text) if said.anchor else True
