"""The real program in a process of its own, begun by a process that has loaded it already.

Starting Python and loading the program takes five times as long as most of what the tests ask of it. The one that
waits here has loaded what every command needs, opened nothing, and forks for every run; what one command alone needs
is loaded by the child. The child becomes the program: with its own words, environment, folder and files, and an end
of its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from tests.cli import program

ROOT = Path(__file__).parents[2]
# What Python looks at once, when it starts: whoever sets one of these needs a Python of its own.
EARLY = ("PYTHON", "LC_", "LANG", "LD_", "PATH")


class Server:
    """The tests' end of it."""

    def __enter__(self) -> Self:
        command, env = [sys.executable, "-m", "tests.cli.ready"], program.environment(ROOT)
        self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=program.PATIENCE)

    def run(self, home: Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> program.Run:
        if any(name.startswith(EARLY) for name in env or ()):
            return program.run(home, *arguments, env=env)
        words = [str(each) for each in arguments]
        with tempfile.TemporaryDirectory() as folder:
            order = {"words": words, "env": program.environment(home, env), "home": str(home), "folder": folder}
            code = self._ask(order)
            out, err = (Path(folder, name).read_text(encoding="utf-8") for name in ("out", "err"))
        return program.Run(code, out, err)

    def _ask(self, order: dict[str, Any]) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, "the process that had the program ready is gone"
        return int(answer)


# --- in the process that waits -------------------------------------------------------------------------


def _order(asked: IO[bytes], answered: IO[bytes]) -> dict[str, Any] | None:
    """In a child: what it is to do. In the one that waits: None, when nobody asks any more."""
    for line in asked:
        pid = os.fork()
        if pid == 0:
            return dict(json.loads(line))
        answered.write(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        answered.flush()
    return None


def _become(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["home"])
    signal.alarm(program.PATIENCE)  # whoever never ends is ended
    for fd, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, f"{order['folder']}/out", os.O_WRONLY | os.O_CREAT),
        (2, f"{order['folder']}/err", os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv = [str(Path(importlib.import_module("holdfast").__file__ or "").with_name("__main__.py")), *order["words"]]


def _serve() -> None:
    # The standard files are the program's: what is asked and answered here goes elsewhere.
    with os.fdopen(os.dup(0), "rb") as asked, os.fdopen(os.dup(1), "wb") as answered:
        cli = importlib.import_module("holdfast.cli")
        importlib.import_module("holdfast.cli.program")
        importlib.import_module("holdfast.store.db")
        # A collection in a child would copy every page it shares with this one.
        gc.freeze()
        order = _order(asked, answered)
    if order is not None:
        _become(order)
        cli.main()


if __name__ == "__main__":
    importlib.import_module("tests.cli.ready")._serve()
