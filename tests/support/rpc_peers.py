"""A peer with somebody at the other end, in memory: methods that wait until they are let go, and a gate on reading."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast import errors
from holdfast.rpc import frames, peer

PATIENCE = 60


class Memory:
    """A channel. What is sent waits for whoever reads, as much as `room` says."""

    def __init__(self, room: int = 10_000) -> None:
        self.came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: asyncio.Queue[bytes] = asyncio.Queue(room)
        self.received = 0
        self.broken = asyncio.Event()
        self.is_closed = self._sending = False
        self.overlapped = False
        """Whether a frame was sent while another one was."""

    async def receive(self) -> bytes | None:
        frame = await self.came.get()
        self.received += frame is not None
        return frame

    async def send(self, frame: bytes) -> None:
        if self.is_closed:
            raise errors.Gone()
        self.overlapped = self.overlapped or self._sending
        self._sending = True
        try:
            await self.sent.put(frame)
        finally:
            self._sending = False

    async def unread(self) -> None:
        await self.broken.wait()

    async def close(self) -> None:
        self.is_closed = True


class Other:
    """Who is at the other end."""

    def __init__(self, channel: Memory) -> None:
        self.channel = channel
        self.peer: peer.Peer
        self.running: asyncio.Task[None]
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.go = asyncio.Event()

    def say(self, *said: object) -> None:
        for each in said:
            self.channel.came.put_nowait(each if isinstance(each, bytes) else json.dumps(each).encode())

    def leave(self) -> None:
        self.channel.came.put_nowait(None)

    async def hear(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.channel.sent.get())

    async def ask(self, id: object, method: str, params: object = None) -> Any:
        self.say(request(id, method, params))
        return await self.hear()

    # --- methods -----------------------------------------------------------------------------------------

    async def echo(self, _: peer.Peer, params: frames.Params) -> object:
        return params

    async def give(self, _: peer.Peer, params: frames.Params) -> object:
        self.begun.append(params)
        assert isinstance(params, list)
        return "x" * params[0]

    async def wait(self, _: peer.Peer, params: frames.Params) -> object:
        self.begun.append(params)
        try:
            await self.go.wait()
        finally:
            self.ended.append(params)
        return params

    async def refuse(self, _: peer.Peer, params: frames.Params) -> object:
        raise errors.RpcRefused(-32050, "Not today.", params)

    async def miss(self, _: peer.Peer, params: frames.Params) -> object:
        raise errors.NoSuchSession("x")

    async def break_down(self, _: peer.Peer, params: frames.Params) -> object:
        raise ZeroDivisionError("a secret of the inside")

    async def no_json(self, _: peer.Peer, params: frames.Params) -> object:
        return object()

    async def count(self, to: peer.Peer, params: frames.Params) -> object:
        if not (isinstance(params, list) and params and isinstance(params[0], int) and params[0] < 200_000):
            raise errors.RpcRefused(frames.INVALID_PARAMS, "How far?")
        for number in range(params[0]):
            await to.notify("number", [number])
        return "done"

    @property
    def methods(self) -> dict[str, peer.Handler]:
        return {
            "echo": self.echo,
            "give": self.give,
            "wait": self.wait,
            "refuse": self.refuse,
            "miss": self.miss,
            "break": self.break_down,
            "no_json": self.no_json,
            "count": self.count,
        }


def request(id: object, method: str, params: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def notification(method: str, params: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


@asynccontextmanager
async def opened(limits: frames.FrameLimits = frames.DEFAULT_LIMITS, room: int = 10_000) -> AsyncIterator[Other]:
    other = Other(Memory(room))
    other.peer = peer.Peer(other.channel, other.methods, limits)
    other.running = asyncio.create_task(other.peer.run())
    try:
        yield other
    finally:
        other.leave()
        await gone(other)
        assert not other.channel.overlapped


async def gone(other: Other) -> None:
    while not other.channel.sent.empty():
        other.channel.sent.get_nowait()
    async with asyncio.timeout(PATIENCE):
        await other.running


async def settled(turns: int = 50) -> None:
    """Everything has happened that can happen without anybody else."""
    for _ in range(turns):
        await asyncio.sleep(0)


def run(
    story: Callable[[Other], Awaitable[None]], limits: frames.FrameLimits = frames.DEFAULT_LIMITS, room: int = 10_000
) -> None:
    async def tell() -> None:
        async with opened(limits, room) as other:
            await story(other)

    asyncio.run(tell())
