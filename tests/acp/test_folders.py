"""Folders of sessions: which conversations a list of one has, and how a conversation comes to be at home in another."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors
from holdfast.acp import server
from holdfast.model import ScriptedModel
from tests.support import acp_editor, agents


@pytest.fixture
def homes(tmp_path: Path) -> tuple[str, str]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return str(tmp_path / "one"), str(tmp_path / "two")


async def listed(editor: acp_editor.Editor, **asked: Any) -> dict[str, str]:
    """The sessions of a list, each with its folder."""
    page = await editor.ask("session/list", **asked)
    return {each["sessionId"]: each["cwd"] for each in page["sessions"]}


@contextmanager
def unwritable(store: str) -> Iterator[None]:
    """Whoever writes waits in vain: another process is at the head of the line."""
    with open(f"{store}.queue", "rb") as line:
        fcntl.flock(line, fcntl.LOCK_EX)
        yield


async def kept(db: AsyncSessionDB, name: str, folder: str | None) -> None:
    await db.create_session(name, source="test", folder=folder)
    await db.append_message(name, role="user", content="hi")


async def test_a_session_is_listed_in_its_own_folder_and_in_no_other(homes: tuple[str, str]) -> None:
    one, two = homes

    async with acp_editor.editor(["A", "B"]) as editor:
        first, second = await editor.new(f"{one}/../one/"), await editor.new(two)
        await editor.prompt(first, "a")
        await editor.prompt(second, "b")
        assert await listed(editor, cwd=one) == {first: one}
        assert await listed(editor, cwd=f"{two}/.//") == {second: two}
        assert await listed(editor) == {first: one, second: two}
        assert (await editor.program.db.conversation(first)).folder == one


async def test_a_conversation_of_no_folder_is_listed_in_each(
    homes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = homes
    monkeypatch.chdir(two)

    async with acp_editor.editor() as editor:
        await kept(editor.program.db, "nowhere", None)
        assert await listed(editor, cwd=one) == {"nowhere": one}
        assert await listed(editor) == {"nowhere": two}


async def test_one_that_cannot_be_moved_is_listed_where_it_is_open(homes: tuple[str, str]) -> None:
    one, two = homes

    async with acp_editor.editor() as editor:
        await kept(editor.program.db, "nowhere", None)
        await editor.ask("session/load", sessionId="nowhere", cwd=one, mcpServers=[])
        await editor.program.db.set_session_folder("nowhere", None)
        assert await listed(editor) == await listed(editor, cwd=two) == {"nowhere": one}


async def test_what_was_begun_in_a_folder_that_is_gone_is_listed(tmp_path: Path) -> None:
    async with acp_editor.editor() as editor:
        gone = str(tmp_path / "gone")
        await kept(editor.program.db, "talk", gone)
        assert await listed(editor, cwd=gone) == {"talk": gone}
        assert await listed(editor, cwd=str(tmp_path)) == {}


@pytest.mark.parametrize("cwd", ["here", "/\0", "/" + "x" * 5000])
async def test_a_list_of_what_is_no_path_is_refused(cwd: str) -> None:
    async with acp_editor.editor() as editor:
        assert (await acp_editor.refusal(editor.ask("session/list", cwd=cwd))).code == -32602


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_session_belongs_to_the_folder_it_was_continued_in_and_says_so(
    homes: tuple[str, str], method: str
) -> None:
    one, two = homes

    async with acp_editor.editor(["A", "B"]) as editor:
        session = await editor.new(one)
        await editor.prompt(session, "a")
        before = await editor.program.db.conversation(session)
        await editor.ask(method, sessionId=session, cwd=two, mcpServers=[])
        assert await listed(editor) == {session: one}
        await editor.prompt(session, "b")
        assert (await listed(editor, cwd=one), await listed(editor, cwd=two)) == ({}, {session: two})
        assert (await editor.program.db.conversation(session)).epoch == before.epoch
        assert f"It continues in {two}." in str(editor.frames)


async def test_a_session_that_moves_is_answered_before_anything_else_is_told(homes: tuple[str, str]) -> None:
    async with acp_editor.editor(["A"]) as editor:
        session = await editor.new(homes[0])
        await editor.prompt(session, "a")
        await editor.until("available_commands_update")
        for home in (homes[1], homes[0]) * 5:
            before = len(editor.frames)
            await editor.ask("session/resume", sessionId=session, cwd=home, mcpServers=[])
            assert "result" in editor.frames[before]
            await editor.until("available_commands_update")
            await editor.until("session_info_update")


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_opening_a_session_writes_nothing(homes: tuple[str, str], tmp_path: Path, elsewhere: bool) -> None:
    one, two = homes
    there, store = two if elsewhere else one, str(tmp_path / "holdfast.db")

    async with agents.store(store, write_timeout=0.5) as db:
        program = acp_editor.House(db, ScriptedModel(["A", "B"]))
        async with acp_editor.seated(program) as editor:
            session = await editor.new(one)
            await editor.prompt(session, "a")
            with unwritable(store):
                await editor.ask("session/load", sessionId=session, cwd=there + "/", mcpServers=[])
            assert await editor.prompt(session, "b") == "end_turn"
            assert program.places[-1].folders == (there + "/",)
            assert await listed(editor) == {session: there}


async def test_a_session_that_has_not_begun_begins_where_it_was_opened_last(homes: tuple[str, str]) -> None:
    one, two = homes

    async with acp_editor.editor(["A"]) as editor:
        session = await editor.new(one)
        await editor.ask("session/resume", sessionId=session, cwd=two, mcpServers=[])
        await editor.prompt(session, "a")
        assert await listed(editor) == {session: two}


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_what_is_not_opened_stays_where_it_is(
    homes: tuple[str, str], monkeypatch: pytest.MonkeyPatch, method: str, db: AsyncSessionDB
) -> None:
    one, two = homes

    class Few(acp_editor.House):
        async def models(self) -> Sequence[str]:
            if len(self.doors) > 1:
                raise errors.SettingInvalid("There are no more models.")
            return await super().models()

    async with acp_editor.seated(Few(db, ScriptedModel(["A"]))) as editor:
        await kept(db, "talk", one)
        await editor.new(one)
        for most, code in ((1, -32600), (2, -32603)):
            monkeypatch.setattr(server, "MAX_SESSIONS", most)
            asked = editor.ask(method, sessionId="talk", cwd=two, mcpServers=[])
            assert (await acp_editor.refusal(asked)).code == code
            assert await listed(editor, cwd=one) == {"talk": one}


async def test_a_fork_is_at_home_where_it_was_made(homes: tuple[str, str]) -> None:
    one, two = homes

    async with acp_editor.editor(["A", "B"]) as editor:
        empty, session = await editor.new(one), await editor.new(one)
        await editor.prompt(session, "a")
        forks = [
            (await editor.ask("session/fork", sessionId=each, cwd=two, mcpServers=[]))["sessionId"]
            for each in (session, empty)
        ]
        assert await listed(editor) == {session: one, forks[0]: two}
        await editor.prompt(forks[1], "b")
        assert (await listed(editor, cwd=two)).keys() == {*forks}
        assert await listed(editor, cwd=one) == {session: one}


async def test_pages_of_a_folder_have_each_of_its_conversations_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAGE_SIZE", 3)
    homes = ("/one", "/two", "/two", None, "/two")

    async with acp_editor.editor() as editor:
        db = editor.program.db
        for number in range(35):
            await kept(db, f"talk{number}", homes[number % 5])
        seen, asked = list[str](), {"cwd": "/one"}
        while True:
            page = await editor.ask("session/list", **asked)
            assert len(page["sessions"]) <= 3
            seen += [each["sessionId"] for each in page["sessions"]]
            if "nextCursor" not in page:
                break
            asked["cursor"] = page["nextCursor"]
        assert seen == [f"talk{number}" for number in reversed(range(35)) if number % 5 in (0, 3)]


async def test_a_move_and_a_list_at_once_are_both_done(homes: tuple[str, str]) -> None:
    one, two = homes

    async with acp_editor.editor(["A", "B"]) as editor:
        session = await editor.new(one)
        await editor.prompt(session, "a")
        await editor.ask("session/load", sessionId=session, cwd=two, mcpServers=[])
        _, seen = await asyncio.gather(editor.prompt(session, "b"), listed(editor))
        assert seen in ({session: one}, {session: two})
        assert await listed(editor) == {session: two}
