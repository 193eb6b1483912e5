"""The values of a compaction: the request to a summarizer, the progress and the result of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from holdfast import types


class Outcome(StrEnum):
    """How an attempt ended."""

    COMPACTED = "compacted"
    NOTHING_TO_DO = "nothing_to_do"
    BUSY = "busy"
    COOLING_DOWN = "cooling_down"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


Stage = Literal["reading", "summing up", "writing"]
"""The stages of an attempt: read the context, write and check a summary, store it."""


class Progress(msgspec.Struct, frozen=True):
    """The stage that an attempt has reached. There is no percentage, because the time a model takes is unknown."""

    stage: Stage
    messages: int = 0
    """The number of messages that are summarized, and their tokens; 0 while the context is read."""
    tokens: int = 0


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a summarizer. Secrets are redacted."""

    messages: Sequence[types.Message]
    """The messages that the summary replaces, in order."""
    previous: str | None = None
    """The summary so far, to be updated."""
    focus: str | None = None
    """The subject that the user wants to keep above all."""
    budget: int = 2_000
    """The maximum number of tokens of the summary."""
    must_keep: tuple[str, ...] = ()
    """Open requests, files, numbers and names that the summary must contain verbatim."""
    spent: Callable[[types.Usage], None] = lambda _: None
    """Called with the usage of each model call, including calls that led to no summary."""


class Summarizer(Protocol):
    """Writes summaries. It may raise any error and take any time: the caller has a deadline and a fallback."""

    async def summarize(self, request: SummaryRequest) -> str: ...


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt to compact."""

    outcome: Outcome
    session_id: str
    """The head session: the new one if this attempt created it, else the one that the caller expected."""
    messages: Sequence[types.Message] = ()
    """The context after the attempt. `AIAgent.compress_context` adds the messages that were appended meanwhile."""
    reason: str = ""
    """One sentence for the user."""
    before: int = 0
    """Tokens of the context before the attempt; 0 if no cut was found."""
    after: int = 0
    """Tokens of the context after the attempt."""
    cut_seq: int | None = None
    model: str | None = None
    """The model that wrote the summary; None if it is an extract."""
    remark: str = ""
    """Says that the summary is an extract, and why summaries were rejected; empty if the first one was accepted."""
    retry_in: float | None = None
    """Seconds until the next attempt makes sense, if known."""
    usage: types.Usage = types.Usage()
    """The reported usage of all model calls, whatever the outcome."""
