"""The long runs against the server for front ends of their own: broken frames, bytes, connections and parameters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.rpc import websocket_transport
from tests.chaos.run import Run, Wrong
from tests.support import rpc_fuzzing, rpc_server_fuzzing

FRAMES, CONNECTIONS, CALLS = 5_000, 100, 500
"""How many are tried at once."""
# A round is many frames: they take next to no time.
ROUNDS_A_STORY = 50


def frames(run: Run) -> Iterator[str]:
    """All ways to be spoken to, one after the other; what the loop complains of is wrong, too."""
    tried, left = 0, max(1, run.rounds // ROUNDS_A_STORY)
    while left and run.goes_on():
        for name, (count, story) in _stories(run).items():
            with _quick(), _complaints() as complaints:
                try:
                    asyncio.run(story)
                except AssertionError as error:
                    yield Wrong(f"{name}: {error}")
            yield from (Wrong(f"{name}: {each}") for each in complaints)
            tried += count
        left -= 1
        yield f"{tried:,} frames, connections and calls"


def _stories(run: Run) -> dict[str, tuple[int, Coroutine[Any, Any, object]]]:
    chance = run.chance
    return {
        "lines": (FRAMES, rpc_fuzzing.send_lines(chance, FRAMES)),
        "heads": (CONNECTIONS, rpc_fuzzing.open_connections(chance, CONNECTIONS, valid_head=False)),
        "connections": (CONNECTIONS, rpc_fuzzing.open_connections(chance, CONNECTIONS, valid_head=True)),
        "many at once": (CALLS, rpc_server_fuzzing.send_concurrent_requests(chance, CALLS)),
    }


@contextmanager
def _quick() -> Iterator[None]:
    """Nobody waits for a farewell."""
    before, websocket_transport.CLOSE_SECONDS = websocket_transport.CLOSE_SECONDS, 0.05
    try:
        yield
    finally:
        websocket_transport.CLOSE_SECONDS = before


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What goes wrong in a callback of the loop, or in one of a connection, raises nowhere."""
    found: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler, loggers = Heard(logging.ERROR), [logging.getLogger("asyncio"), websocket_transport.library_logger]
    for each in loggers:
        each.addHandler(handler)
    try:
        yield found
    finally:
        for each in loggers:
            each.removeHandler(handler)


PARTS: dict[str, Callable[[Run], Iterator[str]]] = {"frames": frames}
