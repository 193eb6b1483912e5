"""Standard input and output: what a script writes is answered, and then it ends."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.gateway import gateway, platform
from holdfast.gateway.platforms import loopback, stdio
from holdfast.model import ScriptedModel
from holdfast.store import leases
from tests.gateway import stage

HELLO = b'{"text": "Hi", "key": "1"}\n'


class Ends:
    """Both ends of what this process would have as its input and output."""

    def __init__(self, given: bytes | None) -> None:
        self.reads, self.types = os.pipe()
        self.looks, self.writes = os.pipe()
        if given is not None:
            self.type(given)
            os.close(self.types)

    def type(self, given: bytes) -> None:
        os.write(self.types, given)

    def said(self) -> list[dict[str, Any]]:
        """All that was written, once nobody writes any more."""
        os.close(self.writes)
        with os.fdopen(self.looks, "rb") as out:
            return [json.loads(line) for line in out]


@asynccontextmanager
async def opened(
    db: AsyncSessionDB, ends: Ends, replies: Sequence[Any], guards: Sequence[platform.Guard] = ()
) -> AsyncIterator[tuple[gateway.Gateway, stdio.Stdio]]:
    lines = stdio.Stdio(db, ends.reads, ends.writes)
    async with stage.open_gateway(db, ScriptedModel(replies), platforms=[lines], guards=guards) as (running, _):
        yield running, lines
    os.close(ends.reads)


def test_all_that_was_written_is_answered_before_it_ends() -> None:
    async def story(db: AsyncSessionDB) -> None:
        ends = Ends(HELLO + b'{"text": "Again", "key": "2"}\n\n{"text": "Other", "key": "3", "chat": "b"}')
        async with opened(db, ends, ["One.", "Two.", "Three."]) as (running, lines):
            await running.ready()
            await lines.finished()
            assert set((await db.mail.counts()).values()) == {0}
        told = ends.said()
        assert [each["key"] for each in told if each["type"] == "taken"] == ["1", "2", "3"]
        replies = {each["arrival"]: each["chat"] for each in told if each["type"] == "reply"}
        assert sorted(replies.values()) == ["b", "local", "local"]
        # A line that is taken is acknowledged before it is answered.
        places = {(each["type"], each["arrival"]): place for place, each in enumerate(told)}
        assert all(places["taken", each] < places["reply", each] for each in replies)

    stage.run(story)


@pytest.mark.parametrize("given", [HELLO, b""], ids=["a file", "an empty one"])
def test_a_file_can_be_the_input(tmp_path: Path, given: bytes) -> None:
    async def story(db: AsyncSessionDB) -> None:
        ends = Ends(b"")
        os.close(ends.reads)
        (tmp_path / "in").write_bytes(given)
        ends.reads = os.open(tmp_path / "in", os.O_RDONLY)
        async with opened(db, ends, ["Hello!"]) as (_, lines):
            await lines.finished()
        assert [each["type"] for each in ends.said()] == (["taken", "reply"] if given else [])

    stage.run(story)


def test_nothing_can_be_the_input() -> None:
    async def story(db: AsyncSessionDB) -> None:
        ends = Ends(b"")
        os.close(ends.reads)
        ends.reads = os.open(os.devnull, os.O_RDONLY)
        async with opened(db, ends, []) as (_, lines):
            await lines.finished()
        assert ends.said() == []

    stage.run(story)


def test_what_is_no_line_is_said_so_and_what_is_refused_with_its_reason() -> None:
    async def story(db: AsyncSessionDB) -> None:
        async def slowly(came: platform.Came, _route: str) -> platform.Verdict:
            return platform.Verdict(came.text == "Hi", say="Slowly.", why="limit", retry_after=60.0)

        ends = Ends(b'{\n{"text": "No", "key": "0"}\n' + HELLO)
        async with opened(db, ends, ["Hello!"], [slowly]) as (_, lines):
            await lines.finished()
        wrong, refused, *rest = ends.said()
        assert wrong["type"] == "error"
        assert refused == {"type": "refused", "key": "0", "why": "limit", "error": "Slowly.", "retry_after": 60.0}
        assert [each["type"] for each in rest] == ["taken", "reply"]

    stage.run(story)


def test_where_nobody_reads_the_answers_it_ends_and_the_next_one_writes_them() -> None:
    async def story(db: AsyncSessionDB) -> None:
        ends = Ends(HELLO)
        os.close(ends.looks)
        async with opened(db, ends, ["Hello!"]) as (_, lines):
            await lines.finished()
            assert lines.broken
        os.close(ends.writes)

    stage.run(story)


def process(dead: bool) -> str:
    found = leases.current_holder(None)
    return leases.encode_holder(
        leases.Holder(found.name, found.host, found.namespace, found.pid, "0", "x") if dead else found
    )


def test_replies_of_a_process_that_died_are_written_and_those_of_another_are_not() -> None:
    async def story(db: AsyncSessionDB) -> None:
        for chat, dead in (("old", True), ("other", False)):
            await db.mail.post(
                types.NewOutgoing(
                    platform=stdio.NAME,
                    chat=f"dm:{chat}",
                    address={"chat": chat, "process": process(dead)},
                    text=chat,
                )
            )
        ends = Ends(None)
        async with opened(db, ends, []) as (_, lines):

            async def one_left() -> bool:
                return (await db.mail.counts())["outgoing_open"] == 1

            await stage.until(one_left)
            os.close(ends.types)
            await lines.finished()
        assert [each["text"] for each in ends.said()] == ["old"]

    stage.run(story)


def test_a_descriptor_that_does_not_wait_is_written_to_the_end() -> None:
    async def story() -> None:
        looks, writes = os.pipe()
        os.set_blocking(writes, False)
        line = b"x" * 300_000
        writing = asyncio.create_task(asyncio.to_thread(stdio.written, writes, line))
        got = b""
        while len(got) < len(line):
            got += await asyncio.to_thread(os.read, looks, 65_536)
        await writing
        assert got == line
        os.close(looks)
        with pytest.raises(BrokenPipeError):
            stdio.written(writes, line)
        os.close(writes)

    asyncio.run(story())


def test_lines_that_are_written_at_the_same_time_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    write, writing, most = stdio.written, list[int](), list[int]()

    def seen(writes: int, line: bytes) -> None:
        writing.append(1)
        most.append(len(writing))
        write(writes, line)
        writing.pop()

    monkeypatch.setattr(stdio, "written", seen)

    async def story(db: AsyncSessionDB) -> None:
        ends = Ends(b"")
        lines = stdio.Stdio(db, ends.reads, ends.writes)
        sent = [
            await db.mail.post(
                types.NewOutgoing(platform=stdio.NAME, chat=f"dm:{each}", address={}, text="ä" * 100_000)
            )
            for each in range(4)
        ]
        sending = [asyncio.create_task(lines.send(each)) for each in sent]
        with os.fdopen(ends.looks, "rb") as out:
            got = [await asyncio.to_thread(out.read, 1)]
            # Nobody waits any more for the one that is being written, and still nothing comes into the middle of it.
            sending[0].cancel()
            await asyncio.wait(sending, timeout=0.05)
            got += [await asyncio.to_thread(out.readline) for _ in sent]
        await asyncio.gather(*sending[1:])
        os.close(ends.reads)
        os.close(ends.writes)
        told = [json.loads(line) for line in b"".join(got).splitlines()]
        assert [each["id"] for each in told] == [each.id for each in sent]
        assert max(most) == 1

    stage.run(story)


def test_a_line_of_a_file_that_is_too_long_is_said_so(tmp_path: Path) -> None:
    async def story(db: AsyncSessionDB) -> None:
        ends = Ends(b"")
        os.close(ends.reads)
        (tmp_path / "in").write_bytes(b"x" * (loopback.LONGEST_LINE + 2))
        ends.reads = os.open(tmp_path / "in", os.O_RDONLY)
        async with opened(db, ends, []) as (_, lines):
            await lines.finished()
        (told,) = ends.said()
        assert told["type"] == "error"

    stage.run(story)
