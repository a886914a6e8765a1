"""Words of texts and questions."""

from __future__ import annotations

import pytest

from retention.index.words import TERMS, loosened, parts_of, storable, terms_of


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("parseHttp2Frame", "parse Http 2 Frame"),
        ("HTTPServer", "HTTP Server"),
        ("getURLFromDB", "get URL From DB"),
        ("sha256sum", "sha 256 sum"),
        ("error404", "error 404"),
        ("検索エンジン", "検 索 エ ン ジ ン"),
        ("plain", ""),
        ("snake_case", ""),  # the tokenizer parts it
        ("x86", ""),
        ("3f2a9c1b77", ""),  # a hash, no name
        ("aB" * 40, ""),
    ],
)
def test_the_parts_of_a_word_are_those_that_the_tokenizer_leaves_together(
    word: str, parts: str
) -> None:
    assert parts_of(f"see {word}.") == parts


def test_each_word_gives_its_parts_once_in_order() -> None:
    assert parts_of("fooBar bazQux fooBar") == "foo Bar baz Qux"


def test_a_term_is_a_stretch_without_spaces_as_a_phrase() -> None:
    assert terms_of("src/io.py max_size") == ['"src io py"', '"max size"']


def test_a_name_is_asked_for_whole_and_in_parts() -> None:
    assert terms_of("parseFrame") == ['("parseframe" OR "parse frame")']


def test_quotation_marks_make_one_term() -> None:
    assert terms_of('the "second try" failed') == ['"second try"', '"failed"']


def test_words_of_the_grammar_are_no_terms_unless_there_are_no_others() -> None:
    assert terms_of("What did we say about the lock?") == ['"say"', '"lock"']
    assert terms_of("who is who") == ['"who"', '"is"']


@pytest.mark.parametrize("question", ["", "  ", "*** -- ()", '""', "\0", "\ud800"])
def test_what_has_no_word_asks_for_nothing(question: str) -> None:
    assert terms_of(question) == []


def test_only_so_many_terms_are_looked_for() -> None:
    assert len(terms_of(" ".join(f"w{n}" for n in range(200)))) == TERMS


@pytest.mark.parametrize(
    ("term", "form"),
    [
        ('"failed"', '"fail"*'),
        ('"queries"', '"queri"*'),
        ('"retry"', '"retr"*'),
        ('"lock"', '"lock"*'),
        ('"used"', '"used"*'),  # "us" would say nothing
        ('"cat"', '"cat"'),
        ('"max size"', '"max size"'),
        ('("fooed" OR "foo ed")', '("fooed" OR "foo ed")'),
    ],
)
def test_a_plain_word_is_loosened_to_its_beginning(term: str, form: str) -> None:
    assert loosened(term) == form


def test_what_is_no_character_is_marked() -> None:
    assert storable("a\udcffb") == "a?b"
    assert storable("a\0é") == "a\0é"
