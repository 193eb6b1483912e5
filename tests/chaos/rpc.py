"""The long runs against the server for front ends of their own: broken frames, bytes, connections and parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.rpc import websocket_transport
from tests.chaos.run import Run, Wrong
from tests.support import rpc_fuzzing
from tests.terminal import test_server_fuzz

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
                    story()
                except AssertionError as error:
                    yield Wrong(f"{name}: {error}")
            yield from (Wrong(f"{name}: {each}") for each in complaints)
            tried += count
        left -= 1
        yield f"{tried:,} frames, connections and calls"


def _stories(run: Run) -> dict[str, tuple[int, Callable[[], object]]]:
    chance = run.chance
    return {
        "a peer": (FRAMES, lambda: rpc_fuzzing.at_a_peer(chance, FRAMES)),
        "lines": (FRAMES, lambda: rpc_fuzzing.at_lines(chance, FRAMES)),
        "heads": (CONNECTIONS, lambda: rpc_fuzzing.at_a_door(chance, CONNECTIONS, whole_head=False)),
        "connections": (CONNECTIONS, lambda: rpc_fuzzing.at_a_door(chance, CONNECTIONS, whole_head=True)),
        "parameters": (CALLS, lambda: test_server_fuzz.at_a_server(chance, CALLS)),
        "many at once": (CALLS, lambda: test_server_fuzz.all_at_once(chance, CALLS)),
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
