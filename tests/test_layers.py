"""Modules import only downwards, as the table in docs/architecture.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layers import parse_rows, violations

ROOT = Path(__file__).parent.parent
ROWS = {"__init__.py": 0, "low.py": 1, "side.py": 1, "pack/": 2, "peer/": 2, "high.py": 3}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a file for each row of ROWS, all without imports."""
    root = tmp_path / "sample"
    for name in ROWS:
        path = root / name / "__init__.py" if name.endswith("/") else root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (root / "pack" / "inner.py").write_text("")
    return root


def test_retention_imports_only_downwards() -> None:
    """The real package keeps to the real table."""
    rows = parse_rows((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))

    assert violations(ROOT / "retention", rows) == []


def test_rows_are_read_from_the_numbered_table_only() -> None:
    """Other tables, headings and rules of the page are not rows."""
    page = "# `z.py`\n| row | module |\n|---|---|\n| 0 | `a.py` | x |\n| 12 | `b/` | `c.py` |\n"
    page += "\n| `d.el` | y |\n"

    assert parse_rows(page) == {"a.py": 0, "b/": 12}


def test_a_module_in_two_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one row"):
        parse_rows("| 0 | `a.py` | x |\n| 1 | `a.py` | x |\n")


def test_downward_and_same_folder_imports_are_fine(package: Path) -> None:
    (package / "high.py").write_text("import sample.low\nfrom sample import pack, side\n")
    (package / "pack/inner.py").write_text(
        "from sample.pack import x\nfrom . import y\nimport os\n"
    )
    (package / "pack/__init__.py").write_text("from sample.pack.inner import z\n")
    (package / "low.py").write_text("from sample import __version__\n")

    assert violations(package, ROWS) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import sample.high",
        "import sample.high as h",
        "from sample import high",
        "from sample.high import thing",
        "from ..high import thing",
        "from .. import high",
        "if TYPE_CHECKING:\n    from sample.high import thing",
        "def late():\n    import sample.high",
    ],
)
def test_an_upward_import_is_found_however_it_is_written(package: Path, statement: str) -> None:
    (package / "pack/inner.py").write_text(statement + "\n")

    line = statement.count("\n") + 1
    assert violations(package, ROWS) == [
        f"pack/inner.py:{line}: imports high.py (row 3) upward from pack/ (row 2)"
    ]


def test_a_sideways_import_is_found(package: Path) -> None:
    (package / "low.py").write_text("from sample.side import x\n")
    (package / "pack/inner.py").write_text("from sample import peer\n")

    assert violations(package, ROWS) == [
        "low.py:1: imports side.py (row 1) sideways from low.py (row 1)",
        "pack/inner.py:1: imports peer/ (row 2) sideways from pack/ (row 2)",
    ]


def test_a_module_without_a_row_is_found_and_may_not_be_imported(package: Path) -> None:
    (package / "stray.py").write_text("")
    (package / "high.py").write_text("import sample.stray\n")

    assert violations(package, ROWS) == [
        "high.py:1: imports stray.py, which has no row",
        "stray.py: has no row",
    ]
