"""Two hosts that have one PostgreSQL store open, and calls of one that wait for a write of the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from holdfast import NewMessage, SessionDB
from holdfast.store import log
from holdfast.store.driver import Tx
from tests.support import conversations, polling, postgres


def is_waiting(name: str) -> bool:
    """Whether a client with this application name waits for a lock."""
    blocked = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND cardinality(pg_blocking_pids(pid)) > 0"
    return postgres.admin().execute(blocked, (name,)).fetchone() is not None


class Pair:
    """Two hosts that have the same store open."""

    def __init__(self, address: str) -> None:
        self.clock = conversations.Clock()
        self.name = f"w{id(self)}"
        self.one = SessionDB(address, clock=self.clock)
        self.other = SessionDB(f"{address}&application_name={self.name}", clock=self.clock)

    def meanwhile(self, change: Callable[[Tx], object], call: Callable[[], Any]) -> Any:
        """Return the result or error of a call of the other host that has to wait until the change is committed."""
        with ThreadPoolExecutor(1) as pool:

            def step(tx: Tx) -> Future[Any]:
                tx.shared = True  # The change does not end the transaction.
                change(tx)
                future = pool.submit(call)
                polling.until(lambda: is_waiting(self.name), "the call waits for the change")
                return future

            future = self.one.driver.write("test", step)
            error = future.exception(60)
            return future.result() if error is None else error

    def close(self) -> None:
        assert self.one.admin.fsck().ok
        self.one.close()
        self.other.close()


def append(db: SessionDB, session_id: str, text: str, **more: Any) -> Callable[[Tx], object]:
    return log.AppendRequest(session_id, [NewMessage(role="user", content=text, **more)], time.time())


def full_message(error: BaseException | None) -> str:
    """Return the messages of an error and of its causes."""
    return f"{error}\n{full_message(error.__cause__ or error.__context__)}" if error is not None else ""


def terminate(name: str) -> None:
    """End the sessions of a host on the server, by its application name, without a message to the client."""
    sql = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s"
    postgres.admin().execute(sql, (name,))
