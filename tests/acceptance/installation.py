"""The program as its users install it: a wheel in a fresh environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 110


class Installed(NamedTuple):
    """A fresh environment with Holdfast in it."""

    wheel: Path
    bin: Path

    def run(self, home: Path, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program of that environment as a user with an empty home directory."""
        return subprocess.run(
            [self.bin / str(command[0]), *map(str, command[1:])],
            env=self.environment(home, **env),
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )

    def environment(self, home: Path, **env: str) -> dict[str, str]:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8", **env}


def quietly(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
