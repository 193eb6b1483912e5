"""Run asynchronous work that ends cleanly when the process is asked to terminate."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

TERMINATION_SIGNALS = ("SIGTERM", "SIGHUP")


def run(work: Coroutine[Any, Any, int]) -> int:
    """Return the exit code of the work, or 128 plus the number of the signal that ended it."""
    return SignalHandler().run(work)


class SignalHandler:
    """Runs one coroutine. Each signal calls the next stop function that is set; without one, it cancels the work."""

    def __init__(self) -> None:
        self.received = list[int]()
        self._stops = list[Callable[[], object]]()
        self._task: asyncio.Future[int] | None = None

    def run(self, work: Coroutine[Any, Any, int]) -> int:
        """Return the exit code of the work, or 128 plus the number of the signal that ended it."""
        return asyncio.run(self._run(work))

    def set_stops(self, *stops: Callable[[], object]) -> None:
        """Let each signal, also Ctrl-C, call the next of these functions before the work is cancelled."""
        self._stops = list(stops)
        self._handle(signal.SIGINT)

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within the block, the first signal calls `stop` instead of cancelling the work."""
        self.set_stops(stop)
        try:
            yield
        finally:
            self._stops.clear()

    async def _run(self, work: Coroutine[Any, Any, int]) -> int:
        self._task = asyncio.ensure_future(work)
        for name in TERMINATION_SIGNALS:
            number = getattr(signal, name, None)
            # A parent such as nohup may have set a signal to be ignored.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._handle(number)
        try:
            code = await self._task
        except (asyncio.CancelledError, OSError):
            if not self.received:
                raise
            return 128 + self.received[0]  # After SIGHUP the terminal may be closed, and writing to it fails.
        # After Ctrl-C, the work decides: it may have been complete.
        return next((128 + number for number in self.received if number != signal.SIGINT), code)

    def _handle(self, number: int) -> None:
        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        self.received.append(number)
        if self._stops:
            self._stops.pop(0)()
        elif self._task is not None:
            self._task.cancel()
