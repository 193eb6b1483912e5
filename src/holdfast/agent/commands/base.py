"""What a command is, and what commands need of the runtime: values and ports.

Commands work on one conversation and answer with events; a front end has to know none of them by name.
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
    """A command that stands for words: what it is called, what it is for, what it takes."""

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def argument(self) -> str: ...


class PromptCommands(Protocol):
    """Commands that come from elsewhere, such as prompts of servers; they may be others each time."""

    def listed(self) -> Sequence[CommandInfo]: ...
    async def text(self, name: str, argument: str) -> str | None:
        """What is said by the command; None where there is none of this name."""


class Models(Protocol):
    """The models that conversations are answered by, in this process."""

    def of(self, conversation_id: str) -> models.Model:
        """The one that was chosen for this conversation, or the one for all."""

    async def listed(self) -> Sequence[str]:
        """Names of models that can be had now."""

    async def choose(self, conversation_id: str, name: str) -> models.Model:
        """Have the next turns answered by this one; SettingInvalid, and nothing changed, where it cannot be had."""

    def follow(self, conversation_id: str, origin: str) -> None:
        """Answer this conversation by what the one it came from is answered by."""


class Desk(Protocol):
    """What commands need of the runtime. What runs and waits is meant of this process."""

    @property
    def db(self) -> async_db.AsyncSessionDB: ...
    @property
    def owner(self) -> str: ...
    @property
    def prompt_commands(self) -> PromptCommands | None: ...
    @property
    def models(self) -> Models | None: ...
    @property
    def approvals(self) -> approvals.Approvals: ...
    @property
    def agents(self) -> agent_cache.Cache: ...
    def want_title(self, conversation_id: str, title: str | None) -> None: ...
    def wanted_title(self, conversation_id: str) -> str | None: ...
    def running(self, conversation_id: str) -> bool:
        """Whether a turn runs, or is about to."""

    def queued(self, conversation_id: str) -> int: ...
    def waiting(self, conversation_id: str) -> Sequence[events.Submit]:
        """The messages that wait for their turn, the next one first."""

    def drop(self, conversation_id: str, message: events.Submit) -> bool:
        """Take back a message that waits; whether it still did."""

    def stop(self, conversation_id: str) -> bool:
        """Stop the turn that runs, and a compaction that somebody asked for; whether there was any."""

    def steer(self, conversation_id: str, text: str) -> bool:
        """Tell the turn that runs something before its next step; whether there was one."""


class Asked(msgspec.Struct, frozen=True):
    """A command with its surroundings."""

    desk: Desk
    conversation_id: str
    argument: str
    emit: Emit
    place: events.Place = "terminal"
    """The front end it was typed in."""


class Candidate(msgspec.Struct, frozen=True):
    """What may stand in a place, and what it would mean there."""

    value: str
    help: str = ""


Completes = Callable[[Asked], Awaitable[Sequence[Candidate]]]
"""What the argument may be, all of it; the argument asked with is what was typed so far."""


class Slash(msgspec.Struct, frozen=True, kw_only=True):
    """One command."""

    name: str
    help: str
    run: Callable[[Asked], Awaitable[None]]
    argument: str = ""
    """What it takes, as shown in help; empty: nothing; in brackets: it can be left out."""
    more: str = ""
    """What else there is to say of it to whoever asks for help with it."""
    completes: Completes | None = None
    needs: bool = False
    """Whether it is about a conversation that has begun: before, it is refused with a sentence."""
    places: frozenset[events.Place] = EVERYWHERE
    """The front ends where it means something."""
    instead: str = ""
    """What to do where a line of a chat is no chat: one message of a command line."""
    same_as: str = ""
    """The command it is another name of."""

    @property
    def form(self) -> str:
        """How it is written."""
        return f"/{self.name} {self.argument}".rstrip()


def choices(*values: tuple[str, str]) -> Completes:
    """A command that takes one of a few words."""

    async def every(_: Asked) -> Sequence[Candidate]:
        return [Candidate(*each) for each in values]

    return every
