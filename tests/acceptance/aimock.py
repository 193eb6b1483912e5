"""Run npm's @copilotkit/aimock, a provider that journals its requests."""

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
from tests.acceptance.installation import PATIENCE

PACKAGE, VERSION = "@copilotkit/aimock", "1.43.0"
KEY = "the-only-key-it-takes"


class Provider(NamedTuple):
    """The provider while it runs."""

    url: str

    def journal(self, test: str) -> list[dict[str, Any]]:
        """Return the requests made under this test name, in order, with the responses."""
        address = f"{self.url}/__aimock/journal?testId={test}"
        asked = urllib.request.Request(address, headers={"authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            entries: list[dict[str, Any]] = json.load(answer)
        return entries


@contextmanager
def running(fixtures: list[dict[str, Any]], place: Path) -> Iterator[Provider]:
    """Start the provider with these fixtures. Skip the test if it cannot be installed."""
    node, package = npm.installed(PACKAGE, VERSION)
    fixture_file, log = place / "fixtures.json", place / "aimock.log"
    fixture_file.write_text(json.dumps({"fixtures": fixtures}))
    command = [*node.node, str(package / "dist" / "cli.js"), "--port", "0", "--fixtures", str(fixture_file)]
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
    while "listening on " not in (output := log.read_text()):
        assert process.poll() is None, output
        assert time.monotonic() < deadline, output
        time.sleep(0.02)
    return output.partition("listening on ")[2].split()[0]
