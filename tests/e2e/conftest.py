"""One Emacs, one provider and one store for the scenarios of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chat import observe
from tests.e2e.emacs import Emacs, start_emacs
from tests.loopback import Loopback

SECTIONS = ("weather", "rules")


@pytest.fixture(scope="module")
def provider() -> Iterator[Loopback]:
    with Loopback(chunk=7) as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def shared_emacs(provider: Loopback, home: Path) -> Iterator[Emacs]:
    with start_emacs(home, provider.port) as process:
        yield process


@pytest.fixture
def emacs(shared_emacs: Emacs) -> Emacs:
    """Return Emacs with the observations of every test as they are at first."""
    observe(shared_emacs, "weather", "sunny")
    observe(shared_emacs, "rules", "be brief")
    return shared_emacs
