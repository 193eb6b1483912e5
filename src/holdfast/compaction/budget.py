"""How often a compaction is attempted: failures, cooldowns and the compactions of the last hour. Pure.

The budget is stored with the conversation, so it holds across processes and restarts. An attempt is counted when it
begins: an attempt that was cancelled, or whose process was killed, has been counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast import types
from holdfast.compaction import policy as policies

MAX_CLOCK_DRIFT = 60.0
"""How far the clocks of two hosts may differ. A time further in the future was written before a clock was set back."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """The attempts of one conversation so far."""

    failures: int = 0
    """Failures in a row."""
    cool_until: float = 0.0
    turn: str | None = None
    """The turn of the last attempt; `attempts` is the number of its attempts."""
    attempts: int = 0
    begun: float = 0.0
    """When the running attempt began; 0 if none is running."""
    recent: tuple[float, ...] = ()
    """The times of the compactions within the last hour."""
    usage: types.Usage = types.Usage()
    """The usage of all summaries of the conversation, including rejected ones."""
    reviews: types.Usage = types.Usage()
    """The usage of all memory reviews of the conversation."""


class Allowed(msgspec.Struct, frozen=True):
    """An attempt may begin. Its budget, which counts the attempt, must be stored first."""

    budget: Budget


class CoolingDown(msgspec.Struct, frozen=True):
    """Recent attempts failed; the next one is allowed after `seconds`."""

    seconds: float


class Exhausted(msgspec.Struct, frozen=True):
    """Too many attempts were made. `reason` says so, and what the user can do."""

    reason: str
    seconds: float | None = None
    """Until the next attempt is allowed; None: until the next turn."""


Decision = Allowed | CoolingDown | Exhausted


def parse(body: Mapping[str, Any]) -> Budget:
    """Return the stored budget; an invalid one counts as empty, because it only limits work."""
    try:
        return msgspec.convert(body, Budget)
    except msgspec.ValidationError:
        return Budget()


def encode(budget: Budget) -> dict[str, Any]:
    """Return a budget as it is stored."""
    return msgspec.json.decode(msgspec.json.encode(budget), type=dict[str, Any])


def decide(
    budget: Budget, policy: policies.CompactionPolicy, now: float, turn: str | None, force: bool = False
) -> Decision:
    """Decide whether an attempt may begin. The caller holds the lease, so an attempt that is still open has failed.

    `turn` is the uid of the turn that asks, None outside of a turn. With `force`, no limit applies.
    """
    if budget.begun:
        budget = record_failure(budget, policy, budget.begun)
    attempts = budget.attempts if turn is not None and turn == budget.turn else 0
    if not force and (refusal := _refuse(budget, policy, now, attempts)) is not None:
        return refusal
    if turn is not None:
        budget = msgspec.structs.replace(budget, turn=turn, attempts=attempts + 1)
    return Allowed(msgspec.structs.replace(budget, begun=now))


def cooldown_left(budget: Budget, policy: policies.CompactionPolicy, now: float) -> float:
    """Return the seconds until the cooldown ends; 0 if there is none. It needs no lease."""
    left = budget.cool_until - now
    return left if 0 < left <= policy.cooldown(budget.failures) + MAX_CLOCK_DRIFT else 0.0


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


def add_summary_usage(budget: Budget, usage: types.Usage) -> Budget:
    """Add what models used for an attempt."""
    return budget if usage == types.Usage() else msgspec.structs.replace(budget, usage=budget.usage + usage)


def add_review_usage(budget: Budget, usage: types.Usage) -> Budget:
    """Add what models used for a memory review."""
    return msgspec.structs.replace(budget, reviews=budget.reviews + usage)


def _refuse(
    budget: Budget, policy: policies.CompactionPolicy, now: float, attempts: int
) -> CoolingDown | Exhausted | None:
    # The cooldown is checked first: it ends by itself, so it must not be reported as exhausted.
    if left := cooldown_left(budget, policy, now):
        return CoolingDown(left)
    if attempts >= policy.attempts_a_turn:
        return Exhausted(
            f"This turn has made {attempts} attempts to compact. Type /compact to try again, or start a new "
            "conversation."
        )
    recent = _within_last_hour(budget.recent, now)
    if len(recent) >= policy.an_hour:
        wait = recent[-policy.an_hour] + policies.HOUR - now
        return Exhausted(
            f"This conversation was compacted {len(recent)} times within an hour. Type /compact to compact it anyway, "
            f"wait {max(1, round(wait / 60))} min, or start a new conversation.",
            wait,
        )
    return None


def _within_last_hour(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - policies.HOUR < at <= now + MAX_CLOCK_DRIFT)
