"""What every test folder shares: markers by folder, and the slow end-to-end tests last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retention.store import Store
from tests.helpers import Adapter

HERE = Path(__file__).parent
MARKED_FOLDERS = ("crash", "e2e")  # a test below tests/NAME/ carries the marker NAME


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, then move e2e to the end, each part in its own order."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        folder = item.path.relative_to(HERE).parts[0]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a store of its own."""
    made = Store.open(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def chat(store: Store) -> Iterator[Adapter]:
    """Yield a conversation in `store`, played as Emacs does."""
    made = Adapter(store)
    yield made
    made.service.close()
