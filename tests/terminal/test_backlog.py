"""What a client is still to be told: in order, and shorter where it gets long."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast import events
from holdfast.rpc_server import event_queue
from tests.terminal.test_telling import RESULT


def said(text: str) -> event_queue.Heard:
    return event_queue.Heard(events.TextDelta(text), "u")


async def taken(some: event_queue.Backlog) -> list[event_queue.Item]:
    found = []
    while len(some):
        found.append(await some.first())
        some.done()
    return found


def test_what_is_put_is_taken_in_order_and_each_piece_by_itself() -> None:
    async def story() -> None:
        some = event_queue.Backlog()
        every = [said("a"), said("b"), event_queue.Heard(events.Notice("n"), None), said("c")]
        for each in every:
            some.put(each)
        assert await taken(some) == every
        await some.told()

    asyncio.run(story())


def test_a_long_one_puts_pieces_of_the_same_kind_together_and_no_others() -> None:
    async def story() -> None:
        some = event_queue.Backlog()
        for number in range(event_queue.LONG):
            some.put(said(f"{number} "))
        thought = event_queue.Heard(events.ReasoningDelta("hm"), "u")
        for each in (said("x"), said("y"), thought, thought, said("z"), event_queue.Heard(events.Notice("n"), None)):
            some.put(each)
        *_, last, thoughts, after, notice = await taken(some)
        assert last == said(f"{event_queue.LONG - 1} xy")
        assert thoughts == event_queue.Heard(events.ReasoningDelta("hmhm"), "u")
        assert (after, notice) == (said("z"), event_queue.Heard(events.Notice("n"), None))

    asyncio.run(story())


def progress(call: str, text: str) -> event_queue.Heard:
    return event_queue.Heard(events.ToolProgress(call, text), "u")


def test_a_long_one_keeps_the_last_progress_of_each_call() -> None:
    async def story() -> None:
        some = event_queue.Backlog()
        for number in range(event_queue.LONG - 2):
            some.put(said(f"{number}"))
        for number in range(1000):
            some.put(progress("a", f"{number}"))
            some.put(progress("b", f"{number}"))
        *before, first, second = await taken(some)
        assert (len(before), first, second) == (event_queue.LONG - 2, progress("a", "999"), progress("b", "999"))
        # What was told is told: the next one has a place of its own, behind it.
        some.put(progress("a", "1000"))
        assert await taken(some) == [progress("a", "1000")]

    asyncio.run(story())


def finished(text: str) -> event_queue.Heard:
    return event_queue.Heard(events.TurnFinished(msgspec.structs.replace(RESULT, final_response=text)), "u")


def test_pieces_of_a_reply_give_way_to_its_end_where_that_has_them_and_others_do_not() -> None:
    async def story() -> None:
        some = event_queue.Backlog()
        call = event_queue.Heard(events.ToolStarted("c", "shell", "{}"), "u")
        for each in (said("I look."), call, *map(said, "abc" * event_queue.LONG)):
            some.put(each)
        whole, stored = (
            finished("abc" * event_queue.LONG),
            event_queue.Heard(events.MessageStored(2, "m", "assistant"), "u"),
        )
        some.put(stored)
        some.put(whole)
        assert await taken(some) == [said("I look."), call, stored, whole]
        for each in (said("x"), *[call] * event_queue.LONG, said("other words"), whole):
            some.put(each)
        assert (await taken(some))[-2:] == [said("other words"), whole]

    asyncio.run(story())


def test_what_is_being_told_does_not_give_way() -> None:
    async def story() -> None:
        some = event_queue.Backlog()
        for _ in range(event_queue.LONG):
            some.put(said("a"))
        assert await some.first() == said("a")
        some.put(finished("a" * event_queue.LONG))
        assert await taken(some) == [said("a"), finished("a" * event_queue.LONG)]

    asyncio.run(story())


def test_what_is_being_told_counts_as_not_told_yet() -> None:
    async def story() -> None:
        some = event_queue.Backlog()
        some.put(said("a"))
        assert await some.first() == said("a")
        waiting = asyncio.create_task(some.told())
        await asyncio.sleep(0)
        assert not waiting.done()
        some.done()
        await waiting

    asyncio.run(story())


def test_what_was_said_before_a_call_does_not_give_way_to_an_end_that_says_it_too() -> None:
    async def story() -> None:
        some = event_queue.Backlog()
        call, whole = event_queue.Heard(events.ToolStarted("c", "shell", "{}"), "u"), finished("a" * event_queue.LONG)
        for each in (said("b"), said("a"), call, *[said("a")] * event_queue.LONG, whole):
            some.put(each)
        assert await taken(some) == [said("b"), said("a"), call, whole]

    asyncio.run(story())
