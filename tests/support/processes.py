"""Track the processes that a test starts, and keep records of background processes in a file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast import process_info, types
from holdfast.tools import base
from holdfast.tools.shell import background
from tests.support.polling import until

NAME = "HOLDFAST_TEST_MARK"
TIED_PROGRAM = """
import asyncio, os, sys
from holdfast.tools.shell import shell

asyncio.run(shell.run_tied(sys.argv[1], sys.argv[2], 600, dict(os.environ)))
"""


class Leash:
    """An environment variable that identifies all processes of a test."""

    def __init__(self) -> None:
        self.mark = f"{NAME}={uuid.uuid4().hex}"
        self.environment = {**os.environ, NAME: self.mark.partition("=")[2]}

    def at_large(self) -> list[str]:
        """Return the command lines of the processes of this test that are running."""
        pids = process_info.find_by_env(self.mark)
        return [line for pid in pids if (line := process_info.read_text(f"/proc/{pid}/cmdline"))]


@contextlib.contextmanager
def leashed() -> Iterator[Leash]:
    """Fail if a process that was started with the environment is left at the end."""
    leash = Leash()
    try:
        yield leash
        until(lambda: not leash.at_large(), "no process is left")
    finally:
        process_info.kill_by_env(leash.mark)


@asynccontextmanager
async def allow_all(_: types.ToolCall, __: base.Act) -> AsyncIterator[None]:
    """Allow every act."""
    yield


class FileProcessStore:
    """Process records in a file that several processes may write to. The first recorded end wins."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        with open(f"{self._path}.lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            read = self._path.read_text("utf-8") if self._path.exists() else ""
            state = json.loads(read) if read else {"rows": [], "notices": []}
            yield state
            # A writer that is killed leaves the old file or the new one.
            Path(f"{self._path}.new").write_text(json.dumps(state), "utf-8")
            os.replace(f"{self._path}.new", self._path)

    async def started(self, process: types.Process) -> None:
        with self._open() as state:
            state["rows"].append(msgspec.to_builtins(process))

    async def ended(self, id: str, state: types.ProcessState, exit_code: int | None, text: str) -> bool:
        with self._open() as found:
            row = next(row for row in found["rows"] if row["id"] == id)
            if row["state"] != "running":
                return False
            row.update(state=state, exit_code=exit_code, ended_at=time.time())
            found["notices"].append(text)
            return True

    def redact(self, id: str) -> None:
        """Remove the command of a process."""
        with self._open() as found:
            next(row for row in found["rows"] if row["id"] == id)["command"] = ""

    async def every(self, conversation_id: str | None, running_only: bool) -> list[types.Process]:
        with self._open() as state:
            rows = msgspec.convert(state["rows"], list[types.Process])
        wanted = [row for row in rows if conversation_id in (None, row.conversation_id)]
        return [row for row in wanted if row.state == "running" or not running_only]

    @property
    def notices(self) -> list[str]:
        with self._open() as state:
            return list(state["notices"])


class BackgroundProgram:
    """A program with background processes of the conversation `talk`."""

    def __init__(self, leash: Leash, folder: Path) -> None:
        self.folder, self.leash = folder, leash
        self.records = FileProcessStore(folder / "records")
        self.processes = background.BackgroundProcesses(
            self.records, str(folder / "home"), lambda: leash.environment, max_processes=4
        )

    async def start(self, command: str, *, input: bool = False) -> types.Process:
        return await self.processes.start("talk", command, str(self.folder), input)

    async def check(self) -> tuple[int, int]:
        """Check all processes once; return how many ran and how many ends were reported."""
        return await background.Watcher(self.processes).check()
