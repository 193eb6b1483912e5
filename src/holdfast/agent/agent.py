"""AIAgent: a model, tools and one conversation of the store, ready to take turns.

It keeps nothing that the store does not have, but for a view of the context that it checks before every use.
Any number of agents, in any number of processes, may be made for one conversation: their turns are serial.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import approvals as permissions
from holdfast.agent import (
    context_cache,
    context_files,
    context_window,
    current_session,
    loop,
    memory_notes,
    system_prompt,
    turn_lease,
)
from holdfast.agent import memory as agent_memory
from holdfast.agent import titles as agent_titles
from holdfast.agent import turn as agent_turn
from holdfast.agent import usage as agent_usage
from holdfast.compaction import base as compaction
from holdfast.compaction import compress, policy, summary
from holdfast.compaction import hooks as telling
from holdfast.model import base as models
from holdfast.model import tokens
from holdfast.store import async_db, conversation_row, db, titles
from holdfast.tools import base as tools_port
from holdfast.tools import registry

logger = logging.getLogger("holdfast.agent")

PATIENCE = 600.0
_numbers = itertools.count(1)

Emit = Callable[[events.AnyEvent], None]


def _nobody(_: events.AnyEvent) -> None:
    """Nobody listens."""


class AIAgent:
    """Takes turns of one conversation.

    `session_id` may be any session of it, however old; without one, or with an id nobody has, a new conversation
    begins with the first message. `db` may be a SessionDB or an AsyncSessionDB. `patience` is how many seconds a
    message waits for a turn that runs elsewhere. One that `remembers` has the notes about its owner in its prompt, and
    a tool to change them; one that also `reviews` has each turn looked over for more. `approve` is asked whether a
    tool may do what it plans; without it, nobody can be, and only looking is allowed. After each turn `session_id` is
    the head. A conversation belongs to the `folder` of its last turn, if one was given, unless `keep_folder` is False.
    A `quiet` agent emits what a turn says and does, and no remarks beside it: no Notice, no Compacted.
    """

    def __init__(
        self,
        *,
        db: db.SessionDB | async_db.AsyncSessionDB,
        model: models.Model,
        session_id: str | None = None,
        summarizer: compaction.Summarizer | Sequence[compaction.Summarizer] | None = None,
        compaction_policy: policy.Policy | None = None,
        background: bool = True,
        hooks: telling.Hooks | None = None,
        tools: Sequence[tools_port.Tool] = (),
        more_tools: tools_port.Source | None = None,
        approvals: permissions.Approvals | None = None,
        approve: permissions.Approve | None = None,
        limits: loop.Limits | None = None,
        meter: tokens.Meter | None = None,
        folder: str | None = None,
        keep_folder: bool = True,
        memory: str = "",
        remembers: bool = False,
        reviews: bool = False,
        source: str = "library",
        owner: str = "",
        route: str | None = None,
        title: str | None = None,
        patience: float = PATIENCE,
        lease_ttl: float = turn_lease.TTL,
        quiet: bool = False,
        skip_context_files: bool = False,
        skip_memory: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.db = db if isinstance(db, async_db.AsyncSessionDB) else async_db.AsyncSessionDB(db)
        self.model = model
        self.name = f"{source}#{next(_numbers)}"
        """The agent within its process; its leases bear it."""
        self.session_id = session_id or conversation_row.generate_session_id(clock())
        self.conversation_id = self.session_id
        noted = None
        if remembers and not skip_memory:
            noted = memory_notes.Notes(self.db, owner, lambda: self.conversation_id, self._notify)
        self.memory = agent_memory.AgentMemory(noted, model if reviews else None, self._charge_review)
        self.approvals = approvals or permissions.Approvals(self.db.permissions, owner=owner, approve=approve)
        self.tools = registry.Registry(
            self.approvals.guarded([*tools, *self.memory.tools]),
            self.approvals.gate(lambda: self.conversation_id, lambda: self._emit),
            keep=self._keep,
            more=more_tools,
        )
        self._emit: Emit = _nobody
        self.limits = limits or loop.Limits()
        self.meter = meter or tokens.Meter()
        store = self.db.db.path
        self.context_files = () if skip_context_files else context_files.read(folder or os.getcwd(), off_limits=[store])
        self.system = self.plain = system_prompt.system(self.context_files, "" if skip_memory else memory)
        self._unannounced = () if quiet else self.context_files
        self.wanted_title = title
        self._first_words: str | None = None
        """What the conversation began with, until it was named by that."""
        self.context_cache = context_cache.ContextCache(self.db, self.session_id)
        self.policy = compaction_policy or policy.Policy()
        given = summary.ModelSummarizer(model) if summarizer is None else summarizer
        self.summarizers = tuple(given) if isinstance(given, Sequence) else (given,)
        self.hooks = hooks or telling.Hooks()
        self._quiet = quiet
        self._told_closing = self._left = False
        self.context_window = context_window.ContextWindow(self.context_cache, self.compaction_work, background)
        self.birth = types.NewConversation(
            source=source,
            owner=owner,
            route=route,
            model=model.name,
            folder=titles.local_folder(folder) if keep_folder else None,
        )
        self.patience, self.lease_ttl, self.clock = patience, lease_ttl, clock
        self._one_at_a_time = asyncio.Lock()
        self._run: loop.Run | None = None
        self._work: asyncio.Task[None] | None = None
        self._interrupted = False
        self.abandoned = False
        """Whether the turn under way is left to another process."""
        self.last_seq = 0
        """The last message this agent wrote."""

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
        """Whether anything of this agent's is under way: a turn, or a compaction or a review beside the turns."""
        return self.busy or self.context_window.is_compacting or self.memory.is_reviewing

    def interrupt(self) -> bool:
        """Stop the turn under way, model and tools; what was said stays. Whether there was one."""
        self._interrupted = self.busy
        if self._work is not None:
            self._work.cancel()
        return self._interrupted

    def steer(self, text: str, uid: str | None = None) -> bool:
        """Tell the turn under way something before its next step. Whether there was one to tell."""
        if self._run is None or self._run.over:
            return False
        self._run.steering.append(events.Steer(text, uid))
        return True

    def abandon(self) -> bool:
        """Stop the turn under way and write nothing about it, as if this process had died: another one takes the same
        message up where it stands. Whether there was one."""
        self.abandoned = self.busy
        return self.interrupt()

    async def context_tokens(self) -> int:
        """How much of the model's window the next request takes, by the meter; without a conversation, its prompt.

        Never more than the hard threshold: beyond it a request is shortened.
        """
        try:
            messages = await self.context_cache.messages()
        except errors.NoSuchSession:
            messages = ()
        counted = self.meter.count(self.system, self.tools.specs, messages)
        return min(counted, compress.thresholds(self.compaction_work())[1])

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
            moved=self._moved,
        )

    def _moved(self, head: str) -> None:
        """A compaction of this agent's stands, beside a turn or not: from here on its session is the new head."""
        self.session_id = head
        if self._run is not None:
            self._run.session_id = head
        self.context_cache.forget()

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
        before = tuple(await self.context_cache.messages())
        with current_session.working_for(self.conversation_id, self.db.db, self.name):
            made = await self.context_window.compact(asked, self._heard(emit))
        if made.outcome is compaction.Outcome.COMPACTED:
            return made
        return msgspec.structs.replace(made, messages=before, session_id=self.session_id)

    # --- a turn --------------------------------------------------------------------------------------

    async def run_conversation(
        self,
        text: str,
        *,
        content: types.Content | None = None,
        uid: str | None = None,
        route: str | None = None,
        instructions: str = "",
        max_output: int | None = None,
        emit: Emit = _nobody,
    ) -> events.TurnResult:
        """One turn: the message is stored, the model answers, what it calls is run, all of it is stored.

        Nothing of this family of errors is raised: the result says what became of the turn. `content` has the
        message with its parts, where it has more than text. The same uid again is the same message: it is
        stored once, and answered once. A conversation that begins with it is bound to `route`, or to the agent's own.
        `instructions` are part of the system prompt of this turn; `max_output` limits each of its replies in tokens.
        """
        emit = self._heard(emit)
        async with self._one_at_a_time:
            self._interrupted = self._told_closing = self.abandoned = False
            taken = agent_turn.Taking(self, text, content or text, uid, emit, route, instructions, max_output)
            self._emit = emit
            try:
                with current_session.working_for(self.conversation_id, self.db.db, self.name):
                    result = await taken.result()
            finally:
                self._run = self._work = None
            if taken.run is not None:
                # A compaction beside the turn may have moved it after its last word.
                result = msgspec.structs.replace(result, session_id=taken.run.session_id)
                self.session_id = result.session_id
                if taken.born and result.completed and not content_parts.noticed(content or ""):
                    self._first_words = text
                wanted, first_words = self.wanted_title, self._first_words
                left = await agent_titles.settle(self.db, self.conversation_id, wanted, first_words, emit)
                self.wanted_title, self._first_words = left
        emit(events.TurnFinished(result))
        # Where nothing is to be changed, nothing is noted either.
        if not content_parts.noticed(content or "") and self.approvals.mode != "read-only":
            self.memory.over(result, self._allowance(taken.run))
        if self._left:
            await self.leave()
        return result

    def _allowance(self, run: loop.Run | None) -> float | None:
        """US dollars that the cost limit leaves for the review of a turn."""
        return None if self.limits.cost is None else self.limits.cost - (run.cost if run else 0.0)

    async def _charge_review(self, usage: types.Usage) -> None:
        await agent_usage.charge_review(self.db, self.conversation_id, usage)

    def not_begun(self, emit: Emit) -> events.TurnResult:
        """The result of a turn that was stopped before anything of it was stored."""
        result = agent_turn.Taking(self, "", "", None, emit).stopped()
        emit(events.TurnFinished(result))
        return result

    def new_run(self, taken: turn_lease.Turn, uid: str, emit: Emit, max_output: int | None = None) -> loop.Run:
        """The loop of a turn that was just taken."""
        self.context_window.new_turn()
        self._run = loop.Run(
            turn=taken,
            uid=uid,
            view=self.context_cache,
            room=self.context_window,
            model=self.model,
            tools=self.tools,
            system=self.system,
            meter=self.meter,
            limits=self.limits.with_output(max_output),
            emit=emit,
            clock=self.clock,
        )
        return self._run

    async def announce(self, emit: Emit) -> None:
        """Notify the user of context files in use that are new to this store, or changed."""
        files, self._unannounced = self._unannounced, ()
        for each in await context_files.unannounced(self.db, files):
            # Chats show no notices: the operator of a gateway finds them in the log.
            logger.log(logging.WARNING if each.problem else logging.INFO, "%s", each.notice.text)
            emit(each.notice)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The work of a turn, in a task that can be interrupted; at once, if that was asked for meanwhile."""
        self._work = asyncio.create_task(work)
        if self._interrupted:
            self._work.cancel()
        return self._work

    def _notify(self, notice: events.Notice) -> None:
        """Emit a notice to the listener of the current turn, or of the last one: a review goes on after its turn."""
        self._emit(notice)

    async def _keep(self, output: str) -> str:
        """An output that is too long to be shown, as an attachment."""
        return (await self.db.blobs.put(output.encode(), "text/plain; charset=utf-8")).digest

    async def close(self) -> None:
        """Stop what is under way. The store and the model belong to whoever made them."""
        self.interrupt()
        async with self._one_at_a_time:
            await self.context_window.close()
            await self.memory.close()
            await self._tell_closing()

    async def leave(self) -> None:
        """The person went on elsewhere: hooks are told, once, as soon as no turn runs. Nothing is stopped."""
        self._left = self.busy
        if not self._left:
            await self._tell_closing()

    async def _tell_closing(self) -> None:
        """Once for all that was said since they were told last."""
        if not self._told_closing:
            self._told_closing = True
            head = await self._head()
            if head is not None:
                await telling.told(self.hooks.closing, head, self.hooks.limit)

    def _heard(self, emit: Emit) -> Emit:
        """What is heard of the agent, where nobody wants its remarks."""

        def plain(event: events.AnyEvent) -> None:
            if not isinstance(event, events.Notice | events.Compacted):
                emit(event)

        return plain if self._quiet else emit

    async def _head(self) -> str | None:
        """The head now; the session this agent knows, where the store cannot say; None before anything was said."""
        try:
            return (await self.db.head(self.conversation_id)).id
        except errors.ConversationDeleted:
            return self.session_id
        except errors.NoSuchSession:
            return None
        except Exception as error:  # noqa: BLE001 -- hooks are called all the same
            logger.warning("could not read the head of %s: %s", self.conversation_id, error)
            return self.session_id
