"""Pending approvals of a conversation are in order, answered once, and withdrawn when another client answers."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, errors, events, types
from holdfast.agent import approvals
from holdfast.runtime import approval_queue
from holdfast.tools import base
from tests.support.polling import until_async

ALLOWED, DENIED = "allowed", "denied"


class ToolCalls:
    """Calls that need an approval, and two clients that may answer."""

    def __init__(self, permissions: approvals.Approvals) -> None:
        self.asked: list[events.ApprovalAsked] = []
        self._gate = permissions.gate(lambda: "talk", self._emit)
        self.queue, self.other = (approval_queue.ApprovalQueue(permissions, "talk") for _ in range(2))
        self.queue.open()

    def _emit(self, event: events.AnyEvent) -> None:
        self.asked.extend([event] if isinstance(event, events.ApprovalAsked) else [])

    async def call(self, name: str) -> str:
        act = base.Act(tool="shell", kind="run", summary=f"Run {name}.")
        try:
            async with self._gate(types.ToolCall(name, "shell", {}), act):
                return ALLOWED
        except errors.NotAllowed:
            return DENIED

    async def start(self, name: str) -> asyncio.Task[str]:
        before = len(self.asked)
        task = asyncio.create_task(self.call(name))
        await until_async(lambda: len(self.asked) > before, "it is asked for")
        return task


@pytest.fixture
async def calls(db: AsyncSessionDB) -> ToolCalls:
    await db.create_session("talk", source="test")
    return ToolCalls(approvals.Approvals(db.permissions))


def approve(request: events.ApprovalAsked, answer: events.Answered = "once") -> events.Approve:
    return events.Approve(request.request_id, answer, "a test")


async def test_requests_are_pending_in_order_until_they_are_answered_once(calls: ToolCalls) -> None:
    one, two = await calls.start("one"), await calls.start("two")
    first, second = calls.asked
    assert calls.queue.pending == [first, second]
    assert await calls.queue.answer(approve(first)) == (True, None)
    assert (await one, calls.queue.pending) == (ALLOWED, [second])
    again = await calls.queue.answer(approve(first))
    assert (again.accepted, bool(again.notice)) == (False, True)
    calls.queue.deny_unanswered(second.request_id, "No client is connected.")
    assert (await two, calls.queue.pending) == (DENIED, [])


async def test_prompt_returns_its_answer_or_is_withdrawn_when_another_client_answers(calls: ToolCalls) -> None:
    async def answer(number: int) -> events.Approve:
        return approve(calls.asked[number]) if number else await asyncio.Future()

    calls.other.open()
    one = await calls.start("one")
    request = calls.asked[0]
    prompting = asyncio.create_task(calls.queue.prompt(request.request_id, answer(0)))
    await asyncio.sleep(0)
    await calls.other.answer(approve(request, "deny"))
    assert await prompting is None
    assert await one == DENIED
    assert await calls.queue.prompt(request.request_id, answer(0)) is None
    two = await calls.start("two")
    given = await calls.queue.prompt(calls.asked[1].request_id, answer(1))
    assert given is not None
    assert (await calls.queue.answer(given)).accepted
    assert await two == ALLOWED


async def test_next_skips_answered_requests_and_a_closed_queue_denies(calls: ToolCalls) -> None:
    one, two = await calls.start("one"), await calls.start("two")
    for request in calls.asked:
        calls.queue.put(request)
    await calls.queue.answer(approve(calls.asked[0]))
    assert await calls.queue.next() == calls.asked[1]
    calls.queue.close()
    assert (await one, await two) == (ALLOWED, DENIED)
    # Without a client that can answer, no approval is asked for.
    assert await calls.call("three") == DENIED
    assert len(calls.asked) == 2
