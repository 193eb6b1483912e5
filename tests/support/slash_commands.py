"""Conversations for slash commands, and the text that a command answers with."""

from __future__ import annotations

from holdfast import AsyncSessionDB, events, types
from holdfast.runtime import runtime
from tests.support.runtimes import open_runtime, run_command

__all__ = ["add_exchanges", "answer_text", "compact", "context_texts", "open_runtime"]


async def answer_text(run: runtime.Runtime, line: str, conversation: str = "talk") -> str:
    """Run a command and return the text of its only event, after its level if it is a notice."""
    (event,) = await run_command(run, line, conversation)
    if isinstance(event, events.Notice):
        return f"{event.level}: {event.text}"
    assert isinstance(event, events.Answer), event
    return event.text


async def add_exchanges(db: AsyncSessionDB, count: int, name: str = "talk") -> None:
    """Create a conversation of questions and answers: q1 a1 q2 a2 …"""
    await db.create_session(name, source="test", title=f"The {name}")
    for number in range(1, count + 1):
        question = types.NewMessage(role="user", content=f"q{number}")
        answer = types.NewMessage(role="assistant", content=f"a{number}")
        await db.append_messages(name, [question, answer])


async def compact(db: AsyncSessionDB, cut_seq: int, name: str = "talk") -> None:
    """Compact a conversation up to this message."""
    lease = await db.acquire_lease(name, "compact")
    await db.commit_compaction(lease, summary="In short.", cut_seq=cut_seq)
    await db.release_lease(lease)


async def context_texts(db: AsyncSessionDB, name: str = "talk") -> list[str]:
    """Return the texts of the messages in the context."""
    return [str(each.content) for each in await db.context(name) if each.seq]
