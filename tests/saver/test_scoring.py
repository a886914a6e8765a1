"""What speaks for a piece: problems, words of the task, and being unlike the rest."""

from __future__ import annotations

from retention.saver.lines import read_lines, read_pieces
from retention.saver.scoring import LOCAL_KEEP, local, weigh
from retention.saver.segments import split

LOG = [
    f"[12:00:{at % 60:02}] worker {at % 7} wrote block {at * 31} to shard {at % 5}"
    for at in range(2_000)
]
TASK = "Why did the frobnicator of quokka-17 stop?"


def weighed(lines, task="", marked=None):
    return weigh(read_pieces(read_lines("\n".join(lines))), task, marked or {})


def planted(line, at=1_000):
    return [*LOG[:at], line, *LOG[at:]]


def test_the_line_unlike_all_others_is_the_rarest():
    evidence = weighed(planted("note: cache flushed by hand"))

    assert next(iter(evidence.rarity)) == 1_000


def test_a_line_that_differs_in_numbers_only_is_not_rare():
    evidence = weighed(planted("[12:00:59] worker 6 wrote block 999999 to shard 4", 500))

    assert evidence.rarity.get(500, 0) < 0.3


def test_the_words_of_the_task_that_are_rare_count():
    lines = planted("[12:03:00] worker quokka-17 stop requested")
    evidence = weighed(lines, TASK)

    assert next(iter(evidence.overlap)) == 1_000
    assert weighed(lines, "worker wrote block").overlap == {}


def test_a_word_in_passing_is_no_match_when_the_others_are_missing():
    evidence = weighed(planted("[12:03:00] stop"), TASK)

    assert 0 < evidence.overlap[1_000] < 0.4


def test_a_term_begins_a_word():
    evidence = weighed(planted("nonstop"), "stop")

    assert evidence.overlap == {}
    assert 1_000 in weighed(planted("stopping"), "stop").overlap


def test_a_plural_in_the_task_finds_the_singular():
    assert 1_000 in weighed(planted("the limit of the quokka"), "quokkas").overlap


def test_where_every_line_is_an_error_the_unlike_one_comes_first():
    errors = [f"src/m{at}.py:{at}:1: error: missing type of argument a{at}" for at in range(3_000)]
    errors.insert(1_700, "ERROR disk quota exceeded on /dev/sdq7")

    assert next(iter(weighed(errors).problems)) == 1_700


def test_problems_of_a_kind_come_after_the_first_of_each_kind():
    kinds = ["error: undefined name", "fatal: repository gone", "panic: index out of range"]
    lines = [f"{kind} {at}" for kind in kinds for at in range(200)]
    first = list(weighed(lines).problems)[:3]

    assert sorted(at // 200 for at in first) == [0, 1, 2]


def test_what_a_format_marks_is_a_problem_whatever_it_says():
    assert next(iter(weighed(LOG, marked={700: 1.0}).problems)) == 700
    assert weighed(LOG).problems == {}


def test_evidence_is_found_in_every_block_and_in_a_sample_of_many_lines():
    lines = [*LOG * 12, "fatal: lost", *LOG]
    evidence = weighed(lines, "lost")

    assert list(evidence.problems) == list(evidence.overlap) == [24_000]
    assert 24_000 in evidence.rarity


def test_the_local_score_is_highest_where_the_task_finds_its_words():
    pieces = read_pieces(read_lines("\n".join(planted("the frobnicator of quokka-17 did stop"))))
    segments = split(pieces)
    scores = local(segments, pieces, weigh(pieces, TASK))
    best = max(range(len(scores)), key=scores.__getitem__)

    assert segments[best].first <= 1_001 <= segments[best].last
    assert [at for at, score in enumerate(scores) if score >= LOCAL_KEEP] == [best]
    assert all(0 <= score <= 1 for score in scores)
