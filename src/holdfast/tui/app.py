"""The full screen: a transcript of any length, a prompt, and a panel for approval requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import events as keys
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from holdfast import errors, events, types
from holdfast.agent import commands
from holdfast.runtime import interactive, wording
from holdfast.runtime import runtime as runtime_module
from holdfast.terminal import event_text, input_completion, recap, status_line
from holdfast.tui import (
    approval_panel,
    compaction_view,
    context_meter,
    conversation_list,
    entries,
    entry_rows,
    live_turn,
    palette,
    prompt_input,
    suspend,
    theme,
    transcript,
    transcript_source,
)

LEAVE_WARNING = "Press Ctrl-C again to exit (or Ctrl-Q)."
WARNING_SECONDS = 3.0
INTERRUPTED_EXIT_CODE = 130
# Seconds between polls of the status while something runs.
POLL_SECONDS = 1.0
# Seconds between drawings of streamed text.
FRAME_SECONDS = 0.03
DISABLED_BEHIND_MODAL = {"cycle_focus", "exit_if_empty", "conversations", "focus_prompt", "command_palette"}


class ScreenOptions(msgspec.Struct, frozen=True):
    """How the full screen starts."""

    conversation_id: str
    """An existing conversation, or the id of one that the first message creates."""
    model: str
    history: str
    """The file of typed lines."""
    notice: str | None = None
    light: bool = False


class FullScreen(App[None]):
    """The view of an interactive session on the full screen."""

    CSS = theme.CSS
    TITLE = "Holdfast"
    VERTICAL_BREAKPOINTS = theme.ROW_BREAKPOINTS
    COMMANDS = App.COMMANDS | {palette.SlashCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "interrupt", priority=True, system=True),
        Binding("ctrl+q", "exit", "exit", priority=True),
        Binding("ctrl+d", "exit_if_empty", "exit if the prompt is empty", show=False, priority=True),
        Binding("ctrl+o", "conversations", "conversations", priority=True),
        Binding("ctrl+t", "toggle_theme", "light or dark theme", priority=True),
        Binding("ctrl+z", "suspend_process", "suspend; fg resumes", priority=True),
        Binding("f6", "cycle_focus", "transcript, approval, prompt", priority=True),
        Binding("escape", "focus_prompt", "back to the prompt", show=False),
    ]

    def __init__(
        self, runtime: runtime_module.Runtime, options: ScreenOptions, marks: event_text.Marks | None = None
    ) -> None:
        super().__init__()
        # Before the first drawing, which would otherwise be repeated.
        for each in theme.THEMES:
            self.register_theme(each)
        self.ansi_theme_dark, self.ansi_theme_light = theme.CODE_DARK, theme.CODE_LIGHT
        self.theme = theme.LIGHT if options.light else theme.DARK
        self.runtime, self.marks = runtime, marks or event_text.Marks()
        runtime.input_help = prompt_input.HELP
        self.session = interactive.InteractiveSession(runtime, options.conversation_id, self)
        self._options = options
        self.transcript = transcript.Transcript(self._reader(), self.marks, id="transcript")
        self.approval = approval_panel.ApprovalPanel()
        words = runtime.prompt_commands
        completer = input_completion.InputCompleter(words.listed if words else tuple, self._complete_argument)
        self.prompt = prompt_input.PromptInput(completer, options.history)
        self.status = status_line.StatusPoller(runtime, options.model)
        self.transcript.live = self._live = live_turn.LiveTurn(lambda: self.status.status.model)
        # Kept here because queries do not find widgets behind a modal screen.
        self._heading, self._candidates = Static(id="heading", markup=False), Static(id="candidates", markup=False)
        self._progress, self._status_line = Static(id="progress"), Static(id="status")
        self._read_lock = asyncio.Lock()
        self._turn_seq: int | None = None  # The first message of the running turn.
        self._stored_seq = 0
        self._turn_notices: list[tuple[int, entries.Kind, str, events.Level]] = []
        self._drawn_status: tuple[Text | None, Text] | None = None
        self._view: transcript_source.ConversationView | None = None
        self._read_error: str | None = None
        self._paint_scheduled = False

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self.transcript
        yield self._progress
        yield self.approval
        yield self._candidates
        yield self.prompt
        yield self._status_line

    async def on_mount(self) -> None:
        """Open the conversation and start the background tasks."""
        # SIGINT comes from outside; Ctrl-C is a key here. Some loops and threads take no signals.
        with suppress(NotImplementedError, RuntimeError):
            exit_app = partial(self.exit, return_code=INTERRUPTED_EXIT_CODE)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, exit_app)
        # Textual starts tasks eagerly, before their creators know them; the code here relies on the usual order.
        asyncio.get_running_loop().set_task_factory(None)
        self.prompt.focus()
        await self.session.open()
        if self._options.notice:
            self.transcript.add_notice("notice", self._options.notice)
        self._warning_timer = self.set_timer(WARNING_SECONDS, self.session.cancel_warning, pause=True)
        for job in (self.session.raise_failure(), self.session.process_lines(), self._poll_status()):
            self.run_worker(job, group="jobs")
        self.theme_changed_signal.subscribe(self, lambda _: self._apply_theme())

    def on_unmount(self) -> None:
        """Remove the signal handler and stop following the conversation."""
        self.session.abandon()
        with suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    @property
    def conversation_id(self) -> str:
        return self.session.conversation_id

    @property
    def has_modal(self) -> bool:
        return len(self.screen_stack) > 1

    # --- the conversation ----------------------------------------------------------------------------

    async def show_conversation(self, left: str | None) -> None:
        self._turn_seq, self._stored_seq, self._turn_notices = None, 0, []
        async with self._read_lock:
            await self._show_from_end()
        if left is not None:
            self._add_notice("notice", wording.continues_elsewhere(left).text)
        self._show_queue()

    async def _show_from_end(self) -> None:
        self._read_error, self._view = None, None
        try:
            self._view = view = await transcript_source.read(self.runtime.db, self.conversation_id)
            await self.transcript.show(view.range, self._reader())
            self._stored_seq = view.range.last
            self._show_heading(view.conversation)
            if self.runtime.running(self.conversation_id):
                self._turn_seq = view.range.last + 1  # The event that the turn started came earlier.
            elif await transcript_source.is_unfinished(self.runtime.db, view):
                self.transcript.add_notice("notice", recap.UNFINISHED, "warning")
        except errors.HoldfastError as error:
            await self._show_nothing()
            await self._show_read_error(error)

    async def _show_nothing(self) -> None:
        self._view = None
        await self.transcript.show(entries.TranscriptRange(), self._reader())
        self._show_heading(None)

    async def _show_read_error(self, error: errors.HoldfastError) -> None:
        """Report once why the conversation cannot be read; remove it from the screen if it was deleted."""
        if self._read_error == str(error):
            return
        self._read_error = str(error)
        if isinstance(error, errors.NoSuchSession) and self.transcript.range.last:
            await self._show_nothing()
        self._add_notice("notice", *recap.describe_unreadable(error))

    def leave_conversation(self) -> None:
        """Forget the approval requests of the conversation that is left."""
        self.approval.show([])

    async def _refresh_transcript(self, turn_over: bool = False) -> None:
        """Show what the log has now; the live turn shows the running turn."""
        conversation_id = self.conversation_id
        # One refresh at a time: an older state never replaces a newer one.
        async with self._read_lock:
            if conversation_id != self.conversation_id:
                return
            try:
                await self._read_on(turn_over)
            except errors.HoldfastError as error:
                await self._show_read_error(error)
            else:
                self._read_error = None

    async def _read_on(self, turn_over: bool) -> None:
        upto = self._turn_seq - 1 if self._turn_seq is not None and not turn_over else None
        self._view = view = await transcript_source.read(self.runtime.db, self.conversation_id, upto, self._view)
        # A turn whose end could not be read from the log is still in the live turn.
        over = turn_over or (self._turn_seq is None and not self._live.is_empty)
        await self.transcript.extend(view.range, turn_over=over)
        self._stored_seq = max(self._stored_seq, view.range.last)
        self._show_heading(view.conversation)
        if over:
            for seq, kind, text, level in self._turn_notices:
                self.transcript.add_notice(kind, text, level, seq)
            self._turn_notices = []

    def _show_heading(self, found: types.Conversation | None) -> None:
        self._heading.update(transcript_source.heading(found, self.transcript.range, self.marks))

    def _reader(self) -> transcript.ReadMessages:
        """Return a reader that is bound to the current conversation."""
        return partial(self.runtime.db.transcript, self.conversation_id)

    # --- input ---------------------------------------------------------------------------------------

    def on_prompt_input_sent(self, sent: prompt_input.PromptInput.Sent) -> None:
        self._enter(sent.line)

    def _enter(self, line: str) -> None:
        self.session.enter(line)
        self.transcript.action_to_end()
        self._show_queue()

    def on_text_area_changed(self) -> None:
        """Cancel the warning of Ctrl-C when the person types."""
        self.session.cancel_warning()

    def on_key(self, event: keys.Key) -> None:
        """Send printable keys that are not bound to the prompt."""
        if event.is_printable and event.key not in self.active_bindings:
            self._type(event.character or "")

    def on_paste(self, event: keys.Paste) -> None:
        """Paste into the prompt, wherever the focus is."""
        self._type(event.text)

    def _type(self, text: str) -> None:
        if not self.has_modal and not self.prompt.has_focus:
            self.set_focus(self.prompt)  # At once: the following keys belong to the prompt, too.
            self.prompt.insert(text)

    def on_prompt_input_offered(self, offered: prompt_input.PromptInput.Offered) -> None:
        self._candidates.update(prompt_input.draw_choices(offered.candidates, max(self.size.height // 3, 3)))
        self._candidates.set_class(bool(offered.candidates), "shown")

    def on_prompt_input_paged(self, paged: prompt_input.PromptInput.Paged) -> None:
        self.transcript.scroll_pages(paged.step)

    async def _complete_argument(self, line: str) -> Sequence[commands.Candidate]:
        return await commands.complete(self.runtime, self.conversation_id, line)

    def list_commands(self) -> Sequence[commands.CommandInfo]:
        """Return the slash commands of the palette."""
        return commands.list_commands(self.runtime)

    def run_command(self, command: commands.CommandInfo) -> None:
        """Run a command of the palette, or write it to the prompt if it needs an argument."""
        self.prompt.focus()
        if command.argument and not command.argument.startswith("["):
            self.prompt.remember()
            self.prompt.put(f"/{command.name} ")
        elif isinstance(command, commands.SlashCommand) and command.picks_conversation:
            self.action_conversations()
        else:
            self._enter(f"/{command.name}")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the commands of the palette that are not slash commands."""
        yield SystemCommand("Theme", "Switch between the light and the dark theme.", self.action_toggle_theme)
        yield SystemCommand("Conversations", "Open another conversation.", self.action_conversations)
        if screen.query("HelpPanel"):
            yield SystemCommand("Hide keys", "Hide the list of keys.", self.action_hide_help_panel)
        else:
            yield SystemCommand("Keys", "Show the list of keys.", self.action_show_help_panel)

    def action_interrupt(self) -> None:
        """Copy the selection; or else clear the prompt; or else interrupt the reply; or else exit the second time."""
        selected = self.screen.get_selected_text() or ("" if self.has_modal else self.prompt.selected_text)
        if selected:
            self.copy_to_clipboard(selected)
            # Once: the next Ctrl-C interrupts.
            self.screen.clear_selection()
            self.prompt.move_cursor(self.prompt.cursor_location)
        elif self.has_modal:
            self._close_modal()
        elif self.prompt.text:
            self.prompt.put("")
        else:
            self.session.interrupt()

    def _close_modal(self) -> None:
        """Clear the filter of a modal screen; if it is empty, close the screen."""
        if isinstance(self.focused, Input) and self.focused.value:
            self.focused.value = ""
        elif isinstance(self.screen, ModalScreen):
            self.screen.dismiss(None)

    def warn_before_leaving(self) -> None:
        self.notify(LEAVE_WARNING, timeout=WARNING_SECONDS)
        self._warning_timer.stop()
        self._warning_timer = self.set_timer(WARNING_SECONDS, self.session.cancel_warning)

    def leave(self) -> None:
        self.exit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable some keys while a modal screen is open."""
        if self.has_modal and action in DISABLED_BEHIND_MODAL:
            return False
        return super().check_action(action, parameters)

    def action_exit(self) -> None:
        self.exit()

    def action_suspend_process(self) -> None:
        suspend.suspend_app(self)

    def action_exit_if_empty(self) -> None:
        if not self.prompt.text:
            self.exit()

    def action_toggle_theme(self) -> None:
        self.theme = theme.LIGHT if self.theme == theme.DARK else theme.DARK

    def action_focus_prompt(self) -> None:
        self.set_focus(self.prompt)

    def action_cycle_focus(self) -> None:
        """Move the focus from the prompt to an approval request, to the transcript, and back."""
        stops = [self.prompt, *([self.approval] if self.approval.requests else []), self.transcript]
        now = next((n for n, each in enumerate(stops) if each.has_focus), 0)
        self.set_focus(stops[(now + 1) % len(stops)])  # At once: the next key belongs to it.

    def action_conversations(self) -> None:
        form = entry_rows.RowFormat(0, self.transcript.theme_styles, self.marks)
        screen = conversation_list.ConversationScreen(self.runtime.db, self.runtime.owner, self.conversation_id, form)
        self.push_screen(screen, self._resume)

    def _resume(self, conversation_id: str | None) -> None:
        if conversation_id is not None:
            self._enter(commands.resume_line(conversation_id))

    def on_transcript_compaction_opened(self, opened: transcript.Transcript.CompactionOpened) -> None:
        shown, read = self.transcript.range, self.transcript.read
        self.push_screen(compaction_view.CompactionScreen(opened.compaction, shown, read, self.marks))

    # --- messages and commands -----------------------------------------------------------------------

    def show_command(self, line: str) -> None:
        self._show_queue()
        self._add_notice("notice", f"{self.marks.call} {line}")

    async def show_changes(self) -> None:
        if not self.runtime.running(self.conversation_id):
            self._turn_seq = None  # A turn may have ended before this was subscribed.
        await self._refresh_transcript()

    def show_answer(self, answer: events.Notice) -> None:
        self._show_sentence(answer)
        self._show_queue()

    def show_queued(self, _: str) -> None:
        self._show_queue()

    def show_sent(self, sent: events.Submit, result: asyncio.Future[events.TurnResult], _: bool) -> None:
        """Show the queue; put the message back to the prompt if it could not be stored."""
        self._show_queue()
        if sent.content is None:
            result.add_done_callback(partial(self._restore_unsent, self.conversation_id, sent.text))

    def _restore_unsent(self, conversation_id: str, text: str, result: asyncio.Future[events.TurnResult]) -> None:
        """Put a message that was not stored back to the prompt, or report it; not if the person dropped it."""
        if result.cancelled() or self._exit or not (result.exception() or not result.result().messages):
            return
        if conversation_id != self.conversation_id or self.prompt.text:
            self._add_notice("notice", f"Not sent: {text}", "warning")
        else:
            self.prompt.put(f"/{text}" if commands.is_command(text) or commands.is_escaped(text) else text)

    def _show_queue(self) -> None:
        """Show the queued messages below the running turn."""
        queued = [each.text for each in self.session.queued]
        if list(self._live.queued) != queued:
            self._live.queued = queued
            self._paint()

    # --- events --------------------------------------------------------------------------------------

    async def show_event(self, event: events.AnyEvent) -> None:
        match event:
            case events.TurnStarted():
                await self._start_turn(event)
            case events.TurnFinished(result):
                await self._end_turn(result)
            case events.MessageStored(seq):
                self._stored_seq = max(self._stored_seq, seq)
            case events.ApprovalAsked() | events.ApprovalSettled():
                self._handle_approval(event)
            case events.TurnQueued() | events.Notice() | events.Answer():
                self._show_sentence(event)
            case events.Titled() | events.Compacted():
                self._show_sentence(event)
                await self._refresh_transcript()
            case events.Say() | events.Moved() | events.Quit():
                pass
            case _:
                self._live.handle(event)
                self._paint_soon()

    async def _start_turn(self, event: events.TurnStarted) -> None:
        self._turn_seq = event.seq
        if self.transcript.range.last != event.seq - 1:
            await self._refresh_transcript()  # Another process wrote before it, or its message was read already.
        self._live.handle(event)
        self._show_queue()
        self._paint()

    async def _end_turn(self, result: events.TurnResult) -> None:
        await self._refresh_transcript(turn_over=True)
        self._turn_seq = None
        if (sentence := wording.turn_finished(result)) is not None:
            self._add_notice("notice", *sentence)
        self._show_queue()

    def _show_sentence(self, event: events.AnyEvent) -> None:
        if (sentence := wording.describe(event)) is not None:
            self._add_notice("answer" if isinstance(event, events.Answer) else "notice", *sentence)

    def _handle_approval(self, event: events.ApprovalAsked | events.ApprovalSettled) -> None:
        first = not self.approval.requests
        self.approval.show(self.session.approvals.pending)
        if isinstance(event, events.ApprovalSettled):
            self._show_sentence(event)
            if not self.approval.requests and self.approval.has_focus:
                self.prompt.focus()
        elif first and self.prompt.has_focus and not self.prompt.text and not self.has_modal:
            self.approval.focus()

    def on_approval_panel_answered(self, answered: approval_panel.ApprovalPanel.Answered) -> None:
        self.run_worker(self.runtime.send(self.conversation_id, answered.answer), group="answers")

    def on_approval_panel_typed(self, typed: approval_panel.ApprovalPanel.Typed) -> None:
        """Insert a key that belongs to the prompt."""
        self._type(typed.character)

    def _add_notice(self, kind: entries.Kind, text: str, level: events.Level = "info") -> None:
        """Show an entry that is not a message: during a turn in the live turn, afterwards at its place in the log."""
        if self._turn_seq is None:
            self.transcript.add_notice(kind, text, level)
        else:
            self._turn_notices.append((self._stored_seq, kind, text, level))
            self._live.add_notice(kind, text, level)
            self._paint()

    # --- status --------------------------------------------------------------------------------------

    async def _poll_status(self) -> None:
        """Poll the status when it may have changed, and periodically."""
        while True:
            self.session.changed.clear()
            await self.status.poll(self.conversation_id)
            self._draw_status()
            busy = self.session.busy or self.status.status.compacting
            await self.session.wait_for_change(POLL_SECONDS if busy else None)

    def _draw_status(self) -> None:
        """Draw the status line and the progress of a compaction, if they have changed."""
        form = entry_rows.RowFormat(max(self.size.width - 6, 1), self.transcript.theme_styles, self.marks)
        session, seconds = self.session, self.status.compacting_seconds
        status = msgspec.structs.replace(
            self.status.status, queued=len(session.queued), waiting=session.waits_elsewhere
        )
        progress = None if seconds is None else context_meter.draw_progress(status.progress, seconds, form)
        drawn = (progress, context_meter.draw_status(status, form, session.turn_seconds))
        if drawn != self._drawn_status:
            self._drawn_status = drawn
            self._progress.set_class(progress is not None, "shown")
            self._progress.update(progress or "")
            self._status_line.update(drawn[1])

    def _paint_soon(self) -> None:
        if not self._paint_scheduled:
            self._paint_scheduled = True
            self.set_timer(FRAME_SECONDS, self._paint)

    def _paint(self) -> None:
        self._paint_scheduled = False
        self.transcript.redraw_live()

    def on_resize(self) -> None:
        self._draw_status()

    def _apply_theme(self) -> None:
        for each in self.screen.query(transcript.Transcript):
            each.update_format()
        self._draw_status()
