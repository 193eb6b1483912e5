"""Send and receive PostgreSQL notifications about committed writes, each on a dedicated connection and thread.

NOTIFY inside the writing transaction would serialize all commits of the cluster (docs/decisions/0048), so a background
thread sends it: a write never waits for it and never fails with it. The first notification after a pause is sent at
once; later ones are batched.

The listener reopens a lost connection until it is closed. Notifications sent meanwhile are missed, so each new
connection begins with the hint `lost`: subscribers then re-read everything once.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from typing import Any

from holdfast import errors
from holdfast.store import notifications

logger = logging.getLogger("holdfast.store")

# Seconds between two batches: doubled from the first to the second value while writes continue.
BATCH_INTERVAL, MAX_BATCH_INTERVAL = 0.025, 0.1
# Seconds until the next batch after a failure, so that not every write asks a full server for a connection.
FAILURE_INTERVAL = 1.0
# Seconds between two attempts to reconnect: doubled from the first to the second value.
RECONNECT_INTERVAL, MAX_RECONNECT_INTERVAL = 0.05, 5.0
# Seconds without a notification after which the listener queries the server, which may be frozen.
HEARTBEAT = 15.0
# Seconds that closing a store waits for each of the two threads.
CLOSE_TIMEOUT = 1.0

# The hash of the schema name: a channel name is limited to 63 bytes, and md5 is unavailable in FIPS mode.
_CHANNEL = "concat('holdfast_', hashtextextended(current_schema(), 0))"
SELECT_CHANNEL = f"SELECT {_CHANNEL}"
# This transaction writes nothing, so it need not wait for the disk while it holds the cluster's NOTIFY lock.
_SEND = f"""
SELECT set_config('synchronous_commit', 'off', true), pg_notify({_CHANNEL}, payload)
  FROM unnest(%(payloads)s::text[]) AS payload
"""  # noqa: S608

Connect = Callable[[], Any]
TranslateErrors = Callable[[], AbstractContextManager[None]]


class Notifier:
    """The outgoing notifications of one driver. Safe from any thread.

    `connect` opens a connection; `translate_errors` turns psycopg's errors into StoreErrors.
    """

    def __init__(self, connect: Connect, translate_errors: TranslateErrors) -> None:
        self._connect, self._translate_errors = connect, translate_errors
        self.sender = os.urandom(8).hex()
        """Identifies the driver, which ignores its own notifications."""
        self._connection: Any = None
        self._pending: dict[notifications.Hint, None] = {}  # an ordered set
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def notify(self, hints: Iterable[notifications.Hint]) -> None:
        """Queue notifications about a committed write."""
        if not hints:
            return
        with self._changed:
            if self._closing.is_set():
                return
            self._pending.update(dict.fromkeys(hints))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-notify", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads, or the interpreter shuts down
                    logger.info("could not notify other processes of a write: %s", error)
                    return
                self._thread = thread
            self._changed.notify_all()

    def close(self) -> None:
        """Send the pending notifications, then stop."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        interval = BATCH_INTERVAL / 2  # the first batch is already pending
        while True:
            with self._changed:
                interval = min(2 * interval, MAX_BATCH_INTERVAL) if self._pending else BATCH_INTERVAL
                self._changed.wait_for(lambda: self._pending or self._closing.is_set())
                batch, self._pending = self._pending, {}
            if not batch:
                break
            try:
                with self._translate_errors():
                    self._send(batch)
            except errors.StoreError as error:
                logger.info("could not notify other processes of a write: %s", error)
                interval = FAILURE_INTERVAL
            # Not the condition: waking up for each write would take the interpreter from the writer.
            self._closing.wait(interval)
        if self._connection is not None:
            self._connection.close()

    def _send(self, batch: Iterable[notifications.Hint]) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        self._connection.execute(_SEND, {"payloads": notifications.encode(batch, self.sender)})


class Listener:
    """Calls `handler` on its own thread with each hint of another driver. The handler must be quick and not raise."""

    def __init__(
        self,
        connect: Connect,
        translate_errors: TranslateErrors,
        own_sender: str,
        handler: Callable[[notifications.Hint], None],
    ) -> None:
        self._connect, self._translate_errors = connect, translate_errors
        self._own_sender, self._handler = own_sender, handler
        self._closed = self._ended = False
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. A connection attempt in progress is waited for only briefly."""
        self._closed = True
        with self._lock:
            if not self._ended:
                os.write(self._wake_write, b"x")
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        try:
            self._listen()
        finally:
            with self._lock:
                self._ended = True
                os.close(self._wake_read)
                os.close(self._wake_write)

    def _listen(self) -> None:
        interval = RECONNECT_INTERVAL
        while not self._closed:
            try:
                with self._translate_errors(), closing(self._connect()) as connection:
                    (channel,) = connection.execute(SELECT_CHANNEL).fetchone()
                    connection.execute(f'LISTEN "{channel}"')
                    interval = RECONNECT_INTERVAL
                    self._receive(connection)
            except errors.StoreError as error:
                if interval == RECONNECT_INTERVAL:  # log each loss once, not each attempt
                    logger.info("notifications are interrupted, reconnecting: %s", error)
            with self._wakeable_selector() as selector:
                selector.select(interval)
            interval = min(2 * interval, MAX_RECONNECT_INTERVAL)

    def _receive(self, connection: Any) -> None:
        self._handle(notifications.LOST)
        with self._wakeable_selector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            while not self._closed:
                for notice in connection.notifies(timeout=0):
                    hint = notifications.decode(notice.payload, self._own_sender)
                    if hint is not None:
                        self._handle(hint)
                if not selector.select(HEARTBEAT):
                    connection.execute("SELECT 1")

    def _handle(self, hint: notifications.Hint) -> None:
        if not self._closed:
            self._handler(hint)

    def _wakeable_selector(self) -> selectors.BaseSelector:
        """Return a selector that wakes up when the listener is closed."""
        selector = selectors.DefaultSelector()
        selector.register(self._wake_read, selectors.EVENT_READ)
        return selector
