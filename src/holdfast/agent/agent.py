"""AIAgent: a model, tools and one conversation of a store.

    agent = AIAgent("openai/gpt-5", instructions="Be brief.", db="chat.db", session_id="trip")
    result = await agent.run_conversation("When does my train leave?")

The agent keeps no state that the store does not have, except for a cache that is checked before every use. Any number
of agents, in any number of processes, can work on one conversation: their turns run one after the other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Self

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import (
    approvals,
    context_cache,
    context_window,
    current_session,
    output,
    request_images,
    settings,
    system_prompt,
    titles,
    turn,
    usage,
)
from holdfast.agent import context_files as project_files
from holdfast.agent import memory as agent_memory
from holdfast.compaction import base as compaction_base
from holdfast.compaction import compress, summary
from holdfast.compaction import hooks as compaction_hooks
from holdfast.model import base as models
from holdfast.model import providers, retry, tokens
from holdfast.store import async_db, conversation_row, db
from holdfast.store import titles as store_titles
from holdfast.tools import base as tools_base
from holdfast.tools import decorator, registry

logger = logging.getLogger("holdfast.agent")

_numbers = itertools.count(1)

Emit = Callable[[events.AnyEvent], None]
Store = str | os.PathLike[str] | db.SessionDB | async_db.AsyncSessionDB
ToolLike = tools_base.Tool | Callable[..., Any]


def _discard(_: events.AnyEvent) -> None:
    """Ignore an event."""


class AIAgent:
    """Answers messages of one conversation with a model and tools.

    `model` is a string such as `"anthropic/claude-sonnet-4-5"` (the key comes from the environment) or a Model object.
    `instructions` replace the default system prompt; a function is called at every turn. `tools` are Tool objects or
    typed functions with a docstring. `db` is a path, a PostgreSQL DSN, a SessionDB or an AsyncSessionDB; without one,
    the conversation is kept in memory. `session_id` is any session of a conversation; an unknown id, or none, begins a
    new conversation with the first message.

    `approve` is called for every action that needs approval; without it, tools may only read. `context_files` adds the
    project's AGENTS.md to the system prompt. Temporary errors of the model are retried, `attempts` requests in all.
    The remaining parameters are groups of settings, see `holdfast.settings`.

    `close` (or `async with`, or `with` for `run_sync`) stops background work and closes what the agent opened: a
    database given as a path or DSN, a model given as a string.
    """

    def __init__(
        self,
        model: models.Model | str,
        instructions: system_prompt.Instructions = "",
        *,
        tools: Sequence[ToolLike] = (),
        db: Store = ":memory:",
        session_id: str | None = None,
        approve: approvals.Approve | None = None,
        permissions: approvals.Approvals | None = None,
        tool_source: tools_base.Source | None = None,
        context_files: bool = False,
        attempts: int = providers.ATTEMPTS,
        limits: settings.Limits = settings.LIMITS,
        compaction: settings.CompactionSettings = settings.COMPACTION,
        memory: settings.MemorySettings = settings.MEMORY,
        conversation: settings.ConversationSettings = settings.CONVERSATION,
        turns: settings.TurnSettings = settings.TURNS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._owns_model, self._owns_db = isinstance(model, str), isinstance(db, str | os.PathLike)
        self.model = _model(model, attempts)
        self.db = _store(db)
        self.name = f"{conversation.source}#{next(_numbers)}"
        """The name of the agent within its process, recorded with its leases."""
        self.context_cache = context_cache.ContextCache(
            self.db, session_id or conversation_row.generate_session_id(clock())
        )
        self.limits, self.hooks, self.clock = limits, compaction.hooks, clock
        self.memory = self._create_memory(memory, conversation.owner)
        self.approvals = permissions or approvals.Approvals(
            self.db.permissions, owner=conversation.owner, approve=approve
        )
        own_tools = [each if isinstance(each, tools_base.Tool) else decorator.tool(each) for each in tools]
        self.tools = registry.Registry(
            self.approvals.guard([*own_tools, *self.memory.tools]),
            self.approvals.gate(lambda: self.conversation_id, self._forward),
            keep=self._store_output,
            more=tool_source,
        )
        self.context_files: tuple[project_files.ContextFile, ...] = ()
        if context_files:
            folder = conversation.folder or os.getcwd()
            self.context_files = project_files.read(folder, off_limits=[self.db.db.path])
        self.prompt = system_prompt.SystemPrompt(instructions, self.context_files, memory.text, self.memory)
        self.meter = compaction.meter or tokens.Meter()
        self.policy, self.summarizers = compaction.policy, _summarizers(compaction.summarizer, self.model)
        self.context_window = context_window.ContextWindow(
            self.context_cache, self.compaction_job, compaction.background
        )
        self.images = request_images.RequestImages(self.db)
        self.title = titles.PendingTitle(conversation.title)
        self.turns = turns
        self.announcements = project_files.Announcements(() if turns.quiet else self.context_files)
        self.new_conversation = types.NewConversation(
            source=conversation.source,
            owner=conversation.owner,
            route=conversation.route,
            model=self.model.name,
            folder=store_titles.local_folder(conversation.folder) if conversation.record_folder else None,
        )
        self._turn: turn.AgentTurn | None = None
        self._lock = asyncio.Lock()
        self._emit: Emit = _discard
        """The listener of the current turn, or of the last one: a review continues after its turn."""
        self._hooks_called = self._leave_after_turn = False
        self._runner: asyncio.Runner | None = None

    def _create_memory(self, memory: settings.MemorySettings, owner: str) -> agent_memory.AgentMemory:
        async def charge(used: types.Usage) -> None:
            await usage.charge_review(self.db, self.conversation_id, used)

        if not memory.enabled:
            return agent_memory.AgentMemory()
        notes = agent_memory.Notes(self.db, owner, lambda: self.conversation_id, self._forward)
        return agent_memory.AgentMemory(notes, self.model if memory.review else None, charge)

    def _forward(self, event: events.AnyEvent) -> None:
        self._emit(event)

    def __enter__(self) -> Self:
        """Keep the agent open for several calls of `run_sync`."""
        self._runner = asyncio.Runner()
        return self

    def __exit__(self, *_: object) -> None:
        runner, self._runner = self._runner, None
        assert runner is not None
        with runner:
            runner.run(self.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- state ---------------------------------------------------------------------------------------

    @property
    def conversation_id(self) -> str:
        return self.context_cache.conversation_id

    @property
    def session_id(self) -> str:
        """The head session of the conversation, as of the last turn or compaction of this agent."""
        return self.context_cache.session_id

    @property
    def busy(self) -> bool:
        """Whether a turn of this agent is running."""
        return self._lock.locked()

    @property
    def in_use(self) -> bool:
        """Whether a turn, a compaction or a memory review of this agent is running."""
        return self.busy or self.context_window.is_compacting or self.memory.is_reviewing

    async def context_tokens(self) -> int:
        """Estimate the tokens of the next request, at most the hard threshold: larger requests are shortened."""
        try:
            messages = await self.context_cache.messages()
        except errors.NoSuchSession:
            messages = ()
        counted = self.meter.count(self.prompt.text, self.tools.specs, messages)
        return min(counted, compress.thresholds(self.compaction_job())[1])

    # --- turns ---------------------------------------------------------------------------------------

    async def run_conversation(
        self,
        text: str,
        *,
        content: types.Content | None = None,
        uid: str | None = None,
        route: str | None = None,
        instructions: str = "",
        max_output: int | None = None,
        output_type: Any = None,
        emit: Emit = _discard,
    ) -> events.TurnResult:
        """Answer one message: store it, ask the model, run the tools it calls, store everything.

        Raises none of Holdfast's own errors: the result says what happened, and `result.raise_for_status()` raises.
        `content` is the message with its parts if it has more than text. A message with the same `uid` is stored and
        answered once. `route` applies to a conversation that begins with this message. `instructions` are added to the
        system prompt of this turn. `max_output` limits each reply, in tokens. With `output_type` the answer is parsed
        into `result.output`. `emit` is called with every event.
        """
        request = turn.TurnRequest(
            text=text,
            content=content or text,
            uid=uid,
            route=route,
            instructions=instructions,
            max_output=max_output,
            output_format=None if output_type is None else output.OutputFormat(output_type),
        )
        emit = self._filtered(emit)
        async with self._lock:
            self._hooks_called = False
            self._emit = emit
            self._turn = taken = turn.AgentTurn(self, request, emit)
            with current_session.enter_conversation(self.conversation_id, self.db.db, self.name):
                result = await taken.take()
        emit(events.TurnFinished(result))
        # A read-only agent changes nothing, and so takes no notes.
        if not content_parts.notice_kind(request.content) and self.approvals.mode != "read-only":
            self.memory.review(result, None if self.limits.cost is None else self.limits.cost - taken.cost)
        if self._leave_after_turn:
            await self.leave()
        return result

    async def stream(self, text: str, **options: Any) -> AsyncGenerator[events.AnyEvent, None]:
        """Answer one message and yield the events of the turn as they happen; the last one is TurnFinished.

        Takes the options of `run_conversation`. Leaving the loop early interrupts the turn.
        """
        queue: asyncio.Queue[events.AnyEvent | None] = asyncio.Queue()
        task = asyncio.create_task(self.run_conversation(text, emit=queue.put_nowait, **options))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                self.interrupt()
                await asyncio.wait([task])

    def run_sync(self, text: str, **options: Any) -> events.TurnResult:
        """Answer one message from synchronous code and return the completed result.

        Outside `with agent:`, the agent is closed after the message. Takes the options of `run_conversation`. Raises
        TurnFailed if the turn was not completed.
        """
        if self._runner is not None:
            return self._runner.run(self.run_conversation(text, **options)).raise_for_status()

        async def run() -> events.TurnResult:
            async with self:
                return (await self.run_conversation(text, **options)).raise_for_status()

        return asyncio.run(run())

    def refuse_turn(self, emit: Emit) -> events.TurnResult:
        """Return and emit the result of a turn that was stopped before anything of it was stored."""
        result = turn.AgentTurn(self, turn.TurnRequest(text="", content=""), emit).refuse()
        emit(events.TurnFinished(result))
        return result

    def interrupt(self) -> bool:
        """Stop the running turn, its model request and its tools; stored messages stay. Return whether one ran."""
        return self._stop_turn()

    def abandon(self) -> bool:
        """Stop the running turn and write nothing about it, so that another process resumes it."""
        return self._stop_turn(abandon=True)

    def _stop_turn(self, abandon: bool = False) -> bool:
        if not self.busy or self._turn is None:
            return False
        self._turn.interrupt(abandon=abandon)
        return True

    def steer(self, text: str, uid: str | None = None) -> bool:
        """Pass a message to the running turn before its next step. Return whether a turn accepted it."""
        return self.busy and self._turn is not None and self._turn.steer(events.Steer(text, uid))

    # --- compaction ----------------------------------------------------------------------------------

    def compaction_job(self) -> compress.Job:
        """Return the parameters of a compaction of this conversation, as of now."""
        return compress.Job(
            db=self.db,
            conversation_id=self.conversation_id,
            meter=self.meter,
            window=self.model.window,
            system=self.prompt.text,
            tools=self.tools.specs,
            summarizers=self.summarizers,
            policy=self.policy,
            hooks=self.hooks,
            clock=self.clock,
            ttl=self.turns.lease_ttl_seconds,
            moved=self.context_cache.move,
        )

    async def compress_context(
        self,
        focus: str | None = None,
        force: bool = False,
        *,
        keep_exchanges: int | None = None,
        emit: Emit = _discard,
    ) -> compaction_base.CompactionResult:
        """Replace the older part of the context with a summary.

        The outcome says what happened; unless it is COMPACTED, messages and session are unchanged. `force` ignores
        cool-down and frequency limits; `focus` gets most of the summary.
        """
        request = compress.CompactionRequest(
            expected=None if force else self.session_id, focus=focus, force=force, keep_exchanges=keep_exchanges
        )
        messages = tuple(await self.context_cache.messages())
        with current_session.enter_conversation(self.conversation_id, self.db.db, self.name):
            result = await self.context_window.compact(request, self._filtered(emit))
        if result.outcome is compaction_base.Outcome.COMPACTED:
            try:
                messages = tuple(await self.context_cache.messages())
            except Exception as error:  # noqa: BLE001 -- the compaction is committed, so its outcome stays
                logger.warning("the context after a compaction could not be read: %s", error)
                messages = tuple(result.messages)
        return msgspec.structs.replace(result, messages=messages, session_id=self.session_id)

    # --- end -----------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Call the closing hooks once, after the running turn: the user continues in another conversation."""
        self._leave_after_turn = self.busy
        if not self._leave_after_turn:
            await self._call_closing_hooks()

    async def close(self) -> None:
        """Stop turns and background work, call the closing hooks, and close what the agent opened."""
        self.interrupt()
        async with self._lock:
            await self.context_window.close()
            await self.memory.close()
            await self._call_closing_hooks()
            if self._owns_model:
                await self.model.close()
            if self._owns_db:
                await self.db.close()

    async def _call_closing_hooks(self) -> None:
        if not self._hooks_called:
            self._hooks_called = True
            head_id = await self._head_id() if self.hooks.closing else None
            if head_id is not None:
                await compaction_hooks.run(self.hooks.closing, head_id, self.hooks.limit)

    async def _head_id(self) -> str | None:
        """Return the head; if it cannot be read, the session this agent knows; None before the first message."""
        try:
            return (await self.db.head(self.conversation_id)).id
        except errors.ConversationDeleted:
            return self.session_id
        except errors.NoSuchSession:
            return None
        except Exception as error:  # noqa: BLE001 -- hooks are called even if the store fails
            logger.warning("could not read the head of %s: %s", self.conversation_id, error)
            return self.session_id

    def _filtered(self, emit: Emit) -> Emit:
        """Return `emit`; for a quiet agent, without notices."""

        def without_notices(event: events.AnyEvent) -> None:
            if not isinstance(event, events.Notice | events.Compacted):
                emit(event)

        return without_notices if self.turns.quiet else emit

    async def _store_output(self, text: str) -> str:
        """Store a tool output that is too long for the context; return its id."""
        return (await self.db.blobs.put(text.encode(), "text/plain; charset=utf-8")).digest


def _model(model: models.Model | str, attempts: int) -> models.Model:
    if isinstance(model, str):
        return providers.create(model, attempts=attempts)
    if attempts <= 1 or isinstance(model, retry.RetryingModel | retry.FallbackModel):
        return model
    return retry.RetryingModel(model, retry.Backoff(attempts=attempts))


def _store(store: Store) -> async_db.AsyncSessionDB:
    if isinstance(store, async_db.AsyncSessionDB):
        return store
    return async_db.AsyncSessionDB(store if isinstance(store, db.SessionDB) else db.SessionDB(store))


def _summarizers(
    given: compaction_base.Summarizer | Sequence[compaction_base.Summarizer] | None, model: models.Model
) -> tuple[compaction_base.Summarizer, ...]:
    if given is None:
        return (summary.ModelSummarizer(model),)
    return tuple(given) if isinstance(given, Sequence) else (given,)
