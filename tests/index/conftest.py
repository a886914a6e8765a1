"""An index in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retention.index import Index
from tests.index.build import Themes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "index"


@pytest.fixture
def themes() -> Themes:
    return Themes()


@pytest.fixture
def index(path: Path) -> Iterator[Index]:
    """One that searches words alone."""
    index = Index.open(path)
    index.clear()
    yield index
    index.close()


@pytest.fixture
def dense(path: Path, themes: Themes) -> Iterator[Index]:
    index = Index.open(path, themes)
    index.clear()
    yield index
    index.close()
