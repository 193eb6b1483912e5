"""The line under the prompt: the model, how full its window is, what it cost, and what goes on beside the talk."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast import errors, safe_text
from holdfast.agent import agent_cache, usage
from holdfast.compaction import base, compress
from holdfast.store import async_db
from holdfast.terminal import event_text

Fragment = tuple[str, str]
"""A style and text, as the prompt takes them."""


class Standing(msgspec.Struct, frozen=True):
    """How a conversation stands."""

    model: str
    used: int | None = None
    """Tokens the next request takes; None where nobody could say."""
    window: int = 0
    cost: float | None = None
    """Dollars, of all that has a price."""
    compacting: bool = False
    queued: int = 0
    processes: int = 0
    soft: int = 0
    hard: int = 0
    """From so many tokens on a compaction is made beside the turns, and from so many on a turn waits for it."""
    waiting: bool = False
    """Whether the turn waits for one that runs elsewhere."""
    progress: base.Progress | None = None
    """How far the compaction is that is being made."""


class Door(Protocol):
    """What is looked at."""

    @property
    def db(self) -> async_db.AsyncSessionDB: ...
    @property
    def agents(self) -> agent_cache.AgentCache: ...
    def queued(self, conversation_id: str) -> int: ...


async def looked(door: Door, conversation_id: str) -> Standing:
    """How it stands now; raises HoldfastError where the store cannot say."""
    agent = await door.agents.get(conversation_id)
    try:
        used = await usage.used(door.db, conversation_id)
        running = await door.db.processes.all(conversation_id, running_only=True)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        used, running = {}, []
    soft, hard = compress.thresholds(agent.compaction_work())
    return Standing(
        model=agent.model.name,
        used=await agent.context_tokens(),
        window=agent.model.window,
        cost=usage.total_cost(used),
        compacting=agent.context_window.is_compacting,
        progress=agent.context_window.progress,
        queued=door.queued(conversation_id),
        processes=len(running),
        soft=soft,
        hard=hard,
    )


def drawn(
    standing: Standing, room: int, marks: event_text.Marks, seconds: float = 0.0, answering: float | None = None
) -> list[Fragment]:
    """The line, in as much room as there is.

    `seconds` is how long a compaction has been under way, `answering` how long a turn has, if one runs.
    """
    doing = "waiting" if standing.waiting else "answering"
    turn = "" if answering is None else f"{doing}{marks.more} {answering:.0f} s"
    told = [each for each in (("class:status", turn), _meter(standing), *_rest(standing, marks, seconds)) if each[1]]
    dot = f" {marks.dot} "
    behind = sum(safe_text.cells(dot) + safe_text.cells(words) for _, words in told)
    named = safe_text.safe(standing.model)
    if safe_text.cells(named) + behind > room:
        named = named.rpartition("/")[2]
    # What changes matters more than a name that does not.
    named = safe_text.clipped(named, max(room - behind, 0), marks.more)
    fragments: list[Fragment] = [("class:status", named)] if named else []
    for style, words in told:
        left = room - sum(safe_text.cells(each) for _, each in fragments)
        before = dot if fragments else ""
        if left <= safe_text.cells(before):
            break
        fragments.append(("class:status", before))
        fragments.append((style, safe_text.clipped(words, left - safe_text.cells(before), marks.more)))
    return fragments


def _meter(standing: Standing) -> Fragment:
    if standing.used is None or not standing.window:
        return ("class:status", "")
    full = ".hard" if standing.used >= standing.hard else ".soft" if standing.used >= standing.soft else ""
    return (f"class:status{full}", f"{standing.used / standing.window:.0%} of {short(standing.window)}")


def _rest(standing: Standing, marks: event_text.Marks, seconds: float) -> list[Fragment]:
    """What else there is to tell, the most passing first."""
    told = [
        f"compacting{marks.more} {seconds:.0f} s" if standing.compacting else "",
        f"{standing.queued} queued" if standing.queued else "",
        safe_text.count(standing.processes, "process", "processes") if standing.processes else "",
        money(standing.cost) if standing.cost else "",
    ]
    return [("class:status", each) for each in told]


def money(dollars: float) -> str:
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.4f}"


def short(tokens: int) -> str:
    return f"{tokens / 1_000_000:.1f}M".replace(".0M", "M") if tokens >= 1_000_000 else f"{tokens // 1000}k"
