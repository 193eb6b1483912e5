"""Routes: chat keys that are bound to conversations. A compaction does not change them."""

from __future__ import annotations

from holdfast import errors, types
from holdfast.store import conversation_row
from holdfast.store.driver import Tx


def get(tx: Tx, key: str) -> types.Route:
    """Return a route; version 0 means that it was never bound."""
    row = tx.one("route_get", key=key)
    return types.Route(*row) if row else types.Route(key, None, 0)


def every(tx: Tx, conversation: int | None = None) -> list[types.Route]:
    return [types.Route(*row) for row in tx.all("routes_all", conversation=conversation)]


def bind(tx: Tx, key: str, session_id: str | None, version: int, now: float) -> types.Route:
    """Bind a route by compare-and-swap; raise RouteMoved if its version is not the one the caller read."""
    here = conversation_row.lock(tx, session_id) if session_id is not None else None
    found, bound = get(tx, key), types.Route(key, here.id if here else None, version + 1)
    if found == bound and tx.retry_state.get("route") == bound:
        return bound
    tx.retry_state["route"] = bound
    if found.version != version:
        raise errors.RouteMoved(key, found.conversation_id, found.version)
    target = here.key if here else None
    if found.version == 0:
        tx.run("route_insert", key=key, conversation=target, at=now)
    elif tx.run("route_swap", key=key, conversation=target, version=version, at=now) != 1:
        found = get(tx, key)
        raise errors.RouteMoved(key, found.conversation_id, found.version)
    return bound


def bind_unbound(tx: Tx, key: str, here: conversation_row.State, now: float) -> None:
    """Bind the route of a new conversation; raise RouteMoved if another conversation has it."""
    found = get(tx, key)
    if found.conversation_id is not None:
        raise errors.RouteMoved(key, found.conversation_id, found.version)
    bind(tx, key, here.id, found.version, now)
