"""The installed program and a real terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.acceptance.installation import ROOT, Installed, quietly
from tests.acceptance.tmux import Terminal


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("installed")
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    quietly(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", place, ROOT)
    (wheel,) = place.glob("*.whl")
    quietly(sys.executable, "-m", "venv", place / "venv")
    quietly(place / "venv" / "bin" / "python", *pip, "install", wheel)
    return Installed(wheel, place / "venv" / "bin")


@pytest.fixture
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    made = Terminal(tmp_path_factory.mktemp("tmux") / "socket")
    yield made
    made.tmux("kill-server")
