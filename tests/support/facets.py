"""The public methods of SessionDB and its facets, by the names that callers use."""

from __future__ import annotations

import inspect

from holdfast import SessionDB

_NAMES = ("mail", "contacts", "memory", "permissions", "processes", "blobs", "admin")
with SessionDB(":memory:") as _db:
    FACETS: dict[str, type] = {name: type(getattr(_db, name)) for name in _NAMES}


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def calls() -> set[str]:
    """The name of every public method: `head`, `mail.post` …"""
    found = methods(SessionDB)
    return found | {f"{facet}.{name}" for facet, kind in FACETS.items() for name in methods(kind)}


def method(call: str) -> object:
    facet, _, name = call.rpartition(".")
    return getattr(FACETS[facet] if facet else SessionDB, name)
