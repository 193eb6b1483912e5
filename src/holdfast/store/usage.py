"""Token usage of a conversation, and the budget of slow work on it.

Usage is the sum of the counts that replies report. A budget is one JSON object per conversation, so that a limit holds
across processes and restarts. It is deleted with its conversation, and is not exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Driver, Tx

MAX_BUDGET = 64 * 1024 - len('{"spent":}')
"""The longest budget of a caller in bytes as JSON; the stored one has at most 64 KiB."""
UNNAMED = "unknown"


class BudgetBody(msgspec.Struct, frozen=True):
    """A budget as stored in JSON."""

    spent: dict[str, Any]


class UsageMixin:
    """The usage and budget methods of SessionDB."""

    driver: Driver

    def usage(self, session_id: str) -> dict[str, types.Usage]:
        """Return the usage of the conversation by model. This reads all of its messages."""
        rows = self.driver.read(lambda tx: conversation_row.query(tx, "usage_by_model", session_id))
        return {model or UNNAMED: types.Usage(*counts) for model, *counts in rows}

    def budget(self, session_id: str) -> tuple[int, dict[str, Any]]:
        """Return the version and content of the conversation's budget; 0 and {} when nothing was spent."""
        row = self.driver.read(lambda tx: tx.one("budget_get", conversation=conversation_row.read(tx, session_id).key))
        if row is None:
            return 0, {}
        try:
            return row[0], msgspec.json.decode(row[2], type=BudgetBody).spent
        except msgspec.DecodeError:
            raise errors.StoreCorrupt(f"The budget of {session_id} cannot be read.") from None

    def update_budget(self, session_id: str, version: int, body: Mapping[str, Any]) -> bool:
        """Write the budget as version + 1 if its version is still this one; return whether it was written.

        After False nothing has changed: read the budget again, and decide again. The body is a JSON object of up to
        64 KiB, else InvalidArgument.
        """
        validation.check(validation.whole_number(0, 2**63 - 2), version=version)
        budget = BudgetBody(message_codec.check_object(body, "body", MAX_BUDGET))
        text, uid = message_codec.encode_exact(budget, "budget"), message_codec.generate_uid()
        return self.driver.write("budget", lambda tx: put_budget(tx, session_id, version, text, uid))


def put_budget(tx: Tx, session_id: str, version: int, text: str, uid: str) -> bool:
    """Write the budget. The uid was generated before the first attempt: a retry recognises its own row by it."""
    key = conversation_row.lock(tx, session_id).key
    query = "budget_swap" if version else "budget_open"
    if tx.run(query, conversation=key, version=version, uid=uid, body=text) == 1:
        return True
    row = tx.one("budget_get", conversation=key)
    return row is not None and row[:2] == (version + 1, uid)
