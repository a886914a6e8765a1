"""The RPC methods that hold no state: parameters in, results out, over the store and the index."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from retention.answering.desk import Desk, read_list

__all__ = ["METHODS", "Desk", "read_list"]

Method = Callable[[Desk, Any], Any]


def _later(module: str, name: str) -> Method:
    """Return function NAME of MODULE here, which is loaded when it is first called.

    A backend that has just been started has a request to prepare, and needs none of them for it.
    """

    def call(desk: Desk, params: Any) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), name)(desk, params)

    return call


METHODS: dict[str, Method] = {
    method: _later(module, name)
    for method, module, name in (
        ("output/save", "outputs", "save"),
        ("output/score", "outputs", "score"),
        ("output/recall", "outputs", "recall"),
        ("output/search", "outputs", "search"),
        ("output/list", "outputs", "list_outputs"),
        ("receipt/offer", "receipts", "offer"),
        ("receipt/acknowledge", "receipts", "acknowledge"),
        ("evidence/learn", "evidence", "learn"),
        ("evidence/search", "evidence", "search"),
        ("evidence/chunks", "evidence", "chunks"),
        ("evidence/expand", "evidence", "expand"),
        ("evidence/explain", "evidence", "explain"),
        ("evidence/reload", "evidence", "reload"),
        ("evidence/resume", "evidence", "resume"),
        ("evidence/sources", "evidence", "sources"),
        ("settings/change", "evidence", "change_settings"),
        ("inspect/log", "inspection", "show_log"),
        ("inspect/object", "inspection", "show_object"),
        ("inspect/requests", "inspection", "show_requests"),
        ("inspect/explain", "inspection", "explain_requests"),
        ("inspect/check", "inspection", "check"),
    )
}
