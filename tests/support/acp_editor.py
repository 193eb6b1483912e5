"""An editor in memory that checks every frame against the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, errors
from holdfast.acp import channel, plans, server
from holdfast.acp import session as sessions
from holdfast.agent import approvals as permissions
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.tools import base
from tests.support import acp_schema, agents, approvals, rpc_peers

FOLDER = "/"
ONCE = {"outcome": {"outcome": "selected", "optionId": "once"}}


class Refused(Exception):
    """A response with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]


class Program:
    """A program with a scripted model and one tool; it opens a runtime for each session."""

    def __init__(self, db: AsyncSessionDB, model: Any, tools: Sequence[base.Tool] | None = None, **given: Any) -> None:
        self.db, self.model, self.shell = db, model, approvals.Shell()
        self._options = {name: given.pop(name) for name in ("prompt_commands", "poll_seconds") if name in given}
        self.limits = {name: given.pop(name) for name in ("max_sessions", "page_size") if name in given}
        self._given = given
        self._tools = [self.shell.tool] if tools is None else [*tools]
        self.places: list[sessions.SessionSpec] = []
        self.clients: list[Any] = []
        self.runtimes: list[runtime.Runtime] = []
        self.open = 0
        self.choice = agents.ModelChoice(model, ScriptedModel(["the other one"] * 9, name="other/model"))

    async def models(self) -> Sequence[str]:
        return await self.choice.listed()

    @asynccontextmanager
    async def open_runtime(self, place: sessions.SessionSpec, client: Any) -> AsyncIterator[runtime.Runtime]:
        required = permissions.Approvals(self.db.permissions)

        async def build(conversation_id: str) -> AIAgent:
            given = {"folder": place.folders[0], "tools": [*self._tools, plans.TOOL], "approvals": required}
            model = self.choice.of(conversation_id)
            return agents.agent(self.db, model, session_id=conversation_id, **given, **self._given)

        self.places.append(place)
        self.clients.append(client)
        self.open += 1
        try:
            async with runtime.Runtime(self.db, build, approvals=required, models=self.choice, **self._options) as run:
                self.runtimes.append(run)
                yield run
        finally:
            self.open -= 1


class Editor(rpc_peers.MemoryChannel):
    """The editor's end of a channel. `answer` returns the result of a permission request, or None for no answer."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self._asked: dict[Any, asyncio.Future[Any]] = {}
        self._more = asyncio.Condition()
        self._seen = self.number = 0
        self._wire = acp_schema.Wire()
        self.frames: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Any] = lambda _: ONCE
        self.reads = asyncio.Event()
        self.reads.set()
        self.serving: asyncio.Task[None]

    async def send(self, frame: bytes) -> None:
        if self.broken.is_set():
            raise errors.Gone()
        message = json.loads(frame)
        self._wire.got(message)
        self.frames.append(message)
        await self.reads.wait()
        if "method" not in message:
            if (waiting := self._asked.pop(message["id"], None)) is not None:
                waiting.set_result(message)
        elif message["method"] == "session/request_permission":
            self.questions.append(message["params"])
            if (result := self.answer(message["params"])) is not None:
                self.say({"jsonrpc": "2.0", "id": message["id"], "result": result})
        async with self._more:
            if message.get("method") == "session/update":
                self.updates.append(message["params"])
            self._more.notify_all()

    def say(self, frame: dict[str, Any]) -> None:
        self._wire.sent(frame)
        self.raw(json.dumps(frame).encode())

    def raw(self, line: bytes) -> None:
        self.inbound.put_nowait(line)

    def vanish(self) -> None:
        """Read nothing more, without notice."""
        self.broken.set()

    def leave(self) -> None:
        self.inbound.put_nowait(None)

    def asking(self, method: str, **params: Any) -> asyncio.Future[Any]:
        return self.put(method, params)

    def put(self, method: str, params: Any) -> asyncio.Future[Any]:
        """Send a request, with params of any kind; return its response."""
        self.number += 1
        answered = self._asked[self.number] = asyncio.get_running_loop().create_future()
        self.say({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        return answered

    def notify(self, method: str, **params: Any) -> None:
        self.say({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, **params: Any) -> Any:
        return result(await self.put(method, params))

    async def new(self, cwd: str = FOLDER, **more: Any) -> str:
        return str((await self.ask("session/new", cwd=cwd, mcpServers=[], **more))["sessionId"])

    def prompting(self, session: str, text: str) -> asyncio.Future[Any]:
        return self.asking("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def prompt(self, session: str, text: str) -> str:
        return str(result(await self.prompting(session, text))["stopReason"])

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return the next update of this kind with these fields, after those that were waited for before."""
        async with self._more:
            while True:
                while self._seen < len(self.updates):
                    self._seen += 1
                    update = self.updates[self._seen - 1]["update"]
                    if update["sessionUpdate"] == kind and fields.items() <= update.items():
                        return update
                await self._more.wait()

    async def wait_question(self) -> None:
        """Wait until a permission request was received."""
        async with self._more:
            await self._more.wait_for(lambda: self.questions)

    def received(self, *kinds: str, session: str | None = None) -> list[dict[str, Any]]:
        """Return the updates of these kinds so far."""
        mine = [each["update"] for each in self.updates if session in (None, each["sessionId"])]
        return [each for each in mine if each["sessionUpdate"] in kinds]

    def text(self, kind: str = "agent_message_chunk", session: str | None = None) -> str:
        return "".join(each["content"].get("text", "") for each in self.received(kind, session=session))

    def statuses(self) -> dict[str, str]:
        """Return the last status of each tool call."""
        updates = self.received("tool_call", "tool_call_update")
        return {each["toolCallId"]: each["status"] for each in updates if each.get("status")}

    def open_calls(self, session: str) -> set[str]:
        return self._wire.open_calls(session)


def result(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise Refused(answer["error"])
    return answer["result"]


@asynccontextmanager
async def connect(program: Program, **capabilities: Any) -> AsyncIterator[Editor]:
    """Serve an initialized editor; it disconnects at the end of the block."""
    editor = Editor(program)
    wire = channel.EditorChannel(editor, "1.0")
    greeted = editor.asking("initialize", protocolVersion=1, clientCapabilities=capabilities)
    assert await wire.wait_initialized()
    await greeted

    serving = editor.serving = asyncio.create_task(server.serve(server.EditorServer(program, **program.limits), wire))
    try:
        yield editor
    finally:
        editor.reads.set()
        editor.leave()
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()


@asynccontextmanager
async def open_editor(script: Any = (), *, model: Any = None, **given: Any) -> AsyncIterator[Editor]:
    """Serve an editor with a new store; at the end all sessions must be closed and the store be valid."""
    async with agents.store() as db:
        program = Program(db, model or ScriptedModel(script), **given)
        async with connect(program) as editor:
            yield editor
        assert program.open == 0


async def refusal(asking: Awaitable[Any]) -> Refused:
    try:
        answered = await asking
    except Refused as error:
        return error
    raise AssertionError(f"The request was not refused: {answered}")
