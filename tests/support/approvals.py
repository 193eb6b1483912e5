"""A house with one tool in it, whose permissions are asked for: what tests of approvals share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, events, types
from holdfast.agent import approvals
from holdfast.model import ScriptedModel, base
from holdfast.runtime import runtime
from holdfast.tools import base as tools
from holdfast.tools.permissions import risks, rules
from tests.support import agents
from tests.support.runtimes import events_until


class Shell:
    """A tool that only notes what it would have run."""

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


def runs(line: str, name: str = "c1") -> base.Reply:
    return base.Reply(calls=(types.ToolCall(name, "shell", {"command": line}),), usage=types.Usage(10, 5))


def law(**said: list[str]) -> rules.Policy:
    says: tuple[rules.Effect, ...] = ("deny", "ask", "allow")
    return rules.Policy(tuple(rules.parse_rule(say, text) for say in says for text in said.get(say, [])))


class House:
    """A runtime, its permissions, and the tool."""

    def __init__(self, db: AsyncSessionDB, script: list[Any], *, shell: Shell | None = None, **given: Any) -> None:
        self.db, self.shell = db, shell or Shell()
        self.approvals = approvals.Approvals(
            given.pop("book", db.permissions), law=given.pop("law", None), yes=given.pop("yes", False)
        )
        self.model = ScriptedModel(script)

        async def build(conversation_id: str) -> AIAgent:
            return agents.agent(
                db, self.model, session_id=conversation_id, tools=[self.shell.tool], approvals=self.approvals, **given
            )

        self.door = runtime.Runtime(db, build, approvals=self.approvals)

    @property
    def results(self) -> list[str]:
        """What the model was told of its calls, in its last request."""
        return [str(each.content) for each in self.model.requests[-1].messages if each.role == "tool"]


async def asked(listening: runtime.EventStream) -> events.ApprovalAsked:
    last = (await events_until(listening, events.ApprovalAsked))[-1].event
    assert isinstance(last, events.ApprovalAsked)
    return last


async def audit(db: AsyncSessionDB) -> list[tuple[str, bool, str, bool | None]]:
    """What the audit has, oldest first: what, whether it was allowed, by whom, and how it ended."""
    return [(each.summary, each.allowed, each.by, each.ok) for each in reversed(await db.permissions.audit_log())]
