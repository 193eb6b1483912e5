"""Work that ends cleanly when the system asks the program to leave."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

REQUESTS = ("SIGTERM", "SIGHUP")


def run(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of this work; 128 and the number of the signal that ended it, as shells say it."""
    return asyncio.run(_until_signalled(work))


async def _until_signalled(work: Coroutine[Any, Any, int]) -> int:
    loop, task, came = asyncio.get_running_loop(), asyncio.ensure_future(work), list[int]()

    def leave(number: int) -> None:
        came.append(number)
        task.cancel()

    for name in REQUESTS:
        number = getattr(signal, name, None)
        # Whoever ignores a signal (nohup) has said so for this program, too.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, leave, number)
    try:
        return await task
    except (asyncio.CancelledError, OSError):
        if not came:
            raise
        return 128 + came[0]  # The terminal may be gone: then nothing can be written any more.
