"""The RPC fixtures hold what the service answers, and no member that a struct does not have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from retention import protocol
from tests import examples

FILES = sorted(
    str(file.relative_to(examples.RPC).with_suffix("")) for file in examples.RPC.rglob("*.json")
)


@pytest.fixture(scope="module")
def answered() -> dict[str, dict[str, Any]]:
    return dict(examples.walk())


def test_every_file_is_in_the_walk() -> None:
    assert sorted(examples.WALK) == FILES


@pytest.mark.parametrize("example", examples.WALK)
def test_service_answers_as_the_fixture_says(
    example: str, answered: dict[str, dict[str, Any]]
) -> None:
    assert answered[example] == examples.load(example)


@pytest.mark.parametrize("example", examples.WALK)
def test_file_is_written_as_the_generator_writes_it(example: str) -> None:
    assert examples.encode(examples.load(example)) == examples.path(example).read_bytes()


@pytest.mark.parametrize("example", examples.WALK)
def test_params_hold_only_members_of_their_struct(example: str) -> None:
    """A member that one side invents is lost when the struct is encoded again."""
    params = examples.load(example)["params"]
    kind = protocol.METHODS[examples.method(example)][0]

    again = msgspec.to_builtins(msgspec.convert(params, kind))

    assert invented(params, again) == []


@pytest.mark.parametrize("example", examples.WALK)
def test_result_holds_only_members_of_its_struct(example: str) -> None:
    kind = protocol.METHODS[examples.method(example)][1]
    result = examples.load(example).get("result")
    if kind is not None and result is not None:
        again = msgspec.to_builtins(msgspec.convert(result, kind))
        assert invented(result, again) == []


def invented(given: Any, again: Any, at: str = "") -> list[str]:
    """Return the paths in GIVEN that AGAIN, its decoded and encoded form, lacks or changes."""
    if isinstance(given, dict) and isinstance(again, dict):
        return [
            path
            for key, value in given.items()
            for path in (
                invented(value, again[key], f"{at}/{key}") if key in again else [f"{at}/{key}"]
            )
        ]
    if isinstance(given, list) and isinstance(again, list | tuple) and len(given) == len(again):
        pairs = zip(given, again, strict=True)
        return [path for n, (a, b) in enumerate(pairs) for path in invented(a, b, f"{at}/{n}")]
    return [] if given == again else [at]


def test_invented_members_are_found() -> None:
    given = {"a": 1, "b": [{"c": 2, "x": 3}], "y": 0}
    assert invented(given, {"a": 1, "b": ({"c": 2},)}) == ["/b/0/x", "/y"]


@pytest.mark.parametrize("method", protocol.METHODS)
def test_every_method_has_an_example_with_a_result(method: str) -> None:
    own = [name for name in examples.WALK if examples.method(name) == method]
    assert any("result" in examples.load(name) for name in own)
