"""Commands about what stands in the context: compact it, look at originals, keep messages word for word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast import errors, events
from holdfast.agent import agent as agents
from holdfast.agent import message_lookup, pins
from holdfast.agent.commands import base
from holdfast.compaction import base as compaction
from holdfast.compaction import compress

FORMS = base.choices(
    ("--preview", "show what would go and what would stay"),
    ("here 3", "keep the last 3 exchanges as they are"),
    ("undo", "take the last compaction back"),
    ("redo", "take that back"),
)


async def compact(asked: base.Asked) -> None:
    agent = await asked.desk.agents.get(asked.conversation_id)
    match asked.argument.lower().split():
        case ["--preview" | "preview"]:
            asked.emit(events.Answer(await _preview(agent)))
        case ["--preview" | "preview", "here", count] if _is_count(count):
            asked.emit(events.Answer(await _preview(agent, int(count))))
        case [word, *_] if word.startswith("--"):
            asked.emit(events.Notice("/compact takes a focus, --preview, here N, undo or redo.", "error"))
        case ["undo"]:
            undone = await asked.desk.db.undo_compaction(asked.conversation_id)
            asked.emit(events.Answer(f"The messages up to {undone.cut_seq} are back. /compact redo takes that back."))
        case ["redo"]:
            redone = await asked.desk.db.redo_compaction(asked.conversation_id)
            asked.emit(events.Answer(f"The summary stands for the messages up to {redone.cut_seq} again."))
        case ["here", count] if _is_count(count):
            await _now(agent, asked, keep_exchanges=int(count))
        case ["here", *_]:
            asked.emit(events.Notice("/compact here N keeps the last N exchanges as they are.", "error"))
        case _:
            await _now(agent, asked, focus=asked.argument or None)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0


async def _now(
    agent: agents.AIAgent, asked: base.Asked, *, focus: str | None = None, keep_exchanges: int | None = None
) -> None:
    made = await agent.compress_context(focus, force=True, keep_exchanges=keep_exchanges, emit=asked.emit)
    if made.outcome is compaction.Outcome.NOTHING_TO_DO:
        asked.emit(events.Answer(made.reason))


async def _preview(agent: agents.AIAgent, keep_exchanges: int | None = None) -> str:
    """What would go and what would stay. Nothing is changed."""
    work = agent.compaction_work()
    context = await work.db.context(work.conversation_id)
    pins = await work.db.pins(work.conversation_id)
    found = await asyncio.to_thread(compress.plan_cut, work, context, keep_exchanges, pins, True)
    if found is None:
        return await asyncio.to_thread(compress.explain_nothing_to_do, work, context, keep_exchanges, True)
    tokens = sum(map(work.meter.of, found.going))
    pinned = f" Pinned and staying: {', '.join(map(str, found.pinned))}." if found.pinned else ""
    return (
        f"{len(found.going)} messages up to {found.cut_seq} (about {tokens:,} tokens) would give way to a summary; "
        f"{len(found.staying)} would stay as they are.{pinned}"
    )


async def recall(asked: base.Asked) -> None:
    asked.emit(events.Answer(await message_lookup.recalled(asked.desk.db, asked.conversation_id, asked.argument)))


async def pin(asked: base.Asked) -> None:
    if not asked.argument:
        asked.emit(events.Answer(await pins.listed(asked.desk.db, asked.conversation_id)))
        return
    agent = await asked.desk.agents.get(asked.conversation_id)
    asked.emit(events.Answer(await pins.pin(agent, asked.argument)))


async def unpin(asked: base.Asked) -> None:
    asked.emit(events.Answer(await pins.unpin(asked.desk.db, asked.conversation_id, asked.argument)))


async def pinned(asked: base.Asked) -> Sequence[base.Candidate]:
    try:
        return [base.Candidate(str(pin.seq)) for pin in await asked.desk.db.pins(asked.conversation_id)]
    except errors.NoSuchSession:
        return []
