"""When to compact, and when not to try again. Pure: numbers and a budget in, a decision out.

The budget is a row of the conversation, so what it says holds across restarts and processes. An attempt is
counted as it begins: one that was cancelled, or whose process died, has counted already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast import errors, types

Pressure = Literal["none", "soft", "hard"]

HOUR = 3600.0
# So far may the clocks of two hosts lie apart. A time further ahead was written before a clock was set back.
DRIFT = 60.0
# With less of the window than this for the conversation, compacting could not help.
LEAST_ROOM = 0.05
# Manual compactions have no limit, but a budget stays a small row.
MOST_KEPT = 200


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a conversation is compacted, and how hard that is tried."""

    soft: float = 0.65
    """From this share of the usable window on, a compaction is made beside the turns."""
    hard: float = 0.90
    """From this share on, a turn shortens what it shows, and waits for a compaction if that is not enough."""
    tail: float = 0.20
    """The share of the window that stays word for word."""
    pinned: float = 0.10
    """The share of the window that pinned messages may take."""
    summary: float = 0.05
    """The share of the window a summary may take."""
    least_shrink: float = 0.10
    """A summary is refused unless the context shrinks by this share."""
    attempts_a_turn: int = 3
    """How often one turn may try."""
    an_hour: int = 6
    """How many compactions a conversation may have in an hour; manual ones count, and are never refused."""
    cooldowns: tuple[float, ...] = (30.0, 120.0, 600.0)
    """Seconds to wait after the first failure, the second, and so on; after more failures, the last of them."""
    deadline: float = 60.0
    """Seconds a summary may take."""
    reserved_output: int | None = None
    """Tokens of the window kept free for the reply; None: an eighth of it, at most 8,192."""

    def __post_init__(self) -> None:
        wrong = _wrong(self)
        if wrong:
            raise errors.SettingInvalid(wrong)

    def reserved(self, window: int) -> int:
        """How much of a window is kept free for the reply."""
        return min(window // 8, 8_192) if self.reserved_output is None else self.reserved_output

    def cooldown(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        if not failures or not self.cooldowns:
            return 0.0
        return self.cooldowns[min(failures, len(self.cooldowns)) - 1]


def _wrong(policy: Policy) -> str:
    if not 0 < policy.soft <= policy.hard <= 1:
        return "`soft` and `hard` are shares of the window, above 0 and up to 1, and `soft` is not above `hard`."
    # What always stays must leave something to compact before the threshold is reached.
    stays = (policy.tail, policy.pinned, policy.summary)
    if not (min(stays) >= 0 and sum(stays) < policy.soft):
        return "`tail`, `pinned` and `summary` are shares of the window; together they lie below `soft`."
    if not 0 <= policy.least_shrink < 1:
        return "`least_shrink` is a share, from 0 to below 1."
    if policy.attempts_a_turn < 1 or not 1 <= policy.an_hour <= MOST_KEPT:
        return f"`attempts_a_turn` is at least 1, and `an_hour` lies within 1 to {MOST_KEPT}."
    if not policy.deadline > 0 or not all(0 <= seconds <= HOUR for seconds in policy.cooldowns):
        return "`deadline` is above 0 seconds, and `cooldowns` are seconds, up to an hour each."
    if policy.reserved_output is not None and policy.reserved_output < 0:
        return "`reserved_output` is a number of tokens."
    return ""


# --- how full the window is ------------------------------------------------------------------------------


class Floor(msgspec.Struct, frozen=True):
    """The tokens every request has, whatever was said."""

    system: int = 0
    tools: int = 0


def usable(window: int, reserved: int, floor: Floor) -> int:
    """What the messages may take of a window. Raises NoRoom, naming the part that is too big."""
    room = window - reserved - floor.system - floor.tools
    if room < max(1, window * LEAST_ROOM):
        taken = {"the reserved output": reserved, "the system prompt": floor.system, "the tools": floor.tools}
        part = max(taken, key=taken.__getitem__)
        raise errors.NoRoom(part, taken[part], window)
    return room


def pressure(used: int, usable: int, policy: Policy, *, undone: bool = False) -> Pressure:
    """How much the messages press, by the tokens they take themselves: the floor is taken off `usable` already.

    undone: the last compaction was taken back by a person, so the next waits until there is no other way.
    """
    if used >= policy.hard * usable:
        return "hard"
    return "soft" if used >= policy.soft * usable and not undone else "none"


# --- how often it is tried -------------------------------------------------------------------------------


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was tried so far in one conversation."""

    failures: int = 0
    """In a row, up to now."""
    cool_until: float = 0.0
    turn: str | None = None
    """The turn that tried last, and how often it did."""
    attempts: int = 0
    begun: float = 0.0
    """When the attempt began that has not ended yet; 0: there is none."""
    recent: tuple[float, ...] = ()
    """When there were compactions within the last hour."""
    usage: types.Usage = types.Usage()
    """What models have used for summaries since the conversation began, also for those that came to nothing."""
    reviews: types.Usage = types.Usage()
    """What models have used for memory reviews since the conversation began."""


class Go(msgspec.Struct, frozen=True):
    """An attempt may begin. The budget counts it already, and is to be written before it begins."""

    budget: Budget


class CoolingDown(msgspec.Struct, frozen=True):
    """Attempts failed a short while ago; another is worth making after so many seconds."""

    seconds: float


class Exhausted(msgspec.Struct, frozen=True):
    """It was tried as often as is sensible. The reason is a sentence for people, with what to do."""

    reason: str
    seconds: float | None = None
    """Until it may be tried again; None: with the next turn."""


Decision = Go | CoolingDown | Exhausted


def read(body: Mapping[str, Any]) -> Budget:
    """A budget from its row; one that makes no sense counts as none, since it only ever saves work."""
    try:
        return msgspec.convert(body, Budget)
    except msgspec.ValidationError:
        return Budget()


def written(budget: Budget) -> dict[str, Any]:
    """A budget as its row has it."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(budget))
    return plain


def may_begin(budget: Budget, policy: Policy, now: float, turn: str | None, force: bool = False) -> Decision:
    """Whether an attempt may begin. Call it with the lease held: an attempt that still stands open is a dead one's.

    turn: the uid of the turn that asks; None outside of any. force: a person asked, which passes all limits here.
    """
    budget = _closed(budget, policy)
    attempts = budget.attempts if turn is not None and turn == budget.turn else 0
    if not force:
        refused = _refused(budget, policy, now, attempts)
        if refused is not None:
            return refused
    if turn is not None:
        budget = msgspec.structs.replace(budget, turn=turn, attempts=attempts + 1)
    return Go(msgspec.structs.replace(budget, begun=now))


def cooling(budget: Budget, policy: Policy, now: float) -> float:
    """How many seconds failures keep others from trying; 0: none. It holds without the lease, too."""
    left = budget.cool_until - now
    return left if 0 < left <= policy.cooldown(budget.failures) + DRIFT else 0.0


def succeeded(budget: Budget, now: float) -> Budget:
    """After a compaction was committed: failures are forgotten, and the hour has one more."""
    recent = (*_within_the_hour(budget.recent, now), now)[-MOST_KEPT:]
    return msgspec.structs.replace(budget, failures=0, cool_until=0.0, begun=0.0, recent=recent)


def failed(budget: Budget, policy: Policy, now: float) -> Budget:
    """After an attempt that failed or was cancelled: wait, and longer than the last time."""
    failures = budget.failures + 1
    return msgspec.structs.replace(budget, failures=failures, cool_until=now + policy.cooldown(failures), begun=0.0)


def let_go(budget: Budget) -> Budget:
    """After an attempt that was nobody's failure: another was first, or there was nothing to do."""
    return msgspec.structs.replace(budget, begun=0.0)


def charged(budget: Budget, usage: types.Usage) -> Budget:
    """With what models used for an attempt, however it ended."""
    return budget if usage == types.Usage() else msgspec.structs.replace(budget, usage=budget.usage + usage)


def reviewed(budget: Budget, usage: types.Usage) -> Budget:
    """With what models used for a memory review."""
    return msgspec.structs.replace(budget, reviews=budget.reviews + usage)


def _closed(budget: Budget, policy: Policy) -> Budget:
    """An attempt that never said how it ended failed when it began; more cannot be known of it."""
    return failed(budget, policy, budget.begun) if budget.begun else budget


def _refused(budget: Budget, policy: Policy, now: float, attempts: int) -> CoolingDown | Exhausted | None:
    # Cooling down comes first: it passes by itself, and must never be read as the end of the road.
    left = cooling(budget, policy, now)
    if left:
        return CoolingDown(left)
    if attempts >= policy.attempts_a_turn:
        return Exhausted(
            f"Compacting was tried {attempts} times in this turn. "
            "Type /compact to try again, or begin a new conversation."
        )
    recent = _within_the_hour(budget.recent, now)
    if len(recent) >= policy.an_hour:
        wait = recent[-policy.an_hour] + HOUR - now
        return Exhausted(
            f"This conversation was compacted {len(recent)} times within an hour. "
            f"Type /compact to do it all the same, wait {max(1, round(wait / 60))} min, "
            "or begin a new conversation.",
            wait,
        )
    return None


def _within_the_hour(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - HOUR < at <= now + DRIFT)
