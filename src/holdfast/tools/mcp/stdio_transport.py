"""A server that is a process of ours: messages in lines on its input and output, bounded in every direction.

A line that is no message is passed over. What it writes to standard error is kept, the end of it, and never
shown by itself. When the pipe is left, the process and all it started are gone; so they are when this program dies,
for a keeper stands between the two.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import anyio
from mcp import types as protocol
from mcp.shared.message import SessionMessage

from holdfast import errors

LONGEST_LINE = 16 * 1024 * 1024
MOST_JUNK = 1_000
TAIL = 8_000
GRACE = 1.0
PATIENCE = 10.0
_LOOK = 0.01
_KEEPER = os.path.join(os.path.dirname(__file__), "supervisor.py")


class Pipe:
    """The process and its streams. Entered and left by one task; `lost` is called once when it can no longer answer."""

    def __init__(
        self, command: str, args: tuple[str, ...], env: dict[str, str], cwd: str, lost: Callable[[], None]
    ) -> None:
        self._command, self._args, self._env, self._cwd, self._lost = command, args, env, cwd, lost
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._tail = bytearray()
        self._lifeline: int | None = None
        self.why = ""

    async def __aenter__(self) -> tuple[Any, Any]:
        if shutil.which(self._command, path=self._env.get("PATH")) is None:
            raise errors.ToolFailed(f"there is no program {errors.shown(self._command)}")
        theirs, self._lifeline = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _KEEPER, str(theirs), self._command, *self._args),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                cwd=self._cwd,
                pass_fds=[theirs],
                start_new_session=True,
                limit=LONGEST_LINE,
            )
        except (OSError, ValueError) as error:
            self._let_go()
            said = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise errors.ToolFailed(f"{errors.shown(self._command)} cannot be started: {said}") from None
        finally:
            os.close(theirs)
        to_us, received = anyio.create_memory_object_stream[Any](0)
        sent, from_us = anyio.create_memory_object_stream[Any](0)
        self._tasks = [
            asyncio.create_task(work) for work in (self._reading(to_us), self._writing(from_us), self._hearing())
        ]
        return received, sent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._asked_to_end()
        finally:
            # Whatever is still there is killed, with all it started.
            self._let_go()
            await self._released()

    @property
    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        return self._tail.decode("utf-8", "replace").strip()

    @property
    def ended(self) -> str:
        """How the process ended, as far as it is known."""
        code = self._process.returncode if self._process else None
        if self.why or code is None:
            return self.why
        return f"it ended with {f'exit code {code}' if code >= 0 else f'signal {-code}'}"

    # --- streams -------------------------------------------------------------------------------------

    async def _reading(self, to_us: Any) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        junk = 0
        try:
            while junk < MOST_JUNK and (line := await self._process.stdout.readline()):
                try:
                    message = protocol.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    junk += 1
                    await asyncio.sleep(0)  # A flood of them must not keep everybody else from working.
                    continue
                await to_us.send(SessionMessage(message))
            self.why = self.why or ("it writes something else than messages" if junk >= MOST_JUNK else "")
        except ValueError:
            self.why = f"it sent a line of more than {LONGEST_LINE // 1024 // 1024} MB"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            pass
        finally:
            self._lost()
            await to_us.aclose()

    async def _writing(self, from_us: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(ConnectionError, OSError):
            async with from_us:
                async for message in from_us:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    self._process.stdin.write(line.encode("utf-8", "replace") + b"\n")
                    await self._process.stdin.drain()

    async def _hearing(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(4096):
            self._tail += piece
            del self._tail[:-TAIL]

    # --- the end -------------------------------------------------------------------------------------

    async def _asked_to_end(self) -> None:
        """As the protocol has it: its input ends, it is given a moment, then a signal."""
        assert self._process is not None
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self._ends_within(GRACE):
            self._signal(signal.SIGTERM)
            await self._ends_within(GRACE)

    async def _released(self) -> None:
        assert self._process is not None
        try:
            # The keeper itself is never killed: it would leave the work to nobody. If need be it ends after us.
            await self._ends_within(PATIENCE)
        finally:
            for task in self._tasks:
                task.cancel()
            # Somebody may still hold the pipes: they are closed from our side.
            with suppress(PermissionError, ProcessLookupError):
                self._process._transport.close()  # type: ignore[attr-defined]
        await asyncio.wait(self._tasks)

    async def _ends_within(self, seconds: float) -> bool:
        # Not `wait`: that waits for the pipes too.
        assert self._process is not None
        until = asyncio.get_running_loop().time() + seconds
        while self._process.returncode is None:
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(_LOOK)
        return True

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(number)
