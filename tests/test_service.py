"""The service over a real store, called as the adapter calls it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retention.digest import digest
from retention.errors import (
    InvalidParams,
    InvalidPayload,
    InvalidResponse,
    RetentionError,
    UnknownConversation,
    UnknownPlan,
    UnknownState,
    UnsupportedProvider,
)
from retention.ledger import Log
from retention.model import Usage
from retention.rebuilding import rebuild_array
from retention.service import Service
from retention.store import Reader, Store
from tests.dialects import body, events, looped, plain
from tests.dialects import rebuilt as built
from tests.helpers import (
    Adapter,
    Prepared,
    assistant,
    call,
    message,
    reminder,
    result,
    section,
    thinking,
)
from tests.store.build import flip

IDENTITY = {"api": "openai", "model": "m"}
SECTIONS = [{"name": "weather", "title": "Weather", "body": "sunny"}]
HELLO = {"role": "user", "content": "hello"}
HI = {"role": "assistant", "content": "hi"}
MORE = {"role": "user", "content": "more"}


class Client:
    """One service, and the conversation that it opened."""

    def __init__(self, store: Store, conversation: str = "", file: str = "") -> None:
        ids = itertools.count(1)
        self.store = store
        self.service = Service(store, clock=lambda: 0.0, random_id=lambda: f"{next(ids):032x}")
        self.call("initialize", protocol=1)
        self.opened = self.call("conversation/open", id=conversation, file=file)

    def call(self, method: str, **params: Any) -> Any:
        return self.service.call(method, json.dumps(params).encode())

    def prepare(self, *tail: dict[str, str], **params: Any) -> Any:
        return self.call(
            "request/prepare", conversation=self.opened.id, request=params.pop("request", "r"),
            origin=params.pop("origin", "buffer"), array="messages",
            identity=params.pop("identity", IDENTITY), tail=json.dumps(tail), sections=SECTIONS,
            **params,
        )  # fmt: skip

    def commit(self, plan: Any) -> int:
        return self.call("request/commit", plan=plan.plan).seq


def content(store: Store) -> list[Any]:
    """Return everything in STORE."""
    with store.read() as reader:
        records = list(reader.conversations())
        rows = [row for record in records for row in reader.rows(record.id)]
        requests = [r for record in records for r in reader.requests(record.id, 100)]
        return [records, rows, requests, reader.find_objects("", limit=1000)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store")
    yield opened
    opened.close()


def test_prepare_without_commit_writes_nothing(store: Store) -> None:
    """D5: staging is not delivery; preparing twice gives the same plan."""
    client = Client(store)
    before = content(store)

    plans = [client.prepare(HELLO) for _ in range(2)]
    client.call("request/abandon", plan=plans[0].plan)

    assert content(store) == before
    assert plans[0].edits == plans[1].edits
    with pytest.raises(UnknownPlan):
        client.commit(plans[0])


def test_commit_twice_is_one(store: Store) -> None:
    """D6: the second commit of a plan changes nothing and answers as the first."""
    client = Client(store)
    plan = client.prepare(HELLO)
    first = client.commit(plan)
    before = content(store)

    assert client.commit(plan) == first == 1
    assert content(store) == before


def test_restarted_service_gives_the_same_payload(store: Store) -> None:
    """L3: states and plans are gone, the log is not."""
    client = Client(store)
    plan = client.prepare(HELLO)
    client.commit(plan)
    expected = client.prepare(HELLO, HI, MORE)

    again = Client(store, client.opened.id)

    with pytest.raises(UnknownState):
        again.prepare(HI, MORE, base=plan.ordinary, keep=1)
    with pytest.raises(UnknownPlan):
        again.commit(plan)
    assert again.prepare(HELLO, HI, MORE).edits == expected.edits
    assert again.prepare(HELLO, HI, MORE).sections == ()


def test_restarted_service_recognises_the_loop(store: Store) -> None:
    """Q2, B4: an array sent before the restart is known by its exact prefix."""
    client = Client(store)
    plan = client.prepare(HELLO)
    client.commit(plan)
    sent = [HELLO, *json.loads(plan.edits[1].insert)]

    again = Client(store, client.opened.id)
    looped = again.prepare(*sent, HI, origin="loop")

    assert looped.sections == ()
    assert looped.edits == ()


def test_two_services_see_each_others_commits(store: Store) -> None:
    """L4, G5: the log is read again when another writer moved it."""
    left = Client(store)
    right = Client(store, left.opened.id)
    left.commit(left.prepare(HELLO))

    plan = right.prepare(HELLO, HI, MORE)
    right.commit(plan)

    assert plan.sections == ()
    assert plan.restored == 1
    assert [r["request"] for r in left.call("inspect/requests", id=left.opened.id)["requests"]] == [
        2,
        1,
    ]


def test_a_copied_file_is_a_fork(store: Store, tmp_path: Path) -> None:
    """H4, L2: one id in two existing files; the copy shares the past and goes its own way."""
    one, two = tmp_path / "one.org", tmp_path / "two.org"
    one.touch()
    two.touch()
    client = Client(store, file=str(one))
    client.commit(client.prepare(HELLO))

    forked = client.call("conversation/open", id=client.opened.id, file=str(two))
    found = client.call("conversation/open", file=str(one))

    assert forked.forked == client.opened.id
    assert forked.rows == 2
    assert found.id == client.opened.id


def test_a_forgotten_id_that_forks_share_is_not_given_again(store: Store, tmp_path: Path) -> None:
    """Z2, L2: a buffer that still names it gets a conversation of its own."""
    one, two = tmp_path / "one.org", tmp_path / "two.org"
    one.touch()
    two.touch()
    client = Client(store, file=str(one))
    client.commit(client.prepare(HELLO))
    client.call("conversation/open", id=client.opened.id, file=str(two))
    client.call("conversation/forget", id=client.opened.id)

    again = client.call("conversation/open", id=client.opened.id)

    assert again.created
    assert again.id != client.opened.id


def test_forget_leaves_no_text_behind(store: Store) -> None:
    """Z2: what is stored is referred to, also where one text stands for the pieces of a turn."""
    client = Client(store)
    client.commit(client.prepare(HELLO))
    client.call(
        "turn/complete", conversation=client.opened.id, request="r", array="messages",
        identity=IDENTITY, span=json.dumps([HI]), whole=json.dumps([HI | {"content": "oh, hi"}]),
    )  # fmt: skip
    client.commit(client.prepare(HELLO | {"name": "marked"}, HI, MORE, shape="merge"))

    assert store.check() == ()
    client.call("conversation/forget", id=client.opened.id)

    assert content(store) == [[], [], [], []]


def test_host_that_went_out_with_another_text_keeps_its_delivery(store: Store) -> None:
    """D4, C1: the text without the delivery is stored too, for when it is placed again."""
    client = Client(store)
    client.commit(client.prepare(HELLO | {"name": "marked"}, shape="merge"))
    plan = client.prepare(HELLO, HI, MORE, shape="merge")
    client.commit(plan)

    edited = client.prepare(MORE, shape="merge", base=plan.ordinary, keep=1, have=[plan.sent])

    assert [reason.code for reason in edited.reasons] == []
    assert (edited.sections, edited.restored) == ((), 1)


def test_a_refusal_of_another_provider_does_not_count(store: Store) -> None:
    """Z6: the step belongs to the identity that refused."""
    client = Client(store)
    plans = [client.prepare(HELLO), client.prepare(HELLO, identity=IDENTITY | {"model": "n"})]
    client.call("request/refused", plan=plans[0].plan, status=400)

    assert client.call("request/refused", plan=plans[1].plan, status=400).step == 3
    assert client.prepare(HELLO, identity=IDENTITY | {"model": "n"}).edits == ()
    assert client.prepare(HELLO).edits != ()


def test_a_refused_request_is_not_edited_again(store: Store) -> None:
    """Z6: kept until the provider identity changes."""
    client = Client(store)
    plan = client.prepare(HELLO)
    client.commit(plan)

    step = client.call("request/refused", plan=plan.plan, status=400).step
    same = client.prepare(HELLO)

    assert step == 3
    assert same.edits == ()
    assert [reason.code for reason in same.reasons] == ["refused"]


# Whole turns, as the adapter plays them

U1, U2, U3 = (message(f"prompt {n}") for n in range(1, 4))
A1, A2 = assistant("answer 1"), assistant("answer 2")
ENV = section("env")
GOAL = section("goal", kind="guidance")
WORK1 = (assistant("look", call(id="c1"), call(id="c2")), result("one", "two"))
WORK2 = (assistant(call(id="c3")), result("three", ids=["c3"]))


@pytest.fixture
def chat(store: Store) -> Adapter:
    return Adapter(store)


def log_of(chat: Adapter) -> list[dict[str, Any]]:
    return chat.call("inspect/log", id=chat.id)["rows"]


def rebuilt(chat: Adapter, seq: int) -> list[bytes]:
    """Return the digests of the elements of request SEQ, from the log alone."""
    with chat.service.store.read() as reader:
        items = rebuild_array(reader, Log(reader.rows(chat.id)), chat.id, seq)
    return [item.message.exact for item in items]


def digests(array: list[bytes]) -> list[bytes]:
    return [digest("message", raw) for raw in array]


def test_deltas_reuse_what_the_client_holds(chat: Adapter) -> None:
    """Q1: an unchanged beginning is neither sent nor answered."""
    first = chat.send(U1, sections=[ENV])
    chat.end(A1)

    second = chat.send(U1, A1, U2, sections=[ENV])

    assert second.texts() == ["prompt 1", "[Env]", "answer 1", "prompt 2"]
    assert second.array[:2] == first.array
    assert [(e.reuse, e.drop, e.keep, e.insert) for e in second.result.edits] == [
        (2, 0, 0, ""),
        (0, 1, 0, ""),
        (0, 0, 2, ""),
    ]
    assert second.result.reuse == first.result.sent
    assert (second.result.reused, second.result.total) == (
        len(b"".join(first.array)),
        len(b"".join(second.array)),
    )


def test_deliveries_without_the_held_array_come_as_texts(chat: Adapter) -> None:
    """Q1: `have` names what the client still holds; without it nothing is reused."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    chat.held.clear()

    sent = chat.send(U1, A1, U2, sections=[ENV])

    assert sent.result.reuse == ""
    assert sent.texts() == ["prompt 1", "[Env]", "answer 1", "prompt 2"]


def test_spans_bring_the_deliveries_of_a_loop_back(chat: Adapter) -> None:
    """Q3, B4: recognised in the loop, and found again between the ordinary messages."""
    chat.send(U1, sections=[ENV])
    chat.loop(*WORK1, sections=[section("env", "two")])
    looped = chat.loop(*WORK2, sections=[section("env", "two"), GOAL])
    chat.end(A1)

    sent = chat.send(U1, *WORK1, *WORK2, A1, U2, sections=[section("env", "two"), GOAL])

    assert looped.due == {"goal": "new"}
    assert sent.due == {}
    assert sent.array[: len(looped.array)] == looped.array
    assert chat.resyncs == 0


def test_end_of_a_turn_is_logged_once(chat: Adapter) -> None:
    """Q5: a second one for the same request changes nothing."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    before = content(chat.store)

    chat.end(A1)

    assert content(chat.store) == before


def test_head_is_stored_once_and_inherited(chat: Adapter) -> None:
    """Q1: tools, system and parameters are sent when they changed."""
    chat.send(U1, head='{"system":"be brief"}')
    chat.send(U1, A1, U2)
    chat.send(U1, A1, U2, head='{"system":"be long"}')

    with chat.store.read() as reader:
        heads = [record.head for record in reader.requests(chat.id, 9)][::-1]
        stored = [reader.object(head) for head in heads]

    assert stored == [b'{"system":"be brief"}'] * 2 + [b'{"system":"be long"}']


def test_restart_in_the_loop_goes_on(chat: Adapter) -> None:
    """L3, B4: a backend that was killed between two rounds knows the array again."""
    chat.send(U1, sections=[ENV])
    before = chat.loop(*WORK1, sections=[section("env", "two")])
    chat.restart()

    looped = chat.loop(*WORK2, sections=[section("env", "two")])
    chat.restart()
    chat.end(A1)
    sent = chat.send(U1, *WORK1, *WORK2, A1, U2, sections=[section("env", "two")])

    assert chat.resyncs == 2
    assert (looped.due, sent.due) == ({}, {})
    assert looped.array[: len(before.array)] == before.array
    assert sent.array[: len(looped.array)] == looped.array


def test_two_services_on_one_conversation(store: Store) -> None:
    """L4: each sees what the other delivered, though its own deltas are older."""
    left = Adapter(store)
    left.send(U1, sections=[ENV])
    left.end(A1)
    right = Adapter(store, left.id)
    theirs = right.send(U1, A1, U2, sections=[ENV, GOAL])
    right.end(A2)

    ours = left.send(U1, A1, U2, A2, U3, sections=[ENV, GOAL])

    assert (theirs.due, ours.due) == ({"goal": "new"}, {})
    assert ours.array[: len(theirs.array)] == theirs.array


def test_two_services_commit_what_they_prepared_at_the_same_time(store: Store) -> None:
    """L4, G5: the second commit merges with the first; the prompt is one row."""
    left = Adapter(store)
    right = Adapter(store, left.id)
    one, two = left.prepare(U1, sections=[ENV]), right.prepare(U1, sections=[GOAL])
    left.commit(one)
    right.commit(two)
    right.end(A1)

    sent = left.send(U1, A1, U2, sections=[ENV, GOAL])

    assert (one.seq, two.seq) == (1, 2)
    assert sent.due == {}
    assert sent.texts() == ["prompt 1", "[Env]", "[Goal]", "answer 1", "prompt 2"]


def test_conversations_are_apart(store: Store) -> None:
    """A2: what one was told says nothing to another, however they take turns."""
    left, right = Adapter(store), Adapter(store)

    first = left.send(U1, sections=[ENV])
    other = right.send(U1, sections=[ENV])
    left.end(A1)
    right.end(A1)

    assert (first.due, other.due) == ({"env": "new"}, {"env": "new"})
    assert left.send(U1, A1, U2, sections=[ENV]).due == {}
    assert right.send(U1, A1, U2, sections=[ENV]).due == {}
    assert len(log_of(left)) == len(log_of(right)) == 4


def test_several_sends_in_flight(chat: Adapter) -> None:
    """G5: commits name their plan; both are logged, each delivery once."""
    one = chat.prepare(U1, sections=[ENV])
    two = chat.prepare(U1, A1, U2, sections=[ENV])
    chat.commit(two)
    chat.commit(one)
    chat.end(A2)

    sent = chat.send(U1, A1, U2, A2, U3, sections=[ENV])

    assert sent.due == {}
    assert sent.texts() == [
        *("prompt 1", "[Env]", "answer 1", "prompt 2", "[Env]", "answer 2", "prompt 3"),
    ]


def test_conditions_of_requests_in_flight_are_merged(chat: Adapter) -> None:
    """D8, G5: a commit does not forget the condition that another one reported."""
    held = [reminder(policy="while", state="a")]
    slow = chat.prepare(U1)
    chat.send(U1, reminders=held)
    chat.commit(slow)
    chat.end(A1)

    assert chat.send(U1, A1, U2, reminders=held).result.reminders == ()


def test_delta_of_an_array_that_was_never_dispatched(chat: Adapter) -> None:
    """Q1, D5: what was prepared and abandoned has no rows; the delta of it is matched again."""
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    chat.prepare(U1, A1, U2, sections=[ENV, GOAL])

    sent = chat.send(U1, A1, U2, U3, sections=[ENV, GOAL])
    chat.end(A2)
    later = chat.send(U1, A1, U2, U3, A2, sections=[ENV, GOAL])

    assert chat.resyncs == 0
    assert sent.due == {"goal": "new"}
    assert later.array[: len(sent.array)] == sent.array
    assert len(log_of(chat)) == 7


def test_abandoned_plan_leaves_all_due(chat: Adapter) -> None:
    """D5, D8: nothing of it was written, and it cannot be committed any more."""
    before = content(chat.store)
    plan = chat.prepare(U1, sections=[ENV], reminders=[reminder()])

    chat.call("request/abandon", plan=plan.result.plan)

    assert content(chat.store) == before
    with pytest.raises(UnknownPlan):
        chat.commit(plan)
    again = chat.send(U1, sections=[ENV], reminders=[reminder()])
    assert (again.due, again.result.reminders) == ({"env": "new"}, ("tip",))


def test_abandon_after_the_commit_changes_nothing(chat: Adapter) -> None:
    """D6: what was handed over was handed over."""
    plan = chat.send(U1, sections=[ENV])
    before = content(chat.store)

    chat.call("request/abandon", plan=plan.result.plan)

    assert content(chat.store) == before
    assert chat.send(U1, sections=[ENV]).due == {}


def test_refusal_is_kept_until_the_provider_changes(chat: Adapter) -> None:
    """Z6: and only an edited request is held back."""
    plain = chat.send(U1)
    assert chat.call("request/refused", plan=plain.result.plan, status=400).step == 0
    edited = chat.send(U1, sections=[ENV])
    chat.call("request/refused", plan=edited.result.plan, status=422, body="no")
    chat.restart()

    held = chat.send(U1, sections=[ENV])
    chat.identity["model"] = "other"
    other = chat.send(U1, sections=[ENV])

    assert held.texts() == ["prompt 1"]
    assert other.texts() == ["prompt 1", "[Env]"]


def test_damaged_delivery_is_delivered_again(tmp_path: Path) -> None:
    """Z3: it is treated as absent, and never sent."""
    store = Store.open(tmp_path / "store")
    chat = Adapter(store)
    chat.send(U1, sections=[section("env", "a body that is long enough to be found")])
    chat.end(A1)
    store.close()
    flip(tmp_path / "store", b"a body that is long enough to be found")  # wherever it is stored
    chat.store = Store.open(tmp_path / "store")
    chat.restart()
    chat.held.clear()

    sent = chat.send(
        U1, A1, U2, sections=[section("env", "a body that is long enough to be found")]
    )

    assert sent.due == {"env": "missing"}
    assert sent.texts() == ["prompt 1", "answer 1", "prompt 2", "[Env]"]
    chat.store.close()


def test_forgotten_conversation_is_gone(store: Store) -> None:
    """Z2: its records and its objects; what another one has stays."""
    kept, gone = Adapter(store), Adapter(store)
    kept.send(U1, sections=[ENV])
    before = content(store)[1:]
    plan = gone.send(message("a secret"), sections=[ENV])

    gone.call("conversation/forget", id=gone.id)

    assert content(store)[1:] == before
    with pytest.raises(UnknownConversation):
        gone.prepare(U1)
    with pytest.raises(UnknownPlan):
        gone.commit(plan)


def test_fork_shares_its_past_and_goes_its_own_way(store: Store, tmp_path: Path) -> None:
    """H4, L2: what one of them is told later, the other is not."""
    one, two = tmp_path / "one.org", tmp_path / "two.org"
    one.touch()
    two.touch()
    chat = Adapter(store)
    chat.call("conversation/open", id=chat.id, file=str(one))
    chat.send(U1, sections=[ENV])
    chat.end(A1)
    fork = Adapter(store)
    fork.id = fork.call("conversation/open", id=chat.id, file=str(two)).id

    theirs = fork.send(U1, A1, U2, sections=[ENV, GOAL])
    fork.end(A2)
    ours = chat.send(U1, A1, message("other"), sections=[ENV, GOAL])
    back = fork.send(U1, A1, U2, A2, U3, sections=[ENV, GOAL])

    assert fork.id != chat.id
    assert (theirs.due, ours.due, back.due) == ({"goal": "new"}, {"goal": "new"}, {})


def test_lost_id_is_found_by_the_name_of_the_file(store: Store, tmp_path: Path) -> None:
    """H4: and a file that was moved keeps its conversation."""
    old, new = tmp_path / "old.org", tmp_path / "new.org"
    chat = Adapter(store)
    chat.call("conversation/open", id=chat.id, file=str(old))
    chat.send(U1, sections=[ENV])

    assert chat.call("conversation/open", file=str(old)).id == chat.id
    assert chat.call("conversation/open", id=chat.id, file=str(new)).forked == ""
    assert chat.call("conversation/open", file=str(new)).id == chat.id
    assert chat.call("conversation/open", file=str(tmp_path / "else.org")).created


def test_records_grow_with_what_is_new_and_requests_can_be_rebuilt(chat: Adapter) -> None:
    """C1: no request is stored as a whole, and each can be had from the log."""
    history: list[dict[str, Any]] = []
    arrays: list[list[bytes]] = []
    sizes: list[tuple[int, int]] = []
    for turn in range(1, 13):
        history.append(message(f"prompt {turn}"))
        arrays.append(chat.send(*history, sections=[ENV]).array)
        work = (assistant(call(id=f"t{turn}", n=turn)), result(f"r{turn}", ids=[f"t{turn}"]))
        arrays.append(chat.loop(*work, sections=[ENV]).array)
        chat.end(assistant(f"answer {turn}"))
        history += [*work, assistant(f"answer {turn}")]
        _, rows, requests, objects = content(chat.store)
        sizes.append((len(rows), len(objects)))
        assert all(len(request.rows) <= 6 for request in requests)

    grown = [
        (rows - before[0], objects - before[1])
        for before, (rows, objects) in itertools.pairwise(sizes)
    ]
    assert grown == [(6, 4)] * 11
    chat.restart()
    assert [rebuilt(chat, seq + 1) for seq in range(24)] == [digests(array) for array in arrays]


def test_request_with_another_form_of_a_message_can_be_rebuilt(chat: Adapter) -> None:
    """C1, G3: white space differs from what the log has, and then no more."""
    spaced = message("prompt 2 ")
    arrays = [
        chat.send(U1, A1, U2).array,
        chat.send(U1, A1, spaced).array,
        chat.send(U1, A1, U2, A2, U3).array,
        chat.send(U1, A1, spaced, A2, U3).array,
    ]

    assert len(log_of(chat)) == 5
    assert [rebuilt(chat, seq + 1) for seq in range(4)] == [digests(array) for array in arrays]


def test_request_with_a_prompt_that_transforms_changed_can_be_rebuilt(chat: Adapter) -> None:
    """C1, Q6: what went out counts, not what the buffer holds."""
    written = message("@preset prompt 1")
    arrays = [
        chat.send(U1, prompt=written).array,
        chat.send(written, A1, U2).array,
        chat.send(U3, written, A1, U2).array,
    ]

    assert [rebuilt(chat, seq + 1) for seq in range(3)] == [digests(array) for array in arrays]


def test_request_behind_messages_that_were_made_one_can_be_rebuilt(store: Store) -> None:
    """C1, G4: of two neighbours of the assistant, in a part that the next request repeats."""
    chat = Adapter(store, api="gemini", model="pro")
    arrays = [
        chat.send(*HISTORY, U2).array,
        chat.loop(*looped(SAID, IDS, streamed=True), span=SHOWN).array,
    ]
    chat.end(plain("done"))
    arrays += [chat.send(*HISTORY, U2, *SHOWN, plain("done"), U3).array]

    assert [rebuilt(chat, seq + 1) for seq in range(3)] == [digests(array) for array in arrays]


def test_request_that_repeats_a_text_in_another_form_can_be_rebuilt(store: Store) -> None:
    """C1: what was one message is two that were made one, with the same text."""
    chat = Adapter(store, api="gemini", model="pro")
    said = assistant("look", call(id="c00000001", n=1))
    shown = built(said, IDS, backwards=True)
    arrays = [chat.send(U1).array]
    arrays += [chat.loop(*looped(said, IDS, streamed=True), span=shown, response=[said]).array]
    chat.end(plain("done"))
    arrays += [chat.send(U1, *shown, plain("done"), U2).array]
    chat.identity["model"] = "flash"
    arrays += [chat.send(U1, *shown, plain("done"), U3).array]
    arrays += [chat.send(U1, *shown, plain("done"), U2).array]

    assert arrays[3][:-1] == arrays[2][:-1]
    assert [rebuilt(chat, seq + 1) for seq in range(5)] == [digests(array) for array in arrays]


@pytest.mark.parametrize("shape", ["", "merge"])
def test_request_whose_deliveries_took_another_shape_can_be_rebuilt(
    chat: Adapter, shape: str
) -> None:
    """C1, D4: how a delivery stood is the request's, not the delivery's."""
    chat.shape = shape
    arrays = [chat.send(U1, sections=[ENV]).array]
    chat.end(A1)
    chat.shape = "" if shape else "merge"
    arrays += [chat.send(U1, A1, U2, sections=[ENV, GOAL]).array]
    chat.end(A2)
    arrays += [chat.send(A1, U2, A2, U3, sections=[ENV, GOAL]).array]
    chat.restart()

    assert [rebuilt(chat, seq + 1) for seq in range(3)] == [digests(array) for array in arrays]


def test_large_edits_are_handed_over(chat: Adapter, tmp_path: Path) -> None:
    """P2: no frame above its limit; the text comes in a private file."""
    chat.call("initialize", protocol=1, handover=str(tmp_path))
    large = section("env", "x" * 100_000)

    answer = chat.call(
        "request/prepare", **chat._common(), origin="buffer", tail=chat.json([U1]),
        sections=[{"name": "env", "title": "Env", "body": large.body}],
    )  # fmt: skip

    text = Path(answer.edits_file.file).read_bytes()
    assert answer.edits == ()
    assert len(text) == answer.edits_file.bytes > 100_000
    assert [list(edit) for edit in json.loads(text)] == [["keep"], ["insert"]]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"origin": "air"}, InvalidParams),
        ({"keep": -1}, InvalidParams),
        ({"tail": "{"}, InvalidPayload),
        ({"tail": '[{"role":"nobody"}]'}, InvalidPayload),
        ({"base": "o1-unknown"}, UnknownState),
        ({"conversation": "f" * 32}, UnknownConversation),
        ({"array": "contents"}, UnsupportedProvider),
        ({"sections": [{"name": 1}]}, InvalidParams),
        ({"span": "nothing"}, InvalidPayload),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else next(iter(value)),
)
def test_bad_input_changes_nothing(
    chat: Adapter, changes: dict[str, Any], error: type[RetentionError]
) -> None:
    """Each gets a typed error; what was there goes on."""
    chat.send(U1, sections=[ENV])
    before = content(chat.store)
    params = chat._common() | {"origin": "buffer", "tail": chat.json([U1])}

    with pytest.raises(error):
        chat.call("request/prepare", **params | changes)

    assert content(chat.store) == before
    assert chat.send(U1, sections=[ENV]).due == {}


# What providers say (F1, R1, G4, Z6)

IDS = {"c00000001": "first", "c00000002": "second"}
SAID = assistant(thinking("one", "sig1"), "look", *(call(id=id, n=n) for n, id in enumerate(IDS)))
SHOWN = built(SAID, IDS, backwards=True)
DONE = assistant(thinking("two", "sig2"), "done")
HISTORY = (U1, *SHOWN, plain("done"))
APIS = {
    "anthropic": "claude", "openai": "gpt", "responses": "gpt", "gemini": "pro", "ollama": "qwen",
    "mistral": "large", "deepseek": "v4", "bedrock": "anthropic.claude",
}  # fmt: skip


@pytest.fixture(params=APIS)
def speaker(request: pytest.FixtureRequest, store: Store) -> Adapter:
    """A conversation with each API."""
    return Adapter(store, api=request.param, model=APIS[request.param])


def work(chat: Adapter, **options: Any) -> Prepared:
    """Dispatch the loop that SAID began."""
    elements = looped(SAID, IDS, streamed=True, api=chat.api)
    return chat.loop(*elements, **{"span": SHOWN, "response": [SAID]} | options)


def test_responses_go_back_as_they_came(speaker: Adapter) -> None:
    """F1, R1, L3: read from their bodies, and from the disk after a restart."""
    first = speaker.send(U1, sections=[ENV])
    second = work(speaker, sections=[ENV])
    speaker.end(plain("done"), response=[DONE])
    speaker.restart()

    third = speaker.send(*HISTORY, U2, sections=[ENV])

    own = speaker.encode([SAID])
    assert second.array[: len(first.array)] == first.array
    assert second.array[len(first.array) :][: len(own)] == own
    assert third.array[: len(second.array)] == second.array
    assert third.array[len(second.array) :] == speaker.encode([DONE, U2])
    assert (third.due, third.result.replayed, third.result.breaches) == ({}, 2, ())


def test_stream_is_read_as_a_document_is(chat: Adapter) -> None:
    """R1: the same message, whatever the transport made of it."""
    chat.send(U1)
    answer = chat.record(events(SAID))
    sent = work(chat, response=None)

    assert (answer.elements, answer.calls, answer.complete) == (1, 2, True)
    assert sent.array[1:2] == chat.encode([SAID])


def test_response_belongs_to_the_dispatch_that_it_answers(chat: Adapter) -> None:
    """R2: that of the first dispatch says nothing of the second; an unknown plan is refused."""
    chat.send(U1)
    work(chat)
    sent = work(chat, response=None)
    other = Adapter(chat.store)
    other.plan = chat.plan

    assert [r.detail for r in sent.result.reasons if r.code == "not_repaired"] == [
        "no response recorded"
    ]
    with pytest.raises(UnknownPlan):
        other.record(events(DONE))


@pytest.mark.parametrize("said", [SAID, None], ids=["calls", "cut"])
def test_turn_that_ended_in_no_answer_leaves_no_fragment(chat: Adapter, said: Any) -> None:
    """G4, F8: a structured answer by a tool that nobody runs, and a stream that was cut."""
    chat.send(U1)
    stream = events(DONE) if said is None else events(said)
    chat.record(stream[: len(stream) // 2] if said is None else stream)
    chat.end(plain("done"))

    sent = chat.send(U1, plain("done"), U2)

    assert sent.array == chat.encode([U1, plain("done"), U2])
    assert sent.result.replayed == 0


def test_damaged_fragment_goes_out_as_gptel_builds_it(tmp_path: Path) -> None:
    """Z3, F2: never sent, named, and its neighbours replay."""
    chat = Adapter(Store.open(tmp_path / "store"))
    chat.send(U1)
    work(chat)
    chat.end(plain("done"), response=[DONE])
    chat.store.close()
    flip(tmp_path / "store", b'"signature":"sig1"')
    chat.store = Store.open(tmp_path / "store")
    chat.restart()
    chat.held.clear()

    sent = chat.send(*HISTORY, U2)

    assert sent.array == [*chat.encode([U1]), *sent.array[1:6], *chat.encode([DONE, U2])]
    assert b"sig1" not in b"".join(sent.array)
    assert {"damaged"} <= {r.detail for r in sent.result.reasons if r.code == "not_replayed"}
    assert sent.result.breaches == ()
    chat.store.close()


def test_planned_mark_is_known_after_a_restart_in_the_loop(chat: Adapter) -> None:
    """C3, B4: what carries it is recognised, and the mark moves on."""
    chat.identity["cache"] = "t"
    chat.send(U1, sections=[ENV])
    sent = work(chat, sections=[ENV])
    for _ in range(5):
        chat.restart()
        sent = chat.loop(*WORK2, sections=[ENV])

    marked = [n for n, raw in enumerate(sent.array) if b"cache_control" in raw]
    assert marked == [len(sent.array) - 1]
    assert sent.due == {}


def test_damaged_text_with_a_mark_keeps_it_in_the_loop(tmp_path: Path) -> None:
    """Z3, C3: it cannot be written anew without its mark; the request goes out all the same."""
    chat = Adapter(Store.open(tmp_path / "store"))
    chat.identity["cache"] = "t"
    chat.send(message("a prompt that is long enough to be found"))
    chat.store.close()
    flip(tmp_path / "store", b"a prompt that is long enough to be found")
    chat.store = Store.open(tmp_path / "store")
    chat.restart()

    sent = work(chat, response=None)

    assert [b"cache_control" in raw for raw in sent.array] == [True, False, False]
    assert "damaged" in {reason.code for reason in sent.result.reasons}
    chat.store.close()


HEAD = '{"system":"be brief"}'


def test_bound_thinking_is_known_after_a_restart_in_the_loop(chat: Adapter) -> None:
    """C4, L3: what it stands behind is found in the array that was recognised."""
    chat.identity["model"] = "claude-opus-5-5"
    chat.send(U1, head=HEAD)
    chat.restart()
    chat.sent = ("", chat.sent[1])
    chat.loop(*looped(SAID, IDS, streamed=True), span=SHOWN, head=HEAD)
    said = assistant(thinking("three", "sig3"), call(id="c00000003", n=3))
    answers = {"c00000003": "third"}
    chat.restart()
    chat.sent = ("", chat.sent[1])
    more = chat.loop(
        *looped(said, answers, streamed=False), span=built(said, answers, backwards=False),
        head=HEAD,
    )  # fmt: skip
    chat.end(plain("done"))

    shown = [*SHOWN, *built(said, answers, backwards=False)]
    kept = chat.send(U1, *shown, plain("done"), U2, head=HEAD)
    edited = chat.send(message("edited"), *shown, plain("done"), U2)

    assert kept.array[: len(more.array)] == more.array
    assert (b"sig3" in b"".join(kept.array), b"sig3" in b"".join(edited.array)) == (True, False)


def refuse(chat: Adapter, prepared: Prepared) -> int:
    """Tell that the provider refused PREPARED; return the step that follows."""
    return chat.call("request/refused", plan=prepared.result.plan, status=400).step


def test_each_refusal_takes_one_step_that_changes_something(chat: Adapter) -> None:
    """Z6: reasoning, then fragments, then everything, then nothing more."""
    chat.send(U1, sections=[ENV])
    work(chat)
    chat.end(plain("done"), response=[DONE])

    steps = []
    for _ in range(4):
        sent = chat.send(*HISTORY, U2, sections=[ENV])
        steps.append((refuse(chat, sent), sent.result.replayed, b"sig" in b"".join(sent.array)))

    assert steps == [(1, 2, True), (2, 2, False), (3, 0, False), (3, 0, False)]
    assert sent.array == chat.encode([*HISTORY, U2])


@pytest.mark.parametrize(
    ("response", "sections", "step"),
    [([assistant("hi")], [], 2), ([assistant("hi")], [ENV], 2), (None, [ENV], 3), (None, [], 0)],
    ids=["fragment", "both", "delivery", "nothing"],
)
def test_step_that_changes_nothing_is_skipped(
    chat: Adapter, response: Any, sections: list[Any], step: int
) -> None:
    """Z6: the same request is never sent again."""
    chat.send(U1, sections=sections)
    chat.end(plain("hi"), response=response)

    assert refuse(chat, chat.send(U1, plain("hi"), U2, sections=sections)) == step


def test_ids_alone_are_no_fragment_to_leave_out(chat: Adapter) -> None:
    """Z6: gptel's own form with other ids goes out unchanged at the next step but one."""
    sent = chat.send(*HISTORY, U2)

    assert [reason.detail for reason in sent.result.reasons] == ["call ids"]
    assert refuse(chat, sent) == 3


@pytest.mark.parametrize(
    ("response", "sections", "step"),
    [([assistant(*SAID["content"][1:])], [], 2), (None, [ENV], 3), (None, [], 0)],
    ids=["own", "delivery", "nothing"],
)
def test_refusal_in_the_loop_is_of_all_that_stands_in_it(
    chat: Adapter, response: Any, sections: list[Any], step: int
) -> None:
    """Z6: also what an earlier dispatch of the turn put there."""
    chat.send(U1, sections=sections)
    work(chat, response=response, sections=sections)
    last = chat.loop(*WORK2, sections=sections)

    assert refuse(chat, last) == step


def test_asking_for_reasoning_is_an_edit_to_leave_out(store: Store) -> None:
    """Z6: where the provider does not know what it is asked to include."""
    chat = Adapter(store, api="responses", model="o3")
    sent = chat.send(U1)

    assert sent.result.include != ()
    assert refuse(chat, sent) == 1
    assert chat.send(U1).result.include == ()


def test_step_is_kept_until_the_identity_changes(chat: Adapter) -> None:
    """Z6: over restarts and turns; another model begins anew, and then so does this one."""
    chat.send(U1)
    chat.end(plain("hi"), response=[assistant(thinking(), "hi")])
    refuse(chat, chat.send(U1, plain("hi"), U2))
    chat.restart()

    held = chat.send(U1, plain("hi"), U2)
    chat.identity["model"] = "other"
    chat.send(U1, plain("hi"), U2)
    chat.identity["model"] = "claude-test"
    again = chat.send(U1, plain("hi"), U2)

    assert [b"sig" in b"".join(sent.array) for sent in (held, again)] == [False, True]


# Growth (C1)


def play_turn(chat: Adapter, history: list[dict[str, Any]], n: int) -> list[list[bytes]]:
    """Play turn N behind HISTORY, which grows by it; return what was sent."""
    ids = {f"c{n}-{m}": f"result {n} {m}" for m in range(2)}
    said = assistant(thinking(f"t{n}", f"s{n}"), *(call(id=id, n=n) for id in ids))
    shown = built(said, ids, backwards=True)
    history.append(message(f"prompt {n}"))
    first = chat.send(*history, sections=[ENV])
    elements = looped(said, ids, streamed=True)
    second = chat.loop(*elements, span=shown, response=[said], sections=[ENV])
    text = f"answer {n}"
    chat.end(plain(text), response=[assistant(thinking(f"u{n}", f"v{n}"), text)])
    history += [*shown, plain(text)]
    return [first.array, second.array]


def test_turns_with_fragments_grow_by_what_is_new(chat: Adapter) -> None:
    """C1: rows, objects and bytes of each turn are the same, and each request can be rebuilt."""
    history: list[dict[str, Any]] = []
    arrays: list[list[bytes]] = []
    sizes: list[tuple[int, int, int]] = []
    for n in range(10, 22):
        arrays += play_turn(chat, history, n)
        _, rows, requests, objects = content(chat.store)
        with chat.store.read() as reader:
            stored = sum(len(reader.object(name)) for name in objects)
        sizes.append((len(rows), len(objects), stored))
        assert all(len(request.rows) <= 5 for request in requests)

    grown = {
        tuple(b - a for a, b in zip(before, after, strict=True))
        for before, after in itertools.pairwise(sizes)
    }
    assert len(grown) == 1
    chat.restart()
    assert [rebuilt(chat, seq + 1) for seq in range(24)] == [digests(array) for array in arrays]


def test_turn_reads_the_same_however_long_the_log_is(
    chat: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1, B2: in deltas neither a prepare nor a commit reads what stands in front."""
    counts: Counter[str] = Counter()
    for name in ("object", "rows", "request", "requests"):
        monkeypatch.setattr(Reader, name, counted(getattr(Reader, name), name, counts))
    history: list[dict[str, Any]] = []
    reads: list[Counter[str]] = []
    for n in range(10, 30):
        counts.clear()
        play_turn(chat, history, n)
        reads.append(counts.copy())

    assert chat.resyncs == 0
    assert reads[2:] == [reads[2]] * 18
    assert reads[2]["rows"] == 0


def counted(method: Any, name: str, counts: Counter[str]) -> Any:
    """Return METHOD with its calls counted under NAME."""

    def call_counted(*args: Any) -> Any:
        counts[name] += 1
        return method(*args)

    return call_counted


# What else may become of fragments


def test_fragments_of_one_service_are_replayed_by_another(store: Store) -> None:
    """L4: and by a conversation that was split from it (L2)."""
    left = Adapter(store)
    left.send(U1)
    work(left)
    left.end(plain("done"), response=[DONE])

    right = Adapter(store, left.id)
    sent = right.send(*HISTORY, U2)

    assert sent.result.replayed == 2
    assert left.send(*HISTORY, U2).array == sent.array


def test_fork_replays_the_fragments_of_its_past(store: Store, tmp_path: Path) -> None:
    """L2: nothing is copied; what came after the split is each one's own."""
    one, two = tmp_path / "one.org", tmp_path / "two.org"
    one.touch()
    two.touch()
    chat = Adapter(store)
    chat.call("conversation/open", id=chat.id, file=str(one))
    chat.send(U1)
    work(chat)
    chat.end(plain("done"), response=[DONE])
    fork = Adapter(store)
    fork.id = fork.call("conversation/open", id=chat.id, file=str(two)).id
    chat.send(*HISTORY, U2)
    chat.end(plain("ours"), response=[assistant(thinking("ours", "sig5"), "ours")])

    sent = fork.send(*HISTORY, U2, plain("ours"), U3)

    assert fork.id != chat.id
    assert sent.result.replayed == 2
    assert b"sig5" not in b"".join(sent.array)


def test_forgotten_fragments_leave_nothing_behind(store: Store) -> None:
    """Z2: neither what the provider said nor the identity that it belongs to."""
    chat = Adapter(store)
    chat.send(U1, sections=[ENV], head=HEAD)
    work(chat)
    chat.end(plain("done"), response=[DONE])
    chat.send(*HISTORY, U2)
    assert store.check() == ()

    chat.call("conversation/forget", id=chat.id)

    assert content(store) == [[], [], [], []]


def test_reported_usage_is_recorded_beside_the_request(chat: Adapter) -> None:
    """C2: of a response to a request that was dispatched."""
    chat.send(U1)
    chat.record(body(DONE, "anthropic"))

    with chat.store.read() as reader:
        record = reader.requests(chat.id, 1)[0]
    assert (record.usage, record.finish) == (Usage(input=10, output=5), "end_turn")


def test_body_that_is_no_response_changes_nothing(chat: Adapter) -> None:
    """R2: gptel's message stays, and the reason is told."""
    chat.send(U1)
    with pytest.raises(InvalidResponse):
        chat.record(b"<html>Bad gateway</html>")

    sent = work(chat, response=None)

    assert [reason.code for reason in sent.result.reasons] == ["not_repaired"]
