"""The queue of a subscription: items stay in order, and are merged where many wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import events
from holdfast.runtime import subscriptions

MANY = subscriptions.COALESCE_AT
Queue = subscriptions.EventQueue[str]


def delta(text: str) -> subscriptions.Received:
    return subscriptions.Received(events.TextDelta(text), "u")


def reasoning(text: str) -> subscriptions.Received:
    return subscriptions.Received(events.ReasoningDelta(text), "u")


def progress(call: str, text: str) -> subscriptions.Received:
    return subscriptions.Received(events.ToolProgress(call, text), "u")


def notice(text: str = "n") -> subscriptions.Received:
    return subscriptions.Received(events.Notice(text))


def started(call: str = "c") -> subscriptions.Received:
    return subscriptions.Received(events.ToolStarted(call, "shell", "{}"), "u")


async def take(queue: Queue) -> list[Any]:
    found = []
    while len(queue):
        found.append(await queue.first())
        queue.done()
    return found


def run(story: Callable[[Queue], Awaitable[None]]) -> None:
    async def told() -> None:
        await story(subscriptions.EventQueue[str]())

    asyncio.run(told())


def put(queue: Queue, *items: Any) -> None:
    for each in items:
        queue.put(each)


def test_items_are_taken_in_order_one_by_one() -> None:
    async def story(queue: Queue) -> None:
        items = [delta("a"), delta("b"), notice(), "an item of the consumer", delta("c")]
        put(queue, *items)
        assert await take(queue) == items
        await queue.flush()

    run(story)


def test_adjacent_deltas_of_the_same_kind_are_merged_in_a_long_queue() -> None:
    async def story(queue: Queue) -> None:
        put(queue, *(delta(f"{number} ") for number in range(MANY)))
        put(queue, delta("x"), delta("y"), reasoning("hm"), reasoning("hm"), delta("z"), notice())
        *_, last, thoughts, after, said = await take(queue)
        assert last == delta(f"{MANY - 1} xy")
        assert thoughts == reasoning("hmhm")
        assert (after, said) == (delta("z"), notice())

    run(story)


def test_a_long_queue_keeps_every_text_in_order() -> None:
    async def story(queue: Queue) -> None:
        put(queue, *(delta(f"{number} ") for number in range(500)), started(), delta("end"))
        found = await take(queue)
        assert len(found) < 100
        texts = [each.event.text for each in found if isinstance(each.event, events.TextDelta)]
        assert "".join(texts) == "".join(f"{number} " for number in range(500)) + "end"
        assert found[-2] == started()

    run(story)


def test_adjacent_progress_of_one_call_is_merged_in_a_long_queue() -> None:
    async def story(queue: Queue) -> None:
        put(queue, *(delta(f"{number}") for number in range(MANY - 2)), progress("b", "x"), progress("a", ""))
        put(queue, *(progress("a", f"{number} ") for number in range(1000)), progress("b", "y"))
        *before, first, second, third = await take(queue)
        assert len(before) == MANY - 2
        limit = subscriptions.PROGRESS_CHARACTERS
        assert (first, third) == (progress("b", "x"), progress("b", "y"))
        assert second == progress("a", "".join(f"{number} " for number in range(1000))[-limit:])
        # What was taken is not changed any more.
        put(queue, progress("a", "1000"))
        assert await take(queue) == [progress("a", "1000")]

    run(story)


def test_progress_of_another_call_with_the_same_id_is_not_moved_before_it() -> None:
    async def story(queue: Queue) -> None:
        put(queue, *[notice()] * MANY, started(), progress("c", "first"), started(), progress("c", "second"))
        assert (await take(queue))[MANY:] == [started(), progress("c", "first"), started(), progress("c", "second")]

    run(story)


def test_a_flush_waits_for_the_item_being_handled() -> None:
    async def story(queue: Queue) -> None:
        put(queue, delta("a"))
        assert await queue.first() == delta("a")
        waiting = asyncio.create_task(queue.flush())
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.done()
        await waiting

    run(story)


def test_a_flush_does_not_wait_for_later_items() -> None:
    async def story(queue: Queue) -> None:
        put(queue, delta("mine"))
        flushed = asyncio.create_task(queue.flush())
        await asyncio.sleep(0)
        put(queue, notice("another one"))
        await queue.first()
        queue.done()
        await flushed
        assert len(queue) == 1

    run(story)


def test_closing_releases_flushes_and_discards_items() -> None:
    async def story(queue: Queue) -> None:
        put(queue, "x")
        flushed = asyncio.create_task(queue.flush())
        await asyncio.sleep(0)
        queue.close()
        await flushed
        put(queue, "y")
        await queue.flush()
        assert len(queue) == 0

    run(story)
