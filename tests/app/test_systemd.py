"""Notifications for systemd."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from holdfast.app import systemd


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [("", "", None), ("60000000", "", 30.0), ("60000000", "own", 30.0), ("60000000", "1", None), ("0", "", None),
     ("soon", "", None), ("-1", "", None)],
)  # fmt: skip
def test_watchdog_interval_is_half_of_the_timeout(usec: str, pid: str, expected: float | None) -> None:
    pid = str(os.getpid()) if pid == "own" else pid
    environ = {name: value for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)) if value}
    assert systemd.watchdog_interval(environ) == expected


async def test_heartbeats_end_with_the_block(tmp_path: Path) -> None:
    path = str(tmp_path / "n")
    tasks_before = len(asyncio.all_tasks())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.setblocking(False)
        async with systemd.send_heartbeats({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000"}), asyncio.timeout(60):
            for _ in range(3):
                assert await asyncio.get_running_loop().sock_recv(heard, 100) == b"WATCHDOG=1"
        while True:
            try:
                heard.recv(100)
            except BlockingIOError:
                break
        # No task is left that would send more.
        assert len(asyncio.all_tasks()) == tasks_before


def test_notify_without_a_socket_returns_false(tmp_path: Path) -> None:
    assert not systemd.notify({}, "READY=1")
    assert not systemd.notify({"NOTIFY_SOCKET": "relative"}, "READY=1")
    assert not systemd.notify({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, "READY=1")
