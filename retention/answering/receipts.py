"""The methods for engines that own their history (rules X1, X2)."""

from __future__ import annotations

from retention import handover, receipts
from retention.answering.desk import Desk, read_list
from retention.model import Reminder, Section
from retention.protocol import (
    DeliveredSection,
    ReceiptAcknowledge,
    ReceiptAcknowledged,
    ReceiptOffer,
    ReceiptOffered,
)


def offer(desk: Desk, params: ReceiptOffer) -> ReceiptOffered:
    """Offer what is due as one exact text; all of it stays due until its receipt (X1, X2)."""
    offered = receipts.offer(
        desk.store, params.conversation,
        receipts.Observed(
            sections=read_list(params.sections, Section),
            reminders=read_list(params.reminders, Reminder),
        ),
        receipts.Boundary(kind=params.boundary, limit=params.limit, wrapped=params.wrapped),
        desk.clock(),
    )  # fmt: skip
    text, file = desk.hand(offered.text)
    return ReceiptOffered(
        offer=offered.id, text=text, text_file=file, reminders=offered.reminders,
        sections=tuple(DeliveredSection(name=name, reason=why) for name, why in offered.due),
        waiting=offered.waiting, reasons=offered.reasons,
    )  # fmt: skip


def acknowledge(desk: Desk, params: ReceiptAcknowledge) -> ReceiptAcknowledged:
    """Take an engine's echo of an offer, and answer whether it acknowledges it (X1)."""
    why = receipts.acknowledge(
        desk.store, params.conversation, params.offer,
        handover.read_text(params.text).decode("utf-8", "surrogateescape"),
        ok=params.ok, echo=params.echo,
    )  # fmt: skip
    return ReceiptAcknowledged(accepted=not why, why=why)
