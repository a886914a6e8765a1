"""What is said of a failed run, and the verifier of what is said (V6)."""

from __future__ import annotations

import msgspec
import pytest

from retention.evidence.causes import (
    NO_RUN,
    RECURS,
    RECURS_VAGUELY,
    Claim,
    Explained,
    Facts,
    Record,
    Records,
    explain,
    is_supported,
    normalize,
    render,
)
from tests.evidence import gold

AT = "2026-03-05T06:33:20.1234567Z"
RUN, EARLIER, OTHER = "20000000003", "20000000001", "20000000002"
TRAILER = "##[error]Process completed with exit code 1."
PAGES, PAGES_BEFORE, MATRIX = "30524190877", "30511846203", "30597750384"


def chunk(*lines):
    return "".join(f"build\tTest\t{AT} {line}\n" for line in lines)


def records(started, **errors):
    """Return failed runs that STARTED when it says; ERRORS of RUN and others, each a chunk."""
    runs = {
        id: Facts({"status": "failed", "started": when}, f"Run: {id}\nStatus: failed\n")
        for id, when in started.items()
    }
    by_run = {"run": RUN, "earlier": EARLIER, "other": OTHER}
    found = {
        by_run[name]: {f"{by_run[name]}.failed:error{n}": text for n, text in enumerate(some, 1)}
        for name, some in errors.items()
    }
    return Records(runs, lambda run: found.get(run, {}))


def alone(*errors):
    """Return what is said of a run with ERRORS and no other run."""
    return explain(f"Why did {RUN} fail?", records({RUN: "2026-03-05T00:00:00Z"}, run=errors))


def shared(explained):
    return [claim for claim in explained.claims if claim.label]


# What is quoted


def test_the_row_and_every_error_are_quoted_as_they_stand():
    errors = chunk("\x1b[1ma", "##[error]x"), chunk("##[error]y")

    assert alone(*errors).claims == (
        Claim(text=f"Run: {RUN}\nStatus: failed\n", support=(f"Run:{RUN}",)),
        Claim(text=errors[0], support=(f"{RUN}.failed:error1",)),
        Claim(text=errors[1], support=(f"{RUN}.failed:error2",)),
    )


def test_errors_stand_in_the_order_of_their_numbers_whatever_order_they_come_in():
    known = gold.records()
    backwards = Records(known.runs, lambda run: dict(reversed(known.errors(run).items())))
    said = explain(MATRIX, backwards)

    assert [claim.support for claim in said.claims[1:]] == [
        (f"{MATRIX}.failed:error{n}",) for n in range(1, 13)
    ]
    assert said.anchor == f"{MATRIX}.failed:error11"


def test_a_failed_run_without_errors_is_its_row():
    said = alone()

    assert said.claims == (Claim(text=f"Run: {RUN}\nStatus: failed\n", support=(f"Run:{RUN}",)),)
    assert (said.signature, said.anchor) == ("", "")


# The line that names a failure


@pytest.mark.parametrize(
    ("lines", "signature"),
    [
        (["##[error]disk full", "##[error]no luck"], "disk full"),
        ([TRAILER, "##[error]disk full"], "disk full"),
        ([TRAILER], "Process completed with exit code 1."),
        (["##[error]Process completed with exit code -1073741819.", TRAILER, "##[error]x"], "x"),
        (["##[error]Process completed with exit code 2", "##[error]x"], "x"),
        (["##[error]x", "ERROR E42: disk full"], "ERROR E42: disk full"),
        (["ERROR   -  disk full", "##[error]x"], "x"),
        (["ERROR job E42 failed: x", TRAILER], "Process completed with exit code 1."),
        (["##[error]", "##[error]   ", "##[error]x"], "x"),
        (['##[error]no "x"', "##[error]y"], "y"),
        (['##[error]no "x"', TRAILER], "Process completed with exit code 1."),
        (['##[error]no "x"'], ""),
        (["##[error]Сборка не удалась", "##[error]— * —"], ""),
        (["##[error]\x1b[31mdisk\x1b[0m full\r"], "disk full"),
        (["step says ##[error]  disk full "], "disk full"),
        (["disk full", "failed"], ""),
    ],
)
def test_the_first_line_that_says_something_names_the_failure(lines, signature):
    said = alone(chunk(*lines))

    assert said.signature == signature
    assert said.anchor == (f"{RUN}.failed:error1" if signature else "")
    assert said.claims[1].text == chunk(*lines)


def test_the_anchor_is_the_chunk_of_the_line_and_not_the_first_error():
    said = alone(chunk("ERROR - x", "##[error]"), chunk(TRAILER), chunk("##[error]disk full"))

    assert (said.signature, said.anchor) == ("disk full", f"{RUN}.failed:error3")


# Earlier failures


def recur(*, run="2026-03-05T00:00:00Z", earlier="2026-03-04T00:00:00Z", line="##[error]disk full"):
    """Return what is said of a run whose LINE another one has too, by when they started."""
    return explain(
        RUN,
        records(
            {RUN: run, EARLIER: earlier}, run=[chunk("##[error]disk full")], earlier=[chunk(line)]
        ),
    )


def test_an_earlier_run_with_the_line_is_named():
    assert shared(recur()) == [
        Claim(
            text=f"{RECURS}: \"disk full\" appears in '{EARLIER}.failed' and '{RUN}.failed'.",
            support=(f"{RUN}.failed:error1", f"{EARLIER}.failed:error1"),
            label=RECURS,
        )
    ]


@pytest.mark.parametrize(
    ("earlier", "run"),
    [
        ("2026-03-04T00:00:00Z", "2026-03-05T00:00:00Z"),
        ("2026-03-05T00:30:00+01:00", "2026-03-05T00:00:00Z"),  # by text it is later
        ("2026-03-04T23:59:59.9Z", "2026-03-05T00:00:00Z"),
        ("2026-03-04T23:59:59", "2026-03-05T00:00:00Z"),
    ],
)
def test_earlier_is_a_matter_of_time_and_not_of_text(earlier, run):
    assert shared(recur(earlier=earlier, run=run))
    assert not shared(recur(earlier=run, run=earlier))


@pytest.mark.parametrize(
    "when",
    [
        {"earlier": "2026-03-05T00:00:00Z"},
        {"earlier": "2026-03-05T01:00:00+01:00"},
        {"earlier": "2026-03-04T20:00:00-05:00"},  # by text it is earlier
        {"earlier": ""},
        {"earlier": "a while ago"},
        {"run": ""},
        {"run": "z"},
    ],
)
def test_what_is_as_old_or_of_no_known_time_is_not_earlier(when):
    assert not shared(recur(**when))


@pytest.mark.parametrize("line", ["##[error]Disk full", "##[error]disk  full", "##[error]disk"])
def test_the_line_must_be_the_same(line):
    assert not shared(recur(line=line))


def test_the_line_is_found_in_colours_and_outside_of_markers():
    assert shared(recur(line="\x1b[31mdisk\x1b[0m full at last"))


def test_a_failure_recurs_by_error_chunks_alone():
    known = gold.records()
    before = known.runs[PAGES_BEFORE]
    runs = {PAGES: known.runs[PAGES], PAGES_BEFORE: before._replace(text="HttpError: Not Found")}
    said = explain(PAGES, Records(runs, lambda run: known.errors(run) if run == PAGES else {}))

    assert not shared(said)
    assert shared(explain(PAGES, known))


def test_the_first_failure_of_its_kind_makes_no_claim_about_others():
    known = gold.records()

    assert not shared(explain(PAGES_BEFORE, known))
    assert [claim.support for claim in explain(PAGES_BEFORE, known).claims] == [
        (f"Run:{PAGES_BEFORE}",),
        (f"{PAGES_BEFORE}.failed:error1",),
    ]


def test_all_earlier_chunks_are_cited_in_one_claim():
    when = {RUN: "2026-03-05", EARLIER: "2026-03-03", OTHER: "2026-03-04"}
    line = chunk("##[error]disk full")
    (claim,) = shared(explain(RUN, records(when, run=[line], other=[line, line], earlier=[line])))

    assert claim.support == (
        f"{RUN}.failed:error1",
        f"{EARLIER}.failed:error1",
        f"{OTHER}.failed:error1",
        f"{OTHER}.failed:error2",
    )
    assert claim.text.endswith(
        f"appears in '{EARLIER}.failed' and '{OTHER}.failed' and '{RUN}.failed'."
    )


def test_a_line_that_many_failures_have_is_called_that():
    when = {RUN: "2026-03-05", EARLIER: "2026-03-03"}
    (claim,) = shared(explain(RUN, records(when, run=[chunk(TRAILER)], earlier=[chunk(TRAILER)])))

    assert claim.label == RECURS_VAGUELY
    assert claim.text.startswith(RECURS_VAGUELY)
    assert supports(claim, {RUN: TRAILER, EARLIER: TRAILER})


# Refusals


@pytest.mark.parametrize(
    ("question", "refused"),
    [
        ("Why did it fail?", NO_RUN),
        ("Why did run 1234567 fail?", NO_RUN),
        ("Why did run R-12 fail?", NO_RUN),
        ("Why did x20000000003 fail?", NO_RUN),
        ("Why did 39999999999 fail?", "Run 39999999999 is not known: its facts were not learned."),
        ("Why did R-1042 fail?", "Run R-1042 is not known: its facts were not learned."),
        ("Why did 30530044120 fail?", "Run 30530044120 did not fail: it passed."),
        ("Why did 30530991866 fail?", "Run 30530991866 did not fail: its status is cancelled."),
    ],
)
def test_what_cannot_be_explained_is_refused_with_the_reason(question, refused):
    said = explain(question, gold.records())

    assert said == Explained(refused=refused)
    assert render(said) == refused + "\n"


def test_a_run_that_goes_on_did_not_fail_yet():
    going = Records({RUN: Facts({}, f"Run: {RUN}\n")}, lambda run: {})

    assert explain(RUN, going).refused == f"Run {RUN} is not known to have ended."


@pytest.mark.parametrize(
    "question",
    [PAGES, f"({PAGES})", f"…/actions/runs/{PAGES}?", f"{PAGES}.failed:error1", f"#{PAGES}"],
)
def test_a_run_is_named_in_any_text(question):
    assert explain(question, gold.records()).claims


# In words


def test_the_text_quotes_each_claim_under_its_ids():
    said = alone(chunk("##[error]disk full"))

    assert render(said) == (
        f"Signature: disk full [{RUN}.failed:error1]\n"
        f"\n[Run:{RUN}]\nRun: {RUN}\nStatus: failed\n"
        f"\n[{RUN}.failed:error1]\n{chunk('##[error]disk full')}"
    )
    assert render(alone()).startswith("Signature: none")


# The verifier


def supports(claim, lines):
    """Tell whether CLAIM holds of chunks whose LINES are given by run."""
    known = {
        f"{run}.failed:error1": Record(chunk(line), f"{run}.failed") for run, line in lines.items()
    }
    return is_supported(claim, known)


BOTH = {RUN: "\x1b[31m##[error]disk\x1b[0m 'a' full", EARLIER: "disk 'a' full"}
GOOD = Claim(
    text=f"{RECURS}: \"disk 'a' full\" appears in '{EARLIER}.failed' and '{RUN}.failed'.",
    support=(f"{RUN}.failed:error1", f"{EARLIER}.failed:error1"),
    label=RECURS,
)


def test_a_line_in_all_that_is_cited_is_supported():
    assert supports(GOOD, BOTH)


def altered(old, new):
    return {"text": GOOD.text.replace(old, new)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(altered("full", "empty"), id="another fragment"),
        pytest.param(altered("disk", "Disk"), id="another case"),
        pytest.param(altered("disk 'a' full", ""), id="no fragment"),
        pytest.param(altered("disk 'a' full", "'"), id="only signs"),
        pytest.param(altered("disk 'a' full", 'd" or "d'), id="two fragments"),
        pytest.param(altered(RECURS, "Cause"), id="another label"),
        pytest.param(altered(f"'{EARLIER}.failed' and ", ""), id="unnamed source"),
        pytest.param(altered(".failed'.", ".failed' and 'x'."), id="uncited source"),
        pytest.param(altered(EARLIER, OTHER), id="wrong source"),
        pytest.param({"text": GOOD.text + " It rained."}, id="more"),
        pytest.param({"support": GOOD.support[:1]}, id="one citation"),
        pytest.param({"support": GOOD.support[:1] * 2}, id="one citation twice"),
        pytest.param({"support": ()}, id="no citation"),
        pytest.param({"support": (*GOOD.support, "Run:1")}, id="unknown citation"),
    ],
)
def test_a_tampered_claim_is_not_supported(change):
    tampered = msgspec.structs.replace(GOOD, **change)

    assert tampered != GOOD
    assert not supports(tampered, BOTH)


@pytest.mark.parametrize("run", [RUN, EARLIER])
def test_a_line_that_one_of_the_sources_lacks_is_not_supported(run):
    assert not supports(GOOD, BOTH | {run: "disk full"})


def test_two_chunks_of_one_source_are_not_two_sources():
    text = f"{RECURS}: \"disk full\" appears in '{RUN}.failed'."
    known = {f"{n}": Record(chunk("disk full"), f"{RUN}.failed") for n in (1, 2)}

    assert not is_supported(Claim(text=text, support=("1", "2")), known)


def test_a_quotation_is_exact():
    known = {"1": Record(chunk("exit code -1"), "a"), "2": Record("nothing", "b")}

    assert is_supported(Claim(text=chunk("exit code -1"), support=("1",)), known)
    assert is_supported(Claim(text="exit code -1", support=("1",)), known)
    for text, support in [
        ("exit code 1", ("1",)),
        ("Exit code -1", ("1",)),
        ("exit code -1", ("2",)),
        ("exit code -1", ("1", "2")),
        ("exit code -1", ("3",)),
        ("exit code -1", ()),
        (" \n", ("1",)),
        ("", ("1",)),
    ]:
        assert not is_supported(Claim(text=text, support=support), known), text


def test_a_quotation_cannot_be_changed_where_cleaning_would_hide_it():
    line = "10%\r100% " + "x" * 3_000 + "end"
    known = {"1": Record(chunk(line), "a")}

    assert is_supported(Claim(text=chunk(line), support=("1",)), known)
    assert not is_supported(Claim(text=chunk(line.replace("end", "END")), support=("1",)), known)
    assert not is_supported(Claim(text=chunk(line.replace("10%\r", "1%\r")), support=("1",)), known)


@pytest.mark.parametrize(
    ("text", "form"),
    [("Größe: Œ-1 Café!", "groesse1cafe"), ("ÄÖÜ", "aeoeue"), ("Сборка", ""), ("— * —", "")],
)
def test_the_normal_form_is_latin_letters_and_digits(text, form):
    assert normalize(text) == form
