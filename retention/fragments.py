"""Fragments: when a completed response with its results stands for what gptel built of it.  Pure.

A fragment is a round of the log: the ordinary rows that gptel builds, and the actual rows that were
sent and received (rule F1).  Also here: the provider's own message in the loop (rules R1, R2), and
the ids of calls that cannot be replayed (rule F7).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count

import msgspec

from retention.arrays import Item, Read
from retention.digest import Digest, digest, to_hex
from retention.ledger import Log
from retention.model import Face, Identity, Message, PartKind, Reason, Role, Row, RowId, Struct
from retention.providers import Provider, Response

NOT_REPLAYED, NOT_REPAIRED, REPAIRED = "not_replayed", "not_repaired", "repaired"
LOOP_REPAIRED = Reason(code=REPAIRED, detail="in the loop")
Span = tuple[int, int]  # the first and the last element that show a row


class Fragment(Struct, frozen=True):
    """The actual `rows` that stand for the elements FIRST to LAST as the client built them."""

    first: int
    last: int
    round: int
    rows: tuple[Row, ...]


class Rules(Struct, frozen=True):
    """What replay depends on: the provider `identity` by digest and by value, and a reader.

    `check` tells to look whether each text can be read before a fragment is chosen (rule Z3).
    """

    digest: Digest
    identity: Identity
    read: Read
    check: bool = False


def find_fragments(
    spans: Mapping[RowId, Span], owners: Mapping[int, Sequence[RowId]], log: Log, rules: Rules
) -> tuple[dict[int, Fragment], dict[int, str]]:
    """Return the fragments to replay by their first element, and why the others are not, by round.

    SPANS tells where each matched row was found, OWNERS the rows that each element stands for.
    """
    found: dict[int, Fragment] = {}
    obstacles: dict[int, str] = {}
    for round in dict.fromkeys(log.rows[id].round for id in spans):
        if not round or round not in log.actuals:
            continue
        fragment = Fragment(
            first=min(spans[id][0] for id in log.rounds[round] if id in spans),
            last=max(spans[id][1] for id in log.rounds[round] if id in spans),
            round=round,
            rows=tuple(log.rows[id] for id in log.actuals[round]),
        )
        obstacle = _obstacle(fragment, spans, owners, log, rules)
        if obstacle:
            obstacles[round] = obstacle
        else:
            found[fragment.first] = fragment
    return found, obstacles


def _obstacle(
    fragment: Fragment,
    spans: Mapping[RowId, Span],
    owners: Mapping[int, Sequence[RowId]],
    log: Log,
    rules: Rules,
) -> str:
    """Return why FRAGMENT may not be replayed (rules F2, F3), "" if it may."""
    ordinary = log.rounds[fragment.round]
    own = set(ordinary)
    if any(id not in spans for id in ordinary):
        return "edited"
    if any(
        not own.issuperset(owners[n]) or not owners[n]
        for n in range(fragment.first, fragment.last + 1)
    ):
        return "edited"  # something stands in it, or it was made one with what is beside it
    if omits_results(fragment.round, log):
        return "results omitted"
    origin = next((row.origin for row in fragment.rows if row.origin), None)
    if origin is None:
        return "incomplete"
    if origin.identity != rules.digest:
        return differing(rules, origin.identity)
    if rules.check and any(rules.read(row.exact) is None for row in fragment.rows):
        return "damaged"
    return ""


def omits_results(round: int, log: Log) -> bool:
    """Whether the buffer shows other results than were sent, or fewer (rule F3)."""
    results = Counter(
        part for id in log.actuals[round] if log.rows[id].role is Role.TOOL
        for part, _ in log.rows[id].ids
    )  # fmt: skip
    shown = Counter(part for id in log.rounds.get(round, ()) for part in log.rows[id].parts)
    return bool(results - shown)


def differing(rules: Rules, other: Digest) -> str:
    """Return in which respect the identity OTHER, a digest, is not that of RULES."""
    stored = rules.read(other)
    if stored is None:
        return "other provider"
    identity = msgspec.json.decode(stored, type=Identity)
    same = msgspec.structs.replace(identity, model=rules.identity.model, cache=rules.identity.cache)
    if same != rules.identity:
        return "other provider"
    return "other model" if identity.model != rules.identity.model else "other cache policy"


def missing_rounds(
    last: Iterable[Item],
    replayed: Iterable[int],
    obstacles: Mapping[int, str],
    log: Log,
    front: int,
) -> dict[int, str]:
    """Return the rounds among the elements LAST, sent before, that are not in REPLAYED, and why.

    FRONT is the place in the log of the first row that the payload shows.
    """
    done = set(replayed)
    missing: dict[int, str] = {}
    for id in chain.from_iterable(item.ids for item in last):
        row = log.rows.get(id)
        if row is None or row.face is not Face.ACTUAL or not row.round or row.round in done:
            continue
        why = "edited" if front < log.position(row.id) else "filtered"
        if row.round not in log.rounds or omits_results(row.round, log):
            why = "results omitted"
        missing.setdefault(row.round, obstacles.get(row.round, why))
    return missing


# In the loop


class Loop(Struct, frozen=True):
    """The new elements of a round: first the assistant's, then the results, then others."""

    said: list[Message]
    results: list[Message]
    others: list[Message]

    @property
    def all(self) -> list[Message]:
        """All of it in order."""
        return [*self.said, *self.results, *self.others]


def find_response(messages: Sequence[Message]) -> int:
    """Return where the response begins that the last results among MESSAGES belong to."""
    at = max((n + 1 for n, m in enumerate(messages) if m.results), default=0)
    if not at:
        return len(messages)
    while at and messages[at - 1].results:
        at -= 1
    while at and messages[at - 1].role is Role.ASSISTANT:
        at -= 1
    return at


def split_loop(messages: Sequence[Message]) -> Loop:
    """Take MESSAGES, what gptel's loop added, apart."""
    end = next((n for n, m in enumerate(messages) if m.role is not Role.ASSISTANT), len(messages))
    stop = next((n for n in range(end, len(messages)) if not messages[n].results), len(messages))
    return Loop(
        said=list(messages[:end]), results=list(messages[end:stop]), others=list(messages[stop:])
    )


def repair_loop(
    loop: Loop, response: Response | None, provider: Provider, *, hooked: bool, bare: bool
) -> tuple[Loop, Reason | None]:
    """Put the provider's own message in the place of gptel's (R1), or say why it stays (R2).

    HOOKED: a hook changed a call; BARE: reasoning is left out (adapter.md Z6).
    """
    own = [] if response is None else [provider.parse(raw) for raw in response.elements]
    why = _hindrance(loop, response, own, provider, hooked=hooked)
    if why:
        return loop, Reason(code=NOT_REPAIRED, detail=why)
    ordered = provider.order_results(
        [m.raw for m in loop.results], [m.raw for m in loop.said], [m.raw for m in own]
    )
    results = [provider.parse(raw) for raw in ordered]
    return Loop(
        said=strip(own, provider) if bare else own, results=results, others=loop.others
    ), None


def fill_loop(loop: Loop, provider: Provider) -> Loop:
    """Give gptel's own message what the API demands of it (rule G4)."""
    said = [provider.parse(provider.fill(m.raw)) if m.raw else m for m in loop.said]
    return msgspec.structs.replace(loop, said=said)


def _hindrance(
    loop: Loop, response: Response | None, own: list[Message], provider: Provider, *, hooked: bool
) -> str:
    if response is None:
        return "no response recorded"
    if not response.complete:
        return "response incomplete"
    if hooked:
        return "changed by a hook"
    calls = [Counter(_calls(messages)) for messages in (loop.said, own)]
    if calls[0] != calls[1]:
        return "other calls"
    if provider.id_pattern:
        ids = [
            sorted(str(id) for m in messages for id in m.ids) for messages in (loop.results, own)
        ]
        if ids[0] != ids[1]:
            return "other calls"
    return ""


def _calls(messages: Iterable[Message]) -> list[Digest]:
    return [part.digest for m in messages for part in m.parts if part.kind is PartKind.CALL]


def calls_of(response: Response, provider: Provider) -> int:
    """Return how many calls RESPONSE makes."""
    return len(_calls(provider.parse(raw) for raw in response.elements))


def strip(messages: Iterable[Message], provider: Provider) -> list[Message]:
    """Return MESSAGES without reasoning and signatures, which need their text for that."""
    texts = [provider.strip(m.raw) if m.reasoned else m.raw for m in messages]
    return [provider.parse(text) for text in texts if text]


# Ids


class Ids:
    """The ids of calls that go out in an ordinary form (rule F7).

    A recorded id comes back; one that is illegal or not the only one is replaced by one that
    follows from the call and its place.  Results get the ids of their calls.  Those of FRAGMENTS,
    which may stand further down, are theirs.
    """

    def __init__(
        self,
        provider: Provider,
        log: Log,
        built: Sequence[Item],
        fragments: Iterable[Fragment],
    ) -> None:
        self.provider = provider
        self.log = log
        self.built = built  # elements in front, still growing
        self.open: list[tuple[str | None, str]] = []  # of calls without a result: given, new
        self._used = {
            id for fragment in fragments for row in fragment.rows for _, id in row.ids if id
        }
        self._seen = 0
        self._taken: dict[int, Counter[Digest]] = {}

    def assign(self, message: Message, rows: Sequence[RowId]) -> list[str | None]:
        """Return the ids for the calls or results of MESSAGE, which stands for ROWS."""
        if message.role is Role.TOOL:
            return [self._answer(id) for id in message.ids]
        if not self.built or self.built[-1].message.role is Role.USER:
            self.open = []
        new = [self._name(part, id, rows) for part, id in message.named]
        self.open += zip(message.ids, new, strict=True)
        return list(new)

    def _answer(self, given: str | None) -> str | None:
        for n, (old, new) in enumerate(self.open):
            if old == given:
                del self.open[n]
                return new
        return given

    def _name(self, part: Digest, given: str | None, rows: Sequence[RowId]) -> str:
        used = self._gather()
        legal = re.compile(self.provider.id_pattern).fullmatch
        known = (id for id in (self._recorded(part, rows), given) if id is not None and legal(id))
        seeds = (to_hex(digest("part", part + b"%d" % n)) for n in count())
        made = map(self.provider.make_id, seeds)
        id = next(id for id in chain(known, made) if id not in used)
        used.add(id)
        return id

    def _recorded(self, part: Digest, rows: Sequence[RowId]) -> str | None:
        """Return the id that the log has for a call, of equal ones in their order."""
        for row in (self.log.rows[id] for id in rows):
            sources = self.log.actuals.get(row.round, ()) if row.round else (row.id,)
            ids = [
                id for source in sources if self.log.rows[source].role is Role.ASSISTANT
                for digest, id in self.log.rows[source].ids if digest == part
            ]  # fmt: skip
            taken = self._taken.setdefault(row.round or -row.id, Counter())
            if taken[part] < len(ids):
                taken[part] += 1
                return ids[taken[part] - 1]
        return None

    def _gather(self) -> set[str]:
        for item in self.built[self._seen :]:
            self._used.update(id for id in item.message.ids if id is not None)
        self._seen = len(self.built)
        return self._used
