"""What is still to be told: pieces are put together where many wait, and nothing changes its place."""

from __future__ import annotations

import asyncio

from holdfast import events
from holdfast.acp import update_queue, updates


async def taken(waiting: update_queue.Backlog) -> list[update_queue.Item]:
    items = []
    while len(waiting):
        items.append(await waiting.first())
        waiting.done()
    return items


def test_pieces_are_put_together_where_many_wait_and_keep_their_order() -> None:
    async def story() -> list[update_queue.Item]:
        waiting = update_queue.Backlog()
        for number in range(500):
            waiting.put(events.TextDelta(f"{number} "))
        waiting.put(events.ToolStarted("c", "x", "{}"))
        waiting.put(events.TextDelta("end"))
        return await taken(waiting)

    items = asyncio.run(story())
    assert len(items) < 100
    assert "".join(each.text for each in items if isinstance(each, events.TextDelta)) == (
        "".join(f"{number} " for number in range(500)) + "end"
    )
    assert isinstance(items[-2], events.ToolStarted)


def test_what_is_of_two_calls_stays_apart() -> None:
    async def story() -> list[update_queue.Item]:
        waiting = update_queue.Backlog()
        for number in range(200):
            waiting.put(events.ToolProgress(f"c{number % 2}", "x"))
        return await taken(waiting)

    assert len(asyncio.run(story())) == 200


def test_whoever_waits_for_a_closed_one_does_not_wait() -> None:
    async def story() -> None:
        waiting = update_queue.Backlog()
        waiting.put(update_queue.Ready(updates.agent_says("x")))
        told = asyncio.create_task(waiting.told())
        await asyncio.sleep(0)
        waiting.close()
        await told
        waiting.put(events.TextDelta("y"))
        await waiting.told()

    asyncio.run(story())


def test_whoever_waits_for_what_is_there_does_not_wait_for_what_comes_after_it() -> None:
    async def story() -> None:
        waiting = update_queue.Backlog()
        waiting.put(events.TextDelta("mine"))
        told = asyncio.create_task(waiting.told())
        await asyncio.sleep(0)
        waiting.put(events.Notice("somebody else's"))
        await waiting.first()
        waiting.done()
        await told
        assert len(waiting) == 1

    asyncio.run(story())
