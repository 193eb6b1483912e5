"""Count round trips to PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.store.postgres import statements

NOT_COUNTED = ("holdfast-listen", "holdfast-notify")


class Counter:
    """Counts the requests that wait for an answer, in the threads that work on messages.

    The ROLLBACK after a read is not counted: its answer is fetched with the next request of the connection.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        execute = statements.StatementExecutor.execute

        def counted(executor: statements.StatementExecutor, commands: Sequence[Any]) -> list[Any]:
            if not threading.current_thread().name.startswith(NOT_COUNTED):
                self.count += 1
            return execute(executor, commands)

        monkeypatch.setattr(statements.StatementExecutor, "execute", counted)
