"""What every test folder shares: markers by folder, and the slow end-to-end tests last."""

from __future__ import annotations

from pathlib import Path

import pytest

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
