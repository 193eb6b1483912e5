"""The list of conversations: found by title, by id or by what was said in them, each with its lineage beside it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import events as keys
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from holdfast import errors, safe_text, types
from holdfast.store import async_db
from holdfast.tui import entry_rows, lineage

LISTED = 1_000
"""Conversations that are read at once."""
SHOWN = 200
"""So many are offered: whoever wants another writes more of it."""
HITS = (50, 2_000)
"""So many messages are looked for; and so many where the first have filled up: one conversation may have them all."""
NOTHING = "Nothing is called so, and nobody said so."
NARROW = 80


class Conversations(ModalScreen[str | None]):
    """A person picks one; None: they stay where they are."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stay", "back"),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("pageup", "move(-10)", show=False, priority=True),
        Binding("pagedown", "move(10)", show=False, priority=True),
    ]

    def __init__(self, db: async_db.AsyncSessionDB, owner: str, here: str, pen: entry_rows.Pen) -> None:
        super().__init__()
        self._db, self._owner, self._here, self._pen = db, owner, here, pen
        self._heads: dict[str, types.Session] = {}
        self._offered = 0

    def compose(self) -> ComposeResult:
        with Vertical(id="list") as box:
            box.border_title = "Conversations"
            box.border_subtitle = "Enter goes there, Esc stays"
            yield Input(placeholder="a title, an id, or words that were said", id="words")
            with Horizontal(id="both"):
                yield OptionList(id="found")
                yield Static(id="lineage", markup=False)

    async def on_mount(self) -> None:
        self.query_one("#found", OptionList).can_focus = False
        self.on_resize()
        self.query_one("#words").focus()
        self.run_worker(self._list(), group="listing")

    def on_resize(self, _: keys.Resize | None = None) -> None:
        self.set_class(self.size.width < NARROW, "narrow")

    # --- finding -------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """All there are; the most recent ones can be seen before the rest is read."""
        skip = 0
        try:
            while True:
                found = await self._db.list_sessions(owner=self._owner, limit=LISTED, skip=skip)
                self._heads |= {head.conversation_id: head for head in found}
                if skip == 0 or len(found) < LISTED:
                    self._look_again()
                if len(found) < LISTED:
                    return
                skip += LISTED
        except errors.HoldfastError as error:
            self._offer((), str(error))

    def _look_again(self) -> None:
        self.run_worker(self._find(self.query_one("#words", Input).value), exclusive=True, group="finding")

    def on_input_changed(self) -> None:
        self._look_again()

    async def _find(self, words: str) -> None:
        """By name at once; by what was said once that is found."""
        wanted = words.casefold().split()
        named = [head for head in self._heads.values() if all(each in _named(head) for each in wanted)]
        self._offer(named, "Looking for who said so." if wanted else NOTHING)
        if not wanted:
            return
        try:
            told = await self._told(words)
        except errors.HoldfastError as error:
            # What cannot be searched for can still be found by its title.
            self._offer(named, str(error))
        else:
            known = {head.conversation_id for head in named}
            self._offer([*named, *(head for head in told if head.conversation_id not in known)])

    async def _told(self, words: str) -> list[types.Session]:
        """The conversations in which it was said."""
        for limit in HITS:
            hits = await self._db.search(words, limit=limit, owner=self._owner)
            if len(hits) < limit:
                break
        ids = dict.fromkeys(hit.conversation_id for hit in hits)
        return [self._heads[each] for each in ids if each in self._heads]

    def _offer(self, heads: Sequence[types.Session], none: str = NOTHING) -> None:
        found = self.query_one("#found", OptionList)
        before = found.highlighted_option.id if found.highlighted_option else None
        found.clear_options()
        found.add_options([Option(self._line(head), id=head.conversation_id) for head in heads[:SHOWN]])
        if more := len(heads[SHOWN:]):
            found.add_option(Option(Text(f"and {more:,} more: write what you look for", "dim"), disabled=True))
        ids = [head.conversation_id for head in heads[:SHOWN]]
        self._offered = len(ids)
        found.highlighted = (ids.index(before) if before in ids else 0) if ids else None
        if not ids:
            self.query_one("#lineage", Static).update(Text(none))

    def _line(self, head: types.Session) -> Text:
        told = [safe_text.when(head.active_at), safe_text.count(head.last_seq, "message")]
        told += ["you are here"] if head.conversation_id == self._here else []
        told += [safe_text.safe(head.folder)] if head.folder else []
        line = f" {self._pen.marks.dot} ".join(told)
        return Text.assemble(
            safe_text.safe(head.title or head.conversation_id), "\n", (f"  {line}", self._pen.ink.aside)
        )

    # --- lineage -------------------------------------------------------------------------------------

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.run_worker(self._trace(event.option.id or ""), exclusive=True, group="tracing")

    async def _trace(self, conversation_id: str) -> None:
        pane = self.query_one("#lineage", Static)
        try:
            line = lineage.Lineage(
                await self._db.conversation(conversation_id),
                await self._db.sessions(conversation_id),
                await self._db.compactions(conversation_id),
                [await self._title(each) for each in await self._db.branches(conversation_id)],
            )
        except errors.HoldfastError as error:
            pane.update(Text(str(error)))
            return
        pen = msgspec.structs.replace(self._pen, width=pane.content_size.width)
        pane.update(Text("\n").join(lineage.drawn(line, pen)))

    async def _title(self, conversation_id: str) -> str:
        with suppress(errors.HoldfastError):
            return (await self._db.conversation(conversation_id)).title or conversation_id
        return conversation_id

    # --- picking -------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        found = self.query_one("#found", OptionList)
        if found.highlighted is not None:
            found.highlighted = min(max(found.highlighted + step, 0), self._offered - 1)

    def action_stay(self) -> None:
        self.dismiss(None)

    def on_input_submitted(self) -> None:
        option = self.query_one("#found", OptionList).highlighted_option
        if option is not None:
            self.dismiss(option.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


def _named(head: types.Session) -> str:
    return f"{head.title or ''} {head.conversation_id}".casefold()
