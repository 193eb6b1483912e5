"""Lines on file descriptors: pipes, sockets and files, lines of any length, and clients that do not read."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import errors
from holdfast.rpc import frames, line_transport, peer
from tests.support import polling, rpc_peers
from tests.support.agents import LoopClock
from tests.support.rpc_peers import request


class Ends(NamedTuple):
    """The descriptors of the server, and the other end of each."""

    reads: int
    writes: int
    sends: int
    receives: int


@pytest.fixture(params=["pipes", "sockets"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    if request.param == "pipes":
        (reads, sends), (receives, writes) = os.pipe(), os.pipe()
    else:
        pairs = socket.socketpair(), socket.socketpair()
        reads, sends, receives, writes = (each.detach() for pair in pairs for each in pair)
    yield Ends(reads, writes, sends, receives)
    for each in (reads, writes, sends, receives):
        with suppress(OSError):
            os.close(each)


def lines(*messages: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in messages)


def read_all(descriptor: int) -> list[Any]:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return [json.loads(line) for line in file]


async def serve(reads: int, writes: int, limits: frames.FrameLimits = frames.FrameLimits(drain_seconds=30.0)) -> None:  # noqa: B008
    async with line_transport.open_lines(reads, writes, limits.max_bytes) as channel:
        await peer.Peer(channel, rpc_peers.FakeClient().methods, limits).run()
    os.close(writes)


@hypothesis.given(strategies.binary(max_size=80), strategies.lists(strategies.integers(0, 80), max_size=5))
def test_any_bytes_are_split_the_same_however_they_arrive(data: bytes, cuts: list[int]) -> None:
    splitter, found = line_transport.LineSplitter(1_000), list[bytes]()
    for start, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
        found += splitter.feed(data[start:end])
    assert found + splitter.finish() == [line for line in data.split(b"\n") if line.strip()]


@pytest.mark.parametrize("piece", [1, 7, 1_000])
def test_too_long_line_is_cut_and_the_next_is_whole(piece: int) -> None:
    splitter, data = line_transport.LineSplitter(10), b"x" * 500 + b"\nnext\n" + b"0123456789\n"
    found = [line for at in range(0, len(data), piece) for line in splitter.feed(data[at : at + piece])]
    assert found == [b"x" * 11, b"next", b"0123456789"]


async def test_lines_are_answered_to_the_end_of_the_input(ends: Ends) -> None:
    os.write(ends.sends, b"\n \r\n" + lines(request(1, "echo", ["ä\n"])) + b"nonsense\r\n\xff\xfe\n")
    os.write(ends.sends, b"[" * 5_000 + b"\n" + lines(request(2, "count", [3])).rstrip())
    os.close(ends.sends)
    await serve(ends.reads, ends.writes, frames.FrameLimits(max_bytes=1_000, drain_seconds=30.0))
    found = read_all(ends.receives)
    refused = [each["error"] for each in found if "error" in each]
    codes = [frames.PARSE_ERROR, frames.PARSE_ERROR, frames.INVALID_REQUEST]
    assert [each["code"] for each in refused] == codes
    assert refused[-1]["message"] == "A frame can have at most 1,000 bytes."
    others = [each.get("result") or each["params"] for each in found if "error" not in each]
    assert others == [["ä\n"], [0], [1], [2], "done"]


async def test_files_and_the_null_device_can_be_used(tmp_path: Path) -> None:
    requests, responses = tmp_path / "requests", tmp_path / "responses"
    requests.write_bytes(lines(request(1, "echo", ["x" * 200_000]), request(2, "echo", [])))
    reads = os.open(requests, os.O_RDONLY)
    await serve(reads, os.open(responses, os.O_WRONLY | os.O_CREAT))
    os.close(reads)
    assert [json.loads(line)["id"] for line in responses.read_bytes().splitlines()] == [1, 2]
    null = os.open(os.devnull, os.O_RDWR)
    await serve(null, os.dup(null))
    os.close(null)


async def test_client_that_does_not_read_is_not_read_from_until_it_does(ends: Ends) -> None:
    piece = "x" * 10_000
    limits = frames.FrameLimits(max_running=4, busy_seconds=1_000.0, drain_seconds=30.0)
    running = asyncio.create_task(serve(ends.reads, ends.writes, limits))
    frame = lines(request(None, "echo", [piece]))
    os.set_blocking(ends.sends, False)
    written, full = 0, 0
    # The server reads no more if the input stays full for many turns of the loop.
    while full < 2_000:
        try:
            written += os.write(ends.sends, frame[written % len(frame) :])
            full = 0
        except BlockingIOError:
            full += 1
            await asyncio.sleep(0)
    assert written < 400 * len(frame)
    os.set_blocking(ends.sends, True)
    receiving = asyncio.create_task(asyncio.to_thread(read_all, ends.receives))
    await asyncio.to_thread(os.write, ends.sends, frame[written % len(frame) :] if written % len(frame) else b"\n")
    os.close(ends.sends)
    await running
    assert [each["result"] for each in await receiving] == [[piece]] * -(-written // len(frame))


async def test_peer_ends_when_its_output_is_closed_and_blocking_mode_is_restored(ends: Ends) -> None:
    os.set_blocking(ends.writes, False)
    async with line_transport.open_lines(ends.reads, ends.writes) as channel:
        assert not os.get_blocking(ends.reads)
        running = asyncio.create_task(peer.Peer(channel, rpc_peers.FakeClient().methods).run())
        os.close(ends.receives)
        os.write(ends.sends, lines(request(1, "count", [100_000]), *[request(2, "echo", [])] * 100))
        await running
        with pytest.raises(errors.Gone):
            await channel.send(b"x")
    assert (os.get_blocking(ends.reads), os.get_blocking(ends.writes)) == (True, False)


async def test_closed_output_is_noticed_without_a_write(ends: Ends) -> None:
    client, limits = rpc_peers.FakeClient(), frames.FrameLimits(drain_seconds=1_000.0)
    async with line_transport.open_lines(ends.reads, ends.writes) as channel:
        running = asyncio.create_task(peer.Peer(channel, client.methods, limits).run())
        os.write(ends.sends, lines(request(1, "wait", [])))
        os.close(ends.sends)
        await polling.until_async(lambda: client.started)
        os.close(ends.receives)
        await LoopClock().finish(running)
    assert client.ended == [[]]


@pytest.mark.parametrize("ends", ["pipes"], indirect=True)
async def test_blocked_write_does_not_delay_the_close(ends: Ends) -> None:
    stack = AsyncExitStack()
    channel = await stack.enter_async_context(line_transport.open_lines(ends.reads, ends.writes))
    sending = asyncio.create_task(channel.send(b"x" * 1_000_000))
    await rpc_peers.settle()
    assert not sending.done()
    await LoopClock().finish(stack.aclose())
    with pytest.raises(errors.Gone):
        await sending
