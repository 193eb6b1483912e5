"""One turn from the lease to its result: acquire the lease, store the message, run the loop, report the outcome.

`take` gets everything a turn needs as values and services, and returns the result. It raises none of Holdfast's own
errors: the result says what happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import (
    context_cache,
    context_files,
    context_window,
    loop,
    output,
    settings,
    system_prompt,
    titles,
    turn_lease,
    working_folder,
)
from holdfast.model import base as models
from holdfast.model import tokens
from holdfast.store import async_db, held_lease, leases, message_codec
from holdfast.tools import registry

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


class TurnServices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the turns of one agent share."""

    db: async_db.AsyncSessionDB
    model: models.Model
    tools: registry.Registry
    prompt: system_prompt.SystemPrompt
    cache: context_cache.ContextCache
    window: context_window.ContextWindow
    meter: tokens.Meter
    title: titles.PendingTitle
    files: context_files.Announcements
    limits: settings.Limits
    turns: settings.TurnSettings
    conversation: types.NewConversation
    clock: Callable[[], float]


class TurnControl:
    """Interrupts, abandons or steers the running turn of an agent, from other tasks."""

    def __init__(self) -> None:
        self.is_interrupted = self.is_abandoned = False
        """`is_abandoned`: the turn writes nothing more, because another process takes it over."""
        self._task: asyncio.Task[None] | None = None
        self._loop: loop.TurnLoop | None = None

    def begin(self) -> None:
        self.is_interrupted = self.is_abandoned = False

    def end(self) -> None:
        self._task = self._loop = None

    def start(self, running: loop.TurnLoop) -> asyncio.Task[None]:
        """Start the loop of the turn; cancel it at once if the turn was interrupted before."""
        self._task = asyncio.create_task(running.run())
        if self.is_interrupted:
            self._task.cancel()
        return self._task

    def accept_steering(self, running: loop.TurnLoop) -> None:
        self._loop = running

    def interrupt(self) -> None:
        self.is_interrupted = True
        if self._task is not None:
            self._task.cancel()

    def steer(self, steer: events.Steer) -> bool:
        """Pass a message to the model before its next step; return False if no loop accepts it."""
        if self._loop is None or self._loop.is_over:
            return False
        self._loop.steering.append(steer)
        return True


class TurnOutcome(msgspec.Struct, frozen=True):
    """The result of a turn, and what its cost limit leaves in US dollars (None: no limit)."""

    result: events.TurnResult
    allowance: float | None


async def take(services: TurnServices, request: TurnRequest, control: TurnControl, emit: Emit) -> TurnOutcome:
    """Take one turn. Turns of one agent must not overlap; turns of different agents and processes queue up."""
    turn = _Turn(services, request, control, emit)
    try:
        result = await turn.run()
    finally:
        control.end()
    if turn.loop is not None:
        if turn.is_first and result.completed and not content_parts.notice_kind(request.content):
            services.title.first_message = request.text
        await services.title.apply(services.db, services.cache.conversation_id, emit)
        # A background compaction may have created a new head since the last append.
        result = msgspec.structs.replace(result, session_id=services.cache.session_id)
    limit = services.limits.cost
    allowance = None if limit is None else limit - (turn.loop.cost if turn.loop else 0.0)
    return TurnOutcome(result, allowance)


def interrupted_before_start(services: TurnServices) -> events.TurnResult:
    """Return the result of a turn that was stopped before anything of it was stored."""
    return _result(services, None, "interrupted", NOT_BEGUN)


class _Turn:
    """The state of one turn."""

    def __init__(self, services: TurnServices, request: TurnRequest, control: TurnControl, emit: Emit) -> None:
        self._services, self._request, self._control, self._emit = services, request, control, emit
        self._message = types.NewMessage(
            role="user", content=request.content, uid=request.uid or message_codec.generate_uid()
        )
        self._first: types.Receipt | None = None
        self._folder_change: working_folder.FolderChange | None = None
        self.loop: loop.TurnLoop | None = None

    @property
    def is_first(self) -> bool:
        """Whether the conversation began with this turn."""
        return self._first is not None

    async def run(self) -> events.TurnResult:
        try:
            async with AsyncExitStack() as stack:
                return await self._run_leased(await self._acquire(stack))
        except errors.Busy as error:
            if self._control.is_interrupted:
                return self._finish("interrupted", NOT_BEGUN)
            return self._finish("busy", str(error))
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
            return await stack.enter_async_context(held_lease.hold(self._services.db, await self._create()))
        except errors.IdTaken:
            # Another process created it in between: this is an ordinary turn.
            return await stack.enter_async_context(self._wait_for_lease())

    async def _create(self) -> types.Lease | types.Snapshot:
        """Create the conversation, store the message and acquire the lease in one transaction."""
        db, conversation_id = self._services.db, self._services.cache.conversation_id
        conversation = self._services.conversation
        if self._request.route:
            conversation = msgspec.structs.replace(conversation, route=self._request.route)
        self._message = self._with_notes(None)
        try:
            creation = db.begin_conversation(
                conversation_id, self._message, conversation, self._services.turns.lease_ttl_seconds
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
            self._services.db,
            self._services.cache.conversation_id,
            wait_seconds=self._services.turns.wait_seconds,
            ttl=self._services.turns.lease_ttl_seconds,
            on_wait=lambda holder: self._emit(events.TurnQueued(holder)),
            is_cancelled=lambda: self._control.is_interrupted,
            warn=self._warn,
        )

    def _warn(self, text: str) -> None:
        self._emit(events.Notice(text, "warning"))

    # --- under the lease -----------------------------------------------------------------------------

    async def _run_leased(self, held: held_lease.HeldLease) -> events.TurnResult:
        services, snapshot = self._services, held.snapshot
        cache, folder = services.cache, services.conversation.folder
        cache.conversation_id, cache.session_id = snapshot.conversation_id, snapshot.head_id
        cache.compare(snapshot.epoch, snapshot.last_seq)
        if folder is not None and not self.is_first and cache.folder_seq != snapshot.last_seq:
            # The folder can differ only in the first turn of this agent, or after another agent wrote.
            self._folder_change = await working_folder.find_change(services.db, cache.conversation_id, folder)
        self.loop = running = await self._create_loop(held)
        receipt = await self._store_message(running)
        kind = content_parts.notice_kind(self._request.content)
        started = events.TurnStarted(receipt.conversation_id, receipt.session_id, self._request.text, receipt.seq, kind)
        self._emit(started)
        await services.files.emit(services.db, self._emit)
        if self._folder_change is not None:
            await self._folder_change.record(services.db, cache.conversation_id, self._emit)
        if receipt.duplicate and not self.is_first and (answered := await self._find_answer(receipt.seq)):
            return answered
        task = self._control.start(running)
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
        services, request = self._services, self._request
        output_section = request.output_format.instructions if request.output_format else ""
        client_section = system_prompt.client_section(request.instructions)
        system = await services.prompt.build(held.snapshot.head_id, client_section, output_section)
        services.window.begin_turn()
        running = loop.TurnLoop(
            turn=held,
            uid=self._message.uid or "",
            cache=services.cache,
            window=services.window,
            model=services.model,
            tools=services.tools,
            system=system,
            meter=services.meter,
            limits=services.limits.with_output(request.max_output),
            emit=self._emit,
            output_format=request.output_format,
            clock=services.clock,
        )
        self._control.accept_steering(running)
        return running

    async def _store_message(self, running: loop.TurnLoop) -> types.Receipt:
        """Append the user's message once, and add it to the context."""
        db, cache = self._services.db, self._services.cache
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
        now, content = self._services.clock(), self._request.content
        date = None if last_at is not None and system_prompt.is_same_day(last_at, now) else system_prompt.date_note(now)
        folder = self._folder_change.note if self._folder_change else None
        notes = [content_parts.note(each) for each in (date, folder) if each]
        if notes:
            content = [*notes, *([{"type": "text", "text": content}] if isinstance(content, str) else content)]
        return msgspec.structs.replace(self._message, content=content, at=now)

    async def _find_answer(self, seq: int) -> events.TurnResult | None:
        """Return the earlier result of a message that was sent again; None if it was not answered."""
        for message in await self._services.db.transcript(self._services.cache.conversation_id, seq):
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
                # A retry helps only if the model has said nothing and may answer later.
                retry = f" {RETRY}" if error.retryable and not isinstance(error, errors.ModelCut) else ""
                return self._finish(_exit_reason(error), f"{error}{retry}")
            case _:
                await self._abort(running, loop.CONNECTION_LOST)
                raise error

    async def _abort(self, running: loop.TurnLoop, why: str) -> None:
        if not self._control.is_abandoned:
            await running.abort(why)

    def _finish(
        self, reason: events.Exit, error: str | None = None, answer: str | None = None, output: Any = None
    ) -> events.TurnResult:
        return _result(self._services, self.loop, reason, error, answer, output)


def _result(
    services: TurnServices,
    running: loop.TurnLoop | None,
    reason: events.Exit,
    error: str | None = None,
    answer: str | None = None,
    output: Any = None,
) -> events.TurnResult:
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
        session_id=services.cache.session_id,
        conversation_id=services.cache.conversation_id,
        refused=running is not None and running.is_refused,
        truncated=services.window.truncated if running else None,
        output=output,
    )


def _exit_reason(error: errors.ModelError) -> events.Exit:
    if isinstance(error, errors.ContextOverflow):
        return "overflow"
    return "cut" if isinstance(error, errors.ModelCut) else "model"
