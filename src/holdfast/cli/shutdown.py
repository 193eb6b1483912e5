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
    """Runs one coroutine. A termination signal cancels it, or calls the current stop function first."""

    def __init__(self) -> None:
        self._received = list[int]()
        self._stop: Callable[[], object] | None = None

    def run(self, work: Coroutine[Any, Any, int]) -> int:
        """Return the exit code of the work, or 128 plus the number of the signal that ended it."""
        return asyncio.run(self._run(work))

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within the block, Ctrl-C and the first termination signal call `stop` instead of cancelling the work."""
        self._stop = stop
        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)
        try:
            yield
        finally:
            self._stop = None

    async def _run(self, work: Coroutine[Any, Any, int]) -> int:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

        def handle(number: int) -> None:
            stop = self._stop if not self._received else None
            self._received.append(number)
            (stop or task.cancel)()

        for name in TERMINATION_SIGNALS:
            number = getattr(signal, name, None)
            # A parent such as nohup may have set a signal to be ignored.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(NotImplementedError):
                    loop.add_signal_handler(number, handle, number)
        try:
            code = await task
        except (asyncio.CancelledError, OSError):
            if not self._received:
                raise
            code = 0  # After SIGHUP the terminal may be closed, and writing to it fails.
        return 128 + self._received[0] if self._received else code
