"""The whole program under an editor that offers files, terminals and servers of tools: each session has its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from acp import exceptions

from holdfast import config
from holdfast.acp import channel
from holdfast.app import acp as program
from tests.support import acp_editor, acp_sdk_client, mcp_servers, polling
from tests.support import processes as leashes

EVERYTHING = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}


class Editor(acp_editor.Editor):
    """It answers for its files and its terminals, too."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.desk = acp_sdk_client.Editor(session=None)
        self.working = set[asyncio.Task[None]]()
        self._does: dict[str, Callable[..., Awaitable[Any]]] = {
            "fs/read_text_file": self.desk.read_text_file,
            "fs/write_text_file": self.desk.write_text_file,
            "terminal/create": self.desk.create_terminal,
            "terminal/output": self.desk.terminal_output,
            "terminal/wait_for_exit": self.desk.wait_for_terminal_exit,
            "terminal/kill": self.desk.kill_terminal,
            "terminal/release": self.desk.release_terminal,
        }

    async def send(self, frame: bytes) -> None:
        await super().send(frame)
        said = self.frames[-1]
        if (doing := self._does.get(said.get("method", ""))) is not None:
            task = asyncio.create_task(self._do(said["id"], doing, said["params"]))
            self.working.add(task)
            task.add_done_callback(self.working.discard)

    async def _do(self, number: Any, doing: Callable[..., Awaitable[Any]], params: dict[str, Any]) -> None:
        names = {"sessionId": "session_id", "terminalId": "terminal_id", "outputByteLimit": "output_byte_limit"}
        try:
            made = await doing(**{names.get(name, name): value for name, value in params.items()})
        except exceptions.RequestError as error:
            self.say({"jsonrpc": "2.0", "id": number, "error": error.to_error_obj()})
            return
        done = made.model_dump(mode="json", by_alias=True, exclude_none=True) if made is not None else {}
        self.say({"jsonrpc": "2.0", "id": number, "result": done})


def run(story: Callable[[Editor], Awaitable[None]], home: Path, offered: dict[str, Any]) -> None:
    """An editor that offers this, served by the program with its offline model."""
    settings = config.Settings(
        home=str(home), database=str(home / "store.db"), colour=False, columns=None, model="offline"
    )

    async def told() -> None:
        person = Editor()
        wire = channel.EditorChannel(person, "1.0")
        greeted = person.asking("initialize", protocolVersion=1, clientCapabilities=offered)
        assert await wire.wait_initialized()
        await greeted
        serving = asyncio.create_task(program.serve(wire, settings))
        try:
            await story(person)
        finally:
            person.leave()
            await serving

    asyncio.run(told())


def test_what_is_not_saved_is_read_and_a_command_is_seen_in_a_terminal(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("saved\n")

    async def story(editor: Editor) -> None:
        session = await editor.new(str(project))
        editor.desk.buffers[str(project / "a.txt")] = "not saved\n"
        assert await editor.prompt(session, "read a.txt") == "end_turn"
        call = editor.received("tool_call")[-1]
        assert call["locations"] == [{"path": str(project / "a.txt")}]
        assert "1\tnot saved" in editor.text()
        assert await editor.prompt(session, "run echo here; pwd") == "end_turn"
        shown = [each for each in editor.received("tool_call_update") if each.get("content")]
        assert {"type": "terminal", "terminalId": "terminal-1"} in shown[-1]["content"]
        assert shown[-1]["status"] == "completed"
        assert f"here\n{project}\n[exit code 0]" in editor.text()
        assert editor.desk.terminals == {}

    run(story, tmp_path / "home", EVERYTHING)


def test_what_an_editor_offers_late_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("saved\n")

    async def story(editor: Editor) -> None:
        await editor.asking("initialize", protocolVersion=1, clientCapabilities=EVERYTHING)
        session = await editor.new(str(tmp_path))
        editor.desk.buffers[str(tmp_path / "a.txt")] = "not saved\n"
        await editor.prompt(session, "read a.txt")
        assert "1\tnot saved" in editor.text()

    run(story, tmp_path / "home", {})


def test_an_editor_that_offers_nothing_is_asked_for_nothing(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("saved\n")

    async def story(editor: Editor) -> None:
        session = await editor.new(str(project))
        await editor.prompt(session, "read a.txt")
        await editor.prompt(session, "run echo here")
        assert "1\tsaved" in editor.text()
        assert "here\n[exit code 0]" in editor.text()
        assert editor.desk.asked == []

    run(story, tmp_path / "home", {})


@pytest.mark.parametrize("method", ["session/close", "session/load"])
def test_a_terminal_that_comes_behind_its_session_is_let_go_of(tmp_path: Path, method: str) -> None:
    async def story(editor: Editor) -> None:
        asked, come = asyncio.Event(), asyncio.Event()

        async def before(method: str) -> None:
            if method == "create":
                asked.set()
                await come.wait()

        editor.desk.before = before
        session = await editor.new(str(tmp_path))
        prompting = editor.prompting(session, "run touch done")
        await asked.wait()
        more = {"cwd": str(tmp_path), "mcpServers": []} if method == "session/load" else {}
        await editor.ask(method, sessionId=session, **more)
        assert acp_editor.result(await prompting)["stopReason"] == "cancelled"
        come.set()
        async with asyncio.timeout(60):
            await polling.until_async(lambda: editor.desk.asked == ["create", "release"] and not editor.desk.terminals)

    run(story, tmp_path / "home", EVERYTHING)
    assert not (tmp_path / "done").exists()


def test_servers_of_tools_belong_to_the_session_that_brought_them(tmp_path: Path) -> None:
    async def story(editor: Editor) -> None:
        mark = leash.environment[leashes.NAME]
        server = {
            "name": "raw",
            "command": sys.executable,
            "args": ["-I", str(mcp_servers.HERE / "mcp_raw_server.py"), "plain"],
            "env": [{"name": leashes.NAME, "value": mark}],
        }
        first = str((await editor.ask("session/new", cwd=str(tmp_path), mcpServers=[server]))["sessionId"])
        second = await editor.new(str(tmp_path))
        await editor.prompt(first, "/tools")
        assert "raw__echo" in editor.text(session=first)
        await editor.prompt(second, "/tools")
        assert "read_file" in editor.text(session=second)
        assert "raw__echo" not in editor.text(session=second)
        assert leash.at_large()
        await editor.ask("session/close", sessionId=first)
        polling.until(lambda: not leash.at_large(), "it is gone with its session")

    with leashes.leashed() as leash:
        run(story, tmp_path / "home", EVERYTHING)
