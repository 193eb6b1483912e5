"""Compact a conversation, from the lease to the commit. Every compaction goes through `compress`.

The lease saves duplicate work; the commit decides, by comparing head and epoch. The summarizer gets the context of the
snapshot; messages appended meanwhile come after the cut and stay in the context. An attempt that loses has changed
nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast import errors, types
from holdfast.compaction import (
    base,
    budget,
    cut,
    extract,
    hooks,
    ledger,
    must_keep,
    policy,
    sentences,
    speaker,
    summary,
    time_slices,
)
from holdfast.model import tokens
from holdfast.store import async_db, held_lease, leases, message_codec

logger = logging.getLogger("holdfast.compaction")
T = TypeVar("T")

MAX_CREDIBLE_USAGE = 10**12
MIN_SUMMARY_TOKENS = 200
MUST_KEEP_FRACTION = 4
"""A summary's budget is divided by this for the texts that it must contain."""
MIN_EXTRACT_TOKENS = 50
"""If less is left for a summary, no attempt is made."""
# The commit would be refused, so no model is asked.
ENDED = "The conversation has ended. Send a message to continue it, then compact it."


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation to compact, its model's window and the settings."""

    db: async_db.AsyncSessionDB
    conversation_id: str
    meter: tokens.Meter
    window: int
    system: str = ""
    tools: tuple[types.ToolSpec, ...] = ()
    summarizers: tuple[base.Summarizer, ...] = ()
    policy: policy.CompactionPolicy = policy.CompactionPolicy()
    hooks: hooks.Hooks = hooks.Hooks()
    clock: Callable[[], float] = time.time
    ttl: float = leases.LEASE_TTL
    moved: Callable[[str], object] = lambda _: None
    """Called with the new head right after the commit, even if the caller of `compress` was cancelled."""

    @property
    def fixed(self) -> tuple[int, int]:
        """The tokens of the system prompt and of the tools, which every request has."""
        return self.meter.count(self.system, (), ()), self.meter.count("", self.tools, ())

    @property
    def usable(self) -> int:
        """The tokens of the window that are left for messages. Raises NoRoom if there are none."""
        return policy.usable_tokens(self.window, self.policy.reserved(self.window), *self.fixed)

    def size(self, messages: Sequence[types.Message]) -> int:
        """Return the tokens of messages, without system prompt and tools."""
        return sum(map(self.meter.of, messages))


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one compaction."""

    expected: str | None = None
    """The session that the caller takes for the head; if it is not, the conversation was compacted meanwhile."""
    focus: str | None = None
    force: bool = False
    """The user asked for it: no cooldown, no limit per hour and, in a small conversation, no minimum shrinkage."""
    keep_exchanges: int | None = None
    reaching: Callable[[base.Progress], object] = lambda _: None
    """Called at the beginning of each stage."""


def thresholds(job: Job) -> tuple[int, int]:
    """Return the soft and the hard threshold in tokens of a whole request: system prompt, tools and messages."""
    try:
        usable = job.usable
    except errors.NoRoom:
        return job.window, job.window
    fixed = sum(job.fixed)
    return fixed + int(job.policy.soft * usable), fixed + int(job.policy.hard * usable)


def plan_cut(
    job: Job,
    context: types.Context,
    keep_exchanges: int | None = None,
    pins: Sequence[types.Pin] = (),
    manual: bool = False,
) -> cut.Cut | None:
    """Return the cut of this context without changing anything; None if nothing is worth a summary."""
    found = cut.find_cut(
        context,
        job.meter.of,
        tail_tokens=int(job.usable * job.policy.tail),
        pinned_tokens=int(job.usable * job.policy.pinned),
        pinned=[pin.seq for pin in pins],
        keep_exchanges=keep_exchanges,
        manual=manual,
    )
    if found is None:
        return None
    return found if _summary_budget(job, context, found, manual) >= MIN_EXTRACT_TOKENS else None


def explain_nothing_to_do(job: Job, context: types.Context) -> str:
    """Explain why nothing of this context is worth a summary."""
    count = "1 message" if len(context) == 1 else f"{len(context)} messages"
    return (
        "Nothing to compact: the last messages and pinned ones stay verbatim, and too little of the conversation "
        f"({count}, ~{job.size(context):,} tokens) is left to summarize."
    )


def _limit_after(job: Job, before: int, manual: bool) -> float:
    """Return the tokens that the context may have after a compaction.

    A user may compact a small conversation whatever that saves, as long as it stays below the soft threshold.
    """
    shrunk = before * (1 - job.policy.least_shrink)
    return max(shrunk, job.policy.soft * job.usable) if manual else shrunk


def _summary_budget(job: Job, context: types.Context, plan: cut.Cut, manual: bool) -> int:
    """Return the maximum tokens of the summary: its share of the window, or less if the context must shrink more."""
    limit = _limit_after(job, job.size(context), manual)
    left = limit - job.size(plan.staying) - job.meter.of(_as_message(summary.MARK))
    share = max(MIN_SUMMARY_TOKENS, int(job.usable * job.policy.summary))
    return min(share, int(left / job.meter.factor) - 1)


# --- the protocol ----------------------------------------------------------------------------------------


async def compress(job: Job, request: CompactionRequest) -> base.CompactionResult:
    """Compact the conversation, or return why not. Errors become outcomes; only a cancellation is raised."""
    bill = _Bill()
    result = await _attempt(job, request, bill)
    return msgspec.structs.replace(result, usage=bill.total)


async def _attempt(job: Job, request: CompactionRequest, bill: _Bill) -> base.CompactionResult:
    head = request.expected or job.conversation_id
    try:
        if not request.force:
            # Before the lease is taken, so that a process in its cooldown blocks no other one.
            stored = await budget.read(job.db, job.conversation_id)
            if refusal := budget.check_cooldown(stored, job.policy, job.clock()):
                return _result(refusal.outcome, head, refusal.reason, refusal.seconds)
        began = await _begin(job)
    except errors.Busy as error:
        who = "This" if leases.is_this_process(error.holder) else "Another"
        reason = f"{who} process is already compacting this conversation."
        return _result(base.Outcome.BUSY, head, reason, error.expires_in)
    except Exception as error:  # noqa: BLE001 -- a failed compaction must not fail the turn
        return _result(base.Outcome.FAILED, head, f"The compaction could not start. {_explain(error)}")
    async with held_lease.hold(job.db, began) as held:
        try:
            return await _run(job, request, held, bill)
        except (errors.LeaseLost, errors.Superseded) as error:
            # A paid summary that compacted nothing starts a cooldown: the next step would pay for another one.
            is_compacted = isinstance(error, errors.Superseded) and error.head != held.snapshot.head_id
            is_free = bill.total == types.Usage()
            await _close_attempt(job, bill, budget.close_attempt if is_compacted or is_free else _failure(job, request))
            return _result(base.Outcome.BUSY, head, _explain_lost(error, held.snapshot.head_id))
        except Exception as error:  # noqa: BLE001 -- a failed compaction must not fail the turn
            await _close_attempt(job, bill, _failure(job, request))
            return _result(base.Outcome.FAILED, head, f"The compaction failed. {_explain(error)}")
        except asyncio.CancelledError:
            # The attempt stays open in the budget, so it counts as failed. Its cost is recorded now.
            if bill.unrecorded != types.Usage():
                await asyncio.shield(asyncio.ensure_future(_close_attempt(job, bill, lambda stored: stored)))
            raise


async def _begin(job: Job) -> types.Lease | types.Snapshot:
    """Take the lease; if leases fail, start from a snapshot."""
    try:
        taking = job.db.begin_compaction(job.conversation_id, None, job.ttl)
        return await async_db.await_or_release(taking, lambda lease: held_lease.release(job.db, lease))
    except errors.Busy:
        raise
    except Exception as error:  # noqa: BLE001 -- the lease only saves work; the commit decides
        snapshot = await job.db.snapshot(job.conversation_id)
        job.db.lease_failures.report(error)
        return snapshot


async def _run(job: Job, request: CompactionRequest, held: held_lease.HeldLease, bill: _Bill) -> base.CompactionResult:
    head = held.snapshot.head_id
    if request.expected is not None and head != request.expected:
        return _result(base.Outcome.NOTHING_TO_DO, request.expected, "The conversation was already compacted.")
    if not (await job.db.conversation(job.conversation_id)).live:
        return _result(base.Outcome.NOTHING_TO_DO, head, ENDED)
    context = await job.db.context(job.conversation_id, held.snapshot.last_seq)
    pins = await job.db.pins(job.conversation_id)
    plan = await time_slices.run_in_thread(plan_cut, job, context, request.keep_exchanges, pins, request.force)
    if plan is None:
        why = await time_slices.run_in_thread(explain_nothing_to_do, job, context)
        return _result(base.Outcome.NOTHING_TO_DO, head, why)
    refusal = await budget.update(
        job.db,
        job.conversation_id,
        lambda stored: budget.begin_attempt(stored, job.policy, job.clock(), request.force),
    )
    if refusal is not None:
        return _result(refusal.outcome, head, refusal.reason, refusal.seconds)
    request.reaching(base.Progress("summing up", len(plan.going), plan.tokens))
    draft = await _cancel_if_lost(held, _write_draft(job, request, context, plan, bill))
    if draft.written is None:
        await _close_attempt(job, bill, _failure(job, request))
        problems = _join([*draft.problems, "an extract would save too little"])
        return _result(base.Outcome.FAILED, head, f"No summary was accepted: {problems}.")
    request.reaching(base.Progress("writing", len(plan.going)))
    return await _commit(job, held, plan, draft, draft.written, bill)


async def _cancel_if_lost(held: held_lease.HeldLease, work: Coroutine[Any, Any, T]) -> T:
    """Run the work, and cancel it when the lease is lost."""
    if held.lost:
        work.close()
        raise errors.LeaseLost()
    task = asyncio.create_task(work)
    held.on_lost = task.cancel
    try:
        await asyncio.wait([task])
    finally:
        held.on_lost = lambda: None
        task.cancel()
        await asyncio.wait([task])
    if held.lost:
        raise errors.LeaseLost()
    return task.result()


async def _commit(
    job: Job, held: held_lease.HeldLease, plan: cut.Cut, draft: _Draft, written: summary.Written, bill: _Bill
) -> base.CompactionResult:
    index = await time_slices.run_in_thread(ledger.build, draft.going, draft.problems)
    commit = functools.partial(
        job.db.commit_compaction,
        summary=written.text,
        cut_seq=plan.cut_seq,
        pinned=plan.pinned,
        ledger={**index, cut.CARRIED: list(plan.carried)},
        model=written.by,
        keep_lease=True,
    )
    try:
        head = await commit(held.lease or held.snapshot)
    except errors.LeasesUnavailable as error:
        # The table of leases is gone. The commit still compares head and epoch.
        job.db.lease_failures.report(error)
        head = await commit(held.snapshot)
    try:
        job.moved(head.id)
    except Exception:
        # The compaction is committed: a cache that cannot follow it does not change its outcome.
        logger.exception("a callback for the new head %s failed", head.id)
    # Under the lease, so that no other process begins a compaction before the hooks of this one have run.
    await _close_attempt(job, bill, lambda stored: budget.record_success(stored, job.clock()))
    await hooks.run(job.hooks.after, head.id, job.hooks.limit)
    remark = _remark(written, draft.problems)
    uid, body = f"{speaker.SUMMARY}{held.snapshot.epoch + 1}", message_codec.encode_synthetic(written.text)
    replacement = types.Message(plan.cut_seq, uid, head.id, "user", job.clock(), body)
    pinned = [message for message in plan.staying if message.seq <= plan.cut_seq]
    messages = (*pinned, replacement, *plan.staying[len(pinned) :])
    return base.CompactionResult(
        outcome=base.Outcome.COMPACTED,
        session_id=head.id,
        messages=messages,
        reason=f"A summary now replaces {len(plan.going)} messages. {remark}".rstrip(),
        before=draft.before,
        after=await time_slices.run_in_thread(job.size, messages),
        cut_seq=plan.cut_seq,
        model=written.by,
        remark=remark,
    )


# --- the draft of a summary ------------------------------------------------------------------------------


class _Draft(msgspec.Struct, frozen=True):
    """An accepted summary, None if there is none; the problems of rejected ones; the tokens before."""

    written: summary.Written | None
    problems: list[str]
    before: int
    going: Sequence[types.Message]
    """The messages that the summary replaces, redacted."""


async def _write_draft(
    job: Job, request: CompactionRequest, context: types.Context, plan: cut.Cut, bill: _Bill
) -> _Draft:
    await hooks.run(job.hooks.before, context.session_id, job.hooks.limit)
    before = await time_slices.run_in_thread(job.size, context)
    wanted = await time_slices.run_in_thread(_build_summary_request, job, request, context, plan, bill)
    limit = _limit_after(job, before, request.force)

    def size_after(text: str) -> int:
        return job.size([_as_message(text), *plan.staying])

    def write_extract() -> summary.Written | None:
        # Texts to keep that do not fit into the extract are in the ledger.
        text = summary.add_mark(extract.extract(wanted))
        return summary.Written(text, None) if size_after(text) <= limit else None

    gate = summary.gate(wanted, before, size_after, limit)
    written, problems = await summary.write(wanted, job.summarizers, gate, job.policy.deadline)
    if written is None:
        if problems:
            logger.warning("the summary is an extract: no summary by a model was accepted")
        written = await time_slices.run_in_thread(write_extract)
    return _Draft(written, problems, before, wanted.messages)


def _build_summary_request(
    job: Job, request: CompactionRequest, context: types.Context, plan: cut.Cut, bill: _Bill
) -> base.SummaryRequest:
    limit = _summary_budget(job, context, plan, request.force)
    previous = sentences.redact(summary.remove_mark(context.summary)) if context.summary else None
    going = tuple(map(_redact, plan.going))
    return base.SummaryRequest(
        messages=going,
        previous=previous,
        focus=request.focus,
        budget=limit,
        must_keep=must_keep.select(going, previous, limit // MUST_KEEP_FRACTION),
        spent=bill.add,
    )


def _redact(message: types.Message) -> types.Message:
    """Return the message without secrets, because summarizers may be custom code."""
    content = message.content
    if isinstance(content, str):
        content = sentences.redact(content)
    else:
        content = [
            {**part, "text": sentences.redact(part["text"])} if isinstance(part.get("text"), str) else part
            for part in content
        ]
    calls = [
        msgspec.structs.replace(call, arguments=sentences.redact(call.arguments_text)) for call in message.tool_calls
    ]
    body = message_codec.encode(content, calls, message.tool_call_id)
    return types.Message(message.seq, message.uid, message.session_id, message.role, message.at, body)


def _as_message(text: str) -> types.Message:
    return types.Message(0, "summary", "", "user", 0.0, message_codec.encode(text))


# --- the budget ------------------------------------------------------------------------------------------


class _Bill:
    """The reported usage of one attempt."""

    def __init__(self) -> None:
        self.total = types.Usage()
        self.unrecorded = types.Usage()
        """The part that is not in the stored budget yet."""

    def add(self, usage: types.Usage) -> None:
        """Add the usage of a model call. Implausible figures of a custom summarizer are ignored."""
        if not _is_credible(usage):
            logger.warning("a summarizer reported an implausible usage")
            return
        self.total += usage
        self.unrecorded += usage


def _is_credible(usage: object) -> bool:
    if not isinstance(usage, types.Usage):
        return False
    *counts, cost = msgspec.structs.astuple(usage)
    are_counts = all(type(count) is int and 0 <= count < MAX_CREDIBLE_USAGE for count in counts)
    return are_counts and (cost is None or (isinstance(cost, int | float) and 0 <= cost < MAX_CREDIBLE_USAGE))


def _failure(job: Job, request: CompactionRequest) -> Callable[[budget.Budget], budget.Budget]:
    """Return the change after a failure. A failed manual attempt starts no cooldown for automatic ones."""
    if request.force:
        return budget.close_attempt
    return lambda stored: budget.record_failure(stored, job.policy, job.clock())


async def _close_attempt(job: Job, bill: _Bill, change: Callable[[budget.Budget], budget.Budget]) -> None:
    """Record how an attempt ended and what it cost. Errors are logged; the outcome stays."""
    # Taken before the write: if the outcome of the write is unknown, nothing is counted twice.
    usage, bill.unrecorded = bill.unrecorded, types.Usage()

    def close(stored: budget.Budget) -> budget.Budget:
        closed = change(stored)
        return closed if usage == types.Usage() else msgspec.structs.replace(closed, usage=closed.usage + usage)

    try:
        await budget.update(job.db, job.conversation_id, close)
    except Exception as error:  # noqa: BLE001 -- the outcome of the compaction stays
        job.db.lease_failures.report(error)


# --- messages --------------------------------------------------------------------------------------------


def _result(
    outcome: base.Outcome, session_id: str, reason: str, retry_in: float | None = None
) -> base.CompactionResult:
    return base.CompactionResult(outcome=outcome, session_id=session_id, reason=reason, retry_in=retry_in)


def _remark(written: summary.Written, problems: Sequence[str]) -> str:
    why = _join(problems)
    if written.by is None:
        return f"The summary is an extract, made without a model{': ' if why else ''}{why}."
    return f"An earlier summary was rejected: {why}." if why else ""


def _join(problems: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(problem.rstrip(".") for problem in problems))


def _explain(error: Exception) -> str:
    """Return the error for the user; the log has the traceback of an unexpected one."""
    if isinstance(error, errors.HoldfastError):
        return str(error)
    logger.error("a compaction failed unexpectedly", exc_info=error)
    return f"Internal error: {type(error).__name__}: {error}"


def _explain_lost(error: errors.HoldfastError, head: str) -> str:
    match error:
        case errors.Superseded(head=current) if current != head:
            return "Another process compacted the conversation first."
        case errors.Superseded():
            return "The context was changed meanwhile, so nothing was compacted."
        case _:
            return "The compaction lost its lease, so nothing was compacted."
