"""Long work beside the loop lets others in, although it only computes."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast import types
from holdfast.compaction import base, extract, ledger, must_keep, time_slices
from holdfast.model import tokens
from holdfast.store import message_codec

MESSAGES = [
    types.Message(
        number,
        f"m{number}",
        "s",
        "user" if number % 2 else "assistant",
        0.0,
        message_codec.encode(
            f"Please look at pier {number}? The boats stay in. See src/pier{number}.py, ticket ABC-{number}."
        ),
    )
    for number in range(1, 301)
]


@pytest.fixture
def nobody_is_let_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python itself takes the turn from no thread: whoever does not give way keeps all others waiting."""
    monkeypatch.setattr(time_slices, "SLICE", 0.0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def extracted() -> object:
    return extract.extract(base.SummaryRequest(messages=MESSAGES, budget=2_000), tokens.estimate)


def entered() -> object:
    return ledger.build(MESSAGES)


def kept() -> object:
    return must_keep.select(MESSAGES, None, 1_000)


@pytest.mark.parametrize("work", [extracted, entered, kept])
@pytest.mark.usefixtures("nobody_is_let_in")
def test_the_loop_goes_on_while_a_conversation_is_read(work: Callable[[], object]) -> None:
    async def story() -> None:
        rounds, done = 0, asyncio.Event()

        async def others() -> None:
            nonlocal rounds
            while not done.is_set():
                rounds += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        assert await time_slices.run_in_thread(work) == work()
        counted = rounds
        done.set()
        await beside
        assert counted > 5

    asyncio.run(story())


def test_the_work_runs_in_another_thread_and_what_it_raises_is_raised() -> None:
    async def story() -> None:
        assert await time_slices.run_in_thread(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await time_slices.run_in_thread(lambda: 1 // 0)

    asyncio.run(story())


def test_outside_of_such_work_nobody_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time_slices.time, "sleep", naps.append)
    monkeypatch.setattr(time_slices, "SLICE", 0.0)
    kept()
    assert naps == []
    asyncio.run(time_slices.run_in_thread(kept))
    assert set(naps) == {time_slices.PAUSE}
    naps.clear()
    # The thread may be anybody's next.
    time_slices.yield_cpu()
    assert naps == []
