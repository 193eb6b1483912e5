"""`--continue`: which conversation is continued.

The most recent one of the current folder, else the most recent one of any. A one-shot conversation, which -p began and
which was never continued, is considered only where -p continues it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from holdfast import content_parts, errors, types
from holdfast.cli import chat, sessions
from holdfast.store import db as store
from holdfast.store import titles

PAGE = 500


def find(db: store.SessionDB, *, one_shots: bool) -> tuple[types.Session, str | None]:
    """Return the head of the conversation to continue, and a notice for the user if it belongs to another folder."""
    here = titles.local_folder(os.getcwd())
    of_here = (head for head in _recent(db, here) if head.folder == here) if here else iter(())
    others = (head for head in _recent(db, None) if head.folder != here or here is None)
    for heads, elsewhere in ((of_here, False), (others, True)):
        for head in heads:
            if one_shots or not _is_one_shot(db, head):
                return head, _notice(head) if elsewhere else None
    sessions.find(db, "last")  # raises where there is none at all
    raise errors.NoSuchSession(
        "last",
        "There are only one-shot conversations, made by -p. `-c -p TEXT` continues the most recent one, "
        "and `holdfast -r` lets you pick one.",
    )


def _recent(db: store.SessionDB, folder: str | None) -> Iterator[types.Session]:
    """The heads of conversations, the most recently active first, a page at a time."""
    for skip in itertools.count(0, PAGE):
        heads = db.list_sessions(folder=folder, limit=PAGE, skip=skip)
        yield from heads
        if len(heads) < PAGE:
            return


def _is_one_shot(db: store.SessionDB, head: types.Session) -> bool:
    """Return whether -p began the conversation and no other turn followed."""
    if head.source != chat.ONE_SHOT:
        return False
    if head.last_seq <= 2:  # a message and its answer: there may be thousands of these, so none is read
        return True
    for first in range(1, head.last_seq, PAGE):
        for message in db.transcript(head.id, first, min(first + PAGE, head.last_seq)):
            if message.role == "user" and not content_parts.notice_kind(message.content):
                return False
    return True


def _notice(head: types.Session) -> str:
    where = f", from {head.folder}" if head.folder else ""
    return f"No earlier conversation in this folder: continuing the most recent one{where}."
