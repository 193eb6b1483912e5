"""An editor with buffers and terminals, connected by the client of the official SDK; it records its requests."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import IO, Any, NamedTuple

import acp
from acp import schema
from acp._transport import memory_transport_pair
from acp.agent import connection as agent_side
from acp.client import connection as client_side

MAX_OUTPUT = 1 << 30
SESSION = "20260527_234659_e65f0e"


class Terminal(NamedTuple):
    """A command that an editor runs, and the file with its output."""

    process: asyncio.subprocess.Process
    output: IO[bytes]
    limit: int

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill it; processes that left its group are not waited for."""
        self.kill()
        await self.process.wait()
        self.output.close()


class Editor:
    """The client. `refusing` maps methods to the errors they are answered with; `before` is awaited ahead of each."""

    def __init__(self, session: str | None = SESSION) -> None:
        self._session = session
        self.asked: list[str] = []
        self.paths: list[str] = []
        self.buffers: dict[str, str] = {}
        self.terminals: dict[str, Terminal] = {}
        self.started: list[list[str]] = []
        self.updates: list[Any] = []
        self.refusing: dict[str, Exception] = {}
        self.before: Callable[[str], Awaitable[object]] = _nothing
        self.by_shell = False
        """Whether it passes the command and its arguments to a shell, unquoted."""

    def on_connect(self, conn: object) -> None: ...

    async def _record(self, method: str) -> None:
        self.asked.append(method)
        await self.before(method)
        if method in self.refusing:
            raise self.refusing[method]

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        assert self._session in (None, session_id)
        self.updates.append(update)

    async def read_text_file(self, session_id: str, path: str, **_: Any) -> schema.ReadTextFileResponse:
        assert self._session in (None, session_id)
        self.paths.append(path)
        await self._record("read")
        if path in self.buffers:
            return schema.ReadTextFileResponse(content=self.buffers[path])
        try:
            with open(path, encoding="utf-8", newline="") as file:
                return schema.ReadTextFileResponse(content=file.read())
        except OSError:
            raise acp.RequestError.resource_not_found(path) from None

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> None:
        self.paths.append(path)
        await self._record("write")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(content)
        self.buffers.pop(path, None)

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[Any] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **_: Any,
    ) -> schema.CreateTerminalResponse:
        await self._record("create")
        line = [command, *(args or [])]
        self.started.append(line)
        variables = [schema.EnvVariable.model_validate(each) for each in env or []]
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its terminal
        process = await asyncio.create_subprocess_exec(
            *(["/bin/sh", "-c", " ".join(line)] if self.by_shell else line),
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "EDITOR_TOKEN": "hunter2", **{each.name: each.value for each in variables}},
            start_new_session=True,
        )
        name = f"terminal-{len(self.started)}"
        self.terminals[name] = Terminal(process, output, output_byte_limit or MAX_OUTPUT)
        return schema.CreateTerminalResponse(terminal_id=name)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> schema.WaitForTerminalExitResponse:
        await self._record("wait")
        return schema.WaitForTerminalExitResponse(**_status(await self.terminals[terminal_id].process.wait()))

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> schema.TerminalOutputResponse:
        await self._record("output")
        found = self.terminals[terminal_id]
        code, size = found.process.returncode, os.fstat(found.output.fileno()).st_size
        text = os.pread(found.output.fileno(), found.limit, max(size - found.limit, 0)).decode(errors="ignore")
        status = None if code is None else schema.TerminalExitStatus(**_status(code))
        return schema.TerminalOutputResponse(output=text, truncated=size > found.limit, exit_status=status)

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        await self._record("kill")
        self.terminals[terminal_id].kill()

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        await self._record("release")
        await self.terminals[terminal_id].end()
        del self.terminals[terminal_id]


async def _nothing(_: str) -> None: ...


def _status(code: int) -> dict[str, Any]:
    return {"exit_code": code} if code >= 0 else {"signal": signal.Signals(-code).name}


@asynccontextmanager
async def connect(editor: Editor) -> AsyncIterator[agent_side.AgentSideConnection]:
    """Yield the agent's end of a connection to this editor."""
    ours, theirs = memory_transport_pair()
    # The agent gets no requests, so any object will do.
    agent: Any = object()
    client: Any = editor
    async with agent_side.AgentSideConnection(agent, ours) as conn, client_side.ClientSideConnection(client, theirs):
        try:
            yield conn
        finally:
            for terminal in tuple(editor.terminals.values()):
                await terminal.end()


def method_not_found() -> Exception:
    return acp.RequestError.method_not_found("fs/read_text_file")


def request_error(words: str) -> Exception:
    return acp.RequestError(-32603, "Internal error", {"details": words})
