"""One turn from the lease to its result: acquire the lease, store the message, run the loop, report the outcome.

`AgentTurn.take` raises none of Holdfast's own errors: the result says what happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import loop, output, system_prompt, turn_lease, working_folder
from holdfast.store import async_db, held_lease, leases, message_codec

UNFINISHED = "The answer to this message was not finished."
RETRY = "Your message is stored: /retry asks again."
LEASE_LOST = "Another process took over the conversation during this turn and continues it."
NOT_BEGUN = "The turn was interrupted before it began."

Emit = Callable[[events.AnyEvent], None]


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A message to answer."""

    text: str
    content: types.Content
    """The message with its parts; equal to `text` if it is only text."""
    uid: str | None = None
    route: str | None = None
    """The route of a conversation that begins with this message; None: the agent's."""
    instructions: str = ""
    max_output: int | None = None
    output_format: output.OutputFormat | None = None


class AgentTurn:
    """One turn of an agent. `take` is called once; the other methods may be called from other tasks meanwhile."""

    def __init__(self, host: loop.TurnHost, request: TurnRequest, emit: Emit) -> None:
        self._host, self._request, self._emit = host, request, emit
        self._message = types.NewMessage(
            role="user", content=request.content, uid=request.uid or message_codec.generate_uid()
        )
        self._first: types.Receipt | None = None
        """The receipt of the message if the conversation began with it."""
        self._folder_change: working_folder.FolderChange | None = None
        self._loop: loop.TurnLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._interrupted = self._abandoned = False

    @property
    def cost(self) -> float:
        """US dollars that count against the cost limit."""
        return self._loop.cost if self._loop else 0.0

    def interrupt(self, *, abandon: bool = False) -> None:
        """Stop the turn. An abandoned turn writes nothing more, because another process takes it over."""
        self._interrupted, self._abandoned = True, self._abandoned or abandon
        if self._task is not None:
            self._task.cancel()

    def steer(self, steer: events.Steer) -> bool:
        """Pass a message to the model before its next step; return False if the turn does not accept it."""
        if self._loop is None or self._loop.is_over:
            return False
        self._loop.steering.append(steer)
        return True

    async def take(self) -> events.TurnResult:
        """Take the turn. Turns of one agent must not overlap; turns of different agents and processes queue up."""
        host = self._host
        result = await self._run()
        if self._loop is not None:
            self._loop.is_over = True
            if self._first is not None and result.completed and not content_parts.notice_kind(self._request.content):
                host.title.first_message = self._request.text
            await host.title.apply(host.db, host.context_cache.conversation_id, self._emit)
            # A background compaction may have created a new head since the last append.
            result = msgspec.structs.replace(result, session_id=host.context_cache.session_id)
        return result

    def refuse(self) -> events.TurnResult:
        """Return the result of a turn that was stopped before anything of it was stored."""
        return self._finish("interrupted", NOT_BEGUN)

    async def _run(self) -> events.TurnResult:
        try:
            async with AsyncExitStack() as stack:
                return await self._run_leased(await self._acquire(stack))
        except errors.Busy as error:
            return self.refuse() if self._interrupted else self._finish("busy", str(error))
        except errors.LeaseLost:
            return self._finish("lease_lost", LEASE_LOST)
        except errors.StoreError as error:
            return self._finish("store", str(error))
        except errors.HoldfastError as error:
            return self._finish("failed", str(error))

    # --- lease ---------------------------------------------------------------------------------------

    async def _acquire(self, stack: AsyncExitStack) -> held_lease.HeldLease:
        """Acquire the turn lease; a conversation that does not exist yet is created with this message."""
        try:
            return await stack.enter_async_context(self._wait_for_lease())
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            pass
        try:
            return await stack.enter_async_context(held_lease.hold(self._host.db, await self._create()))
        except errors.IdTaken:
            # Another process created it in between: this is an ordinary turn.
            return await stack.enter_async_context(self._wait_for_lease())

    async def _create(self) -> types.Lease | types.Snapshot:
        """Create the conversation, store the message and acquire the lease in one transaction."""
        db, conversation_id = self._host.db, self._host.context_cache.conversation_id
        conversation = self._host.new_conversation
        if self._request.route:
            conversation = msgspec.structs.replace(conversation, route=self._request.route)
        self._message = self._with_notes(None)
        try:
            creation = db.begin_conversation(
                conversation_id, self._message, conversation, self._host.turns.lease_ttl_seconds
            )
            self._first, lease = await async_db.await_or_release(creation, lambda both: held_lease.release(db, both[1]))
        except Exception as error:
            if not leases.is_lock_failure(error):
                raise
            (self._first,) = await db.append_messages(conversation_id, [self._message], create=conversation)
            return await turn_lease.without_lease(db, conversation_id, error, self._warn)
        return lease

    def _wait_for_lease(self) -> AbstractAsyncContextManager[held_lease.HeldLease]:
        return turn_lease.begin(
            self._host.db,
            self._host.context_cache.conversation_id,
            wait_seconds=self._host.turns.wait_seconds,
            ttl=self._host.turns.lease_ttl_seconds,
            on_wait=lambda holder: self._emit(events.TurnQueued(holder)),
            is_cancelled=lambda: self._interrupted,
            warn=self._warn,
        )

    def _warn(self, text: str) -> None:
        self._emit(events.Notice(text, "warning"))

    # --- under the lease -----------------------------------------------------------------------------

    async def _run_leased(self, held: held_lease.HeldLease) -> events.TurnResult:
        host, snapshot = self._host, held.snapshot
        cache, folder = host.context_cache, host.new_conversation.folder
        cache.conversation_id, cache.session_id = snapshot.conversation_id, snapshot.head_id
        cache.compare(snapshot.epoch, snapshot.last_seq)
        if folder is not None and self._first is None and cache.folder_seq != snapshot.last_seq:
            # The folder can differ only in the first turn of this agent, or after another agent wrote.
            self._folder_change = await working_folder.find_change(host.db, cache.conversation_id, folder)
        self._loop = running = await self._create_loop(held)
        receipt = await self._store_message(running)
        kind = content_parts.notice_kind(self._request.content)
        started = events.TurnStarted(receipt.conversation_id, receipt.session_id, self._request.text, receipt.seq, kind)
        self._emit(started)
        await host.announcements.emit(host.db, self._emit)
        if self._folder_change is not None:
            await self._folder_change.record(host.db, cache.conversation_id, self._emit)
        if receipt.duplicate and self._first is None and (answered := await self._find_answer(receipt.seq)):
            return answered
        self._task = task = asyncio.create_task(running.run())
        if self._interrupted:
            task.cancel()
        held.on_lost = task.cancel
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            await self._abort(running, loop.INTERRUPTED)
            raise
        result = await self._outcome(running, task, held)
        cache.folder_seq = result.messages[-1].seq if result.messages else 0
        return result

    async def _create_loop(self, held: held_lease.HeldLease) -> loop.TurnLoop:
        host, request = self._host, self._request
        output_section = request.output_format.instructions if request.output_format else ""
        client_section = system_prompt.client_section(request.instructions)
        system = await host.prompt.build(held.snapshot.head_id, client_section, output_section)
        host.context_window.begin_turn()
        uid = self._message.uid or ""
        return loop.TurnLoop(host, held, uid, system, self._emit, request.max_output, request.output_format)

    async def _store_message(self, running: loop.TurnLoop) -> types.Receipt:
        """Append the user's message once, and add it to the context."""
        db, cache = self._host.db, self._host.context_cache
        messages = await cache.messages()
        if self._first is not None:
            running.messages += [message for message in messages if message.uid == self._message.uid]
            self._emit(events.MessageStored(self._first.seq, self._first.uid, "user"))
            return self._first
        self._message = self._with_notes(next((each.at for each in reversed(messages) if each.role == "user"), None))
        try:
            return await running.append(self._message)
        except errors.UidReused as error:
            # The same text on another day or in another folder differs only in its notes.
            (stored,) = await db.transcript(cache.conversation_id, error.seq - 1, error.seq)
            if content_parts.text(stored.content) != content_parts.text(self._message.content):
                raise
            snapshot = await db.snapshot(cache.conversation_id)
            self._emit(events.MessageStored(stored.seq, stored.uid, "user"))
            return types.Receipt(
                stored.seq, stored.uid, stored.session_id, snapshot.conversation_id, snapshot.epoch, duplicate=True
            )

    def _with_notes(self, last_at: float | None) -> types.NewMessage:
        """Return the message with a note of the date, if it is the first of its day, and of a changed folder."""
        now, content = self._host.clock(), self._request.content
        date = None if last_at is not None and system_prompt.is_same_day(last_at, now) else system_prompt.date_note(now)
        folder = self._folder_change.note if self._folder_change else None
        notes = [content_parts.turn_note(each) for each in (date, folder) if each]
        if notes:
            content = [*notes, *([{"type": "text", "text": content}] if isinstance(content, str) else content)]
        return msgspec.structs.replace(self._message, content=content, at=now)

    async def _find_answer(self, seq: int) -> events.TurnResult | None:
        """Return the earlier result of a message that was sent again; None if it was not answered."""
        for message in await self._host.db.transcript(self._host.context_cache.conversation_id, seq):
            if message.role == "user" and not message.uid.startswith(loop.STEERED):
                return None
            if message.role == "assistant" and not message.tool_calls:
                answer = content_parts.text(message.content)
                if content_parts.is_cut(message.content):
                    return self._finish("cut", UNFINISHED, answer)
                output_format = self._request.output_format
                return self._finish("completed", None, answer, output_format and output_format.parse(answer))
        return None

    # --- outcome -------------------------------------------------------------------------------------

    async def _outcome(
        self, running: loop.TurnLoop, task: asyncio.Task[None], held: held_lease.HeldLease
    ) -> events.TurnResult:
        if held.lost:
            raise held.renewal_error or errors.LeaseLost()
        if task.cancelled():
            await self._abort(running, loop.INTERRUPTED)
            return self._finish("interrupted", "The turn was interrupted.")
        error = task.exception()
        match error:
            case None:
                return self._finish("completed", output=running.output)
            case loop.TurnLimitReached():
                await running.append_own_answer(error.sentence)
                return self._finish(error.reason, error.sentence)
            case errors.OutputInvalid():
                return self._finish("failed", str(error))
            case errors.LeaseLost() | errors.StoreError():
                raise error
            case errors.ModelError():
                await self._abort(running, loop.CONNECTION_LOST)
                if isinstance(error, errors.ModelCut):
                    return self._finish("cut", str(error))
                # A retry helps only if the model has said nothing and may answer later.
                retry = f" {RETRY}" if error.retryable else ""
                reason: events.Exit = "overflow" if isinstance(error, errors.ContextOverflow) else "model"
                return self._finish(reason, f"{error}{retry}")
            case _:
                await self._abort(running, loop.CONNECTION_LOST)
                raise error

    async def _abort(self, running: loop.TurnLoop, why: str) -> None:
        if not self._abandoned:
            await running.abort(why)

    def _finish(
        self, reason: events.Exit, error: str | None = None, answer: str | None = None, output: Any = None
    ) -> events.TurnResult:
        running, cache = self._loop, self._host.context_cache
        text = running.answer if running and answer is None else answer or ""
        completed = reason == "completed"
        return events.TurnResult(
            final_response=text,
            messages=tuple(running.messages) if running else (),
            api_calls=running.api_calls if running else 0,
            completed=completed,
            failed=not completed and reason not in ("interrupted", "steps", "cost"),
            partial=bool(text) and (not completed or (running is not None and running.is_truncated)),
            interrupted=reason == "interrupted",
            error=error,
            exit_reason=reason,
            usage=running.spent if running else types.Usage(),
            session_id=cache.session_id,
            conversation_id=cache.conversation_id,
            refused=running is not None and running.is_refused,
            truncated=self._host.context_window.truncated if running else None,
            output=output,
        )
