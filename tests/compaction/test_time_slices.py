"""CPU-bound work in a thread lets the event loop run often."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from holdfast.compaction import time_slices


async def test_switch_interval_is_short_while_work_runs_in_a_thread() -> None:
    usual, inside = sys.getswitchinterval(), threading.Event()
    waiting = asyncio.create_task(time_slices.run_in_thread(inside.wait, 10))
    assert await time_slices.run_in_thread(sys.getswitchinterval) == pytest.approx(time_slices.SWITCH_INTERVAL_SECONDS)
    inside.set()
    assert await waiting
    assert sys.getswitchinterval() == pytest.approx(usual)
    assert await time_slices.run_in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await time_slices.run_in_thread(lambda: 1 // 0)
    assert sys.getswitchinterval() == pytest.approx(usual)
