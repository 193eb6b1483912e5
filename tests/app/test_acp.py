"""The agent for editors as the program builds it: each session has its own folder."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import SessionDB, config
from holdfast.acp import channel
from holdfast.app import acp as program
from holdfast.tools.permissions import rules
from tests.support import acp_editor, mcp_servers, polling


@asynccontextmanager
async def serve(settings: config.Settings, **capabilities: Any) -> AsyncIterator[acp_editor.Editor]:
    """An editor with these capabilities, served by the program in this process."""
    async with asyncio.timeout(60):
        editor = acp_editor.Editor(None)  # type: ignore[arg-type]
        wire = channel.EditorChannel(editor, "1.0")
        greeting = editor.asking("initialize", protocolVersion=1, clientCapabilities=capabilities)
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
    with SessionDB(settings.database) as db:
        head = db.head(second)
        assert (head.conversation_id, head.source) == (second, "editor")
        assert [each.role for each in db.transcript(second)][::3] == ["user", "assistant"]


async def test_rules_hold_in_the_folder_of_the_session(settings: config.Settings, folders: list[str]) -> None:
    law = rules.parse_rule("deny", "read_file(notes.txt)"), rules.parse_rule("allow", "shell(pwd)")
    async with serve(msgspec.structs.replace(settings, permissions=law)) as editor:
        session = await editor.new(folders[0])
        await editor.prompt(session, "read notes.txt")
        assert "the sea" not in editor.text()
        await editor.prompt(session, "run `pwd`")
        assert folders[0] in str(editor.received("tool_call_update")[-1])
        assert editor.questions == []


async def test_file_and_command_are_requested_from_the_editor(settings: config.Settings, folders: list[str]) -> None:
    async with serve(settings, fs={"readTextFile": True}, terminal=True) as editor:
        session = await editor.new(folders[0])
        for prompt, method in (("read notes.txt", "fs/read_text_file"), ("run pwd", "terminal/create")):
            answer = editor.prompting(session, prompt)
            await polling.until_async(lambda method=method: editor.frames[-1].get("method") == method)
            refusal = {"code": -32603, "message": "The editor refused."}
            editor.say({"jsonrpc": "2.0", "id": editor.frames[-1]["id"], "error": refusal})
            assert acp_editor.result(await answer)["stopReason"] == "end_turn"


async def test_tool_servers_belong_to_the_session_that_brought_them(settings: config.Settings, tmp_path: Path) -> None:
    arguments = ["-I", str(mcp_servers.HERE / "mcp_raw_server.py"), "plain"]
    server = {"name": "raw", "command": sys.executable, "args": arguments, "env": []}
    async with serve(settings) as editor:
        first = str((await editor.ask("session/new", cwd=str(tmp_path), mcpServers=[server]))["sessionId"])
        second = await editor.new(str(tmp_path))
        await editor.prompt(first, "/tools")
        assert "raw__echo" in editor.text(session=first)
        await editor.prompt(second, "/tools")
        assert "read_file" in editor.text(session=second)
        assert "raw__echo" not in editor.text(session=second)
