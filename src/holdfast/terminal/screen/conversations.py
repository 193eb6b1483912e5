"""The list of conversations: found by title, by id or by what was said in them, each with its lineage beside it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from rich.text import Text
from textual import events as keys
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from holdfast import errors, types
from holdfast.store import aio
from holdfast.terminal import show, text
from holdfast.terminal.screen import lineage

LISTED = 1_000
SHOWN = 200
HITS = 50
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

    def __init__(self, db: aio.AsyncSessionDB, owner: str, here: str, marks: show.Marks) -> None:
        super().__init__()
        self._db, self._owner, self._here, self._marks = db, owner, here, marks
        self._heads: Sequence[types.Session] = ()

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
        try:
            self._heads = await self._db.list_sessions(owner=self._owner, limit=LISTED)
        except errors.HoldfastError as error:
            self.query_one("#lineage", Static).update(Text(str(error)))
        self._offer(self._heads)
        self.query_one("#words").focus()

    def on_resize(self, _: keys.Resize | None = None) -> None:
        self.set_class(self.size.width < NARROW, "narrow")

    # --- finding -------------------------------------------------------------------------------------

    def on_input_changed(self, event: Input.Changed) -> None:
        self.run_worker(self._find(event.value), exclusive=True, group="finding")

    async def _find(self, words: str) -> None:
        """By name at once; by what was said once that is found."""
        wanted = words.casefold().split()
        named = [head for head in self._heads if all(each in _named(head) for each in wanted)]
        self._offer(named)
        if not wanted:
            return
        told: list[types.Session] = []
        # What cannot be searched for can still be found by its title.
        with suppress(errors.HoldfastError):
            hits = await self._db.search(words, limit=HITS, owner=self._owner)
            by_id = {head.conversation_id: head for head in self._heads}
            told = [by_id[each] for each in dict.fromkeys(hit.conversation_id for hit in hits) if each in by_id]
        if behind := [head for head in told if head not in named]:
            self._offer([*named, *behind])

    def _offer(self, heads: Sequence[types.Session]) -> None:
        found = self.query_one("#found", OptionList)
        before = found.highlighted_option.id if found.highlighted_option else None
        found.clear_options()
        found.add_options([Option(self._line(head), id=head.conversation_id) for head in heads[:SHOWN]])
        ids = [head.conversation_id for head in heads[:SHOWN]]
        found.highlighted = (ids.index(before) if before in ids else 0) if ids else None
        if not ids:
            self.query_one("#lineage", Static).update("Nothing is called so, and nobody said so.")

    def _line(self, head: types.Session) -> Text:
        mark = f"{self._marks.dot} " if head.conversation_id == self._here else "  "
        return Text.assemble(
            (mark, "bold"),
            text.safe(head.title or head.conversation_id),
            (f"  {text.when(head.active_at)}  {text.count(head.last_seq, 'message')}", "dim"),
            no_wrap=True,
            overflow="ellipsis",
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
        pane.update(Text("\n").join(lineage.drawn(line, pane.content_size.width, self._marks)))

    async def _title(self, conversation_id: str) -> str:
        with suppress(errors.HoldfastError):
            return (await self._db.conversation(conversation_id)).title or conversation_id
        return conversation_id

    # --- picking -------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        found = self.query_one("#found", OptionList)
        if found.highlighted is not None:
            found.highlighted = min(max(found.highlighted + step, 0), found.option_count - 1)

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
