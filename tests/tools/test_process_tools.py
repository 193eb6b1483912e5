"""The tools for processes, as a model calls them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, types
from holdfast.agent import approvals
from holdfast.tools import base, registry
from holdfast.tools.permissions import rules
from holdfast.tools.shell import background, background_tools
from tests.support.processes import Leash, PaperBook, everything

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="daemons are only found on Linux")


class Model:
    """Calls tools in one conversation."""

    def __init__(self, leash: Leash, folder: Path) -> None:
        self.known = background.BackgroundProcesses(
            PaperBook(folder / "book"), str(folder / "home"), lambda: leash.environment
        )
        self.tools = background_tools.tools(self.known, [str(folder)])
        self.conversation = "c"
        self.gate: base.Gate = everything

    async def __call__(self, tool: str, **arguments: Any) -> str:
        with base.calling(base.Calling("x", self.conversation)):
            result = await registry.Registry(self.tools, self.gate).run(types.ToolCall("x", tool, arguments))
        return str(result.content)

    async def start(self, command: str, **more: Any) -> str:
        said = await self("start_process", command=command, **more)
        return said.removeprefix("Started as process ").removesuffix(".")


Story = Callable[[Model], Awaitable[None]]


@pytest.fixture
def play(leash: Leash, tmp_path: Path) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def whole() -> None:
            model = Model(leash, tmp_path)
            try:
                await story(model)
            finally:
                for process in await model.known.records.every(None, True):
                    await model.known.stop(process)

        asyncio.run(whole())

    return run


def test_from_start_to_end(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        assert await model("list_processes") == "There are no processes."
        name = await model.start("read x; echo got $x; exit 4", input=True)
        assert re.fullmatch(r"p[0-9a-f]{8}", name)
        assert re.fullmatch(rf"{name}  running, \d+ s  'read x; echo got \$x; exit 4'", await model("list_processes"))
        assert await model("wait_process", id=name, seconds=0) == f"[process {name}: running; bytes 0-0 of 0]"
        assert await model("write_process", id=name, text="hello\n") == "Written."
        assert (
            await model("wait_process", id=name) == f"[process {name}: exited with code 4; bytes 0-10 of 10]\ngot hello"
        )
        assert f"{name}  exited with code 4" in await model("list_processes")
        assert "does not read" in await model("write_process", id=name, text="more\n")

    play(story)


def test_output_is_read_on_from_where_one_was(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        name = await model.start("printf 0123456789; exit")
        await model("wait_process", id=name)
        assert (await model("read_process", id=name, length=4)).endswith("bytes 6-10 of 10]\n6789")
        assert (await model("read_process", id=name, from_byte=2, length=3)).endswith("bytes 2-5 of 10]\n234")
        assert (await model("read_process", id=name, from_byte=99)).endswith("bytes 10-10 of 10]")
        assert "must be at least" in await model("read_process", id=name, from_byte=-1)
        assert "must be at least" in await model("read_process", id=name, length=0)

    play(story)


def test_an_input_is_closed_when_asked(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        name = await model.start("cat; echo end", input=True)
        assert await model("write_process", id=name, text="last", end=True) == "Written. Its input is closed."
        assert (await model("wait_process", id=name)).endswith("\nlastend")
        without = await model.start("sleep 1000")
        assert "is closed" in await model("write_process", id=without, text="x")

    play(story)


def test_a_kill_says_how_it_ended(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        name = await model.start("trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait")
        while "up" not in await model("read_process", id=name):
            await asyncio.sleep(0.01)
        said = await model("kill_process", id=name)
        assert said.startswith(f"[process {name}: killed with code 0;")
        assert said.endswith("up\nbye")

    play(story)


def test_a_conversation_sees_and_stops_its_own_only(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        name = await model.start("sleep 1000", input=True)
        model.conversation = "other"
        assert await model("list_processes") == "There are no processes."
        for tool, more in (("read", {}), ("wait", {}), ("kill", {}), ("write", {"text": "x"})):
            assert "There is no process" in await model(f"{tool}_process", id=name, **more)
        model.conversation = "c"
        assert "running" in await model("list_processes")

    play(story)


def test_to_start_and_to_write_need_permission_to_stop_does_not(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        name = await model.start("cat", input=True)
        model.gate = registry.allow_reads_only
        assert "Not allowed" in await model("start_process", command="true")
        assert "Not allowed" in await model("write_process", id=name, text="x\n")
        assert (await model("read_process", id=name)).endswith("bytes 0-0 of 0]")
        assert "killed" in await model("kill_process", id=name)
        assert len(await model.known.records.every("c", False)) == 1

    play(story)


def test_input_is_asked_for_every_time_and_not_covered_by_a_yes_to_everything(
    play: Callable[[Story], None], tmp_path: Path
) -> None:
    """To a shell it is a command that nobody looked at."""

    async def story(model: Model) -> None:
        async with AsyncSessionDB(SessionDB(":memory:")) as db:
            await db.create_session("c", source="test")
            yes = approvals.Approvals(db.permissions, yes=True)
            model.gate = yes.gate(lambda: "c", lambda _: None)
            name = await model.start("cat > read; bash read", input=True)
            refused = await model("write_process", id=name, text="touch ran\n", end=True)
            assert "Not allowed" in refused
            assert "dangerous" in refused
            assert not (tmp_path / "ran").exists()
            # Neither does a rule that allows the tool, nor is there anything to remember.
            law = rules.Policy((rules.parse_rule("allow", "write_process"),))
            act = base.Act(tool="write_process", kind="run", summary="", danger=background_tools.INPUT_RISK)
            assert rules.decide(act, law).effect == "ask"
            assert rules.decide(act, law).grants == ()
            assert [(each.tool, each.allowed) for each in await db.permissions.audit_log()] == [
                ("write_process", False), ("start_process", True)
            ]  # fmt: skip

    play(story)


def test_what_a_redacted_process_wrote_cannot_be_read(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        name = await model.start("echo key=17")
        assert "key=17" in await model("wait_process", id=name)
        book = model.known.records
        assert isinstance(book, PaperBook)
        book.redact(name)
        for tool in ("read", "wait", "kill"):
            said = await model(f"{tool}_process", id=name)
            assert said.startswith(f"[process {name}: exited with code 0]")
            assert "redacted" in said
            assert "17" not in said.partition("\n")[2]
        assert (await model("read_process", id=name, from_byte=0)).count("17") == name.count("17")
        assert (await model("list_processes")).endswith("  redacted")

    play(story)


def test_waiting_can_be_cancelled_and_the_process_goes_on(play: Callable[[Story], None]) -> None:
    async def story(model: Model) -> None:
        name = await model.start("sleep 1000")
        waiting = asyncio.create_task(model("wait_process", id=name, seconds=600))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert "running" in await model("list_processes")

    play(story)


@pytest.mark.parametrize(
    ("tool", "wrong"),
    [
        ("start_process", {"command": ""}),
        ("start_process", {"command": "x\0"}),
        ("start_process", {"command": "x", "folder": ".."}),
        ("wait_process", {"id": "p1", "seconds": -1}),
        ("read_process", {"id": "../../etc"}),
    ],
)
def test_wrong_arguments_are_told(play: Callable[[Story], None], tool: str, wrong: dict[str, Any]) -> None:
    async def story(model: Model) -> None:
        assert (await model(tool, **wrong)).startswith("Error: ")

    play(story)
