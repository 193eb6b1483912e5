"""The lease of a turn: turns queue up, and a turn that lost its lease cannot write."""

from __future__ import annotations

import asyncio

from holdfast import AsyncSessionDB, content_parts, events, types
from holdfast.model import ScriptedModel, base
from tests.support import agents, conversations, polling


async def test_second_turn_waits_for_the_first_and_announces_it(db: AsyncSessionDB) -> None:
    seen: list[events.AnyEvent] = []
    slow, quick = agents.Trickle("Hm"), ScriptedModel(["Yes."])
    first = agents.agent(db, slow, session_id="t")
    turn = await polling.start(first.run_conversation("One"), slow.stuck.reached)
    other = agents.agent(db, quick, session_id="t")
    second = await polling.start(other.run_conversation("Two", emit=seen.append), lambda: seen)
    assert agents.kinds(seen) == ["TurnQueued"]
    assert quick.requests == []
    first.interrupt()
    assert (await second).completed
    assert (await turn).interrupted
    assert [each.role for each in await db.transcript("t")] == ["user", "assistant", "user", "assistant"]


async def test_turn_without_patience_is_refused_and_stores_nothing(db: AsyncSessionDB) -> None:
    await db.append_message("t", role="user", content="x", create=types.NewConversation(source="test"))
    await db.acquire_lease("t", "turn", "another agent")
    result = await agents.agent(db, ScriptedModel([]), session_id="t", patience=0.0).run_conversation("Hi")
    assert (result.exit_reason, result.failed, result.messages) == ("busy", True, ())
    assert "another agent" in str(result.error)
    assert len(await db.transcript("t")) == 1


async def test_concurrent_first_messages_are_answered_in_separate_turns(db: AsyncSessionDB) -> None:
    def echo(request: base.Request) -> str:
        assert request.messages[-1].role == "user"
        return f"re {content_parts.text(request.messages[-1].content)}"

    for attempt in range(8):
        rivals = [agents.agent(db, ScriptedModel([echo]), session_id=f"t{attempt}") for _ in range(3)]
        results = await asyncio.gather(*(one.run_conversation(f"{n}") for n, one in enumerate(rivals)))
        for number, result in enumerate(results):
            assert [content_parts.text(each.content) for each in result.messages] == [f"{number}", f"re {number}"]
        assert [each.role for each in await db.transcript(f"t{attempt}")] == ["user", "assistant"] * 3


async def test_turn_that_lost_its_lease_is_stopped_and_cannot_write() -> None:
    async with agents.store(clock=conversations.Clock()) as db:
        model = agents.Trickle("I am")
        agent = agents.agent(db, model, session_id="t", lease_ttl=0.2)
        turn = await polling.start(agent.run_conversation("Go"), model.stuck.reached)
        (held,) = await db.leases()
        await db.acquire_lease("t", "turn", held.holder)  # a new token makes the old one invalid
        result = await turn
        assert (result.exit_reason, result.failed) == ("lease_lost", True)
        assert model.stuck.cancelled
        assert [each.role for each in await db.transcript("t")] == ["user"]
