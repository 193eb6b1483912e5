"""`holdfast sessions`: looking at conversations. None of these commands changes anything."""

from __future__ import annotations

import click

from holdfast.cli import lazy

COMMANDS = {
    "list": ("holdfast.cli.listing", "One line a conversation, the most recently active first."),
    "show": ("holdfast.cli.show", "The transcript of a conversation, or what the model sees of it."),
    "tree": ("holdfast.cli.tree", "Draw how sessions, compactions and branches hang together."),
}


@click.group(cls=lazy.LazyGroup, commands_in=COMMANDS)
def command() -> None:
    """Look at conversations. None of these commands changes anything."""
