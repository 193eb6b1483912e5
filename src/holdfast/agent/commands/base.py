"""Values and interfaces of slash commands.

A command works on one conversation and answers with events. Its flags tell front ends and the runtime how to dispatch
it, so that no front end knows a command by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, get_args

import msgspec

from holdfast import events
from holdfast.agent import agent_cache, approvals
from holdfast.model import base as models
from holdfast.store import async_db

Emit = Callable[[events.AnyEvent], None]

EVERYWHERE: frozenset[events.Place] = frozenset(get_args(events.Place))


class CommandInfo(Protocol):
    """The properties of a command that help and completion show."""

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def argument(self) -> str: ...


class PromptCommands(Protocol):
    """Commands that stand for a prompt, such as those of MCP servers; the list may change at any time."""

    def listed(self) -> Sequence[CommandInfo]: ...
    async def text(self, name: str, argument: str) -> str | None:
        """Return the prompt, or None if there is no command of this name."""


class Models(Protocol):
    """The models of the conversations of this process."""

    def of(self, conversation_id: str) -> models.Model:
        """Return the model chosen for this conversation, or the default."""

    async def listed(self) -> Sequence[str]:
        """Return the names of available models."""

    async def choose(self, conversation_id: str, name: str) -> models.Model:
        """Use another model from the next turn on. Raises SettingInvalid if it is not available."""

    def follow(self, conversation_id: str, origin: str) -> None:
        """Use the model of the conversation `origin` for this one too."""


class CommandHost(Protocol):
    """The part of the runtime that commands use. `running` and `waiting` refer to this process."""

    @property
    def db(self) -> async_db.AsyncSessionDB: ...
    @property
    def owner(self) -> str: ...
    @property
    def prompt_commands(self) -> PromptCommands | None: ...
    @property
    def models(self) -> Models | None: ...
    @property
    def input_help(self) -> str:
        """Help on the keys of the front end, appended to /help."""

    @property
    def approvals(self) -> approvals.Approvals: ...
    @property
    def agents(self) -> agent_cache.AgentCache: ...
    def want_title(self, conversation_id: str, title: str | None) -> None: ...
    def wanted_title(self, conversation_id: str) -> str | None: ...
    def running(self, conversation_id: str) -> bool: ...
    def queued(self, conversation_id: str) -> int: ...
    def waiting(self, conversation_id: str) -> Sequence[events.Submit]: ...
    def drop(self, conversation_id: str, message: events.Submit) -> bool: ...
    def stop(self, conversation_id: str) -> bool: ...
    def steer(self, conversation_id: str, text: str) -> bool: ...


class Invocation(msgspec.Struct, frozen=True):
    """One use of a command."""

    host: CommandHost
    conversation_id: str
    argument: str
    emit: Emit
    place: events.Place = "terminal"
    """The front end in which it was entered."""

    def answer(self, text: str) -> None:
        self.emit(events.Answer(text))


class Candidate(msgspec.Struct, frozen=True):
    """A completion, and what it means."""

    value: str
    help: str = ""


Completes = Callable[[Invocation], Awaitable[Sequence[Candidate]]]
"""Returns all values of an argument; the invocation's argument is the text typed so far."""


class SlashCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A slash command and its flags."""

    name: str
    help: str
    run: Callable[[Invocation], Awaitable[None]]
    argument: str = ""
    """The argument as shown in help; empty: none; in brackets: optional."""
    more: str = ""
    """Further help text."""
    completes: Completes | None = None
    needs: bool = False
    """Whether the conversation must have begun."""
    during_turn: bool = False
    """Whether it runs at once while a turn or another command is running; other commands wait."""
    read_only: Callable[[str], bool] = lambda _argument: False
    """Whether it only shows something with this argument: the gateway runs it during a turn if no message waits."""
    slow: bool = False
    """Whether it may take so long that a person wants to stop it."""
    ordered: bool = False
    """Whether it must not overlap with messages that the same client sends: it changes the log or the queue."""
    opens_conversation: bool = False
    """Whether it continues in a new conversation, and so leaves the current one."""
    picks_conversation: bool = False
    """Whether its argument is another conversation, which a front end may offer in a list."""
    admin_only: Callable[[str], bool] = lambda _argument: False
    """Whether the command with this argument affects more than the sender's conversation."""
    places: frozenset[events.Place] = EVERYWHERE
    """The front ends in which it is available."""
    instead: str = ""
    """The alternative on the command line, if the command is not available there."""
    same_as: str = ""
    """The command of which it is an alias."""

    @property
    def form(self) -> str:
        """The command with its argument, as shown in help."""
        return f"/{self.name} {self.argument}".rstrip()


def choices(*values: tuple[str, str]) -> Completes:
    """Return a completer for an argument that is one of a few words."""

    async def complete(_: Invocation) -> Sequence[Candidate]:
        return [Candidate(*each) for each in values]

    return complete


def parse_number(text: str, max_digits: int = 9) -> int | None:
    """Parse a positive whole number; None if the text is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= max_digits and int(text) else None
