"""Limits on compaction attempts: failures, cooldowns and the compactions of the last hour.

The budget is stored with the conversation, so it holds across processes and restarts. An attempt is counted when it
begins: an attempt that was cancelled, or whose process was killed, has been counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast import types
from holdfast.compaction import base
from holdfast.compaction import policy as policies
from holdfast.store import async_db

MAX_CLOCK_DRIFT = 60.0
"""How far the clocks of two hosts may differ. A time further in the future was written before a clock was set back."""
MAX_UPDATES = 8
"""The maximum number of attempts to update a budget that another process changes concurrently."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """The attempts of one conversation so far."""

    failures: int = 0
    """Failures in a row."""
    cool_until: float = 0.0
    begun: float = 0.0
    """When the running attempt began; 0 if none is running."""
    recent: tuple[float, ...] = ()
    """The times of the compactions within the last hour."""
    usage: types.Usage = types.Usage()
    """The usage of all summaries of the conversation, including rejected ones."""
    reviews: types.Usage = types.Usage()
    """The usage of all memory reviews of the conversation."""


class Refusal(msgspec.Struct, frozen=True):
    """Why no attempt may begin now, and what the user can do."""

    outcome: base.Outcome
    reason: str
    seconds: float | None = None
    """Until the next attempt is allowed, if known."""


def parse(body: Mapping[str, Any]) -> Budget:
    """Return the stored budget; an invalid one counts as empty, because it only limits work."""
    try:
        return msgspec.convert(body, Budget)
    except msgspec.ValidationError:
        return Budget()


async def read(db: async_db.AsyncSessionDB, session_id: str) -> Budget:
    """Return the stored budget of a conversation."""
    return parse((await db.budget(session_id))[1])


async def update(
    db: async_db.AsyncSessionDB, session_id: str, change: Callable[[Budget], Budget | Refusal]
) -> Refusal | None:
    """Store a changed budget. `change` is called again if another process changed the budget meanwhile."""
    for _ in range(MAX_UPDATES):
        version, body = await db.budget(session_id)
        changed = change(parse(body))
        if isinstance(changed, Refusal):
            return changed
        if await db.update_budget(session_id, version, msgspec.json.decode(msgspec.json.encode(changed))):
            return None
    return Refusal(base.Outcome.BUSY, "Other processes are compacting this conversation.")


def begin_attempt(
    budget: Budget, policy: policies.CompactionPolicy, now: float, force: bool = False
) -> Budget | Refusal:
    """Count an attempt, or refuse it. The caller holds the lease, so an attempt that is still open has failed.

    With `force`, no limit applies.
    """
    if budget.begun:
        budget = record_failure(budget, policy, budget.begun)
    recent = _within_last_hour(budget.recent, now)
    # The cooldown is checked first: it ends by itself, so it must not be reported as exhausted.
    if not force and (cooling := check_cooldown(budget, policy, now)):
        return cooling
    if not force and len(recent) >= policy.an_hour:
        wait = recent[-policy.an_hour] + policies.HOUR - now
        return Refusal(
            base.Outcome.EXHAUSTED,
            f"This conversation was compacted {len(recent)} times within an hour. Type /compact to compact it anyway, "
            f"wait {max(1, round(wait / 60))} min, or start a new conversation.",
            wait,
        )
    return msgspec.structs.replace(budget, begun=now)


def check_cooldown(budget: Budget, policy: policies.CompactionPolicy, now: float) -> Refusal | None:
    """Return a refusal if the cooldown after failures has not ended. It needs no lease."""
    left = budget.cool_until - now
    if not 0 < left <= policy.cooldown(budget.failures) + MAX_CLOCK_DRIFT:
        return None
    reason = f"The last attempts failed. The next one is made in {left:.0f} s; type /compact to try now."
    return Refusal(base.Outcome.COOLING_DOWN, reason, left)


def record_success(budget: Budget, now: float) -> Budget:
    """Return the budget after a committed compaction."""
    recent = (*_within_last_hour(budget.recent, now), now)[-policies.MAX_PER_HOUR :]
    return msgspec.structs.replace(budget, failures=0, cool_until=0.0, begun=0.0, recent=recent)


def record_failure(budget: Budget, policy: policies.CompactionPolicy, now: float) -> Budget:
    """Return the budget after an attempt that failed or was cancelled."""
    failures = budget.failures + 1
    return msgspec.structs.replace(budget, failures=failures, cool_until=now + policy.cooldown(failures), begun=0.0)


def close_attempt(budget: Budget) -> Budget:
    """Return the budget after an attempt that ended without a failure: another process was faster."""
    return msgspec.structs.replace(budget, begun=0.0)


def _within_last_hour(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - policies.HOUR < at <= now + MAX_CLOCK_DRIFT)
