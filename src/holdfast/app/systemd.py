"""Notify systemd of the state of this process, by the protocol of sd_notify(3)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

logger = logging.getLogger("holdfast.app")


def notify(environ: Mapping[str, str], *lines: str) -> bool:
    """Send lines such as `READY=1` to NOTIFY_SOCKET; returns whether they were sent. Errors are logged."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    # A path that begins with @ is in the abstract namespace.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.connect(address)
            connection.sendall("\n".join(lines).encode())
    except OSError as error:
        logger.warning("cannot send to NOTIFY_SOCKET: %s", error)
        return False
    return True


def watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Return half of the watchdog timeout in seconds; None if no watchdog is configured for this process."""
    wanted, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
    if not (wanted.isascii() and wanted.isdigit() and int(wanted)) or process != str(os.getpid()):
        return None
    return int(wanted) / 2_000_000


@asynccontextmanager
async def send_heartbeats(environ: Mapping[str, str]) -> AsyncIterator[None]:
    """Send watchdog notifications from the event loop within the block, so that systemd restarts a blocked process."""
    interval = watchdog_interval(environ)
    if interval is None:
        yield
        return

    async def send() -> None:
        while True:
            notify(environ, "WATCHDOG=1")
            await asyncio.sleep(interval)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
