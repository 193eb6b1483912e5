"""Receive the notifications of other drivers on a dedicated connection and thread.

A lost connection is reopened, for as long as it takes. Notifications sent meanwhile are gone, so each new connection
begins with the hint `lost`: subscribers then re-read everything once.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from holdfast import errors
from holdfast.store import notifications
from holdfast.store.postgres import notifier

logger = logging.getLogger("holdfast.store")

# Seconds between two connection attempts: doubled from the first to the second value.
RETRY, MAX_RETRY = 0.05, 5.0
# A frozen server is silent too: after this many seconds without a notification it is queried.
HEARTBEAT = 15.0
CLOSE_TIMEOUT = 1.0

CHANNEL = f"SELECT {notifier.CHANNEL}"


class Listener:
    """Calls `handler` on its own thread with each hint of another driver. The handler must be quick and not raise."""

    def __init__(
        self,
        connect: notifier.Connect,
        translating: notifier.Translating,
        own_sender: str,
        handler: Callable[[notifications.Hint], None],
    ) -> None:
        self._connect, self._translating = connect, translating
        self._own_sender, self._handler = own_sender, handler
        self._closed = self._ended = False
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. A connection attempt under way is waited for only briefly."""
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
        pause = RETRY
        while not self._closed:
            try:
                with self._translating(), closing(self._open()) as connection:
                    pause = RETRY
                    self._receive(connection)
            except errors.StoreError as error:
                if pause == RETRY:  # log each loss once, not each attempt
                    logger.info("notifications are interrupted, reconnecting: %s", error)
            with self._selector() as selector:
                selector.select(pause)
            pause = min(2 * pause, MAX_RETRY)

    def _open(self) -> Any:
        connection = self._connect()
        try:
            (channel,) = connection.execute(CHANNEL).fetchone()
            connection.execute(f'LISTEN "{channel}"')
        except BaseException:
            connection.close()
            raise
        return connection

    def _receive(self, connection: Any) -> None:
        self._handle(notifications.LOST)
        with self._selector() as selector:
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

    def _selector(self) -> selectors.BaseSelector:
        """Return a selector that wakes up when the listener is closed."""
        selector = selectors.DefaultSelector()
        selector.register(self._wake_read, selectors.EVENT_READ)
        return selector
