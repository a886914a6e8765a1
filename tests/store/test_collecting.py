"""Collecting what no record needs, beside processes that go on writing (rule L6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from retention.digest import digest
from retention.model import (
    Cause,
    Continuity,
    Conversation,
    Delivery,
    Event,
    EventKind,
    Face,
    Retirement,
    Source,
)
from retention.store import Freed, Store, Writer, environment, forgetting
from retention.store.records import references
from retention.store.tables import OBJECTS, REFERENCES
from tests.store.build import (
    A,
    B,
    C,
    add,
    data_file,
    dump,
    fork,
    message,
    objects,
    request,
    row,
    texts,
)
from tests.store.peer import peer

NOW = 1_000.0


def replace_first(store: Store, text: str) -> None:
    """Give row 1 of conversation A another TEXT, so that nothing names the one it had."""
    store.write(
        lambda writer: (
            writer.put_object("message", text.encode()),
            writer.put_row(A, row(1, text=text)),
        )
    )


def retire(store: Store, id: str, first: int, last: int, at: float = 0.0) -> None:
    def apply(writer: Writer) -> None:
        record = writer.conversation(id)
        assert record is not None
        retired = Retirement(at=at, rows=((first, last),), end=(last,))
        writer.put_conversation(msgspec.structs.replace(record, retired=(*record.retired, retired)))

    store.write(apply)


def test_a_store_in_use_has_nothing_to_free(store: Store) -> None:
    """L6: nothing goes that a record names."""
    add(store, A, "one", "two")
    fork(store, A, B)
    before = dump(store)

    freed = store.collect(retired_before=NOW)

    assert dump(store) == before
    assert (freed.objects, freed.references, freed.bytes) == ({}, 0, 0)


def test_what_a_replaced_record_named_goes(store: Store) -> None:
    """L6: references outlive the record that made them."""
    add(store, A, "first version", "two")
    replace_first(store, "second version")

    freed = store.collect()

    assert objects(store) == {b"second version", b"two"}
    assert freed.objects == {"message": (1, len("first version"))}
    assert store.check() == ()
    assert store.collect().references == 0


def test_an_object_that_another_conversation_names_stays(store: Store) -> None:
    """L6, Z2."""
    add(store, A, "ours")
    add(store, B, "ours")
    replace_first(store, "mine")

    freed = store.collect()

    assert objects(store) == {b"ours", b"mine"}
    assert freed.objects == {}
    assert freed.references > 0
    store.forget(B)
    assert objects(store) == {b"mine"}


def test_objects_and_references_that_belong_to_nobody_go(store: Store) -> None:
    """L6: as an interrupted writer of another version may leave them."""
    add(store, A, "one")
    before = dump(store)
    store.write(lambda writer: writer.put_object("blob", b"of nobody"))
    stray = digest("blob", b"strayed") + C.encode()
    store._environment.write(lambda session: session.put(REFERENCES, stray, b""))

    freed = store.collect()

    assert dump(store) == before
    assert freed.objects == {"blob": (1, len("of nobody"))}
    assert freed.references == 1


def test_what_was_learned_is_in_use(store: Store) -> None:
    """L6, V1: a source names its texts, also one that stands for no conversation."""
    text = digest("blob", b"learned")
    source = Source(
        id="f1", owner=C, kind="file", chunks=(), learner=1,
        events=(Event(kind=EventKind.TEXT, text=text, chars=7),),
    )  # fmt: skip
    store.write(lambda writer: (writer.put_object("blob", b"learned"), writer.put_source(source)))

    store.collect()
    assert objects(store) == {b"learned"}

    store.write(lambda writer: writer.put_source(msgspec.structs.replace(source, events=())))
    store.collect()
    assert objects(store) == set()


def test_a_dry_run_tells_the_same_and_writes_nothing(store: Store) -> None:
    """L6: all kinds of what goes at once."""
    add(store, A, "retired", "stays", "changes")
    retire(store, A, 1, 1)
    store.write(
        lambda writer: (
            writer.put_object("message", b"changed"),
            writer.put_row(A, row(3, text="changed")),
        )
    )
    old = Conversation(id=B, used=5.0)
    store.write(lambda writer: writer.put_conversation(old))
    add(store, B, "unused", "shared")
    fork(store, B, C)
    store.write(lambda writer: writer.put_conversation(used(writer.conversation(C), NOW)))
    store.write(lambda writer: writer.put_conversation(used(writer.conversation(A), NOW)))
    add(store, B, "of b alone")
    before = dump(store)

    told = store.collect(retired_before=NOW, unused_before=10.0, dry_run=True)
    assert dump(store) == before
    freed = store.collect(retired_before=NOW, unused_before=10.0)

    assert told == freed
    assert freed.conversations == (B,)
    assert freed.rows == 1
    gone = {key[1:] for key in before if key[:1] == OBJECTS} - {
        key[1:] for key in dump(store) if key[:1] == OBJECTS
    }
    assert gone == {message("retired"), message("changes"), message("of b alone")}
    assert freed.objects == {"message": (3, len("retiredchangesof b alone"))}
    assert store.check() == ()


def used(record: Conversation | None, at: float) -> Conversation:
    assert record is not None
    return msgspec.structs.replace(record, used=at)


# History that was retired


def test_retired_texts_go_after_the_time_and_rows_keep_their_order(store: Store) -> None:
    """L1, L6."""
    add(store, A, "one", "two", "three")
    retire(store, A, 1, 2, at=500.0)

    assert store.collect(retired_before=500.0).rows == 0
    freed = store.collect(retired_before=501.0)

    assert freed.rows == 2
    assert objects(store) == {b"three"}
    with store.read() as reader:
        rows = list(reader.rows(A))
        record = reader.conversation(A)
    assert [(each.id, each.pred, each.gone) for each in rows] == [
        (1, 0, True),
        (2, 1, True),
        (3, 2, False),
    ]
    assert all(not list(references(each)) for each in rows[:2])
    assert record is not None
    assert record.retired == ()
    assert record.version > 1, "processes that hold the log read it again"
    assert store.check() == ()
    assert store.collect(retired_before=NOW).rows == 0


def test_a_collected_delivery_keeps_what_fired(store: Store) -> None:
    """D8: a reminder that fires once does not fire again."""
    text = digest("delivery", b"the text")
    delivery = Delivery(text=text, after=1, reminders=("tip",), turn=3)
    add(store, A, "one", "carrier")
    store.write(
        lambda writer: (
            writer.put_object("delivery", b"the text"),
            writer.put_row(A, row(2, text="carrier", face=Face.ACTUAL, delivery=delivery)),
        )
    )
    retire(store, A, 1, 2)

    store.collect(retired_before=NOW)

    with store.read() as reader:
        kept = list(reader.rows(A))[1].delivery
    assert kept is not None
    assert (kept.reminders, kept.turn, kept.after) == (("tip",), 3, 1)
    assert objects(store) == set()


def test_requests_quote_nothing_of_what_was_collected(store: Store) -> None:
    """L6: neither another text of a row nor the place where a later request differed."""
    add(store, A, "one", "two")
    add(store, A, "three")
    other = message("one, as it went out")
    quoting = Continuity(cause=Cause.FILTERED, path="messages.0", before="one", after="three")
    store.write(
        lambda writer: (
            writer.put_object("message", b"one, as it went out"),
            writer.put_request(A, request(1, rows=(1, 2), changed={1: other, 2: other})),
            writer.put_request(A, request(2, rows=(3,), continuity=quoting)),
        )
    )
    retire(store, A, 1, 1)

    store.collect(retired_before=NOW)

    with store.read() as reader:
        kept = [reader.request(A, seq) for seq in (1, 2)]
    assert [each.changed for each in kept if each] == [{2: other}, {}]
    assert [each.continuity for each in kept if each] == [None, Continuity(cause=Cause.FILTERED)]


def test_retired_rows_that_a_fork_shares_stay(store: Store) -> None:
    """L2, L6: also in the fork's own record of what it retired."""
    add(store, A, "one", "two")
    retire(store, A, 1, 2)
    fork(store, A, B)

    assert store.collect(retired_before=NOW).rows == 0
    assert texts(store, B) == ["one", "two"]

    store.forget(B)
    assert store.collect(retired_before=NOW).rows == 2


def test_retired_rows_stay_for_the_fork_of_a_fork_that_goes(store: Store) -> None:
    """L2, L6: what is forgotten between the two still stands for what they share."""
    add(store, A, "one", "two")
    retire(store, A, 1, 2)
    fork(store, A, B)
    fork(store, B, C)
    for id, at in ((A, NOW), (B, 1.0), (C, NOW)):
        use(store, id, at)

    freed = store.collect(retired_before=NOW, unused_before=10.0)

    assert (freed.conversations, freed.rows) == ((B,), 0)
    assert texts(store, C) == ["one", "two"]


def use(store: Store, id: str, at: float) -> None:
    store.write(lambda writer: writer.put_conversation(used(writer.conversation(id), at)))


# Conversations that nobody uses


def test_unused_conversations_go_but_for_what_forks_share(store: Store) -> None:
    """L6, L2."""
    add(store, A, "shared")
    fork(store, A, B)
    add(store, A, "of a alone")
    add(store, B, "of b alone")
    store.write(lambda writer: writer.put_conversation(used(writer.conversation(B), 50.0)))

    freed = store.collect(unused_before=10.0)

    assert freed.conversations == (A,)
    assert texts(store, B) == ["shared", "of b alone"]
    assert objects(store) == {b"shared", b"of b alone"}

    assert store.collect(unused_before=60.0).conversations == (B,)
    assert set(dump(store)) == {b"mformat"}


def test_a_forgotten_past_goes_with_its_unused_forks(store: Store) -> None:
    """L6, L2: the figures too."""
    add(store, A, "shared")
    fork(store, A, B)
    add(store, B, "too")
    fork(store, B, C)
    store.forget(A)
    store.forget(B)

    freed = store.collect(unused_before=10.0, dry_run=True)

    assert freed.objects == {"message": (2, len("sharedtoo"))}
    assert store.collect(unused_before=10.0) == freed
    assert set(dump(store)) == {b"mformat"}


# Beside other processes


def test_what_comes_into_use_meanwhile_stays(path: Path, store: Store) -> None:
    """L6: an object that a record names again between two slices is not collected."""
    add(store, A, "comes into use again", "goes")
    replace_first(store, "another")
    store.write(
        lambda writer: (
            writer.put_object("message", b"and another"),
            writer.put_row(A, row(2, text="and another")),
        )
    )

    with peer(path) as other:
        interrupt(lambda: other.ask("add", A, "comes into use again"), store.collect)

    assert texts(store, A) == ["another", "and another", "comes into use again"]
    assert objects(store) == {b"another", b"and another", b"comes into use again"}
    assert store.check() == ()


def test_history_that_is_used_again_meanwhile_stays(store: Store) -> None:
    """L1, L6: somebody undid the compaction and sent the old payload."""
    add(store, A, "one", "two")
    retire(store, A, 1, 2)

    def undo() -> None:
        def apply(writer: Writer) -> None:
            record = writer.conversation(A)
            assert record is not None
            writer.put_conversation(msgspec.structs.replace(record, retired=()))

        store.write(apply)

    interrupt(undo, lambda: store.collect(retired_before=NOW))

    assert texts(store, A) == ["one", "two"]
    assert store.check() == ()


def test_retired_rows_that_are_forked_meanwhile_stay(store: Store) -> None:
    """L2, L6."""
    add(store, A, "one", "two")
    retire(store, A, 1, 2)

    interrupt(lambda: fork(store, A, B), lambda: store.collect(retired_before=NOW))

    assert texts(store, B) == ["one", "two"]


def test_a_killed_collector_leaves_no_stale_log_and_its_work_is_taken_up(store: Store) -> None:
    """L6, L4: who knows the rows reads them again, and the retirement ends with the next one."""
    add(store, A, "one", "two")
    retire(store, A, 1, 2)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt(die, lambda: store.collect(retired_before=NOW), 2)
    with store.read() as reader:
        between = reader.conversation(A)
        assert all(row.gone for row in reader.rows(A))
    assert between is not None
    assert (between.version, between.epoch) == (2, 1)

    store.collect(retired_before=NOW)

    with store.read() as reader:
        after = reader.conversation(A)
    assert after is not None
    assert after.retired == ()
    assert store.check() == ()
    before = dump(store)
    store.collect(retired_before=NOW)
    assert dump(store) == before


def test_a_conversation_that_is_used_meanwhile_stays(store: Store) -> None:
    """L6: it was unused when collecting began; nothing of it is lost, or told to be."""
    add(store, A, "one")
    add(store, B, "two")
    freed: list[Freed] = []

    interrupt(
        lambda: use(store, A, NOW), lambda: freed.append(store.collect(unused_before=10.0))
    )  # fmt: skip

    assert texts(store, A) == ["one"]
    assert freed[0].conversations == (B,)


def test_a_conversation_that_is_forgotten_meanwhile_is_no_error(store: Store) -> None:
    """L6: two collectors at the same time, for instance."""
    add(store, A, "one")
    add(store, B, "two")

    interrupt(lambda: store.forget(A), lambda: store.collect(unused_before=10.0))

    assert set(dump(store)) == {b"mformat"}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_retired_history_that_is_being_forgotten_meanwhile_is_no_error(
    store: Store, number: int
) -> None:
    """L6: whichever write of the collector comes right after the first one of the forget."""
    add(store, A, "one", "two")
    store.write(
        lambda writer: (
            writer.put_object("message", b"other"),
            writer.put_request(A, request(1, rows=(1,), changed={1: message("other")})),
        )
    )
    retire(store, A, 1, 2)

    interrupt(
        lambda: store._environment.write(lambda session: forgetting.mark(session, A)),
        lambda: store.collect(retired_before=NOW), number,
    )  # fmt: skip
    store.compact()

    assert set(dump(store)) == {b"mformat"}


def test_a_compaction_meanwhile_does_not_hide_what_was_written(path: Path, store: Store) -> None:
    """L6: the next generation counts its commits from the beginning."""
    add(store, A, "again")
    replace_first(store, "another")

    def write() -> None:
        with store._environment.reading() as session:
            seen = session.txn.id()
        with peer(path) as other:
            other.ask("compact")
            other.ask("add", A, "again")
            with store._environment.reading() as session:
                number = session.txn.id()
            for _ in range(seen - number):
                other.ask("add", B, "another")
        with store._environment.reading() as session:
            assert session.txn.id() == seen, "the next transaction has the number after that"

    interrupt(write, store.collect)

    assert texts(store, A) == ["another", "again"]
    assert store.check() == ()


def interrupt(action: Callable[[], object], collect: Callable[[], object], number: int = 1) -> None:
    """Run ACTION at the moment at which COLLECT is about to write for the NUMBERth time."""
    done: list[bool] = []
    original = environment.Environment.write

    def write(self: environment.Environment, apply: Callable[..., object]) -> object:
        done.append(True)
        if len(done) == number:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(environment.Environment, "write", original)
                action()
        return original(self, apply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment.Environment, "write", write)
        collect()
    assert len(done) >= number


def test_collecting_works_in_slices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Y1: with no time for a slice, each transaction frees one thing and then lets go."""
    add(store, A, *(str(n) for n in range(50)))
    retire(store, A, 1, 40)
    monkeypatch.setattr("retention.store.collecting.SLICE", 0)
    commits: list[str] = []
    monkeypatch.setattr(
        environment, "checkpoint",
        lambda name: commits.append(name) if name == "after-commit" else None,
    )  # fmt: skip

    store.collect(retired_before=NOW)

    assert len(commits) >= 40 + 80  # the rows, and two references of each
    assert objects(store) == {str(n).encode() for n in range(40, 50)}


def test_an_interrupted_forget_is_finished_first_and_not_by_a_dry_run(store: Store) -> None:
    add(store, A, "one")
    store._environment.write(lambda session: forgetting.mark(session, A))
    before = dump(store)

    assert store.collect(dry_run=True).conversations == ()
    assert dump(store) == before
    store.collect()
    assert set(dump(store)) == {b"mformat"}


def test_compaction_removes_the_bytes_of_what_was_collected(store: Store) -> None:
    """Z2, L6."""
    secret = "a secret that is long enough to be told from anything else"
    add(store, A, secret, "other")
    retire(store, A, 1, 1)

    store.collect(retired_before=NOW)
    store.compact()

    assert secret.encode() not in data_file(store.path).read_bytes()
    assert texts_that_stay(store) == [b"other"]


def texts_that_stay(store: Store) -> list[bytes]:
    with store.read() as reader:
        return [reader.object(row.exact) for row in reader.rows(A) if not row.gone]
