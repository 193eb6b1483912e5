"""Classify inbound texts: commands, and what happens to a message that arrives during a turn of its chat. Pure.

Commands that act on the running turn, or only show something, do not wait for its end. Every other message waits, is
added to the turn, or interrupts it, according to the settings.
"""

from __future__ import annotations

from typing import Literal

from holdfast.agent import commands
from holdfast.agent.commands import turns

BusyMode = Literal["queue", "steer", "collect", "interrupt"]
"""Messages during a turn wait, are added at the model's next step, are answered together, or stop the turn."""

Action = Literal["now", "steer", "interrupt", "withdraw", "later"]

JOINING: tuple[BusyMode, ...] = ("collect", "interrupt")
"""The modes in which messages that wait are answered together."""
MAX_JOINED = 50


def steering_text(text: str) -> str | None:
    """Return the text that /steer adds to the running turn; None for any other message."""
    command = commands.find(text)
    return (commands.split(text)[1] or None) if command is not None and command.run is turns.steer else None


def message_text(text: str) -> str | None:
    """Return the text of a message; None for a command."""
    if commands.is_command(text):
        return steering_text(text)
    return text[1:] if commands.is_escaped(text) else text


def action_during_turn(mode: BusyMode, text: str, plain: bool = True) -> Action:
    """Return what to do with a message that arrives during a turn; `plain`: it has no attachments."""
    if steering_text(text) is not None:
        return "steer"
    if commands.is_command(text):
        return "now" if commands.runs_during_turn(text) or commands.is_read_only(text) else "later"
    if mode == "steer":
        return "steer" if plain else "later"
    return "interrupt" if mode == "interrupt" else "later"
