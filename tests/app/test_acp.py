"""The agent for editors as the program builds it: each session has its own folder, terminals and tool servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from acp import exceptions

from holdfast import SessionDB, config
from holdfast.acp import channel
from holdfast.app import acp as program
from holdfast.tools.permissions import rules as permissions_rules
from tests.support import acp_editor, acp_sdk_client, mcp_servers, polling
from tests.support import processes as leashes

EVERYTHING = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}


class Editor(acp_editor.Editor):
    """An editor that also answers for its files and terminals."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.desk = acp_sdk_client.Editor(session=None)
        self._tasks = set[asyncio.Task[None]]()
        self._handlers: dict[str, Callable[..., Awaitable[Any]]] = {
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
        request = self.frames[-1]
        if (handler := self._handlers.get(request.get("method", ""))) is not None:
            task = asyncio.create_task(self._answer(request["id"], handler, request["params"]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: Any, handler: Callable[..., Awaitable[Any]], params: dict[str, Any]) -> None:
        names = {"sessionId": "session_id", "terminalId": "terminal_id", "outputByteLimit": "output_byte_limit"}
        try:
            made = await handler(**{names.get(name, name): value for name, value in params.items()})
        except exceptions.RequestError as error:
            self.say({"jsonrpc": "2.0", "id": number, "error": error.to_error_obj()})
            return
        result = made.model_dump(mode="json", by_alias=True, exclude_none=True) if made is not None else {}
        self.say({"jsonrpc": "2.0", "id": number, "result": result})


@asynccontextmanager
async def serve(settings: config.Settings, capabilities: dict[str, Any] | None = None) -> AsyncIterator[Editor]:
    """An editor with these capabilities, served by the program in this process."""
    async with asyncio.timeout(60):
        editor = Editor()
        wire = channel.EditorChannel(editor, "1.0")
        greeting = editor.asking("initialize", protocolVersion=1, clientCapabilities=capabilities or {})
        assert await wire.wait_initialized()
        await greeting
        serving = asyncio.create_task(program.serve(wire, settings))
        try:
            yield editor
        finally:
            editor.leave()
            await serving
    with SessionDB(settings.database) as db:
        assert db.admin.fsck().ok


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Two project folders, each with a file `notes.txt`."""
    made = [tmp_path / "one", tmp_path / "two"]
    for folder, text in zip(made, ("the sea", "the moor"), strict=True):
        folder.mkdir()
        (folder / "notes.txt").write_text(f"{text}\n")
    return [str(folder) for folder in made]


async def test_two_sessions_work_in_two_folders_of_one_store(settings: config.Settings, folders: list[str]) -> None:
    one, two = folders
    async with serve(settings) as editor:
        first, second = await editor.new(one), await editor.new(two)
        await asyncio.gather(editor.prompt(first, "read notes.txt"), editor.prompt(second, "read notes.txt"))
        assert "the sea" in editor.text(session=first)
        assert "the moor" in editor.text(session=second)
        await editor.prompt(first, "read ../two/notes.txt")
        assert "the moor" not in editor.text(session=first)
        found = (await editor.ask("session/list", cwd=two))["sessions"]
        assert [(each["sessionId"], each["cwd"]) for each in found] == [(second, two)]
        third = await editor.new(one, additionalDirectories=[two])
        await editor.prompt(third, f"read {two}/notes.txt")
        assert "the moor" in editor.text(session=third)
        assert editor.desk.asked == []  # it offers neither files nor terminals
    with SessionDB(settings.database) as db:
        head = db.head(second)
        assert (head.conversation_id, head.source) == (second, "editor")
        assert [each.role for each in db.transcript(second)][::3] == ["user", "assistant"]


async def test_rules_hold_in_the_folder_of_the_session(settings: config.Settings, folders: list[str]) -> None:
    rules = (
        permissions_rules.parse_rule("deny", "read_file(notes.txt)"),
        permissions_rules.parse_rule("allow", "shell(pwd)"),
    )
    async with serve(msgspec.structs.replace(settings, permissions=rules)) as editor:
        session = await editor.new(folders[0])
        await editor.prompt(session, "read notes.txt")
        assert "the sea" not in editor.text()
        await editor.prompt(session, "run `pwd`")
        assert folders[0] in str(editor.received("tool_call_update")[-1])
        assert editor.questions == []


@pytest.mark.parametrize("late", [False, True])
async def test_unsaved_files_are_read_and_commands_run_in_the_editors_terminal(
    settings: config.Settings, folders: list[str], late: bool
) -> None:
    async with serve(settings, {} if late else EVERYTHING) as editor:
        if late:
            await editor.asking("initialize", protocolVersion=1, clientCapabilities=EVERYTHING)
        session = await editor.new(folders[0])
        editor.desk.buffers[f"{folders[0]}/notes.txt"] = "not saved\n"
        assert await editor.prompt(session, "read notes.txt") == "end_turn"
        assert editor.received("tool_call")[-1]["locations"] == [{"path": f"{folders[0]}/notes.txt"}]
        assert "1\tnot saved" in editor.text()
        assert await editor.prompt(session, "run echo here; pwd") == "end_turn"
        shown = [each for each in editor.received("tool_call_update") if each.get("content")]
        assert {"type": "terminal", "terminalId": "terminal-1"} in shown[-1]["content"]
        assert shown[-1]["status"] == "completed"
        assert f"here\n{folders[0]}\n[exit code 0]" in editor.text()
        assert editor.desk.terminals == {}


async def test_tool_servers_belong_to_the_session_that_brought_them(settings: config.Settings, tmp_path: Path) -> None:
    with leashes.leashed() as leash:
        async with serve(settings, EVERYTHING) as editor:
            server = {
                "name": "raw",
                "command": sys.executable,
                "args": ["-I", str(mcp_servers.HERE / "mcp_raw_server.py"), "plain"],
                "env": [{"name": leashes.NAME, "value": leash.environment[leashes.NAME]}],
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
            await polling.until_async(lambda: not leash.at_large(), "the server has ended with its session")
