"""The list of conversations: found by title, id or message text, each with its sessions, compactions and branches."""

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
from holdfast.tui import entry_rows

LIST_LIMIT = 10_000
"""The most recent conversations that can be filtered."""
MAX_OFFERED = 200
SEARCH_LIMITS = (50, 2_000)
"""Limits of the first search, and of a second one if the first was full: one conversation may have all the hits."""
NO_MATCH = "No matching conversation."
NARROW_COLUMNS = 80


class ConversationScreen(ModalScreen[str | None]):
    """Returns the conversation that was picked; None if the person cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "back"),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("pageup", "move(-10)", show=False, priority=True),
        Binding("pagedown", "move(10)", show=False, priority=True),
    ]

    def __init__(self, db: async_db.AsyncSessionDB, owner: str, current: str, form: entry_rows.RowFormat) -> None:
        super().__init__()
        self._db, self._owner, self._current, self._form = db, owner, current, form
        self._heads: dict[str, types.Session] = {}
        self._offered = 0

    def compose(self) -> ComposeResult:
        with Vertical(id="list") as box:
            box.border_title = "Conversations"
            box.border_subtitle = "Enter: open, Esc: cancel"
            yield Input(placeholder="title, id or text of a message", id="filter")
            with Horizontal(id="both"):
                yield OptionList(id="found")
                yield Static(id="lineage", markup=False)

    async def on_mount(self) -> None:
        self.query_one("#found", OptionList).can_focus = False
        self.on_resize()
        self.query_one("#filter").focus()
        self.run_worker(self._read_all(), group="listing")

    def on_resize(self, _: keys.Resize | None = None) -> None:
        """Leave the lineage out on a narrow screen."""
        self.set_class(self.size.width < NARROW_COLUMNS, "narrow")

    # --- searching -----------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        try:
            found = await self._db.list_sessions(owner=self._owner, limit=LIST_LIMIT)
        except errors.HoldfastError as error:
            self._offer((), str(error))
        else:
            self._heads = {head.conversation_id: head for head in found}
            self.on_input_changed()

    def on_input_changed(self) -> None:
        self.run_worker(self._search(self.query_one("#filter", Input).value), exclusive=True, group="search")

    async def _search(self, text: str) -> None:
        """Find conversations by name at once, then by message text."""
        words = text.casefold().split()
        named = [head for head in self._heads.values() if all(each in _name(head) for each in words)]
        self._offer(named, "Searching messages." if words else NO_MATCH)
        if not words:
            return
        try:
            found = await self._search_messages(text)
        except errors.HoldfastError as error:
            # A text that cannot be searched for may still match titles.
            self._offer(named, str(error))
        else:
            known = {head.conversation_id for head in named}
            self._offer([*named, *(head for head in found if head.conversation_id not in known)])

    async def _search_messages(self, text: str) -> list[types.Session]:
        for limit in SEARCH_LIMITS:
            hits = await self._db.search(text, limit=limit, owner=self._owner)
            if len(hits) < limit:
                break
        ids = dict.fromkeys(hit.conversation_id for hit in hits)
        return [self._heads[each] for each in ids if each in self._heads]

    def _offer(self, heads: Sequence[types.Session], no_match: str = NO_MATCH) -> None:
        if not self.query("#found"):
            return  # The screen was closed while the store was read.
        found = self.query_one("#found", OptionList)
        before = found.highlighted_option.id if found.highlighted_option else None
        found.clear_options()
        found.add_options([Option(self._draw_option(head), id=head.conversation_id) for head in heads[:MAX_OFFERED]])
        if more := len(heads[MAX_OFFERED:]):
            found.add_option(Option(Text(f"{more:,} more: type to filter", "dim"), disabled=True))
        ids = [head.conversation_id for head in heads[:MAX_OFFERED]]
        self._offered = len(ids)
        found.highlighted = (ids.index(before) if before in ids else 0) if ids else None
        if not ids:
            self.query_one("#lineage", Static).update(Text(no_match))

    def _draw_option(self, head: types.Session) -> Text:
        parts = [safe_text.date(head.active_at), safe_text.count(head.last_seq, "message")]
        parts += ["current"] if head.conversation_id == self._current else []
        parts += [safe_text.safe(head.folder)] if head.folder else []
        line = f" {self._form.marks.dot} ".join(parts)
        title = safe_text.safe(head.title or head.conversation_id)
        return Text.assemble(title, "\n", (f"  {line}", self._form.styles.dim))

    # --- lineage -------------------------------------------------------------------------------------

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.run_worker(self._show_lineage(event.option.id or ""), exclusive=True, group="lineage")

    async def _show_lineage(self, conversation_id: str) -> None:
        pane = self.query_one("#lineage", Static)
        try:
            lineage = ConversationLineage(
                await self._db.conversation(conversation_id),
                await self._db.sessions(conversation_id),
                await self._db.compactions(conversation_id),
                [await self._title(each) for each in await self._db.branches(conversation_id)],
            )
        except errors.HoldfastError as error:
            pane.update(Text(str(error)))
            return
        form = msgspec.structs.replace(self._form, width=pane.content_size.width)
        pane.update(Text("\n").join(draw_lineage(lineage, form)))

    async def _title(self, conversation_id: str) -> str:
        with suppress(errors.HoldfastError):
            return (await self._db.conversation(conversation_id)).title or conversation_id
        return conversation_id

    # --- picking -------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        found = self.query_one("#found", OptionList)
        if found.highlighted is not None:
            found.highlighted = min(max(found.highlighted + step, 0), self._offered - 1)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def on_input_submitted(self) -> None:
        option = self.query_one("#found", OptionList).highlighted_option
        if option is not None:
            self.dismiss(option.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


def _name(head: types.Session) -> str:
    return f"{head.title or ''} {head.conversation_id}".casefold()


class ConversationLineage(msgspec.Struct, frozen=True):
    """A conversation with its sessions, compactions and the titles of its branches."""

    conversation: types.Conversation
    sessions: Sequence[types.Session]
    compactions: Sequence[types.Compaction]
    branches: Sequence[str]


def draw_lineage(lineage: ConversationLineage, form: entry_rows.RowFormat) -> list[Text]:
    """Draw the lineage as a tree."""
    conversation, started = lineage.conversation, {each.session_id: each for each in lineage.compactions}
    stem, branch, end = ("|  ", "|- ", "`- ") if form.is_ascii else ("│  ", "├─ ", "└─ ")
    title = safe_text.safe(conversation.title or "(no title)")
    rows = [Text(title, "bold"), Text(safe_text.safe(conversation.id), "dim")]
    if conversation.forked_from is not None:
        origin = f"branch of {safe_text.safe(conversation.forked_from)} at message {conversation.forked_at:,}"
        rows.append(Text(origin, "dim"))
    last = len(lineage.sessions) + len(lineage.branches)
    for number, session in enumerate(lineage.sessions, 1):
        if session.id in started:
            rows.append(Text(f"{stem}{_draw_compaction(started[session.id], conversation)}", form.styles.compaction))
        text = _draw_session(session, conversation, form.is_ascii)
        style = form.styles.success if session.id == conversation.head_id else ""
        rows.append(Text(f"{end if number == last else branch}{text}", style))
    for number, name in enumerate(lineage.branches, len(lineage.sessions) + 1):
        rows.append(Text(f"{end if number == last else branch}branch: {safe_text.safe(name)}", form.styles.user))
    for row in rows:
        row.truncate(max(form.width, 1), overflow="ellipsis")
    return rows


def _draw_session(session: types.Session, conversation: types.Conversation, is_ascii: bool) -> str:
    is_head = session.id == conversation.head_id
    mark, dash = ("*" if is_head else "o", "-") if is_ascii else ("●" if is_head else "○", "–")
    span = f"{session.first_seq:,}{dash}{session.last_seq:,}" if session.message_count else "empty"
    state = session.end_reason or ""
    if is_head:
        state = "head" if session.live else f"ended: {session.end_reason}"
    return f"{mark} {span}  {safe_text.safe(state)}"


def _draw_compaction(compaction: types.Compaction, conversation: types.Conversation) -> str:
    state = " (active)" if compaction.epoch == conversation.compaction_epoch else ""
    return f"compacted up to {compaction.cut_seq:,}{state}"
