"""Search for words: what is found, in which order, and that any text will do as a question."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retention.index import Filters, Index, lexical
from retention.index.lexical import COMMON, NEAR
from retention.model import EventKind
from tests.index.build import add, documents, entry, found

WORDS = [a + b for a in "ba do fu gi ke lu mo ni pe ro".split() for b in "dal fin gost hem".split()]


def test_a_known_item_is_found_by_its_words(index: Index) -> None:
    """Among 400 chunks, three words of one that no other has together."""
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=60)) + f" item{n}x lamp" for n in range(400)]
    add(index, "s", *texts)

    for n in rng.sample(range(400), 20):
        assert found(index, f"lamp item{n}x {texts[n].split()[0]}")[0] == ("s", n)


def test_all_words_go_before_some_and_the_answer_says_which(index: Index) -> None:
    add(index, "s", "copper kettle", "copper kettle whistles", "a whistle", "tin")

    matches = index.search("copper kettle whistles")

    assert [(m.number, m.found) for m in matches[:2]] == [(1, "words"), (0, "some words")]
    assert 3 not in [m.number for m in matches]


def test_rare_words_count_for_more_than_common_ones(index: Index) -> None:
    add(index, "s", "quartz", *[f"gravel sand number{n}" for n in range(50)])

    assert found(index, "gravel sand quartz nowhere")[0] == ("s", 0)


def test_a_word_that_is_nowhere_does_not_hide_what_has_all_others(index: Index) -> None:
    crowd = [f"{one} {two}" for one in ("amber", "birch") for two in ("cedar", "fjord")] * 10
    add(index, "s", *crowd, "amber birch cedar fjord")

    assert found(index, "amber birch cedar fjord unheard")[0] == ("s", len(crowd))


def test_common_words_tell_something_together(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexical, "COMMON", 3)
    filler = " ".join(["gravel"] * 2 * NEAR)
    apart = [f"amber {filler} birch {filler} cedar"] * 10
    add(index, "s", "fjord amber birch cedar", "fjord", *apart)

    assert found(index, "amber birch cedar fjord unheard")[0] == ("s", 0)
    add(index, "t", "fjord amber birch cedar", "fjord", "fjord", "fjord")
    assert set(found(index, "amber birch cedar unheard")[:2]) == {("s", 0), ("t", 0)}


def test_words_of_one_passage_go_before_words_far_apart(index: Index) -> None:
    """A long chunk holds words that have nothing to do with each other (V9)."""
    filler = " ".join(["gravel"] * 2 * NEAR)
    add(index, "s", f"valve {filler} pressure", f"{filler} {filler} valve pressure")

    assert found(index, "valve pressure") == [("s", 1), ("s", 0)]
    assert found(index, "valve pressure absent")[0] == ("s", 1)


def test_other_forms_of_a_word_are_some_words(index: Index) -> None:
    add(index, "s", "the upload was retried twice", "nothing here")

    matches = index.search("retrying uploads")

    assert [(m.number, m.found) for m in matches] == [(0, "some words")]


def test_a_common_word_alone_still_finds(index: Index) -> None:
    """More than COMMON chunks have it: as a term among others it tells nothing."""
    for source in range(3):
        add(index, f"s{source}", *["gravel pit"] * (COMMON // 2))

    assert len(found(index, "gravel absent")) == 10


@pytest.mark.parametrize(
    "query",
    [
        "parseHttpRequest",
        "parse_http_request",
        "http request",
        "src/net/parser.py",
        "net/parser",
        "parser.py",
        '"see src"',
        "PARSER.PY",
    ],
)
def test_names_and_paths_are_found_whole_and_in_parts(index: Index, query: str) -> None:
    add(index, "s", "other parse text", "see src/net/parser.py: parseHttpRequest", "a request")

    assert found(index, query)[0] == ("s", 1)


def test_a_path_is_a_phrase(index: Index) -> None:
    add(index, "s", "parser in src of net", "src/net/parser")

    assert found(index, "src/net/parser")[0] == ("s", 1)
    assert index.search("src/net/parser")[0].found == "words"
    assert ("s", 0) not in found(index, "src/net/parser")


@pytest.mark.parametrize("query", ["naïve", "NAIVE", "Straße", "данные", "索引", "データ索引"])
def test_scripts_and_accents(index: Index, query: str) -> None:
    add(index, "s", "plain", "a naïve Straße of Данные", "これはデータ索引です")

    expected = 2 if query in {"索引", "データ索引"} else 1
    assert found(index, query) == [("s", expected)]


def test_the_id_of_a_chunk_finds_it(index: Index) -> None:
    made = documents("step one\n", "boom\n", name="chunk1")
    made[1] = made[1]._replace(chunk=made[1].chunk.__class__(start=9, end=14, name="error1"))
    index.update(entry("30412007711.failed"), made)

    assert found(index, "30412007711.failed:error1") == [("30412007711.failed", 1)]
    assert len(found(index, "30412007711")) == 2


def test_a_named_chunk_and_the_one_around_it_are_one_hit(index: Index) -> None:
    text = "gravel " * 200 + "valve burst"
    whole, *_ = documents(text)
    part = documents("valve burst", first=1, name="error1")[0]
    part = part._replace(chunk=type(part.chunk)(start=1400, end=len(text), name="error1"))
    index.update(entry(), [whole, part])

    assert found(index, "valve burst") == [("s", 1)]
    assert found(index, "gravel valve") == [("s", 0)]


class TestFilters:
    @pytest.fixture
    def filled(self, index: Index) -> Index:
        add(index, "old", "gravel", time=10.0)
        add(index, "live", "gravel gravel", conversation="c1", kind="conversation", time=20.0)
        run = documents("gravel", kind=EventKind.TOOL_OUTPUT, tool="bash")
        index.update(entry("out", kind="output", conversation="c2", time=30.0, owner="p"), run)
        return index

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({"conversation": "c2", "only": True}, {"out"}),
            ({"conversation": "c3", "only": True}, set()),
            ({"tool": "bash"}, {"out"}),
            ({"kind": "tool_output"}, {"out"}),
            ({"kind": "conversation"}, {"live"}),
            ({"since": 20.0}, {"live", "out"}),
            ({"until": 20.0}, {"old", "live"}),
            ({"since": 15.0, "until": 25.0}, {"live"}),
            ({"owner": "p"}, {"out"}),
            ({"owner": "p", "tool": "grep"}, set()),
        ],
    )
    def test_they_limit_all_ways_to_find(
        self, filled: Index, filters: dict[str, object], expected: set[str]
    ) -> None:
        assert {id for id, _ in found(filled, "gravel", **filters)} == expected
        assert {id for id, _ in found(filled, "gravel absent", **filters)} == expected

    @pytest.mark.parametrize("query", ["gravel", "gravel absent"])
    def test_a_conversation_comes_first(self, filled: Index, query: str) -> None:
        for conversation, id in (("c1", "live"), ("c2", "out")):
            matches = found(filled, query, conversation=conversation)
            assert matches[0] == (id, 0)
            assert len(matches) == 3

    def test_it_comes_first_however_many_others_are_better(self, index: Index) -> None:
        add(index, "others", *["valve valve"] * 100)
        add(index, "ours", "valve " + "gravel " * 300, conversation="c")

        assert found(index, "valve", conversation="c")[0] == ("ours", 0)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    index = Index.open(tmp_path_factory.mktemp("index"))
    index.clear()
    add(index, "s", "alpha beta NEAR gamma", "OR delta* parseFrame", 'and (not) "quoted" naïve')
    yield index
    index.close()


syntax = st.sampled_from(
    "\" * ( ) { } : ^ + - AND OR NOT NEAR( NEAR , \\ ' alpha naïve 索引 \0".split(" ")
)


@settings(max_examples=300, deadline=None)
@given(query=st.one_of(st.text(), st.lists(syntax).map(" ".join), st.lists(syntax).map("".join)))
def test_any_text_will_do_as_a_question(filled: Index, query: str) -> None:
    for filters in (Filters(), Filters(conversation=query, only=True), Filters(tool=query)):
        filled.search(query, filters)

    assert not filled.needs_rebuild


def test_a_very_long_question_is_answered(index: Index, path: Path) -> None:
    add(index, "s", "gravel")

    assert found(index, "gravel " + "word/" * 100_000) == [("s", 0)]
    assert index.search("x" * 1_000_000) == []
