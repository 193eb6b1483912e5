"""Pending approvals of a conversation: in order, answered once, withdrawn when they are settled elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import AsyncSessionDB, events, types
from holdfast.agent import approvals
from holdfast.runtime import approval_queue
from holdfast.tools import base
from tests.support import agents

ALLOWED, DENIED = "allowed", "denied"


class Tools:
    """Calls that need an approval, and what became of them."""

    def __init__(self, permissions: approvals.Approvals) -> None:
        self.asked: list[events.ApprovalAsked] = []
        self._gate = permissions.gate(lambda: "talk", self._emit)

    def _emit(self, event: events.AnyEvent) -> None:
        self.asked.extend([event] if isinstance(event, events.ApprovalAsked) else [])

    async def call(self, name: str) -> str:
        act = base.Act(tool="shell", kind="run", summary=f"Run {name}.")
        try:
            async with self._gate(types.ToolCall(name, "shell", {}), act):
                return ALLOWED
        except Exception:
            return DENIED

    async def start(self, *names: str) -> list[asyncio.Task[str]]:
        calls = []
        for name in names:
            before = len(self.asked)
            calls.append(asyncio.create_task(self.call(name)))
            while len(self.asked) == before:
                await asyncio.sleep(0.001)
        return calls


def run(story: Callable[[approvals.Approvals, Tools], Awaitable[None]]) -> None:
    async def told(db: AsyncSessionDB) -> None:
        await db.create_session("talk", source="test")
        permissions = approvals.Approvals(db.permissions)
        async with asyncio.timeout(60):
            await story(permissions, Tools(permissions))

    agents.run(told)


def approve(request: events.ApprovalAsked, answer: events.Answered = "once") -> events.Approve:
    return events.Approve(request.request_id, answer, "a test")


async def never() -> Any:
    await asyncio.Event().wait()


def test_requests_are_pending_in_order_until_they_are_answered_once() -> None:
    async def story(permissions: approvals.Approvals, tools: Tools) -> None:
        queue = approval_queue.ApprovalQueue(permissions, "talk")
        queue.open()
        one, two = await tools.start("one", "two")
        first, second = tools.asked
        assert queue.pending == [first, second]
        assert await queue.answer(approve(first)) == (True, None)
        assert await one == ALLOWED
        assert queue.pending == [second]
        again = await queue.answer(approve(first))
        assert not again.accepted
        assert again.notice
        queue.deny_unanswered(second.request_id, "Nobody saw it.")
        assert await two == DENIED
        assert queue.pending == []

    run(story)


def test_a_prompt_is_withdrawn_when_another_client_answers() -> None:
    async def story(permissions: approvals.Approvals, tools: Tools) -> None:
        here, there = (approval_queue.ApprovalQueue(permissions, "talk") for _ in range(2))
        here.open()
        there.open()
        (call,) = await tools.start("one")
        (request,) = tools.asked
        prompting = asyncio.create_task(here.prompt(request.request_id, never()))
        await asyncio.sleep(0)
        await there.answer(approve(request, "deny"))
        assert await prompting is None
        assert await call == DENIED
        assert await here.prompt(request.request_id, never()) is None

    run(story)


def test_the_answer_of_a_prompt_is_returned() -> None:
    async def story(permissions: approvals.Approvals, tools: Tools) -> None:
        queue = approval_queue.ApprovalQueue(permissions, "talk")
        queue.open()
        (call,) = await tools.start("one")

        async def answer() -> events.Approve:
            return approve(tools.asked[0])

        given = await queue.prompt(tools.asked[0].request_id, answer())
        assert given is not None
        assert (await queue.answer(given)).accepted
        assert await call == ALLOWED

    run(story)


def test_next_skips_requests_that_are_settled_and_a_closed_queue_denies() -> None:
    async def story(permissions: approvals.Approvals, tools: Tools) -> None:
        queue = approval_queue.ApprovalQueue(permissions, "talk")
        queue.open()
        one, two = await tools.start("one", "two")
        for request in tools.asked:
            queue.put(request)
        await queue.answer(approve(tools.asked[0]))
        assert await queue.next() == tools.asked[1]
        queue.close()
        assert (await one, await two) == (ALLOWED, DENIED)
        # Without a client that can answer nothing is asked.
        assert await tools.call("three") == DENIED
        assert len(tools.asked) == 2

    run(story)
