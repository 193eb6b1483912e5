"""What a client is still to be told: in order, and shorter where it gets long."""

from __future__ import annotations

import asyncio

from holdfast import events
from holdfast.terminal import backlog


def said(text: str) -> backlog.Heard:
    return backlog.Heard(events.TextDelta(text), "u")


async def taken(some: backlog.Backlog) -> list[backlog.Item]:
    found = []
    while len(some):
        found.append(await some.first())
        some.done()
    return found


def test_what_is_put_is_taken_in_order_and_each_piece_by_itself() -> None:
    async def story() -> None:
        some = backlog.Backlog()
        every = [said("a"), said("b"), backlog.Heard(events.Notice("n"), None), said("c")]
        for each in every:
            some.put(each)
        assert await taken(some) == every
        await some.told()

    asyncio.run(story())


def test_a_long_one_puts_pieces_of_the_same_kind_together_and_no_others() -> None:
    async def story() -> None:
        some = backlog.Backlog()
        for number in range(backlog.LONG):
            some.put(said(f"{number} "))
        thought = backlog.Heard(events.ReasoningDelta("hm"), "u")
        for each in (said("x"), said("y"), thought, thought, said("z"), backlog.Heard(events.Notice("n"), None)):
            some.put(each)
        *_, last, thoughts, after, notice = await taken(some)
        assert last == said(f"{backlog.LONG - 1} xy")
        assert thoughts == backlog.Heard(events.ReasoningDelta("hmhm"), "u")
        assert (after, notice) == (said("z"), backlog.Heard(events.Notice("n"), None))

    asyncio.run(story())


def test_what_is_being_told_counts_as_not_told_yet() -> None:
    async def story() -> None:
        some = backlog.Backlog()
        some.put(said("a"))
        assert await some.first() == said("a")
        waiting = asyncio.create_task(some.told())
        await asyncio.sleep(0)
        assert not waiting.done()
        some.done()
        await waiting

    asyncio.run(story())
