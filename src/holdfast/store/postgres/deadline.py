"""A client-side deadline for every round trip to a PostgreSQL server.

A frozen server, or a proxy whose backend is gone, keeps its connections open: the kernel still acknowledges TCP
keepalives, and statement_timeout is enforced by the server itself. Only the client can end such a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

# An answer may have been on its way while the server was asked.
GRACE = 1.0

Work = Generator[Any, Any, Any]


class Deadline:
    """Replaces the `wait` method of one psycopg connection, through which all its round trips go.

    After `silence` seconds without a byte in either direction, `is_working` asks the server whether it still executes
    the statement. If it does not, or after `total` seconds in any case, `expire` closes the connection and returns the
    error to raise. The outcome of the statement is unknown then.
    """

    def __init__(
        self,
        wait: Callable[..., Any],
        silence: float,
        total: float,
        *,
        is_working: Callable[[], bool],
        expire: Callable[[], Exception],
    ) -> None:
        self._wait, self._is_working, self._expire = wait, is_working, expire
        self.silence, self.total = silence, total

    def __call__(self, work: Work, *args: Any, **options: Any) -> Any:
        return self._wait(self._bound(work), *args, **options)

    def _bound(self, work: Work) -> Work:
        """Resume `work` like psycopg's loop does. The loop sends a false value when nothing happened for a moment;
        C versions of it before psycopg 3.2.13 claim that there is something to read."""
        quiet_until = end = 0.0
        doubted = False
        try:
            wants = next(work)
            while True:
                ready = yield wants
                if ready:
                    quiet_until = 0.0
                else:
                    now = time.monotonic()
                    end = end or now + self.total
                    if not quiet_until:
                        quiet_until, doubted = now + self.silence, False
                    elif now > end or (now > quiet_until and doubted):
                        raise self._expire()
                    elif now > quiet_until:
                        doubted = not self._is_working()
                        quiet_until = time.monotonic() + (GRACE if doubted else self.silence)
                wants = work.send(ready)
        except StopIteration as done:
            return done.value
