"""Frames, bytes and connections that are broken in any way: a peer, lines and a server outlive them.

Each story takes what decides by chance, and how many to try; AssertionError where something is not as it should be.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.rpc import admission, frames, line_transport, peer, websocket_transport
from tests.support import frame_mutation, rpc_peers
from tests.support.rpc_peers import request

KNOWN = {
    frames.PARSE_ERROR,
    frames.INVALID_REQUEST,
    frames.METHOD_NOT_FOUND,
    frames.INVALID_PARAMS,
    frames.CANCELLED,
    frames.FAILED,
    -32050,
}
LIMITS = frames.FrameLimits(max_bytes=4_000, busy_seconds=1_000.0)
TOKEN = "a-token-of-some-length"
HEAD = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
).encode()


def check(said: Any) -> None:
    """An answer or a notification as they should be."""
    assert said["jsonrpc"] == "2.0"
    if "method" in said:
        assert said["method"] == "number"
        return
    assert {*said} in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
    if "error" in said:
        assert said["error"]["code"] in KNOWN, said
        assert said["error"]["message"]


# --- frames --------------------------------------------------------------------------------------------


def at_a_peer(chance: random.Random, count: int) -> int:
    """Frames, while something is worked on that is not to be harmed; how many were answered."""
    answers = 0

    async def story(other: rpc_peers.Other) -> None:
        nonlocal answers
        other.say(request("held", "wait", ["held"]))
        for number in range(count // 50):
            other.say(*(frame_mutation.mutated(chance) for _ in range(50)))
            other.say(request(f"alive-{number}", "echo", [f"alive-{number}"]))
            answers += await _hear_until(other, f"alive-{number}")
        assert (other.begun, other.ended) == ([["held"]], [])
        other.go.set()
        await _hear_until(other, "held")

    rpc_peers.run(story, LIMITS)
    return answers


async def _hear_until(other: rpc_peers.Other, id: str) -> int:
    """How many answers came before this one; all of them as they should be."""
    count = 0
    while True:
        said = await other.hear()
        for each in said if isinstance(said, list) else [said]:
            check(each)
            if each.get("id") == id:
                assert each["result"] == [id]
                return count
            count += 1


def at_lines(chance: random.Random, count: int) -> None:
    """The same by a socket, as node starts a program."""

    async def tell() -> None:
        async with _talking() as (reader, writer):
            for number in range(count // 50):
                writer.write(b"\n".join(frame_mutation.mutated(chance) for _ in range(50)) + b"\n")
                writer.write(json.dumps(request(f"alive-{number}", "echo", [number])).encode() + b"\n")
                while True:
                    said = json.loads(await reader.readline())
                    for each in said if isinstance(said, list) else [said]:
                        check(each)
                    if isinstance(said, dict) and said.get("id") == f"alive-{number}":
                        break

    asyncio.run(tell())


@asynccontextmanager
async def _talking() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A peer, and who is at its other end."""
    ours, theirs = socket.socketpair()
    async with asyncio.timeout(rpc_peers.PATIENCE):
        reader, writer = await asyncio.open_connection(sock=theirs)
        async with line_transport.open_lines(ours.fileno(), ours.fileno(), LIMITS.max_bytes) as channel:
            running = asyncio.create_task(peer.Peer(channel, rpc_peers.Other(rpc_peers.Memory()).methods, LIMITS).run())
            yield reader, writer
            writer.close()
            await running
    ours.close()


# --- connections ---------------------------------------------------------------------------------------


def at_a_door(chance: random.Random, count: int, whole_head: bool) -> int:
    """Connections with broken heads, or whole ones and broken frames; how many were let in."""
    other, peers = rpc_peers.Other(rpc_peers.Memory()), list[peer.Peer]()

    async def connected(channel: websocket_transport.WebSocketChannel) -> None:
        peers.append(made := peer.Peer(channel, other.methods, LIMITS))
        await made.run()

    async def attack(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = HEAD if whole_head else _broken(chance)
        writer.write(head + b"".join(_framed(chance) for _ in range(5)))
        writer.write_eof()
        await reader.read()
        writer.close()

    async def tell() -> None:
        async with asyncio.timeout(rpc_peers.PATIENCE):
            async with websocket_transport.serve(
                connected, admission.AdmissionRules(TOKEN), max_bytes=LIMITS.max_bytes
            ) as address:
                port = int(address.rstrip("/").rpartition(":")[2])
                for _ in range(count):
                    await attack(port)
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(HEAD)
                assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
                writer.close()

    asyncio.run(tell())
    assert all(each.closed.is_set() for each in peers)
    return len(peers)


def _broken(chance: random.Random) -> bytes:
    at = chance.randrange(len(HEAD))
    return (
        HEAD[:at] + chance.choice([b"", b"\x00", b"\r\n", b"\xff" * 3, b"x" * 9_000]) + HEAD[at + chance.randrange(3) :]
    )


def _framed(chance: random.Random) -> bytes:
    """A message in a frame of WebSocket, with a mask of zeros, and now and then another first byte or length."""
    payload = frame_mutation.mutated(chance)[:125]
    first = chance.choice([0x81, 0x81, 0x81, 0x82, 0x01, 0x80, 0x88, 0x89, 0x8A, 0xC1, chance.randrange(256)])
    length = chance.choice([len(payload)] * 6 + [126, 127, chance.randrange(128)])
    return bytes([first, 0x80 | length, 0, 0, 0, 0]) + payload
