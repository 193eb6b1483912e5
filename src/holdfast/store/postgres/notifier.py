"""Tells others of what was committed, beside the work: a write never waits for it, and never fails because of it.

A hint after a silence goes at once. Those that follow gather for a moment, and for longer where one write follows the
other: whoever hears of them has enough to look at. Nothing is sent while nobody listens. That is asked once a second,
by whoever has just written, over a connection that has just answered: a thread would need a second one. The question
is given up after a moment, as somebody's receipt waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from holdfast import errors
from holdfast.store import notifications

logger = logging.getLogger("holdfast.store")

LOOK = 1.0
# How long hints gather, and how long after more writes than a few since the last ones were sent.
GATHER, LONGER, FEW = 0.025, 0.1, 2
# So long a store that is being closed waits for its last hints to be sent.
LAST = 1.0

# Listeners share a lock that nobody ever takes alone, but for this moment. Two who ask at once may both hear yes.
ASK = """
SELECT CASE WHEN pg_try_advisory_lock(key) THEN NOT pg_advisory_unlock(key) ELSE true END
  FROM hashtextextended('holdfast listening ' || current_schema(), 0) AS key
"""
# PostgreSQL lets one transaction at a time commit that notifies. This one has nothing the disk must be waited for.
SEND = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, payload)
  FROM unnest(%(payloads)s::text[]) AS payload, concat('holdfast_', hashtextextended(current_schema(), 0)) AS channel
"""


class Notifier:
    """The hints of one driver. `listened` asks whether anybody listens, and answers None when that cannot be asked
    just now; both calls may raise StoreErrors."""

    def __init__(self, listened: Callable[[], bool | None], send: Callable[[list[notifications.Hint]], None]) -> None:
        self._listened, self._send = listened, send
        self._asked: float | None = None
        self._anybody = False
        self._waiting: dict[notifications.Hint, None] = {}  # in the order they came
        self._writes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def tell(self, told: Iterable[notifications.Hint]) -> None:
        """Of what was just committed. Safe from any thread."""
        if not told or not self._wanted():
            return
        with self._changed:
            if self._closing.is_set():
                return
            self._waiting.update(dict.fromkeys(told))
            self._writes += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-notify", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """What waits is sent first."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LAST)

    def _wanted(self) -> bool:
        now = time.monotonic()
        if self._asked is None or now - self._asked >= LOOK:
            before, self._asked = self._asked, now
            try:
                anybody = self._listened()
            except errors.StoreError:
                anybody = self._anybody  # a server that is slow to say so is not asked by every write
            if anybody is None:
                self._asked = before  # the next one asks again; until then it is as it was
            else:
                self._anybody = anybody
        return self._anybody

    def _run(self) -> None:
        while batch := self._taken():
            writes, self._writes = self._writes, 0
            try:
                self._send(batch)
            except errors.StoreError as error:
                logger.info("others were not told of what was written: %s", error)
            # Not woken by each hint that comes meanwhile: the writer would lose the interpreter every time.
            self._closing.wait(GATHER if writes <= FEW else LONGER)

    def _taken(self) -> list[notifications.Hint]:
        """All that waits; nothing when there is no more to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
            batch, self._waiting = self._waiting, {}
            return list(batch)
