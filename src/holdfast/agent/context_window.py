"""The context window of a conversation: what a turn does when it fills up, and the compactions of its agent.

Below the soft threshold nothing happens. From the soft threshold on, a compaction runs concurrently with the turns. At
the hard threshold a turn first shortens old tool outputs, which needs no model, and waits for a compaction only if that
is not enough. If a provider reports that a request is too large anyway, a smaller window is assumed for this turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from holdfast import content_parts, events, safe_text, types
from holdfast.agent import context_cache
from holdfast.compaction import base, compress, excerpts, speaker, time_slices

logger = logging.getLogger("holdfast.agent")

POLL_SECONDS = 0.1
# A turn waits a little longer than a summary may take: the extract and the commit come after it.
WAIT_FACTOR = 1.1
# After each overflow that a provider reports, this share of the last request is tried, at most this often in a turn.
SHRINK_FACTOR, MAX_OVERFLOWS = 0.6, 4
STOPPED = "The compaction was stopped."

Emit = Callable[[events.AnyEvent], None]
CompactionTask = asyncio.Task[base.CompactionResult]


class ContextWindow:
    """The context window of one conversation. `job` returns the parameters of a compaction, as of now."""

    def __init__(
        self, cache: context_cache.ContextCache, job: Callable[[], compress.Job], background: bool = True
    ) -> None:
        self._cache, self._job, self._background = cache, job, background
        self._running: dict[CompactionTask, base.Progress | None] = {}
        """Every compaction of this agent and its progress: in the background, within a turn, or requested."""
        self._requested = set[CompactionTask]()
        self._may_wait = True
        """Whether the current turn may still wait for other compactions."""
        self._ceiling: int | None = None
        self._overflows = 0
        self._sent: Sequence[types.Message] = ()
        self._shortened: tuple[object, Sequence[types.Message]] = (None, ())
        self._reported: set[base.Outcome] = set()
        self._older_reported = False
        self.truncated: events.Truncated | None = None
        """The part of the user's message that the model was sent in the current turn, if not all of it."""
        self.usage = types.Usage()
        """Usage of summaries that the current turn waited for."""
        self.background_usage = types.Usage()
        """Usage of background summaries that finished since the current turn began."""

    # --- before a model request ----------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Reset the overflow limit learned during the previous turn, and what is counted per turn."""
        self._ceiling, self._overflows, self.truncated, self._may_wait = None, 0, None, True
        self.usage = self.background_usage = types.Usage()

    async def messages(self, turn: str, emit: Emit) -> Sequence[types.Message]:
        """Return the messages for the next request. Raises NoRoom if not even the prompt fits."""
        self._sent = await self._fit(self._job(), emit)
        if self._sent and self._sent is self._shortened[1]:
            self._report_truncation(turn, await self._cache.messages(), emit)
        return self._sent

    def _report_truncation(self, turn: str, stored: Sequence[types.Message], emit: Emit) -> None:
        """Report that the model is not sent all of the user's message; for older ones, once until the next summary."""
        originals = {message.uid: message for message in stored}
        first_seq = next((message.seq for message in stored if message.uid == turn), stored[-1].seq)
        pairs = [(originals.get(each.uid, each), each) for each in self._sent if each.role != "tool"]
        changed = [pair for pair in pairs if pair[0].body != pair[1].body]
        own = [pair for pair in changed if pair[0].seq >= first_seq and speaker.is_ask(pair[0])]
        if own:
            was_reported, self.truncated = self.truncated is not None, _truncation(own)
            if not was_reported:
                text = _truncation_text(self.truncated, self._job().window)
                emit(events.Notice(text, "warning", to_chats=True))
        older = len(changed) - len(own)
        if older and not self._older_reported:
            self._older_reported = True
            many = safe_text.count(older, "older message")
            emit(events.Notice(f"The model is sent only the beginning and the end of {many}, to fit its window."))

    async def _fit(self, job: compress.Job, emit: Emit) -> Sequence[types.Message]:
        messages, usable = await self._cache.messages(), self._usable(job)
        size = job.size(messages)
        if size < job.policy.hard * usable:
            is_soft = size >= job.policy.soft * usable and not self.is_compacting
            # After the user undid a compaction, the next one waits for the hard threshold.
            if is_soft and (await job.db.conversation(job.conversation_id)).redo_epoch is None:
                self.start_background(emit)
            return messages
        shortened = await self._shorten(job)
        if job.size(shortened) < job.policy.hard * usable:
            self.start_background(emit)
            return shortened
        await self._compact_in_turn(emit)
        shortened = await self._shorten(job)
        if job.size(shortened) >= usable and not self.is_compacting:
            # The conversation must continue even if no summary is possible: an extract needs no model.
            await self._start(self._compact(compress.CompactionRequest(force=True), emit, use_model=False))
            shortened = await self._shorten(job)
        return shortened

    async def shrink(self, emit: Emit) -> bool:
        """Shrink the context after a provider rejected a request as too large; return whether a retry is worthwhile."""
        self._overflows += 1
        if self._overflows > MAX_OVERFLOWS:
            return False
        job = self._job()
        sent_size = job.size(self._sent)
        self._ceiling = int(sent_size * SHRINK_FACTOR)
        await self._compact_in_turn(emit)
        return job.size(await self._shorten(job)) < sent_size

    def _usable(self, job: compress.Job) -> int:
        return job.usable if self._ceiling is None else min(job.usable, self._ceiling)

    async def _shorten(self, job: compress.Job) -> Sequence[types.Message]:
        """Return the context with old tool outputs shortened until it is below the hard threshold."""
        messages = await self._cache.messages()
        limit, size = job.policy.hard * self._usable(job), job.size(messages)
        if size < limit:
            return messages
        # The size is part of the key: the meter corrects itself, and then the same messages have another size.
        key = (self._cache.mark, limit, size)
        if self._shortened[0] != key:
            shortened = await time_slices.run_in_thread(
                excerpts.shorten_all, tuple(messages), job.meter.of, int(limit) - 1
            )
            self._shortened = (key, shortened)
        return self._shortened[1]

    # --- compactions ---------------------------------------------------------------------------------

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction of this agent is running: in the background, for a turn, or requested."""
        return bool(self._running)

    @property
    def progress(self) -> base.Progress | None:
        """The progress of the running compaction; None if none runs or it has not begun yet."""
        return next((progress for progress in self._running.values() if progress is not None), None)

    def start_background(self, emit: Emit) -> None:
        """Start a background compaction unless one is running. Messages do not cancel it; closing does."""
        if self._background and not self.is_compacting:
            task = self._start(self._compact(compress.CompactionRequest(), emit))
            task.add_done_callback(self._add_background_usage)

    def _add_background_usage(self, task: CompactionTask) -> None:
        if not task.cancelled() and task.exception() is None:
            self.background_usage += task.result().usage

    async def compact(self, request: compress.CompactionRequest, emit: Emit) -> base.CompactionResult:
        """Compact now and wait for it, after compactions that are running. `stop` and `close` cancel it."""

        async def compact_after(others: frozenset[CompactionTask]) -> base.CompactionResult:
            if others:
                emit(events.Notice("Another compaction is running; this one starts after it …"))
                await asyncio.wait(others)
            if any(map(_succeeded, others)) and request.focus is None and request.keep_exchanges is None:
                return self._not_compacted(base.Outcome.NOTHING_TO_DO, "The conversation was compacted already.")
            return await self._compact(request, emit, requested=True)

        task = self._start(compact_after(frozenset(self._running)))
        self._requested.add(task)
        task.add_done_callback(self._requested.discard)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            emit(events.Notice(STOPPED, "warning"))
            return self._not_compacted(base.Outcome.FAILED, STOPPED)
        return task.result()

    def _not_compacted(self, outcome: base.Outcome, reason: str) -> base.CompactionResult:
        return base.CompactionResult(outcome=outcome, session_id=self._cache.conversation_id, reason=reason)

    def stop(self) -> bool:
        """Cancel requested compactions; return whether there was one to cancel."""
        stages = {task: progress.stage for task, progress in self._running.items() if progress is not None}
        # A compaction that is being committed is not cancelled: it may be in the store already.
        return bool([task for task in self._requested if stages.get(task) != "writing" and task.cancel()])

    async def wait(self) -> None:
        """Wait for running compactions, for as long as a summary may take."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._job().policy.deadline * WAIT_FACTOR)

    async def close(self) -> None:
        """Cancel all compactions."""
        cancelled = [task for task in self._running if task.cancel()]
        if cancelled:
            await asyncio.wait(cancelled)

    def _start(self, attempt: Coroutine[Any, Any, base.CompactionResult]) -> CompactionTask:
        task = asyncio.create_task(attempt)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    async def _compact_in_turn(self, emit: Emit) -> None:
        """Compact for a turn that cannot continue otherwise, or wait for a compaction that is running."""
        if others := frozenset(self._running):
            await self._wait_for(asyncio.wait(others))
            if any(map(_succeeded, others)):
                return
        if self.is_compacting:
            return
        compaction = await self._start(self._compact(compress.CompactionRequest(), emit))
        self.usage += compaction.usage
        if compaction.outcome is base.Outcome.BUSY:
            await self._wait_for(self._wait_for_other_process())
            self._cache.invalidate()

    async def _wait_for(self, other: Coroutine[Any, Any, object]) -> None:
        """Wait for another compaction. A turn that has waited in vain once does not wait again."""
        if not self._may_wait:
            other.close()
            return
        try:
            async with asyncio.timeout(self._job().policy.deadline * WAIT_FACTOR):
                await other
        except TimeoutError:
            logger.warning("another compaction did not finish in time; the turn continues without it")
            self._may_wait = False

    async def _wait_for_other_process(self) -> None:
        """Wait until another process has committed or abandoned its compaction; don't wait for its hooks."""
        job, mark = self._job(), self._cache.mark
        try:
            with job.db.notifications.expect(job.conversation_id, "freed") as released:
                while await job.db.get_compression_lock_holder(job.conversation_id) is not None:
                    if mark is None or (await job.db.snapshot(job.conversation_id)).epoch != mark[0]:
                        return
                    await released.wait(POLL_SECONDS)
        except Exception as error:  # noqa: BLE001 -- an unknown lock holder is not waited for
            job.db.lease_failures.report(error)

    async def _compact(
        self, request: compress.CompactionRequest, emit: Emit, *, requested: bool = False, use_model: bool = True
    ) -> base.CompactionResult:
        task = asyncio.current_task()
        assert task in self._running

        def report(progress: base.Progress) -> None:
            self._running[task] = progress
            if requested and progress.stage == "summing up":
                many, size = f"{progress.messages:,} messages", f"about {progress.tokens:,} tokens"
                emit(events.Notice(f"Summarizing {many} ({size}) …"))

        report(base.Progress("reading"))
        job = self._job()
        if self._ceiling is not None:
            window = min(job.window, self._ceiling + sum(job.fixed))
            unreserved = msgspec.structs.replace(job.policy, reserved_output=0)
            job = msgspec.structs.replace(job, window=window, policy=unreserved)
        if not use_model:
            job = msgspec.structs.replace(job, summarizers=())
        result = await compress.compress(job, msgspec.structs.replace(request, reaching=report))
        if result.outcome is base.Outcome.COMPACTED:
            self._reported.clear()
            self._older_reported = False
            cut = result.cut_seq or 0
            emit(events.Compacted(result.session_id, cut, result.before, result.after, result.model, result.remark))
        elif result.outcome is not base.Outcome.NOTHING_TO_DO:
            # One notice of each kind until the next success, unless the user asked: every step would repeat it.
            if (requested and request.force) or result.outcome not in self._reported:
                emit(events.Notice(result.reason, "warning"))
            self._reported.add(result.outcome)
        return result


def _truncation(pairs: Sequence[tuple[types.Message, types.Message]]) -> events.Truncated:
    """Measure how much is left of messages, each given as stored and as sent."""
    written = sum(len(content_parts.text(before.content)) for before, _ in pairs)
    sent = sum(len(content_parts.text(after.content)) for _, after in pairs)
    images = sum(_image_count(before) - _image_count(after) for before, after in pairs)
    return events.Truncated(written, min(written, sent), images)


def _image_count(message: types.Message) -> int:
    content = message.content
    return 0 if isinstance(content, str) else sum(part.get("type") == "image" for part in content)


def _truncation_text(cut: events.Truncated, window: int) -> str:
    images = f" and without {'an image' if cut.images == 1 else f'{cut.images} images'}" if cut.images else ""
    return (
        f"The model was sent about {cut.sent:,} of the {cut.characters:,} characters of your message{images}: "
        f"all of it does not fit into the window of {window:,} tokens. Put the text into a file and have it read in "
        "parts, or use a model with a larger window."
    )


def _succeeded(task: CompactionTask) -> bool:
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return task.result().outcome is base.Outcome.COMPACTED
