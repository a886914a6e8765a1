"""The store against a dict: any sequence of writes, forks, forgets, compactions and reopens.

One sentence: what was written and not forgotten is read back, whatever happened in between, and
the check finds nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from retention.model import Row
from retention.store import Store
from tests.store.build import add, dump, fork, message, row

IDS = [digit * 32 for digit in "abcd"]
BODIES = st.sampled_from(["", "one", "two", "three", "x" * 5000])


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.store = self.open()
        self.rows: dict[str, dict[int, Row]] = {}  # of every live conversation, as it sees them
        self.base: dict[str, tuple[str, int]] = {}
        self.requests: dict[str, int] = {}

    def open(self) -> Store:
        return Store.open(self.root / "store", map_size=64 * 1024)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.root)

    def forgotten(self) -> set[str]:
        with self.store.read() as reader:
            return {record.id for record in reader.conversations() if record.forgotten}

    @rule(id=st.sampled_from(IDS), texts=st.lists(BODIES, max_size=3))
    def write(self, id: str, texts: list[str]) -> None:
        if id in self.forgotten():
            return
        rows = self.rows.setdefault(id, {})
        with self.store.read() as reader:
            record = reader.conversation(id)
        start = record.next_row if record else 1
        add(self.store, id, *texts)
        rows.update((n, row(n, text=text)) for n, text in enumerate(texts, start))
        self.requests[id] = self.requests.get(id, 0) + 1

    @precondition(lambda self: any(self.rows.values()))
    @rule(data=st.data(), text=BODIES)
    def replace(self, data: st.DataObject, text: str) -> None:
        id = data.draw(st.sampled_from(sorted(id for id in self.rows if self.rows[id])))
        number = data.draw(st.sampled_from(sorted(self.rows[id])))
        new = row(number, text=text, round=7)
        shared = [self.rows[other] for other in self.rows if self.shares(other, id, number)]
        self.store.write(
            lambda writer: (writer.put_object("message", text.encode()), writer.put_row(id, new))
        )
        for rows in [self.rows[id], *shared]:
            rows[number] = new

    def shares(self, id: str, owner: str, number: int) -> bool:
        """Whether ID sees the row NUMBER that OWNER holds, through its chain of bases."""
        while id != owner:
            with self.store.read() as reader:
                own = reader._session.get(b"r", id.encode() + number.to_bytes(8, "big"))
            if own is not None or id not in self.base or number >= self.base[id][1]:
                return False
            id = self.base[id][0]
        return True

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), id=st.sampled_from(IDS))
    def fork(self, data: st.DataObject, id: str) -> None:
        if id in self.rows or id in self.forgotten():
            return
        base = data.draw(st.sampled_from(sorted(self.rows)))
        with self.store.read() as reader:
            record = reader.conversation(base)
        assert record is not None
        fork(self.store, base, id)
        self.base[id] = (base, record.next_row)
        self.rows[id] = dict(self.rows[base])
        self.requests[id] = 0

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.rows)))
        self.store.forget(id)
        del self.rows[id], self.requests[id]
        gone = set(self.base) - set(self.rows) - self.forgotten()
        for each in gone:
            del self.base[each]

    @rule()
    def compact(self) -> None:
        before = dump(self.store)
        self.store.compact()
        assert dump(self.store) == before

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @invariant()
    def reads_what_was_written(self) -> None:
        with self.store.read() as reader:
            live = {r.id for r in reader.conversations() if not r.forgotten}
            assert live == set(self.rows)
            for id, rows in self.rows.items():
                assert list(reader.rows(id)) == [rows[n] for n in sorted(rows)]
                assert reader.row_count(id) == len(rows)
                seqs = [request.seq for request in reader.requests(id, 1000)]
                assert seqs == list(range(self.requests[id], 0, -1))
                for each in rows.values():
                    assert message(reader.object(each.exact).decode()) == each.exact
        assert self.store.check() == ()

    @invariant()
    def keeps_nothing_when_all_is_forgotten(self) -> None:
        if not self.rows:
            assert set(dump(self.store)) == {b"mformat"}


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
