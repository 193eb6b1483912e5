"""The chat: replies stream into the scrollback above the prompt, and the next message can be typed meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from prompt_toolkit.utils import is_dumb_terminal

from holdfast import errors, events, safe_text
from holdfast.agent import commands
from holdfast.chat import approval_prompt, dumb_terminal, input_line
from holdfast.runtime import interactive, wording
from holdfast.runtime import runtime as runtime_module
from holdfast.terminal import event_text, input_completion, markdown, recap, status_line

LEAVE_WARNING = "Press Ctrl-C again to exit (or Ctrl-D)."
# Seconds between polls of the status while a turn or a compaction runs.
POLL_SECONDS = 1.0

Terminal = input_line.PromptLine | dumb_terminal.DumbTerminal


class ChatOptions(msgspec.Struct, frozen=True):
    """How a chat starts."""

    conversation_id: str
    """An existing conversation, or the id of one that the first message creates."""
    program: str
    """The program's name and version."""
    model: str
    history: str
    """The file of typed lines."""
    notice: str | None = None


class SentMessage(NamedTuple):
    """A message that was submitted."""

    text: str
    result: asyncio.Future[events.TurnResult]
    queued: bool
    """Whether it waits for another turn, and was not echoed yet."""


class Chat:
    """The view of an interactive session in the scrollback."""

    def __init__(
        self,
        runtime: runtime_module.Runtime,
        output: input_line.TextOutput,
        options: ChatOptions,
        marks: event_text.Marks | None = None,
        device: input_line.TerminalDevice | None = None,
    ) -> None:
        self._runtime, self._options = runtime, options
        runtime.input_help = input_line.HELP
        self.session = interactive.InteractiveSession(runtime, options.conversation_id, self)
        self._terminal = self._open_terminal(output, device)
        streams = (
            (markdown.MarkdownStream(self._columns, marks), event_text.ToolActivity(self._columns, marks))
            if output.colour
            else ()
        )
        self._renderer = event_text.EventRenderer(marks, self._columns, *streams)
        self._status = status_line.StatusPoller(runtime, options.model)
        self._last_seq, self._interleaved = 0, False
        """`_interleaved`: messages of other processes were shown before the message that is being answered."""
        self._sent: deque[SentMessage] = deque()
        self._unannounced: deque[str] = deque()
        """Queued lines that are announced after the block of code that is being written."""

    def _open_terminal(self, output: input_line.TextOutput, device: input_line.TerminalDevice | None) -> Terminal:
        if device is None and is_dumb_terminal():
            return dumb_terminal.DumbTerminal(output, self.session)
        words = self._runtime.prompt_commands
        completer = input_completion.InputCompleter(words.listed if words else tuple, self._complete_argument)
        return input_line.PromptLine(
            output,
            self.session,
            completer,
            draw_open=lambda: self._renderer.open,
            draw_status=self._draw_status,
            history_path=self._options.history,
            device=device,
        )

    async def run(self) -> None:
        await self._open()
        jobs = [
            asyncio.create_task(job)
            for job in (
                self.session.raise_failure(),
                self.session.process_lines(),
                self._answer_approvals(),
                self._poll_status(),
            )
        ]
        terminal = asyncio.create_task(self._terminal.run())
        try:
            await asyncio.wait([terminal, *jobs], return_when=asyncio.FIRST_COMPLETED)
            if terminal.done():
                terminal.result()
            await self._close()
        finally:
            for task in (terminal, *jobs):
                task.cancel()
            await asyncio.wait([terminal, *jobs])
            self._end_line()
        for job in jobs:
            if not job.cancelled():
                job.result()

    # --- opening and leaving -------------------------------------------------------------------------

    async def _open(self) -> None:
        options, dot = self._options, self._renderer.marks.dot
        self._prose(f"{options.program} {dot} {options.model} {dot} /help lists the commands", "bold")
        if options.notice:
            self._prose(options.notice, "yellow")
        await self.session.open()

    async def show_conversation(self, left: str | None) -> None:
        self._last_seq = 0
        if left is not None:
            self._prose(wording.continues_elsewhere(left).text, "dim")
        try:
            await self._show_recap()
        except errors.HoldfastError as error:
            text, level = recap.describe_unreadable(error)
            self._prose(text, event_text.LEVELS[level])

    async def _show_recap(self) -> None:
        renderer, db, conversation_id = self._renderer, self._runtime.db, self.session.conversation_id
        found = await db.conversation(conversation_id)
        messages = await db.transcript(conversation_id, max(0, found.last_seq - recap.MAX_MESSAGES))
        hides, compactions = await db.hides(conversation_id), await db.compactions(conversation_id)
        self._last_seq = found.last_seq
        heading = [found.title or found.id, safe_text.count(found.last_seq, "message"), found.folder or ""]
        self._prose(f" {renderer.marks.dot} ".join(filter(None, heading)), "dim")
        if found.compaction_epoch is not None:
            self._terminal.write(recap.draw_summary_note(compactions, found.compaction_epoch, renderer))
        running = self._runtime.running(conversation_id)
        self._terminal.write(
            [event_text.StyledText("\n"), *recap.draw_recap(messages, renderer, hides, running=running)]
        )

    def leave_conversation(self) -> None:
        self._terminal.write(self._renderer.end_tools())
        self._end_line()
        self._sent.clear()

    async def _close(self) -> None:
        """Interrupt the turns of every conversation of this chat; their text so far is saved."""
        if (dropped := self.session.drop_queued()) is not None:
            self._prose(dropped, "yellow")
        running = [sent.result for sent in self._sent if not sent.result.done()]
        if running and self._runtime.interrupt(self.session.conversation_id):
            await asyncio.wait(running)
        await self.session.close()
        self._end_line()
        for sentence in await self.session.interrupt_others():
            self._prose(sentence, "yellow")

    # --- input ---------------------------------------------------------------------------------------

    def warn_before_leaving(self) -> None:
        self._prose(LEAVE_WARNING, "dim")

    def leave(self) -> None:
        self._terminal.leave()

    def show_command(self, line: str) -> None:
        self._echo(line)

    def show_answer(self, answer: events.Notice) -> None:
        self._terminal.write(self._renderer.draw(answer))

    def show_sent(self, sent: events.Submit, result: asyncio.Future[events.TurnResult], queued: bool) -> None:
        """Echo a message, or announce that it is queued; a queued one is echoed when its turn starts."""
        if queued:
            self.show_queued(sent.text)
        else:
            self._echo(sent.text)
        self._sent.append(SentMessage(sent.text, result, queued))

    def show_queued(self, line: str) -> None:
        self._unannounced.append(line)
        self._announce_queued()

    def _announce_queued(self) -> None:
        while self._unannounced and not self._renderer.in_code:
            self._terminal.write(self._renderer.one_line(f"Queued: {self._unannounced.popleft()}", "dim"))

    def _echo(self, text: str, late: bool = False) -> None:
        if late or not self._terminal.echoes:
            self._terminal.echo("\n".join(safe_text.safe_lines(text)))

    def _end_line(self) -> None:
        self._terminal.write(self._renderer.end_line())
        self._announce_queued()

    def _prose(self, text: str, style: str) -> None:
        self._terminal.write(self._renderer.prose(text, style))

    # --- approvals -----------------------------------------------------------------------------------

    async def _answer_approvals(self) -> None:
        while True:
            await self._answer_approval(await self.session.approvals.next())

    async def _answer_approval(self, asked: events.ApprovalAsked) -> None:
        """Ask until the request is answered, here or elsewhere."""
        conversation_id = self.session.conversation_id
        while (reply := await self.session.approvals.prompt(asked.request_id, self._read_reply(asked))) is not None:
            if reply == "detail":
                self._terminal.write(self._renderer.detail(asked) or self._renderer.prose("No more details.", "dim"))
            elif isinstance(reply, approval_prompt.OtherLine):
                self._handle_other_line(reply.line)
            elif reply == "stop":
                denied = events.Approve(asked.request_id, "deny", approval_prompt.BY)
                await self._runtime.send(conversation_id, denied)
                self.session.interrupt()
                return
            else:
                await self._runtime.send(conversation_id, reply)
                return

    async def _read_reply(self, asked: events.ApprovalAsked) -> approval_prompt.Reply:
        line = await self._terminal.read_line(approval_prompt.question_text(asked))
        return approval_prompt.parse_reply(line, asked.request_id)

    def _handle_other_line(self, line: str) -> None:
        """Run a command while the request is open; put any other line back to the prompt."""
        if line.strip():
            self._terminal.remember(line)
        if commands.is_command(line.strip()):
            self.session.enter(line)
            return
        if line.strip():
            self._terminal.draft(line)
        self._prose("Type y, c, a, n or d, then Enter.", "dim")

    # --- events --------------------------------------------------------------------------------------

    async def show_event(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.MessageStored):
            await self._note_stored(event)
        if isinstance(event, events.TurnStarted) and not event.notice:
            self._echo_queued(event.text)
        self._terminal.write(self._renderer.draw(event))
        self._announce_queued()
        self._terminal.redraw()
        if isinstance(event, events.ApprovalAsked):
            self.session.approvals.put(event)

    async def show_changes(self) -> None:
        """Show messages that other processes wrote while no turn runs here."""
        runtime, conversation_id = self._runtime, self.session.conversation_id
        with suppress(errors.HoldfastError):
            found = None if runtime.running(conversation_id) else await runtime.db.conversation(conversation_id)
            # The events of a turn that began meanwhile announce its messages.
            if found is not None and not runtime.running(conversation_id):
                await self._show_other_messages(found.last_seq)

    async def _note_stored(self, event: events.MessageStored) -> None:
        """Show the messages of other processes before the message that begins a turn; those within it come later."""
        if event.role == "user":
            with suppress(errors.HoldfastError):
                self._interleaved = await self._show_other_messages(event.seq - 1)
        self._last_seq = max(self._last_seq, event.seq)

    def _echo_queued(self, text: str) -> None:
        """Echo a message directly above its reply if it was queued, or if other messages came in between."""
        while self._sent and self._sent[0].result.done():
            self._sent.popleft()
        if not self._sent:
            self._echo(text, late=True)  # It was sent before the conversation was left and resumed.
        elif self._sent[0].queued or self._interleaved:
            self._echo(self._sent[0].text, late=True)
            self._sent[0] = self._sent[0]._replace(queued=False)

    async def _show_other_messages(self, last: int) -> bool:
        """Show messages up to this seq that another front end wrote; return whether there were any."""
        before, self._last_seq = self._last_seq, max(self._last_seq, last)
        if last <= before:
            return False
        db, conversation_id = self._runtime.db, self.session.conversation_id
        messages = await db.transcript(conversation_id, max(before, last - recap.MAX_MESSAGES), last)
        hides, shown = await db.hides(conversation_id), recap.MAX_MESSAGES
        pieces = recap.draw_recap(messages, self._renderer, hides, running=True, exchanges=shown)
        if pieces:
            rest = f", the last {shown}" if last - before > shown else ""
            self._prose(f"{safe_text.count(last - before, 'new message')} from elsewhere{rest}:", "dim")
            self._terminal.write(pieces)
        return bool(pieces)

    # --- status --------------------------------------------------------------------------------------

    async def _poll_status(self) -> None:
        """Poll the status when it may have changed, and periodically while something runs."""
        while True:
            self.session.changed.clear()
            await self._status.poll(self.session.conversation_id)
            self._terminal.redraw()
            if not self.session.busy:
                self._terminal.ready()
            active = self.session.busy or self._status.status.compacting
            await self.session.wait_for_change(POLL_SECONDS if active else None)

    def _draw_status(self) -> list[status_line.Fragment]:
        session = self.session
        status = msgspec.structs.replace(
            self._status.status, queued=len(session.queued), waiting=session.waits_elsewhere
        )
        room = max(self._columns() - 1, 0)
        compacting = self._status.compacting_seconds or 0.0
        return status_line.draw_status(status, room, self._renderer.marks, compacting, session.turn_seconds)

    async def _complete_argument(self, line: str) -> Sequence[commands.Candidate]:
        return await commands.complete(self._runtime, self.session.conversation_id, line)

    def _columns(self) -> int:
        return self._terminal.columns
