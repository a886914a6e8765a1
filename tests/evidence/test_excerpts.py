"""The stretch of a text around what matched (V5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retention.evidence.excerpts import LEAD, ROOM, find_place

FILLER = "".join(f"line {n} says little\n" for n in range(100))
TEXTS = st.text(st.sampled_from("ab \n_é\udcff"), max_size=900)
WORDS = st.lists(st.text(st.sampled_from("ab_é"), max_size=4), max_size=4)


@given(TEXTS, WORDS)
def test_a_place_is_a_bounded_stretch_of_the_text(text: str, words: list[str]) -> None:
    place = find_place(text, words)

    assert 0 <= place.start <= place.at <= max(place.end, place.at) <= len(text)
    assert place.end - place.start <= ROOM
    found = text[place.start : place.end].lower()
    assert all(word in found for word in place.words)


def test_the_place_with_most_of_the_words_is_chosen() -> None:
    text = f"alpha\n{FILLER}alpha and beta\n{FILLER}beta\n"
    place = find_place(text, ["alpha", "beta"])

    assert text[place.at :].startswith("alpha and beta")
    assert set(place.words) == {"alpha", "beta"}


def test_of_windows_that_are_as_good_the_tightest_is_chosen() -> None:
    text = f"{FILLER}alpha in vain, alpha of beta\n{FILLER}alpha of beta"
    place = find_place(text, ["alpha", "beta"])

    assert place.at == len(FILLER) + len("alpha in vain, ")


def test_a_rare_word_counts_for_more_than_a_frequent_one() -> None:
    text = "alpha\n" * 50 + FILLER + "gamma\n" + FILLER
    place = find_place(text, ["alpha", "gamma"])

    assert text[place.at :].startswith("gamma")


def test_a_word_is_found_at_its_beginning_and_after_an_underscore() -> None:
    place = find_place(f"{FILLER}disalpha read_alphabet", ["alpha"])

    assert place.at == len(FILLER) + len("disalpha read_")


def test_lines_are_kept_whole_where_they_are_short() -> None:
    text = FILLER.replace("line 50 says little", "the numbat escaped")
    place = find_place(text, ["numbat"])
    shown = text[place.start : place.end]

    assert text[place.start - 1] == "\n"
    assert text[place.end - 1 : place.end + 1].count("\n") == 1
    assert "the numbat escaped\n" in shown
    assert place.at - place.start <= LEAD


def test_without_a_match_it_begins_where_a_vector_pointed_to() -> None:
    assert find_place(FILLER, ["zebra"], (400, 500)).at == 400
    assert find_place(FILLER, [], None).at == 0


def test_a_vectors_stretch_is_where_words_are_looked_for() -> None:
    text = f"alpha\n{FILLER}alpha\n"
    place = find_place(text, ["alpha"], (len(text) - 20, len(text)))

    assert place.at == len(text) - len("alpha\n")
