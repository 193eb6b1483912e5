"""`--resume` without a value: a person picks the conversation, from a list or, on a dumb terminal, by its number."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast import config, errors, safe_text, types
from holdfast.cli import console, lazy_group, sessions, sessions_list
from holdfast.store import db as store

OFFERED = 15
HITS = 50
EVERY = 1_000_000


def chosen(out: console.Console, db: store.SessionDB) -> types.Session:
    """The one a person picks; whoever leaves the list is not asked again."""
    if not db.list_sessions(limit=1):
        raise errors.NoSuchSession("last", "There are no conversations yet.")
    if config.environment().get("TERM", "dumb") == "dumb":
        return _by_number(out, db)
    picker, show = lazy_group.load("holdfast.chat.picker"), lazy_group.load("holdfast.terminal.event_text")
    marks = show.PLAIN if out.glyphs == console.ASCII else show.Marks()
    found: types.Session | None = picker.Picker(Shelf(db), marks, colour=out.colour).run()
    if found is None:
        raise click.Abort
    return found


class Shelf:
    """The conversations of a store. All are listed once: what is typed is compared with every title and id."""

    def __init__(self, db: store.SessionDB) -> None:
        self._db = db
        self._every: list[types.Session] = db.list_sessions(limit=EVERY)
        self._by_id = {head.conversation_id: head for head in self._every}
        self._begins: dict[str, str] = {}

    def find_by_name(self, words: str) -> Sequence[types.Session]:
        wanted = words.casefold().split()
        return [head for head in self._every if all(each in _named(head) for each in wanted)]

    def find_by_message(self, words: str) -> Sequence[types.Session]:
        try:
            hits = self._db.search(words, limit=HITS)
        except errors.HoldfastError:
            return []  # What cannot be searched for can still be found by its title.
        return [
            self._by_id[found] for found in dict.fromkeys(hit.conversation_id for hit in hits) if found in self._by_id
        ]

    def first_message(self, head: types.Session) -> str:
        if head.conversation_id not in self._begins:
            self._begins[head.conversation_id] = sessions_list.first_words(self._db, head)
        return self._begins[head.conversation_id]


def _named(head: types.Session) -> str:
    return f"{head.title or ''} {head.conversation_id}".casefold()


def _by_number(out: console.Console, db: store.SessionDB) -> types.Session:
    heads = db.list_sessions(limit=OFFERED)
    for number, head in enumerate(heads, 1):
        folder = f"  ({safe_text.safe(head.folder)})" if head.folder else ""
        title = safe_text.safe(head.title or head.conversation_id)
        line = f"{number:>3}  {safe_text.when(head.active_at)}  {title}{folder}"
        out.print(out.clipped(line, out.width))
    answer = str(click.prompt("Which one? A number, an id or a title", default="1", err=True)).strip()
    if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(heads):
        return heads[int(answer) - 1]
    return sessions.find(db, answer)
