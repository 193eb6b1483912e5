"""AIAgent: a model, tools and one conversation of the store, ready to take turns.

It keeps nothing that the store does not have, but for a view of the context that it checks before every use.
Any number of agents, in any number of processes, may be made for one conversation: their turns are serial.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec

from holdfast import errors, events, parts, types
from holdfast.agent import ambient, context, loop, naming, prompt, room, turn
from holdfast.compaction import compress, policy, summary
from holdfast.compaction import port as compaction
from holdfast.model import port as models
from holdfast.model import tokens
from holdfast.store import aio, bodies, db, state
from holdfast.tools import port as tools_port
from holdfast.tools import registry

logger = logging.getLogger("holdfast.agent")

PATIENCE = 600.0
UNFINISHED = "The answer to this message was not finished."
LOST = "This process was overtaken in the middle of the turn: another one goes on with the conversation."

Emit = Callable[[events.AnyEvent], None]


def _nobody(_: events.AnyEvent) -> None:
    """Nobody listens."""


class AIAgent:
    """Takes turns of one conversation.

    `session_id` may be any session of it, however old; without one, or with an id nobody has, a new conversation
    begins with the first message. `db` may be a SessionDB or an AsyncSessionDB. `patience` is how many seconds a
    message waits for a turn that runs elsewhere. After each turn `session_id` is the head.
    """

    def __init__(
        self,
        *,
        db: db.SessionDB | aio.AsyncSessionDB,
        model: models.Model,
        session_id: str | None = None,
        summarizer: compaction.Summarizer | Sequence[compaction.Summarizer] | None = None,
        compaction_policy: policy.Policy | None = None,
        background: bool = True,
        hooks: compress.Hooks | None = None,
        tools: Sequence[tools_port.Tool] = (),
        limits: loop.Limits | None = None,
        meter: tokens.Meter | None = None,
        folder: str | None = None,
        memory: str = "",
        source: str = "library",
        owner: str = "",
        route: str | None = None,
        title: str | None = None,
        patience: float = PATIENCE,
        lease_ttl: float = turn.TTL,
        skip_context_files: bool = False,
        skip_memory: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.db = db if isinstance(db, aio.AsyncSessionDB) else aio.AsyncSessionDB(db)
        self.model = model
        self.session_id = session_id or state.mint_session_id(clock())
        self.conversation_id = self.session_id
        self.tools = registry.Registry(tools)
        self.limits = limits or loop.Limits()
        self.meter = meter or tokens.Meter()
        self.system = prompt.system(
            None if skip_context_files else folder or os.getcwd(), "" if skip_memory else memory
        )
        self.wanted_title = title
        self.view = context.View(self.db, self.session_id)
        self.policy = compaction_policy or policy.Policy()
        given = summarizer or summary.ModelSummarizer(model)
        self.summarizers = tuple(given) if isinstance(given, Sequence) else (given,)
        self.hooks = hooks or compress.Hooks()
        self._closed = False
        self.room = room.Room(self.view, self.compaction_work, background)
        self.birth = types.NewConversation(source=source, owner=owner, route=route, model=model.name)
        self.patience, self.lease_ttl, self.clock = patience, lease_ttl, clock
        self._one_at_a_time = asyncio.Lock()
        self._run: loop.Run | None = None
        self._work: asyncio.Task[None] | None = None
        self._interrupted = False

    # --- what others may do to a turn ----------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a turn of this agent is under way."""
        return self._one_at_a_time.locked()

    @property
    def unwanted(self) -> bool:
        """Whether the turn under way was interrupted."""
        return self._interrupted

    @property
    def in_use(self) -> bool:
        """Whether anything of this agent's is under way: a turn, or a compaction beside the turns."""
        return self.busy or self.room.under_way

    def interrupt(self) -> bool:
        """Stop the turn under way, model and tools; what was said stays. Whether there was one."""
        self._interrupted = self.busy
        if self._work is not None:
            self._work.cancel()
        return self._interrupted

    def steer(self, text: str) -> bool:
        """Tell the turn under way something before its next step. Whether there was one to tell."""
        if self._run is None or self._run.over:
            return False
        self._run.steering.append(text)
        return True

    async def context_tokens(self) -> int:
        """How much of the model's window the next request takes, by the meter; without a conversation, its prompt."""
        try:
            messages = await self.view.messages()
        except errors.NoSuchSession:
            messages = ()
        return self.meter.count(self.system, self.tools.specs, messages)

    # --- compaction ----------------------------------------------------------------------------------

    def compaction_work(self) -> compress.Work:
        """All a compaction of this conversation needs to know, as of now."""
        return compress.Work(
            db=self.db,
            conversation_id=self.conversation_id,
            meter=self.meter,
            window=self.model.window,
            system=self.system,
            tools=self.tools.specs,
            summarizers=self.summarizers,
            policy=self.policy,
            hooks=self.hooks,
            clock=self.clock,
            ttl=self.lease_ttl,
        )

    async def compress_context(
        self,
        focus: str | None = None,
        force: bool = False,
        *,
        keep_exchanges: int | None = None,
        emit: Emit = _nobody,
    ) -> compaction.Compaction:
        """Let a summary stand for the older part of the conversation; all ways to compact are this one.

        The outcome says what became of it. Whoever did not compact has its messages and its session as before, and
        finds the head at its next turn. `force` passes cool-down and frequency; `focus` gets most of the room.
        """
        asked = compress.Asked(
            expected=None if force else self.session_id, focus=focus, force=force, keep_exchanges=keep_exchanges
        )
        before = tuple(await self.view.messages())
        made = await self.room.compact(asked, emit)
        if made.outcome is compaction.Outcome.COMPACTED:
            self.session_id = made.session_id
            self.view.forget()
            return made
        return msgspec.structs.replace(made, messages=before, session_id=self.session_id)

    # --- a turn --------------------------------------------------------------------------------------

    async def run_conversation(
        self,
        text: str,
        *,
        content: types.Content | None = None,
        uid: str | None = None,
        emit: Emit = _nobody,
    ) -> events.TurnResult:
        """One turn: the message is stored, the model answers, what it calls is run, all of it is stored.

        Nothing of this family of errors is raised: the result says what became of the turn. `content` has the
        message with its parts, where it has more than text. The same uid again is the same message: it is
        stored once, and answered once.
        """
        async with self._one_at_a_time:
            self._interrupted = False
            taking = _Turn(self, text, content or text, uid, emit)
            try:
                with ambient.working_for(self.conversation_id, self.db.db):
                    result = await taking.result()
            finally:
                self._run = self._work = None
            self.session_id, self.conversation_id = result.session_id, result.conversation_id
            if taking.run is not None:
                first_words = text if taking.born and result.completed else None
                wanted = self.wanted_title
                self.wanted_title = await naming.settle(self.db, self.conversation_id, wanted, first_words, emit)
        emit(events.TurnFinished(result))
        return result

    def not_begun(self, emit: Emit) -> events.TurnResult:
        """The result of a turn that was stopped before anything of it was stored."""
        result = _Turn(self, "", "", None, emit).stopped()
        emit(events.TurnFinished(result))
        return result

    def new_run(self, taken: turn.Turn, uid: str, emit: Emit) -> loop.Run:
        """The loop of a turn that was just taken."""
        self.room.new_turn()
        self._run = loop.Run(
            turn=taken,
            uid=uid,
            view=self.view,
            room=self.room,
            model=self.model,
            tools=self.tools,
            system=self.system,
            meter=self.meter,
            limits=self.limits,
            emit=emit,
            clock=self.clock,
        )
        return self._run

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The work of a turn, in a task that can be interrupted; at once, if that was asked for meanwhile."""
        self._work = asyncio.create_task(work)
        if self._interrupted:
            self._work.cancel()
        return self._work

    async def close(self) -> None:
        """Stop what is under way. The store and the model belong to whoever made them."""
        self.interrupt()
        async with self._one_at_a_time:
            await self.room.close()
            if not self._closed:
                self._closed = True
                await compress.told(self.hooks.closing, await self._head())

    async def _head(self) -> str:
        """The head now; the session this agent knows, where the store cannot say."""
        try:
            return (await self.db.head(self.conversation_id)).id
        except errors.HoldfastError:
            return self.session_id


class _Turn:
    """A turn from the lease to its result."""

    def __init__(self, agent: AIAgent, text: str, content: types.Content, uid: str | None, emit: Emit) -> None:
        self._agent, self._text, self._content, self._emit = agent, text, content, emit
        self._message = types.NewMessage(role="user", content=content, uid=uid or bodies.mint_uid())
        self._first: types.Receipt | None = None
        self.run: loop.Run | None = None

    @property
    def born(self) -> bool:
        """Whether the conversation began with this turn."""
        return self._first is not None

    async def result(self) -> events.TurnResult:
        try:
            async with AsyncExitStack() as stack:
                return await self._under(await self._taken(stack))
        except errors.TurnBusy as error:
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

    async def _taken(self, stack: AsyncExitStack) -> turn.Turn:
        """The turn; a conversation nobody knows yet is born with its first message, and only then can be leased."""
        try:
            return await stack.enter_async_context(self._begin())
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            pass
        try:
            return await stack.enter_async_context(turn.held(self._agent.db, await self._born()))
        except errors.IdTaken:
            # Somebody else began it meanwhile: this is a turn like any other.
            return await stack.enter_async_context(self._begin())

    async def _born(self) -> types.Lease:
        """The conversation with this message, and its first turn: nobody comes between."""
        agent = self._agent
        self._message = self._dated(None)
        taking = agent.db.begin_conversation(agent.conversation_id, self._message, agent.birth, agent.lease_ttl)
        self._first, lease = await aio.kept(taking, lambda both: agent.db.release_lease(both[1]))
        return lease

    def _begin(self) -> AbstractAsyncContextManager[turn.Turn]:
        agent = self._agent
        return turn.begin(
            agent.db,
            agent.conversation_id,
            patience=agent.patience,
            ttl=agent.lease_ttl,
            waiting=lambda holder: self._emit(events.TurnQueued(holder)),
            given_up=lambda: agent.unwanted,
        )

    async def _under(self, taken: turn.Turn) -> events.TurnResult:
        """Everything that happens while the turn is ours."""
        agent, snapshot = self._agent, taken.lease.snapshot
        agent.conversation_id = snapshot.conversation_id
        agent.view.settle(snapshot.epoch, snapshot.last_seq)
        self.run = run = agent.new_run(taken, self._message.uid or "", self._emit)
        receipt = await self._received(run)
        self._emit(events.TurnStarted(receipt.conversation_id, receipt.session_id, self._text, receipt.seq))
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
        messages = await self._agent.view.messages()
        if self._first is not None:
            run.written += [message for message in messages if message.uid == self._message.uid]
            self._emit(events.MessageStored(self._first.seq, self._first.uid, "user"))
            return self._first
        self._message = self._dated(next((each.at for each in reversed(messages) if each.role == "user"), None))
        try:
            return await run.append(self._message)
        except errors.UidReused as error:
            # The same words on another day: only the note that says which day it is differs.
            (stored,) = await self._agent.db.transcript(self._agent.conversation_id, error.seq - 1, error.seq)
            if parts.text(stored.content) != parts.text(self._message.content):
                raise
            snapshot = await self._agent.db.snapshot(self._agent.conversation_id)
            return types.Receipt(
                stored.seq, stored.uid, stored.session_id, snapshot.conversation_id, snapshot.epoch, duplicate=True
            )

    def _dated(self, last_spoken: float | None) -> types.NewMessage:
        """The message, with a note of the day if it is the first one of a day."""
        now, content = self._agent.clock(), self._content
        if last_spoken is None or not prompt.same_day(last_spoken, now):
            said = [{"type": "text", "text": content}] if isinstance(content, str) else content
            content = [parts.note(prompt.day(now)), *said]
        return msgspec.structs.replace(self._message, content=content, at=now)

    async def _answered(self, seq: int) -> tuple[str, bool] | None:
        """What this message was answered with before, and whether to the end; None when it was not."""
        for message in await self._agent.db.transcript(self._agent.conversation_id, seq):
            if message.role == "user" and not message.uid.startswith(loop.STEERED):
                break
            if message.role == "assistant" and not message.tool_calls:
                return parts.text(message.content), not parts.is_cut(message.content)
        return None

    # --- how it ended --------------------------------------------------------------------------------

    async def _outcome(self, work: asyncio.Task[None], taken: turn.Turn) -> events.TurnResult:
        if taken.lost:
            return self._done("lease_lost", LOST)
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
                return self._done(_exit_of(error), str(error))
            case _:
                await self._closed(loop.BROKE_OFF)
                raise error

    def _run_or_fail(self) -> loop.Run:
        assert self.run is not None  # made before there was any work
        return self.run

    async def _closed(self, why: str) -> None:
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
            usage=run.usage if run else types.Usage(),
            session_id=run.session_id if run else agent.session_id,
            conversation_id=agent.conversation_id,
        )


def _exit_of(error: errors.ModelError) -> events.Exit:
    if isinstance(error, errors.ContextOverflow):
        return "overflow"
    return "cut" if isinstance(error, errors.ModelCut) else "model"
