"""How a session stands, looked up: what the store knows of the conversation, and its agent, if one was built."""

from __future__ import annotations

from typing import NamedTuple

from holdfast import errors, types
from holdfast.rpc_server import wire_types
from holdfast.runtime import runtime
from holdfast.store import async_db, titles


class Own(NamedTuple):
    """What only the one who has it open knows."""

    key: str
    running: bool
    options: wire_types.Chosen
    previous: str | None = None


class Mark(NamedTuple):
    """What changes whenever anybody does something to a conversation that others should know."""

    epoch: int
    last_seq: int
    title: str | None


def mark(found: types.Conversation | None) -> Mark | None:
    return Mark(found.epoch, found.last_seq, found.title) if found else None


async def session(
    door: runtime.Runtime, conversation_id: str, found: types.Conversation | None, own: Own
) -> wire_types.Info:
    """As of now; raises what keeps the store from telling."""
    model, room = await _answering(door, conversation_id)
    return wire_types.Info(
        session_id=own.key,
        conversation_id=conversation_id,
        begun=found is not None,
        live=found is None or found.live,
        title=found.title if found else None,
        pending_title=pending_title(door, conversation_id),
        last_seq=found.last_seq if found else 0,
        compacted_to=await _compacted_to(door.db, found),
        running=own.running,
        queued=door.queued(conversation_id),
        options=own.options,
        model=model,
        context=room,
        previous=own.previous,
    )


async def begun(db: async_db.AsyncSessionDB, conversation_id: str) -> types.Conversation | None:
    """The conversation; None where nothing was said yet."""
    try:
        return await db.conversation(conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        return None


def pending_title(door: runtime.Runtime, conversation_id: str) -> str | None:
    """The title that is still to be given: with the first prompt, or with the next where the store failed."""
    wanted = door.wanted_title(conversation_id)
    # What a command wants is only looked at when it is given.
    return titles.normalize(wanted) if wanted is not None else None


async def _compacted_to(db: async_db.AsyncSessionDB, found: types.Conversation | None) -> int:
    if found is None or (found.compaction_epoch is None and found.forked_from is None):
        return 0
    # A branch may stand on a summary of where it came from. None of the messages is read.
    return (await db.context(found.id, 0)).cut_seq


async def _answering(door: runtime.Runtime, conversation_id: str) -> tuple[str | None, wire_types.Room | None]:
    """The model, and how full its window is. No agent is built to know it."""
    agent = door.agents.peek(conversation_id)
    if agent is None:
        return door.models.of(conversation_id).name if door.models else None, None
    used, policy = await agent.context_tokens(), agent.policy
    return agent.model.name, wire_types.Room(used=used, window=agent.model.window, soft=policy.soft, hard=policy.hard)
