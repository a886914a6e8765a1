"""Edits of JSON text change what they name and leave every other byte as it was."""

from __future__ import annotations

import pytest

from retention.providers import splice

ARRAY = b' [ 1 , "," ,[2],\n{"a":3} ] '
DROPPED = {
    "1": b' [ "," ,[2],\n{"a":3} ] ',
    '","': b' [ 1 ,[2],\n{"a":3} ] ',
    '{"a":3}': b' [ 1 , "," ,[2] ] ',
    '1 "," [2]': b' [ {"a":3} ] ',
    '1 "," [2] {"a":3}': b" [  ] ",
    "": ARRAY,
}


@pytest.mark.parametrize("names", DROPPED)
def test_dropped_items_take_one_comma_along(names):
    unwanted = [name.encode() for name in names.split()]

    edited = splice.map_items(
        ARRAY, splice.whole(ARRAY), lambda raw: b"" if raw in unwanted else raw
    )

    assert edited == DROPPED[names]


def test_items_are_replaced_in_place():
    assert (
        splice.map_items(ARRAY, splice.whole(ARRAY), lambda raw: raw + b"0")
        == b' [ 10 , ","0 ,[2]0,\n{"a":3}0 ] '
    )
    assert splice.map_items(b"[ ]", (0, 3), lambda _: b"1") == b"[ ]"


OBJECT = b'{"a": 1, "b" :2 ,"\\u0061":{"a":3}, "c":"}"}'


def test_members_are_dropped_with_all_that_have_the_key():
    """Equal keys go together, however they are spelt; a key that is not there changes nothing."""
    span = splice.whole(OBJECT)

    assert splice.drop_members(OBJECT, span, "a") == b'{"b" :2, "c":"}"}'
    assert splice.drop_members(OBJECT, span, "c", "b") == b'{"a": 1 ,"\\u0061":{"a":3}}'
    assert splice.drop_members(OBJECT, span, "d") == OBJECT
    assert splice.drop_members(b"{ }", (0, 3), "a") == b"{ }"


def test_member_is_set_where_it_stands_or_at_the_end():
    span = splice.whole(OBJECT)

    assert splice.set_member(OBJECT, span, "b", b"[]") == OBJECT.replace(b'"b" :2', b'"b" :[]')
    assert splice.set_member(OBJECT, span, "d", b"4") == OBJECT[:-1] + b',"d":4}'
    assert splice.set_member(b"{ }", (0, 3), "d", b"4") == b'{ "d":4}'
