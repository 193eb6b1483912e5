"""The editor as the tools of one session see it: what they tell it goes the way of all that it is told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from acp import interfaces, schema

from holdfast.acp import channel, updates

logger = logging.getLogger("holdfast.acp")

Offered: TypeAlias = schema.ClientCapabilities
Tell = Callable[[updates.Update], Awaitable[None]]


class Client(Protocol):
    """What tools may ask of an editor. All raise RequestError where it refuses, and ConnectionError when it is gone."""

    async def session_update(self, session_id: str, update: updates.Update) -> None: ...
    async def read_text_file(self, session_id: str, path: str) -> schema.ReadTextFileResponse: ...
    async def write_text_file(self, session_id: str, path: str, content: str) -> object: ...
    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str],
        env: list[schema.EnvVariable],
        cwd: str,
        output_byte_limit: int,
    ) -> schema.CreateTerminalResponse: ...
    async def terminal_output(self, session_id: str, terminal_id: str) -> schema.TerminalOutputResponse: ...
    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str) -> schema.WaitForTerminalExitResponse: ...
    async def kill_terminal(self, session_id: str, terminal_id: str) -> object: ...
    async def release_terminal(self, session_id: str, terminal_id: str) -> object: ...


class Editor:
    """A connection whose updates wait for those before them: none overtakes the call that it is about.

    What is asked of it is asked at once.
    """

    def __init__(self, conn: interfaces.Client, tell: Tell) -> None:
        self._tell = tell
        self.read_text_file, self.write_text_file = conn.read_text_file, conn.write_text_file
        self.create_terminal, self.terminal_output = conn.create_terminal, conn.terminal_output
        self.wait_for_terminal_exit = conn.wait_for_terminal_exit
        self.kill_terminal, self.release_terminal = conn.kill_terminal, conn.release_terminal

    async def session_update(self, session_id: str, update: updates.Update) -> None:  # noqa: ARG002
        """Returns when the editor was told."""
        await self._tell(update)


class Person:
    """A connection as a session uses it: that it has ended is an error of ours, whoever was the first to see it."""

    def __init__(self, conn: interfaces.Client) -> None:
        self._conn = conn

    async def session_update(self, session_id: str, update: updates.Update) -> None:
        with _ours():
            await self._conn.session_update(session_id, update)

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: list[schema.PermissionOption]
    ) -> schema.RequestPermissionResponse:
        with _ours():
            return await self._conn.request_permission(session_id, tool_call, options)


@contextmanager
def _ours() -> Iterator[None]:
    try:
        yield
    except ConnectionError:
        raise channel.EditorGone from None


def offered(said: Mapping[str, Any]) -> Offered:
    """What an editor says that it can do; nothing, where that is not how it is said."""
    try:
        return schema.ClientCapabilities.model_validate(said)
    except ValueError as error:
        logger.warning("what the editor offers is not used, as it cannot be read: %s", error)
        return schema.ClientCapabilities()
