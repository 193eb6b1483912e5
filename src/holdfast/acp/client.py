"""The editor as the tools of one session use it: typed requests with timeouts, and updates in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from acp import exceptions, interfaces, schema

from holdfast import errors
from holdfast.acp import updates
from holdfast.rpc import frames

logger = logging.getLogger("holdfast.acp")

REQUEST_SECONDS = 30.0
"""Seconds that the editor has for a quick request: reading a file, opening a terminal."""
ERROR_CHARACTERS = 300

T = TypeVar("T")


class NotOffered(errors.ToolFailed):
    """Raised when the editor does not know a method that it offered."""


class ToolClient:
    """The editor's connection as tools use it: updates take the session's queue, so that none overtakes its call.

    Requests are sent at once. They raise RequestError if the editor refuses, ConnectionError if it is gone.
    """

    def __init__(self, conn: interfaces.Client) -> None:
        self.send_update: Callable[[updates.Update], Awaitable[None]]
        """Set when the session is there, which is before any tool runs."""
        self.read_text_file, self.write_text_file = conn.read_text_file, conn.write_text_file
        self.create_terminal, self.terminal_output = conn.create_terminal, conn.terminal_output
        self.wait_for_terminal_exit = conn.wait_for_terminal_exit
        self.kill_terminal, self.release_terminal = conn.kill_terminal, conn.release_terminal

    async def session_update(self, session_id: str, update: updates.Update) -> None:  # noqa: ARG002
        """Return when the update was sent."""
        await self.send_update(update)


def parse_capabilities(declared: Mapping[str, Any]) -> schema.ClientCapabilities:
    """Parse the capabilities of the editor; none if they are invalid."""
    try:
        return schema.ClientCapabilities.model_validate(declared)
    except ValueError as error:
        logger.warning("the capabilities of the editor are invalid and not used: %s", error)
        return schema.ClientCapabilities()


async def request(response: Awaitable[T], seconds: float | None = REQUEST_SECONDS) -> T:
    """Wait for the response of the editor. Raises ToolFailed, or NotOffered if the editor does not know the method."""
    try:
        async with asyncio.timeout(seconds):
            return await response
    except exceptions.RequestError as error:
        if error.code == frames.METHOD_NOT_FOUND:
            raise NotOffered from None
        reason = errors.quote(_error_text(error), ERROR_CHARACTERS)
        raise errors.ToolFailed(f"The editor refused the request: {reason}.") from None
    except TimeoutError:
        raise timed_out(seconds or 0.0) from None
    except OSError:
        raise errors.ToolFailed("The editor has disconnected.") from None
    except ValueError:
        # The SDK could not validate the response.
        raise errors.ToolFailed("The editor sent an invalid response.") from None


def timed_out(seconds: float) -> errors.ToolFailed:
    return errors.ToolFailed(f"The editor did not answer within {seconds:g} s.")


def _error_text(error: exceptions.RequestError) -> str:
    """Return the message and, as the message is often only the name of the code, the text in the data."""
    more = error.data
    if isinstance(more, dict):
        more = next((more[key] for key in ("details", "message", "reason") if isinstance(more.get(key), str)), None)
    return f"{error}: {more}" if isinstance(more, str) and more else str(error)
