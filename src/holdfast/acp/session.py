"""A session of an editor: a conversation in a project folder, with a runtime of its own.

Every update goes through one subscription, so the editor receives updates in the order in which they happened, and a
prompt is answered after all of its updates. Messages that other processes write to the conversation are sent, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from acp import exceptions, interfaces, schema

from holdfast import errors, events, types
from holdfast.acp import channel, conversion, mcp_servers, modes, updates
from holdfast.agent import approvals, commands, usage
from holdfast.agent.commands import status
from holdfast.rpc import frames
from holdfast.runtime import approval_queue, attachments, runtime, subscriptions
from holdfast.store import message_codec

logger = logging.getLogger("holdfast.acp")

STOP_SECONDS = 30.0
"""Seconds that a cancelled prompt waits for its turn to end. Tools stop sooner, but a store that is down may not; what
the turn still reports is sent after the response."""
ANSWERED_BY = "the editor"
"""Who answered an approval request, in the audit log."""
NOT_ASKED = "The person could not be asked."


class SessionSpec(NamedTuple):
    """A session to be opened: ids, folders (the project folder first) and the MCP servers of the editor."""

    session_id: str
    conversation_id: str
    folders: tuple[str, ...]
    servers: Sequence[mcp_servers.EditorMcpServer] = ()


class ToolUpdate(NamedTuple):
    """An update that a tool sends about its own call."""

    update: schema.ToolCallProgress


class PendingPrompt:
    """A prompt whose response is pending."""

    def __init__(self) -> None:
        self.command: asyncio.Task[list[runtime.SenderEvent]] | None = None
        self._cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.done()

    def cancel(self) -> None:
        if not self.cancelled:
            self._cancelled.set_result(None)
        if self.command is not None:
            self.command.cancel()

    async def wait(self, answered: asyncio.Future[events.TurnResult]) -> bool:
        """Wait for the end of the turn, after a cancellation for a limited time; return whether it has ended."""
        either: list[asyncio.Future[Any]] = [answered, self._cancelled]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            await asyncio.wait([answered], timeout=STOP_SECONDS)
        return answered.done()


class EditorSession:
    """A session that the editor has open. `begin` it, and `close` it before its runtime is closed."""

    def __init__(
        self, spec: SessionSpec, runtime: runtime.Runtime, client: interfaces.Client, models: Sequence[str] = ()
    ) -> None:
        self.id, self.conversation_id, self.folder = spec.session_id, spec.conversation_id, spec.folders[0]
        self._runtime, self._client, self._models = runtime, client, models
        self._updates = updates.UpdateBuilder(self.folder)
        self._subscription = subscriptions.Subscription[updates.Update | ToolUpdate](
            runtime,
            self.conversation_id,
            self._deliver,
            messages=True,
            on_check=self._send_commands,
        )
        self._approvals = approval_queue.ApprovalQueue(runtime.approvals, self.conversation_id)
        self._prompts: list[PendingPrompt] = []
        self._command_output: list[events.Compacted | events.Notice] = []
        """Events that answer a command of the editor."""
        self._tool_results: dict[str, types.Content] = {}
        """Stored results of calls whose end is not sent yet."""
        self._warnings = mcp_servers.describe_ignored(spec.servers)
        """Problems found when the session was opened; sent with the next prompt."""
        self._disconnected = False
        self._model = ""
        self._title: str | None = None
        self._commands: list[schema.AvailableCommand] = []
        self._asking = set[asyncio.Task[None]]()

    # --- opening -------------------------------------------------------------------------------------

    async def begin(self, replay: bool = False) -> None:
        """Start to send updates; with `replay`, send the conversation so far first."""
        if replay:
            async for message in self._subscription.replay():
                await self._send_message(message)
            await self._send(self._updates.fail_unfinished())
        else:
            await self._subscription.skip_history()
        self._model = self._model_name()
        found = await subscriptions.find_conversation(self._runtime.db, self.conversation_id)
        self._title = found.title if found is not None else None
        self._subscription.start()
        self._approvals.open()

    def announce(self) -> None:
        """Send the commands and the title, once the editor knows the session."""
        self._send_commands()
        if self._title is not None:
            self._subscription.put(updates.title_update(self._title))

    def _send_commands(self) -> None:
        """Send the commands if they changed: MCP servers may add some later."""
        listed = [_command(each) for each in commands.list_commands(self._runtime, "editor")]
        if listed != self._commands:
            self._commands = listed
            self._subscription.put(
                schema.AvailableCommandsUpdate(session_update="available_commands_update", available_commands=listed)
            )

    # --- modes and models ----------------------------------------------------------------------------

    @property
    def mode(self) -> approvals.Mode:
        return self._runtime.approvals.mode

    def _model_name(self) -> str:
        return self._runtime.models.of(self.conversation_id).name if self._runtime.models else ""

    def options(self) -> list[schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean]:
        return modes.config_options(self.mode, self._model_name(), self._models)

    def set_mode(self, mode: approvals.Mode) -> None:
        """Set the mode for the next tool call."""
        self._runtime.approvals.set_mode(mode)

    async def set_model(self, name: str) -> None:
        """Set the model for the next turn. Raises RpcRefused if it is not available or a turn is running."""
        output: list[events.AnyEvent] = []
        # Run directly, so that the output is not sent as events: the person did not type a command.
        line = commands.command_line(status.model, name)
        await commands.run(self._runtime, self.conversation_id, line, output.append, "editor")
        refused = [each.text for each in output if isinstance(each, events.Notice) and each.level == "error"]
        if refused:
            raise errors.RpcRefused(frames.INVALID_PARAMS, " ".join(refused))
        self._model = self._model_name()

    def copy_model(self, conversation_id: str) -> None:
        """Use the model of another conversation."""
        if self._runtime.models is not None:
            self._runtime.models.follow(self.conversation_id, conversation_id)
            self._model = self._model_name()

    def send_mode(self) -> None:
        self._subscription.put(
            schema.CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.mode)
        )

    def send_options(self) -> None:
        self._subscription.put(
            schema.ConfigOptionUpdate(session_update="config_option_update", config_options=self.options())
        )

    async def send_tool_update(self, update: updates.Update) -> None:
        """Send an update of a tool; return when it was sent."""
        self._subscription.put(ToolUpdate(update) if isinstance(update, schema.ToolCallProgress) else update)
        await self._subscription.flush()

    # --- prompts -------------------------------------------------------------------------------------

    async def prompt(self, content: conversion.PromptContent) -> conversion.StopReason:
        """Answer a prompt, send all of its updates, and return why it stopped. Raises RpcRefused if its turn failed."""
        prompt = PendingPrompt()
        self._prompts.append(prompt)
        while self._warnings:
            self._put_event(events.Notice(self._warnings.pop(0), "warning"))
        try:
            stopped = await self._run_prompt(prompt, content)
        except errors.HoldfastError:
            if not prompt.cancelled:
                await self._subscription.flush()
                raise
            stopped = "cancelled"
        await self._subscription.flush()
        return "cancelled" if prompt.cancelled else stopped

    async def _run_prompt(self, prompt: PendingPrompt, content: conversion.PromptContent) -> conversion.StopReason:
        try:
            if content.is_plain and commands.is_command(content.text):
                return await self._run_command(prompt, content.text)
            return await self._run_turn(prompt, await self._build_message(content))
        finally:
            self._prompts.remove(prompt)

    async def _build_message(self, content: conversion.PromptContent) -> events.Submit:
        """Build the message of a prompt; images are stored as blobs."""
        if content.is_plain and len(content.pieces) == 1:
            # `//` at the beginning escapes a slash.
            text = content.typed.replace("/", "", 1) if commands.is_escaped(content.text) else content.typed
            return events.Submit(text, message_codec.generate_uid())
        parts: list[dict[str, Any]] = []
        for piece in content.pieces:
            if isinstance(piece, attachments.ImageData):
                parts.append(await attachments.store_image(self._runtime.db, piece))
            elif piece.text:
                parts.append(conversion.text_part(piece))
        return events.Submit(content.text, message_codec.generate_uid(), parts)

    async def _run_turn(self, prompt: PendingPrompt, message: events.Submit) -> conversion.StopReason:
        if prompt.cancelled:
            return "cancelled"
        answered = self._runtime.submit(self.conversation_id, message)
        if not await prompt.wait(answered) or answered.cancelled():
            return "cancelled"
        if (error := answered.exception()) is not None and not isinstance(error, errors.HoldfastError):
            raise errors.RpcRefused(frames.INTERNAL_ERROR, "The turn failed.")  # The runtime has logged the error.
        result = answered.result()
        if result.refused and result.error:
            self._put_event(events.Notice(result.error, "error"))
        return conversion.stop_reason(result)

    async def _run_command(self, prompt: PendingPrompt, line: str) -> conversion.StopReason:
        """Run a slash command; its output arrives as events."""
        prompt.command = asyncio.create_task(self._send_command(line))
        await asyncio.wait([prompt.command])
        if prompt.command.cancelled():
            return "cancelled"
        for outcome in prompt.command.result():
            if isinstance(outcome, events.Say):
                message = events.Submit(outcome.text, message_codec.generate_uid(), outcome.content)
                return await self._run_turn(prompt, message)
        if self._model_name() != self._model:
            self._model = self._model_name()
            self.send_options()
        return "end_turn"

    async def _send_command(self, line: str) -> list[runtime.SenderEvent]:
        outcomes: list[runtime.SenderEvent] = []
        command = events.Command(line, "editor")
        await self._runtime.send(self.conversation_id, command, outcomes.append, self._note_output)
        return outcomes

    def _note_output(self, event: events.AnyEvent) -> None:
        """Remember the output of a command, which is shown as an answer; progress notices end with an ellipsis."""
        if isinstance(event, events.Compacted) or (isinstance(event, events.Notice) and not event.text.endswith("…")):
            self._command_output.append(event)

    def cancel(self) -> None:
        """Stop the running turn and drop the queued prompts. Stored messages stay."""
        for prompt in self._prompts:
            prompt.cancel()
        for message in self._runtime.waiting(self.conversation_id):
            self._runtime.drop(self.conversation_id, message)
        self._runtime.interrupt(self.conversation_id)

    # --- events --------------------------------------------------------------------------------------

    def _put_event(self, event: events.AnyEvent) -> None:
        self._subscription.put(subscriptions.Received(event))

    async def _usage(self) -> schema.UsageUpdate | None:
        """Return how full the context window is and what the conversation has cost; None if that is not known."""
        agent = self._runtime.agents.peek(self.conversation_id)
        if agent is None:
            return None
        try:
            # Other updates wait for it, and the response to the prompt.
            async with asyncio.timeout(subscriptions.GAP_SECONDS):
                cost = usage.total_cost(await usage.read(self._runtime.db, self.conversation_id))
                tokens = await agent.context_tokens()
        except Exception as error:  # noqa: BLE001 -- figures for display stop nothing
            logger.debug("the usage of %s is not known: %s", self.conversation_id, error)
            return None
        return schema.UsageUpdate(
            session_update="usage_update",
            used=tokens,
            size=agent.model.window,
            cost=None if cost is None else schema.Cost(amount=cost, currency="USD"),
        )

    # --- updates -------------------------------------------------------------------------------------

    async def _deliver(self, item: subscriptions.Item[updates.Update | ToolUpdate]) -> None:
        try:
            match item:
                case subscriptions.Received(event):
                    await self._send_event(event)
                case subscriptions.LogMessage():
                    await self._send_message(item)
                case ToolUpdate(update):
                    await self._send(self._updates.translate(update))
                case subscriptions.LogChanged():
                    return
                case _:
                    await self._send([item])
        except ConnectionError:
            self._disconnected = True

    async def _send_event(self, event: events.AnyEvent) -> None:
        match event:
            case events.MessageStored(seq, _, role):
                await self._note_stored(seq, role)
            case events.ToolFinished(call_id):
                await self._send(self._updates.build(event, self._tool_results.pop(call_id, None)))
            case events.ApprovalAsked():
                await self._send(self._updates.build(event))
                if self._approvals.is_pending(event.request_id):
                    asking = asyncio.create_task(self._ask(event, self._updates.permission_request(event)))
                    self._asking.add(asking)
                    asking.add_done_callback(self._asking.discard)
            case _:
                if isinstance(event, events.TurnFinished):
                    self._tool_results.clear()  # Results of interrupted calls are dropped.
                await self._send(self._updates.build(event, is_answer=self._is_command_output(event)))
                if isinstance(event, events.TurnFinished | events.Compacted):
                    await self._send([each for each in [await self._usage()] if each is not None])

    async def _note_stored(self, seq: int, role: types.Role) -> None:
        if role == "assistant":
            self._updates.reply_seq = seq
        elif role == "tool":
            try:
                async with asyncio.timeout(subscriptions.GAP_SECONDS):
                    for message in await self._runtime.db.transcript(self.conversation_id, seq - 1, seq):
                        self._tool_results[message.tool_call_id or ""] = message.content
            except (errors.HoldfastError, TimeoutError) as error:
                # The preview of the event is sent instead.
                logger.warning("result %d of %s could not be read: %s", seq, self.conversation_id, error)

    def _is_command_output(self, event: events.AnyEvent) -> bool:
        before = len(self._command_output)
        self._command_output = [each for each in self._command_output if each is not event]
        return len(self._command_output) < before

    async def _send_message(self, found: subscriptions.LogMessage) -> None:
        message = found.message
        try:
            replayed = self._updates.replay(message)
            await self._send([*replayed, *(updates.image_update(each, message.uid) for each in found.images)])
        except ConnectionError:
            raise
        except Exception:
            # The border of one message: the others are sent whatever is wrong with it.
            logger.exception("message %d of %s cannot be shown", message.seq, self.conversation_id)
            await self._send([updates.unreadable_message(message.seq)])

    async def _send(self, updates: Sequence[updates.Update]) -> None:
        for update in updates if not self._disconnected else ():
            try:
                await self._client.session_update(self.id, update)
            except ConnectionError:
                raise channel.EditorGone from None

    # --- approvals -----------------------------------------------------------------------------------

    async def _ask(self, request: events.ApprovalAsked, tool_call: schema.ToolCallUpdate) -> None:
        """Ask the person; withdraw the question if it is settled elsewhere."""
        options = conversion.permission_options(request)
        try:
            prompting = self._client.request_permission(self.id, tool_call, options)
            response = await self._approvals.prompt(request.request_id, prompting)
            if response is None:
                return
            answer = conversion.parse_choice(response, options)
        except (exceptions.RequestError, ValueError, ConnectionError) as error:
            logger.warning("an approval request was not answered and is denied: %s", error)
            self._approvals.deny_unanswered(request.request_id, NOT_ASKED)
            return
        receipt = await self._approvals.answer(events.Approve(request.request_id, answer, ANSWERED_BY))
        if receipt.notice:
            self._put_event(events.Notice(receipt.notice))

    # --- closing -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop the running turn and end the session. The conversation stays."""
        self.cancel()
        await self._runtime.wait_idle(self.conversation_id)
        self._approvals.close()
        await self._subscription.finish()
        for task in self._asking:
            task.cancel()
        if self._asking:
            await asyncio.wait(self._asking)
        await self._subscription.close()
        await self._runtime.leave(self.conversation_id)


def _command(each: commands.CommandInfo) -> schema.AvailableCommand:
    hint = schema.AvailableCommandInput(root=schema.UnstructuredCommandInput(hint=each.argument))
    return schema.AvailableCommand(name=each.name, description=each.help, input=hint if each.argument else None)
