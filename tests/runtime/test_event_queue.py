"""The event queue of a subscription keeps the order, and merges deltas when many are waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import events
from holdfast.runtime import subscriptions

MANY = subscriptions.COALESCE_AT
Queue = subscriptions.EventQueue[str]


def delta(text: str) -> subscriptions.Received:
    return subscriptions.Received(events.TextDelta(text), "u")


def progress(call: str, text: str) -> subscriptions.Received:
    return subscriptions.Received(events.ToolProgress(call, text), "u")


NOTICE = subscriptions.Received(events.Notice("n"))
REASONING = subscriptions.Received(events.ReasoningDelta("hm"), "u")
STARTED = subscriptions.Received(events.ToolStarted("c", "shell", "{}"), "u")


@pytest.fixture
async def queue() -> Queue:
    return subscriptions.EventQueue[str]()


def put(queue: Queue, *items: Any) -> None:
    for each in items:
        queue.put(each)


async def take(queue: Queue) -> list[Any]:
    found = []
    while len(queue):
        found.append(await queue.first())
        queue.done()
    return found


async def test_adjacent_deltas_of_one_kind_are_merged_in_a_long_queue_only(queue: Queue) -> None:
    items = [delta("a"), delta("b"), NOTICE, "an item of the consumer", delta("c")]
    put(queue, *items)
    assert await take(queue) == items
    put(queue, *(delta(f"{number} ") for number in range(500)), REASONING, REASONING, delta("z"), STARTED)
    *texts, thoughts, after, started = await take(queue)
    assert len(texts) == MANY
    assert "".join(each.event.text for each in texts) == "".join(f"{number} " for number in range(500))
    assert (thoughts.event, after, started) == (events.ReasoningDelta("hmhm"), delta("z"), STARTED)


async def test_adjacent_progress_of_one_call_is_merged_in_a_long_queue(queue: Queue) -> None:
    put(queue, *(delta(f"{number}") for number in range(MANY - 2)), progress("b", "x"), progress("a", ""))
    put(queue, *(progress("a", f"{number} ") for number in range(1000)), progress("b", "y"))
    put(queue, STARTED, progress("c", "first"), STARTED, progress("c", "second"))
    *before, first, second, third = (found := await take(queue))[:-4]
    assert len(before) == MANY - 2
    limit = subscriptions.PROGRESS_CHARACTERS
    assert (first, third) == (progress("b", "x"), progress("b", "y"))
    assert second == progress("a", "".join(f"{number} " for number in range(1000))[-limit:])
    # Progress is not moved before the start of its call, and an item that was taken is not changed.
    assert found[-4:] == [STARTED, progress("c", "first"), STARTED, progress("c", "second")]
    put(queue, progress("c", "1000"))
    assert await take(queue) == [progress("c", "1000")]


async def test_flush_waits_for_earlier_items_until_the_queue_is_closed(queue: Queue) -> None:
    put(queue, delta("mine"))
    assert await queue.first() == delta("mine")
    flushed = asyncio.create_task(queue.flush())
    await asyncio.sleep(0)
    put(queue, NOTICE)
    assert not flushed.done()
    queue.done()
    await flushed
    assert len(queue) == 1
    flushed = asyncio.create_task(queue.flush())
    await asyncio.sleep(0)
    queue.close()
    await flushed
    put(queue, "discarded")
    await queue.flush()
    assert len(queue) == 0
