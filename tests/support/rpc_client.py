"""An in-memory client of the RPC server, and a server with a scripted or dictated model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from holdfast import AsyncSessionDB, errors
from holdfast.model import ScriptedModel
from holdfast.rpc import frames, peer
from holdfast.rpc_server import server as rpc_server
from holdfast.rpc_server import session as sessions
from tests.support import agents, approvals, polling, rpc_peers
from tests.support.chat import DictatedModel
from tests.support.compaction import WINDOW

FOREVER = 3600.0
IMAGE = {"data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"}
"""A PNG of one pixel."""


class ErrorResponse(msgspec.Struct):
    """The error of a response."""

    code: int
    message: str
    data: Any = None


class RpcClient(rpc_peers.MemoryChannel):
    """One client. Clear `reading` to make it stop reading; `stuck` keeps a frame in transit after the close."""

    def __init__(self, server: rpc_server.RpcServer, limits: frames.FrameLimits = frames.DEFAULT_LIMITS) -> None:
        super().__init__()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._arrived = asyncio.Condition()
        self._seen = 0
        self.reading, self.blocked, self.stuck = asyncio.Event(), asyncio.Event(), False
        self.reading.set()
        self.frames: list[dict[str, Any]] = []
        self.responses: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.served = asyncio.create_task(server.serve(peer.Peer(self, server.methods(), limits)))

    # --- the channel ---------------------------------------------------------------------------------

    async def send(self, frame: bytes) -> None:
        if not self.reading.is_set():
            self.blocked.set()
        await self.reading.wait()
        if self.is_closed:
            raise errors.Gone()
        message = json.loads(frame)
        self.frames.append(message)
        if "id" in message:
            self.responses.append(message)
            self._pending.pop(message["id"]).set_result(message)
            return
        assert message["method"] == "event"
        assert message["params"].keys() == {"type", "session_id", "payload"}
        async with self._arrived:
            self.events.append(message["params"])
            self._arrived.notify_all()

    async def close(self) -> None:
        await super().close()
        if not self.stuck:
            self.reading.set()

    # --- requests ------------------------------------------------------------------------------------

    def request(self, method: str, **params: Any) -> asyncio.Future[Any]:
        """Send a request; the result is the future of its response."""
        number = len(self.responses) + len(self._pending) + 1
        response = self._pending[number] = asyncio.get_running_loop().create_future()
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.inbound.put_nowait(json.dumps(request).encode())
        return response

    def cancel(self, response: asyncio.Future[Any]) -> None:
        (number,) = (number for number, pending in self._pending.items() if pending is response)
        cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": number}}
        self.inbound.put_nowait(json.dumps(cancel).encode())

    async def call(self, method: str, **params: Any) -> Any:
        response = await self.request(method, **params)
        assert "result" in response, response
        return response["result"]

    async def refusal(self, method: str, **params: Any) -> ErrorResponse:
        """Send a request, and return the error of its response."""
        return msgspec.convert((await self.request(method, **params))["error"], ErrorResponse)

    async def create(self, **params: Any) -> str:
        """Create a session and return its key."""
        key: str = (await self.call("session.create", **params))["session_id"]
        return key

    async def prompt(self, key: str, text: str, **more: Any) -> dict[str, Any]:
        """Submit a prompt and return the event of its end."""
        sent = await self.call("prompt.submit", session_id=key, text=text, **more)
        return await self.wait_for("message.complete", uid=sent["uid"])

    async def start_conversation(self, text: str = "Hello") -> str:
        key = await self.create()
        await self.prompt(key, text)
        return key

    async def request_approval(self, key: str) -> str:
        """Submit the prompt `it` and return the id of the approval request that its turn waits for."""
        await self.call("prompt.submit", session_id=key, text="Do it.", uid="it")
        request: str = (await self.wait_for("approval.request"))["payload"]["request_id"]
        return request

    async def disconnect(self) -> None:
        self.inbound.put_nowait(None)
        await self.served

    # --- events --------------------------------------------------------------------------------------

    async def wait_for(self, type: str, **payload: Any) -> dict[str, Any]:
        """Return the next event of this type with these fields, after those that were waited for before."""
        async with self._arrived:
            while True:
                while self._seen < len(self.events):
                    self._seen += 1
                    event = self.events[self._seen - 1]
                    if event["type"] == type and payload.items() <= event["payload"].items():
                        return event
                await self._arrived.wait()

    def events_of(self, *types: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] in types]

    def payloads(self, type: str, *fields: str) -> list[Any]:
        """Return tuples of these fields of the events of this type."""
        return [tuple(event["payload"][name] for name in fields) for event in self.events_of(type)]

    @property
    def completed(self) -> list[tuple[str, str]]:
        """The uid and the status of every finished prompt."""
        return self.payloads("message.complete", "uid", "status")


class Harness:
    """A server, its runtime and its clients."""

    def __init__(self, db: AsyncSessionDB, rpc: rpc_server.RpcServer, home: approvals.ApprovalRuntime) -> None:
        self.db, self.rpc, self.home = db, rpc, home
        self.runtime, self.shell, self.model = home.door, home.shell, cast("Any", home.model)
        self.clients: list[RpcClient] = []

    @property
    def sessions(self) -> list[sessions.ClientSession]:
        return [*self.rpc._sessions]

    async def connect(self, limits: frames.FrameLimits = frames.DEFAULT_LIMITS) -> RpcClient:
        client = RpcClient(self.rpc, limits)
        self.clients.append(client)
        await client.wait_for("ready")
        return client

    async def end_reasons(self, key: str) -> list[str | None]:
        """Return the end reasons of all sessions of a conversation."""
        return [each.end_reason for each in await self.db.sessions(key)]

    async def wait_ended(self, key: str) -> None:
        while (await self.db.head(key)).live:
            await asyncio.sleep(0.002)

    async def wait_sessions_closed(self) -> None:
        await polling.until_async(lambda: not self.sessions)

    async def has_no_row(self, key: str) -> bool:
        return key not in [each.id for each in await self.db.list_sessions(every=True)]

    def fail_end(self, times: int) -> None:
        """Make the store fail this often when a conversation is ended."""
        end, left = self.db.end_conversation, [errors.StoreBusy()] * times

        async def fail_or_end(*given: Any) -> bool:
            if left:
                raise left.pop()
            return await end(*given)

        self.db.end_conversation = fail_or_end  # type: ignore[method-assign,assignment]


@asynccontextmanager
async def serve(
    db: AsyncSessionDB,
    script: Any = None,
    *,
    grace: float = FOREVER,
    poll: float = FOREVER,
    max_sessions: int = 100,
    **given: Any,
) -> AsyncIterator[Harness]:
    """Run a server; without a script the model says what the test dictates."""
    home = approvals.ApprovalRuntime(db, [], **given)
    home.model = DictatedModel(WINDOW) if script is None else ScriptedModel(script, window=WINDOW)
    options: dict[str, Any] = {"grace_seconds": grace, "poll_seconds": poll, "max_sessions": max_sessions}
    async with home.door, rpc_server.RpcServer(home.door, **options) as server:
        harness = Harness(db, server, home)
        try:
            yield harness
        finally:
            for client in harness.clients:
                client.reading.set()
                await client.disconnect()


@asynccontextmanager
async def connect(
    script: Any = None, *, target: str = ":memory:", **given: Any
) -> AsyncIterator[tuple[Harness, RpcClient]]:
    """Run a server on a new store, and connect one client."""
    async with agents.store(target) as db, serve(db, script, **given) as server:
        yield server, await server.connect()
