"""Running a command in a terminal of the editor, where it offers them: its user sees it run, and can stop it.

What is run is what our own shell would run, in the same environment: a line of a file that nobody else can read, as
editors do not agree on what a command line is. Some start a program with its arguments, some put both into a line of
a shell, quoted or not. The name of a program and of a file, without a character that any shell would heed, means the
same to all of them. All that is started there carries a mark, so that nothing of it runs on when the call is over,
whatever the editor does.
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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from acp import helpers, schema

from holdfast import errors, process_info
from holdfast.acp import client, client_requests
from holdfast.tools import base
from holdfast.tools.shell import shell, supervisor_client

logger = logging.getLogger("holdfast.acp")

LIMIT = 1_000_000
"""Bytes of output the editor is to keep."""
ENDING = 5.0
"""Seconds a command that was killed has to be over, and an editor to let go of its terminal."""
LATEST = 600.0
"""Seconds in which a terminal that nobody waits for any more is let go of when it comes."""
SETTLE = 0.2
"""Seconds in which what a command leaves may end by itself."""
NOT_FOUND = 127
Leave: TypeAlias = Callable[[str, str], Awaitable[object]]
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+", re.ASCII)


class Late:
    """What is still to be done about terminals of an editor that nobody waits for any more.

    It outlives the sessions they were for. `async with` it for as long as the editor is there: after the block nothing
    more is made of what it is still asked for.
    """

    def __init__(self) -> None:
        self._leaving = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Late:
        return self

    async def __aexit__(self, *_: object) -> None:
        leaving = [*self._leaving]
        for task in leaving:
            task.cancel()
        if leaving:
            await asyncio.wait(leaving)

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        leaving = asyncio.create_task(work)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


def tool(
    terminals: Terminals | None,
    roots: Sequence[str | os.PathLike[str]],
    environment: shell.Environment,
    describe: shell.Describe = shell.not_analysed,
) -> base.Tool:
    """The tool that runs commands in these folders: in terminals of the editor, or by our own hands."""
    run = terminals.run if terminals is not None else None
    return shell.shell([os.fspath(root) for root in roots], environment, describe, run)


class _NotRun(Exception):
    """Nothing was run: it is ours to do."""


class Terminals:
    """The terminals of one session. Those that come too late are left to `late`."""

    def __init__(self, conn: client.Client, session_id: str, late: Late) -> None:
        self._conn, self._session_id, self._late = conn, session_id, late

    async def run(self, command: str, folder: str, seconds: float, environment: Mapping[str, str]) -> base.Result:
        """Run it, and give back what it wrote and how it ended. When this returns or is cancelled, it was stopped."""
        place = _place()
        try:
            script = _written(place, command, {**environment, supervisor_client.MARK: os.path.basename(place)})
            return await self._run(script, folder, seconds)
        except _NotRun:
            return await shell.run_tied(command, folder, seconds, environment)
        finally:
            await shell.finish(_cleared(place))

    async def _run(self, script: str, folder: str, seconds: float) -> base.Result:
        try:
            terminal = await self._created(script, folder)
        except client_requests.NotOffered:
            raise _NotRun from None
        leave: tuple[Leave, ...] = (self._conn.release_terminal,)
        try:
            return await self._watched(terminal, script, seconds)
        except asyncio.CancelledError:
            leave = (self._conn.kill_terminal, *leave)
            raise
        finally:
            await shell.finish(self._let_go(terminal, *leave))

    async def _created(self, script: str, folder: str) -> str:
        """A terminal where it runs. Whoever does not wait for it any more leaves none."""
        asked = self._conn.create_terminal(
            command=supervisor_client.shell(),
            session_id=self._session_id,
            args=[script],
            env=[schema.EnvVariable(name=supervisor_client.MARK, value=_mark(script))],
            cwd=folder,
            output_byte_limit=LIMIT,
        )
        making = asyncio.ensure_future(client_requests.answered(asked, None))
        try:
            done, _ = await asyncio.wait([making], timeout=client_requests.PATIENCE)
            if not done:
                raise client_requests.late(client_requests.PATIENCE)
        except (asyncio.CancelledError, errors.ToolFailed):
            self._late.leave(self._undone(making))
            raise
        return making.result().terminal_id

    async def _undone(self, making: asyncio.Future[schema.CreateTerminalResponse]) -> None:
        """What it was to run is not there any more; the terminal itself may come yet."""
        try:
            await asyncio.wait([making], timeout=LATEST)
        finally:
            making.cancel()
        if making.done() and not making.cancelled() and making.exception() is None:
            await self._let_go(making.result().terminal_id, self._conn.release_terminal)

    async def _watched(self, terminal: str, script: str, seconds: float) -> base.Result:
        await self._shown(terminal)
        late = not await self._ended(terminal, seconds)
        if late:
            await self._let_go(terminal, self._conn.kill_terminal)
        left = await asyncio.to_thread(_swept, _mark(script), 0.0 if late else SETTLE)
        if late:
            await self._ended(terminal, ENDING)
        asked = self._conn.terminal_output(session_id=self._session_id, terminal_id=terminal)
        found = await client_requests.answered(asked)
        if found.exit_status and found.exit_status.exit_code == NOT_FOUND and os.path.exists(script):
            # It is gone once it runs: the commands of this editor see other files than we do.
            raise _NotRun
        return told(found, seconds if late else None, left)

    async def _shown(self, terminal: str) -> None:
        """Have it seen where the call is, from its beginning on."""
        call = base.current().call_id
        update = helpers.update_tool_call(call, content=[helpers.tool_terminal_ref(terminal)])
        await client_requests.answered(self._conn.session_update(session_id=self._session_id, update=update))

    async def _ended(self, terminal: str, seconds: float) -> bool:
        """Wait for the end, for so long at most."""
        asked = self._conn.wait_for_terminal_exit(session_id=self._session_id, terminal_id=terminal)
        # It is the command that takes its time, not the editor.
        waiting = asyncio.ensure_future(client_requests.answered(asked, None))
        try:
            done, _ = await asyncio.wait([waiting], timeout=seconds)
        finally:
            waiting.cancel()
        if done:
            waiting.result()
        return bool(done)

    async def _let_go(self, terminal: str, *leave: Leave) -> None:
        """Have it killed, or released, which kills it too. An editor that does neither keeps nobody waiting long."""
        # At once: whoever does not answer the first is still asked the second.
        await asyncio.gather(*(self._left(ask(self._session_id, terminal)) for ask in leave))

    async def _left(self, asked: Awaitable[object]) -> None:
        try:
            await client_requests.answered(asked, ENDING)
        except errors.ToolFailed as error:
            logger.info("the editor did not let go of a terminal: %s", error)


def _place() -> str:
    """A folder of our own whose name means the same to every shell."""
    plain = _PLAIN.fullmatch(tempfile.gettempdir())
    try:
        return tempfile.mkdtemp(prefix="holdfast-", dir=None if plain else "/tmp")  # noqa: S108
    except OSError as error:
        raise _unwritten(error) from None


def _mark(script: str) -> str:
    """What all that a file started is known by."""
    return os.path.basename(os.path.dirname(script))


def _swept(mark: str, settle: float = 0.0) -> int:
    """Kill what is left of a command; how many there were."""
    until = time.monotonic() + settle
    while process_info.marked(f"{supervisor_client.MARK}={mark}") and time.monotonic() < until:
        time.sleep(0.02)
    return supervisor_client.kill_left(mark)


async def _cleared(place: str) -> None:
    # In this order: what finds its file gone runs nothing, and what had found it is seen.
    shutil.rmtree(place, ignore_errors=True)
    await asyncio.to_thread(_swept, os.path.basename(place))


def _unwritten(error: OSError) -> errors.ToolFailed:
    return errors.ToolFailed(f"The command cannot be run: {error.strerror or error}.")


def _written(place: str, command: str, environment: Mapping[str, str]) -> str:
    """A file that runs the command with exactly this environment, and is gone then; people see what it is called."""
    given = [f"{name}={value}" for name, value in environment.items()]
    words = ["exec", "env", "-i", *given, supervisor_client.shell(), "-c", "--", command]
    name = re.sub(r"[^A-Za-z0-9]+", "-", command[:200]).strip("-").lower()[:40] or "command"
    path = os.path.join(place, name)
    try:
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"rm -f -- {shlex.quote(path)}\n{shlex.join(words)}\n")
    except OSError as error:
        raise _unwritten(error) from None
    return path


def told(found: schema.TerminalOutputResponse, late: float | None, left: int = 0) -> base.Result:
    """What the model is told of a command that has ended, or was stopped after so many seconds."""
    lines = ["[The beginning of its output was not kept.]"] if found.truncated else []
    lines.append(supervisor_client.clean(found.output).rstrip("\n") or "[no output]")
    if left and late is None:
        lines.append(shell.left_processes(left))
    status = found.exit_status
    if late is not None:
        ending = f"[killed after {late:g} s; give it a longer `timeout`, or use start_process]"
    elif status is None or (status.exit_code is None and not status.signal):
        ending = "[It was stopped; nobody knows its exit code.]"
    elif status.signal:
        ending = f"[killed by {errors.shown(status.signal, 20)}]"
    else:
        ending = f"[exit code {status.exit_code}]"
    well = late is None and status is not None and status.exit_code == 0 and not status.signal
    return base.Result("\n".join([*lines, ending]), well)
