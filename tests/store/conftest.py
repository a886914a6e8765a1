"""The store fixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retention.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store.open(path)
    yield store
    store.close()
