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
from collections.abc import Awaitable, Callable, Sequence
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
from holdfast.store import async_db, leases, message_codec

logger = logging.getLogger("holdfast.compaction")
T = TypeVar("T")

LEASE_TTL = 30.0
MIN_SUMMARY_TOKENS = 200
MUST_KEEP_FRACTION = 4
"""A summary's budget is divided by this for the texts that it must contain."""
FALLBACK_FRACTIONS = (2, 4, 16, 64)
"""If even the extract is too long, it is made again with the budget divided by each of these."""
MAX_SWAPS = 8
"""How often a budget that another process changes concurrently is updated again."""
MAX_CREDIBLE_USAGE = 10**12
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
    ttl: float = LEASE_TTL
    moved: Callable[[str], object] | None = None
    """Called with the new head right after the commit, even if the caller of `compress` was cancelled."""

    @property
    def usable(self) -> int:
        """The tokens of the window that are left for messages. Raises NoRoom if there are none."""
        return policy.usable_tokens(self.window, self.policy.reserved(self.window), fixed_tokens(self))

    @property
    def summary_budget(self) -> int:
        """The maximum number of tokens of a summary."""
        return max(MIN_SUMMARY_TOKENS, int(self.usable * self.policy.summary))

    def size(self, messages: Sequence[types.Message]) -> int:
        """Return the tokens of messages, without system prompt and tools."""
        return sum(map(self.size_of, messages))

    def size_of(self, message: types.Message) -> int:
        """Return the tokens of one message."""
        time_slices.yield_cpu()
        return self.meter.of(message)


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one compaction."""

    expected: str | None = None
    """The session that the caller takes for the head; if it is not, the conversation was compacted meanwhile."""
    turn: str | None = None
    """The uid of the turn that asks; its attempts are limited."""
    focus: str | None = None
    force: bool = False
    """The user asked for it: no cooldown, no limit per hour and, in a small conversation, no minimum shrinkage."""
    keep_exchanges: int | None = None
    reaching: Callable[[base.Progress], object] | None = None
    """Called at the beginning of each stage."""


def fixed_tokens(job: Job) -> policy.FixedTokens:
    """Return the tokens that every request has besides its messages."""
    return policy.FixedTokens(job.meter.count(job.system, (), ()), job.meter.count("", job.tools, ()))


def thresholds(job: Job) -> tuple[int, int]:
    """Return the soft and the hard threshold in tokens of a whole request: system prompt, tools and messages."""
    fixed = fixed_tokens(job)
    try:
        usable = job.usable
    except errors.NoRoom:
        return job.window, job.window
    before = fixed.system + fixed.tools
    return before + int(job.policy.soft * usable), before + int(job.policy.hard * usable)


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
        job.size_of,
        tail_tokens=int(job.usable * job.policy.tail),
        pinned_tokens=int(job.usable * job.policy.pinned),
        pinned=[pin.seq for pin in pins],
        keep_exchanges=keep_exchanges,
        manual=manual,
    )
    if found is None:
        return None
    # If even the smallest summary would be rejected, no attempt is made.
    smallest = _fallback_budget(job.summary_budget, FALLBACK_FRACTIONS[-1])
    smallest_size = job.size_of(_as_message(summary.MARK)) + job.meter.factor * smallest
    limit = _limit_after(job, job.size(context), manual)
    return found if job.size(found.staying) + smallest_size <= limit else None


def explain_nothing_to_do(
    job: Job, context: types.Context, keep_exchanges: int | None = None, manual: bool = False
) -> str:
    """Explain why nothing of this context is worth a summary."""
    count = "1 message" if len(context) == 1 else f"{len(context)} messages"
    if keep_exchanges is not None and keep_exchanges > 1:
        kept = f"the last {keep_exchanges} exchanges"
    elif manual or keep_exchanges is not None:
        kept = "the last exchange"
    else:
        kept = f"the last ~{int(job.usable * job.policy.tail):,} tokens"
    return (
        f"Nothing to compact: {kept} and pinned messages stay verbatim, and too little of the conversation "
        f"({count}, ~{job.size(context):,} tokens) is left to summarize."
    )


def _limit_after(job: Job, before: int, manual: bool) -> float:
    """Return the tokens that the context may have after a compaction.

    A user may compact a small conversation whatever that saves, as long as it stays below the soft threshold.
    """
    shrunk = before * (1 - job.policy.least_shrink)
    return max(shrunk, job.policy.soft * job.usable) if manual else shrunk


# --- the protocol ----------------------------------------------------------------------------------------


async def compress(job: Job, options: CompactionRequest) -> base.CompactionResult:
    """Compact the conversation, or return why not. Errors become outcomes; only a cancellation is raised."""
    bill = _Bill()
    result = await _attempt(job, options, bill)
    return msgspec.structs.replace(result, usage=bill.total)


async def _attempt(job: Job, options: CompactionRequest, bill: _Bill) -> base.CompactionResult:
    head = options.expected or job.conversation_id
    try:
        if not options.force:
            # Before the lease is taken, so that a process in its cooldown blocks no other one.
            _, stored = await _read_budget(job)
            if left := budget.cooldown_left(stored, job.policy, job.clock()):
                return _cooling_down(head, left)
        start = await _begin(job)
    except errors.Busy as error:
        return _result(base.Outcome.BUSY, head, _explain_busy(error.holder), error.expires_in)
    except Exception as error:  # noqa: BLE001 -- a failed compaction must not fail the turn
        return _result(base.Outcome.FAILED, head, f"The compaction could not start. {_explain(error)}")
    try:
        return await _run(job, options, start, bill)
    except (errors.LeaseLost, errors.Superseded) as error:
        await _close_attempt(job, bill, budget.close_attempt)
        return _result(base.Outcome.BUSY, head, _explain_lost(error, start))
    except Exception as error:  # noqa: BLE001 -- a failed compaction must not fail the turn
        await _close_attempt(job, bill, _failure(job, options))
        return _result(base.Outcome.FAILED, head, f"The compaction failed. {_explain(error)}")
    except asyncio.CancelledError:
        # The attempt stays open in the budget, so it counts as failed. Its cost is recorded now.
        if bill.unrecorded != types.Usage():
            await asyncio.shield(asyncio.ensure_future(_close_attempt(job, bill, lambda stored: stored)))
        raise
    finally:
        await _release(job, start)


async def _run(job: Job, options: CompactionRequest, start: _Start, bill: _Bill) -> base.CompactionResult:
    snapshot = start.snapshot
    if options.expected is not None and snapshot.head_id != options.expected:
        return _result(base.Outcome.NOTHING_TO_DO, options.expected, "The conversation was already compacted.")
    if not (await job.db.conversation(job.conversation_id)).live:
        return _result(base.Outcome.NOTHING_TO_DO, snapshot.head_id, ENDED)
    context = await job.db.context(job.conversation_id, snapshot.last_seq)
    pins = await job.db.pins(job.conversation_id)
    plan = await time_slices.run_in_thread(plan_cut, job, context, options.keep_exchanges, pins, options.force)
    if plan is None:
        why = await time_slices.run_in_thread(
            explain_nothing_to_do, job, context, options.keep_exchanges, options.force
        )
        return _result(base.Outcome.NOTHING_TO_DO, snapshot.head_id, why)
    refusal = await _count_attempt(job, options, snapshot.head_id)
    if refusal is not None:
        return refusal
    if options.reaching is not None:
        options.reaching(base.Progress("summing up", len(plan.going), plan.tokens))
    draft = await _with_heartbeat(job, start, _write_draft(job, options, context, plan, bill))
    if draft.written is None:
        await _close_attempt(job, bill, _failure(job, options))
        problems = _join(draft.problems)
        return _result(base.Outcome.FAILED, snapshot.head_id, f"No summary was accepted: {problems}.")
    if options.reaching is not None:
        options.reaching(base.Progress("writing", len(plan.going)))
    return await _commit(job, start, plan, draft, draft.written, bill)


async def _commit(
    job: Job, start: _Start, plan: cut.Cut, draft: _Draft, written: summary.Written, bill: _Bill
) -> base.CompactionResult:
    snapshot = start.snapshot
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
        head = await commit(start.fence)
    except errors.LeasesUnavailable as error:
        # The table of leases is gone. The commit still compares head and epoch.
        job.db.lease_failures.report(error)
        head = await commit(snapshot)
    try:
        if job.moved is not None:
            job.moved(head.id)
    except Exception:
        logger.exception("a callback for the new head %s failed", head.id)
    # Under the lease, so that no other process begins a compaction before the hooks of this one have run.
    await _with_heartbeat(job, start, _finish(job, head.id, bill), cancel_if_lost=False)
    remark = _remark(written, draft.problems)
    after = await _read_context(job, head.id, snapshot.epoch + 1, plan, written.text)
    old = [message for message in after if message.seq <= snapshot.last_seq]
    return base.CompactionResult(
        outcome=base.Outcome.COMPACTED,
        session_id=head.id,
        messages=tuple(after),
        reason=f"A summary now replaces {len(plan.going)} messages. {remark}".rstrip(),
        before=draft.before,
        after=await time_slices.run_in_thread(job.size, old),
        cut_seq=plan.cut_seq,
        model=written.by,
        remark=remark,
    )


async def _finish(job: Job, head: str, bill: _Bill) -> None:
    await _close_attempt(job, bill, lambda stored: budget.record_success(stored, job.clock()))
    await hooks.run(job.hooks.after, head, job.hooks.limit)


async def _read_context(job: Job, head: str, epoch: int, plan: cut.Cut, text: str) -> Sequence[types.Message]:
    """Return the context after the commit; if it cannot be read, build it from the plan."""
    try:
        return (await job.db.context(job.conversation_id)).messages
    except Exception as error:  # noqa: BLE001 -- the compaction is committed, so its outcome stays
        logger.warning("the context after a compaction could not be read: %s", error)
    uid, body = f"{speaker.SUMMARY}{epoch}", message_codec.encode_synthetic(text)
    replacement = types.Message(plan.cut_seq, uid, head, "user", job.clock(), body)
    tail = next(place for place, message in enumerate(plan.staying) if message.seq == plan.cut_seq + 1)
    return (*plan.staying[:tail], replacement, *plan.staying[tail:])


# --- the draft of a summary ------------------------------------------------------------------------------


class _Draft(msgspec.Struct, frozen=True):
    """An accepted summary, None if there is none; the problems of rejected ones; the tokens before."""

    written: summary.Written | None
    problems: list[str]
    before: int
    going: Sequence[types.Message]
    """The messages that the summary replaces, redacted."""


async def _write_draft(
    job: Job, options: CompactionRequest, context: types.Context, plan: cut.Cut, bill: _Bill
) -> _Draft:
    await hooks.run(job.hooks.before, context.session_id, job.hooks.limit)
    before = await time_slices.run_in_thread(job.size, context)
    request = await time_slices.run_in_thread(_build_request, job, options, context, plan, bill)
    limit = _limit_after(job, before, options.force)

    def size_after(text: str) -> int:
        return job.size([_as_message(text), *plan.staying])

    def write_smaller_extract() -> summary.Written | None:
        # Without the texts that must be kept: those that do not fit are in the ledger.
        for fraction in FALLBACK_FRACTIONS:
            smaller = _fallback_budget(request.budget, fraction)
            text = summary.add_mark(_extract(msgspec.structs.replace(request, budget=smaller, must_keep=())))
            if size_after(text) <= limit:
                return summary.Written(text, None)
        return None

    gate = summary.gate(request, before, size_after, limit)
    written, problems = await summary.write(request, job.summarizers, _extract, gate, job.policy.deadline)
    if written is None:
        written = await time_slices.run_in_thread(write_smaller_extract)
    return _Draft(written, problems, before, request.messages)


def _build_request(
    job: Job, options: CompactionRequest, context: types.Context, plan: cut.Cut, bill: _Bill
) -> base.SummaryRequest:
    limit = job.summary_budget
    previous = sentences.redact(summary.remove_mark(context.summary)) if context.summary else None
    going = tuple(map(_redact, plan.going))
    return base.SummaryRequest(
        messages=going,
        previous=previous,
        focus=options.focus,
        budget=limit,
        must_keep=must_keep.select(going, previous, limit // MUST_KEEP_FRACTION),
        spent=bill.add,
    )


def _extract(request: base.SummaryRequest) -> str:
    return extract.extract(request, tokens.estimate)


def _fallback_budget(limit: int, fraction: int) -> int:
    return max(50, limit // fraction)


def _redact(message: types.Message) -> types.Message:
    """Return the message without secrets, because summarizers may be custom code."""
    time_slices.yield_cpu()
    content = message.content
    if isinstance(content, str):
        content = sentences.redact(content)
    else:
        content = [
            {**part, "text": sentences.redact(part["text"])} if isinstance(part.get("text"), str) else part
            for part in content
        ]
    calls = [msgspec.structs.replace(call, arguments=_redact_arguments(call.arguments)) for call in message.tool_calls]
    body = message_codec.encode(content, calls, message.tool_call_id)
    return types.Message(message.seq, message.uid, message.session_id, message.role, message.at, body)


def _redact_arguments(arguments: str | dict[str, Any]) -> str:
    return sentences.redact(arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())


def _as_message(text: str) -> types.Message:
    return types.Message(0, "summary", "", "user", 0.0, message_codec.encode(text))


# --- the lease -------------------------------------------------------------------------------------------


class _Start:
    """The snapshot that a compaction starts from, and its lease, if it could be taken."""

    def __init__(self, taken: types.Lease | types.Snapshot) -> None:
        self.lease = taken if isinstance(taken, types.Lease) else None
        self.snapshot = taken.snapshot if isinstance(taken, types.Lease) else taken
        self.fence = taken
        """Compared by the commit: the lease, or the snapshot alone if leases fail."""


async def _begin(job: Job) -> _Start:
    """Take the lease; if leases fail, start from a snapshot."""
    try:
        taking = job.db.begin_compaction(job.conversation_id, None, job.ttl)
        return _Start(await async_db.await_or_release(taking, lambda taken: _release(job, _Start(taken))))
    except errors.Busy:
        raise
    except Exception as error:  # noqa: BLE001 -- the lease only saves work; the commit decides
        snapshot = await job.db.snapshot(job.conversation_id)
        job.db.lease_failures.report(error)
        return _Start(snapshot)


async def _with_heartbeat(job: Job, start: _Start, work: Awaitable[T], *, cancel_if_lost: bool = True) -> T:
    """Renew the lease while the work runs, and cancel the work when the lease is lost."""
    task = asyncio.ensure_future(work)
    if start.lease is None:
        return await task
    lost = asyncio.create_task(_renew_until_lost(job, start, start.lease))
    try:
        await asyncio.wait([task, lost] if cancel_if_lost else [task], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise errors.LeaseLost()
        return task.result()
    finally:
        lost.cancel()
        task.cancel()
        await asyncio.wait([task, lost])


async def _renew_until_lost(job: Job, start: _Start, lease: types.Lease) -> None:
    while True:
        await asyncio.sleep(lease.ttl / 3)
        try:
            await job.db.renew_lease(lease)
        except errors.LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 -- only a lost lease stops the work
            job.db.lease_failures.report(error)
            if leases.is_lock_failure(error):
                # The lease expires without another claimant: the commit compares head and epoch only.
                start.fence = start.snapshot


async def _release(job: Job, start: _Start) -> None:
    """Release the lease. A lease that cannot be released expires."""
    if start.lease is not None:
        try:
            await asyncio.shield(asyncio.ensure_future(job.db.release_lease(start.lease)))
        except Exception as error:  # noqa: BLE001 -- the outcome of the compaction stays
            job.db.lease_failures.abandon(start.lease, error)


# --- the budget ------------------------------------------------------------------------------------------


async def _count_attempt(job: Job, options: CompactionRequest, head: str) -> base.CompactionResult | None:
    """Count the attempt in the budget, or return why it is not allowed."""
    for _ in range(MAX_SWAPS):
        version, stored = await _read_budget(job)
        match budget.decide(stored, job.policy, job.clock(), options.turn, options.force):
            case budget.CoolingDown(seconds):
                return _cooling_down(head, seconds)
            case budget.Exhausted(reason, seconds):
                return _result(base.Outcome.EXHAUSTED, head, reason, seconds)
            case budget.Allowed(counted):
                if await job.db.update_budget(job.conversation_id, version, budget.encode(counted)):
                    return None
    return _result(base.Outcome.BUSY, head, "Other processes are compacting this conversation.")


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


def _failure(job: Job, options: CompactionRequest) -> Callable[[budget.Budget], budget.Budget]:
    """Return the change after a failure. A failed manual attempt starts no cooldown for automatic ones."""
    if options.force:
        return budget.close_attempt
    return lambda stored: budget.record_failure(stored, job.policy, job.clock())


async def _close_attempt(job: Job, bill: _Bill, change: Callable[[budget.Budget], budget.Budget]) -> None:
    """Record how an attempt ended and what it cost. Errors are logged; the outcome stays."""
    # Taken before the write: if the outcome of the write is unknown, nothing is counted twice.
    usage, bill.unrecorded = bill.unrecorded, types.Usage()
    try:
        for _ in range(MAX_SWAPS):
            version, stored = await _read_budget(job)
            changed = budget.add_summary_usage(change(stored), usage)
            if await job.db.update_budget(job.conversation_id, version, budget.encode(changed)):
                return
    except errors.HoldfastError as error:
        job.db.lease_failures.report(error)
    except Exception:
        logger.exception("the cost of a compaction could not be recorded")


async def _read_budget(job: Job) -> tuple[int, budget.Budget]:
    version, body = await job.db.budget(job.conversation_id)
    return version, budget.parse(body)


# --- messages --------------------------------------------------------------------------------------------


def _result(
    outcome: base.Outcome, session_id: str, reason: str, retry_in: float | None = None
) -> base.CompactionResult:
    return base.CompactionResult(outcome=outcome, session_id=session_id, reason=reason, retry_in=retry_in)


def _cooling_down(session_id: str, seconds: float) -> base.CompactionResult:
    reason = f"The last attempts failed. The next one is made in {seconds:.0f} s; type /compact to try now."
    return _result(base.Outcome.COOLING_DOWN, session_id, reason, seconds)


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


def _explain_busy(holder: str) -> str:
    if leases.is_this_process(holder):
        return "A compaction of this conversation is already running."
    return "Another process is compacting this conversation."


def _explain_lost(error: errors.HoldfastError, start: _Start) -> str:
    match error:
        case errors.Superseded(head=head) if head != start.snapshot.head_id:
            return "Another process compacted the conversation first."
        case errors.Superseded():
            return "The context was changed meanwhile, so nothing was compacted."
        case _:
            return "The compaction lost its lease, so nothing was compacted."
