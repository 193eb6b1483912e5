"""The status of a conversation: model, context window, cost and background work, and the line that shows it."""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from holdfast import errors, safe_text
from holdfast.agent import usage
from holdfast.compaction import base, compress
from holdfast.runtime import runtime as runtime_module
from holdfast.terminal import event_text

Fragment = tuple[str, str]
"""A style and a text, as prompt_toolkit takes them."""


class ConversationStatus(msgspec.Struct, frozen=True):
    """The status of a conversation."""

    model: str
    used: int | None = None
    """Tokens of the next request; None if unknown."""
    window: int = 0
    cost: float | None = None
    """Dollars, for the models that have a price."""
    compacting: bool = False
    queued: int = 0
    processes: int = 0
    soft: int = 0
    """From this number of tokens on, a compaction runs in the background."""
    hard: int = 0
    """From this number of tokens on, a turn waits for the compaction."""
    waiting: bool = False
    """Whether the turn waits for one in another process."""
    progress: base.Progress | None = None
    """The stage of the running compaction."""


class StatusPoller:
    """The last known status of the current conversation."""

    def __init__(self, runtime: runtime_module.Runtime, model: str) -> None:
        self._runtime = runtime
        self.status = ConversationStatus(model)
        self._compacting_since: float | None = None

    async def poll(self, conversation_id: str) -> None:
        """Read the status; keep the last one if the store cannot be read."""
        with suppress(errors.HoldfastError):
            self.status = await read_status(self._runtime, conversation_id)
        compacting = self.status.compacting
        self._compacting_since = (self._compacting_since or time.monotonic()) if compacting else None

    @property
    def compacting_seconds(self) -> float | None:
        """Seconds since the running compaction was first seen; None if there is none."""
        return None if self._compacting_since is None else time.monotonic() - self._compacting_since


async def read_status(runtime: runtime_module.Runtime, conversation_id: str) -> ConversationStatus:
    """Read the status of a conversation; raises HoldfastError if the store cannot be read."""
    agent = await runtime.agents.get(conversation_id)
    try:
        used = await usage.read(runtime.db, conversation_id)
        running = await runtime.db.processes.all(conversation_id, running_only=True)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        used, running = {}, []
    soft, hard = compress.thresholds(agent.compaction_job())
    return ConversationStatus(
        model=agent.model.name,
        used=await agent.context_tokens(),
        window=agent.model.window,
        cost=usage.total_cost(used),
        compacting=agent.context_window.is_compacting,
        progress=agent.context_window.progress,
        queued=runtime.queued(conversation_id),
        processes=len(running),
        soft=soft,
        hard=hard,
    )


def draw_status(
    status: ConversationStatus, room: int, marks: event_text.Marks, compacting: float = 0.0, turn: float | None = None
) -> list[Fragment]:
    """Draw the line in `room` columns. `compacting` and `turn` are the seconds that each has been running."""
    parts = [("class:status", turn_time(status, marks, turn)), _window_share(status)]
    parts += [
        ("class:status", text)
        for text in (f"compacting{marks.more} {compacting:.0f} s" if status.compacting else "", *counters(status))
    ]
    parts = [part for part in parts if part[1]]
    dot = f" {marks.dot} "
    behind = sum(safe_text.cells(dot) + safe_text.cells(text) for _, text in parts)
    model = safe_text.safe(status.model)
    if safe_text.cells(model) + behind > room:
        model = model.rpartition("/")[2]
    # The parts that change matter more than the name of the model.
    model = safe_text.clip(model, max(room - behind, 0), marks.more)
    fragments: list[Fragment] = [("class:status", model)] if model else []
    for style, text in parts:
        left = room - sum(safe_text.cells(each) for _, each in fragments)
        before = dot if fragments else ""
        if left <= safe_text.cells(before):
            break
        fragments.append(("class:status", before))
        fragments.append((style, safe_text.clip(text, left - safe_text.cells(before), marks.more)))
    return fragments


def turn_time(status: ConversationStatus, marks: event_text.Marks, seconds: float | None) -> str:
    """Return how long the turn has been running or waiting; empty if none runs."""
    return "" if seconds is None else f"{'waiting' if status.waiting else 'answering'}{marks.more} {seconds:.0f} s"


def counters(status: ConversationStatus) -> list[str]:
    """Return the queued messages, the background processes and the cost; empty texts for those that are 0."""
    return [
        f"{status.queued} queued" if status.queued else "",
        safe_text.count(status.processes, "process", "processes") if status.processes else "",
        (f"${status.cost:.2f}" if status.cost >= 1 else f"${status.cost:.4f}") if status.cost else "",
    ]


def share_text(used: int, window: int) -> str:
    """Return how much of the context window is used: `12% of 200k`."""
    return f"{used / window:.0%} of {format_tokens(window)}" if window else ""


def _window_share(status: ConversationStatus) -> Fragment:
    if status.used is None:
        return ("class:status", "")
    level = ".hard" if status.used >= status.hard else ".soft" if status.used >= status.soft else ""
    return (f"class:status{level}", share_text(status.used, status.window))


def format_tokens(tokens: int) -> str:
    """Return a number of tokens in thousands or millions: `200k`, `1M`, `1.5M`."""
    return f"{tokens / 1_000_000:.1f}M".replace(".0M", "M") if tokens >= 1_000_000 else f"{tokens // 1000}k"
