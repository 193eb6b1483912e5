"""How far things go without a word: a mode widens or narrows what is done, and forbids nothing that it cannot see."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, types
from holdfast.agent import approvals
from holdfast.model import ScriptedModel, port
from holdfast.tools import permits
from holdfast.tools import port as tools
from tests.agent import house, stage


class Change:
    """A tool that only notes what it would have changed."""

    def __init__(self, danger: str = "") -> None:
        self.done, self._danger = 0, danger

    @property
    def tool(self) -> tools.Tool:
        return tools.Tool(types.ToolSpec("write_file", "Writes.", {"type": "object", "properties": {}}), self._plan)

    async def _plan(self, _: dict[str, Any]) -> tools.Plan:
        async def go() -> types.Content:
            self.done += 1
            return "Written."

        act = tools.Act(tool="write_file", kind="change", summary="Write.", paths=("/p/a",), danger=self._danger)
        return tools.Plan(act, go)


def acted(mode: approvals.Mode, change: Change, law: permits.Law | None = None) -> tuple[int, list[str], list[Any]]:
    """Let a model write a file and run a command where nobody answers: what was done, and the audit."""
    shell = house.Shell()
    calls = (types.ToolCall("c1", "write_file", {}), types.ToolCall("c2", "shell", {"command": "make"}))

    async def story(db: AsyncSessionDB) -> list[Any]:
        permissions = approvals.Approvals(db, law=law)
        permissions.mode = mode
        model = ScriptedModel([port.Reply(calls=calls, usage=types.Usage(1, 1)), "done"])
        agent: AIAgent = stage.agent(db, model, tools=[change.tool, shell.tool], approvals=permissions)
        await agent.run_conversation("go")
        return [(each.tool, each.allowed, each.by) for each in reversed(await db.audit())]

    audit = stage.run(story)
    return change.done, shell.ran, audit


def test_code_changes_files_and_runs_nothing_unasked() -> None:
    done, ran, audit = acted("code", Change())
    assert (done, ran) == (1, [])
    assert audit == [("write_file", True, "mode: code"), ("shell", False, "nobody")]


def test_ask_does_neither_unasked() -> None:
    assert acted("ask", Change())[:2] == (0, [])


def test_read_only_does_nothing_that_a_rule_allows_either() -> None:
    allowed = house.law(allow=["write_file", "shell"])
    done, ran, audit = acted("read-only", Change(), allowed)
    assert (done, ran) == (0, [])
    assert [each[2] for each in audit] == ["mode: read-only"] * 2


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (Change("Look twice."), None),
        (Change(), house.law(deny=["write_file"])),
        (Change(), house.law(ask=["write_file"])),
    ],
)
def test_code_does_not_change_what_is_dangerous_or_forbidden_or_to_be_asked_for(
    change: Change, law: permits.Law | None
) -> None:
    assert acted("code", change, law)[0] == 0
