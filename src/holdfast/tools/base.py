"""The interface of tools: a specification for the model, and a function of the model's arguments.

A tool that only reads returns its result. A tool that changes something returns a plan: a description that can be
approved, and the function that does exactly that. The plan is made first, then approved, then executed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from holdfast import types

Arguments = dict[str, Any]

Kind = Literal["look", "change", "run", "reach"]
"""Read something; change files; run a program; contact something outside, such as a server."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what a call would do. Rules are matched against it, and people see it before they approve."""

    tool: str
    kind: Kind
    summary: str
    """One line: what will happen, and to what."""
    detail: str = ""
    """Details on several lines: a diff, a complete command."""
    commands: tuple[tuple[str, ...], ...] | None = None
    """The commands that the command line in `detail` may run; None: it is no command line.

    Deny rules and risk hints use them; allow rules use the line. A word whose value is known only when the line runs
    begins with NUL. A redirection is a command of its own: `>` or `<`, and the path."""
    paths: tuple[str, ...] = ()
    """Real paths of the files and folders concerned."""
    danger: str = ""
    """Risk hint. An act with a risk hint needs an approval every time."""


class Result(msgspec.Struct, frozen=True):
    """The result of a call."""

    content: types.Content
    ok: bool = True


class Plan(msgspec.Struct, frozen=True):
    """The planned action of a tool, and the function that does it once it is approved.

    The function returns a Result with `ok=False` if the action failed although the tool worked, such as a command that
    ends with an error.
    """

    act: Act
    go: Callable[[], Awaitable[types.Content | Result]]


class Tool(msgspec.Struct, frozen=True):
    """One tool. `run` gets arguments that match the schema, and returns the result for the model, or a plan.

    It raises ToolFailed with a message for the model. Any other exception is reported to the model in general terms.
    Cancelling it must stop everything that it has started.
    """

    spec: types.ToolSpec
    run: Callable[[Arguments], Awaitable[types.Content | Plan]]
    parallel: bool = False
    """Whether it may run concurrently with other calls of the same reply, because it changes nothing."""
    alters: Callable[[Arguments], bool] = lambda _: False
    """Whether a call changes something without an approval, such as a note. It is refused in read-only mode.
    A tool that returns plans needs it only for plans of kind `look`."""


class Offer(msgspec.Struct, frozen=True):
    """Tools from other sources, such as MCP servers, at the start of a turn."""

    tools: tuple[Tool, ...] = ()
    """The same object as long as the tools do not change."""
    remarks: tuple[str, ...] = ()
    """Sentences for people about these tools; each is shown once."""


Source = Callable[[], Awaitable[Offer]]
"""Called at the start of each turn. It may take a bounded time, and raises nothing."""


Gate = Callable[[types.ToolCall, Act], AbstractAsyncContextManager[None]]
"""Entered before an act is executed, left afterwards. Entering waits for an approval, or raises NotAllowed."""


class Calling(msgspec.Struct, frozen=True):
    """The current call."""

    call_id: str
    conversation_id: str = ""
    say: Callable[[str], None] = lambda _: None
    """Report progress to people, not to the model."""
    hidden: Callable[[str], bool] = lambda _: False
    """Whether a rule denies this path: tools that find files skip it."""


_calling: ContextVar[Calling | None] = ContextVar("holdfast_calling", default=None)


@contextmanager
def calling(now: Calling) -> Iterator[None]:
    """Set the current call for this block and for the tasks that are started in it."""
    token = _calling.set(now)
    try:
        yield
    finally:
        _calling.reset(token)


def current() -> Calling:
    """Return the current call; an empty one if a tool is run directly."""
    return _calling.get() or Calling("")
