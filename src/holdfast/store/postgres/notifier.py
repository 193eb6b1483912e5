"""Send NOTIFY for committed writes from a background thread: a write never waits for it and never fails with it.

NOTIFY inside the writing transaction would serialize all commits of the cluster (docs/decisions/0048). The first
notification after a pause is sent at once; later ones are batched.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from holdfast import errors
from holdfast.store import notifications

logger = logging.getLogger("holdfast.store")

# Seconds between two batches: doubled from the first to the second value while writes go on.
INTERVAL, MAX_INTERVAL = 0.025, 0.1
# After a failure: a server without a free connection is not asked for one with every write.
RETRY_INTERVAL = 1.0
# Seconds that closing a store waits for its last notifications.
CLOSE_TIMEOUT = 1.0

# The hash of the schema name: a channel name is limited to 63 bytes, and md5 is unavailable in FIPS mode.
CHANNEL = "concat('holdfast_', hashtextextended(current_schema(), 0))"
# This transaction writes nothing, so it need not wait for the disk while it holds the cluster's NOTIFY lock.
_SEND = f"""
SELECT set_config('synchronous_commit', 'off', true), pg_notify({CHANNEL}, payload)
  FROM unnest(%(payloads)s::text[]) AS payload
"""  # noqa: S608

Connect = Callable[[], Any]
Translating = Callable[[], AbstractContextManager[None]]


class Notifier:
    """The outgoing notifications of one driver, on a connection of its own. Safe from any thread.

    `connect` opens a connection; `translating` turns psycopg's errors into StoreErrors.
    """

    def __init__(self, connect: Connect, translating: Translating) -> None:
        self._connect, self._translating = connect, translating
        self.sender = os.urandom(8).hex()
        """Identifies the driver, so that it can ignore its own notifications."""
        self._connection: Any = None
        self._pending: dict[notifications.Hint, None] = {}  # an ordered set
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def notify(self, hints: Iterable[notifications.Hint]) -> None:
        """Queue notifications about a write that was just committed."""
        if not hints:
            return
        with self._changed:
            if self._closing.is_set():
                return
            self._pending.update(dict.fromkeys(hints))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-notify", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Send what is pending, then stop."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        pause = INTERVAL / 2  # the first batch is already pending
        while True:
            with self._changed:
                pause = min(2 * pause, MAX_INTERVAL) if self._pending else INTERVAL
                self._changed.wait_for(lambda: self._pending or self._closing.is_set())
                batch, self._pending = self._pending, {}
            if not batch:
                break
            try:
                with self._translating():
                    self._send(batch)
            except errors.StoreError as error:
                logger.info("could not notify other processes of a write: %s", error)
                pause = RETRY_INTERVAL
            # A sleep, not the condition: waking up for each write would take the interpreter from the writer.
            self._closing.wait(pause)
        if self._connection is not None:
            self._connection.close()

    def _send(self, batch: Iterable[notifications.Hint]) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        self._connection.execute(_SEND, {"payloads": notifications.encode(batch, self.sender)})
