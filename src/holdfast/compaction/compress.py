"""One compaction, from the lease to the commit. Every way in is this one function.

The lease saves work; the commit decides. The summarizer is given the context of the snapshot, never a list
somebody kept, and what is appended meanwhile comes after the cut and so stays in the context. Whoever loses, for
whatever reason, has changed nothing.
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
from holdfast.compaction import base, cut, extract, hooks, ledger, policy, sentences, speaker, summary, time_slices
from holdfast.model import tokens
from holdfast.store import async_db, leases, message_codec

logger = logging.getLogger("holdfast.compaction")
T = TypeVar("T")

TTL = 30.0
MUST_KEEP_SHARE = 4
# What is left of a summary's budget where even the extract is too long.
RUNGS = (2, 4, 16, 64)
SWAPS = 8
MOST_TOKENS = 10**12
# No commit would be taken, so no model is asked.
ENDED = "The conversation was ended. Say something first: that opens it again, and then it can be compacted."


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """All a compaction of one conversation needs to know."""

    db: async_db.AsyncSessionDB
    conversation_id: str
    meter: tokens.Meter
    window: int
    system: str = ""
    tools: tuple[types.ToolSpec, ...] = ()
    summarizers: tuple[base.Summarizer, ...] = ()
    policy: policy.Policy = policy.Policy()
    hooks: hooks.Hooks = hooks.Hooks()
    clock: Callable[[], float] = time.time
    ttl: float = TTL
    moved: Callable[[str], object] | None = None
    """Told the new head as soon as it stands, also where whoever asked has stopped waiting."""

    @property
    def usable(self) -> int:
        """What the messages may take of the window; NoRoom when nothing is left for them."""
        return policy.usable(self.window, self.policy.reserved(self.window), floor_of(self))

    def size(self, messages: Sequence[types.Message]) -> int:
        """The tokens of messages; what every request has besides is in none of the sums."""
        return sum(map(self.size_of, messages))

    def size_of(self, message: types.Message) -> int:
        """The tokens of one message."""
        time_slices.breathe()
        return self.meter.of(message)


def floor_of(work: Work) -> policy.Floor:
    """What every request has, whatever was said."""
    return policy.Floor(work.meter.count(work.system, (), ()), work.meter.count("", work.tools, ()))


def thresholds(work: Work) -> tuple[int, int]:
    """The soft and the hard threshold in tokens of a whole request: system prompt, tools and messages."""
    floor = floor_of(work)
    try:
        usable = work.usable
    except errors.NoRoom:
        return work.window, work.window
    before = floor.system + floor.tools
    return before + int(work.policy.soft * usable), before + int(work.policy.hard * usable)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How a compaction was asked for."""

    expected: str | None = None
    """The session whoever asks takes for the head: where it is not, somebody has compacted already."""
    turn: str | None = None
    """The turn it happens in, whose attempts are counted."""
    focus: str | None = None
    force: bool = False
    """A person asked: the cool-down, the frequency and, in a small conversation, the least shrinkage do not apply."""
    keep_exchanges: int | None = None
    reaching: Callable[[base.Progress], object] | None = None
    """Told of each stage it comes to, before it begins."""


async def compress(work: Work, asked: Asked) -> base.Compaction:
    """Compact, or say why not. Nothing of Holdfast's own errors is raised."""
    bill = _Bill()
    made = await _attempted(work, asked, bill)
    return msgspec.structs.replace(made, usage=bill.total)


async def _attempted(work: Work, asked: Asked, bill: _Bill) -> base.Compaction:
    here = asked.expected or work.conversation_id
    try:
        cooling = 0.0 if asked.force else policy.cooling((await _budget(work))[1], work.policy, work.clock())
        if cooling:
            # Without the lease: whoever may not compact keeps nobody from it, and reads nothing.
            return _cooling_down(here, cooling)
        began = await _begin(work)
    except errors.Busy as error:
        return _outcome(base.Outcome.BUSY, here, _taken_by(error.holder), error.expires_in)
    except Exception as error:  # noqa: BLE001 -- a compaction that fails stops no turn
        return _outcome(base.Outcome.FAILED, here, f"The compaction could not begin. {_shown(error)}")
    try:
        return await _leased(work, asked, began, bill)
    except (errors.LeaseLost, errors.Superseded) as error:
        await _spent(work, bill, policy.let_go)
        return _outcome(base.Outcome.BUSY, here, _overtaken(error, began))
    except Exception as error:  # noqa: BLE001 -- a compaction that fails stops no turn
        await _spent(work, bill, _failed(work, asked))
        return _outcome(base.Outcome.FAILED, here, f"The compaction failed. {_shown(error)}")
    except asyncio.CancelledError:
        # It stays open in the budget, and so counts as failed; what it has cost is known by now.
        if bill.owed != types.Usage():
            await asyncio.shield(asyncio.ensure_future(_spent(work, bill, lambda budget: budget)))
        raise
    finally:
        await _release(work, began)


async def _leased(work: Work, asked: Asked, began: _Began, bill: _Bill) -> base.Compaction:
    snapshot = began.snapshot
    if asked.expected is not None and snapshot.head_id != asked.expected:
        return _outcome(base.Outcome.NOTHING_TO_DO, asked.expected, "It was compacted already.")
    if not (await work.db.conversation(work.conversation_id)).live:
        return _outcome(base.Outcome.NOTHING_TO_DO, snapshot.head_id, ENDED)
    context = await work.db.context(work.conversation_id, snapshot.last_seq)
    pins = await work.db.pins(work.conversation_id)
    found = await time_slices.aside(find, work, context, asked.keep_exchanges, pins, asked.force)
    if found is None:
        why = await time_slices.aside(nothing, work, context, asked.keep_exchanges, asked.force)
        return _outcome(base.Outcome.NOTHING_TO_DO, snapshot.head_id, why)
    refused = await _counted(work, asked, snapshot.head_id)
    if refused is not None:
        return refused
    if asked.reaching is not None:
        asked.reaching(base.Progress("summing up", len(found.going), found.tokens))
    draft = await _with_heartbeat(work, began, _drafted(work, asked, context, found, bill))
    if draft.written is None:
        await _spent(work, bill, _failed(work, asked))
        return _outcome(base.Outcome.FAILED, snapshot.head_id, f"No summary was accepted: {_joined(draft.problems)}.")
    if asked.reaching is not None:
        asked.reaching(base.Progress("writing", len(found.going)))
    return await _committed(work, began, found, draft, draft.written, bill)


def find(
    work: Work,
    context: types.Context,
    keep_exchanges: int | None = None,
    pins: Sequence[types.Pin] = (),
    manual: bool = False,
) -> cut.Cut | None:
    """Where this context would be cut; None: nothing is worth it. It changes nothing: a preview shows it, too."""
    found = cut.find_cut(
        context,
        work.size_of,
        tail_tokens=int(work.usable * work.policy.tail),
        pinned_tokens=int(work.usable * work.policy.pinned),
        pinned=[pin.seq for pin in pins],
        keep_exchanges=keep_exchanges,
        manual=manual,
    )
    return found if found is not None and _can_pass(work, context, found, manual) else None


def nothing(work: Work, context: types.Context, keep_exchanges: int | None = None, manual: bool = False) -> str:
    """Explain why nothing of this context is worth a summary."""
    many = "1 message" if len(context) == 1 else f"{len(context)} messages"
    if keep_exchanges is not None and keep_exchanges > 1:
        kept = f"the last {keep_exchanges} exchanges"
    elif manual or keep_exchanges is not None:
        kept = "the last exchange"
    else:
        kept = f"the last ~{int(work.usable * work.policy.tail):,} tokens"
    return (
        f"Nothing to compact: {kept} and pinned messages stay verbatim, and too little of the conversation "
        f"({many}, ~{work.size(context):,} tokens) is left to summarize."
    )


def _most(work: Work, before: int, manual: bool) -> float:
    """How many tokens the context may have after a compaction.

    A person may compact a small conversation, whatever that saves, as long as it stays one that no automatic
    compaction would touch.
    """
    shrunk = before * (1 - work.policy.least_shrink)
    return max(shrunk, work.policy.soft * work.usable) if manual else shrunk


def _can_pass(work: Work, context: types.Context, found: cut.Cut, manual: bool) -> bool:
    """Whether the gate would let the smallest of all summaries pass: what cannot is not tried."""
    smallest = work.size_of(_as_message(summary.MARK)) + work.meter.factor * _rung(_budget_of(work), RUNGS[-1])
    return work.size(found.staying) + smallest <= _most(work, work.size(context), manual)


class _Draft(msgspec.Struct, frozen=True):
    """A summary that may be committed, if there is one; what was wrong with others; and the size before."""

    written: summary.Written | None
    problems: list[str]
    before: int
    going: Sequence[types.Message]
    """What goes, without secrets."""


async def _drafted(work: Work, asked: Asked, context: types.Context, found: cut.Cut, bill: _Bill) -> _Draft:
    await hooks.told(work.hooks.before, context.session_id, work.hooks.limit)
    # Off the loop: it reads everything.
    before = await time_slices.aside(work.size, context)
    request = await time_slices.aside(_request, work, asked, context, found, bill)
    most = _most(work, before, asked.force)
    check = summary.gate(request, before, lambda text: work.size([_as_message(text), *found.staying]), most)
    written, problems = await summary.write(request, work.summarizers, _extracted, check, work.policy.deadline)
    if written is None:
        written = await time_slices.aside(_last_rung, work, request, found, most)
    return _Draft(written, problems, before, request.messages)


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return plain


def _extracted(request: base.SummaryRequest) -> str:
    return extract.extract(request, tokens.estimate)


async def _committed(
    work: Work,
    began: _Began,
    found: cut.Cut,
    draft: _Draft,
    written: summary.Written,
    bill: _Bill,
) -> base.Compaction:
    snapshot = began.snapshot
    left = await time_slices.aside(ledger.of, draft.going, draft.problems)
    commit = functools.partial(
        work.db.commit_compaction,
        summary=written.text,
        cut_seq=found.cut_seq,
        pinned=found.pinned,
        ledger=_plain({**left, cut.CARRIED: found.carried}),
        model=written.by,
        keep_lease=True,
    )
    try:
        head = await commit(began.fence)
    except errors.LeasesUnavailable as error:
        # The lease was lost with its table. Head and epoch are compared all the same.
        work.db.lease_failures.report(error)
        head = await commit(snapshot)
    try:
        if work.moved is not None:
            work.moved(head.id)
    except Exception:
        logger.exception("a cache could not follow the conversation to %s", head.id)
    # Under the lease, so that no other process begins the next compaction before this one's hooks are done.
    await _with_heartbeat(work, began, _bookkeeping(work, head.id, bill), cancel_if_lost=False)
    remark = _remark(written, draft.problems)
    after = await _after(work, head.id, snapshot.epoch + 1, found, written.text)
    return base.Compaction(
        outcome=base.Outcome.COMPACTED,
        session_id=head.id,
        messages=tuple(after),
        reason=f"{len(found.going)} messages are represented by a summary now. {remark}".rstrip(),
        before=draft.before,
        after=await time_slices.aside(work.size, [each for each in after if each.seq <= snapshot.last_seq]),
        cut_seq=found.cut_seq,
        model=written.by,
        remark=remark,
    )


async def _bookkeeping(work: Work, head: str, bill: _Bill) -> None:
    await _spent(work, bill, lambda budget: policy.succeeded(budget, work.clock()))
    await hooks.told(work.hooks.after, head, work.hooks.limit)


def _remark(written: summary.Written, problems: Sequence[str]) -> str:
    why = _joined(problems)
    if written.by is None:
        return f"The summary is an extract, made without a model{': ' if why else ''}{why}."
    return f"An earlier summary was rejected: {why}." if why else ""


def _joined(problems: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(each.rstrip(".") for each in problems))


async def _after(work: Work, head: str, epoch: int, found: cut.Cut, text: str) -> Sequence[types.Message]:
    """The context after a commit. Where it cannot be read, what is known of it: the commit stands."""
    try:
        return (await work.db.context(work.conversation_id)).messages
    except Exception as error:  # noqa: BLE001 -- the compaction is committed: nothing changes its outcome
        logger.warning("the context after a compaction could not be read: %s", error)
    uid, body = f"{speaker.SUMMARY}{epoch}", message_codec.encode_synthetic(text)
    stands = types.Message(found.cut_seq, uid, head, "user", work.clock(), body)
    tail = next(place for place, each in enumerate(found.staying) if each.seq == found.cut_seq + 1)
    return (*found.staying[:tail], stands, *found.staying[tail:])


def _budget_of(work: Work) -> int:
    """How many tokens a summary may have."""
    return max(200, int(work.usable * work.policy.summary))


def _request(work: Work, asked: Asked, context: types.Context, found: cut.Cut, bill: _Bill) -> base.SummaryRequest:
    budget = _budget_of(work)
    previous = sentences.redacted(summary.bare(context.summary)) if context.summary else None
    going = tuple(map(_redacted, found.going))
    return base.SummaryRequest(
        messages=going,
        previous=previous,
        focus=asked.focus,
        budget=budget,
        must_keep=ledger.must_keep(going, previous, budget // MUST_KEEP_SHARE),
        spent=bill.add,
    )


def _last_rung(work: Work, request: base.SummaryRequest, found: cut.Cut, most: float) -> summary.Written | None:
    """The extract without anything that must be kept, in ever less room: what does not fit is in the ledger."""
    for share in RUNGS:
        small = msgspec.structs.replace(request, budget=_rung(request.budget, share), must_keep=())
        text = summary.marked(_extracted(small))
        if work.size([_as_message(text), *found.staying]) <= most:
            return summary.Written(text, None)
    return None


def _rung(budget: int, share: int) -> int:
    return max(50, budget // share)


def _redacted(message: types.Message) -> types.Message:
    """The message without secrets: whoever writes the summary may be anybody's."""
    time_slices.breathe()
    content = message.content
    if isinstance(content, str):
        content = sentences.redacted(content)
    else:
        content = [
            {**part, "text": sentences.redacted(part["text"])} if isinstance(part.get("text"), str) else part
            for part in content
        ]
    calls = [msgspec.structs.replace(call, arguments=_hidden(call.arguments)) for call in message.tool_calls]
    body = message_codec.encode(content, calls, message.tool_call_id)
    return types.Message(message.seq, message.uid, message.session_id, message.role, message.at, body)


def _hidden(arguments: str | dict[str, Any]) -> str:
    return sentences.redacted(arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())


def _as_message(text: str) -> types.Message:
    return types.Message(0, "summary", "", "user", 0.0, message_codec.encode(text))


# --- the lease while a model writes --------------------------------------------------------------------


class _Began:
    """The lease a compaction works under, if there is one, and the snapshot it began from."""

    def __init__(self, taken: types.Lease | types.Snapshot) -> None:
        self.lease = taken if isinstance(taken, types.Lease) else None
        self.snapshot = taken.snapshot if isinstance(taken, types.Lease) else taken
        self.fence = taken
        """Compared by the commit: the lease, or the bare snapshot where the lock subsystem failed."""


async def _begin(work: Work) -> _Began:
    """Take the lease; if the lock subsystem fails in whatever way, begin from a bare snapshot."""
    try:
        taking = work.db.begin_compaction(work.conversation_id, None, work.ttl)
        return _Began(await async_db.await_or_release(taking, lambda taken: _release(work, _Began(taken))))
    except errors.Busy:
        raise
    except Exception as error:  # noqa: BLE001 -- the lease saves work only; the commit decides
        snapshot = await work.db.snapshot(work.conversation_id)
        work.db.lease_failures.report(error)
        return _Began(snapshot)


async def _with_heartbeat(work: Work, began: _Began, making: Awaitable[T], *, cancel_if_lost: bool = True) -> T:
    """Renew the lease beside the work, and cancel the work at once when the lease is gone."""
    task = asyncio.ensure_future(making)
    if began.lease is None:
        return await task
    lost = asyncio.create_task(_until_lost(work, began, began.lease))
    try:
        await asyncio.wait([task, lost] if cancel_if_lost else [task], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise errors.LeaseLost()
        return task.result()
    finally:
        lost.cancel()
        task.cancel()
        await asyncio.wait([task, lost])


async def _until_lost(work: Work, began: _Began, lease: types.Lease) -> None:
    while True:
        await asyncio.sleep(lease.ttl / 3)
        try:
            await work.db.renew_lease(lease)
        except errors.LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 -- only a lost lease stops the work
            work.db.lease_failures.report(error)
            if leases.is_lock_failure(error):
                # The lease expires without another claimant: the commit compares head and epoch only.
                began.fence = began.snapshot


async def _release(work: Work, began: _Began) -> None:
    """Release the lease. One that cannot be released expires; the outcome stays what it is."""
    if began.lease is not None:
        try:
            await asyncio.shield(asyncio.ensure_future(work.db.release_lease(began.lease)))
        except Exception as error:  # noqa: BLE001 -- it changes no outcome
            work.db.lease_failures.abandon(began.lease, error)


# --- budgets -------------------------------------------------------------------------------------------


async def _counted(work: Work, asked: Asked, head: str) -> base.Compaction | None:
    """Count the attempt, or say why it may not be made. It counts from its beginning, however it ends."""
    for _ in range(SWAPS):
        version, budget = await _budget(work)
        verdict = policy.may_begin(budget, work.policy, work.clock(), asked.turn, asked.force)
        match verdict:
            case policy.CoolingDown(seconds):
                return _cooling_down(head, seconds)
            case policy.Exhausted(reason, seconds):
                return _outcome(base.Outcome.EXHAUSTED, head, reason, seconds)
            case policy.Go(after):
                if await work.db.update_budget(work.conversation_id, version, _plain(policy.written(after))):
                    return None
    return _outcome(base.Outcome.BUSY, head, "Other processes are compacting this conversation.")


class _Bill:
    """What models have used for one attempt, by their own account."""

    def __init__(self) -> None:
        self.total = types.Usage()
        self.owed = types.Usage()
        """What of it is in no budget yet."""

    def add(self, usage: types.Usage) -> None:
        """A summarizer may be anybody's: what cannot be is not believed."""
        if not _credible(usage):
            logger.warning("a summarizer gave an account that cannot be right")
            return
        self.total += usage
        self.owed += usage


def _credible(usage: object) -> bool:
    if not isinstance(usage, types.Usage):
        return False
    *counts, cost = msgspec.structs.astuple(usage)
    whole = all(type(count) is int and 0 <= count < MOST_TOKENS for count in counts)
    return whole and (cost is None or (isinstance(cost, int | float) and 0 <= cost < MOST_TOKENS))


def _failed(work: Work, asked: Asked) -> Callable[[policy.Budget], policy.Budget]:
    """A failure calls for a pause; what a person tried does not, lest it hold up what is made by itself."""
    if asked.force:
        return policy.let_go
    return lambda budget: policy.failed(budget, work.policy, work.clock())


async def _spent(work: Work, bill: _Bill, change: Callable[[policy.Budget], policy.Budget]) -> None:
    """Note how an attempt ended, and what it has cost. What fails here changes no outcome."""
    # Taken before it is written: what became of a write may remain unknown, and nothing is to count twice.
    owed, bill.owed = bill.owed, types.Usage()
    try:
        for _ in range(SWAPS):
            version, budget = await _budget(work)
            after = policy.charged(change(budget), owed)
            if await work.db.update_budget(work.conversation_id, version, _plain(policy.written(after))):
                return
    except errors.HoldfastError as error:
        work.db.lease_failures.report(error)
    except Exception:
        logger.exception("the cost of a compaction could not be recorded")


async def _budget(work: Work) -> tuple[int, policy.Budget]:
    version, body = await work.db.budget(work.conversation_id)
    return version, policy.read(body)


# --- the rest ------------------------------------------------------------------------------------------


def _shown(error: Exception) -> str:
    """The error for the user; the log has the traceback of an unexpected one."""
    if isinstance(error, errors.HoldfastError):
        return str(error)
    logger.error("a compaction failed unexpectedly", exc_info=error)
    return f"Internal error: {type(error).__name__}: {error}"


def _taken_by(holder: str) -> str:
    if leases.is_this_process(holder):
        return "A compaction of this conversation is under way already."
    return "Another process is compacting this conversation."


def _overtaken(error: errors.HoldfastError, began: _Began) -> str:
    match error:
        case errors.Superseded(head=head) if head != began.snapshot.head_id:
            return "Another compaction was faster; it stands."
        case errors.Superseded():
            return "What the model is shown was changed meanwhile, so nothing was compacted."
        case _:
            return "The compaction lost its lock meanwhile, so nothing was compacted."


def _cooling_down(session_id: str, seconds: float) -> base.Compaction:
    reason = f"The last attempts failed; the next is made in {seconds:.0f} s. /compact does it now."
    return _outcome(base.Outcome.COOLING_DOWN, session_id, reason, seconds)


def _outcome(outcome: base.Outcome, session_id: str, reason: str, retry_in: float | None = None) -> base.Compaction:
    return base.Compaction(outcome=outcome, session_id=session_id, reason=reason, retry_in=retry_in)
