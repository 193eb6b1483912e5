"""A runtime with one tool that needs approval, and the audit log of its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from holdfast import AIAgent, AsyncSessionDB, events, types
from holdfast.agent import approvals
from holdfast.model import ScriptedModel, base
from holdfast.runtime import runtime
from holdfast.tools import base as tools
from holdfast.tools.permissions import risks, rules
from tests.support import agents
from tests.support.runtimes import events_until


class Shell:
    """A shell tool that records its commands instead of running them."""

    def __init__(self, go: Callable[[], Awaitable[str]] | None = None) -> None:
        self.ran: list[str] = []
        self._go = go

    @property
    def tool(self) -> tools.Tool:
        schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
        return tools.Tool(types.ToolSpec("shell", "Runs a command.", schema), self._plan)

    async def _plan(self, arguments: dict[str, Any]) -> tools.Plan:
        line = arguments["command"]
        commands, danger = risks.describe(line)

        async def go() -> types.Content:
            self.ran.append(line)
            return await self._go() if self._go else "It ran."

        act = tools.Act(tool="shell", kind="run", summary=f"Run {line}.", detail=line, commands=commands, danger=danger)
        return tools.Plan(act, go)


def shell_reply(line: str, name: str = "c1") -> base.Reply:
    """Return a reply that calls the shell tool."""
    return base.Reply(calls=(types.ToolCall(name, "shell", {"command": line}),), usage=types.Usage(10, 5))


def policy(**patterns: list[str]) -> rules.Policy:
    """Return a policy of the rules given as `deny`, `ask` and `allow`."""
    effects: tuple[rules.Effect, ...] = ("deny", "ask", "allow")
    return rules.Policy(tuple(rules.parse_rule(kind, text) for kind in effects for text in patterns.get(kind, [])))


def shell_script(*lines: str) -> list[Any]:
    """Return the replies of a model that runs these commands one after the other and then says that it is done."""
    return [*(shell_reply(line, f"c{number}") for number, line in enumerate(lines, 1)), *["Done."] * 3]


class ApprovalRuntime:
    """A runtime with the shell tool and its approvals."""

    def __init__(self, db: AsyncSessionDB, script: Sequence[Any], *, shell: Shell | None = None, **given: Any) -> None:
        self.db, self.shell = db, shell or Shell()
        poll = given.pop("poll_seconds", runtime.POLL_SECONDS)
        self.approvals = approvals.Approvals(db.permissions, law=given.pop("law", None), yes=given.pop("yes", False))
        self.model: base.Model = ScriptedModel(script)

        async def build(conversation_id: str) -> AIAgent:
            used = {"tools": [self.shell.tool], "approvals": self.approvals, **given}
            return agents.agent(db, self.model, session_id=conversation_id, **used)

        self.door = runtime.Runtime(db, build, approvals=self.approvals, poll_seconds=poll)

    async def __aenter__(self) -> Self:
        await self.door.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.door.__aexit__(*raised)

    @property
    def results(self) -> list[str]:
        """The results of its calls that the model got with its last request."""
        assert isinstance(self.model, ScriptedModel)
        return [str(each.content) for each in self.model.requests[-1].messages if each.role == "tool"]

    async def run_turn(self, conversation: str = "talk") -> events.TurnResult:
        """Send a message without a subscriber that can approve, and wait for its turn."""
        return await self.door.submit(conversation, events.Submit("go"))

    @asynccontextmanager
    async def question(self) -> AsyncIterator[Question]:
        """Send a message, wait for the first question, and for the end of the turn afterwards."""
        with self.door.subscribe("talk", can_approve=True) as stream:
            result = self.door.submit("talk", events.Submit("go"))
            yield Question(self, stream, await next_question(stream))
            self.result = await result
            stream.put(None)
            self.seen = [emitted.event async for emitted in stream]


class Question:
    """A pending question, and the subscriber that got it."""

    def __init__(self, host: ApprovalRuntime, stream: runtime.EventStream, asked: events.ApprovalAsked) -> None:
        self.stream, self.asked, self._runtime = stream, asked, host.door

    async def answer(self, answer: Any, by: str = "me", reason: str = "", conversation: str = "talk") -> None:
        await self._runtime.send(conversation, events.Approve(self.asked.request_id, answer, by, reason))

    async def next(self) -> None:
        """Wait for the next question."""
        self.asked = await next_question(self.stream)


async def next_question(stream: runtime.EventStream) -> events.ApprovalAsked:
    """Return the next question that a subscriber gets."""
    last = (await events_until(stream, events.ApprovalAsked))[-1].event
    assert isinstance(last, events.ApprovalAsked)
    return last


async def audit_rows(db: AsyncSessionDB) -> list[tuple[str, bool, str, bool | None]]:
    """Return summary, decision, decider and success of every audited call, oldest first."""
    return [(each.summary, each.allowed, each.by, each.ok) for each in reversed(await db.permissions.audit_log())]
