"""One turn from the lease to its result: it is taken, the message is stored, the loop runs, and the end is told.

Nothing of Holdfast's own errors leaves it: the result says what became of the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import loop, system_prompt, turn_lease, working_folder
from holdfast.store import async_db, leases, message_codec

if TYPE_CHECKING:
    from holdfast.agent import agent as agents

UNFINISHED = "The answer to this message was not finished."
KEPT = "Your message is kept: /retry asks again."
LOST = "This process was overtaken in the middle of the turn: another one goes on with the conversation."

Emit = Callable[[events.AnyEvent], None]


class Taking:
    """A turn from the lease to its result."""

    def __init__(
        self,
        agent: agents.AIAgent,
        text: str,
        content: types.Content,
        uid: str | None,
        emit: Emit,
        route: str | None = None,
        instructions: str = "",
        max_output: int | None = None,
    ) -> None:
        self._birth = msgspec.structs.replace(agent.birth, route=route) if route else agent.birth
        self._agent, self._text, self._content, self._emit = agent, text, content, emit
        self._message = types.NewMessage(role="user", content=content, uid=uid or message_codec.generate_uid())
        self._instructions, self._max_output = instructions, max_output
        self._first: types.Receipt | None = None
        self._change: working_folder.Change | None = None
        self.run: loop.Run | None = None

    @property
    def born(self) -> bool:
        """Whether the conversation began with this turn."""
        return self._first is not None

    async def result(self) -> events.TurnResult:
        try:
            async with AsyncExitStack() as stack:
                result = await self._under(await self._taken(stack))
                self._agent.last_seq = result.messages[-1].seq if result.messages else 0
                return result
        except errors.Busy as error:
            if self._agent.unwanted:
                return self.stopped()
            return self._done("busy", str(error))
        except errors.LeaseLost:
            return self._done("lease_lost", LOST)
        except errors.StoreError as error:
            return self._done("store", str(error))
        except errors.HoldfastError as error:
            return self._done("failed", str(error))

    def stopped(self) -> events.TurnResult:
        return self._done("interrupted", "The turn was interrupted before it began.")

    async def _taken(self, stack: AsyncExitStack) -> turn_lease.Turn:
        """The turn; a conversation nobody knows yet is born with its first message, and only then can be leased."""
        try:
            return await stack.enter_async_context(self._begin())
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            pass
        try:
            return await stack.enter_async_context(turn_lease.held(self._agent.db, await self._born()))
        except errors.IdTaken:
            # Somebody else began it meanwhile: this is a turn like any other.
            return await stack.enter_async_context(self._begin())

    async def _born(self) -> types.Lease | types.Snapshot:
        """The conversation with this message, and its first turn: nobody comes between."""
        db, name = self._agent.db, self._agent.conversation_id
        self._message = self._noted(None)
        try:
            taking = db.begin_conversation(name, self._message, self._birth, self._agent.lease_ttl)
            self._first, lease = await async_db.await_or_release(taking, lambda both: turn_lease.release(db, both[1]))
        except Exception as error:
            if not leases.is_lock_failure(error):
                raise
            (self._first,) = await db.append_messages(name, [self._message], create=self._birth)
            return await turn_lease.without_lease(db, name, error, self._warn)
        return lease

    def _begin(self) -> AbstractAsyncContextManager[turn_lease.Turn]:
        agent = self._agent
        return turn_lease.begin(
            agent.db,
            agent.conversation_id,
            patience=agent.patience,
            ttl=agent.lease_ttl,
            waiting=lambda holder: self._emit(events.TurnQueued(holder)),
            given_up=lambda: agent.unwanted,
            warn=self._warn,
        )

    def _warn(self, text: str) -> None:
        self._emit(events.Notice(text, "warning"))

    async def _under(self, taken: turn_lease.Turn) -> events.TurnResult:
        """Everything that happens while the turn is ours."""
        agent, snapshot = self._agent, taken.snapshot
        agent.conversation_id = snapshot.conversation_id
        agent.context_cache.settle(snapshot.epoch, snapshot.last_seq)
        here = agent.birth.folder
        if here is not None and snapshot.last_seq != agent.last_seq and not self.born:
            # The first turn of this agent, or the first one after another agent wrote: only then can the folder differ.
            self._change = await working_folder.changed(agent.db, agent.conversation_id, here)
        agent.system = system_prompt.instructed(
            await agent.memory.prompt(agent.plain, snapshot.head_id), self._instructions
        )
        self.run = run = agent.new_run(taken, self._message.uid or "", self._emit, self._max_output)
        receipt = await self._received(run)
        kind = content_parts.noticed(self._content)
        self._emit(events.TurnStarted(receipt.conversation_id, receipt.session_id, self._text, receipt.seq, kind))
        await agent.announce(self._emit)
        if self._change is not None:
            await self._change.record(agent.db, agent.conversation_id, self._emit)
        if receipt.duplicate and not self.born:
            answered = await self._answered(receipt.seq)
            if answered is not None:
                text, whole = answered
                return self._done("completed", None, text) if whole else self._done("cut", UNFINISHED, text)
        work = agent.start(run.go())
        taken.when_lost = work.cancel
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait([work])
            await self._closed(loop.INTERRUPTED)
            raise
        return await self._outcome(work, taken)

    async def _received(self, run: loop.Run) -> types.Receipt:
        """The user's message, in the log and in the view, once."""
        messages = await self._agent.context_cache.messages()
        if self._first is not None:
            run.written += [message for message in messages if message.uid == self._message.uid]
            self._emit(events.MessageStored(self._first.seq, self._first.uid, "user"))
            return self._first
        self._message = self._noted(next((each.at for each in reversed(messages) if each.role == "user"), None))
        try:
            return await run.append(self._message)
        except errors.UidReused as error:
            # The same words on another day or in another folder: only the notes differ.
            (stored,) = await self._agent.db.transcript(self._agent.conversation_id, error.seq - 1, error.seq)
            if content_parts.text(stored.content) != content_parts.text(self._message.content):
                raise
            snapshot = await self._agent.db.snapshot(self._agent.conversation_id)
            self._emit(events.MessageStored(stored.seq, stored.uid, "user"))
            return types.Receipt(
                stored.seq, stored.uid, stored.session_id, snapshot.conversation_id, snapshot.epoch, duplicate=True
            )

    def _noted(self, last_spoken: float | None) -> types.NewMessage:
        """The message, with a note of the day if it is the first one of a day, and of a change of folder."""
        now, content = self._agent.clock(), self._content
        day = system_prompt.day(now) if last_spoken is None or not system_prompt.same_day(last_spoken, now) else None
        notes = [content_parts.note(each) for each in (day, self._change and self._change.note) if each]
        if notes:
            said = [{"type": "text", "text": content}] if isinstance(content, str) else content
            content = [*notes, *said]
        return msgspec.structs.replace(self._message, content=content, at=now)

    async def _answered(self, seq: int) -> tuple[str, bool] | None:
        """What this message was answered with before, and whether to the end; None when it was not."""
        for message in await self._agent.db.transcript(self._agent.conversation_id, seq):
            if message.role == "user" and not message.uid.startswith(loop.STEERED):
                break
            if message.role == "assistant" and not message.tool_calls:
                return content_parts.text(message.content), not content_parts.is_cut(message.content)
        return None

    # --- how it ended --------------------------------------------------------------------------------

    async def _outcome(self, work: asyncio.Task[None], taken: turn_lease.Turn) -> events.TurnResult:
        if taken.lost:
            raise taken.hindrance or errors.LeaseLost()
        if work.cancelled():
            await self._closed(loop.INTERRUPTED)
            return self._done("interrupted", "The turn was interrupted.")
        error = work.exception()
        match error:
            case None:
                return self._done("completed")
            case loop.Stopped():
                await self._run_or_fail().say(error.sentence)
                return self._done(error.reason, error.sentence)
            case errors.LeaseLost() | errors.StoreError():
                raise error
            case errors.ModelError():
                await self._closed(loop.BROKE_OFF)
                return self._done(_exit_of(error), _sentence(error))
            case _:
                await self._closed(loop.BROKE_OFF)
                raise error

    def _run_or_fail(self) -> loop.Run:
        assert self.run is not None  # made before there was any work
        return self.run

    async def _closed(self, why: str) -> None:
        if not self._agent.abandoned:
            await self._run_or_fail().close(why)

    def _done(self, reason: events.Exit, error: str | None = None, answer: str | None = None) -> events.TurnResult:
        run, agent = self.run, self._agent
        said = run.answer if run and answer is None else answer or ""
        completed = reason == "completed"
        return events.TurnResult(
            final_response=said,
            messages=tuple(run.written) if run else (),
            api_calls=run.api_calls if run else 0,
            completed=completed,
            failed=not completed and reason not in ("interrupted", "steps", "cost"),
            partial=bool(said) and (not completed or (run is not None and run.short)),
            interrupted=reason == "interrupted",
            error=error,
            exit_reason=reason,
            usage=run.spent if run else types.Usage(),
            session_id=run.session_id if run else agent.session_id,
            conversation_id=agent.conversation_id,
            refused=run is not None and run.refused,
            truncated=agent.context_window.truncated if run else None,
        )


def _sentence(error: errors.ModelError) -> str:
    """What to tell of it; to ask again helps only where the model has said nothing and may yet."""
    return f"{error} {KEPT}" if error.retryable and not isinstance(error, errors.ModelCut) else str(error)


def _exit_of(error: errors.ModelError) -> events.Exit:
    if isinstance(error, errors.ContextOverflow):
        return "overflow"
    return "cut" if isinstance(error, errors.ModelCut) else "model"
