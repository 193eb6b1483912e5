"""A terminal that has nothing but lines: what is typed counts at any moment, and all is written as it comes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Awaitable, Callable

from holdfast.chat import dumb_terminal
from holdfast.terminal import event_text
from tests.support.polling import until_async


class Person:
    """Notes what is done, and when something was."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def enter(self, line: str) -> None:
        self.did.append(line)

    def interrupt(self) -> None:
        self.did.append("^C")

    def leave(self) -> None:
        self.did.append("^D")


class Paper:
    colour = False

    def __init__(self) -> None:
        self.out = io.StringIO()

    def style(self, line: str, *_: str) -> str:
        return line


Story = Callable[[dumb_terminal.DumbTerminal, Person, Paper, int], Awaitable[None]]


def told(story: Story) -> None:
    async def tell() -> None:
        source, keys = os.pipe()
        person, paper = Person(), Paper()
        front = dumb_terminal.DumbTerminal(paper, person, source)
        running = asyncio.create_task(front.run())
        await asyncio.sleep(0)
        try:
            await story(front, person, paper, keys)
            front.leave()
            await running
        finally:
            running.cancel()
            os.close(keys)
            os.close(source)

    asyncio.run(tell())


def test_lines_are_taken_as_they_come_and_a_piece_of_one_waits_for_its_end() -> None:
    async def story(front: dumb_terminal.DumbTerminal, person: Person, paper: Paper, keys: int) -> None:
        assert paper.out.getvalue() == "\n> "
        os.write(keys, "one\ntwo\nü".encode()[:-1])
        await until_async(lambda: len(person.did) == 2)
        os.write(keys, "ü\n".encode()[1:])
        await until_async(lambda: len(person.did) == 3)
        assert person.did == ["one", "two", "ü"]

    told(story)


def test_a_question_is_answered_by_the_next_line_only() -> None:
    async def story(front: dumb_terminal.DumbTerminal, person: Person, paper: Paper, keys: int) -> None:
        os.write(keys, b"before\n")
        await until_async(lambda: person.did)
        answer = asyncio.create_task(front.read_line("Allow? > "))
        await asyncio.sleep(0)
        assert paper.out.getvalue().endswith("Allow? > ")
        os.write(keys, b"y\nafter\n")
        assert await answer == "y"
        await until_async(lambda: len(person.did) == 2)
        assert person.did == ["before", "after"]

    told(story)


def test_an_interrupt_takes_back_half_a_line_and_is_told_to_the_question_or_the_person() -> None:
    async def story(front: dumb_terminal.DumbTerminal, person: Person, paper: Paper, keys: int) -> None:
        os.write(keys, b"half")
        await until_async(lambda: front._partial)
        signal.raise_signal(signal.SIGINT)
        await until_async(lambda: person.did)
        answer = asyncio.create_task(front.read_line("Allow? > "))
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        assert await answer is None
        os.write(keys, b"whole\n")
        await until_async(lambda: len(person.did) == 2)
        assert person.did == ["^C", "whole"]

    # Whatever ran in this process before may have left another.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        told(story)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


async def test_the_end_of_what_can_be_typed_leaves() -> None:
    source, keys = os.pipe()
    person = Person()
    running = asyncio.create_task(dumb_terminal.DumbTerminal(Paper(), person, source).run())
    os.close(keys)
    await until_async(lambda: person.did)
    running.cancel()
    await asyncio.wait([running])
    os.close(source)
    assert set(person.did) == {"^D"}


def test_a_line_that_is_no_answer_is_said_to_be_not_sent() -> None:
    async def story(front: dumb_terminal.DumbTerminal, person: Person, paper: Paper, keys: int) -> None:
        front.draft("what\x1b?")
        assert paper.out.getvalue().endswith("\nNot sent: what\\x1b?\n")

    told(story)


def test_what_is_written_while_somebody_could_type_begins_at_a_line_of_its_own() -> None:
    async def story(front: dumb_terminal.DumbTerminal, person: Person, paper: Paper, keys: int) -> None:
        front.write([event_text.StyledText("A notice.\n", "dim")])
        front.ready()
        front.ready()
        assert paper.out.getvalue() == "\n> \nA notice.\n\n> "
        os.write(keys, b"hello\n")
        await until_async(lambda: person.did)
        front.write([event_text.StyledText("Answer.\n")])
        assert paper.out.getvalue().endswith("\n> Answer.\n")

    told(story)
