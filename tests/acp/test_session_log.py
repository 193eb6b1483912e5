"""The log of a conversation as updates: messages of other processes, failing stores, and replays of earlier turns."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, types
from holdfast.acp import plans
from holdfast.model import ScriptedModel, base
from holdfast.runtime import subscriptions
from holdfast.store import async_db, notifications
from holdfast.tools.shell import shell
from tests.support import agents, approvals, processes
from tests.support.acp_editor import Editor, Program, connect, open_editor, result
from tests.support.polling import until_async

WHERE: dict[str, Any] = {"cwd": "/", "mcpServers": []}
OFTEN: dict[str, Any] = {"poll_seconds": 0.01}
NEVER: dict[str, Any] = {"poll_seconds": 3600.0}


def notify(db: AsyncSessionDB, session: str) -> None:
    db.notifications._dispatch(notifications.Hint("moved", session))


async def wait_for_user_text(editor: Editor, end: str) -> str:
    await until_async(lambda: editor.text("user_message_chunk").endswith(end))
    return editor.text("user_message_chunk")


async def begin(editor: Editor, *more: str) -> str:
    """Begin a session, and add messages as another process."""
    session = await editor.new()
    await editor.prompt(session, "hello")
    for words in more:
        await editor.program.db.append_message(session, role="user", content=words)
    return session


async def test_messages_of_another_process_are_sent_in_their_order() -> None:
    async with open_editor(["A", "B"], **NEVER) as editor:
        session = await begin(editor, "from the terminal")
        await editor.program.db.append_message(session, role="assistant", content="to the terminal")
        await editor.prompt(session, "and I?")
        assert editor.text("user_message_chunk") == "from the terminal"
        assert editor.text() == "Ato the terminalB"


async def test_messages_of_another_process_are_sent_without_a_request(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    async with (
        agents.store(path) as db,
        AsyncSessionDB(SessionDB(path)) as other,
        connect(Program(db, ScriptedModel(["A"]), **OFTEN)) as editor,
    ):
        session = await begin(editor)
        await other.append_message(session, role="user", content="from the terminal")
        await other.append_message(session, role="assistant", content="to the terminal")
        await until_async(lambda: editor.text() == "Ato the terminal")
        assert editor.text("user_message_chunk") == "from the terminal"


async def test_own_messages_are_not_sent_back_to_a_slow_editor() -> None:
    async with open_editor(["A"]) as editor:
        session = await editor.new()
        await editor.until("available_commands_update")
        editor.reads.clear()
        editor.asking("session/set_mode", sessionId=session, modeId="code")
        await until_async(lambda: any("config_option_update" in str(frame) for frame in editor.frames))
        notify(editor.program.db, session)
        prompting = editor.prompting(session, "hello")
        (opened,) = editor.program.runtimes
        await until_async(lambda: opened.running(session))
        await opened.wait_idle(session)
        editor.reads.set()
        assert result(await prompting) == {"stopReason": "end_turn"}
        assert (editor.received("user_message_chunk"), editor.text()) == ([], "A")


async def test_message_stored_while_a_session_is_opened_is_sent() -> None:
    async with open_editor(["A"], **NEVER) as editor:
        session, db = await begin(editor), editor.program.db
        hides = db.hides

        async def store_meanwhile(*given: Any) -> list[types.Hide]:
            db.hides = hides  # type: ignore[method-assign]
            await db.append_message(session, role="user", content="from the terminal")
            return await hides(*given)

        db.hides = store_meanwhile  # type: ignore[method-assign]
        await editor.ask("session/load", sessionId=session, **WHERE)
        assert (await wait_for_user_text(editor, "from the terminal")).count("from the terminal") == 1


async def test_failing_store_delays_messages_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "LOG_PAGE", 1)
    async with open_editor(["A"], **NEVER) as editor:
        session, db, asked = await begin(editor, "one ", "two ", "three"), editor.program.db, list[Any]()
        transcript = db.transcript

        async def fail_once(*given: Any) -> list[types.Message]:
            asked.append(given)
            if len(asked) == 2:
                raise errors.StoreBusy
            return await transcript(*given)

        db.transcript = fail_once  # type: ignore[method-assign]
        notify(db, session)
        await until_async(lambda: len(asked) == 2)
        notify(db, session)
        assert await wait_for_user_text(editor, "three") == "one two three"


@asynccontextmanager
async def block_store(db: AsyncSessionDB) -> AsyncIterator[None]:
    """Keep all threads of the store busy."""
    over, busy = threading.Event(), threading.Barrier(async_db.THREADS + 1)

    def work() -> None:
        busy.wait()
        over.wait()

    working = [asyncio.create_task(db.run(work)) for _ in range(async_db.THREADS)]
    await asyncio.to_thread(busy.wait)
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*working)


async def test_requests_that_need_no_store_do_not_wait_for_it() -> None:
    async with open_editor(["A", "B"], **OFTEN) as editor:
        session, db = await begin(editor), editor.program.db
        async with block_store(db):
            asked = asyncio.create_task(db.snapshot(session))
            assert await editor.prompt(session, "/help") == "end_turn"
            assert "/status" in editor.text()
            prompting = editor.prompting(session, "are you there?")
            editor.notify("session/cancel", sessionId=session)
            assert result(await prompting) == {"stopReason": "cancelled"}
            await editor.ask("session/set_mode", sessionId=session, modeId="code")
            assert not asked.done()
        await asked
        assert await editor.prompt(session, "and now?") == "end_turn"


async def test_end_of_a_call_is_sent_although_the_store_does_not_answer(db: AsyncSessionDB) -> None:
    stuck = agents.Stuck()

    async def go(_: dict[str, Any]) -> str:
        if not stuck.reached.is_set():
            await stuck()
        await blocked.enter_async_context(block_store(db))
        return "It ran."

    script = [agents.calls("make"), agents.calls("make"), "done"]
    program = Program(db, ScriptedModel(script), [agents.tool("make", go)], **NEVER)
    async with connect(program) as editor, AsyncExitStack() as blocked:
        session = await editor.new()
        first = editor.prompting(session, "go")
        await stuck.reached.wait()
        editor.notify("session/cancel", sessionId=session)
        assert result(await first) == {"stopReason": "cancelled"}
        # The result of the interrupted call is not taken for that of the next one.
        second = editor.prompting(session, "again")
        ended = await agents.LoopClock().finish(editor.until("tool_call_update", status="completed"))
        assert "It ran." in str(ended)
        await blocked.aclose()
        assert result(await second) == {"stopReason": "end_turn"}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("shell", '{"command": "make"}'),
        ("shell", '{"command": "echo a\\ud800b"}'),
        ("shell", '{"command": "ls", "\\ud83d": 1}'),
        ("shell", f'{{"command": "ls", "x": {"[" * 300}{"]" * 300}}}'),
        ("read_file", '{"path": "a\\ud800b.txt"}'),
        (plans.NAME, '{"steps": [{"step": "a\\ud800", "status": "pending"}]}'),
    ],
)
async def test_call_with_any_arguments_is_sent_and_replayed_alike(tool: str, arguments: str) -> None:
    kinds = ("tool_call", "tool_call_update", "plan")
    call = base.Reply(calls=(types.ToolCall("c1", tool, arguments),), usage=types.Usage(10, 5))
    async with open_editor([call, "done"]) as editor:
        session = await begin(editor)
        then = editor.received(*kinds)
        assert then[0]["sessionUpdate"] == ("plan" if tool == plans.NAME else "tool_call")
        await editor.ask("session/close", sessionId=session)
        await editor.ask("session/load", sessionId=session, **WHERE)
        now = editor.received(*kinds)[len(then) :]
        assert (now[0], now[-1]) == (then[0], then[-1])


async def test_conversation_with_a_damaged_message_and_picture_can_be_loaded(tmp_path: Path) -> None:
    path, new = str(tmp_path / "store.db"), types.NewConversation(source="test")
    async with AsyncSessionDB(SessionDB(path)) as db, asyncio.timeout(60):
        for number in range(1, 4):
            await db.append_message("talk", role="user", content=f"message {number}", create=new)
        parts = [{"type": "image", "media_type": "image/png", "blob": "nonsense"}, {"type": "text", "text": " and 4"}]
        await db.append_message("talk", role="user", content=parts)
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TRIGGER message_is_only_redacted")
            connection.execute("UPDATE messages SET body = '{broken' WHERE seq = 2")
        connection.close()
        async with connect(Program(db, ScriptedModel())) as editor:
            await editor.ask("session/load", sessionId="talk", **WHERE)
            assert editor.text("user_message_chunk") == "message 1message 3 and 4"
            assert "Message 2 cannot be shown" in editor.text("agent_thought_chunk")


async def test_status_of_a_call_is_replayed_as_it_was(tmp_path: Path, db: AsyncSessionDB) -> None:
    endings = {"true": "completed", "echo '[exit code 0]'; exit 3": "failed", "echo Error: none": "completed"}
    endings |= {"kill -9 $$": "failed", "touch begun; sleep 600": "failed"}
    script = [reply for line in endings for reply in (approvals.shell_reply(line), "done")]

    with processes.leashed() as leash:
        tool = shell.shell([str(tmp_path)], lambda: leash.environment)
        program = Program(db, ScriptedModel(script), [tool])
        async with connect(program) as editor:
            session = await editor.new()
            *lines, last = endings
            for line in lines:
                assert await editor.prompt(session, line) == "end_turn"
            prompting = editor.prompting(session, last)
            await until_async((tmp_path / "begun").exists, "it runs")
            editor.notify("session/cancel", sessionId=session)
            assert result(await prompting) == {"stopReason": "cancelled"}
            then = editor.statuses()
        async with connect(program) as editor:
            await editor.ask("session/load", sessionId=session, **WHERE)
            assert editor.statuses() == then
    assert [*then.values()] == [*endings.values()]
