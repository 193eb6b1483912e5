"""A gateway in a separate process, with a Unix socket to talk to it and the notifications that systemd would get."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import cli_process, polling

SETTINGS = "[gateway]\ngrace = 5\n[gateway.http]\nenabled = false\n[gateway.loopback]\nsocket = '../s.sock'\n"


class Gateway:
    """A running gateway."""

    def __init__(self, home: Path, process: subprocess.Popen[str], notifications: socket.socket) -> None:
        self.process, self.path = process, str(home / "s.sock")
        self._notifications = notifications

    def notification(self) -> str:
        """Return the first line of the next message to systemd."""
        return self._notifications.recv(4096).decode().partition("\n")[0]

    @contextmanager
    def connect(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(cli_process.PATIENCE)
            polling.until(lambda: connection.connect_ex(self.path) == 0)
            yield connection

    def ask(self, text: str, **more: str) -> str:
        """Send a message, and return the reply to it."""
        with self.connect() as connection, connection.makefile("rb") as lines:
            connection.sendall(json.dumps({"text": text, **more}).encode() + b"\n")
            taken = None
            for line in lines:
                found: dict[str, Any] = json.loads(line)
                taken = found["arrival"] if found["type"] == "taken" else taken
                # A reply that was sent but not marked as sent before a crash is sent again.
                if found["type"] == "reply" and found["arrival"] == taken:
                    return str(found["text"])
        raise AssertionError("there was no reply")

    def stop(self, number: int) -> tuple[int, list[str]]:
        """Send a signal; return the exit code and the lines of the log."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=cli_process.PATIENCE)
        return self.process.returncode, err.splitlines()


@contextmanager
def start(home: Path, *arguments: str, **env: str) -> Iterator[Gateway]:
    """Start a gateway, wait until it is ready, and kill it afterwards if it still runs."""
    path = home / "notify"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(path))
        notifications.settimeout(cli_process.PATIENCE)
        given = {**cli_process.OFFLINE, "NOTIFY_SOCKET": str(path), **env}
        with cli_process.start(home, "gateway", *arguments, env=given) as process:
            try:
                gateway = Gateway(home, process, notifications)
                while gateway.notification() != "READY=1":
                    pass
                yield gateway
            finally:
                process.kill()
