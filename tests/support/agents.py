"""Support for tests of agents: a store in memory, a scripted model, recorded events, a settable clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from holdfast import AIAgent, AsyncSessionDB, SessionDB, errors, events, types
from holdfast.agent import settings
from holdfast.model import ScriptedModel, base
from holdfast.tools import base as tools
from tests.support import polling

T = TypeVar("T")


@asynccontextmanager
async def store(target: str = ":memory:", **options: Any) -> AsyncIterator[AsyncSessionDB]:
    """Open a store for a test, and check it afterwards."""
    async with AsyncSessionDB(SessionDB(target, **options)) as db:
        yield db
        assert (await db.admin.fsck()).ok


class LoopClock:
    """The clock of the running event loop, which a test advances: timers that are due by then run at once."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._ahead, real = 0.0, loop.time
        loop.time = lambda: real() + self._ahead  # type: ignore[method-assign]

    def advance(self, seconds: float) -> None:
        self._ahead += seconds

    async def finish(self, work: Awaitable[T], within: float = 60.0) -> T:
        """Advance the clock by at most `within` seconds, so that this ends; return its result."""
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        end = loop.time() + within

        def is_done() -> bool:
            # Afterwards the clock stands still: work may need real time, but no later timer runs.
            self.advance(min(0.5, end - loop.time()))
            return task.done()

        await polling.until_async(is_done, f"the end of {work} within {within} s of the clock")
        return await task


class ModelChoice:
    """Several models, by default `first` and `second`; the first answers until another one is chosen."""

    def __init__(self, *models: base.Model) -> None:
        default = [ScriptedModel([name] * 9, name=name) for name in ("first", "second")]
        self.models = {each.name: each for each in models or default}
        self.chosen: dict[str, str] = {}

    async def listed(self) -> Sequence[str]:
        return list(self.models)

    async def choose(self, conversation_id: str, name: str) -> base.Model:
        if name not in self.models:
            raise errors.SettingInvalid(f"{errors.quote(name)} is not a model name.")
        self.chosen[conversation_id] = name
        return self.models[name]

    def of(self, conversation_id: str) -> base.Model:
        return self.models[self.chosen.get(conversation_id, next(iter(self.models)))]

    def follow(self, conversation_id: str, origin: str) -> None:
        if origin in self.chosen:
            self.chosen[conversation_id] = self.chosen[origin]


GROUPS: dict[str, type[msgspec.Struct]] = {
    "compaction": settings.CompactionSettings,
    "memory": settings.MemorySettings,
    "conversation": settings.ConversationSettings,
    "turns": settings.TurnSettings,
}
SHORT_NAMES = {
    "compaction_policy": "policy", "remembers": "enabled", "reviews": "review", "memory": "text",
    "keep_folder": "record_folder", "patience": "wait_seconds", "lease_ttl": "lease_ttl_seconds",
    "approvals": "permissions", "more_tools": "tool_source",
}  # fmt: skip


def agent(db: AsyncSessionDB | SessionDB, model: base.Model, **given: Any) -> AIAgent:
    """An agent without retries; its settings are given without their groups, some by short names."""
    left = {SHORT_NAMES.get(name, name): value for name, value in given.items()}
    grouped: dict[str, Any] = {}
    for group, kind in GROUPS.items():
        grouped[group] = kind(**{name: left.pop(name) for name in kind.__struct_fields__ if name in left})
    return AIAgent(model, db=db, attempts=1, **grouped, **left)


def calls(*names: str, **arguments: str) -> base.Reply:
    """A reply that calls these tools, with ids that are their names."""
    made = tuple(types.ToolCall(name, name, arguments.get(name, "{}")) for name in names)
    return base.Reply(calls=made, usage=types.Usage(10, 5))


def tool(name: str, run: Callable[[dict[str, Any]], Awaitable[types.Content]], parallel: bool = True) -> tools.Tool:
    return tools.Tool(types.ToolSpec(name, f"Does {name}.", {"type": "object", "properties": {}}), run, parallel)


def says(name: str, text: str = "ok", parallel: bool = True) -> tools.Tool:
    async def run(_: dict[str, Any]) -> types.Content:
        return text

    return tool(name, run, parallel)


class Gate:
    """A tool that reports that it was called, and returns when `go` is set."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: object) -> types.Content:
        self.reached.set()
        await self.go.wait()
        return "ok"


class Stuck:
    """A model or tool that says so when it is reached, and then never ends."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.cancelled = False

    async def __call__(self, *_: object) -> types.Content:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return ""


def failing(error: BaseException) -> Callable[..., Awaitable[Any]]:
    """Return an asynchronous function that raises this error."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    return fail


class Trickle:
    """A model that sends some words or deltas and then hangs."""

    name = "trickle/model"

    def __init__(self, *parts: str | base.Delta, window: int = 1000) -> None:
        self.parts, self.window = parts, window
        self.stuck = Stuck()

    async def stream(self, request: base.Request):  # type: ignore[no-untyped-def]
        for part in self.parts:
            yield base.ContentDelta(part) if isinstance(part, str) else part
        await self.stuck()

    async def close(self) -> None:
        pass


def shape(messages: Sequence[types.Message]) -> list[tuple[str, str]]:
    """Roles, and what stands in them."""
    return [(each.role, ",".join(call.id for call in each.tool_calls) or str(each.content)) for each in messages]


def kinds(seen: Sequence[events.AnyEvent]) -> list[str]:
    return [type(event).__name__ for event in seen]


def turn_result(**given: Any) -> events.TurnResult:
    """Return the result of a completed turn, with these fields changed."""
    fields: dict[str, Any] = {
        "final_response": "",
        "messages": (types.Message(1, "u", "s", "user", 0.0, ""),),
        "api_calls": 1,
        "completed": True,
        "failed": False,
        "partial": False,
        "interrupted": False,
        "error": None,
        "exit_reason": "completed",
        "usage": types.Usage(),
        "session_id": "s",
        "conversation_id": "s",
    }
    return events.TurnResult(**{**fields, **given})
