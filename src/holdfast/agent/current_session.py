"""The current session: which conversation the running code works for.

A context variable holds the conversation, not a session: the current session is always the head, also after a
compaction. A process that a tool started finds the session in its environment, which is read only if no conversation
was set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast import errors
from holdfast.store import async_db, db, leases

VARIABLE = "HOLDFAST_SESSION_ID"

_current: ContextVar[tuple[str, db.SessionDB] | None] = ContextVar("holdfast_conversation", default=None)


@contextmanager
def current_session(session_id: str, db: db.SessionDB | async_db.AsyncSessionDB) -> Iterator[None]:
    """Make this the current session in the block and in tasks started in it.

    Any session of a conversation can be given; `current_session_id()` returns the head, also after a compaction.
    """
    store = db.db if isinstance(db, async_db.AsyncSessionDB) else db
    try:
        conversation_id = store.snapshot(session_id).conversation_id
    except errors.NoSuchSession:
        conversation_id = session_id
    with enter_conversation(conversation_id, store):
        yield


@contextmanager
def enter_conversation(conversation_id: str, store: db.SessionDB, agent: str = "") -> Iterator[None]:
    """Make this the current conversation in the block; leases acquired in it carry the name `agent`."""
    token, named = _current.set((conversation_id, store)), leases.acting_agent.set(agent)
    try:
        yield
    finally:
        _current.reset(token)
        leases.acting_agent.reset(named)


def current_conversation_id() -> str | None:
    """Return the current conversation, or None."""
    found = _current.get()
    return found[0] if found else None


def current_session_id() -> str | None:
    """Return the head session of the current conversation, or None if there is none."""
    found = _current.get()
    if found is None:
        return os.environ.get(VARIABLE) or None
    conversation_id, store = found
    try:
        return store.head(conversation_id).id
    except errors.NoSuchSession:
        return conversation_id  # the id under which it is created with its first message
