"""The log of a conversation as an editor is told of it: what others say, whatever is hinted and whatever fails on the
way; what was said before, as it was told then; and nothing waits for a store that does not answer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, types
from holdfast.acp import plans
from holdfast.acp import session as sessions
from holdfast.model import ScriptedModel, base
from holdfast.runtime import subscriptions
from holdfast.store import async_db, notifications
from holdfast.tools.shell import shell
from tests.support import acp_editor, agents, approvals, polling
from tests.support import processes as leashes


@pytest.fixture
def leash() -> Iterator[leashes.Leash]:
    with leashes.leashed() as found:
        yield found


async def test_what_is_hinted_to_nobody_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with acp_editor.editor(["A"]) as editor:
        here = await editor.new()
        # As with a database that tells of what other processes write, and this is none.
        await editor.prompt(here, "hello")
        await editor.program.db.append_message(here, role="user", content="from the terminal")
        await editor.until("user_message_chunk")
        assert editor.text("user_message_chunk") == "from the terminal"


async def test_what_is_said_while_a_session_is_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 3600.0)
    async with acp_editor.editor(["A"]) as editor:
        db = editor.program.db
        here = await editor.new()
        await editor.prompt(here, "hello")
        hides = db.hides

        async def meanwhile(*given: Any) -> list[types.Hide]:
            db.hides = hides  # type: ignore[method-assign]
            await db.append_message(here, role="user", content="from the terminal")
            return await hides(*given)

        db.hides = meanwhile  # type: ignore[method-assign]
        await editor.ask("session/load", sessionId=here, cwd="/", mcpServers=[])
        await acp_editor.so(lambda: "from the terminal" in editor.text("user_message_chunk"))


async def test_a_store_that_fails_in_the_middle_of_a_look_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "LOG_PAGE", 1)
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 3600.0)

    async with acp_editor.editor(["A"]) as editor:
        db, asked = editor.program.db, list[tuple[Any, ...]]()
        here = await editor.new()
        await editor.prompt(here, "hello")
        for words in ("one ", "two ", "three"):
            await db.append_message(here, role="user", content=words)
        transcript = db.transcript

        async def fails_once(*given: Any) -> list[types.Message]:
            asked.append(given)
            if len(asked) == 2:
                raise errors.StoreBusy
            return await transcript(*given)

        db.transcript = fails_once  # type: ignore[method-assign]
        db.notifications._dispatch(notifications.Hint("moved", here))
        await acp_editor.so(lambda: len(asked) == 2)
        db.notifications._dispatch(notifications.Hint("moved", here))
        await acp_editor.so(lambda: editor.text("user_message_chunk").endswith("three"))
        assert editor.text("user_message_chunk") == "one two three"


async def test_what_others_said_and_the_store_did_not_give_in_time_is_told_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(subscriptions, "GAP_SECONDS", 0.0)

    async with acp_editor.editor(["A", "B"]) as editor:
        db = editor.program.db
        here = await editor.new()
        await editor.prompt(here, "hello")
        for words in ("one ", "two ", "three"):
            await db.append_message(here, role="user", content=words)
        await db.hide(here, 4, 4)
        await editor.prompt(here, "mine")
        assert editor.text("user_message_chunk") == ""
        db.notifications._dispatch(notifications.Hint("moved", here))
        await acp_editor.so(lambda: editor.text("user_message_chunk").endswith("three"))
        db.notifications._dispatch(notifications.Hint("moved", here))
        await db.append_message(here, role="user", content=" four")
        db.notifications._dispatch(notifications.Hint("moved", here))
        await acp_editor.so(lambda: editor.text("user_message_chunk").endswith("four"))
        assert editor.text("user_message_chunk") == "one three four"


async def test_a_message_of_another_process_within_a_turn_is_sent_after_it(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async def interrupt(_: dict[str, Any]) -> str:
        await db.append_message(sessions_of[0], role="user", content="from the terminal")
        return "It ran."

    sessions_of = list[str]()
    program = acp_editor.House(db, ScriptedModel([agents.calls("make"), "done"]), [agents.tool("make", interrupt)])
    async with acp_editor.seated(program) as editor:
        sessions_of.append(await editor.new())
        assert await editor.prompt(sessions_of[0], "go") == "end_turn"
        await acp_editor.so(lambda: editor.text("user_message_chunk"))
        await editor.prompt(sessions_of[0], "/help")
        assert editor.text("user_message_chunk") == "from the terminal"


async def test_a_picture_that_cannot_be_read_keeps_no_words_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with acp_editor.editor(["A"]) as editor:
        here = await editor.new()
        await editor.prompt(here, "hello")
        picture = {"type": "image", "media_type": "image/png", "blob": "nonsense"}
        await editor.program.db.append_message(
            here, role="user", content=[{"type": "text", "text": "look "}, picture, {"type": "text", "text": "at it"}]
        )
        await editor.program.db.append_message(here, role="user", content=" and on")
        await acp_editor.so(lambda: editor.text("user_message_chunk") == "look at it and on")
        assert await editor.ask("session/load", sessionId=here, cwd="/", mcpServers=[])
        assert editor.text("user_message_chunk").endswith("hellolook at it and on")


# --- a store that does not answer ----------------------------------------------------------------------


@asynccontextmanager
async def silent(db: AsyncSessionDB) -> AsyncIterator[None]:
    """Whoever asks the store something waits: all of its threads are busy."""
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


async def test_what_needs_no_store_does_not_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.001)

    async with acp_editor.editor(["A", "B"]) as editor:
        db = editor.program.db
        here = await editor.new()
        await editor.prompt(here, "hello")
        async with silent(db):
            # As soon as it is looked for what others said, somebody waits for the store.
            asked = asyncio.create_task(db.snapshot(here))
            assert await editor.prompt(here, "/help") == "end_turn"
            assert "/status" in editor.text()
            prompting = editor.prompting(here, "are you there?")
            editor.tell("session/cancel", sessionId=here)
            assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
            await editor.ask("session/set_mode", sessionId=here, modeId="code")
            assert not asked.done()
        await asked
        assert await editor.prompt(here, "and now?") == "end_turn"


async def test_the_end_of_a_call_is_told_in_short_where_the_store_does_not_give_its_result(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(subscriptions, "GAP_SECONDS", 0.01)
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 3600.0)

    async def go(_: dict[str, Any]) -> str:
        await answers_nothing.enter_async_context(silent(db))
        return "It ran."

    program = acp_editor.House(db, ScriptedModel([agents.calls("make"), "done"]), [agents.tool("make", go)])
    async with acp_editor.seated(program) as editor, AsyncExitStack() as answers_nothing:
        here = await editor.new()
        prompting = editor.prompting(here, "go")
        async with asyncio.timeout(60):
            ended = await editor.until("tool_call_update", status="completed")
        assert "It ran." in str(ended)
        await answers_nothing.aclose()
        assert acp_editor.result(await prompting) == {"stopReason": "end_turn"}


async def test_what_became_of_a_call_that_was_broken_off_is_never_told_of_another(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(subscriptions, "GAP_SECONDS", 0.2)
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 3600.0)
    stuck = agents.Stuck()

    async def go(_: dict[str, Any]) -> str:
        if not stuck.reached.is_set():
            await stuck()
        await answers_nothing.enter_async_context(silent(db))
        return "It ran."

    script = [agents.calls("make"), agents.calls("make"), "done"]
    program = acp_editor.House(db, ScriptedModel(script), [agents.tool("make", go)])
    async with acp_editor.seated(program) as editor, AsyncExitStack() as answers_nothing:
        here = await editor.new()
        first = editor.prompting(here, "go")
        await stuck.reached.wait()
        editor.tell("session/cancel", sessionId=here)
        assert acp_editor.result(await first) == {"stopReason": "cancelled"}
        second = editor.prompting(here, "again")
        async with asyncio.timeout(60):
            ended = await editor.until("tool_call_update", status="completed")
        assert "It ran." in str(ended)
        await answers_nothing.aclose()
        assert acp_editor.result(await second) == {"stopReason": "end_turn"}


async def test_a_prompt_that_is_cancelled_is_answered_though_its_turn_cannot_end(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(sessions, "STOP_SECONDS", 0.01)
    over = asyncio.Event()

    async def stays(_: dict[str, Any]) -> str:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                stopped.set()
        return "at last"

    stopped = asyncio.Event()

    script = [agents.calls("stay"), "B"]
    async with acp_editor.seated(acp_editor.House(db, ScriptedModel(script), [agents.tool("stay", stays)])) as editor:
        here = await editor.new()
        first = editor.prompting(here, "go")
        await editor.until("tool_call")
        editor.tell("session/cancel", sessionId=here)
        assert acp_editor.result(await first) == {"stopReason": "cancelled"}
        assert stopped.is_set()
        second = editor.prompting(here, "and now?")
        over.set()
        assert acp_editor.result(await second) == {"stopReason": "end_turn"}
        assert editor.text() == "B"
        assert editor.open_calls(here) == set()


# --- as it was told then -------------------------------------------------------------------------------


def called(name: str, arguments: str) -> base.Reply:
    return base.Reply(calls=(types.ToolCall("c1", name, arguments),), usage=types.Usage(10, 5))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("shell", '{"command": "echo a\\ud800b"}'),
        ("shell", '{"command": "ls", "\\ud83d": 1}'),
        ("shell", f'{{"command": "ls", "x": {"[" * 300}{"]" * 300}}}'),
        ("read_file", '{"path": "a\\ud800b.txt"}'),
        ("write_file", '{"path": "s.txt", "content": "x\\ud83dy"}'),
        (plans.NAME, '{"steps": [{"step": "a\\ud800", "status": "pending"}]}'),
    ],
)
async def test_a_call_with_odd_arguments_is_told_and_its_conversation_can_be_loaded(tool: str, arguments: str) -> None:
    kinds = ("tool_call", "tool_call_update", "plan")

    async with acp_editor.editor([called(tool, arguments), "done"]) as editor:
        here = await editor.new()
        assert await editor.prompt(here, "go") == "end_turn"
        then = editor.told(*kinds)
        assert then[0]["sessionUpdate"] == ("plan" if tool == plans.NAME else "tool_call")
        await editor.ask("session/close", sessionId=here)
        await editor.ask("session/load", sessionId=here, cwd="/", mcpServers=[])
        now = editor.told(*kinds)[len(then) :]
        assert now[0] == then[0]
        assert now[-1] == then[-1]


async def test_a_message_that_cannot_be_read_keeps_no_conversation_from_being_loaded(tmp_path: Path) -> None:
    place = str(tmp_path / "store.db")

    new = types.NewConversation(source="test")
    async with AsyncSessionDB(SessionDB(place)) as db, asyncio.timeout(60):
        for number in range(1, 4):
            await db.append_message("talk", role="user", content=f"message {number}", create=new)
        damage(place)
        async with acp_editor.seated(acp_editor.House(db, ScriptedModel())) as editor:
            await editor.ask("session/load", sessionId="talk", cwd="/", mcpServers=[])
            assert editor.text("user_message_chunk") == "message 1message 3"
            assert "Message 2 cannot be shown" in editor.text("agent_thought_chunk")


def damage(place: str) -> None:
    with sqlite3.connect(place) as connection:
        connection.execute("DROP TRIGGER message_is_only_redacted")
        connection.execute("UPDATE messages SET body = '{broken' WHERE seq = 2")
    connection.close()


def test_a_call_ends_the_same_way_then_and_later(tmp_path: Path, leash: leashes.Leash) -> None:
    lines = [
        "true",
        "false",
        "echo Error: none",
        "echo '[exit code 0]'; exit 3",
        "kill -9 $$",
        "touch begun; sleep 600",
    ]
    script = [each for line in lines for each in (approvals.runs(line), "done")]

    def states(editor: acp_editor.Editor) -> dict[str, str]:
        updates = editor.told("tool_call_update")
        return {each["toolCallId"]: each["status"] for each in updates if "status" in each}

    async def told(db: AsyncSessionDB) -> None:
        program = acp_editor.House(db, ScriptedModel(script), [shell.shell([str(tmp_path)], lambda: leash.environment)])
        async with acp_editor.seated(program) as editor:
            here = await editor.new()
            for line in lines[:-1]:
                assert await editor.prompt(here, line) == "end_turn"
            prompting = editor.prompting(here, lines[-1])
            await polling.until_async((tmp_path / "begun").exists, "it runs")
            editor.tell("session/cancel", sessionId=here)
            assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
            then = states(editor)
        async with acp_editor.seated(program) as editor:
            await editor.ask("session/load", sessionId=here, cwd="/", mcpServers=[])
            assert states(editor) == then
        assert [*then.values()] == ["completed", "failed", "completed", "failed", "failed", "failed"]

    agents.run(told)
