"""The import checker behind test_layers: a row table, a source tree, and what breaks the rule.

A module may import modules of smaller rows and anything in its own folder of the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROW = re.compile(r"^\|\s*(\d+)\s*\|\s*`([\w/]+(?:\.py)?)`\s*\|", re.MULTILINE)

Rows = dict[str, int]  # "ledger.py" or "store/" -> row


def parse_rows(markdown: str) -> Rows:
    """Read the rows of the Markdown table whose first column is a number."""
    found = ROW.findall(markdown)
    rows = {name: int(row) for row, name in found}
    if len(rows) != len(found):
        raise ValueError("a module has more than one row")
    return rows


def violations(package: Path, rows: Rows) -> list[str]:
    """Return one line for each forbidden import, and for each module without a row, in order."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        unit = _unit(place)
        if unit not in rows:
            found.append(f"{place}: has no row")
            continue
        for line, imported in _imports(path, package):
            target = _unit(imported)
            if target == unit:
                continue
            if target not in rows:
                found.append(f"{place}:{line}: imports {imported}, which has no row")
            elif rows[target] >= rows[unit]:
                way = "sideways" if rows[target] == rows[unit] else "upward"
                found.append(
                    f"{place}:{line}: imports {target} (row {rows[target]}) {way} "
                    f"from {unit} (row {rows[unit]})"
                )
    return found


def _unit(place: Path) -> str:
    """What has the row: the top folder, or the file where there is none."""
    return f"{place.parts[0]}/" if len(place.parts) > 1 else place.name


def _imports(path: Path, package: Path) -> Iterator[tuple[int, Path]]:
    """Yield (line, file inside the package) for each import, in whatever block it stands."""
    folder = (package.name, *path.relative_to(package).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            names = [(*base, alias.name) for alias in node.names]
        for name in names:
            if name[0] == package.name:
                yield node.lineno, _resolve(name[1:], package)


def _resolve(name: tuple[str, ...], package: Path) -> Path:
    """Find the file of a dotted name whose last words may be attributes of a module."""
    for length in range(len(name), 0, -1):
        stem = Path(*name[:length])
        if (package / stem).with_suffix(".py").is_file():
            return stem.with_suffix(".py")
        if (package / stem).is_dir():
            return stem / "__init__.py"
    return Path("__init__.py")
