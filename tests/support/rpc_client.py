"""A client of the server, in memory: it calls methods, waits for its answers, and keeps the events it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast import AsyncSessionDB, errors
from holdfast.model import ScriptedModel
from holdfast.rpc import frames, peer
from holdfast.rpc_server import server as serving
from tests.support import agents, approvals
from tests.support.compaction import WINDOW

FOR_EVER = 3600.0


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: Any = error.get("data")


class Caller:
    """One client. What it reads can be held up."""

    def __init__(self, server: serving.RpcServer, limits: frames.FrameLimits = frames.DEFAULT_LIMITS) -> None:
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._more = asyncio.Condition()
        self._seen = 0
        self._is_closed = False
        self.reads, self.broken = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.sending, self.held = asyncio.Event(), False
        """Something waits to be read; whether that goes on when the channel was closed."""
        self.frames: list[dict[str, Any]] = []
        """All that came, as it came."""
        self.answers: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.attended = asyncio.create_task(server.serve(peer.Peer(self, server.methods(), limits)))

    # --- the channel ---------------------------------------------------------------------------------

    async def receive(self) -> bytes | None:
        return await self._came.get()

    async def send(self, frame: bytes) -> None:
        if not self.reads.is_set():
            self.sending.set()
        await self.reads.wait()
        if self._is_closed:
            raise errors.Gone()
        said = json.loads(frame)
        self.frames.append(said)
        if "id" in said:
            self.answers.append(said)
            self._asked.pop(said["id"]).set_result(said)
            return
        assert said["method"] == "event"
        assert said["params"].keys() == {"type", "session_id", "payload"}
        async with self._more:
            self.events.append(said["params"])
            self._more.notify_all()

    async def unread(self) -> None:
        await self.broken.wait()

    async def close(self) -> None:
        self._is_closed = True
        if not self.held:
            self.reads.set()

    # --- what tests do -------------------------------------------------------------------------------

    def asking(self, method: str, **params: Any) -> asyncio.Future[Any]:
        """Call a method, and do not wait for it."""
        number = len(self.answers) + len(self._asked) + 1
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._came.put_nowait(json.dumps(request).encode())
        return answered

    def cancel(self, asked: asyncio.Future[Any]) -> None:
        """Let the server know that an answer is not wanted any more."""
        (number,) = (number for number, waiting in self._asked.items() if waiting is asked)
        cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": number}}
        self._came.put_nowait(json.dumps(cancel).encode())

    async def ask(self, method: str, **params: Any) -> Any:
        return result(await self.asking(method, **params))

    async def until(self, type: str, **payload: Any) -> dict[str, Any]:
        """The next event of this type, with this in it, behind those that were waited for before."""

        def fits(event: dict[str, Any]) -> bool:
            return bool(event["type"] == type and payload.items() <= event["payload"].items())

        async with self._more:
            while True:
                while self._seen < len(self.events):
                    self._seen += 1
                    if fits(event := self.events[self._seen - 1]):
                        return event
                await self._more.wait()

    def told(self, *types: str) -> list[dict[str, Any]]:
        """The events of these types so far."""
        return [event for event in self.events if event["type"] in types]

    async def say(self, key: str, text: str, **more: Any) -> dict[str, Any]:
        """A prompt, to its end."""
        sent = await self.ask("prompt.submit", session_id=key, text=text, **more)
        return await self.until("message.complete", uid=sent["uid"])

    async def leave(self) -> None:
        self._came.put_nowait(None)
        await self.attended


def result(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise Refused(answer["error"])
    return answer["result"]


class Desk:
    """A server with a model that says what it is told."""

    def __init__(self, db: AsyncSessionDB, server: serving.RpcServer, home: approvals.House) -> None:
        self.db, self.server, self.home = db, server, home
        self._callers: list[Caller] = []

    async def caller(self, limits: frames.FrameLimits = frames.DEFAULT_LIMITS) -> Caller:
        caller = Caller(self.server, limits)
        self._callers.append(caller)
        await caller.until("ready")
        return caller

    async def leave(self) -> None:
        for caller in self._callers:
            caller.reads.set()
            await caller.leave()


@asynccontextmanager
async def served(
    db: AsyncSessionDB,
    script: Any = (),
    *,
    grace: float = FOR_EVER,
    look: float = FOR_EVER,
    model: Any = None,
    **given: Any,
) -> AsyncIterator[Desk]:
    home = approvals.House(db, [], **given)
    home.model = model or ScriptedModel(script, window=WINDOW)
    async with home.door, serving.RpcServer(home.door, grace_seconds=grace, poll_seconds=look) as server:
        desk = Desk(db, server, home)
        try:
            yield desk
        finally:
            await desk.leave()


@asynccontextmanager
async def client(script: Any = (), *, target: str = ":memory:", **given: Any) -> AsyncIterator[tuple[Desk, Caller]]:
    """Serve a store of its own, and connect one client; there may be others."""
    async with agents.store(target) as db, served(db, script, **given) as desk:
        yield desk, await desk.caller()


def run(
    story: Callable[[Desk, Caller], Awaitable[None]], script: Any = (), *, target: str = ":memory:", **given: Any
) -> None:
    """Run a coroutine function with a client, in an event loop of its own."""

    async def with_client() -> None:
        async with client(script, target=target, **given) as (desk, caller):
            await story(desk, caller)

    asyncio.run(with_client())


async def refusal(asking: Awaitable[Any]) -> Refused:
    try:
        answered = await asking
    except Refused as error:
        return error
    raise AssertionError(f"It was not refused: {answered}")


async def no_row(db: AsyncSessionDB, session_id: str) -> bool:
    try:
        await db.head(session_id)
    except errors.NoSuchSession:
        return True
    return False
