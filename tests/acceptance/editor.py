"""An ACP client that starts `holdfast acp` and checks every line of its output against the protocol."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.acceptance.installation import PATIENCE
from tests.support import acp_editor, cli_process

MAX_LINE_BYTES = 1 << 26


class ProcessEditor(acp_editor.Editor):
    """The client of one agent process."""

    def __init__(self, home: Path, process: asyncio.subprocess.Process) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.home, self.process = home, process
        self.output: asyncio.ReadTransport

    async def read_output(self, reads: int) -> None:
        lines = asyncio.StreamReader(MAX_LINE_BYTES)
        self.output, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reads, "rb")
        )
        async for line in lines:
            await self.send(line)
            assert self.frames[-1].get("id", 0) is not None, line  # An invalid frame was refused.

    async def write_input(self) -> None:
        with suppress(ConnectionError):
            while (line := await self.receive()) is not None:
                self.process.stdin.write(line + b"\n")
                await self.process.stdin.drain()
        self.process.stdin.close()

    async def load(self, session: str) -> None:
        await self.ask("session/load", sessionId=session, cwd=str(self.home), mcpServers=[])

    def vanish(self) -> None:
        """Close both pipes at once, as an editor that is killed."""
        self.process.stdin.close()
        self.output.close()


@asynccontextmanager
async def open_editor(
    home: Path, *arguments: str, env: Mapping[str, str] | None = None, stderr: Path | None = None
) -> AsyncIterator[ProcessEditor]:
    """Start an agent and initialize it. Unless the test ended it, it must exit with 0 when its input ends."""
    reads, writes = os.pipe()
    with (stderr or home / "stderr.txt").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *[*cli_process.PROGRAM, "acp", *arguments],
            cwd=home,
            env=cli_process.environment(home, {"HOLDFAST_MODEL": "offline", **(env or {})}),
            stdin=asyncio.subprocess.PIPE,
            stdout=writes,
            stderr=log,
        )
    os.close(writes)
    editor = ProcessEditor(home, process)
    try:
        async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as pipes:
            pipes.create_task(editor.read_output(reads))
            pipes.create_task(editor.write_input())
            await editor.ask("initialize", protocolVersion=1, clientCapabilities={})
            yield editor
            was_ended = process.returncode is not None
            editor.leave()
            assert await process.wait() == 0 or was_ended
    finally:
        with suppress(ProcessLookupError):
            process.kill()
