"""The real program in a process of its own, begun by a process that has loaded it already.

Starting Python and loading the program takes five times as long as most of what the tests ask of it. The one that
waits here has loaded what every command and a message need, opened nothing, and forks for every run; what one command
alone needs is loaded by the child. The child becomes the program: with its own words, environment, folder and files,
and an end of its own.
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
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from tests.support import cli_process

ROOT = Path(__file__).parents[2]
LOADED = (
    "holdfast.cli.program",
    "holdfast.store.db",
    "holdfast.cli.one_shot",
    "holdfast.app.compose",
    "holdfast.model.offline",
)
# What Python looks at once, when it starts: whoever sets one of these needs a Python of its own.
EARLY = ("PYTHON", "LC_", "LANG", "LD_", "PATH")


def needs_python(env: Mapping[str, str] | None) -> bool:
    """Whether only a process that Python itself has just started does what it would with these."""
    return any(name.startswith(EARLY) for name in env or ())


class Server:
    """The tests' end of it."""

    def __init__(self, *more: str) -> None:
        self._more = more  # modules that are loaded beside what all need

    def __enter__(self) -> Self:
        command, env = [sys.executable, "-m", "tests.support.cli_zygote", *self._more], cli_process.environment(ROOT)
        self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=cli_process.PATIENCE)

    def run(self, home: Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> cli_process.Run:
        if needs_python(env):
            return cli_process.run(home, *arguments, env=env)
        code, out, err = self.pipe(home, *map(str, arguments), env=env)
        return cli_process.Run(code, out.decode(), err.decode())

    def pipe(
        self, home: Path, *arguments: str | bytes, piped: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, bytes]:
        """As a shell would run it: words may be any bytes, and so may be what is piped in and what comes out."""
        words = [os.fsdecode(each) for each in arguments]
        with tempfile.TemporaryDirectory() as folder:
            if piped is not None:
                Path(folder, "in").write_bytes(piped)
            given = os.devnull if piped is None else f"{folder}/in"
            order = {"words": words, "env": cli_process.environment(home, env), "home": str(home)}
            code = self._ask({**order, "files": [given, f"{folder}/out", f"{folder}/err"]})
            return code, Path(folder, "out").read_bytes(), Path(folder, "err").read_bytes()

    def sit(self, home: Path, *arguments: str, terminal: str, env: Mapping[str, str]) -> Sitting:
        """The program on a terminal, which nobody waits for yet."""
        order = {"words": arguments, "env": cli_process.environment(home, env), "home": str(home), "terminal": terminal}
        return Sitting(self, self._ask(order))

    def wait(self, pid: int) -> int:
        return self._ask({"wait": pid})

    def _ask(self, order: dict[str, Any]) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, "the process that had the program ready is gone"
        return int(answer)


class Sitting:
    """A program somebody sits before."""

    def __init__(self, server: Server, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, or the signal that ended it, as a negative number."""
        if self._code is None:
            self._code = self._server.wait(self.pid)
        return self._code


@functools.cache
def sitting_room() -> Server:
    """The one that has the chat loaded, for all tests of this process."""
    server = Server("holdfast.chat.chat").__enter__()
    atexit.register(server.__exit__)
    return server


# --- in the process that waits -------------------------------------------------------------------------


def _order(asked: IO[bytes], answered: IO[bytes]) -> dict[str, Any] | None:
    """In a child: what it is to do. In the one that waits: None, when nobody asks any more."""
    for line in asked:
        order: dict[str, Any] = json.loads(line)
        # Opened here: a terminal that nobody has open, if only for a moment, is gone for whoever reads from it.
        terminal = os.open(order["terminal"], os.O_RDWR | os.O_NOCTTY) if "terminal" in order else None
        pid = order.get("wait") or os.fork()
        if pid == 0:
            return {**order, "terminal": terminal}
        if terminal is not None:
            os.close(terminal)
        answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if terminal is None else pid
        answered.write(b"%d\n" % answer)
        answered.flush()
    return None


def _become(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["home"])
    signal.alarm(3 * cli_process.PATIENCE)  # whoever never ends is ended
    if order["terminal"] is not None:
        _sit_down(order["terminal"])
    else:
        for fd, path in enumerate(order["files"]):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT if fd else os.O_RDONLY, 0o600)
            os.dup2(opened, fd)
            os.close(opened)
    sys.argv = [str(Path(importlib.import_module("holdfast").__file__ or "").with_name("__main__.py")), *order["words"]]


def _sit_down(terminal: int) -> None:
    os.setsid()
    for fd in range(3):
        os.dup2(terminal, fd)
    os.close(terminal)
    # As Python makes them where it starts on a terminal: what is printed is seen line by line.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _serve() -> None:
    # The standard files are the program's: what is asked and answered here goes elsewhere.
    with os.fdopen(os.dup(0), "rb") as asked, os.fdopen(os.dup(1), "wb") as answered:
        cli = importlib.import_module("holdfast.cli")
        for name in (*LOADED, *sys.argv[1:]):
            importlib.import_module(name)
        # A collection in a child would copy every page it shares with this one.
        gc.freeze()
        order = _order(asked, answered)
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
    """As Python ends, but for taking apart all it has loaded: that would copy every page, for nobody."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # what was left open is said, as it would be
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    importlib.import_module("tests.support.cli_zygote")._serve()
