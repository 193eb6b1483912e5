"""The tools for background processes, as a model calls them."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.agent import approvals
from holdfast.tools import base, registry
from holdfast.tools.permissions import rules
from holdfast.tools.shell import background_tools
from tests.support import polling
from tests.support.processes import BackgroundProgram, allow_all

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="daemons are only found on Linux")


class ToolCaller:
    """Calls the tools in one conversation."""

    def __init__(self, program: BackgroundProgram) -> None:
        self.records = program.records
        self.tools = background_tools.tools(program.processes, [str(program.folder)])
        self.conversation = "talk"
        self.gate: base.Gate = allow_all

    async def __call__(self, tool: str, **arguments: Any) -> str:
        with base.calling(base.Calling("x", self.conversation)):
            result = await registry.Registry(self.tools, self.gate).run(types.ToolCall("x", tool, arguments))
        return str(result.content)

    async def start(self, command: str, **more: Any) -> str:
        shown = await self("start_process", command=command, **more)
        return shown.removeprefix("Started as process ").removesuffix(".")


@pytest.fixture
def call(program: BackgroundProgram) -> ToolCaller:
    return ToolCaller(program)


async def test_process_is_started_written_to_waited_for_and_listed(call: ToolCaller) -> None:
    assert await call("list_processes") == "There are no processes."
    name = await call.start("read x; echo got $x; exit 4", input=True)
    assert re.fullmatch(r"p[0-9a-f]{8}", name)
    assert re.fullmatch(rf"{name}  running, \d+ s  'read x; echo got \$x; exit 4'", await call("list_processes"))
    assert await call("wait_process", id=name, seconds=0) == f"[process {name}: running; bytes 0-0 of 0]"
    assert await call("write_process", id=name, text="hello\n") == "Written."
    assert await call("wait_process", id=name) == f"[process {name}: exited with code 4; bytes 0-10 of 10]\ngot hello"
    assert f"{name}  exited with code 4" in await call("list_processes")
    assert "does not read" in await call("write_process", id=name, text="more\n")
    assert (await call("read_process", id=name, length=4)).endswith("bytes 6-10 of 10]\nllo")
    assert (await call("read_process", id=name, from_byte=2, length=3)).endswith("bytes 2-5 of 10]\nt h")
    assert (await call("read_process", id=name, from_byte=99)).endswith("bytes 10-10 of 10]")
    for tool, wrong in (("wait", {"seconds": -1}), ("read", {"length": 0}), ("read", {"id": "../../etc"})):
        assert (await call(f"{tool}_process", **{"id": name, **wrong})).startswith("Error: ")


async def test_input_is_closed_on_request(call: ToolCaller) -> None:
    name = await call.start("cat; echo end", input=True)
    assert await call("write_process", id=name, text="last", end=True) == "Written. Its input is closed."
    assert (await call("wait_process", id=name)).endswith("\nlastend")
    without = await call.start("sleep 1000")
    assert "is closed" in await call("write_process", id=without, text="x")


async def test_conversation_reaches_only_its_own_processes(call: ToolCaller) -> None:
    name = await call.start("sleep 1000", input=True)
    call.conversation = "other"
    assert await call("list_processes") == "There are no processes."
    for tool, more in (("read", {}), ("wait", {}), ("kill", {}), ("write", {"text": "x"})):
        assert "There is no process" in await call(f"{tool}_process", id=name, **more)
    call.conversation = "talk"
    # A cancelled wait leaves the process running, too.
    waiting = asyncio.create_task(call("wait_process", id=name, seconds=600))
    await asyncio.sleep(0.05)
    await polling.cancel(waiting)
    assert "running" in await call("list_processes")


async def test_start_and_write_need_approval_and_kill_does_not(call: ToolCaller) -> None:
    name = await call.start("cat", input=True)
    call.gate = registry.allow_reads_only
    assert "Not allowed" in await call("start_process", command="true")
    assert "outside of the workspace" in await call("start_process", command="true", folder="..")
    assert "Not allowed" in await call("write_process", id=name, text="x\n")
    assert (await call("read_process", id=name)).endswith("bytes 0-0 of 0]")
    assert "killed" in await call("kill_process", id=name)
    assert len(await call.records.every("talk", False)) == 1


async def test_input_is_covered_by_no_blanket_approval(call: ToolCaller, tmp_path: Path, db: AsyncSessionDB) -> None:
    """To a shell it is a command that no rule has checked."""
    await db.create_session("talk", source="test")
    call.gate = approvals.Approvals(db.permissions, yes=True).gate(lambda: "talk", lambda _: None)
    name = await call.start("cat > read; bash read", input=True)
    refused = await call("write_process", id=name, text="touch ran\n", end=True)
    assert "Not allowed" in refused
    assert "dangerous" in refused
    assert not (tmp_path / "ran").exists()
    act = base.Act(tool="write_process", kind="run", summary="", danger=background_tools.INPUT_RISK)
    decision = rules.decide(act, rules.Policy((rules.parse_rule("allow", "write_process"),)))
    assert (decision.effect, decision.grants) == ("ask", ())
    log = [(each.tool, each.allowed) for each in await db.permissions.audit_log()]
    assert log == [("write_process", False), ("start_process", True)]


async def test_output_of_a_redacted_process_cannot_be_read(call: ToolCaller) -> None:
    name = await call.start("echo key=17")
    assert "key=17" in await call("wait_process", id=name)
    call.records.redact(name)
    for tool in ("read", "wait", "kill"):
        shown = await call(f"{tool}_process", id=name)
        assert shown.startswith(f"[process {name}: exited with code 0]")
        assert "redacted" in shown
        assert "17" not in shown.partition("\n")[2]
    assert (await call("read_process", id=name, from_byte=0)).count("17") == name.count("17")
    assert (await call("list_processes")).endswith("  redacted")
