"""Budgets: what slow work on a conversation has used up, kept where every process sees it.

One row a conversation, and what it says is its spender's business: any JSON object. Whoever spends says
which version they read, and of two who read the same one wins. So a limit holds across processes and after
a restart. It is no part of the conversation: it goes with it, and is not exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast import errors
from holdfast.store import conversation_row, message_codec
from holdfast.store.driver import Driver, Tx

MAX_BUDGET = 64 * 1024


class Body(msgspec.Struct, frozen=True):
    """What is stored of a budget, as JSON."""

    spent: dict[str, Any]


class Budgets:
    """The part of SessionDB that remembers what was spent."""

    driver: Driver

    def budget(self, session_id: str) -> tuple[int, dict[str, Any]]:
        """What was spent on the conversation, and the version to give to `spend`; 0 and {} when nothing was."""
        return self.driver.read(lambda tx: get(tx, session_id))

    def spend(self, session_id: str, version: int, body: Mapping[str, Any]) -> bool:
        """Write what is spent now, if nobody did since this version; whether it was written (as version + 1).

        False changed nothing: read again, and decide again. The body is a JSON object of up to 64 KB, else
        MessageInvalid.
        """
        _checked_version(version)
        text, uid = encoded(body), message_codec.mint_uid()
        return self.driver.write("budget", lambda tx: put(tx, session_id, version, text, uid))


def get(tx: Tx, session_id: str) -> tuple[int, dict[str, Any]]:
    here = conversation_row.look(tx, session_id)
    row = tx.one("budget_get", conversation=here.key)
    if row is None:
        return 0, {}
    try:
        return row[0], msgspec.json.decode(row[2], type=Body).spent
    except msgspec.DecodeError:
        raise errors.StoreCorrupt(f"The budget of conversation {here.id} cannot be read.") from None


def put(tx: Tx, session_id: str, version: int, text: str, uid: str) -> bool:
    """The uid is minted before the first attempt: a repeated one finds that it was the faster itself."""
    key = conversation_row.lock(tx, session_id).key
    query = "budget_swap" if version else "budget_open"
    if tx.run(query, conversation=key, version=version, uid=uid, body=text) == 1:
        return True
    row = tx.one("budget_get", conversation=key)
    return row is not None and row[:2] == (version + 1, uid)


def encoded(body: object) -> str:
    if not isinstance(body, Mapping):
        raise errors.MessageInvalid("A budget is an object.")
    text = message_codec.exact(Body(dict(body)), "budget")
    if len(text.encode()) > MAX_BUDGET:
        raise errors.MessageInvalid(f"The budget has {len(text.encode()):,} bytes; at most {MAX_BUDGET:,} are kept.")
    return text


def _checked_version(version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63 - 1:
        raise errors.InvalidArgument("The version of a budget is a whole number, from 0 on.")
