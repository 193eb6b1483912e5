"""The agent for editors as the program puts it together: each session works in its own folder, all in one store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB, config
from holdfast.acp import channel
from holdfast.app import acp
from holdfast.tools.permissions import rules as permissions_rules
from tests.app import test_running
from tests.support import acp_editor
from tests.tools import test_plugins


def run(home: Path, story: Callable[[acp_editor.Editor], Awaitable[None]], **settings: Any) -> None:
    """Tell a story of an editor that is served by the whole program but for its process."""
    plain = test_running.settings(home)
    given = config.Settings(**{**{name: getattr(plain, name) for name in plain.__struct_fields__}, **settings})

    async def told() -> None:
        async with asyncio.timeout(60):
            person = acp_editor.Editor(None)  # type: ignore[arg-type]
            wire = channel.EditorChannel(person, "1.0")
            person.asking("initialize", protocolVersion=1)
            assert await wire.wait_initialized()
            serving = asyncio.create_task(acp.serve(wire, given))
            try:
                await story(person)
            finally:
                person.leave()
                await serving

    asyncio.run(told())
    with SessionDB(home / "store.db") as db:
        assert db.admin.fsck().ok


def folder(home: Path, name: str, words: str) -> str:
    made = home / name
    made.mkdir()
    (made / "notes.txt").write_text(words)
    return str(made)


def test_two_sessions_work_in_two_folders(tmp_path: Path) -> None:
    one, two = folder(tmp_path, "one", "the sea"), folder(tmp_path, "two", "the moor")

    async def story(editor: acp_editor.Editor) -> None:
        first, second = await editor.new(one), await editor.new(two)
        await asyncio.gather(editor.prompt(first, "read notes.txt"), editor.prompt(second, "read notes.txt"))
        assert "the sea" in editor.text(session=first)
        assert "the moor" in editor.text(session=second)
        await editor.prompt(first, "read ../two/notes.txt")
        found = (await editor.ask("session/list", cwd=two))["sessions"]
        assert [(each["sessionId"], each["cwd"]) for each in found] == [(second, two)]
        assert "the moor" not in editor.text(session=first)

    run(tmp_path, story)


def test_more_folders_are_read_where_the_editor_names_them(tmp_path: Path) -> None:
    one, two = folder(tmp_path, "one", "the sea"), folder(tmp_path, "two", "the moor")

    async def story(editor: acp_editor.Editor) -> None:
        session = await editor.new(one, additionalDirectories=[two])
        await editor.prompt(session, f"read {two}/notes.txt")
        assert "the moor" in editor.text(session=session)

    run(tmp_path, story)


def test_rules_hold_in_the_folder_of_the_session(tmp_path: Path) -> None:
    one = folder(tmp_path, "one", "the sea")
    rules = (
        permissions_rules.parse_rule("deny", "read_file(notes.txt)"),
        permissions_rules.parse_rule("allow", "shell(pwd)"),
    )

    async def story(editor: acp_editor.Editor) -> None:
        session = await editor.new(one)
        await editor.prompt(session, "read notes.txt")
        assert "the sea" not in editor.text()
        await editor.prompt(session, "run `pwd`")
        assert one in str(editor.received("tool_call_update")[-1])
        assert editor.questions == []

    run(tmp_path, story, permissions=rules)


def test_a_tool_of_another_package_does_not_take_the_place_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    test_plugins.installed(site, "sly", {"a": ":update_plan"}, test_plugins.TOOL.format(name="update_plan"))

    async def story(editor: acp_editor.Editor) -> None:
        assert await editor.prompt(await editor.new(str(tmp_path)), "hello") == "end_turn"

    run(tmp_path, story)
    assert "The plug-in sly has a tool update_plan" in caplog.text


def test_what_was_said_is_kept_under_the_name_of_editors(tmp_path: Path) -> None:
    names = list[str]()

    async def story(editor: acp_editor.Editor) -> None:
        names.append(await editor.new(str(tmp_path)))
        await editor.prompt(names[0], "hello")

    run(tmp_path, story)
    with SessionDB(tmp_path / "store.db") as db:
        (head,) = db.list_sessions()
        assert (head.conversation_id, head.source) == (names[0], "editor")
        assert [each.role for each in db.transcript(names[0])] == ["user", "assistant"]
