"""A JSON-RPC peer with an in-memory client: methods that wait until they may proceed, and a bounded channel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast import errors
from holdfast.rpc import frames, peer

TIMEOUT_SECONDS = 60


class MemoryChannel:
    """A channel that holds at most `capacity` frames that the client has not read."""

    def __init__(self, capacity: int = 10_000) -> None:
        self.inbound: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: asyncio.Queue[bytes] = asyncio.Queue(capacity)
        self.received_count = 0
        self.broken = asyncio.Event()
        self.is_closed = self.overlapped = False
        self._lock = asyncio.Lock()

    async def receive(self) -> bytes | None:
        frame = await self.inbound.get()
        self.received_count += frame is not None
        return frame

    async def send(self, frame: bytes) -> None:
        if self.is_closed:
            raise errors.Gone()
        self.overlapped = self.overlapped or self._lock.locked()
        async with self._lock:
            await self.sent.put(frame)

    async def unread(self) -> None:
        await self.broken.wait()

    async def close(self) -> None:
        self.is_closed = True


class FakeClient:
    """The client of a peer, and the methods that it can call."""

    def __init__(self, channel: MemoryChannel | None = None) -> None:
        self.channel = channel or MemoryChannel()
        self.peer: peer.Peer
        self.running: asyncio.Task[None]
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.proceed = asyncio.Event()

    def send(self, *messages: object) -> None:
        for each in messages:
            self.channel.inbound.put_nowait(each if isinstance(each, bytes) else json.dumps(each).encode())

    def disconnect(self) -> None:
        self.channel.inbound.put_nowait(None)

    async def receive(self) -> Any:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return json.loads(await self.channel.sent.get())

    async def call(self, id: object, method: str, params: object = None) -> Any:
        self.send(request(id, method, params))
        return await self.receive()

    async def wait_closed(self) -> None:
        """Wait until the peer has ended, without reading its output."""
        while not self.channel.sent.empty():
            self.channel.sent.get_nowait()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.running

    # --- methods -----------------------------------------------------------------------------------------

    async def _echo(self, _: peer.Peer, params: frames.Params) -> object:
        return params

    async def _give(self, _: peer.Peer, params: frames.Params) -> object:
        self.started.append(params)
        assert isinstance(params, list)
        return "x" * params[0]

    async def _wait(self, _: peer.Peer, params: frames.Params) -> object:
        self.started.append(params)
        try:
            await self.proceed.wait()
        finally:
            self.ended.append(params)
        return params

    async def _refuse(self, _: peer.Peer, params: frames.Params) -> object:
        raise errors.RpcRefused(-32050, "Not today.", params)

    async def _miss(self, _: peer.Peer, params: frames.Params) -> object:
        raise errors.NoSuchSession("x")

    async def _break(self, _: peer.Peer, params: frames.Params) -> object:
        raise ZeroDivisionError("a secret of the inside")

    async def _no_json(self, _: peer.Peer, params: frames.Params) -> object:
        return object()

    async def _count(self, to: peer.Peer, params: frames.Params) -> object:
        if not (isinstance(params, list) and params and isinstance(params[0], int) and params[0] < 200_000):
            raise errors.RpcRefused(frames.INVALID_PARAMS, "How far?")
        for number in range(params[0]):
            await to.notify("number", [number])
        return "done"

    @property
    def methods(self) -> dict[str, peer.Handler]:
        names = ("echo", "give", "wait", "refuse", "miss", "break", "no_json", "count")
        return {name: getattr(self, f"_{name}") for name in names}


def request(id: object, method: str, params: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def notification(method: str, params: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


@asynccontextmanager
async def open_peer(
    limits: frames.FrameLimits = frames.DEFAULT_LIMITS, capacity: int = 10_000
) -> AsyncIterator[FakeClient]:
    """Run a peer and yield its client."""
    client = FakeClient(MemoryChannel(capacity))
    client.peer = peer.Peer(client.channel, client.methods, limits)
    client.running = asyncio.create_task(client.peer.run())
    try:
        yield client
    finally:
        client.disconnect()
        await client.wait_closed()
        assert not client.channel.overlapped


async def settle(turns: int = 50) -> None:
    """Let every task run until it waits for an event from outside."""
    for _ in range(turns):
        await asyncio.sleep(0)
