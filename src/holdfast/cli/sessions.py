"""`holdfast sessions`: conversations, to look at and to look after."""

from __future__ import annotations

import click

from holdfast import errors, types
from holdfast.cli import lazy_group
from holdfast.store import db as store

# How many conversations are named where several could be meant, and among how many they are looked for.
OFFERED, LOOKED_AT = 5, 1_000

COMMANDS = {
    "list": ("holdfast.cli.sessions_list", "One line a conversation, the most recently active first."),
    "search": ("holdfast.cli.sessions_search", "Find what was said, by a question in plain language."),
    "show": ("holdfast.cli.sessions_show", "The transcript of a conversation, or what the model sees of it."),
    "title": ("holdfast.cli.backup:title", "Name a conversation, or take its name away."),
    "export": ("holdfast.cli.sessions_export:export", "Write conversations to a file, to take along or to read."),
    "import": ("holdfast.cli.sessions_export:import_", "Take in what another store exported."),
    "delete": ("holdfast.cli.backup:delete", "Remove conversations for good."),
    "redact": ("holdfast.cli.backup:redact", "Remove the text of messages for good."),
    "prune": ("holdfast.cli.sessions_prune", "Move what is old or too much into an archive."),
    "tree": ("holdfast.cli.sessions_tree", "Draw how sessions, compactions and branches hang together."),
}


@click.group(cls=lazy_group.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at conversations, and look after them."""
    lazy_group.help_when_alone(context)


def find(db: store.SessionDB, text: str, *, near: bool = True) -> types.Session:
    """The head of the conversation a person means, or an error that says where to look.

    Whoever removes something does without `near`: a part of a title is not enough to name it by.
    """
    try:
        return db.resolve(text, near=near)
    except errors.ConversationDeleted:
        raise
    except errors.Ambiguous as error:
        raise errors.Ambiguous(text, [_named(db, each) for each in error.candidates[:OFFERED]]) from None
    except errors.NoSuchSession as error:
        told = f"{error}{_near(db, text)} `holdfast sessions list` names those there are"
        raise errors.NoSuchSession(text, f"{told}, and `holdfast -r` lets you pick one.") from None


def _named(db: store.SessionDB, session_id: str) -> str:
    title = db.conversation(session_id).title
    return f"{session_id} ({title})" if title else session_id


def _near(db: store.SessionDB, text: str) -> str:
    """The titles that look most like it, as a question."""
    titles = {head.title.casefold(): head.title for head in db.list_sessions(limit=LOOKED_AT) if head.title}
    alike = lazy_group.load("difflib").get_close_matches(text.casefold(), titles, OFFERED)
    near = [errors.shown(titles[each]) for each in alike]
    return f" Did you mean {' or '.join(near)}?" if near else ""
