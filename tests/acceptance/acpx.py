"""npm's acpx, a third-party ACP client for the command line."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.acceptance import npm
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
        return cli_process.start(self.home, *words, env=self._env, command=self._command)

    def run(self, *words: str, code: int = 0) -> str:
        done = cli_process.run(self.home, *words, env=self._env, command=self._command)
        assert done.code == code, done
        return done.out

    def agent(self) -> int:
        """Return the process id of the agent of the session."""
        status = dict(line.split(": ", 1) for line in self.run("status").splitlines() if ": " in line)
        assert status["status"] == "running", status
        return int(status["pid"])
