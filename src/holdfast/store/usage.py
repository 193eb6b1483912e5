"""What a conversation has used, added up from its messages: each reply says what it cost to make."""

from __future__ import annotations

from holdfast import types
from holdfast.store import conversation_row
from holdfast.store.driver import Driver, Tx

UNNAMED = "unknown"


class Accounts:
    """The part of SessionDB that adds up."""

    driver: Driver

    def usage(self, session_id: str) -> dict[str, types.Usage]:
        """What the conversation's own messages used, by model. It reads them all: ask when somebody asks."""
        return self.driver.read(lambda tx: _usage(tx, session_id))


def _usage(tx: Tx, session_id: str) -> dict[str, types.Usage]:
    rows = tx.all("usage_by_model", conversation=conversation_row.look(tx, session_id).key)
    return {model or UNNAMED: types.Usage(*counts) for model, *counts in rows}
