"""The slash commands: one registry for all front ends.

A command answers with events to whoever listens; it changes the conversation only through the store.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast import errors, events
from holdfast.agent.commands import base, registry

COMMANDS = registry.COMMANDS
Candidate = base.Candidate
Desk = base.Desk
Emit = base.Emit
Models = base.Models
CommandInfo = base.CommandInfo
PromptCommands = base.PromptCommands


# A word behind a slash.
_NAMED = re.compile(r"/[^\s/]*(?:\s|$)")


def is_command(line: str) -> bool:
    """Whether a line is meant as a command. Two slashes, or a path, begin a message like any other."""
    return _NAMED.match(line) is not None


def is_escaped(line: str) -> bool:
    """Whether its first slash only says that it is no command. A text of several lines was pasted and has its own."""
    return line.startswith("//") and "\n" not in line


def list_commands(desk: Desk, place: events.Place = "terminal") -> list[CommandInfo]:
    """The commands that mean something in a front end of this kind, those from elsewhere at the end."""
    return [
        *(slash for slash in COMMANDS.values() if place in slash.places),
        *(desk.prompt_commands.listed() if desk.prompt_commands else ()),
    ]


async def run(desk: Desk, conversation_id: str, line: str, emit: Emit, place: events.Place = "terminal") -> None:
    """Carry out a line that begins with a slash. What goes wrong is said, and nothing is raised."""
    name, argument = split(line)
    slash = COMMANDS.get(name.lower())
    try:
        if slash is None:
            await _said(base.Asked(desk, conversation_id, argument, emit, place), name)
        else:
            await _checked(desk, conversation_id, slash, argument, place)
            await slash.run(base.Asked(desk, conversation_id, argument, emit, place))
    except errors.HoldfastError as error:
        emit(events.Notice(str(error), "error"))


async def complete(
    desk: Desk, conversation_id: str, line: str, place: events.Place = "terminal"
) -> Sequence[Candidate]:
    """What a line that begins with a slash may become: names of commands, or what the argument of one may be.

    The value stands for the whole line, slash and all. Nothing is raised: where the store cannot say, nothing is
    offered.
    """
    if not re.search(r"\s", line):
        begun = line.lstrip("/").lower()
        return [
            Candidate(f"/{each.name}{' ' if each.argument else ''}", each.help)
            for each in list_commands(desk, place)
            if each.name.startswith(begun)
        ]
    name, argument = split(line)
    slash = COMMANDS.get(name.lower())
    if slash is None or slash.completes is None or place not in slash.places:
        return []
    try:
        every = await slash.completes(base.Asked(desk, conversation_id, argument, lambda _: None, place))
    except errors.HoldfastError:
        return []
    return [
        Candidate(f"/{slash.name} {each.value}", each.help)
        for each in every
        if each.value.lower().startswith(argument.lower())
    ]


def split(line: str) -> tuple[str, str]:
    """The name, without its slash, and what comes after it."""
    name, *rest = re.split(r"\s", line.strip().lstrip("/"), maxsplit=1)
    return name, "".join(rest).strip()


async def _checked(desk: Desk, conversation_id: str, slash: base.Slash, argument: str, place: events.Place) -> None:
    """Refuse, with a sentence, what could only fail."""
    if place not in slash.places:
        raise errors.HoldfastError(f"/{slash.name} means nothing here.")
    if argument and not slash.argument:
        raise errors.InvalidArgument(f"/{slash.name} takes nothing after it.")
    if not argument and slash.argument and not slash.argument.startswith("["):
        raise errors.InvalidArgument(f"/{slash.name} needs something after it: {slash.form}")
    if slash.needs:
        try:
            await desk.db.snapshot(conversation_id)
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            raise errors.HoldfastError(
                f"The conversation begins with your first message: there is nothing for /{slash.name} yet."
            ) from None


async def _said(asked: base.Asked, name: str) -> None:
    """Have the words said that a command from elsewhere stands for."""
    others = asked.desk.prompt_commands
    words = await others.text(name.lower(), asked.argument) if others else None
    if words is None:
        raise errors.InvalidArgument(registry.unknown(asked, name))
    asked.emit(events.Say(words))
