"""The one profile of a store, as gateways have it: who runs one with another is told so, and nothing is mixed."""

from __future__ import annotations

from urllib.parse import quote, unquote

from holdfast.store.driver import Tx

KEY = "gateway_profile"


def known(tx: Tx) -> str | None:
    """The profile of this store; None: no gateway has worked on it yet."""
    row = tx.one("meta_get", key=KEY)
    return unquote(str(row[0])) if row else None


def keep(tx: Tx, profile: str) -> str:
    """The profile of this store, which is this one where it had none."""
    tx.one("lock_meta")
    found = known(tx)
    if found is None:
        tx.run("meta_set", key=KEY, value=quote(profile, safe=""))
    return profile if found is None else found
