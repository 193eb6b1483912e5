"""While a turn runs, Ctrl-C stops it and typing is kept for the next prompt."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input, typeahead

from holdfast.terminal import keys


def watched(*acts: Callable[[PipeInput], object]) -> tuple[int, str]:
    """How often something was to be stopped by these acts, one stop each, and what is left for the prompt."""

    async def watch() -> tuple[int, str]:
        stops, stopped = list[int](), asyncio.Event()

        def stop() -> None:
            stops.append(1)
            stopped.set()

        with create_pipe_input() as source:
            with keys.watched(source, stop):
                for act in acts:
                    act(source)
                    async with asyncio.timeout(30):
                        await stopped.wait()
                    stopped.clear()
            return len(stops), "".join(press.data for press in typeahead.get_typeahead(source))

    return asyncio.run(watch())


def types(text: str) -> Callable[[PipeInput], object]:
    return lambda source: source.send_text(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("\x03", ""),
        ("\x03next line\r", "next line\r"),
        ("\x03über 漢字", "über 漢字"),
        ("meant otherwise\r\x03", ""),
        ("\x03\x1b[12;34Rhi", "hi"),
    ],
    ids=["nothing", "a line", "letters", "taken back", "a report of the terminal"],
)
def test_ctrl_c_stops_and_what_is_typed_after_it_is_kept(text: str, kept: str) -> None:
    assert watched(types(text)) == (1, kept)


def test_every_ctrl_c_counts() -> None:
    assert watched(types("\x03"), types("\x03")) == (2, "")


def test_an_interrupt_that_comes_as_a_signal_stops_too() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert watched(lambda _: os.kill(os.getpid(), signal.SIGINT)) == (1, "")
    assert signal.getsignal(signal.SIGINT) is before


def test_an_escape_that_nothing_followed_is_kept() -> None:
    stops, kept = watched(types("\x03\x1b"))
    assert (stops, kept) == (1, "\x1b")
