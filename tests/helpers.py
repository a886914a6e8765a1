"""Builders with defaults, and a client that plays conversations against the planning core.

Messages are built in Anthropic's shape; `dialects.translate` gives them in that of another API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from retention.arrays import Sent, State, Step, UnheldText, make_sent
from retention.digest import Digest, digest
from retention.errors import UnknownState
from retention.ledger import Log
from retention.marking import wants_marks
from retention.model import (
    START,
    Conversation,
    Face,
    Identity,
    Message,
    Origin,
    Reminder,
    Row,
    RowId,
    Section,
)
from retention.planning import Plan, plan_buffer, plan_loop
from retention.protocol import PROTOCOL
from retention.providers import Head, Provider, Response, choose
from retention.request import Request, View
from retention.sections import CLOSE, OPEN, update_conditions
from retention.service import Service, identity_digest
from retention.settling import Ending, apply_ids, plan_turn_end, settle
from retention.store import Store
from tests.dialects import ARRAYS, Element, body, translate

# Builders


def message(text: str = "hi") -> Element:
    """Return a user's message."""
    return {"role": "user", "content": text}


def assistant(*content: str | Element) -> Element:
    """Return an assistant's message of texts and calls."""
    blocks = [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
    return {"role": "assistant", "content": blocks}


def call(name: str = "read", id: str = "c1", **arguments: object) -> Element:
    """Return a call, to be put into an `assistant` message."""
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def thinking(text: str = "hm", signature: str = "sig") -> Element:
    """Return a block of reasoning, to be put into an `assistant` message."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def result(*texts: str, ids: Sequence[str] = ("c1", "c2", "c3")) -> Element:
    """Return the message that holds the results of a group of calls."""
    blocks = [
        {"type": "tool_result", "tool_use_id": id, "content": text}
        for text, id in zip(texts, ids, strict=False)
    ]
    return {"role": "user", "content": blocks}


def section(name: str = "env", body: str | None = "one", **changes: Any) -> Section:
    """Return a section whose title is its NAME."""
    return Section(**{"name": name, "title": name.title(), "body": body} | changes)


def reminder(key: str = "tip", body: str = "mind this", **changes: Any) -> Reminder:
    """Return a reminder, by default one that fires once."""
    return Reminder(**{"key": key, "body": body} | changes)


def delivery_text(*bodies: str) -> str:
    """Return a text that looks like a delivery."""
    return "\n".join(f"{OPEN}\n{body}\n{CLOSE}" for body in bodies)


def row(id: RowId, unit: bytes | str, pred: RowId | None = None, **changes: Any) -> Row:
    """Return an ordinary row with one UNIT, right after the row before it unless PRED says so."""
    parts = (unit_digest(unit),)
    fields = {"id": id, "pred": id - 1 if pred is None else pred, "face": Face.BOTH}
    return Row(**fields | {"role": "user", "exact": parts[0], "parts": parts} | changes)


def unit_digest(unit: bytes | str) -> Digest:
    """Return the digest of a unit of the canonical form."""
    return digest("part", unit.encode() if isinstance(unit, str) else unit)


def identity(api: str = "anthropic", model: str = "claude-test", cache: str = "") -> Identity:
    """Return the identity of a provider."""
    return Identity(api=api, backend="Test", host="localhost", model=model, cache=cache)


# A client of the core


def encode(element: Element | bytes) -> bytes:
    """Return the exact JSON text of ELEMENT, which may be one."""
    if isinstance(element, bytes):
        return element
    return json.dumps(element, ensure_ascii=False, separators=(",", ":")).encode()


def encode_all(elements: Iterable[Element | bytes], api: str) -> list[bytes]:
    """Return the JSON texts of ELEMENTS in the shape of API; a JSON text stays as it is."""
    return [
        encode(each)
        for element in elements
        for each in ([element] if isinstance(element, bytes) else translate(element, api))
    ]


def text_of(raw: bytes | Element) -> str:
    """Return the text of one element in Anthropic's or the chat shape; a call as "name()"."""
    element = json.loads(raw) if isinstance(raw, bytes) else raw
    content = element["content"]
    texts = [content] if isinstance(content, str) else []
    for block in content if isinstance(content, list) else ():
        if block.get("type") == "tool_result":
            texts.append(block["content"])
        else:
            texts.append(block.get("text") or block.get("thinking") or f"{block['name']}()")
    texts += [f"{c['function']['name']}()" for c in element.get("tool_calls", ())]
    return " ".join(texts)


@dataclass
class Sending:
    """One prepared request: the plan, what the client would send, and whether it was logged."""

    plan: Plan
    array: list[bytes]
    loop: bool
    next_row: RowId
    provider: Provider
    identity: Identity
    committed: bool = False

    @property
    def due(self) -> dict[str, str]:
        """The sections that are delivered now: name to reason."""
        return {due.state.name: due.reason for due in self.plan.due}

    @property
    def reminders(self) -> tuple[str, ...]:
        return self.plan.reminders

    @property
    def placed(self) -> list[RowId]:
        return [id for _, id in self.plan.sent.placed]

    @property
    def codes(self) -> set[str]:
        return {reason.code for reason in self.plan.reasons}

    def texts(self) -> list[str]:
        """Return what the model sees, a delivery as "[its titles]"."""
        return [_shortened(text_of(raw)) for raw in self.array]


def _shortened(text: str) -> str:
    while OPEN in text:
        before, _, rest = text.partition(OPEN)
        body, _, after = rest.partition(CLOSE)
        head = body.strip().splitlines()[0].removeprefix("# ").removesuffix(".")
        text = f"{before.strip()}[{head}]{after.strip()}"
    return text


@dataclass
class Harness:
    """One conversation of a client that keeps what it sent, over the real log and real planning.

    `delta` false sends each array whole.  Every step is checked: the edits make exactly what the
    plan says, the ordinary messages stay as they are, no delivery stands twice or between a call
    and its result.
    """

    api: str = "anthropic"
    model: str = "claude-test"
    delta: bool = True
    step: int = 0
    frozen: bool = False
    shape: str = ""
    context: bool = True
    cache: str = ""
    marks: bool = True
    head: Head = Head()  # noqa: RUF009 - frozen
    record: Conversation = field(default_factory=lambda: Conversation(id="0" * 32))
    log: Log = field(default_factory=Log)
    objects: dict[Digest, bytes] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    read: Callable[[Digest], bytes | None] | None = None
    _ordinary: tuple[list[bytes], Plan | None] = field(default_factory=lambda: ([], None))
    _sent: tuple[list[bytes], Sending | None] = field(default_factory=lambda: ([], None))
    _last: tuple[Sent | None, list[bytes]] = (None, [])
    _settled: set[int] = field(default_factory=set)

    @property
    def provider(self) -> Provider:
        return choose(self.identity, ARRAYS.get(self.api, "messages"))

    @property
    def identity(self) -> Identity:
        """The provider identity as the service has it: planned marks are a cache policy (F2)."""
        cache = f"{self.cache} planned" if self.planned else self.cache
        return identity(self.api, self.model, cache)

    @property
    def planned(self) -> bool:
        """Whether cache marks of messages are planned (rule C3)."""
        return self.marks and wants_marks(self.cache)

    def parse(self, elements: Sequence[Element]) -> list[Message]:
        return [self.provider.parse(raw) for raw in self.encode(elements)]

    def encode(self, elements: Sequence[Element]) -> list[bytes]:
        return encode_all(elements, self.api)

    def respond(self, response: Sequence[Element] | None) -> Response | None:
        """Return what the provider sent, given its own messages; None if it was not captured."""
        if response is None:
            return None
        return Response(elements=tuple(self.encode(response)), complete=True)

    # What a client does

    def send(
        self,
        *elements: Element,
        sections: Sequence[Section] = (),
        reminders: Sequence[Reminder] = (),
        prompt: Element | None = None,
    ) -> Sending:
        """Dispatch the payload built from the buffer, and commit it."""
        sending = self.prepare(*elements, sections=sections, reminders=reminders, prompt=prompt)
        return self.commit(sending)

    def prepare(
        self,
        *elements: Element,
        sections: Sequence[Section] = (),
        reminders: Sequence[Reminder] = (),
        prompt: Element | None = None,
    ) -> Sending:
        """Prepare the payload built from the buffer."""
        payload = self.encode(elements)
        held, base = self._ordinary
        keep = _common(held, payload) if self.delta and base else 0
        try:
            plan = plan_buffer(
                self._request(payload[keep:], keep, (), sections, reminders, prompt),
                self._view(self._state(base) if self.delta and base else None),
            )
        except UnheldText:  # which the service answers with a resync
            plan = plan_buffer(
                self._request(payload, 0, (), sections, reminders, prompt), self._view(None)
            )
        array = self._apply(plan, payload)
        self._ordinary = (payload, plan)
        return self._prepared(plan, array, loop=False)

    def loop(
        self,
        *elements: Element,
        span: Sequence[Element] | None = None,
        sections: Sequence[Section] = (),
        reminders: Sequence[Reminder] = (),
        change: Callable[[list[bytes]], list[bytes]] = list,
        response: Response | Sequence[Element] | None = None,
        hooked: bool = False,
    ) -> Sending:
        """Dispatch what was sent last and ELEMENTS behind it, and commit it.

        SPAN is what the round added as the buffer shows it, by default the same.  CHANGE stands for
        another package that edits what was sent before.  RESPONSE is what the provider sent, by its
        own messages; HOOKED tells that a hook changed a call.
        """
        held, base = self._sent
        payload = change(held) + self.encode(elements)
        keep = _common(held, payload) if base else 0
        shown = elements if span is None else span
        request = self._request(payload[keep:], keep, shown, sections, reminders, None)
        said = response if isinstance(response, Response) else self.respond(response)
        view = self._view(self._sent_state(base) if base else None)
        plan = plan_loop(
            msgspec.structs.replace(request, hooked=hooked),
            msgspec.structs.replace(view, response=said),
            self.record.next_round,
        )
        array = self._apply(plan, payload)
        return self.commit(self._prepared(plan, array, loop=True))

    def commit(self, sending: Sending) -> Sending:
        """Log SENDING, as its hand-over to the transport does."""
        plan = sending.plan
        before = self.record
        settled = settle(plan, self.log, before.next_row, before.next_round, sending.next_row)
        self.objects |= plan.texts
        self.objects[identity_digest(sending.identity)] = msgspec.json.encode(sending.identity)
        for domain, data in plan.objects:
            self.objects[digest(domain, data)] = data
        for new in settled.rows:
            self.log.insert(new)
        for old in settled.replaced:
            self.log.replace(old)
        self.record = msgspec.structs.replace(
            before,
            next_row=before.next_row + len(settled.rows),
            next_round=before.next_round + sending.loop,
            turns=before.turns + (not sending.loop),
            conditions=update_conditions(self.record.conditions, plan.seen),
        )
        apply_ids(plan, settled)
        self._settled.add(id(plan))
        self._last = (plan.sent, sending.array)
        self._sent = (sending.array, sending)
        if sending.loop:
            self.rounds.append(before.next_round)
        else:
            self.rounds = []
        sending.committed = True
        self._check(sending)
        return sending

    def end(
        self,
        *elements: Element,
        whole: Sequence[Element] = (),
        response: Sequence[Element] | None = None,
    ) -> None:
        """End the turn: ELEMENTS are its last piece, WHOLE the region, RESPONSE as in `loop`."""
        sent = self._last[0]
        said = self.respond(response)
        own = [self.provider.parse(raw) for raw in said.elements] if said else []
        ending = Ending(
            span=self.parse(elements), whole=self.parse(whole), rounds=tuple(self.rounds),
            own=own, origin=self._origin(sent) if own and sent else None,
        )  # fmt: skip
        turn = plan_turn_end(self.log, sent, ending, self.record.next_row, self.record.next_round)
        for new in turn.rows:
            self.log.insert(new)
        for old in turn.replaced:
            self.log.replace(old)
        texts = (*(ending.whole or ending.span), *own)
        self.objects |= {message.exact: message.raw for message in texts}
        self.record = msgspec.structs.replace(
            self.record,
            next_row=self.record.next_row + len(turn.rows),
            next_round=self.record.next_round + 1,
        )

    def _origin(self, sent: Sent) -> Origin:
        thought = next((i.row for i in reversed(sent.items) if i.message.reasoned), START)
        return Origin(
            identity=identity_digest(self.identity),
            prefix=sent.prefix,
            thought=thought if sent.seed else START,
        )

    def restart(self) -> None:
        """Lose everything but the log and the stored objects, as a killed backend does."""
        self.log = Log(self.log.rows.values())
        self._ordinary, self._sent = ([], None), ([], None)
        if self._last[0] is not None:  # as rebuilt from the record of the request
            kept = make_sent(self._last[0].items)
            self._last = msgspec.structs.replace(kept, marks=self._last[0].marks), self._last[1]

    def delivered(self, id: RowId) -> str:
        """Return the text of delivery ID."""
        delivery = self.log.rows[id].delivery
        assert delivery is not None
        return self.objects[delivery.text].decode()

    # What the backend does around the core

    def _request(  # noqa: PLR0917 - one field of a prepare each
        self,
        tail: list[bytes],
        keep: int,
        span: Sequence[Element],
        sections: Sequence[Section],
        reminders: Sequence[Reminder],
        prompt: Element | None,
    ) -> Request:
        bound = digest("prefix", self.head.system + b"\0" + self.head.tools)
        return Request(
            tail=[self.provider.parse(raw) for raw in tail],
            identity=self.identity,
            who=identity_digest(self.identity),
            keep=keep,
            span=tuple(self.parse(span)),
            prompt=tuple(self.parse([prompt])) if prompt else (),
            sections=tuple(sections),
            reminders=tuple(reminders),
            frozen=self.frozen,
            shape=self.shape,
            context=self.context,
            marks=self.planned,
            head=self.head,
            seed=bound if self.provider.bound(self.identity) else None,
        )

    def _view(self, base: State | None) -> View:
        return View(
            conversation=self.record,
            log=self.log,
            provider=self.provider,
            read=self.read or self.objects.get,
            base=base,
            last=self._last[0],
            reusable=self.delta and self._last[0] is not None,
            step=self.step,
        )

    def _state(self, plan: Plan) -> State:
        done = id(plan) in self._settled
        return State(
            conversation=self.record.id,
            items=plan.items,
            sent=plan.sent,
            sent_at=plan.sent_at,
            settled=len(plan.items) if done else plan.cut,
            mode=plan.mode,
        )

    def _sent_state(self, sending: Sending) -> State:
        plan = sending.plan
        settled = len(plan.sent.items) if sending.committed else plan.start
        return State(
            conversation=self.record.id, items=plan.sent.items, sent=plan.sent, settled=settled
        )

    def _prepared(self, plan: Plan, array: list[bytes], *, loop: bool) -> Sending:
        return Sending(
            plan=plan, array=array, loop=loop, next_row=self.record.next_row,
            provider=self.provider, identity=self.identity,
        )  # fmt: skip

    def _apply(self, plan: Plan, payload: list[bytes]) -> list[bytes]:
        return apply_steps(plan.steps, payload, self._last[1])

    def _check(self, sending: Sending) -> None:
        plan = sending.plan
        for n, (item, raw) in enumerate(zip(plan.sent.items, sending.array, strict=True)):
            found = sending.provider.parse(raw)
            assert bool(found.marks) == (n in plan.sent.marks)
            if found.marks:  # which may have made a block of a text
                assert found.parts == item.message.parts
            else:
                assert found.exact == item.message.exact
        if not sending.loop:
            own = [item for item in plan.sent.items if item.row and item.face is not Face.ACTUAL]
            ids = [id for item in own for id in (item.row, *item.joined)]
            passed = [id for id in ids if self.log.rows[id].face is not Face.ACTUAL]
            assert passed == [
                item.row for item in plan.items if item.block <= 0 and item.face is not Face.ACTUAL
            ]
        assert len(set(sending.placed)) == len(sending.placed), "a delivery stands twice"
        for at, _ in plan.sent.placed:
            follower = plan.sent.items[at + 1 : at + 2]
            assert not (plan.sent.items[at].row == 0 and follower and follower[0].message.results)


def apply_steps(
    steps: Sequence[Step], payload: Sequence[bytes], held: Sequence[bytes]
) -> list[bytes]:
    """Return PAYLOAD edited as a client does it; HELD is the array that it sent last."""
    if not steps:
        return list(payload)
    array: list[bytes] = []
    at = 0
    for step in steps:
        if step.kind == "keep":
            assert at + step.count <= len(payload)
            array += payload[at : at + step.count]
            at += step.count
        elif step.kind == "drop":
            at += step.count
        elif step.kind == "reuse":
            assert not array
            array += held[: step.count]
        else:
            array += step.texts
    assert at == len(payload), "the edits do not cover the payload"
    return array


def _common(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    at = 0
    while at < min(len(ours), len(theirs)) and ours[at] == theirs[at]:
        at += 1
    return at


# A client of the service


class Adapter:
    """Plays one conversation against a `Service` as Emacs does: deltas of what it holds.

    Has the interface of `Harness`.  It answers `resync` with the whole array.
    """

    def __init__(
        self, store: Store, id: str = "", api: str = "anthropic", model: str = "claude-test"
    ) -> None:
        self.store = store
        self.api = api
        self.identity = msgspec.to_builtins(identity(api, model))
        self.shape = ""
        self.frozen = False
        self.request = 0
        self.plan = ""  # of the last dispatch
        self.ordinary: tuple[str, list[bytes]] = ("", [])
        self.sent: tuple[str, list[bytes]] = ("", [])
        self.held: dict[str, list[bytes]] = {}
        self.resyncs = 0
        self.restart()
        self.id = self.call("conversation/open", id=id).id

    def restart(self) -> None:
        """Start another backend on the same store; the client keeps what it holds."""
        self.service = Service(
            self.store, clock=lambda: 1.0, random_id=lambda: os.urandom(16).hex()
        )
        self.call("initialize", protocol=PROTOCOL)

    def call(self, method: str, **params: Any) -> Any:
        return self.service.call(method, json.dumps(params).encode())

    def send(self, *elements: Element, **options: Any) -> Prepared:
        return self.commit(self.prepare(*elements, **options))

    def prepare(
        self, *elements: Element, prompt: Element | None = None, **options: Any
    ) -> Prepared:
        """Prepare a new request from the buffer."""
        self.request += 1
        given = {"prompt": self.json([prompt])} if prompt else {}
        payload = self.encode(elements)
        answer = self._ask("buffer", payload, self.ordinary, given | options)
        self.ordinary = (answer.result.ordinary, payload)
        self.sent = (answer.result.sent, answer.array)
        return answer

    def loop(
        self,
        *elements: Element,
        span: Sequence[Element] | None = None,
        response: Sequence[Element] | None = None,
        **options: Any,
    ) -> Prepared:
        """Dispatch the next round of the request, and commit it; RESPONSE began the round."""
        self._record(response)
        payload = self.sent[1] + self.encode(elements)
        given = {"span": self.json(elements if span is None else span)}
        answer = self._ask("loop", payload, self.sent, given | options)
        self.sent = (answer.result.sent, answer.array)
        return self.commit(answer)

    def commit(self, prepared: Prepared) -> Prepared:
        prepared.seq = self.call("request/commit", plan=prepared.result.plan).seq
        self.held[prepared.result.sent] = prepared.array
        self.plan = prepared.result.plan
        return prepared

    def record(self, body: bytes) -> Any:
        """Record the BODY of the response to the last dispatch."""
        return self.call("response/record", **self._common(), plan=self.plan, body=body.decode())

    def _record(self, response: Sequence[Element] | None) -> None:
        if response is not None:
            self.record(body(*response, self.api))

    def end(
        self,
        *elements: Element,
        whole: Sequence[Element] = (),
        response: Sequence[Element] | None = None,
    ) -> None:
        self._record(response)
        given = {"whole": self.json(whole)} if whole else {}
        self.call(
            "turn/complete",
            **self._common(),
            span=self.json(elements),
            **given,
        )

    def encode(self, elements: Iterable[Element]) -> list[bytes]:
        return encode_all(elements, self.api)

    def json(self, elements: Iterable[Element]) -> str:
        return _array(self.encode(elements))

    def _common(self) -> dict[str, Any]:
        return {
            "conversation": self.id,
            "request": f"r{self.request}",
            "array": ARRAYS.get(self.api, "messages"),
            "identity": self.identity,
        }

    def _ask(
        self,
        origin: str,
        payload: list[bytes],
        base: tuple[str, list[bytes]],
        given: dict[str, Any],
    ) -> Prepared:
        params = self._common() | {"origin": origin, "frozen": self.frozen, "shape": self.shape}
        for name in ("sections", "reminders"):
            params[name] = msgspec.to_builtins(given.pop(name, ()))
        params |= given | {"have": list(self.held)}
        name, texts = base
        keep = _common(texts, payload)
        try:
            delta = {"base": name, "keep": keep} if name else {}
            tail = payload[keep:] if name else payload
            result = self.call("request/prepare", **params, **delta, tail=_array(tail))
        except UnknownState:
            self.resyncs += 1
            result = self.call("request/prepare", **params, tail=_array(payload))
        return Prepared(result=result, array=self._edit(result, payload))

    def _edit(self, result: Any, payload: list[bytes]) -> list[bytes]:
        steps = []
        for edit in result.edits:
            counts = {kind: getattr(edit, kind) for kind in ("keep", "drop", "reuse")}
            steps += [Step(kind=kind, count=count) for kind, count in counts.items() if count]
            if edit.insert:
                texts = msgspec.json.decode(edit.insert, type=list[msgspec.Raw])
                steps.append(Step(kind="insert", texts=tuple(bytes(text) for text in texts)))
        return apply_steps(steps, payload, self.held.get(result.reuse, ()))


@dataclass
class Prepared:
    """An answer of the service, and the array that the client sends."""

    result: Any
    array: list[bytes]
    seq: int = 0

    @property
    def due(self) -> dict[str, str]:
        return {section.name: section.reason for section in self.result.sections}

    def texts(self) -> list[str]:
        return [_shortened(text_of(raw)) for raw in self.array]


def _array(texts: Sequence[bytes]) -> str:
    return "[" + ",".join(text.decode() for text in texts) + "]"
