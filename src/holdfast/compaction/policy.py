"""When a conversation is compacted: shares of the context window, limits and cooldowns. Pure."""

from __future__ import annotations

import msgspec

from holdfast import errors

HOUR = 3600.0
MIN_USABLE_SHARE = 0.05
"""If the messages have less of the window than this, compacting cannot help."""
MAX_PER_HOUR = 200


class CompactionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a conversation is compacted, and how often that is tried. Shares are of the usable window."""

    soft: float = 0.65
    """From this share on, a compaction runs concurrently with the turns."""
    hard: float = 0.90
    """From this share on, a turn shortens old messages, and waits for a compaction if that is not enough."""
    tail: float = 0.20
    """The share that stays verbatim at the end of the conversation."""
    pinned: float = 0.10
    """The share that pinned messages may take."""
    summary: float = 0.05
    """The share that the summary may take."""
    least_shrink: float = 0.10
    """A summary is rejected unless the context shrinks by this share."""
    an_hour: int = 6
    """How many compactions a conversation may have per hour; manual ones count, but are never refused."""
    cooldowns: tuple[float, ...] = (30.0, 120.0, 600.0)
    """Seconds to wait after the first failure in a row, the second, and so on; the last one, above 0, repeats."""
    deadline: float = 60.0
    """Seconds that all summarizers together may take."""
    reserved_output: int | None = None
    """Tokens of the window kept free for the reply; None: an eighth of the window, at most 8,192."""

    def __post_init__(self) -> None:
        if problem := _find_problem(self):
            raise errors.SettingInvalid(problem)

    def reserved(self, window: int) -> int:
        """Return the tokens of a window that are kept free for the reply."""
        return min(window // 8, 8_192) if self.reserved_output is None else self.reserved_output

    def cooldown(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row."""
        return self.cooldowns[min(failures, len(self.cooldowns)) - 1] if failures else 0.0


def _find_problem(policy: CompactionPolicy) -> str:
    if not 0 < policy.soft <= policy.hard <= 1:
        return "`soft` and `hard` must be above 0 and at most 1, and `soft` must not be above `hard`."
    # The parts that always stay must leave something to compact before the threshold is reached.
    stays = (policy.tail, policy.pinned, policy.summary)
    if not (min(stays) >= 0 and sum(stays) < policy.soft):
        return "`tail`, `pinned` and `summary` must not be negative, and their sum must be below `soft`."
    if not 0 <= policy.least_shrink < 1:
        return "`least_shrink` must be at least 0 and below 1."
    if not 1 <= policy.an_hour <= MAX_PER_HOUR:
        return f"`an_hour` must be from 1 to {MAX_PER_HOUR}."
    if not policy.deadline > 0 or not all(0 <= seconds <= HOUR for seconds in policy.cooldowns):
        return "`deadline` must be above 0 seconds, and `cooldowns` must be from 0 to 3,600 seconds each."
    if not policy.cooldowns or not policy.cooldowns[-1]:
        return "`cooldowns` must not be empty, and its last value must be above 0: it limits failing attempts."
    if policy.reserved_output is not None and policy.reserved_output < 0:
        return "`reserved_output` must not be negative."
    return ""


def usable_tokens(window: int, reserved: int, system: int, tools: int) -> int:
    """Return the tokens of a window that are left for messages. Raises NoRoom, which names the largest part."""
    usable = window - reserved - system - tools
    if usable < max(1, window * MIN_USABLE_SHARE):
        parts = {"the reserved output": reserved, "the system prompt": system, "the tools": tools}
        part = max(parts, key=parts.__getitem__)
        raise errors.NoRoom(part, parts[part], window)
    return usable
