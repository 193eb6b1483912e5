"""Cancelling a session at whatever moment: its prompts are answered, nothing stays open, and what was said is kept."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import AsyncSessionDB, content_parts, types
from tests.support import acp_editor, agents, approvals
from tests.support.compaction import WINDOW, fill


async def test_cancelling_in_the_middle_of_an_answer_keeps_what_was_said() -> None:
    model = agents.Trickle("so far ")

    async with acp_editor.editor(model=model) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "hello")
        await model.stuck.reached.wait()
        editor.tell("session/cancel", sessionId=session)
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        said = await editor.program.db.transcript(session)
        assert [each.role for each in said] == ["user", "assistant"]
        assert "so far" in str(said[1].content)


async def test_cancelling_in_the_middle_of_a_tool_stops_it_and_closes_the_call() -> None:
    stuck = agents.Stuck()

    async with acp_editor.editor([agents.calls("wait")], tools=[agents.tool("wait", stuck)]) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "go")
        await stuck.reached.wait()
        editor.tell("session/cancel", sessionId=session)
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        assert stuck.cancelled
        assert editor.open_calls(session) == set()


async def test_cancelling_a_question_leaves_nothing_open() -> None:
    async with acp_editor.editor([approvals.runs("make test"), "here I am"]) as editor:
        editor.answer = lambda _: None
        session = await editor.new()
        prompting = editor.prompting(session, "go")
        await editor.questioned()
        editor.tell("session/cancel", sessionId=session)
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        assert editor.program.shell.ran == []
        assert editor.open_calls(session) == set()
        assert await editor.prompt(session, "hello") == "end_turn"


async def test_a_question_that_was_settled_before_it_could_be_asked_is_not_asked() -> None:
    async with acp_editor.editor([approvals.runs("make test")]) as editor:
        session = await editor.new()
        await editor.until("available_commands_update")
        (door,) = editor.program.doors
        editor.reads.clear()
        prompting = editor.prompting(session, "go")
        await acp_editor.so(lambda: door.approvals.pending(session))
        editor.tell("session/cancel", sessionId=session)
        await acp_editor.so(lambda: not door.approvals.pending(session))
        editor.reads.set()
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        assert editor.questions == []
        assert editor.open_calls(session) == set()


async def test_cancelling_at_once_cancels_what_waits_too() -> None:
    async with acp_editor.editor(["here I am"] * 3) as editor:
        session = await editor.new()
        asked = [editor.prompting(session, "one"), editor.prompting(session, "two")]
        editor.tell("session/cancel", sessionId=session)
        assert [acp_editor.result(await each)["stopReason"] for each in asked] == ["cancelled", "cancelled"]
        assert await editor.prompt(session, "three") == "end_turn"


async def test_a_prompt_after_a_cancel_is_answered_however_slow_the_store_is() -> None:
    async with acp_editor.editor(["here I am"]) as editor:
        session, db, reading, read_on = await editor.new(), editor.program.db, asyncio.Event(), asyncio.Event()
        waiting = db.mail.inbox_entries

        async def slow(*given: Any) -> list[types.InboxEntry]:
            reading.set()
            await read_on.wait()
            return await waiting(*given)

        db.mail.inbox_entries = slow  # type: ignore[method-assign]
        first = editor.prompting(session, "one")
        await reading.wait()
        editor.tell("session/cancel", sessionId=session)
        assert acp_editor.result(await first) == {"stopReason": "cancelled"}
        second = editor.prompting(session, "two")
        (door,) = editor.program.doors
        await acp_editor.so(lambda: door.queued(session))
        read_on.set()
        assert acp_editor.result(await second) == {"stopReason": "end_turn"}
        said = await db.transcript(session)
        assert [content_parts.text(each.content) for each in said] == ["two", "here I am"]


async def test_a_request_that_is_not_wanted_any_more_is_cancelled() -> None:
    model = agents.Trickle("so far ")

    async with acp_editor.editor(model=model) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "hello")
        await model.stuck.reached.wait()
        editor.tell("$/cancel_request", requestId=3)
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}


async def test_cancelling_what_is_not_there_is_silent() -> None:
    async with acp_editor.editor(["hi"]) as editor:
        session = await editor.new()
        editor.tell("session/cancel", sessionId="nobody")
        editor.tell("session/cancel", sessionId=session)
        editor.tell("$/cancel_request", requestId=99)
        assert await editor.prompt(session, "hello") == "end_turn"


async def test_a_command_that_takes_long_can_be_cancelled(db: AsyncSessionDB) -> None:
    model = agents.Trickle()

    session = "talk"
    await fill(db)
    program = acp_editor.House(db, model)
    model.window = WINDOW
    async with acp_editor.seated(program) as editor:
        await editor.ask("session/resume", sessionId=session, cwd="/", mcpServers=[])
        prompting = editor.prompting(session, "/compact")
        await model.stuck.reached.wait()
        editor.tell("session/cancel", sessionId=session)
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        assert (await db.context(session)).cut_seq == 0


async def test_a_request_that_is_not_wanted_before_it_is_begun_is_cancelled() -> None:
    async with acp_editor.editor(model=agents.Trickle("so far ")) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "hello")
        editor.tell("$/cancel_request", requestId=editor.number)
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}


async def test_a_prompt_is_answered_when_the_program_is_asked_to_leave(db: AsyncSessionDB) -> None:
    model = agents.Trickle("so far ")

    program = acp_editor.House(db, model)
    async with acp_editor.seated(program) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "hello")
        await model.stuck.reached.wait()
        editor.serving.cancel()
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        await asyncio.wait([editor.serving])
