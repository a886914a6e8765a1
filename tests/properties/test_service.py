"""The service over a real store does what the core does, whatever happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from retention.digest import digest
from retention.ledger import Log
from retention.rebuilding import rebuild_array
from retention.store import Store
from tests.helpers import Adapter, Harness, Prepared
from tests.properties.test_alignment import SCRIPTS, Player, Script


class Recorded(Adapter):
    """An adapter that keeps every array that it committed, by the number of the request."""

    def __init__(self, store: Store, shape: str) -> None:
        super().__init__(store)
        self.shape = shape
        self.arrays: dict[int, list[bytes]] = {}

    def commit(self, prepared: Prepared) -> Prepared:
        super().commit(prepared)
        self.arrays[prepared.seq] = [digest("message", raw) for raw in prepared.array]
        return prepared


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(Path(tmp_path_factory.mktemp("service")) / "store")


@pytest.mark.parametrize("shape", ["", "merge"])
@given(script=SCRIPTS)
@settings(max_examples=60, deadline=None)
def test_service_sends_what_the_core_plans(store: Store, shape: str, script: Script):
    """D5, D6, L3, Q1: over the wire, from the disk, and with the backend restarted."""
    core = Player(Harness(shape=shape)).play(script)
    real = Player(Recorded(store, shape)).play(script)

    assert [sending.array for sending in real.sent] == [s.array for s in core.sent]
    assert [sending.due for sending in real.sent] == [s.due for s in core.sent]


@pytest.mark.parametrize("shape", ["", "merge"])
@given(script=SCRIPTS)
@settings(max_examples=40, deadline=None)
def test_each_request_can_be_rebuilt(store: Store, shape: str, script: Script):
    """C1: from the log and what the requests refer to."""
    chat = Recorded(store, shape)
    Player(chat).play(script)
    chat.restart()

    with store.read() as reader:
        log = Log(reader.rows(chat.id)) if chat.arrays else Log()
        for seq, array in chat.arrays.items():
            rebuilt = rebuild_array(reader, log, chat.id, seq)
            assert [item.message.exact for item in rebuilt] == array
    assert not [p for p in chat.service.store.check() if chat.id in str(p)]
