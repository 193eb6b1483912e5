"""What a shell is offered where a conversation is named. Only there does completing look into the store."""

from __future__ import annotations

import re

import click
from click import shell_completion

from holdfast import config, errors, safe_text, types
from holdfast.app import open_store

OFFERED = 50


def conversations(context: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
    """Ids, each with its title, and titles of one word: shells do not agree on how others are written.

    Whoever completes a line is not told of errors: where the store cannot be asked, nothing is offered.
    """
    try:
        with open_store.open_existing(context.params.get("path") or config.load().database) as db:
            heads = db.list_sessions(limit=OFFERED)
    except errors.HoldfastError:
        return []
    return [
        shell_completion.CompletionItem(value, help=safe_text.safe(head.title or ""))
        for head in heads
        for value in _values(head)
        if value.startswith(incomplete)
    ]


def _values(head: types.Session) -> list[str]:
    plain = [head.title] if head.title and re.fullmatch(r"[\w-]+", head.title) else []
    return [head.conversation_id, *plain]
