"""The form in which a model reads data is exact, and the shorter one (rules T1-T7)."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retention.encoding import (
    HOW_TO_READ,
    INDENT,
    LARGEST,
    decode_from_model,
    encode_for_model,
    shorter,
)

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures/toon"
LIBRARIES = {"toons", "toon_format"}
OURS = {"strict": True, "delimiter": ",", "indentSize": INDENT}  # a case may state these
CHOICES = json.loads((FIXTURES / "choices.json").read_text(encoding="utf-8"))

# Values of the shapes that tools return, each with nested lists of objects (case C1).
SAMPLES: dict[str, Any] = {
    "pods": {
        "items": [
            {
                "metadata": {"name": f"api-{n}", "labels": {"app.kubernetes.io/name": "api"}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready"}, {"age": n}]},
            }
            for n in range(3)
        ]
    },
    "pod logs": [
        {"pod": "api-0", "lines": ["start", "- listening", "# done"], "truncated": False},
        {"pod": "api-1", "lines": [], "error": {"code": 7, "text": "no such: container"}},
    ],
    "deploys": [
        {"id": 10**30, "steps": [{"name": "build", "ms": 1.5}, {"name": "push", "out": [1, [2]]}]},
        {"id": 2, "steps": [], "by": None},
    ],
    "metric series": {
        "result": [
            {
                "metric": {"job": "api", "le": "+Inf"},
                "values": [[1700000000, "1"], [1700000060, ""]],
            },
            {"metric": {}, "values": [[1700000000, "0.5"]]},
        ]
    },
    "topology": {"root": {"name": "lb", "children": [{"name": "a", "children": [{"name": "b"}]}]}},
    "runbook hits": [
        {"title": "Disk full", "score": 0.75, "sections": [{"h": "Why", "body": "a\nb"}, "tail"]},
        {"title": "", "score": 1e23, "sections": [{"h": "x", "links": {"a/b": "https://c"}}]},
    ],
}

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        "",
        " ",
        "null",
        "true",
        "-",
        "- a",
        "#",
        "007",
        "+1",
        "1e5",
        "a: b",
        "a,b",
        "\ufeff",
        '"',
        "\\",
    ]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
keys = texts | st.sampled_from(["a", "b", "a.b", "a/b", "a b", "名", "a.b.c", "-x", "#k"])
records = st.lists(keys, min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, scalars)), max_size=4)
)
values = st.recursive(
    scalars | records,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=25,
)


def strict(value: Any) -> Any:
    """A form that differs where `==` is lenient: for true and 1, false and 0."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(strict, value))
    return (isinstance(value, bool), value)


@given(values)
@example("\ufeffa")
@example([1.8446744073709552e19, 1.2345678901234567e20, 1e23, 1.5e300, -1e23, 5e-324, -0.0])
@example({"a": 10**22, "b": 1e22})
def test_t4_what_is_decoded_is_what_was_encoded(value: Any) -> None:
    assert strict(decode_from_model(encode_for_model(value))) == strict(value)


@given(values)
def test_t7_the_two_libraries_read_each_other(value: Any) -> None:
    import toon_format  # noqa: PLC0415 - behind `encoding` everywhere else

    assert strict(toon_format.decode(encode_for_model(value), indent_size=INDENT)) == strict(value)


@pytest.mark.parametrize("value", SAMPLES.values(), ids=SAMPLES)
def test_c2_samples_come_back(value: Any) -> None:
    assert strict(decode_from_model(encode_for_model(value))) == strict(value)


@pytest.mark.parametrize(
    "value",
    [float("nan"), [float("inf")], {1: 2}, (1, 2), {"a": {1}}, "\ud800", {"\udc80": 1}],
    ids=repr,
)
def test_t4_what_would_not_come_back_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not a value that TOON carries"):
        encode_for_model(value)


@pytest.mark.parametrize("depth", [100, 900, 990, 1000, 1010, 1500, 5000])
@pytest.mark.parametrize("leaf", [1, 1e23], ids=["fast", "exact"])
def test_t4_a_deeply_nested_value_is_written_or_refused(depth: int, leaf: float) -> None:
    value: Any = leaf
    for _ in range(depth):
        value = [value]

    if depth == 100:
        assert decode_from_model(encode_for_model(value)) == value
    elif depth < 2_000:  # how deep it goes depends on the Python
        with contextlib.suppress(ValueError):
            encode_for_model(value)
    else:
        with pytest.raises(ValueError, match="not a value that TOON carries"):
            encode_for_model(value)


def test_t3_a_dotted_key_is_no_path() -> None:
    assert encode_for_model({"a": {"b": 1}}) == "a:\n  b: 1"
    assert encode_for_model({"a.b": 1}) == "a.b: 1"
    assert decode_from_model("a.b: 1") == {"a.b": 1}


def test_t2_a_reader_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="indent"):
        decode_from_model("a:\n   b: 1")


def cases(kind: str) -> list[Any]:
    """The library-independent cases of KIND that use the options that we use."""
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in sorted((FIXTURES / kind).glob("*.json"))
        for case in json.loads(path.read_text(encoding="utf-8"))["tests"]
        if case.get("options", {}).items() <= OURS.items()
    ]


@pytest.mark.parametrize("case", cases("encode"))
def test_t4_conforms_where_it_writes(case: dict[str, Any]) -> None:
    assert encode_for_model(case["input"]) == case["expected"]


@pytest.mark.parametrize("case", cases("decode"))
def test_t4_conforms_where_it_reads(case: dict[str, Any]) -> None:
    if case.get("shouldError"):
        with pytest.raises(ValueError, match="TOON"):
            decode_from_model(case["input"])
    else:
        assert strict(decode_from_model(case["input"])) == strict(case["expected"])


def test_t4_hardly_a_case_of_the_specification_is_left_out() -> None:
    assert (len(cases("encode")), len(cases("decode"))) == (150, 325)


def test_t1_one_module_imports_the_libraries() -> None:
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "retention").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and LIBRARIES & {a.name.split(".")[0] for a in node.names})
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES)
    }

    assert importers == {"retention/encoding.py"}


def test_the_exact_library_is_loaded_only_for_what_needs_it() -> None:
    program = (
        "import sys; from retention.encoding import encode_for_model;"
        "encode_for_model([1]); print('toon_format' in sys.modules);"
        "encode_for_model([1e23]); print('toon_format' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout.split() == ["False", "True"]


def descendants(lines: list[str], start: int) -> list[str]:
    """The lines below line START that are indented more than it is."""
    depth = len(lines[start]) - len(lines[start].lstrip())
    below = []
    for line in lines[start + 1 :]:
        if len(line) - len(line.lstrip()) <= depth:
            break
        below.append(line)
    return below


@pytest.mark.parametrize("value", SAMPLES.values(), ids=SAMPLES)
def test_c1_what_belongs_to_an_item_stands_behind_its_hyphen(value: Any) -> None:
    """Rule T2, seen in the text: each sample has at least one such item."""
    lines = encode_for_model(value).split("\n")
    checked = 0
    for at, line in enumerate(lines):
        if not re.match(r"\s*- \S", line):
            continue
        least = len(line) - len(line.lstrip()) + 2
        fields = [below for below in descendants(lines, at) if not below.lstrip().startswith("- ")]
        assert all(len(field) - len(field.lstrip()) >= least for field in fields)
        checked += bool(fields)

    assert checked


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"key": ["a", "b", "c"]}, "key[3]: a,b,c"),
        ({"key": [1, {"a": 1}, [2]]}, "key[3]:"),
        ({"key": [{"a": 1, "b": 2}] * 3}, "key[3]{a,b}:"),
        ({"key": [{"c": {"x": 1, "y": 2}}] * 3}, "c{x,y}"),
        ({"key": {k: {"a": 1, "b": 2} for k in "pqr"}}, "key[3:]{a,b}:"),
        ({"key": {}}, "key:"),
        ({"key": []}, "key: []"),
    ],
    ids=str,
)
def test_t6_the_forms_are_explained_as_they_are_written(value: Any, form: str) -> None:
    written = encode_for_model(value)

    assert form in written
    assert f"`{form}`" in HOW_TO_READ


@pytest.mark.parametrize("name", [choice["name"] for choice in CHOICES])
def test_t5_the_form_with_fewer_tokens_is_taken(name: str) -> None:
    """Counted by three vocabularies; where they agree on a difference of 2 %, so do we."""
    (choice,) = (choice for choice in CHOICES if choice["name"] == name)
    text = json.dumps(choice["value"], ensure_ascii=False, indent=1)
    toon_gains = [1 - toon / compact for compact, toon in choice["tokens"].values()]

    chosen, form = shorter(text, "auto")

    read = decode_from_model(chosen) if form == "toon" else json.loads(chosen)
    assert read == choice["value"]
    if min(toon_gains) > 0.02:
        assert form == "toon"
    elif max(toon_gains) < -0.02:
        assert form == "json"


@pytest.mark.parametrize("vocabulary", ["o200k", "cl100k", "qwen"])
def test_t5_the_choice_costs_little_beside_counting(vocabulary: str) -> None:
    counted = [choice["tokens"][vocabulary] for choice in CHOICES]
    forms = [shorter(json.dumps(choice["value"]), "auto")[1] for choice in CHOICES]
    ours = sum(pair[form == "toon"] for pair, form in zip(counted, forms, strict=True))
    best = sum(map(min, counted))

    assert {"toon", "json"} == set(forms)
    assert ours <= 1.01 * best
    assert ours < 0.95 * min(sum(column) for column in zip(*counted, strict=True))


def test_t5_the_other_modes_take_one_form() -> None:
    nested = '{ "a": [{"b": 1, "c": [{"d": {"e": [2, {"f": 3}]}}]}] }'
    rows = json.dumps([{"id": n, "name": "x"} for n in range(9)])

    assert shorter(nested, "auto") == (
        json.dumps(json.loads(nested), separators=(",", ":")),
        "json",
    )
    assert shorter(nested, "always") == (encode_for_model(json.loads(nested)), "toon")
    assert shorter(rows, "auto")[1] == "toon"
    assert shorter(rows, "never") == (rows, "json")


def test_t5_compact_json_is_never_longer_than_what_the_tool_printed() -> None:
    assert shorter("[1e3]", "auto") == ("[1e3]", "json")
    assert shorter("[ 1e3 ]", "auto") == ("[ 1e3 ]", "json")
    assert shorter("[ 1.5e3,   2 ]", "auto") == ("[1500.0,2]", "json")


def test_t5_what_is_cut_to_an_excerpt_anyway_is_not_read() -> None:
    rows = json.dumps([{"id": number, "name": "x"} for number in range(LARGEST // 32)])
    padding = " " * (LARGEST - len(rows))

    assert shorter(rows + padding, "auto")[1] == "toon"
    assert shorter(rows + padding + " ", "auto") == (rows + padding + " ", "json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "{} trailing",
        '"text"',
        "17",
        "[ ]",
        "{ }",
        '{ "a": 1, "a": 2 }',
        "[ NaN ]",
        "[ 1e400 ]",
        "[ 1e99999999999999999999 ]",
        "[ 1e-400 ]",
        "[ 3.14159265358979323846 ]",
        '[ "\\ud800" ]',
        "[" * 5000 + "]" * 5000,
        f"[ {'1' * 5000} ]",
    ],
    ids=lambda text: text[:26],
)
def test_t5_text_that_would_lose_something_stays_as_it_is(text: str) -> None:
    assert shorter(text, "always") == (text, "json")
    assert shorter(text, "auto") == (text, "json")


@given(values)
def test_t5_either_form_says_the_same(value: Any) -> None:
    text = json.dumps(value)

    for mode in ("auto", "always", "never"):
        chosen, form = shorter(text, mode)
        read = decode_from_model(chosen) if form == "toon" else json.loads(chosen)
        assert read == value
        assert len(chosen) <= len(text) or form == "toon"


@given(st.text())
def test_t5_any_text_has_a_form(text: str) -> None:
    assert shorter(text, "auto")[1] in {"toon", "json"}


def test_the_tools_tell_how_to_read_it_in_these_words() -> None:
    """T6: one text; Emacs has it too, since a tool's description is there before any backend."""
    tools = Path(__file__).parent.parent / "elisp" / "gptel-retention-tools.el"

    assert f'"\\\n{HOW_TO_READ}"' in tools.read_text(encoding="utf-8")
