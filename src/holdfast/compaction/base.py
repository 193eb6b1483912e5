"""The values of a compaction: what a summarizer is asked, and what became of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from holdfast import types


class Outcome(StrEnum):
    """What became of an attempt. Nobody compares lengths."""

    COMPACTED = "compacted"
    NOTHING_TO_DO = "nothing_to_do"
    BUSY = "busy"
    COOLING_DOWN = "cooling_down"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


Stage = Literal["reading", "summing up", "writing"]
"""What an attempt is at: reading the context, having a summary written and checked, storing it."""


class Progress(msgspec.Struct, frozen=True):
    """How far an attempt is. No share of it is known: how long a model takes nobody can say."""

    stage: Stage
    messages: int = 0
    """So many are being summed up, of so many tokens; known once they were read."""
    tokens: int = 0


def _unasked(_: types.Usage) -> None:
    """Nobody keeps the account."""


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a summarizer is given. Secrets are redacted already."""

    messages: Sequence[types.Message]
    """What the summary is to stand for, in order."""
    previous: str | None = None
    """The summary so far, which is to be updated, not written anew."""
    focus: str | None = None
    """What the person wants kept most of all."""
    budget: int = 2_000
    """How many tokens the summary may have."""
    must_keep: tuple[str, ...] = ()
    """Open asks, files, numbers and names that have to be in it, word for word."""
    spent: Callable[[types.Usage], None] = _unasked
    """To be told what a model used, once for each call of one: also where no summary comes of it."""


class Summarizer(Protocol):
    """Makes a summary. It may raise anything and take for ever: whoever calls it has a deadline and a way without."""

    async def summarize(self, request: SummaryRequest) -> str: ...


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an attempt to compact, and where the conversation stands now."""

    outcome: Outcome
    session_id: str
    """The head for whoever asked: the new one if this attempt made it, else the one it had."""
    messages: Sequence[types.Message] = ()
    """The context after it: compacted by this attempt, or as it was."""
    reason: str = ""
    """One sentence for people."""
    before: int = 0
    after: int = 0
    """Tokens of the context, by the meter; both only where something was tried."""
    cut_seq: int | None = None
    model: str | None = None
    """Which model wrote the summary; None: the extract, which needs none."""
    remark: str = ""
    """That the summary is an extract, and why summaries were rejected; empty where a model's first one was accepted."""
    retry_in: float | None = None
    """Seconds until the next attempt is worth making, where that is known."""
    usage: types.Usage = types.Usage()
    """What models used for it, whatever the outcome, as far as they said."""
