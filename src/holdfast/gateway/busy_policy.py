"""What becomes of what comes in while a turn of its chat runs. Pure.

Some commands are about the running turn and cannot wait for its end. Everything else waits, or is told to the turn,
or stops it, as the settings say. Notices of programs are not asked for here: they never interrupt.
"""

from __future__ import annotations

from typing import Literal

from holdfast.agent import commands

Mode = Literal["queue", "steer", "collect", "interrupt"]
"""Each waits its turn; told to the model at its next step; all that waits is answered as one; the newest stops what
runs."""

Beside = Literal["now", "steer", "interrupt", "later"]

JOINING: tuple[Mode, ...] = ("collect", "interrupt")
"""The modes in which messages that wait together are answered together."""

AT_ONCE = frozenset({"stop", "approve", "deny", "steer", "queue", "status", "help"})
"""The commands that act on the turn that runs, or only tell of it."""

ONE_AS_MANY = 50
"""So many messages are collected into one at most."""


def beside(mode: Mode, text: str, plain: bool = True) -> Beside:
    """What to do with something that comes in beside a running turn; `plain`: it is text and nothing else."""
    if into_turn(text) is not None:
        return "steer"
    if commands.is_command(text):
        return "now" if commands.split(text)[0].lower() in AT_ONCE else "later"
    if mode == "steer":
        return "steer" if plain else "later"
    return "interrupt" if mode == "interrupt" else "later"


def into_turn(text: str) -> str | None:
    """What /steer tells the turn that runs; without one, that is a message like any other."""
    name, argument = commands.split(text) if commands.is_command(text) else ("", "")
    return argument if name.lower() == "steer" and argument else None


def message(text: str) -> str | None:
    """The words of a message; None where it is a command."""
    if (told := into_turn(text)) is not None:
        return told
    if commands.is_command(text):
        return None
    return text[1:] if commands.is_escaped(text) else text


def together(texts: list[str]) -> str:
    """Several messages as one."""
    return "\n\n".join(text for text in texts if text)
