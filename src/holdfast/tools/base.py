"""What a tool is: what the model is told of it, and a function of the arguments the model gave.

A tool that only looks around returns what it saw. One that changes something returns a plan instead: what it would
do, in words a permission can be given for, and the function that does exactly that. The plan is made first, the
permission is asked for next, and nothing happens in between but that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import msgspec

from holdfast import types

logger = logging.getLogger("holdfast.tools")

Arguments = dict[str, Any]

Kind = Literal["look", "change", "run", "reach"]
"""Look at something; change files; run a program; reach something outside, such as a server."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What a call would do. Rules are matched against it, and people are shown it before they answer."""

    tool: str
    kind: Kind
    summary: str
    """One line for people: what will happen, and to what."""
    detail: str = ""
    """More lines, where one is not enough: a difference, the whole of a command."""
    commands: tuple[tuple[str, ...], ...] | None = None
    """The commands found in a command line, by words; None: it is no command line. The line itself is `detail`.

    They tell what may be forbidden or dangerous; what is allowed is told from the line. A word that is known only when
    the line runs begins with NUL. A file it writes to or reads is a command too: `>` or `<`, and the path."""
    paths: tuple[str, ...] = ()
    """The files and folders it is about, with links resolved."""
    danger: str = ""
    """Why a person should look twice. Such an act is asked for every time."""


class Result(msgspec.Struct, frozen=True):
    """What came of a call."""

    content: types.Content
    ok: bool = True


class Plan(msgspec.Struct, frozen=True):
    """What a tool would do, and how it is done once it may be: what the model is to read of it.

    That is a Result where something failed though the tool did not, as a command that ends with an error.
    """

    act: Act
    go: Callable[[], Awaitable[types.Content | Result]]


class Tool(msgspec.Struct, frozen=True):
    """One tool. `run` is given arguments that fit the schema, and returns what the model is to read, or a plan.

    It raises ToolFailed with a sentence for the model; anything else it raises is a fault of the tool, which
    the model is told in general words. Cancelling it must stop whatever it began.
    """

    spec: types.ToolSpec
    run: Callable[[Arguments], Awaitable[types.Content | Plan]]
    parallel: bool = False
    """Whether it may run beside other calls of the same reply: it changes nothing."""
    alters: Callable[[Arguments], bool] = lambda _: False
    """Whether a call changes something that nobody is asked for, such as a note: it is not run where nothing is to be
    changed. What comes with a plan need not say so, but for a plan that is allowed as a look is."""


class Offer(msgspec.Struct, frozen=True):
    """Tools that come from elsewhere, as of the start of a turn."""

    tools: tuple[Tool, ...] = ()
    """One object for as long as they are the same."""
    remarks: tuple[str, ...] = ()
    """What people should know of them, in sentences; each is told once."""


Source = Callable[[], Awaitable[Offer]]
"""Asked at the start of each turn, and may make it wait for a bounded time. It raises nothing."""


Gate = Callable[[types.ToolCall, Act], AbstractAsyncContextManager[None]]
"""Entered before an act is done, left when it is over. Entering waits for a permission, and raises NotAllowed."""


class Calling(msgspec.Struct, frozen=True):
    """The call at hand, for a tool that wants to know."""

    call_id: str
    conversation_id: str = ""
    say: Callable[[str], None] = lambda _: None
    """Tell people how far it is; the model is not told."""
    hidden: Callable[[str], bool] = lambda _: False
    """Whether a rule forbids to show this path: a tool that finds files leaves it out."""


_calling: ContextVar[Calling | None] = ContextVar("holdfast_calling", default=None)


@contextmanager
def calling(now: Calling) -> Iterator[None]:
    """Within this block, and in tasks begun in it, this is the call at hand."""
    token = _calling.set(now)
    try:
        yield
    finally:
        _calling.reset(token)


def current() -> Calling:
    """The call at hand; one without a name where a tool is run by hand."""
    return _calling.get() or Calling("")


# --- worker threads ------------------------------------------------------------------------------------

T = TypeVar("T")
Stop = Callable[[], bool]
"""Return whether the work was cancelled."""
CANCEL_TIMEOUT_SECONDS = 5.0
"""A thread that hangs, for example on a network file system, does not block the caller who cancels it for longer."""


async def run_in_thread(work: Callable[[Stop], T]) -> T:
    """Run blocking work in a thread. On cancellation, wait until the work has stopped, so that nothing is left."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        _, left = await asyncio.wait([task], timeout=CANCEL_TIMEOUT_SECONDS)
        if left:
            logger.warning("a tool's thread did not stop after it was cancelled")
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a cancelled tool failed: %s", type(error).__name__)
        raise
