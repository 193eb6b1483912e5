"""A session of an editor: a conversation, worked on in a folder, with a door of its own.

All that an editor is told goes through one backlog, so it is told in the order in which it happened, and a prompt is
answered when all that came of it was told. What others write into the conversation meanwhile is told, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, Protocol

from acp import schema

from holdfast import errors, events
from holdfast.acp import conversion, log_follower, modes, permissions, update_queue, updates, usage
from holdfast.agent import approvals, commands
from holdfast.rpc import frames
from holdfast.runtime import runtime
from holdfast.store import message_codec

logger = logging.getLogger("holdfast.acp")

EVERY = 5.0
"""Seconds after which commands that came are looked for, and what others said: not all of it is hinted."""
STOPPING = 30.0
"""Seconds whoever cancels a prompt waits for its turn to end. No tool takes that long to stop, but a store that is down
may; what there is to tell of the turn then is told behind the answer."""
FLUSH = 1.0
"""Seconds an editor that is left may take to read what it is still to be told."""


class Client(permissions.Client, Protocol):
    """The editor at the other end. All raise ConnectionError when it is gone."""

    async def session_update(self, session_id: str, update: Any) -> None: ...


class Names(NamedTuple):
    """What an editor calls it, what it is, and where it works."""

    session_id: str
    conversation_id: str
    folder: str


class Prompt:
    """Something the editor waits for an answer to."""

    def __init__(self, request: object) -> None:
        self.request = request
        """What the editor knows it by."""
        self.message: events.Submit | None = None
        self.work: asyncio.Task[list[runtime.SenderEvent]] | None = None
        self._unwanted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cancelled(self) -> bool:
        return self._unwanted.done()

    def cancel(self) -> None:
        if not self.cancelled:
            self._unwanted.set_result(None)
        if self.work is not None:
            self.work.cancel()

    async def ended(self, answered: asyncio.Future[events.TurnResult]) -> bool:
        """Until its turn has; whether it has. One that is not wanted any more is not waited for as long as it takes."""
        either: list[asyncio.Future[Any]] = [answered, self._unwanted]
        # Whoever stops waiting for the answer does not take the turn away.
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            await asyncio.wait([answered], timeout=STOPPING)
        return answered.done()


class Session:
    """One of those an editor has open. `begin` it, and `close` it before its door is closed."""

    def __init__(self, names: Names, door: runtime.Runtime, client: Client, models: Sequence[str] = ()) -> None:
        self.id, self.conversation_id, self._folder = names
        self._door, self._client, self._models = door, client, models
        self._teller = updates.Teller(self._folder)
        self._backlog = update_queue.Backlog()
        self._prompts: list[Prompt] = []
        self._questions = permissions.Questions(
            client,
            self.id,
            self.conversation_id,
            door.approvals,
            lambda remark: self._backlog.put(events.Notice(remark)),
        )
        self._log = log_follower.Following(door, self.conversation_id, self._teller, self._backlog, self._send)
        self._answers: list[events.Compacted | events.Notice] = []
        self.remarks: list[str] = []
        """What a person is to know of how it was opened; told with the next prompt."""
        self._gone = False
        self._model = ""
        self._commands: list[schema.AvailableCommand] = []
        self._listening = ExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._counting = set[asyncio.Task[None]]()
        self._in_order = asyncio.Lock()

    # --- opening -------------------------------------------------------------------------------------

    async def begin(self, replayed: bool = False) -> None:
        """Listen from now on; before that, tell all that was said so far, where that is wanted."""
        door, here = self._door, self.conversation_id
        await self._log.begin(replayed)
        self._model = self._answering()
        self._listening.enter_context(door.subscribe(here, can_approve=True, on_event=self._heard))
        self._listening.enter_context(door.db.notifications.listen(self._log.hinted))
        self._tasks = [asyncio.create_task(self._tell()), asyncio.create_task(self._look_out())]

    async def announce(self) -> None:
        """What an editor is told once it knows the session: its commands, and its title."""
        self._offer()
        with suppress(errors.HoldfastError):
            if (title := (await self._door.db.conversation(self.conversation_id)).title) is not None:
                self._backlog.put(update_queue.Ready(updates.titled(title)))

    def _offer(self) -> None:
        """The commands, where they are others than those that were told: servers may bring some later."""
        listed = [_command(each) for each in commands.list_commands(self._door, "editor")]
        if listed != self._commands:
            self._commands = listed
            update = schema.AvailableCommandsUpdate(
                session_update="available_commands_update", available_commands=listed
            )
            self._backlog.put(update_queue.Ready(update))

    # --- how it behaves ------------------------------------------------------------------------------

    @property
    def mode(self) -> approvals.Mode:
        return self._door.approvals.mode

    def _answering(self) -> str:
        return self._door.models.of(self.conversation_id).name if self._door.models else ""

    def options(self) -> list[schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean]:
        return modes.options(self.mode, self._answering(), self._models)

    def set_mode(self, mode: approvals.Mode) -> None:
        """From the next thing on that a tool wants to do."""
        self._door.approvals.set_mode(mode)

    async def set_model(self, name: str) -> None:
        """From the next turn on; RpcRefused where it cannot be had, or a turn runs."""
        said: list[events.AnyEvent] = []
        # Told by the answer alone: nobody typed a command.
        await commands.run(self._door, self.conversation_id, f"/model {name}", said.append, "editor")
        refused = [each.text for each in said if isinstance(each, events.Notice) and each.level == "error"]
        if refused:
            raise errors.RpcRefused(frames.PARAMS, " ".join(refused))
        self._model = self._answering()

    def follow(self, origin: str) -> None:
        """Be answered by whoever answers the conversation it came from."""
        if self._door.models is not None:
            self._door.models.follow(self.conversation_id, origin)
            self._model = self._answering()

    def tell_mode(self) -> None:
        """Of a mode that was chosen as an option."""
        self._backlog.put(
            update_queue.Ready(
                schema.CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.mode)
            )
        )

    def tell_options(self) -> None:
        """Of what is chosen now."""
        self._backlog.put(
            update_queue.Ready(
                schema.ConfigOptionUpdate(session_update="config_option_update", config_options=self.options())
            )
        )

    async def tell(self, update: updates.Update) -> None:
        """Something that a tool has to tell; returns when it was told."""
        self._backlog.put(
            update_queue.Shown(update) if isinstance(update, schema.ToolCallProgress) else update_queue.Ready(update)
        )
        await self._backlog.told()

    # --- prompts -------------------------------------------------------------------------------------

    async def prompt(self, said: conversion.Said, request: object = None) -> conversion.Stop:
        """To its end: what became of it, when all of it was told. RpcRefused where the turn failed."""
        prompt, others = Prompt(request), {*self._counting}
        self._prompts.append(prompt)
        while self.remarks:
            self._backlog.put(events.Notice(self.remarks.pop(0), "warning"))
        try:
            ended = await self._worked_on(prompt, said)
        except errors.HoldfastError:
            if not prompt.cancelled:
                await self._told(others)
                raise
            ended = "cancelled"
        await self._told(others)
        return "cancelled" if prompt.cancelled else ended

    async def _told(self, others: set[asyncio.Task[None]]) -> None:
        """Until all was told that there is to tell, and what was used, but for what was counted before."""
        if counting := self._counting - others:
            await asyncio.wait(counting, timeout=log_follower.SOON)
        await self._backlog.told()

    async def _worked_on(self, prompt: Prompt, said: conversion.Said) -> conversion.Stop:
        """Until there is nothing of it left to stop."""
        try:
            if said.is_plain and commands.is_command(said.text):
                return await self._carried_out(prompt, said.text)
            return await self._answered(prompt, await self._message(said))
        finally:
            self._prompts.remove(prompt)

    async def _message(self, said: conversion.Said) -> events.Submit:
        """A prompt as it is stored: pictures are kept as attachments."""
        if said.is_plain and commands.is_escaped(said.text):
            said = said.unescaped
        if said.is_plain and len(said.pieces) == 1:
            return events.Submit(said.typed, message_codec.generate_uid())
        content: list[dict[str, Any]] = []
        for piece in said.pieces:
            if isinstance(piece, conversion.Picture):
                blob = await self._door.db.blobs.put(piece.data, piece.media_type)
                content.append({"type": "image", "media_type": piece.media_type, "blob": blob.digest})
            elif piece.text:
                content.append(conversion.part(piece))
        return events.Submit(said.text, message_codec.generate_uid(), content)

    async def _answered(self, prompt: Prompt, message: events.Submit) -> conversion.Stop:
        if prompt.cancelled:
            return "cancelled"
        prompt.message = message
        answered = self._door.submit(self.conversation_id, message)
        if not await prompt.ended(answered) or answered.cancelled():
            return "cancelled"
        if (error := answered.exception()) is not None and not isinstance(error, errors.HoldfastError):
            # What it raised is logged where it ran.
            raise errors.RpcRefused(frames.INTERNAL, "The turn failed.")
        result = answered.result()
        if result.refused and result.error:
            self._backlog.put(events.Notice(result.error, "error"))
        try:
            return conversion.stop(result)
        except errors.RpcRefused:
            with suppress(TimeoutError):
                async with asyncio.timeout(log_follower.SOON):
                    await self._log.last()  # Of what is not there any more, that is what there is to say.
            raise

    async def _carried_out(self, prompt: Prompt, line: str) -> conversion.Stop:
        """A slash command; what it says is heard like everything else."""
        prompt.work = asyncio.create_task(self._command(line))
        await asyncio.wait([prompt.work])
        if prompt.work.cancelled():
            return "cancelled"
        for told in prompt.work.result():
            if isinstance(told, events.Say):
                return await self._answered(
                    prompt, events.Submit(told.text, message_codec.generate_uid(), told.content)
                )
        if self._answering() != self._model:
            self._model = self._answering()
            self.tell_options()
        return "end_turn"

    async def _command(self, line: str) -> list[runtime.SenderEvent]:
        told: list[runtime.SenderEvent] = []
        await self._door.send(self.conversation_id, events.Command(line, "editor"), told.append, self._says)
        return told

    def _says(self, event: events.AnyEvent) -> None:
        """What a command has to say is an answer, also where it is a remark to all others; but for how far it is."""
        if isinstance(event, events.Compacted) or (isinstance(event, events.Notice) and not event.text.endswith("…")):
            self._answers.append(event)

    def cancel(self) -> None:
        """Stop what runs and drop what waits, at whatever moment; what was said stays."""
        for prompt in self._prompts:
            prompt.cancel()
        for message in self._door.waiting(self.conversation_id):
            self._door.drop(self.conversation_id, message)
        self._door.interrupt(self.conversation_id)

    def drop(self, request: object) -> None:
        """Stop what one prompt began, or take it back where it only waits. The others of the session go on."""
        for prompt in self._prompts:
            if prompt.request != request or prompt.cancelled:
                continue
            prompt.cancel()
            if prompt.message is not None and not self._door.drop(self.conversation_id, prompt.message):
                self._door.interrupt(self.conversation_id)

    # --- what is heard -------------------------------------------------------------------------------

    def _heard(self, emitted: events.Emitted) -> None:
        if isinstance(emitted.event, events.MessageStored):
            self._log.expect(emitted.event.seq)
        self._backlog.put(emitted.event)
        if isinstance(emitted.event, events.TurnFinished | events.Compacted):
            counting = asyncio.create_task(self._count())
            self._counting.add(counting)
            counting.add_done_callback(self._counting.discard)

    async def _count(self) -> None:
        """What was used, when that is known: what is told meanwhile does not wait for it."""
        async with self._in_order:
            if not self._gone and (update := await usage.update(self._door, self.conversation_id)) is not None:
                self._backlog.put(update_queue.Ready(update))

    async def _look_out(self) -> None:
        while True:
            try:
                await self._log.look()
            except Exception:
                # The border of one look: what goes wrong in it keeps none of the next from being had.
                logger.exception("%s could not be looked at", self.conversation_id)
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._log.news.wait()
            self._offer()

    # --- what is told --------------------------------------------------------------------------------

    async def _tell(self) -> None:
        while True:
            item = await self._backlog.first()
            try:
                await self._tell_of(item)
            except ConnectionError:
                self._gone = True
            except Exception:
                # The border of one event: what cannot be told keeps nothing behind it from being told.
                logger.exception("the editor could not be told of something in %s", self.conversation_id)
            finally:
                self._backlog.done()

    async def _tell_of(self, item: update_queue.Item) -> None:
        match item:
            case update_queue.Ready(update):
                await self._send([update])
            case update_queue.Shown(update):
                await self._send(self._teller.shown(update))
            case update_queue.Found(message, pictures):
                await self._log.found(message, pictures)
            case events.MessageStored(seq, _, role):
                await self._log.stored(seq, role)
            case events.ToolFinished(call_id):
                await self._send(self._teller.tell(item, self._log.results.pop(call_id, None)))
            case events.ApprovalAsked():
                await self._send(self._teller.tell(item))
                self._questions.ask(item, self._teller.request(item))
            case events.TurnFinished() | events.Compacted():
                await self._ended(item)
            case events.Notice():
                await self._send(self._teller.tell(item, answers=self._is_answer(item)))
            case _:
                if isinstance(item, events.ApprovalSettled):
                    self._questions.settled(item.request_id)
                await self._send(self._teller.tell(item))

    async def _ended(self, event: events.TurnFinished | events.Compacted) -> None:
        if isinstance(event, events.TurnFinished):
            # Of calls that were broken off, nobody asks for what came.
            self._log.results.clear()
        await self._send(self._teller.tell(event, answers=self._is_answer(event)))

    def _is_answer(self, event: events.AnyEvent) -> bool:
        found = next((each for each in self._answers if each is event), None)
        if found is not None:
            self._answers = [each for each in self._answers if each is not event]
        return found is not None

    async def _send(self, updates: Sequence[updates.Update]) -> None:
        for update in updates if not self._gone else ():
            await self._client.session_update(self.id, update)

    # --- leaving -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop what runs, and let go. What was said stays."""
        self.cancel()
        await self._door.wait_idle(self.conversation_id)
        self._listening.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH):
                await self._backlog.told_all()
        await self._questions.close()
        tasks = [*self._tasks, *self._counting]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._backlog.close()
        await self._door.leave(self.conversation_id)


def _command(each: commands.CommandInfo) -> schema.AvailableCommand:
    hint = schema.AvailableCommandInput(root=schema.UnstructuredCommandInput(hint=each.argument))
    return schema.AvailableCommand(name=each.name, description=each.help, input=hint if each.argument else None)
