"""`holdfast sessions`: looking at conversations. None of these commands changes anything."""

from __future__ import annotations

import click

from holdfast import errors, types
from holdfast.cli import lazy
from holdfast.store import db as store

COMMANDS = {
    "list": ("holdfast.cli.listing", "One line a conversation, the most recently active first."),
    "show": ("holdfast.cli.show", "The transcript of a conversation, or what the model sees of it."),
    "tree": ("holdfast.cli.tree", "Draw how sessions, compactions and branches hang together."),
}


@click.group(cls=lazy.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at conversations. None of these commands changes anything."""
    lazy.help_when_alone(context)


def find(db: store.SessionDB, text: str) -> types.Session:
    """The head of the conversation a person means, or an error that says where to look."""
    try:
        return db.resolve(text)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession as error:
        raise errors.NoSuchSession(text, f"{error} `holdfast sessions list` names those there are.") from None
