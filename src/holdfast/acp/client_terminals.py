"""The shell tool of a session, in terminals of the editor where it offers them: the user sees and can stop commands.

A command runs as our own shell would run it, in the same environment, from a script in a private directory. Editors do
not agree on what a command line is: some start a program with arguments, some join both into a line of a shell, quoted
or not. The path of a shell and of a script without special characters means the same to all of them. Every process that
the script starts carries a mark in its environment, so that none is left behind when the call ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from acp import helpers, schema

from holdfast import errors, process_info
from holdfast.acp import client as clients
from holdfast.tools import base
from holdfast.tools.shell import shell, supervisor_client

logger = logging.getLogger("holdfast.acp")

OUTPUT_BYTES = 1_000_000
"""Bytes of output that the editor keeps."""
KILL_SECONDS = 5.0
"""Seconds for a killed command to end, and for the editor to release its terminal."""
SETTLE_SECONDS = 0.2
"""Seconds in which leftover processes of a command may end by themselves."""
NOT_FOUND = 127
"""The exit code of a shell that does not find its script."""

Request: TypeAlias = Callable[[str, str], Awaitable[object]]
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+", re.ASCII)


class _NotRun(Exception):
    """The editor did not run the command; it has to be run without a terminal."""


class ClientTerminals:
    """The terminals of one session."""

    def __init__(self, client: clients.ToolClient, session_id: str) -> None:
        self._client, self._session_id = client, session_id
        self._releasing = set[asyncio.Task[None]]()

    async def run(self, command: str, folder: str, seconds: float, environment: Mapping[str, str]) -> base.Result:
        """Run a command and return its output and exit status. No process is left when this returns or is cancelled."""
        directory = _make_directory()
        try:
            marked = {**environment, supervisor_client.MARK: os.path.basename(directory)}
            return await self._run_script(_write_script(directory, command, marked), folder, seconds)
        except _NotRun:
            return await shell.run_tied(command, folder, seconds, environment)
        finally:
            await shell.finish(_clean_up(directory))

    async def _run_script(self, script: str, folder: str, seconds: float) -> base.Result:
        try:
            terminal = await self._create(script, folder)
        except clients.NotOffered:
            raise _NotRun from None
        requests: tuple[Request, ...] = (self._client.release_terminal,)
        try:
            return await self._watch(terminal, script, seconds)
        except asyncio.CancelledError:
            requests = (self._client.kill_terminal, *requests)
            raise
        finally:
            await shell.finish(self._end(terminal, *requests))

    async def _create(self, script: str, folder: str) -> str:
        """Create a terminal that runs the script; one that is created too late is released."""
        response = self._client.create_terminal(
            command=supervisor_client.shell(),
            session_id=self._session_id,
            args=[script],
            env=[schema.EnvVariable(name=supervisor_client.MARK, value=_mark(script))],
            cwd=folder,
            output_byte_limit=OUTPUT_BYTES,
        )
        creating = asyncio.ensure_future(clients.request(response, None))
        try:
            done, _ = await asyncio.wait([creating], timeout=clients.REQUEST_SECONDS)
            if not done:
                raise clients.timed_out(clients.REQUEST_SECONDS)
        except (asyncio.CancelledError, errors.ToolFailed):
            # Also if it is done: a cancellation may arrive together with the response.
            releasing = asyncio.create_task(self._release_late(creating))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)
            raise
        return creating.result().terminal_id

    async def _release_late(self, creating: asyncio.Future[schema.CreateTerminalResponse]) -> None:
        """Release a terminal when it is created after all. Its script is deleted by then."""
        with suppress(errors.ToolFailed):
            await self._end((await creating).terminal_id, self._client.release_terminal)

    async def _watch(self, terminal: str, script: str, seconds: float) -> base.Result:
        await self._show(terminal)
        is_late = not await self._wait_exit(terminal, seconds)
        if is_late:
            await self._end(terminal, self._client.kill_terminal)
        left = await asyncio.to_thread(_kill_marked, _mark(script), 0.0 if is_late else SETTLE_SECONDS)
        if is_late:
            await self._wait_exit(terminal, KILL_SECONDS)
        response = self._client.terminal_output(session_id=self._session_id, terminal_id=terminal)
        found = await clients.request(response)
        if found.exit_status and found.exit_status.exit_code == NOT_FOUND and os.path.exists(script):
            # The script deletes itself first: the editor's shell does not see our file system.
            raise _NotRun
        return format_output(found, seconds if is_late else None, left)

    async def _show(self, terminal: str) -> None:
        """Show the terminal in the tool call."""
        call_id = base.current().call_id
        update = helpers.update_tool_call(call_id, content=[helpers.tool_terminal_ref(terminal)])
        await clients.request(self._client.session_update(session_id=self._session_id, update=update))

    async def _wait_exit(self, terminal: str, seconds: float) -> bool:
        """Wait for the end of the command; return False on a timeout."""
        response = self._client.wait_for_terminal_exit(session_id=self._session_id, terminal_id=terminal)
        waiting = asyncio.ensure_future(clients.request(response, None))
        try:
            done, _ = await asyncio.wait([waiting], timeout=seconds)
        finally:
            waiting.cancel()
        if done:
            waiting.result()
        return bool(done)

    async def _end(self, terminal: str, *requests: Request) -> None:
        """Send kill or release requests at once, as an editor may not answer the first; failures are logged."""
        await asyncio.gather(*(self._try(send(self._session_id, terminal)) for send in requests))

    async def _try(self, response: Awaitable[object]) -> None:
        try:
            await clients.request(response, KILL_SECONDS)
        except errors.ToolFailed as error:
            logger.info("the editor did not end a terminal: %s", error)


def _make_directory() -> str:
    """Create a private directory whose path needs no quoting in any shell."""
    is_plain = _PLAIN_PATH.fullmatch(tempfile.gettempdir())
    try:
        return tempfile.mkdtemp(prefix="holdfast-", dir=None if is_plain else "/tmp")  # noqa: S108
    except OSError as error:
        raise _not_writable(error) from None


def _mark(script: str) -> str:
    """Return the mark of every process that a script starts."""
    return os.path.basename(os.path.dirname(script))


def _kill_marked(mark: str, settle_seconds: float = 0.0) -> int:
    """Kill the remaining processes of a command; return how many there were."""
    until = time.monotonic() + settle_seconds
    while process_info.find_by_env(f"{supervisor_client.MARK}={mark}") and time.monotonic() < until:
        time.sleep(0.02)
    return supervisor_client.kill_leftovers(mark)


async def _clean_up(directory: str) -> None:
    # The script first: a process that starts now finds no script, one that has started is found by its mark.
    shutil.rmtree(directory, ignore_errors=True)
    await asyncio.to_thread(_kill_marked, os.path.basename(directory))


def _not_writable(error: OSError) -> errors.ToolFailed:
    return errors.ToolFailed(f"The command could not be started: {error.strerror or error}.")


def _write_script(directory: str, command: str, environment: Mapping[str, str]) -> str:
    """Write a script that deletes itself and runs the command with exactly this environment; users see its name."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    argv = ["exec", "env", "-i", *variables, supervisor_client.shell(), "-c", "--", command]
    name = re.sub(r"[^A-Za-z0-9]+", "-", command[:200]).strip("-").lower()[:40] or "command"
    path = os.path.join(directory, name)
    try:
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"rm -f -- {shlex.quote(path)}\n{shlex.join(argv)}\n")
    except OSError as error:
        raise _not_writable(error) from None
    return path


def format_output(found: schema.TerminalOutputResponse, timeout: float | None, left: int = 0) -> base.Result:
    """Return the result for the model; `timeout` if the command was killed after that many seconds."""
    lines = ["[The beginning of the output was discarded.]"] if found.truncated else []
    lines.append(supervisor_client.clean(found.output).rstrip("\n") or "[no output]")
    if left and timeout is None:
        lines.append(shell.left_processes(left))
    status = found.exit_status
    if timeout is not None:
        ending = f"[killed after {timeout:g} s; give it a longer `timeout`, or use start_process]"
    elif status is None or (status.exit_code is None and not status.signal):
        ending = "[It was stopped; the exit code is unknown.]"  # `content_parts.is_success` knows this text.
    elif status.signal:
        ending = f"[killed by {errors.quote(status.signal, 20)}]"
    else:
        ending = f"[exit code {status.exit_code}]"
    ok = timeout is None and status is not None and status.exit_code == 0 and not status.signal
    return base.Result("\n".join([*lines, ending]), ok)
