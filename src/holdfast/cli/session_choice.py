"""Choose a conversation: by id or title, the latest one (`--continue`), or from a list (`--resume`)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

import click

from holdfast import config, content_parts, errors, safe_text, types
from holdfast.cli import console, lazy_group
from holdfast.store import db as store
from holdfast.store import titles
from holdfast.store.search import query_parser

ONE_SHOT_SOURCE = "cli"
"""The source of conversations that -p creates."""
MAX_SUGGESTIONS = 5
MAX_SUGGESTION_TITLES = 1_000
PAGE = 500
PROMPT_CHOICES = 15
SEARCH_HITS = 50
FIRST_WORDS = 60


def find(db: store.SessionDB, text: str, *, near: bool = True) -> types.Session:
    """Return the head of the conversation that an id, the beginning of an id, a title or `last` names.

    Destructive commands set `near` to False, so that a part of a title does not match.
    """
    try:
        return db.resolve(text, near=near)
    except errors.ConversationDeleted:
        raise
    except errors.Ambiguous as error:
        raise errors.Ambiguous(text, [_with_title(db, each) for each in error.candidates[:MAX_SUGGESTIONS]]) from None
    except errors.NoSuchSession as error:
        hint = "Run `holdfast sessions list` to list conversations, or `holdfast -r` to pick one."
        raise errors.NoSuchSession(text, f"{error}{_suggest(db, text)} {hint}") from None


def _with_title(db: store.SessionDB, session_id: str) -> str:
    title = db.conversation(session_id).title
    return f"{session_id} ({title})" if title else session_id


def _suggest(db: store.SessionDB, text: str) -> str:
    """Return a question with the most similar titles."""
    heads = db.list_sessions(limit=MAX_SUGGESTION_TITLES)
    known = {head.title.casefold(): head.title for head in heads if head.title}
    similar = lazy_group.load("difflib").get_close_matches(text.casefold(), known, MAX_SUGGESTIONS)
    return f" Did you mean {' or '.join(errors.quote(known[each]) for each in similar)}?" if similar else ""


# --- --continue ----------------------------------------------------------------------------------------


def find_latest(db: store.SessionDB, *, one_shots: bool) -> tuple[types.Session, str | None]:
    """Return the head of the latest conversation of this directory, else of any, and a notice if it is of another.

    A one-shot conversation, which -p created and no other turn continued, counts only with `one_shots`.
    """
    here = titles.local_folder(os.getcwd())
    local = (head for head in _recent(db, here) if head.folder == here) if here else iter(())
    others = (head for head in _recent(db, None) if head.folder != here or here is None)
    for heads, elsewhere in ((local, False), (others, True)):
        for head in heads:
            if one_shots or not _is_one_shot(db, head):
                where = f", from {head.folder}" if head.folder else ""
                notice = f"No earlier conversation in this folder: continuing the most recent one{where}."
                return head, notice if elsewhere else None
    find(db, "last")  # raises if there is no conversation at all
    raise errors.NoSuchSession(
        "last",
        "There are only one-shot conversations, made by -p. `-c -p TEXT` continues the most recent one, "
        "and `holdfast -r` lets you pick one.",
    )


def _recent(db: store.SessionDB, folder: str | None) -> Iterator[types.Session]:
    """Yield the heads of conversations, the most recently active first, a page at a time."""
    for skip in itertools.count(0, PAGE):
        heads = db.list_sessions(folder=folder, limit=PAGE, skip=skip)
        yield from heads
        if len(heads) < PAGE:
            return


def _is_one_shot(db: store.SessionDB, head: types.Session) -> bool:
    if head.source != ONE_SHOT_SOURCE:
        return False
    if head.last_seq <= 2:  # a message and its answer: there may be thousands of these, so none is read
        return True
    for first in range(1, head.last_seq, PAGE):
        for message in db.transcript(head.id, first, min(first + PAGE, head.last_seq)):
            if message.role == "user" and not content_parts.notice_kind(message.content):
                return False
    return True


# --- --resume ------------------------------------------------------------------------------------------


def pick(out: console.Console, db: store.SessionDB) -> types.Session:
    """Let the user pick a conversation from a list or, on a dumb terminal, by its number."""
    if not db.list_sessions(limit=1):
        raise errors.NoSuchSession("last", "There are no conversations yet.")
    if config.environment().get("TERM", "dumb") == "dumb":
        return _prompt_for_number(out, db)
    picker, event_text = lazy_group.load("holdfast.chat.picker"), lazy_group.load("holdfast.terminal.event_text")
    marks = event_text.PLAIN if out.glyphs == console.ASCII else event_text.Marks()
    found: types.Session | None = picker.Picker(ConversationList(db), marks, colour=out.colour).run()
    if found is None:
        raise click.Abort
    return found


class ConversationList:
    """The conversations of a store for the picker. All are listed once, and filtered in memory."""

    def __init__(self, db: store.SessionDB) -> None:
        self._db = db
        self._heads: list[types.Session] = db.list_sessions(limit=1_000_000)
        self._by_id = {head.conversation_id: head for head in self._heads}
        self._first_words: dict[str, str] = {}

    def find_by_name(self, words: str) -> Sequence[types.Session]:
        """Return the conversations whose title or id contains all of the words."""
        wanted = words.casefold().split()
        return [
            head
            for head in self._heads
            if all(each in f"{head.title or ''} {head.conversation_id}".casefold() for each in wanted)
        ]

    def find_by_message(self, words: str) -> Sequence[types.Session]:
        """Return the conversations with messages that match a search; none if the search fails."""
        try:
            hits = self._db.search(words, limit=SEARCH_HITS)
        except errors.HoldfastError:
            return []
        ids = dict.fromkeys(hit.conversation_id for hit in hits)
        return [self._by_id[found] for found in ids if found in self._by_id]

    def first_message(self, head: types.Session) -> str:
        """Return the beginning of the conversation."""
        if head.conversation_id not in self._first_words:
            self._first_words[head.conversation_id] = first_words(self._db, head)
        return self._first_words[head.conversation_id]


def first_words(db: store.SessionDB, head: types.Session) -> str:
    """Return the beginning of the first user message, on one short line."""
    for message in db.transcript(head.conversation_id, 0, 3):
        try:
            line = " ".join(query_parser.content_text(message.content).split()) if message.role == "user" else ""
        except errors.StoreCorrupt:
            continue
        if line:
            return safe_text.clip(line, FIRST_WORDS, "...")
    return ""


def _prompt_for_number(out: console.Console, db: store.SessionDB) -> types.Session:
    heads = db.list_sessions(limit=PROMPT_CHOICES)
    for number, head in enumerate(heads, 1):
        folder = f"  ({safe_text.safe(head.folder)})" if head.folder else ""
        title = safe_text.safe(head.title or head.conversation_id)
        out.print(out.clipped(f"{number:>3}  {safe_text.date(head.active_at)}  {title}{folder}", out.width))
    answer = str(click.prompt("Conversation (number, id or title)", default="1", err=True)).strip()
    if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(heads):
        return heads[int(answer) - 1]
    return find(db, answer)
