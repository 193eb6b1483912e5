"""The program as its users install it: a wheel in a fresh environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 110


class Installed(NamedTuple):
    """A fresh environment with Holdfast in it."""

    wheel: Path
    bin: Path

    def run(self, home: Path, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program of that environment as a user with an empty home directory."""
        return _run(self.bin / str(command[0]), *command[1:], cwd=home, env=self.environment(home, **env))

    def environment(self, home: Path, **env: str) -> dict[str, str]:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8", **env}


def quietly(*command: str | Path) -> str:
    done = _run(*command, cwd=ROOT, env=None)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _run(*command: str | Path, cwd: Path, env: dict[str, str] | None) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "encoding": "utf-8"}
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, timeout=PATIENCE, check=False, **options)
