"""Run the program in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import SessionDB

PROGRAM = [sys.executable, "-m", "holdfast"]
PATIENCE = 120
OFFLINE = {"HOLDFAST_MODEL": "offline"}

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="this system has no /proc")


class Run(NamedTuple):
    """The result of a run."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The error message of a failed run: one line on standard error, no data, no traceback."""
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.rstrip("\n")

    def failure(self, code: int) -> str:
        """Return the error message of a run that failed with this exit code."""
        assert self.code == code
        return self.sentence

    @property
    def words(self) -> str:
        """Both outputs without line breaks, for sentences that are wrapped."""
        return " ".join((self.out + self.err).split())


Holdfast = Callable[..., Run]
"""The fixture that runs the program: words and `piped` bytes; keywords are variables of the environment."""

Configure = Callable[[str], Path]
"""The fixture that writes the user's settings, and returns the path of the file."""


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build an isolated environment: its own home, a fixed time zone, warnings as errors."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    own = {"HOME": str(home), "TMPDIR": str(home), "TZ": "UTC", "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "error"}
    return {**kept, **own, "HOLDFAST_HOME": str(home / "data"), **(extra or {})}


def start(
    home: Path,
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = PROGRAM,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start the program, in its own process group, without input and with pipes for its output."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=home,
        env=environment(home, env),
        start_new_session=True,
        **{**streams, **options},
    )


def run(
    home: Path,
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    piped: str | None = None,
    command: Sequence[str] = PROGRAM,
    **options: Any,
) -> Run:
    """Run the program, or another command, to its end."""
    if piped is not None:
        options["stdin"] = subprocess.PIPE
    with start(home, *arguments, env=env, command=command, errors="surrogateescape", **options) as process:
        try:
            out, err = process.communicate(piped, PATIENCE)
        finally:
            process.kill()
    return Run(process.returncode, out or "", err or "")


def run_code(home: Path, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
    """Run Python code; the arguments are those of the program, if the code calls it."""
    return run(home, *arguments, env=env, command=[sys.executable, "-c", code])


def read_log(home: Path) -> list[tuple[str, str]]:
    """Return the roles and texts of the only conversation of the default store, and check the store."""
    with SessionDB(home / "data" / "holdfast.db") as db:
        assert db.admin.fsck().ok
        return [(each.role, _text(each.content)) for head in db.list_sessions()[:1] for each in db.transcript(head.id)]


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")
