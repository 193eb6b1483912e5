"""Hears what others notify of, on a connection and a thread of its own, until it is closed.

A connection that is lost is made again, for as long as it takes. What was sent meanwhile is gone: whoever listens is
told so each time there is a new one, and looks at everything once.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

from holdfast import errors
from holdfast.store import notifications

logger = logging.getLogger("holdfast.store")

SOON, SELDOM = 0.05, 5.0
# A frozen server sends nothing either: after so many silent seconds it is asked for an answer.
HEARTBEAT = 15.0
LAST = 1.0

# Held for as long as the connection lives, by all who listen: so writers know that somebody does.
PRESENT = "SELECT pg_advisory_lock_shared(hashtextextended('holdfast listening ' || current_schema(), 0))"
# A name of any schema fits; md5 is not allowed everywhere.
CHANNEL = "SELECT concat('holdfast_', hashtextextended(current_schema(), 0))"

Translating = Callable[[], AbstractContextManager[None]]


class Listener:
    """Calls `heard` with each hint of somebody else's, on its own thread: what it calls must be quick and not raise.

    `connect` gives a connection that waits for nothing yet; `translating` makes its errors ours.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        translating: Translating,
        own: str,
        heard: Callable[[notifications.Hint], None],
    ) -> None:
        self._connect, self._translating, self._own, self._heard = connect, translating, own, heard
        self._closed = False
        self._guard = threading.Lock()
        self._woken, self._wake = os.pipe()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing is heard from now on. A connection that is just being made is not waited for for long."""
        self._closed = True
        with self._guard:
            if not self._ended:
                os.write(self._wake, b"x")
        self._thread.join(LAST)

    def _run(self) -> None:
        try:
            self._listen()
        finally:
            with self._guard:
                self._ended = True
                os.close(self._woken)
                os.close(self._wake)

    def _listen(self) -> None:
        pause = SOON
        while not self._closed:
            try:
                with self._translating(), closing(self._listening()) as connection:
                    pause = SOON
                    self._hear(connection)
            except errors.StoreError as error:
                # Once for each time it is lost, and not for each attempt.
                if pause == SOON:
                    logger.info("nothing is heard of other writers for now: %s", error)
            with self._waking() as waiting:
                waiting.select(pause)
            pause = min(2 * pause, SELDOM)

    def _listening(self) -> Any:
        connection = self._connect()
        try:
            connection.execute(PRESENT)
            (channel,) = connection.execute(CHANNEL).fetchone()
            connection.execute(f'LISTEN "{channel}"')
        except BaseException:
            connection.close()
            raise
        return connection

    def _hear(self, connection: Any) -> None:
        self._tell(notifications.LOST)
        with self._waking() as both:
            both.register(connection.fileno(), selectors.EVENT_READ)
            while not self._closed:
                for notice in connection.notifies(timeout=0):
                    hint = notifications.read(notice.payload, self._own)
                    if hint is not None:
                        self._tell(hint)
                if not both.select(HEARTBEAT):
                    connection.execute("SELECT 1")

    def _tell(self, hint: notifications.Hint) -> None:
        if not self._closed:
            self._heard(hint)

    def _waking(self) -> selectors.BaseSelector:
        """Waits, and is woken when this is closed."""
        waiting = selectors.DefaultSelector()
        waiting.register(self._woken, selectors.EVENT_READ)
        return waiting
