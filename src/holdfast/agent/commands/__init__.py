"""Slash commands: one registry for all front ends.

A command answers with events and changes the conversation only through the store. `find` returns the command of a line
with its flags, by which front ends decide when and for whom to run it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from holdfast import errors, events
from holdfast.agent.commands import base, registry

COMMANDS = registry.COMMANDS
Candidate = base.Candidate
CommandHost = base.CommandHost
CommandInfo = base.CommandInfo
Emit = base.Emit
Models = base.Models
PromptCommands = base.PromptCommands
SlashCommand = base.SlashCommand

_NAME = re.compile(r"/[^\s/]*(?:\s|$)")


def is_command(line: str) -> bool:
    """Whether a line is a command. A line that begins with two slashes or with a path is a message."""
    return _NAME.match(line) is not None


def is_escaped(line: str) -> bool:
    """Whether the first slash only escapes a command. Pasted text of several lines is never escaped."""
    return line.startswith("//") and "\n" not in line


def split(line: str) -> tuple[str, str]:
    """Return the name of a command, without its slash, and its argument."""
    name, *rest = re.split(r"\s", line.strip().lstrip("/"), maxsplit=1)
    return name, "".join(rest).strip()


def find(line: str) -> base.SlashCommand | None:
    """Return the built-in command of a line; None for messages, prompt commands and unknown commands."""
    return COMMANDS.get(split(line)[0].lower()) if is_command(line) else None


def command_line(run: Callable[[base.Invocation], Awaitable[None]], *arguments: object) -> str:
    """Return the line that runs a built-in command, which is identified by its function."""
    name = next(each.name for each in COMMANDS.values() if each.run is run)
    return " ".join((f"/{name}", *map(str, arguments)))


def resume_line(conversation_id: str) -> str:
    """Return the command line that continues a conversation."""
    return f"/{next(each.name for each in COMMANDS.values() if each.picks_conversation)} {conversation_id}"


def runs_during_turn(line: str) -> bool:
    """Whether a line is a command that runs at once while a turn or another command is running."""
    command = find(line)
    return command is not None and command.during_turn


def is_read_only(line: str) -> bool:
    """Whether a line is a command that only shows something."""
    command = find(line)
    return command is not None and command.read_only(split(line)[1])


def needs_admin(line: str) -> bool:
    """Whether a line is a command that only admins may send: it affects more than the sender's conversation."""
    command = find(line)
    return command is not None and command.admin_only(split(line)[1])


def list_commands(host: base.CommandHost, place: events.Place = "terminal") -> list[base.CommandInfo]:
    """Return the commands that are available in a front end, prompt commands last."""
    return registry.available(host, place)


async def run(
    host: base.CommandHost, conversation_id: str, line: str, emit: Emit, place: events.Place = "terminal"
) -> None:
    """Run a command line. Errors are emitted as notices; none of Holdfast's own errors is raised."""
    name, argument = split(line)
    command = COMMANDS.get(name.lower())
    invocation = base.Invocation(host, conversation_id, argument, emit, place)
    try:
        if command is None:
            await _run_prompt_command(invocation, name)
        else:
            await _check(invocation, command)
            await command.run(invocation)
    except errors.HoldfastError as error:
        emit(events.Notice(str(error), "error"))


async def complete(
    host: base.CommandHost, conversation_id: str, line: str, place: events.Place = "terminal"
) -> Sequence[Candidate]:
    """Return completions of a command line: names of commands, or values of an argument.

    Each value replaces the whole line. If the store fails, there are no completions.
    """
    if not re.search(r"\s", line):
        prefix = line.lstrip("/").lower()
        return [
            Candidate(f"/{each.name}{' ' if each.argument else ''}", each.help)
            for each in list_commands(host, place)
            if each.name.startswith(prefix)
        ]
    name, argument = split(line)
    command = COMMANDS.get(name.lower())
    if command is None or command.completes is None or place not in command.places:
        return []
    try:
        values = await command.completes(base.Invocation(host, conversation_id, argument, lambda _: None, place))
    except errors.HoldfastError:
        return []
    return [
        Candidate(f"/{command.name} {each.value}", each.help)
        for each in values
        if each.value.lower().startswith(argument.lower())
    ]


async def _check(invocation: base.Invocation, command: base.SlashCommand) -> None:
    """Raise an error with a sentence for the user if the command cannot run."""
    if invocation.place not in command.places:
        raise errors.HoldfastError(f"/{command.name} is not available here.")
    if invocation.argument and not command.argument:
        raise errors.InvalidArgument(f"/{command.name} takes no argument.")
    if not invocation.argument and command.argument and not command.argument.startswith("["):
        raise errors.InvalidArgument(f"/{command.name} needs an argument: {command.form}")
    if command.needs:
        try:
            await invocation.host.db.snapshot(invocation.conversation_id)
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            raise errors.HoldfastError(
                f"The conversation begins with your first message; /{command.name} needs one."
            ) from None


async def _run_prompt_command(invocation: base.Invocation, name: str) -> None:
    """Emit the prompt of a prompt command, for the sender to submit."""
    others = invocation.host.prompt_commands
    text = await others.text(name.lower(), invocation.argument) if others else None
    if text is None:
        raise errors.InvalidArgument(registry.unknown(invocation, name))
    invocation.emit(events.Say(text))
