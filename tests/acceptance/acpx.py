"""npm's acpx, a third-party ACP client for the command line."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.acceptance import npm
from tests.acceptance.installation import PATIENCE
from tests.support import cli_process

ACPX, NODE = ("acpx", "0.19.1"), (22, 13)
AGENT = shlex.join([*cli_process.PROGRAM, "acp"])


class Client:
    """acpx with a private home, for one folder."""

    def __init__(self, home: Path, env: Mapping[str, str] = cli_process.OFFLINE) -> None:
        node, package = npm.installed(*ACPX, oldest=NODE)
        self.home, self._env = home, env
        self._command = [*node.node, str(package / "dist" / "cli.js"), "--agent", AGENT]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *words],
            cwd=self.home,
            env=cli_process.environment(self.home, self._env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, (out, err)
        return out

    def agent(self) -> int:
        """Return the process id of the agent of the session."""
        status = dict(line.split(": ", 1) for line in self.run("status").splitlines() if ": " in line)
        assert status["status"] == "running", status
        return int(status["pid"])
