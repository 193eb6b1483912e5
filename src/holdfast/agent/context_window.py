"""Room in the model's window: what a turn does about it before it asks, and what happens beside the turns.

Below the soft threshold nothing. From there on a compaction is made beside the running turns, which never wait for
it. At the hard one a turn first shows less of old tool outputs, which takes no model, and waits for a compaction
only if that is not enough. When a provider says that a request was too large all the same, it is believed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from holdfast import content_parts, events, types
from holdfast.agent import context_cache
from holdfast.compaction import base, compress, excerpts, policy, speaker, time_slices

logger = logging.getLogger("holdfast.agent")

POLL = 0.1
# A turn waits a little longer than models may take: after them come the extract and the commit.
LONGER = 1.1
# Each time a provider says that it was too much, so much of it is tried next, so often in a turn.
TIGHTER, OVERFLOWS = 0.6, 4

Emit = Callable[[events.AnyEvent], None]


class ContextWindow:
    """The room of one conversation. `work` says what a compaction of it needs, as of now."""

    def __init__(
        self, view: context_cache.ContextCache, work: Callable[[], compress.Work], background: bool = True
    ) -> None:
        self._view, self._work, self._background = view, work, background
        self._running: dict[asyncio.Task[base.Compaction], base.Progress | None] = {}
        """Every attempt of this agent's, whoever wants it: beside the turns, within one, or by hand; how far it is."""
        self._by_hand = set[asyncio.Task[base.Compaction]]()
        self._patience = 0.0
        """For how many seconds the turn under way may still wait for others."""
        self._ceiling: int | None = None
        self._overflows = 0
        self._shown: Sequence[types.Message] = ()
        self._less: tuple[object, Sequence[types.Message]] = (None, ())
        self._said: set[base.Outcome] = set()
        self._told_older = False
        self.truncated: events.Truncated | None = None
        """What the model was sent of what the person wrote in the turn under way, if not all of it."""
        self.usage = types.Usage()
        """What summaries have used that the turn under way had to wait for."""
        self.background_usage = types.Usage()
        """Usage of background summaries that finished since the current turn began."""

    # --- before the model is asked -------------------------------------------------------------------

    def new_turn(self) -> None:
        """What one turn learnt about a provider's idea of too large is not held against the next.

        However many steps it takes, it waits for others only as long as one compaction may take.
        """
        self._ceiling, self._overflows, self.truncated = None, 0, None
        self.usage = self.background_usage = types.Usage()
        self._patience = self._work().policy.deadline * LONGER

    async def messages(self, turn: str, emit: Emit) -> Sequence[types.Message]:
        """What the model is to see now; NoRoom when not even the prompt fits."""
        self._shown = await self._fitting(turn, emit)
        if self._shown and self._shown is self._less[1]:
            self._report_shortened(turn, await self._view.messages(), emit)
        return self._shown

    def _report_shortened(self, turn: str, stored: Sequence[types.Message], emit: Emit) -> None:
        """Report that the model is not sent all of the person's message; of older ones, once until the next summary."""
        whole = {message.uid: message for message in stored}
        begun = next((message.seq for message in stored if message.uid == turn), stored[-1].seq)
        pairs = [(whole.get(each.uid, each), each) for each in self._shown if each.role != "tool"]
        changed = [(before, after) for before, after in pairs if before.body != after.body]
        own = [pair for pair in changed if pair[0].seq >= begun and speaker.is_ask(pair[0])]
        if own:
            told, self.truncated = self.truncated is not None, _truncated(own)
            if not told:
                emit(events.Notice(_advice(self.truncated, self._work().window), "warning", to_chats=True))
        if len(own) < len(changed) and not self._told_older:
            self._told_older = True
            many = "1 older message" if len(changed) - len(own) == 1 else f"{len(changed) - len(own)} older messages"
            emit(events.Notice(f"The model is sent only the beginning and the end of {many}, to fit its window."))

    async def _fitting(self, turn: str, emit: Emit) -> Sequence[types.Message]:
        shown, usable = await self._view.messages(), self._usable()
        match await self._pressure(shown, usable):
            case "none":
                return shown
            case "soft":
                self.begin(turn, emit)
                return shown
        less = await self._shortened(shown, usable)
        if self._taken(less) < self._work().policy.hard * usable:
            self.begin(turn, emit)
            return less
        await self._compacted(turn, emit)
        less = await self._shortened(await self._view.messages(), usable)
        if self._taken(less) >= usable:
            await self._extracted(turn, emit)
            less = await self._shortened(await self._view.messages(), usable)
        return less

    async def make_more(self, turn: str, emit: Emit) -> bool:
        """A provider said that a request was too large: whether it is worth asking again, with less."""
        self._overflows += 1
        if self._overflows > OVERFLOWS:
            return False
        self._ceiling = int(self._taken(self._shown) * TIGHTER)
        await self._compacted(turn, emit)
        less = await self._shortened(await self._view.messages(), self._usable())
        return self._taken(less) < self._taken(self._shown)

    async def _pressure(self, shown: Sequence[types.Message], usable: int) -> policy.Pressure:
        found = policy.pressure(self._taken(shown), usable, self._work().policy)
        if found == "soft" and not self.is_compacting and await self._undone():
            return "none"
        return found

    async def _undone(self) -> bool:
        """Whether a person took the last compaction back: then the next waits for the hard threshold."""
        work = self._work()
        return (await work.db.conversation(work.conversation_id)).redo_epoch is not None

    def _usable(self) -> int:
        usable = self._work().usable
        return usable if self._ceiling is None else min(usable, self._ceiling)

    def _taken(self, messages: Sequence[types.Message]) -> int:
        return sum(map(self._work().meter.of, messages))

    async def _shortened(self, messages: Sequence[types.Message], usable: int) -> Sequence[types.Message]:
        work, taken = self._work(), self._taken(messages)
        if taken < work.policy.hard * usable:
            return messages
        budget = int(work.policy.hard * usable) - 1
        # What they take is a part of it: the meter learns, and then the same messages take another share.
        key = (self._view.mark, budget, taken)
        if self._view.mark is None or self._less[0] != key:
            self._less = (key, await time_slices.aside(excerpts.shortened, tuple(messages), work.size_of, budget))
        return self._less[1]

    # --- compacting ----------------------------------------------------------------------------------

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction is being made: beside the turns, for one that waits, or by hand."""
        return bool(self._running)

    @property
    def progress(self) -> base.Progress | None:
        """How far the compaction is that is being made; None where none is, or it has not begun yet."""
        return next((reached for reached in self._running.values() if reached is not None), None)

    def begin(self, turn: str, emit: Emit) -> None:
        """Compact beside the turns, if nothing is under way yet. No prompt cancels it; closing does."""
        if self._background and not self.is_compacting:
            self._start(self._attempt(compress.Asked(turn=turn), emit)).add_done_callback(self._count)

    def _count(self, attempt: asyncio.Task[base.Compaction]) -> None:
        if not attempt.cancelled() and attempt.exception() is None:
            self.background_usage += attempt.result().usage

    async def compact(self, asked: compress.Asked, emit: Emit) -> base.Compaction:
        """Compact now, and wait for it; what is under way already is let end first. Closing stops it."""

        def at_work(reached: base.Progress) -> None:
            if reached.stage == "summing up":
                emit(events.Notice(f"Summing up {reached.messages:,} messages (about {reached.tokens:,} tokens) …"))

        async def after(others: frozenset[asyncio.Task[base.Compaction]]) -> base.Compaction:
            if others:
                emit(events.Notice("A compaction is under way already; this one comes after it …"))
                await asyncio.wait(others)
            if any(map(_succeeded, others)) and asked.focus is None and asked.keep_exchanges is None:
                done, here = "It was compacted already.", self._work().conversation_id
                return base.Compaction(outcome=base.Outcome.NOTHING_TO_DO, session_id=here, reason=done)
            told = msgspec.structs.replace(asked, reaching=at_work)
            return await self._attempt(told, emit, person=asked.force)

        attempt = self._start(after(frozenset(self._running)))
        self._by_hand.add(attempt)
        attempt.add_done_callback(self._by_hand.discard)
        try:
            await asyncio.wait([attempt])
        finally:
            attempt.cancel()
            await asyncio.wait([attempt])
        if attempt.cancelled():
            stopped, here = "The compaction was stopped.", self._work().conversation_id
            emit(events.Notice(stopped, "warning"))
            return base.Compaction(outcome=base.Outcome.FAILED, session_id=here, reason=stopped)
        return attempt.result()

    def stop(self) -> bool:
        """Stop what is made by hand: whoever waits for it finds it failed. Whether there was any that could be."""
        # Not what is being written: it may stand already, and then people are told of it.
        unwritten = [attempt for attempt in self._by_hand if not self._writes(attempt)]
        stopping = [attempt for attempt in unwritten if attempt.cancel()]
        return bool(stopping)

    def _writes(self, attempt: asyncio.Task[base.Compaction]) -> bool:
        reached = self._running.get(attempt)
        return reached is not None and reached.stage == "writing"

    async def settle(self) -> None:
        """Wait for what is under way, for as long as a summary may take."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._work().policy.deadline * LONGER)

    async def close(self) -> None:
        """Stop what is under way, also what somebody waits for."""
        stopping = [attempt for attempt in self._running if attempt.cancel()]
        if stopping:
            await asyncio.wait(stopping)

    def _start(self, attempt: Coroutine[Any, Any, base.Compaction]) -> asyncio.Task[base.Compaction]:
        task = asyncio.create_task(attempt)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    async def _compacted(self, turn: str, emit: Emit) -> None:
        """A turn cannot go on without room: wait for whoever makes it, for as long as a summary may take."""
        if others := frozenset(self._running):
            await self._patiently(lambda: asyncio.wait(others))
            if any(map(_succeeded, others)):
                self._view.forget()
                return
        if self.is_compacting:
            return
        made = await self._start(self._attempt(compress.Asked(turn=turn), emit))
        self.usage += made.usage
        if made.outcome is base.Outcome.BUSY:
            await self._patiently(self._until_free)
        self._view.forget()

    async def _extracted(self, turn: str, emit: Emit) -> None:
        """Whatever kept a model from summing up, the conversation must go on: the extract needs none."""
        if not self.is_compacting:
            await self._start(self._attempt(compress.Asked(turn=turn, force=True), emit, model=False))
            self._view.forget()

    async def _patiently(self, waiting: Callable[[], Awaitable[object]]) -> None:
        """Wait for others, as long as the turn has patience left."""
        began = asyncio.get_running_loop().time()
        if self._patience <= 0:
            return
        try:
            async with asyncio.timeout(self._patience):
                await waiting()
        except TimeoutError:
            logger.warning("a compaction was waited for in vain")
            self._patience = 0.0
        else:
            self._patience -= asyncio.get_running_loop().time() - began

    async def _until_free(self) -> None:
        """Wait until another process has committed or abandoned its compaction; don't wait for its hooks."""
        work, seen = self._work(), self._view.mark
        try:
            with work.db.notifications.expect(work.conversation_id, "freed") as freed:
                while await work.db.get_compression_lock_holder(work.conversation_id) is not None:
                    if seen is None or (await work.db.snapshot(work.conversation_id)).epoch != seen[0]:
                        return
                    await freed.wait(POLL)
        except Exception as error:  # noqa: BLE001 -- an unknown holder is not waited for
            work.db.lease_failures.report(error)

    def _within_ceiling(self) -> compress.Work:
        """The work; with the window a provider was found to have, where it said that less than ours was too much."""
        work = self._work()
        if self._ceiling is None:
            return work
        floor = compress.floor_of(work)
        window = self._ceiling + floor.system + floor.tools
        known = msgspec.structs.replace(work.policy, reserved_output=0)
        return msgspec.structs.replace(work, window=min(work.window, window), policy=known)

    async def _attempt(
        self, asked: compress.Asked, emit: Emit, *, person: bool = False, model: bool = True
    ) -> base.Compaction:
        attempt = asyncio.current_task()
        assert attempt in self._running

        def reaching(reached: base.Progress) -> None:
            self._running[attempt] = reached
            if asked.reaching is not None:
                asked.reaching(reached)

        reaching(base.Progress("reading"))
        work, told = self._within_ceiling(), msgspec.structs.replace(asked, reaching=reaching)
        made = await compress.compress(work if model else msgspec.structs.replace(work, summarizers=()), told)
        if made.outcome is base.Outcome.COMPACTED:
            self._said.clear()
            self._told_older = False
            cut, remark = made.cut_seq or 0, made.remark
            emit(events.Compacted(made.session_id, cut, made.before, made.after, made.model, remark))
        elif made.outcome is not base.Outcome.NOTHING_TO_DO and (person or made.outcome not in self._said):
            # One notice of each kind until the next success, unless a person asked: nobody wants one at every step.
            self._said.add(made.outcome)
            emit(events.Notice(made.reason, "warning"))
        return made


def _truncated(pairs: Sequence[tuple[types.Message, types.Message]]) -> events.Truncated:
    """How much is left of messages, each given as it was written and as it is sent."""
    written = sum(len(content_parts.text(before.content)) for before, _ in pairs)
    sent = sum(len(content_parts.text(after.content)) for _, after in pairs)
    images = sum(_images(before) - _images(after) for before, after in pairs)
    return events.Truncated(written, min(written, sent), images)


def _images(message: types.Message) -> int:
    content = message.content
    return 0 if isinstance(content, str) else sum(part.get("type") == "image" for part in content)


def _advice(cut: events.Truncated, window: int) -> str:
    left_out = f" and without {'an image' if cut.images == 1 else f'{cut.images} images'}" if cut.images else ""
    return (
        f"The model was sent about {cut.sent:,} of the {cut.characters:,} characters of your message{left_out}: "
        f"all of it does not fit into the window of {window:,} tokens. Put the text into a file and have it read in "
        "parts, or use a model with a larger window."
    )


def _succeeded(task: asyncio.Task[base.Compaction]) -> bool:
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return task.result().outcome is base.Outcome.COMPACTED
