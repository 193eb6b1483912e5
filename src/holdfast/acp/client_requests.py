"""Asking the editor for something it offers: bounded in time, and what it says against it as a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from acp import exceptions

from holdfast import errors

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds an editor has for what takes it no time: to read a file, to open a terminal."""
LONGEST = 300
NO_SUCH_METHOD = -32601


class NotOffered(errors.ToolFailed):
    """Raised when the editor does not know a method that it offered."""


async def answered(asked: Awaitable[T], seconds: float | None = PATIENCE) -> T:
    """What the editor answers. ToolFailed says why there is nothing; NotOffered, that we have to do it ourselves."""
    try:
        async with asyncio.timeout(seconds):
            return await asked
    except exceptions.RequestError as error:
        if error.code == NO_SUCH_METHOD:
            raise NotOffered from None
        raise errors.ToolFailed(f"The editor refused: {errors.shown(_said(error), LONGEST)}.") from None
    except TimeoutError:
        raise late(seconds or 0.0) from None
    except OSError:
        raise errors.ToolFailed("The editor is gone.") from None
    except ValueError:
        # What it answered does not follow the protocol; the library says so in its own many words.
        raise errors.ToolFailed("The editor answered with something that is no answer.") from None


def late(seconds: float) -> errors.ToolFailed:
    return errors.ToolFailed(f"The editor did not answer within {seconds:g} s.")


def _said(error: exceptions.RequestError) -> str:
    """Its words: often the message is the name of the code, and what happened is in the data."""
    more = error.data
    if isinstance(more, dict):
        more = next((more[key] for key in ("details", "message", "reason") if isinstance(more.get(key), str)), None)
    return f"{error}: {more}" if isinstance(more, str) and more else str(error)
