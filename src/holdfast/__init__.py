"""Holdfast: conversations that last for months, and cannot fork."""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

# Importing typing would take a third of the time of `--version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast import events as events
    from holdfast import model as model
    from holdfast import reports as reports
    from holdfast import types as types
    from holdfast.agent import settings as settings
    from holdfast.agent.agent import AIAgent as AIAgent
    from holdfast.agent.current_session import current_session as current_session
    from holdfast.agent.current_session import current_session_id as current_session_id
    from holdfast.store.async_db import AsyncSessionDB as AsyncSessionDB
    from holdfast.store.db import SessionDB as SessionDB
    from holdfast.tools.decorator import tool as tool
    from holdfast.types import NewConversation as NewConversation
    from holdfast.types import NewMessage as NewMessage

# Imported on first access, so that `holdfast --version` imports none of them.
_LAZY = {
    "AIAgent": "holdfast.agent.agent",
    "AsyncSessionDB": "holdfast.store.async_db",
    "NewConversation": "holdfast.types",
    "NewMessage": "holdfast.types",
    "SessionDB": "holdfast.store.db",
    "current_session": "holdfast.agent.current_session",
    "current_session_id": "holdfast.agent.current_session",
    "tool": "holdfast.tools.decorator",
}
_MODULES = {name: f"holdfast.{name}" for name in ("errors", "events", "model", "reports", "types")}
_MODULES["settings"] = "holdfast.agent.settings"

__all__ = list(_LAZY) + list(_MODULES)


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
