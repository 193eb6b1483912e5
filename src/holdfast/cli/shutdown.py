"""Work that ends cleanly when the system asks the program to leave."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

REQUESTS = ("SIGTERM", "SIGHUP")


def run(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of this work; 128 and the number of the signal that ended it, as shells say it."""
    return SignalHandler().run(work)


class SignalHandler:
    """One piece of work, and the signals that ask it to end: they cancel it, or stop what can be stopped."""

    def __init__(self) -> None:
        self._came = list[int]()
        self._stop: Callable[[], object] | None = None

    def run(self, work: Coroutine[Any, Any, int]) -> int:
        """The exit code of the work, or 128 and the number of the signal that ended it."""
        return asyncio.run(self._until_signalled(work))

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Meanwhile the first signal calls this instead, as Ctrl-C does: the work ends by itself and tells of it."""
        self._stop = stop
        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)
        try:
            yield
        finally:
            self._stop = None

    async def _until_signalled(self, work: Coroutine[Any, Any, int]) -> int:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

        def leave(number: int) -> None:
            stop = self._stop if not self._came else None
            self._came.append(number)
            (stop or task.cancel)()

        for name in REQUESTS:
            number = getattr(signal, name, None)
            # Whoever ignores a signal (nohup) has said so for this program, too.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(NotImplementedError):
                    loop.add_signal_handler(number, leave, number)
        try:
            code = await task
        except (asyncio.CancelledError, OSError):
            if not self._came:
                raise
            code = 0  # The terminal may be gone: then nothing can be written any more.
        return 128 + self._came[0] if self._came else code
