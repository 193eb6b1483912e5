"""An editor with buffers and terminals, connected by the client of the official SDK; it records its requests."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import acp
from acp import schema
from acp._transport import memory_transport_pair
from acp.agent import connection as agent_side
from acp.client import connection as client_side

from holdfast import types
from holdfast.tools import base, registry

ENDING = 5.0
SESSION = "20260527_234659_e65f0e"


class Terminal:
    """A command that an editor runs; it is killed when it is released."""

    def __init__(self, process: asyncio.subprocess.Process, limit: int) -> None:
        self.process, self.limit, self.output = process, limit, b""
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while piece := await self.process.stdout.read(65_536):
            self.output += piece
        await self.process.wait()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill it; processes that left its group are not waited for."""
        self.kill()
        await asyncio.wait([self.reading], timeout=ENDING)
        self.reading.cancel()
        # It closes by itself one iteration of the loop later, and the loop may be closed by then.
        vars(self.process)["_transport"].close()


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
        process = await asyncio.create_subprocess_exec(
            *(["/bin/sh", "-c", " ".join(line)] if self.by_shell else line),
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "EDITOR_TOKEN": "hunter2", **{each.name: each.value for each in variables}},
            start_new_session=True,
        )
        name = f"terminal-{len(self.started)}"
        self.terminals[name] = Terminal(process, output_byte_limit or 1 << 40)
        return schema.CreateTerminalResponse(terminal_id=name)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> schema.WaitForTerminalExitResponse:
        await self._record("wait")
        found = self.terminals[terminal_id]
        await asyncio.wait([found.reading])
        return schema.WaitForTerminalExitResponse(**_ended(found))

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> schema.TerminalOutputResponse:
        await self._record("output")
        found = self.terminals[terminal_id]
        text = found.output[-found.limit :].decode(errors="ignore")
        status = schema.TerminalExitStatus(**_ended(found)) if found.reading.done() else None
        return schema.TerminalOutputResponse(output=text, truncated=len(found.output) > found.limit, exit_status=status)

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        await self._record("kill")
        self.terminals[terminal_id].kill()

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        await self._record("release")
        await self.terminals[terminal_id].end()
        del self.terminals[terminal_id]


async def _nothing(_: str) -> None: ...


def _ended(found: Terminal) -> dict[str, Any]:
    code = found.process.returncode
    assert code is not None
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


class ToolRunner:
    """Runs tools, permits and records every act; `meanwhile` is called before an act is permitted."""

    def __init__(self, tools: list[base.Tool]) -> None:
        self.acts: list[base.Act] = []
        self.meanwhile: Callable[[], object] = lambda: None

        @asynccontextmanager
        async def gate(_: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
            self.acts.append(act)
            self.meanwhile()
            yield

        self._tools = registry.Registry(tools, gate)

    async def __call__(self, name: str, **arguments: Any) -> base.Result:
        with base.calling(base.Calling("call-1", "talk")):
            return await self._tools.run(types.ToolCall("call-1", name, arguments))

    async def text(self, name: str, **arguments: Any) -> str:
        result = await self(name, **arguments)
        assert isinstance(result.content, str), result
        return result.content


def method_not_found() -> Exception:
    return acp.RequestError.method_not_found("fs/read_text_file")


def request_error(words: str) -> Exception:
    return acp.RequestError(-32603, "Internal error", {"details": words})
