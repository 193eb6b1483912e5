"""The state, the list entry and the transcript of a session, as clients get them."""

from __future__ import annotations

from holdfast import content_parts, types
from holdfast.rpc_server import wire_types
from holdfast.runtime import runtime as runtimes
from holdfast.runtime import subscriptions
from holdfast.store import async_db, titles

MAX_PAGE_CHARACTERS = 1_000_000
"""Characters of the messages of one response, which has at least one message."""


async def build_info(
    runtime: runtimes.Runtime,
    conversation_id: str,
    found: types.Conversation | None,
    *,
    key: str,
    running: bool,
    options: wire_types.SessionOptions,
    previous: str | None = None,
) -> wire_types.SessionState:
    """Return the current state of a session. Raises the error of a store that fails."""
    model, context = await _describe_model(runtime, conversation_id)
    return wire_types.SessionState(
        session_id=key,
        conversation_id=conversation_id,
        begun=found is not None,
        live=found is None or found.live,
        title=found.title if found else None,
        pending_title=pending_title(runtime, conversation_id),
        last_seq=found.last_seq if found else 0,
        compacted_to=await _compacted_to(runtime.db, found),
        running=running,
        queued=runtime.queued(conversation_id),
        options=options,
        model=model,
        context=context,
        previous=previous,
    )


def pending_title(runtime: runtimes.Runtime, conversation_id: str) -> str | None:
    """Return the title that the next message sets."""
    wanted = runtime.wanted_title(conversation_id)
    return titles.normalize(wanted) if wanted is not None else None


async def _compacted_to(db: async_db.AsyncSessionDB, found: types.Conversation | None) -> int:
    if found is None or (found.compaction_epoch is None and found.forked_from is None):
        return 0
    # A branch may begin with a summary of its origin. No message is read.
    return (await db.context(found.id, 0)).cut_seq


async def _describe_model(
    runtime: runtimes.Runtime, conversation_id: str
) -> tuple[str | None, wire_types.ContextUsage | None]:
    """Return the model and how full its window is, without building an agent."""
    agent = runtime.agents.peek(conversation_id)
    if agent is None:
        return runtime.models.of(conversation_id).name if runtime.models else None, None
    used, policy = await agent.context_tokens(), agent.policy
    return agent.model.name, wire_types.ContextUsage(
        used=used, window=agent.model.window, soft=policy.soft, hard=policy.hard
    )


def list_entry(head: types.Session, is_open: bool) -> wire_types.SessionEntry:
    return wire_types.SessionEntry(
        session_id=head.id,
        conversation_id=head.conversation_id,
        title=head.title,
        live=head.live,
        started_at=head.started_at,
        active_at=head.active_at,
        last_seq=head.last_seq,
        source=head.source,
        model=head.model,
        open=is_open,
    )


async def read_transcript(
    db: async_db.AsyncSessionDB, found: types.Conversation, after: int, limit: int
) -> list[wire_types.TranscriptMessage]:
    """Return at most `limit` messages after `after`, as many as fit into one response."""
    page: list[wire_types.TranscriptMessage] = []
    left = MAX_PAGE_CHARACTERS
    async for message, is_hidden in subscriptions.read_log(db, found.id, after, min(found.last_seq, after + limit)):
        entry = _transcript_entry(message, is_hidden)
        # The text is sent twice: within the content and as text.
        left -= len(message.body) + len(entry.text)
        if page and left < 0:
            break
        page.append(entry)
    return page


def _transcript_entry(message: types.Message, is_hidden: bool) -> wire_types.TranscriptMessage:
    return wire_types.TranscriptMessage(
        seq=message.seq,
        uid=message.uid,
        session_id=message.session_id,
        role=message.role,
        at=message.at,
        text=content_parts.text(message.content),
        content=message.content,
        tool_calls=[*message.tool_calls],
        tool_call_id=message.tool_call_id,
        redacted=message.redacted,
        taken_back=is_hidden,
    )
