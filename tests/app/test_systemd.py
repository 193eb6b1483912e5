"""Notifications for systemd."""

from __future__ import annotations

import os

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
