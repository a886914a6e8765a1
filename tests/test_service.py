"""The service over a real store, called as the adapter calls it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retention.errors import UnknownPlan, UnknownState
from retention.service import Service
from retention.store import Store

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
            origin=params.pop("origin", "buffer"), array="messages", identity=IDENTITY,
            tail=json.dumps(tail), sections=SECTIONS, **params,
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
