"""Lines on descriptors: pipes, sockets and files, lines of any length, and somebody who does not read."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import errors
from holdfast.rpc import frames, line_transport, peer
from tests.support import polling, rpc_peers
from tests.support.rpc_peers import request


class Ends(NamedTuple):
    """What the program reads and writes, and what is at the other end of each."""

    reads: int
    writes: int
    asks: int
    hears: int


@contextmanager
def pipes() -> Iterator[Ends]:
    (reads, asks), (hears, writes) = os.pipe(), os.pipe()
    yield from _closed(Ends(reads, writes, asks, hears))


@contextmanager
def sockets() -> Iterator[Ends]:
    """As node has them."""
    (reads, asks), (hears, writes) = socket.socketpair(), socket.socketpair()
    yield from _closed(Ends(reads.detach(), writes.detach(), asks.detach(), hears.detach()))


def _closed(ends: Ends) -> Iterator[Ends]:
    try:
        yield ends
    finally:
        for each in ends:
            with suppress(OSError):
                os.close(each)


both = pytest.mark.parametrize("kind", [pipes, sockets])


def said(*messages: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in messages)


def heard(descriptor: int) -> list[Any]:
    """All that was written, to its end."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return [json.loads(line) for line in file]


async def talk(ends: Ends, limits: frames.FrameLimits = frames.FrameLimits(drain_seconds=30.0)) -> None:  # noqa: B008
    other = rpc_peers.Other(rpc_peers.Memory())
    async with line_transport.open_lines(ends.reads, ends.writes, limits.max_bytes) as channel:
        await peer.Peer(channel, other.methods, limits).run()
    os.close(ends.writes)


# --- lines ---------------------------------------------------------------------------------------------


@hypothesis.given(strategies.binary(max_size=80), strategies.lists(strategies.integers(0, 80), max_size=5))
def test_however_bytes_are_cut_the_lines_are_the_same(data: bytes, cuts: list[int]) -> None:
    splitter, found = line_transport.LineSplitter(1_000), list[bytes]()
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        found += splitter.feed(data[start:end])
    assert found + splitter.finish() == [line for line in data.split(b"\n") if line.strip()]


@pytest.mark.parametrize("piece", [1, 7, 1_000])
def test_a_line_that_is_too_long_is_cut_and_the_next_one_is_whole(piece: int) -> None:
    splitter, data = line_transport.LineSplitter(10), b"x" * 500 + b"\nnext\n" + b"0123456789\n"
    found = [line for at in range(0, len(data), piece) for line in splitter.feed(data[at : at + piece])]
    assert found == [b"x" * 11, b"next", b"0123456789"]


# --- descriptors ---------------------------------------------------------------------------------------


@both
def test_lines_are_answered_by_lines_to_the_end_of_the_input(kind: Any) -> None:
    with kind() as ends:
        os.write(ends.asks, b"\n \r\n" + said(request(1, "echo", ["ä\n"])) + b"nonsense\r\n\xff\xfe\n")
        os.write(ends.asks, said(request(2, "count", [3])).rstrip())
        os.close(ends.asks)
        asyncio.run(talk(ends))
        found = heard(ends.hears)
    assert [each.get("result") or each.get("error", {}).get("code") or each["params"] for each in found] == [
        frames.PARSE_ERROR,
        frames.PARSE_ERROR,
        ["ä\n"],
        [0],
        [1],
        [2],
        "done",
    ]


def test_one_socket_may_be_input_and_output() -> None:
    """As whoever serves a network by starting programs has it."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(said(*(request(number, "echo", []) for number in range(100))))
        theirs.shutdown(socket.SHUT_WR)
        both_ways = ours.detach()
        asyncio.run(talk(Ends(both_ways, both_ways, -1, -1)))
        assert [each["id"] for each in heard(theirs.fileno())] == list(range(100))


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_answered() -> None:
    with pipes() as ends:
        os.write(ends.asks, b"[" * 30_000 + b"\n" + said(request(1, "echo", [])))
        os.close(ends.asks)
        asyncio.run(talk(ends, frames.FrameLimits(max_bytes=1_000, drain_seconds=30.0)))
        found = heard(ends.hears)
    assert [each["id"] for each in found] == [None, 1]
    assert found[0]["error"]["message"] == "A frame can have at most 1,000 bytes."


def test_files_and_nothing_serve_as_well(tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_bytes(said(request(1, "echo", ["x" * 200_000]), request(2, "echo", [])))
    reads, writes = os.open(asked, os.O_RDONLY), os.open(answered, os.O_WRONLY | os.O_CREAT)
    asyncio.run(talk(Ends(reads, writes, -1, -1)))
    os.close(reads)
    assert [json.loads(line)["id"] for line in answered.read_bytes().splitlines()] == [1, 2]
    nothing = os.open(os.devnull, os.O_RDWR)
    asyncio.run(talk(Ends(nothing, os.dup(nothing), -1, -1)))
    os.close(nothing)


@both
def test_descriptors_are_left_as_they_were(kind: Any) -> None:
    with kind() as ends:
        os.set_blocking(ends.writes, False)
        os.close(ends.asks)

        async def tell() -> None:
            async with line_transport.open_lines(ends.reads, ends.writes):
                assert not os.get_blocking(ends.reads)

        asyncio.run(tell())
        assert os.get_blocking(ends.reads)
        assert not os.get_blocking(ends.writes)


@both
def test_who_does_not_read_is_not_read_from_and_is_answered_when_they_do(kind: Any) -> None:
    count, piece = 400, "x" * 10_000

    async def tell(ends: Ends) -> None:
        async with line_transport.open_lines(ends.reads, ends.writes) as channel:
            running = asyncio.create_task(
                peer.Peer(
                    channel,
                    rpc_peers.Other(rpc_peers.Memory()).methods,
                    frames.FrameLimits(max_running=4, busy_seconds=1_000.0, drain_seconds=30.0),
                ).run()
            )
            frame = said(request(1, "echo", [piece])).replace(b'"id": 1', b'"id": null')
            os.set_blocking(ends.asks, False)
            taken, full = 0, 0
            # It takes no more when it took nothing for many turns.
            while full < 2_000:
                try:
                    taken += os.write(ends.asks, frame[taken % len(frame) :])
                    full = 0
                except BlockingIOError:
                    full += 1
                    await asyncio.sleep(0)
            assert taken < count * len(frame)
            os.set_blocking(ends.asks, True)
            wanted = -(-taken // len(frame))
            hearing = asyncio.create_task(asyncio.to_thread(heard, ends.hears))
            await asyncio.to_thread(os.write, ends.asks, frame[taken % len(frame) :] if taken % len(frame) else b"\n")
            os.close(ends.asks)
            await running
        os.close(ends.writes)
        assert [each["result"] for each in await hearing] == [[piece]] * wanted

    with kind() as ends:
        asyncio.run(tell(ends))


@both
def test_when_nobody_can_read_any_more_it_ends(kind: Any) -> None:
    async def tell(ends: Ends) -> None:
        async with line_transport.open_lines(ends.reads, ends.writes) as channel:
            running = asyncio.create_task(peer.Peer(channel, rpc_peers.Other(rpc_peers.Memory()).methods).run())
            os.close(ends.hears)
            os.write(ends.asks, said(request(1, "count", [100_000]), *[request(2, "echo", [])] * 100))
            await running
            with pytest.raises(errors.Gone):
                await channel.send(b"x")

    with kind() as ends:
        asyncio.run(tell(ends))


@both
def test_that_nobody_reads_is_noticed_though_nothing_is_written(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_transport, "POLL_SECONDS", 0.001)

    async def tell(ends: Ends) -> None:
        other, limits = rpc_peers.Other(rpc_peers.Memory()), frames.FrameLimits(drain_seconds=1_000.0)
        async with line_transport.open_lines(ends.reads, ends.writes) as channel:
            running = asyncio.create_task(peer.Peer(channel, other.methods, limits).run())
            os.write(ends.asks, said(request(1, "wait", [])))
            os.close(ends.asks)
            await polling.until_async(lambda: other.begun)
            os.close(ends.hears)
            async with asyncio.timeout(rpc_peers.PATIENCE):
                await running
        assert other.ended == [[]]

    with kind() as ends:
        asyncio.run(tell(ends))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="There is no disk here that is always full.")
def test_a_file_that_takes_nothing_more_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_transport, "POLL_SECONDS", 0.001)

    async def tell(ends: Ends) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        async with line_transport.open_lines(ends.reads, full) as channel, asyncio.timeout(rpc_peers.PATIENCE):
            os.write(ends.asks, said(request(1, "echo", [])))
            await peer.Peer(channel, rpc_peers.Other(rpc_peers.Memory()).methods).run()
        os.close(full)

    with pipes() as ends:
        asyncio.run(tell(ends))


def test_what_cannot_be_written_does_not_keep_it_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_transport, "CLOSE_SECONDS", 0.01)

    async def tell(ends: Ends) -> None:
        async with line_transport.open_lines(ends.reads, ends.writes) as channel:
            sending = asyncio.create_task(channel.send(b"x" * 1_000_000))
            await rpc_peers.settled()
            assert not sending.done()
        with pytest.raises(errors.Gone):
            await sending

    with pipes() as ends:
        asyncio.run(tell(ends))
