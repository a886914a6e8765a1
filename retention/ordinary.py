"""Messages that go out as gptel built them, with what the API needs to take them.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from retention.arrays import Builder, Item, UnheldText
from retention.digest import Digest
from retention.errors import InvalidPayload
from retention.fragments import REPAIRED, Fragment, Ids
from retention.matching import units_of
from retention.model import Message, Reason, Role, Row, RowId
from retention.providers import no_change
from retention.request import NO_EDITS, Request, View


def is_filled(request: Request, view: View) -> bool:
    """Whether the assistant's messages get what the API demands of them once the model reasons."""
    if view.provider.fill is no_change:
        return False
    return view.log.reasoned or view.provider.demands(request.identity)


class Ordinary:
    """Adds elements as gptel built them, with what the API needs to take them (F7, G4)."""

    def __init__(
        self,
        request: Request,
        view: View,
        build: Builder,
        drafts: dict[RowId, Row],
        owners: Mapping[int, Sequence[RowId]],
        *,
        fragments: Iterable[Fragment],
    ) -> None:
        self.request = request
        self.view = view
        self.build = build
        self.drafts = drafts
        self.owners = owners
        self.ids = Ids(view.provider, view.log, build.items, fragments)
        self.filled = is_filled(request, view)

    def add(self, items: list[Item], at: int) -> None:
        """Add element AT of ITEMS; one that was made one with the element before gets its block."""
        item = items[at]
        if self.view.step >= NO_EDITS:
            self.build.append(item)
            return
        message = self._repaired(self._told(item, at), self.owners.get(at, ()))
        if message is not item.message:
            message = msgspec.structs.replace(message, marks=item.message.marks)
            item = msgspec.structs.replace(item, message=message)
        if self.build.join(item):
            block = items[at - 1].block or -at
            items[at - 1 : at + 1] = [
                msgspec.structs.replace(each, block=block) for each in items[at - 1 : at + 1]
            ]
            message = self.build.items[-1].message
            self._note("joined")
        else:
            self.build.append(item)
        draft = self.drafts.get(item.row)
        if draft is not None and message is not items[at].message:
            self.drafts[draft.id] = msgspec.structs.replace(
                draft, exact=message.exact, size=message.size,
                ids=item.message.named, reasoned=message.reasoned,
            )  # fmt: skip

    def _told(self, item: Item, at: int) -> Message:
        """Return the user's message as it was sent, with what gptel put into it (Q6, case S16)."""
        message = item.message
        if message.role is not Role.USER:
            return message
        draft = self.drafts.get(item.row)
        if draft is not None:
            if draft.context is None or not self.request.context:
                return message
            if self._context() != draft.context:
                return message
            prompt = self.request.prompt[-1]  # what it adds stands further up already
            self.drafts[draft.id] = msgspec.structs.replace(
                draft, parts=units_of(prompt), exact=prompt.exact, size=prompt.size, alias=(),
                context=None,
            )  # fmt: skip
            self._note("context stands further up")
            return prompt
        rows = self.owners.get(at, ())
        row = self.view.log.rows[item.row]
        if len(rows) != 1 or not row.alias or units_of(message) != row.alias:
            return message
        if row.context is not None and not self.request.context:
            self.build.reasons.append(Reason(code="context_moved"))
            return message
        raw = self.view.read(row.exact)
        if raw is None:
            return message
        try:
            stored = self.view.provider.parse(raw)
        except InvalidPayload:  # of another API
            return message
        return stored if units_of(stored) == row.parts else message

    def _context(self) -> Digest | None:
        log = self.view.log
        rows = (item.row for item in reversed(self.build.items) if item.row in log.contexts)
        return next((log.rows[id].context for id in rows), None)

    def _repaired(self, message: Message, rows: Sequence[RowId]) -> Message:
        provider = self.view.provider
        if message.ids and provider.id_pattern:
            ids = self.ids.assign(message, rows)
            if ids != list(message.ids):
                message = provider.parse(provider.rename(_text(message), ids))
                self._note("call ids")
        if self.filled and message.role is Role.ASSISTANT:
            raw = _text(message)
            filled = provider.fill(raw)
            if filled != raw:
                message = provider.parse(filled)
                self._note("reasoning added")
        return message

    def _note(self, detail: str) -> None:
        self.build.note(Reason(code=REPAIRED, detail=detail))


def _text(message: Message) -> bytes:
    if not message.raw:
        raise UnheldText
    return message.raw
