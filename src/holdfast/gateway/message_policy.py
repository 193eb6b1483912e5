"""Classify inbound texts: commands, and what happens to a message that arrives during a turn of its chat. Pure.

Some commands act on the running turn and cannot wait for its end. Every other message waits, is added to the turn, or
interrupts it, according to the settings.
"""

from __future__ import annotations

from typing import Literal

from holdfast.agent import commands

BusyMode = Literal["queue", "steer", "collect", "interrupt"]
"""Messages during a turn wait, are added at the model's next step, are answered together, or stop the turn."""

Action = Literal["now", "steer", "interrupt", "later"]

JOINING: tuple[BusyMode, ...] = ("collect", "interrupt")
"""The modes in which messages that wait are answered together."""
MAX_JOINED = 50

STEER, STOP, QUEUE = "steer", "stop", "queue"
ANSWERS = frozenset({"approve", "deny"})
"""The commands that answer a question."""
URGENT = frozenset({*ANSWERS, STEER, STOP, QUEUE, "status", "help"})
"""The commands that act on the running turn, or only report about it."""
SLOW = frozenset({"compact", "compress"})
"""The commands that run for long and can be stopped."""


def command_name(text: str) -> str:
    """Return the name of a command; empty for a message."""
    return commands.split(text)[0].lower() if commands.is_command(text) else ""


def is_urgent(text: str) -> bool:
    return command_name(text) in URGENT


def needs_admin(text: str) -> bool:
    """Return whether a command affects more than the conversation of its sender: cost, or permanent permissions."""
    name, argument = command_name(text), commands.split(text)[1]
    return (name == "model" and bool(argument)) or (name == "approve" and "always" in argument.lower().split())


def steering_text(text: str) -> str | None:
    """Return the text that /steer adds to the running turn; None for any other message."""
    argument = commands.split(text)[1] if command_name(text) == STEER else ""
    return argument or None


def message_text(text: str) -> str | None:
    """Return the text of a message; None for a command."""
    if (steering := steering_text(text)) is not None:
        return steering
    if commands.is_command(text):
        return None
    return text[1:] if commands.is_escaped(text) else text


def action_during_turn(mode: BusyMode, text: str, plain: bool = True) -> Action:
    """Return what to do with a message that arrives during a turn; `plain`: it has no attachments."""
    if steering_text(text) is not None:
        return "steer"
    if commands.is_command(text):
        return "now" if is_urgent(text) else "later"
    if mode == "steer":
        return "steer" if plain else "later"
    return "interrupt" if mode == "interrupt" else "later"


def join_texts(texts: list[str]) -> str:
    """Return several messages as one."""
    return "\n\n".join(text for text in texts if text)
