"""What was typed and waits: in its order, and any of it can be taken back."""

from __future__ import annotations

import asyncio

from holdfast.runtime import interactive


def test_lines_come_in_their_order_without_those_taken_back() -> None:
    async def story() -> None:
        waiting = interactive.InputQueue()
        first = asyncio.create_task(waiting.next())
        await asyncio.sleep(0)
        for line in ("a", "same", "same", "b"):
            waiting.add(line)
        assert await first == "a"
        _, second, _ = waiting.lines
        assert waiting.drop(second)
        assert not waiting.drop(second)
        assert [await waiting.next() for _ in range(len(waiting))] == ["same", "b"]

    asyncio.run(asyncio.wait_for(story(), 60))
