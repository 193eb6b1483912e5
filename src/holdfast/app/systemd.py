"""Tells whoever started this process how it stands, where they asked to be told: systemd's NOTIFY_SOCKET."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

logger = logging.getLogger("holdfast.app")


def notify(environ: Mapping[str, str], *lines: str) -> bool:
    """Say this, as in `READY=1`; whether there was somebody to say it to. Nothing fails for it."""
    where = environ.get("NOTIFY_SOCKET", "")
    if not where.startswith(("/", "@")):
        return False
    # One that begins with @ is in the abstract namespace.
    address = f"\0{where[1:]}" if where.startswith("@") else where
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as said:
            said.connect(address)
            said.sendall("\n".join(lines).encode())
    except OSError as error:
        logger.warning("NOTIFY_SOCKET could not be told: %s", error)
        return False
    return True


def watchdog(environ: Mapping[str, str]) -> float | None:
    """Seconds between two signs of life, half of those within which one is wanted; None: nobody wants any of this."""
    wanted, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
    if not (wanted.isascii() and wanted.isdigit() and int(wanted)) or process != str(os.getpid()):
        return None
    return int(wanted) / 2_000_000


@asynccontextmanager
async def send_heartbeats(environ: Mapping[str, str]) -> AsyncIterator[None]:
    """Give signs of life to the end of the block. They come from the loop that does all the work: where that stands
    still they do not come, and this process is started again."""
    every = watchdog(environ)
    if every is None:
        yield
        return
    beating = asyncio.create_task(_beat(environ, every))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


async def _beat(environ: Mapping[str, str], every: float) -> None:
    while True:
        notify(environ, "WATCHDOG=1")
        await asyncio.sleep(every)
