"""A provider nobody here wrote: npm's @copilotkit/aimock, as a process of its own, with its journal."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance import npm
from tests.acceptance.conftest import PATIENCE

PACKAGE, VERSION = "@copilotkit/aimock", "1.43.0"
KEY = "the-only-key-it-takes"


class Provider(NamedTuple):
    """The provider while it runs."""

    url: str

    def journal(self, test: str) -> list[dict[str, Any]]:
        """What it was asked under this name, in order, and how it answered."""
        address = f"{self.url}/__aimock/journal?testId={test}"
        asked = urllib.request.Request(address, headers={"authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            entries: list[dict[str, Any]] = json.load(answer)
        return entries


@contextmanager
def running(fixtures: list[dict[str, Any]], place: Path) -> Iterator[Provider]:
    """The provider, answering as the fixtures say. Skips where it cannot be installed."""
    node, package = npm.installed(PACKAGE, VERSION)
    told, log = place / "fixtures.json", place / "aimock.log"
    told.write_text(json.dumps({"fixtures": fixtures}))
    command = [*node.node, str(package / "dist" / "cli.js"), "--port", "0", "--fixtures", str(told)]
    env = {**os.environ, "AIMOCK_API_KEYS": KEY}
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process,
    ):
        try:
            yield Provider(_address(process, log))
        finally:
            process.kill()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while "listening on " not in (told := log.read_text()):
        assert process.poll() is None, told
        assert time.monotonic() < deadline, told
        time.sleep(0.02)
    return told.partition("listening on ")[2].split()[0]
