"""The keyboard while a turn runs: Ctrl-C stops it, everything else is kept for the prompt that comes next.

The terminal echoes nothing meanwhile, so that typing ahead cannot get into the middle of an answer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from prompt_toolkit.input import base, typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys


@contextmanager
def watched(source: base.Input, stop: Callable[[], None]) -> Iterator[None]:
    """Within this block `stop` is called for each Ctrl-C, and for each interrupt that comes as a signal."""
    kept: list[KeyPress] = []

    def take() -> None:
        sort(source.read_keys(), kept, stop)

    with source.raw_mode(), source.attach(take), _signalled(stop):
        try:
            yield
        finally:
            sort(source.flush_keys(), kept, stop=lambda: None)
            typeahead.store_typeahead(source, kept)


def sort(presses: list[KeyPress], kept: list[KeyPress], stop: Callable[[], None]) -> None:
    """Ctrl-C takes back what was typed before it; what the terminal itself reports is nobody's typing."""
    for press in presses:
        if press.key == Keys.ControlC:
            kept.clear()
            stop()
        elif press.key not in (Keys.CPRResponse, Keys.Vt100MouseEvent, Keys.Ignore):
            kept.append(press)


@contextmanager
def _signalled(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
