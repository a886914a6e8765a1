"""Forgetting a conversation, whole or up to what its forks share (rules Z2 and L2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from retention.digest import digest
from retention.errors import UnknownConversation
from retention.model import Conversation, Event, EventKind, Source
from retention.store import Store, environment, forgetting
from retention.store.tables import CONVERSATION
from tests.store.build import A, B, C, add, data_file, dump, fork, message, objects, row, texts
from tests.store.peer import peer
from tests.store.test_collecting import interrupt as interrupt_write


def test_forgetting_leaves_nothing_of_a_conversation(store: Store) -> None:
    """Rule Z2."""
    before = dump(store)
    add(store, A, "one", "two", "one")
    store.write(lambda writer: writer.put_row(A, row(2, text="one")))

    store.forget(A)

    assert dump(store) == before


def test_objects_that_another_conversation_refers_to_stay(store: Store) -> None:
    """Rule Z2."""
    add(store, A, "mine", "ours")
    add(store, B, "ours", "theirs")
    expected = texts(store, B)

    store.forget(A)

    assert texts(store, B) == expected
    assert objects(store) == {b"ours", b"theirs"}
    assert store.check() == ()


def test_what_a_replaced_row_named_goes_with_the_conversation(store: Store) -> None:
    """Z2: an object that no row names any more is still the conversation's."""
    add(store, A, "first version")
    store.write(
        lambda writer: (
            writer.put_object("message", b"second version"),
            writer.put_row(A, row(1, text="second version")),
        )
    )
    assert objects(store) == {b"first version", b"second version"}

    store.forget(A)

    assert objects(store) == set()


def test_an_unknown_or_forgotten_conversation_cannot_be_forgotten(store: Store) -> None:
    add(store, A, "one")
    fork(store, A, B)
    store.forget(A)
    before = dump(store)

    for id in (A, C):
        with pytest.raises(UnknownConversation):
            store.forget(id)

    assert dump(store) == before


def test_rows_that_a_fork_shares_stay_until_the_fork_goes(store: Store) -> None:
    """Rules L2, Z2."""
    add(store, A, "shared")
    empty = set(dump(store))
    fork(store, A, B)
    add(store, A, "of a alone")
    add(store, B, "of b alone")

    store.forget(A)

    assert texts(store, B) == ["shared", "of b alone"]
    assert objects(store) == {b"shared", b"of b alone"}
    with store.read() as reader:
        kept = reader.conversation(A)
        assert reader.requests(A, 10) == []
    assert kept == Conversation(id=A, version=3, next_row=3, next_seq=3, forgotten=True)
    assert store.check() == ()

    store.forget(B)

    assert set(dump(store)) == {b"mformat"}
    assert empty > {b"mformat"}


def test_what_a_person_wrote_leaves_the_record_of_a_shared_past(store: Store) -> None:
    """Rule Z2."""
    record = Conversation(id=A, title="secret", files=("/secret.org",), conditions={"secret": "1"})
    store.write(lambda writer: writer.put_conversation(record))
    add(store, A, "one")
    fork(store, A, B)

    store.forget(A)
    with store.read() as reader:
        kept = reader.conversation(A)

    assert "secret" not in str(kept)


def test_a_chain_of_forks_goes_from_its_end(store: Store) -> None:
    """Rule L2."""
    add(store, A, "one")
    fork(store, A, B)
    add(store, B, "two")
    fork(store, B, C)
    add(store, C, "three")

    store.forget(A)
    store.forget(B)
    assert texts(store, C) == ["one", "two", "three"]
    assert store.check() == ()

    store.forget(C)
    assert set(dump(store)) == {b"mformat"}


@pytest.mark.parametrize("number", range(2, 9))
def test_a_conversation_that_comes_anew_is_not_forgotten_by_who_is_late(
    store: Store, number: int
) -> None:
    """Z2, L4: another process finished the work, and somebody opened the same chat again."""
    add(store, A, "one", "two")

    def finish_and_begin() -> None:
        forgetting.finish(store._environment)
        add(store, A, "three")

    interrupt_write(finish_and_begin, lambda: store.forget(A), number)

    assert texts(store, A) == ["three"]
    assert store.check() == ()
    store.forget(A)
    assert set(dump(store)) == {b"mformat"}


def test_what_is_learned_again_while_it_is_forgotten_is_whole(store: Store) -> None:
    """Z2, V1: by another process, between two slices."""
    text = digest("blob", b"learned")
    source = Source(
        id="f1", owner=C, kind="file", chunks=(), learner=1,
        events=(Event(kind=EventKind.TEXT, text=text, chars=7),),
    )  # fmt: skip

    def learn() -> None:
        store.write(lambda w: (w.put_object("blob", b"learned"), w.put_source(source)))

    learn()
    interrupt_write(learn, lambda: store.forget_sources(C), 2)

    assert objects(store) == {b"learned"}
    assert store.check() == ()


def test_the_shared_past_shrinks_to_what_the_last_fork_shares(store: Store) -> None:
    """Rules L2, Z2."""
    add(store, A, "one")
    fork(store, A, B)
    add(store, A, "two")
    fork(store, A, C)

    store.forget(A)
    assert objects(store) == {b"one", b"two"}

    store.forget(C)
    assert texts(store, B) == ["one"]
    assert objects(store) == {b"one"}
    assert store.check() == ()


def test_a_forgotten_conversation_takes_no_writes_and_no_forks(store: Store) -> None:
    """L2: an old buffer with the same id must not write over rows that a fork shares."""
    add(store, A, "shared")
    fork(store, A, B)
    store.forget(A)
    before = dump(store)

    for apply in (
        lambda writer: writer.put_conversation(Conversation(id=A)),
        lambda writer: writer.put_row(A, row(1, text="over it")),
        lambda writer: writer.put_conversation(Conversation(id=C, base=A, base_rows=2)),
    ):
        with pytest.raises(UnknownConversation):
            store.write(apply)

    assert dump(store) == before


def test_forgetting_works_in_slices_between_which_others_write(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y1: with no time for a slice, each transaction handles one batch and then lets go."""
    add(store, A, *(str(n) for n in range(300)))
    monkeypatch.setattr(forgetting, "SLICE", 0)
    commits: list[int] = []
    monkeypatch.setattr(
        environment,
        "checkpoint",
        lambda name: commits.append(len(commits)) if name == "after-commit" else None,
    )

    store.forget(A)

    # 600 references and 300 rows in batches of 64; one batch of requests; the mark and the end
    assert len(commits) >= 900 // forgetting.BATCH
    assert set(dump(store)) == {b"mformat"}


def test_an_object_that_comes_into_use_between_slices_stays(path: Path, store: Store) -> None:
    """Z2: whether an object is unreferenced is asked at the moment it would be deleted."""
    add(store, A, "comes into use", "goes")

    with peer(path) as other:
        interrupt(lambda: other.ask("add", B, "comes into use"), store, A)

    assert texts(store, B) == ["comes into use"]
    assert objects(store) == {b"comes into use"}
    assert store.check() == ()


def test_a_fork_that_goes_during_the_last_slice_leaves_the_note_for_another_round(
    store: Store,
) -> None:
    """L2, Z2: the bound that was found before is looked at again at the end."""
    add(store, A, "shared")
    fork(store, A, B)
    env = store._environment
    env.write(lambda session: forgetting.mark(session, A))
    bound = 2
    env.write(lambda session: session.delete(CONVERSATION, B.encode()))  # another process was here

    env.write(lambda session: forgetting._end(session, A, bound))
    assert [problem.code for problem in store.check()] == ["unfinished"]

    forgetting.finish(env)
    assert set(dump(store)) == {b"mformat"}


def interrupt(action: Callable[[], object], store: Store, id: str) -> None:
    """Forget ID in STORE and run ACTION right after the first transaction of it."""
    done: list[bool] = []

    def checkpoint(name: str) -> None:
        if name == "after-commit" and not done:
            done.append(True)
            action()

    before = environment.checkpoint
    environment.checkpoint = checkpoint
    try:
        store.forget(id)
    finally:
        environment.checkpoint = before
    assert done


def test_compaction_removes_the_bytes_of_what_was_forgotten(store: Store) -> None:
    """Z2: until then they may lie in free pages of the file."""
    secret = b"a secret that is long enough to be told from anything else"
    add(store, A, secret.decode())
    add(store, B, "other")
    store.forget(A)

    store.compact()

    assert secret not in data_file(store.path).read_bytes()
    assert texts(store, B) == ["other"]
    assert message("other") in {bytes(key[1:]) for key in dump(store)}
