"""`holdfast sessions`: conversations, to look at and to look after."""

from __future__ import annotations

import click

from holdfast import errors, types
from holdfast.cli import lazy
from holdfast.store import db as store

COMMANDS = {
    "list": ("holdfast.cli.listing", "One line a conversation, the most recently active first."),
    "search": ("holdfast.cli.searching", "Find what was said, by a question in plain language."),
    "show": ("holdfast.cli.show", "The transcript of a conversation, or what the model sees of it."),
    "title": ("holdfast.cli.keeping:title", "Name a conversation, or take its name away."),
    "export": ("holdfast.cli.exporting:export", "Write conversations to a file, to take along or to read."),
    "import": ("holdfast.cli.exporting:import_", "Take in what another store exported."),
    "delete": ("holdfast.cli.keeping:delete", "Remove conversations for good."),
    "redact": ("holdfast.cli.keeping:redact", "Remove the text of messages for good."),
    "prune": ("holdfast.cli.pruning", "Move what is old or too much into an archive."),
    "tree": ("holdfast.cli.tree", "Draw how sessions, compactions and branches hang together."),
}


@click.group(cls=lazy.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at conversations, and look after them."""
    lazy.help_when_alone(context)


def find(db: store.SessionDB, text: str) -> types.Session:
    """The head of the conversation a person means, or an error that says where to look."""
    try:
        return db.resolve(text)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession as error:
        raise errors.NoSuchSession(text, f"{error} `holdfast sessions list` names those there are.") from None
