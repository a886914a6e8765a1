"""Results find their calls by order alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retention.providers.calls import match_calls


@pytest.mark.parametrize(
    ("seen", "own", "places"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("abc", "bca", [1, 2, 0]),
        ("aab", "baa", [2, 1, 0]),  # reversed: equal calls are, too
        ("aba", "aab", [0, 2, 1]),  # not reversed: they keep their order
        ("aa", "aa", [0, 1]),
        ("aba", "aba", [0, 1, 2]),  # reversed or not cannot be told
        ("", "", []),
        ("ab", "ac", None),
        ("ab", "abb", None),
        ("abb", "ab", None),
    ],
)
def test_calls_are_matched(seen, own, places):
    assert match_calls(seen, own) == places


@given(st.permutations("aabbbc"), st.permutations("aabbbc"))
def test_each_call_is_matched_once_with_an_equal_one(seen, own):
    places = match_calls(seen, own)

    assert sorted(places) == list(range(6))
    assert [seen[n] for n in places] == own
