"""A terminal without cursor movement: lines are read at any time, and output is written as it comes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.chat import dumb_terminal
from holdfast.terminal import event_text
from tests.support.chat import Paper
from tests.support.polling import until_async


class Driver:
    """A running terminal whose session records its commands."""

    def __init__(self) -> None:
        self.actions: list[str] = []
        self._out = io.StringIO()
        self.source, self.keys = os.pipe()
        self.terminal = dumb_terminal.DumbTerminal(Paper(self._out), self, self.source)
        self.running = asyncio.create_task(self.terminal.run())

    def enter(self, line: str) -> None:
        self.actions.append(line)

    def interrupt(self) -> None:
        self.actions.append("^C")

    def leave(self) -> None:
        self.actions.append("^D")

    @property
    def output(self) -> str:
        return self._out.getvalue()

    def type(self, keys: bytes) -> None:
        os.write(self.keys, keys)

    async def wait_for(self, *actions: str) -> None:
        await until_async(lambda: self.actions == [*actions])


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    made = Driver()
    await asyncio.sleep(0)
    yield made
    made.terminal.leave()
    await made.running
    os.close(made.source)
    os.close(made.keys)


async def test_complete_lines_are_entered_and_the_next_one_answers_a_question(driver: Driver) -> None:
    assert driver.output == "\n> "
    driver.type("one\ntwo\nü".encode()[:-1])
    await driver.wait_for("one", "two")
    driver.type("ü\n".encode()[1:])
    await driver.wait_for("one", "two", "ü")
    answer = asyncio.create_task(driver.terminal.read_line("Allow? > "))
    await asyncio.sleep(0)
    assert driver.output.endswith("Allow? > ")
    driver.type(b"y\nafter\n")
    assert await answer == "y"
    await driver.wait_for("one", "two", "ü", "after")


@pytest.fixture
def _default_interrupt() -> Iterator[None]:
    """Handle SIGINT as a new process does, and check that the handler is restored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.usefixtures("_default_interrupt")
async def test_interrupt_drops_an_incomplete_line_and_an_open_question(driver: Driver) -> None:
    driver.type(b"half")
    await until_async(lambda: driver.terminal._partial)
    signal.raise_signal(signal.SIGINT)
    await driver.wait_for("^C")
    answer = asyncio.create_task(driver.terminal.read_line("Allow? > "))
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGINT)
    assert await answer is None
    driver.type(b"whole\n")
    await driver.wait_for("^C", "whole")


async def test_end_of_the_input_leaves(driver: Driver) -> None:
    os.dup2(driver.source, driver.keys)  # It closes the other end of the pipe.
    await until_async(lambda: driver.actions)
    assert set(driver.actions) == {"^D"}


async def test_output_starts_on_a_new_line_and_drafts_are_reported(driver: Driver) -> None:
    driver.terminal.write([event_text.StyledText("A notice.\n", "dim")])
    driver.terminal.ready()
    driver.terminal.ready()
    assert driver.output == "\n> \nA notice.\n\n> "
    driver.type(b"hello\n")
    await driver.wait_for("hello")
    driver.terminal.write([event_text.StyledText("Answer.\n")])
    assert driver.output.endswith("\n> Answer.\n")
    driver.terminal.draft("what\x1b?")
    assert driver.output.endswith("\nNot sent: what\\x1b?\n")
