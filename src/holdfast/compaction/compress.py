"""One compaction, from the lease to the commit. Every way in is this one function.

The lease saves work; the commit decides. The summarizer is given the context of the snapshot, never a list
somebody kept, and what is appended meanwhile comes after the cut and so stays in the context. Whoever loses, for
whatever reason, has changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast import errors, secrets, types
from holdfast.compaction import cut, extract, ledger, policy, port, summary
from holdfast.model import tokens
from holdfast.store import aio, bodies

logger = logging.getLogger("holdfast.compaction")
T = TypeVar("T")

TTL = 30.0
MUST_KEEP_SHARE = 4
SWAPS = 8

Hook = Callable[[str], Awaitable[object]]
"""Told a session. What it raises is logged and stops nothing."""


class Hooks(msgspec.Struct, frozen=True):
    """What others want to be told: memory, caches of files, plug-ins."""

    before: tuple[Hook, ...] = ()
    """Before a compaction, with the head it begins from."""
    after: tuple[Hook, ...] = ()
    """After one, with the new head."""
    closing: tuple[Hook, ...] = ()
    """Once, when an agent is closed, with the head."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """All a compaction of one conversation needs to know."""

    db: aio.AsyncSessionDB
    conversation_id: str
    meter: tokens.Meter
    window: int
    system: str = ""
    tools: tuple[types.ToolSpec, ...] = ()
    summarizers: tuple[port.Summarizer, ...] = ()
    policy: policy.Policy = policy.Policy()
    hooks: Hooks = Hooks()
    clock: Callable[[], float] = time.time
    ttl: float = TTL

    @property
    def usable(self) -> int:
        """What the messages may take of the window; NoRoom when nothing is left for them."""
        return policy.usable(self.window, self.policy.reserved(self.window), floor_of(self))

    def size(self, messages: Sequence[types.Message]) -> int:
        """The tokens of messages; what every request has besides is in none of the sums."""
        return sum(map(self.meter.of, messages))


def floor_of(work: Work) -> policy.Floor:
    """What every request has, whatever was said."""
    return policy.Floor(work.meter.count(work.system, (), ()), work.meter.count("", work.tools, ()))


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How a compaction was asked for."""

    expected: str | None = None
    """The session whoever asks takes for the head: where it is not, somebody has compacted already."""
    turn: str | None = None
    """The turn it happens in, whose attempts are counted."""
    focus: str | None = None
    force: bool = False
    """A person asked: neither cool-down nor frequency count. The gate does."""
    keep_exchanges: int | None = None


async def compress(work: Work, asked: Asked) -> port.Compaction:
    """Compact, or say why not. Nothing of Holdfast's own errors is raised."""
    here = asked.expected or work.conversation_id
    try:
        began = await aio.kept(
            work.db.begin_compaction(work.conversation_id, None, work.ttl), lambda taken: _released(work, taken)
        )
    except errors.Busy as error:
        return _outcome(port.Outcome.BUSY, here, "Another process is compacting this conversation.", error.expires_in)
    except errors.HoldfastError as error:
        return _outcome(port.Outcome.FAILED, here, f"The compaction could not begin. {error}")
    try:
        return await _leased(work, asked, began)
    except (errors.LeaseLost, errors.Superseded):
        await _spent(work, policy.let_go)
        return _outcome(port.Outcome.BUSY, here, "Another process was faster; its compaction stands.")
    except errors.HoldfastError as error:
        await _spent(work, lambda budget: policy.failed(budget, work.policy, work.clock()))
        return _outcome(port.Outcome.FAILED, here, f"The compaction failed. {error}")
    finally:
        await _released(work, began)


async def _leased(work: Work, asked: Asked, began: types.Lease | types.Snapshot) -> port.Compaction:
    snapshot = began.snapshot if isinstance(began, types.Lease) else began
    if asked.expected is not None and snapshot.head_id != asked.expected:
        return _outcome(port.Outcome.NOTHING_TO_DO, asked.expected, "It was compacted already.")
    context = await work.db.context(work.conversation_id, snapshot.last_seq)
    found = await asyncio.to_thread(find, work, context, asked.keep_exchanges)
    if found is None:
        return _outcome(port.Outcome.NOTHING_TO_DO, snapshot.head_id, "There is nothing to compact.")
    refused = await _counted(work, asked, snapshot.head_id)
    if refused is not None:
        return refused
    await told(work.hooks.before, snapshot.head_id)
    # The heart stops before the commit: that frees the lease itself, which must not be taken for a loss.
    draft = await _with_heartbeat(work, began, _drafted(work, asked, context, found))
    if draft.written is None:
        await _spent(work, lambda budget: policy.failed(budget, work.policy, work.clock()))
        return _outcome(port.Outcome.FAILED, snapshot.head_id, f"No summary made it smaller: {draft.problems[-1]}.")
    return await _committed(work, began, found, draft, draft.written)


def find(work: Work, context: types.Context, keep_exchanges: int | None = None) -> cut.Cut | None:
    """Where this context would be cut. It changes nothing: it is what a preview shows, too."""
    return cut.find_cut(
        context,
        work.meter.of,
        tail_tokens=int(work.usable * work.policy.tail),
        pinned_tokens=int(work.usable * work.policy.pinned),
        keep_exchanges=keep_exchanges,
    )


class _Draft(msgspec.Struct, frozen=True):
    """A summary that may be committed, if there is one; what was wrong with others; and the size before."""

    written: summary.Written | None
    problems: list[str]
    before: int


async def _drafted(work: Work, asked: Asked, context: types.Context, found: cut.Cut) -> _Draft:
    before = work.size(context)
    # Off the loop: it reads everything that goes.
    request = await asyncio.to_thread(_request, work, asked, context, found)
    check = summary.gate(
        request, before, lambda text: work.size([_as_message(text), *found.staying]), work.policy.least_shrink
    )
    written, problems = await summary.write(request, work.summarizers, _extracted, check, work.policy.deadline)
    if written is None:
        written = await asyncio.to_thread(_last_rung, work, request, found, before)
    return _Draft(written, problems, before)


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return plain


def _extracted(request: port.SummaryRequest) -> str:
    return extract.extract(request, tokens.estimate)


async def _committed(
    work: Work, began: types.Lease | types.Snapshot, found: cut.Cut, draft: _Draft, written: summary.Written
) -> port.Compaction:
    snapshot = began.snapshot if isinstance(began, types.Lease) else began
    left = await asyncio.to_thread(ledger.of, found.going, draft.problems)
    head = await work.db.commit_compaction(
        began,
        summary=written.text,
        cut_seq=found.cut_seq,
        pinned=found.pinned,
        ledger=_plain({**left, cut.CARRIED: found.carried}),
        model=written.by,
    )
    await _spent(work, lambda budget: policy.succeeded(budget, work.clock()))
    await told(work.hooks.after, head.id)
    after = await work.db.context(work.conversation_id)
    return port.Compaction(
        outcome=port.Outcome.COMPACTED,
        session_id=head.id,
        messages=after.messages,
        reason=f"{len(found.going)} messages are represented by a summary now.",
        before=draft.before,
        after=work.size([message for message in after if message.seq <= snapshot.last_seq]),
        cut_seq=found.cut_seq,
        model=written.by,
    )


def _request(work: Work, asked: Asked, context: types.Context, found: cut.Cut) -> port.SummaryRequest:
    budget = max(200, int(work.usable * work.policy.summary))
    previous = summary.bare(context.summary) if context.summary else None
    return port.SummaryRequest(
        messages=tuple(map(_redacted, found.going)),
        previous=previous,
        focus=asked.focus,
        budget=budget,
        must_keep=ledger.must_keep(found.going, previous, budget // MUST_KEEP_SHARE),
    )


def _last_rung(work: Work, request: port.SummaryRequest, found: cut.Cut, before: int) -> summary.Written | None:
    """The extract without anything that must be kept, in ever less room: what does not fit is in the ledger."""
    for share in (2, 4, 16):
        small = msgspec.structs.replace(request, budget=max(50, request.budget // share), must_keep=())
        text = summary.marked(_extracted(small))
        if work.size([_as_message(text), *found.staying]) <= before * (1 - work.policy.least_shrink):
            return summary.Written(text, None)
    return None


def _redacted(message: types.Message) -> types.Message:
    """The message without secrets: whoever writes the summary may be anybody's."""
    content = message.content
    if isinstance(content, str):
        content = secrets.redacted(content)
    else:
        content = [
            {**part, "text": secrets.redacted(part["text"])} if isinstance(part.get("text"), str) else part
            for part in content
        ]
    calls = [msgspec.structs.replace(call, arguments=_hidden(call.arguments)) for call in message.tool_calls]
    body = bodies.encode(content, calls, message.tool_call_id)
    return types.Message(message.seq, message.uid, message.session_id, message.role, message.at, body)


def _hidden(arguments: str | dict[str, Any]) -> str:
    return secrets.redacted(arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())


def _as_message(text: str) -> types.Message:
    return types.Message(0, "summary", "", "user", 0.0, bodies.encode(text))


# --- the lease while a model writes --------------------------------------------------------------------


async def _with_heartbeat(work: Work, began: types.Lease | types.Snapshot, making: Awaitable[T]) -> T:
    """Renew the lease beside the work, and cancel the work at once when the lease is gone."""
    task = asyncio.ensure_future(making)
    if not isinstance(began, types.Lease):
        return await task
    lost = asyncio.create_task(_until_lost(work, began))
    try:
        await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise errors.LeaseLost()
        return task.result()
    finally:
        lost.cancel()
        task.cancel()
        await asyncio.wait([task, lost])


async def _until_lost(work: Work, lease: types.Lease) -> None:
    while True:
        await asyncio.sleep(lease.ttl / 3)
        try:
            await work.db.renew_lease(lease)
        except errors.LeaseLost:
            return
        except errors.HoldfastError as error:
            work.db.db.say_once(error)


async def _released(work: Work, began: types.Lease | types.Snapshot) -> None:
    """After a commit it is free already."""
    if isinstance(began, types.Lease):
        try:
            await asyncio.shield(asyncio.ensure_future(work.db.release_lease(began)))
        except errors.HoldfastError as error:
            work.db.db.say_once(error)


# --- budgets -------------------------------------------------------------------------------------------


async def _counted(work: Work, asked: Asked, head: str) -> port.Compaction | None:
    """Count the attempt, or say why it may not be made. It counts from its beginning, however it ends."""
    for _ in range(SWAPS):
        version, budget = await _budget(work)
        verdict = policy.may_begin(budget, work.policy, work.clock(), asked.turn, asked.force)
        match verdict:
            case policy.CoolingDown(seconds):
                reason = f"The last attempts failed; the next is made in {seconds:.0f} s. /compact does it now."
                return _outcome(port.Outcome.COOLING_DOWN, head, reason, seconds)
            case policy.Exhausted(reason, seconds):
                return _outcome(port.Outcome.EXHAUSTED, head, reason, seconds)
            case policy.Go(after):
                if await work.db.spend(work.conversation_id, version, _plain(policy.written(after))):
                    return None
    return _outcome(port.Outcome.BUSY, head, "Other processes are compacting this conversation.")


async def _spent(work: Work, change: Callable[[policy.Budget], policy.Budget]) -> None:
    """Note how an attempt ended. What fails here changes no outcome."""
    try:
        for _ in range(SWAPS):
            version, budget = await _budget(work)
            if await work.db.spend(work.conversation_id, version, _plain(policy.written(change(budget)))):
                return
    except errors.HoldfastError as error:
        work.db.db.say_once(error)


async def _budget(work: Work) -> tuple[int, policy.Budget]:
    version, body = await work.db.budget(work.conversation_id)
    return version, policy.read(body)


# --- the rest ------------------------------------------------------------------------------------------


async def told(hooks: Sequence[Hook], session_id: str) -> None:
    """Tell them all, whatever one of them does."""
    for hook in hooks:
        try:
            await hook(session_id)
        except Exception:
            logger.exception("a hook of a compaction failed")


def _outcome(outcome: port.Outcome, session_id: str, reason: str, retry_in: float | None = None) -> port.Compaction:
    return port.Compaction(outcome=outcome, session_id=session_id, reason=reason, retry_in=retry_in)
