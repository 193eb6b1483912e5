"""Start the program on a terminal by forking a process that has loaded it already.

Starting Python and loading the program takes longer than most tests of the chat. The zygote has loaded the modules of
the chat, opened nothing, and forks for every run. The child becomes the program, with its own arguments, environment,
folder and terminal.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tests.support import cli_process

ROOT = Path(__file__).parents[2]
LOADED = ("holdfast.cli.program", "holdfast.chat.chat", "holdfast.app.compose", "holdfast.model.openai.adapter")
# Python reads these variables when it starts: they need a new interpreter.
EARLY = ("PYTHON", "LC_", "LANG", "LD_", "PATH")


def needs_python(env: Mapping[str, str]) -> bool:
    """Return whether only a new interpreter would notice these variables."""
    return any(name.startswith(EARLY) for name in env)


class Zygote:
    """The client of the process that forks."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.cli_zygote"]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, env=cli_process.environment(ROOT), **streams)  # type: ignore[call-overload]

    def close(self) -> None:
        self._process.communicate(timeout=cli_process.PATIENCE)

    def fork(self, home: Path, *arguments: str, terminal: str, env: Mapping[str, str]) -> Child:
        """Start the program on the terminal of this name."""
        order = {"words": arguments, "env": cli_process.environment(home, env), "home": str(home), "terminal": terminal}
        return Child(self, self.ask(order))

    def ask(self, order: dict[str, Any]) -> int:
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the zygote has ended"
        return int(answer)


class Child:
    """A forked program."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.pid = pid
        self._zygote = zygote
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Return its exit code, or the negative number of the signal that ended it."""
        if self._code is None:
            self._code = self._zygote.ask({"wait": self.pid})
        return self._code


@functools.cache
def zygote() -> Zygote:
    """Return the zygote of this process."""
    started = Zygote()
    atexit.register(started.close)
    return started


# --- in the zygote ---------------------------------------------------------------------------------------


def _next_order(orders: IO[bytes], answers: IO[bytes]) -> dict[str, Any] | None:
    """Return the order in a child; in the zygote, return None when the client has closed the pipe."""
    for line in orders:
        order: dict[str, Any] = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            # Opened before the fork: a terminal without an open descriptor reports its end to the reader.
            terminal = os.open(order["terminal"], os.O_RDWR | os.O_NOCTTY)
            if not (answer := os.fork()):
                return {**order, "terminal": terminal}
            os.close(terminal)
        answers.write(b"%d\n" % answer)
        answers.flush()
    return None


def _become(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["home"])
    signal.alarm(3 * cli_process.PATIENCE)
    os.setsid()
    for fd in range(3):
        os.dup2(order["terminal"], fd)
    os.close(order["terminal"])
    # Python opens its streams in the same way when it starts on a terminal.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [str(Path(importlib.import_module("holdfast").__file__ or "").with_name("__main__.py")), *order["words"]]


def _serve() -> None:
    # The standard streams belong to the program.
    with os.fdopen(os.dup(0), "rb") as orders, os.fdopen(os.dup(1), "wb") as answers:
        cli = importlib.import_module("holdfast.cli")
        for name in LOADED:
            importlib.import_module(name)
        # A collection in a child would copy every shared page.
        gc.freeze()
        order = _next_order(orders, answers)
    if order is not None:
        _become(order)
        code = 0
        try:
            cli.main()
        except SystemExit as left:
            if isinstance(left.code, str):
                raise
            code = left.code or 0
        _end(code)


def _end(code: int) -> None:
    """End as Python does, but without tearing down the modules, which would copy every shared page."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # Reports files and connections that were left open.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    importlib.import_module("tests.support.cli_zygote")._serve()
