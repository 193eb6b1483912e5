"""Approval modes: `code` allows file changes without a question, `read-only` allows no change at all."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.agent import approvals
from holdfast.agent import memory as agent_memory
from holdfast.model import ScriptedModel, base
from holdfast.tools import base as tools
from holdfast.tools import decorator, memory, plugins
from holdfast.tools.permissions import rules
from tests.support import agents
from tests.support.approvals import ApprovalRuntime, Shell, audit_rows, policy, shell_script


async def run_calls(
    db: AsyncSessionDB, mode: approvals.Mode, *calls: tuple[tools.Tool, dict[str, Any]], law: rules.Policy | None = None
) -> tuple[list[str], list[tuple[str, bool, str]]]:
    """Let a model make these calls without an approver; return the results and the audit log."""
    permissions = approvals.Approvals(db.permissions, law=law)
    permissions.set_mode(mode)
    made = tuple(types.ToolCall(f"c{n}", tool.spec.name, given) for n, (tool, given) in enumerate(calls))
    model = ScriptedModel([base.Reply(calls=made, usage=types.Usage(1, 1)), "done"])
    agent = agents.agent(db, model, tools=[tool for tool, _ in calls], approvals=permissions)
    result = await agent.run_conversation("go")
    audit = [(each.tool, each.allowed, each.by) for each in reversed(await db.permissions.audit_log())]
    return [str(each.content) for each in result.messages if each.role == "tool"], audit


def write_tool(danger: str = "") -> tools.Tool:
    """Return a tool that pretends to write a file."""

    async def plan(_: dict[str, Any]) -> tools.Plan:
        async def go() -> types.Content:
            return "Written."

        act = tools.Act(tool="write_file", kind="change", summary="Write.", paths=("/p/a",), danger=danger)
        return tools.Plan(act, go)

    return tools.Tool(types.ToolSpec("write_file", "Writes.", {"type": "object", "properties": {}}), plan)


@pytest.mark.parametrize(
    ("mode", "law", "danger", "deciders"),
    [
        ("code", None, "", ["mode: code", "no approver"]),
        ("code", None, "Look twice.", ["no approver", "no approver"]),
        ("code", policy(deny=["write_file"]), "", ["rule: deny write_file", "no approver"]),
        ("code", policy(ask=["write_file"]), "", ["no approver", "no approver"]),
        ("ask", None, "", ["no approver", "no approver"]),
        ("read-only", policy(allow=["write_file", "shell"]), "", ["mode: read-only", "mode: read-only"]),
    ],
)
async def test_mode_decides_for_file_changes_and_commands(
    mode: approvals.Mode, law: rules.Policy | None, danger: str, deciders: list[str], db: AsyncSessionDB
) -> None:
    shell = Shell()
    written, audit = await run_calls(db, mode, (write_tool(danger), {}), (shell.tool, {"command": "make"}), law=law)
    assert [(allowed, by) for _, allowed, by in audit] == [(by == "mode: code", by) for by in deciders]
    assert ("Written." in written) == (deciders[0] == "mode: code")
    assert shell.ran == []


@pytest.mark.parametrize("action", ["remember", "revise", "forget", "list"])
async def test_read_only_lists_notes_and_changes_none(action: str, db: AsyncSessionDB) -> None:
    note = await db.memory.add("", "Likes tea.")
    call = (memory.memory(agent_memory.Notes(db, "")), {"action": action, "text": "x", "id": note.id})
    (result,), audit = await run_calls(db, "read-only", call)
    assert await db.memory.all("") == [note]
    if action == "list":
        assert note.text in result
    else:
        assert approvals.READ_ONLY in result
        assert audit == [("memory", False, "mode: read-only")]


@pytest.mark.parametrize(
    ("mode", "parallel", "runs"), [("ask", False, True), ("read-only", False, False), ("read-only", True, True)]
)
async def test_read_only_runs_plugins_only_if_they_declare_no_changes(
    mode: approvals.Mode, parallel: bool, runs: bool, db: AsyncSessionDB
) -> None:
    @decorator.tool(parallel=parallel)
    def launch() -> str:
        """Launches."""
        return "Off it goes."

    (result,), _ = await run_calls(db, mode, (plugins.assume_changes(launch), {}))
    assert (result == "Off it goes.") is runs
    assert (approvals.READ_ONLY in result) is not runs


@pytest.mark.parametrize("approved", [False, True])
async def test_pending_call_is_not_run_after_a_change_to_read_only(approved: bool, db: AsyncSessionDB) -> None:
    async with ApprovalRuntime(db, shell_script("make")) as host, host.question() as question:
        if approved:  # and the call has not started yet
            await question.answer("once")
        host.approvals.set_mode("read-only")
    assert host.shell.ran == []
    assert await audit_rows(db) == [("make", False, "mode: read-only", None)]


async def test_allowed_call_is_not_run_if_the_mode_changes_while_it_is_audited(db: AsyncSessionDB) -> None:
    shell, permissions = Shell(), approvals.Approvals(db.permissions, law=policy(allow=["shell"]))
    begin = db.permissions.begin_audit

    async def change_mode(*given: Any) -> int:
        permissions.set_mode("read-only")
        return await begin(*given)

    db.permissions.begin_audit = change_mode  # type: ignore[method-assign]
    model = ScriptedModel(shell_script("make"))
    await agents.agent(db, model, tools=[shell.tool], approvals=permissions).run_conversation("go")
    assert shell.ran == []
    refused, begun = await db.permissions.audit_log()
    assert (refused.allowed, refused.by) == (False, "mode: read-only")
    assert (begun.allowed, begun.ok) == (True, False)
