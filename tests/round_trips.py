"""Count round trips to PostgreSQL."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

NOT_COUNTED = ("holdfast-listen", "holdfast-notify")


class Counter:
    """Counts the waits for a server, in the threads that work on messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        wait = psycopg.Connection.wait

        def counted(connection: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._has_result(connection) and not threading.current_thread().name.startswith(NOT_COUNTED):
                self.count += 1
            return wait(connection, *args, **kwargs)

        monkeypatch.setattr(psycopg.Connection, "wait", counted)

    def _has_result(self, connection: Any) -> bool:
        """Whether the result has arrived already: that of a ROLLBACK which the last transaction did not wait for."""
        server = connection.pgconn
        if server.pipeline_status or server.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
            return False
        server.consume_input()
        return not server.is_busy()
