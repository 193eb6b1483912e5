"""The public methods of SessionDB and its facets, by the names that callers use."""

from __future__ import annotations

import inspect

from holdfast import SessionDB
from holdfast.store.admin import Admin
from holdfast.store.blobs.blobs import Blobs
from holdfast.store.mail.contacts import Contacts
from holdfast.store.mail.mail import Mail
from holdfast.store.records.memory import Memories
from holdfast.store.records.permissions import PermissionRecords
from holdfast.store.records.processes import ProcessLog

FACETS: dict[str, type] = {
    "mail": Mail,
    "contacts": Contacts,
    "memory": Memories,
    "permissions": PermissionRecords,
    "processes": ProcessLog,
    "blobs": Blobs,
    "admin": Admin,
}


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def calls() -> set[str]:
    """The name of every public method: `head`, `mail.post` …"""
    found = methods(SessionDB)
    return found | {f"{facet}.{name}" for facet, kind in FACETS.items() for name in methods(kind)}


def method(call: str) -> object:
    facet, _, name = call.rpartition(".")
    return getattr(FACETS[facet] if facet else SessionDB, name)
