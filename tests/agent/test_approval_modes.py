"""How far things go without a word: a mode widens or narrows what is done, and forbids nothing that it cannot see."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, events, types
from holdfast.agent import approvals
from holdfast.model import ScriptedModel, base
from holdfast.tools import base as tools
from holdfast.tools import decorator, memory, plugins
from holdfast.tools.permissions import rules
from tests.support import agents
from tests.support import approvals as house


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


def acted(mode: approvals.Mode, change: Change, law: rules.Policy | None = None) -> tuple[int, list[str], list[Any]]:
    """Let a model write a file and run a command where nobody answers: what was done, and the audit."""
    shell = house.Shell()
    calls = (types.ToolCall("c1", "write_file", {}), types.ToolCall("c2", "shell", {"command": "make"}))

    async def story(db: AsyncSessionDB) -> list[Any]:
        permissions = approvals.Approvals(db.permissions, law=law)
        permissions.set_mode(mode)
        model = ScriptedModel([base.Reply(calls=calls, usage=types.Usage(1, 1)), "done"])
        agent: AIAgent = agents.agent(db, model, tools=[change.tool, shell.tool], approvals=permissions)
        await agent.run_conversation("go")
        return [(each.tool, each.allowed, each.by) for each in reversed(await db.permissions.audit_log())]

    audit = agents.run(story)
    return change.done, shell.ran, audit


def called(mode: approvals.Mode, tool: tools.Tool, **arguments: Any) -> tuple[str, list[Any]]:
    """Let a model call a tool: what it was told, and the audit."""
    call = types.ToolCall("c1", tool.spec.name, arguments)

    async def story(db: AsyncSessionDB) -> tuple[str, list[Any]]:
        permissions = approvals.Approvals(db.permissions)
        permissions.set_mode(mode)
        model = ScriptedModel([base.Reply(calls=(call,), usage=types.Usage(1, 1)), "done"])
        result = await agents.agent(db, model, tools=[tool], approvals=permissions).run_conversation("go")
        told = next(str(each.content) for each in result.messages if each.role == "tool")
        return told, [(each.tool, each.allowed, each.by) for each in await db.permissions.audit_log()]

    return agents.run(story)


class Notes:
    """Notes that nobody may take."""

    def __init__(self) -> None:
        self.asked = list[str]()

    async def memories(self) -> list[types.Memory]:
        self.asked.append("list")
        return []

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize("action", ["remember", "revise", "forget"])
def test_read_only_notes_nothing(action: str) -> None:
    told, audit = called("read-only", memory.memory(Notes()), action=action, text="x", id=1)
    assert approvals.READ_ONLY in told
    assert audit == [("memory", False, "mode: read-only")]


def test_read_only_reads_what_was_noted() -> None:
    notes = Notes()
    assert "Nothing is remembered" in called("read-only", memory.memory(notes), action="list")[0]
    assert notes.asked == ["list"]


@pytest.mark.parametrize("mode", ["ask", "read-only"])
def test_read_only_does_nothing_of_which_it_is_not_known_what_it_does(mode: approvals.Mode) -> None:
    done = list[str]()

    @decorator.tool
    def launch() -> str:
        """Launches."""
        done.append("launched")
        return "Off it goes."

    found = plugins.assume_changes(launch)
    told, _ = called(mode, found)
    assert bool(done) == (mode == "ask")
    assert (approvals.READ_ONLY in told) == (mode == "read-only")


def test_read_only_runs_what_says_that_it_changes_nothing() -> None:
    @decorator.tool(parallel=True)
    def look() -> str:
        """Looks."""
        return "There it is."

    assert called("read-only", plugins.assume_changes(look))[0] == "There it is."


@pytest.mark.parametrize("late", [False, True])
async def test_what_is_asked_for_when_read_only_is_chosen_is_not_done(late: bool, db: AsyncSessionDB) -> None:
    home = house.House(db, [house.runs("make"), "a pity"])
    async with home.door as door:
        with door.subscribe("talk", can_approve=True) as heard:
            done = door.submit("talk", events.Submit("go"))
            question = await house.asked(heard)
            if late:
                # Somebody has said yes, and nothing has come of it yet.
                await home.approvals.answer("talk", events.Approve(question.request_id, "once", "me"))
            home.approvals.set_mode("read-only")
            await done
    assert home.shell.ran == []
    assert await house.audit(db) == [("make", False, "mode: read-only", None)]


async def test_what_a_rule_allows_is_not_done_where_read_only_is_chosen_while_it_is_written_down(
    db: AsyncSessionDB,
) -> None:
    shell, permissions = house.Shell(), approvals.Approvals(db.permissions, law=house.law(allow=["shell"]))
    begin = db.permissions.begin_audit

    async def chosen_meanwhile(*given: Any) -> int:
        permissions.set_mode("read-only")
        return await begin(*given)

    db.permissions.begin_audit = chosen_meanwhile  # type: ignore[method-assign]
    model = ScriptedModel([house.runs("make"), "a pity"])
    await agents.agent(db, model, tools=[shell.tool], approvals=permissions).run_conversation("go")
    assert shell.ran == []
    refused, begun = await db.permissions.audit_log()
    assert (refused.allowed, refused.by) == (False, "mode: read-only")
    assert (begun.allowed, begun.ok) == (True, False)


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
    change: Change, law: rules.Policy | None
) -> None:
    assert acted("code", change, law)[0] == 0
