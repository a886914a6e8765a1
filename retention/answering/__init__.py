"""The RPC methods that hold no state: parameters in, results out, over the store and the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retention.answering import evidence, inspection, outputs, receipts
from retention.answering.desk import Desk, read_list

__all__ = ["METHODS", "Desk", "read_list"]

METHODS: dict[str, Callable[[Desk, Any], Any]] = {
    "output/save": outputs.save,
    "output/score": outputs.score,
    "output/recall": outputs.recall,
    "output/search": outputs.search,
    "output/list": outputs.list_outputs,
    "receipt/offer": receipts.offer,
    "receipt/acknowledge": receipts.acknowledge,
    "evidence/learn": evidence.learn,
    "evidence/search": evidence.search,
    "evidence/chunks": evidence.chunks,
    "evidence/expand": evidence.expand,
    "evidence/explain": evidence.explain,
    "evidence/reload": evidence.reload,
    "evidence/resume": evidence.resume,
    "evidence/sources": evidence.sources,
    "settings/change": evidence.change_settings,
    "inspect/log": inspection.show_log,
    "inspect/object": inspection.show_object,
    "inspect/requests": inspection.show_requests,
    "inspect/explain": inspection.explain_requests,
    "inspect/check": inspection.check,
}
