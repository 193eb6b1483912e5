"""A session: prompts to their ends, what is told meanwhile and in which order, questions, cancelling, commands."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, content_parts, errors, types
from holdfast.agent import usage
from holdfast.agent.commands import base as commands
from holdfast.model import ScriptedModel, base
from holdfast.runtime import subscriptions
from holdfast.store import notifications
from tests.support import acp_editor, agents, approvals
from tests.support.compaction import WINDOW, fill
from tests.tools import test_pictures

BIG = "x" * 2_000_000


async def test_a_prompt_is_answered_after_all_that_came_of_it() -> None:
    async with acp_editor.editor(["hello yourself"]) as editor:
        session = await editor.new()
        assert await editor.prompt(session, "hello") == "end_turn"
        assert editor.text() == "hello yourself"
        *_, usage, response = editor.frames
        assert response["result"] == {"stopReason": "end_turn"}
        assert usage["params"]["update"]["sessionUpdate"] == "usage_update"


async def test_what_a_model_thinks_is_told_as_thoughts() -> None:
    async with acp_editor.editor(
        [[base.ThinkingDelta("hm"), base.ContentDelta("so"), base.FinishDelta("stop")]]
    ) as editor:
        session = await editor.new()
        await editor.prompt(session, "hello")
        assert editor.text("agent_thought_chunk") == "hm"
        assert editor.text() == "so"


async def test_a_reader_that_is_slow_misses_nothing() -> None:
    words = [*(base.ContentDelta(f"{n} ") for n in range(500)), base.FinishDelta("stop")]
    async with acp_editor.editor([words]) as editor:
        session = await editor.new()
        editor.reads.clear()
        prompting = editor.prompting(session, "hello")
        await asyncio.sleep(0)
        editor.reads.set()
        await prompting
        assert editor.text() == "".join(f"{n} " for n in range(500))


async def test_two_prompts_at_once_are_answered_in_their_order() -> None:
    async with acp_editor.editor(["A", "B"]) as editor:
        session = await editor.new()
        first, second = editor.prompting(session, "one"), editor.prompting(session, "two")
        assert [acp_editor.result(await each)["stopReason"] for each in (first, second)] == ["end_turn", "end_turn"]
        assert editor.text() == "AB"


async def test_sessions_do_not_hear_of_each_other() -> None:
    async with acp_editor.editor(["A", "B"]) as editor:
        one, two = await editor.new(), await editor.new()
        await editor.prompt(one, "hello")
        await editor.prompt(two, "hello")
        assert (editor.text(session=one), editor.text(session=two)) == ("A", "B")


# --- what goes with a prompt ---------------------------------------------------------------------------


async def test_what_comes_along_is_in_the_message_and_comes_back_as_it_was() -> None:
    async with acp_editor.editor(["I see"]) as editor:
        session = await editor.new()
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": "Look at "},
            {"type": "resource_link", "uri": "file:///a/b.py", "name": "b.py"},
            {
                "type": "resource",
                "resource": {"uri": "file:///c.txt", "text": "the code is 42", "mimeType": "text/plain"},
            },
            {"type": "image", "data": base64.b64encode(test_pictures.png()).decode(), "mimeType": "image/png"},
        ]
        await editor.ask("session/prompt", sessionId=session, prompt=blocks)
        (asked,) = editor.program.model.requests
        said = str(asked.messages[-1].content)
        assert "file:///a/b.py" in said
        assert "the code is 42" in said
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        shown = [each["content"] for each in editor.told("user_message_chunk")]
        assert [each["type"] for each in shown] == ["text", "resource_link", "resource", "image"]
        assert shown[2]["resource"] == {"uri": "file:///c.txt", "text": "the code is 42"}
        assert shown[3]["data"] == blocks[3]["data"]


async def test_what_was_typed_is_kept_to_the_letter() -> None:
    async with acp_editor.editor(["A", "B", "C"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "    indented\nnext\n")
        blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "  two"}]
        await editor.ask("session/prompt", sessionId=session, prompt=blocks)
        await editor.prompt(session, "  //no command ")
        said = [each.content for each in await editor.program.db.transcript(session) if each.role == "user"]
        assert said[0][-1] == {"type": "text", "text": "    indented\nnext\n"}
        assert said[1:] == [blocks, "  /no command "]


@pytest.mark.parametrize("words", ["", "I must not say"])
async def test_what_a_provider_refuses_is_a_refusal(words: str) -> None:
    said = (content_parts.Text(words),) if words else ()
    refused = base.Reply(said, (), "refused", types.Usage(), "scripted/model")

    async with acp_editor.editor([refused, "well"]) as editor:
        session = await editor.new()
        assert await editor.prompt(session, "go") == "refusal"
        assert (words or "declined") in editor.text()
        assert await editor.prompt(session, "and now?") == "end_turn"


async def test_a_huge_resource_is_kept_whole() -> None:
    async with acp_editor.editor(["Much."]) as editor:
        session = await editor.new()
        blocks = [
            {"type": "text", "text": "What is it?"},
            {"type": "resource", "resource": {"uri": "file:///big.txt", "text": BIG}},
        ]
        await editor.ask("session/prompt", sessionId=session, prompt=blocks)
        (said, _) = await editor.program.db.transcript(session)
        assert BIG in str(said.content)


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [{"type": "text", "text": "  "}],
        [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}],
        [{"type": "image", "data": "no base64", "mimeType": "image/png"}],
        [{"type": "image", "data": "AAAA", "mimeType": "image/png"}],
    ],
)
async def test_a_prompt_that_cannot_be_read_is_refused_and_leaves_nothing(prompt: list[dict[str, Any]]) -> None:
    async with acp_editor.editor() as editor:
        session = await editor.new()
        refused = await acp_editor.refusal(editor.ask("session/prompt", sessionId=session, prompt=prompt))
        assert refused.code == -32602
        with pytest.raises(errors.NoSuchSession):
            await editor.program.db.head(session)


# --- tools and questions -------------------------------------------------------------------------------


async def test_a_question_shows_the_call_and_its_answer_lets_it_run() -> None:
    async with acp_editor.editor([approvals.runs("make test"), "done"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "go")
        (asked,) = editor.questions
        assert asked["toolCall"]["toolCallId"] == editor.told("tool_call")[0]["toolCallId"]
        assert [each["kind"] for each in asked["options"]] == [
            "allow_once",
            "allow_always",
            "allow_always",
            "reject_once",
        ]
        assert editor.program.shell.ran == ["make test"]
        states = [each.get("status") for each in editor.told("tool_call", "tool_call_update")]
        assert states == ["in_progress", "pending", "in_progress", "completed"]


@pytest.mark.parametrize("answer", ["deny", "whatever", None])
async def test_whatever_is_not_a_yes_is_a_no(answer: str | None) -> None:
    async with acp_editor.editor([approvals.runs("make test"), "a pity"]) as editor:
        outcome = {"outcome": "selected", "optionId": answer} if answer else {"outcome": "cancelled"}
        editor.answer = lambda _: {"outcome": outcome}
        session = await editor.new()
        assert await editor.prompt(session, "go") == "end_turn"
        assert editor.program.shell.ran == []
        assert editor.told("tool_call_update")[-1]["status"] == "failed"


async def test_an_editor_that_answers_nonsense_has_denied() -> None:
    async with acp_editor.editor([approvals.runs("make test"), "a pity"]) as editor:
        editor.answer = lambda _: {"outcome": 7}
        session = await editor.new()
        assert await editor.prompt(session, "go") == "end_turn"
        assert editor.program.shell.ran == []


async def test_a_remembered_answer_is_not_asked_for_again() -> None:
    async with acp_editor.editor(
        [approvals.runs("make test"), "1", approvals.runs("make test"), "2", approvals.runs("make test"), "3"]
    ) as editor:
        editor.answer = lambda _: {"outcome": {"outcome": "selected", "optionId": "conversation"}}
        session = await editor.new()
        await editor.prompt(session, "go")
        await editor.prompt(session, "again")
        await editor.ask("session/close", sessionId=session)
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        await editor.prompt(session, "and again")
        assert editor.program.shell.ran == ["make test"] * 3
        assert len(editor.questions) == 1


async def test_calls_that_a_provider_names_alike_are_told_apart_then_and_later() -> None:
    async with acp_editor.editor([approvals.runs("make"), "1", approvals.runs("make"), "2"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "go")
        await editor.prompt(session, "again")
        then = [each["toolCallId"] for each in editor.told("tool_call")]
        assert len({*then}) == 2
        await editor.ask("session/close", sessionId=session)
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        assert [each["toolCallId"] for each in editor.told("tool_call")[2:]] == then


async def test_what_is_dangerous_cannot_be_remembered() -> None:
    async with acp_editor.editor([approvals.runs("rm -rf /"), "done"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "go")
        (asked,) = editor.questions
        assert [each["optionId"] for each in asked["options"]] == ["once", "deny"]


async def test_a_plan_is_shown_as_a_plan_and_as_nothing_else() -> None:
    steps = [{"step": "look", "status": "completed"}, {"step": "leap", "status": "pending", "priority": "high"}]
    call = base.Reply(calls=(types.ToolCall("p1", "update_plan", {"steps": steps}),), usage=types.Usage(10, 5))

    async with acp_editor.editor([call, "done"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "go")
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        shown = editor.told("plan")
        assert len(shown) == 2
        assert shown[0] == shown[1]
        assert [each["status"] for each in shown[0]["entries"]] == ["completed", "pending"]
        assert not editor.told("tool_call", "tool_call_update")


# --- how a turn ends -----------------------------------------------------------------------------------


async def test_a_turn_that_failed_is_an_error_that_says_why_and_the_prompt_is_kept() -> None:
    async with acp_editor.editor([errors.KeyRefused("The key was refused."), "now"]) as editor:
        session = await editor.new()
        refused = await acp_editor.refusal(editor.prompt(session, "hello"))
        assert refused.code == -32603
        assert "key" in str(refused)
        assert [each.role for each in await editor.program.db.transcript(session)] == ["user"]
        assert await editor.prompt(session, "again") == "end_turn"


async def test_a_client_that_vanishes_in_a_turn_loses_nothing(db: AsyncSessionDB) -> None:
    model = agents.Trickle("so far ")

    program = acp_editor.House(db, model)
    async with acp_editor.seated(program) as editor:
        session = await editor.new()
        editor.prompting(session, "hello")
        editor.prompting(session, "this one waits")
        await model.stuck.reached.wait()
        editor.vanish()
        await asyncio.wait([editor.serving])
    assert program.open == 0
    said = await db.transcript(session)
    assert [each.role for each in said] == ["user", "assistant"]


# --- commands ------------------------------------------------------------------------------------------


async def test_commands_are_told_after_the_session_is_known_and_those_of_other_places_are_not() -> None:
    async with acp_editor.editor() as editor:
        await editor.new()
        told = await editor.until("available_commands_update")
        names = {each["name"] for each in told["availableCommands"]}
        assert {"compact", "status", "undo", "model", "branch"} <= names
        assert not names & {"quit", "new", "reset", "resume"}


class Later:
    """A server that brings a command some time after it was asked for."""

    def __init__(self) -> None:
        self.brought: list[commands.SlashCommand] = []

    def listed(self) -> list[commands.SlashCommand]:
        return self.brought

    async def text(self, name: str, argument: str) -> str | None:
        return f"Greet {argument}" if any(each.name == name for each in self.brought) else None


async def nothing(_: commands.Invocation) -> None:
    pass


async def test_commands_that_come_later_are_told_and_say_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)
    later = Later()

    async with acp_editor.editor(["Hello Ann"], prompt_commands=later) as editor:
        here = await editor.new()
        await editor.until("available_commands_update")
        later.brought.append(commands.SlashCommand(name="wiki:greet", help="Greets.", run=nothing, argument="NAME"))
        told = await editor.until("available_commands_update")
        assert told["availableCommands"][-1] == {
            "name": "wiki:greet",
            "description": "Greets.",
            "input": {"hint": "NAME"},
        }
        assert await editor.prompt(here, "/wiki:greet Ann") == "end_turn"
        (said, _) = await editor.program.db.transcript(here)
        assert "Greet Ann" in str(said.content)


async def test_a_command_answers_and_is_no_message() -> None:
    async with acp_editor.editor() as editor:
        session = await editor.new()
        assert await editor.prompt(session, "/status") == "end_turn"
        assert "model" in editor.text()
        assert await editor.prompt(session, "/nonsense") == "end_turn"
        assert "Unknown command" in editor.text()
        assert await editor.prompt(session, "/title The harbour") == "end_turn"
        assert "with its first message" in editor.text()
        with pytest.raises(errors.NoSuchSession):
            await editor.program.db.head(session)


async def test_two_slashes_say_that_it_is_no_command() -> None:
    async with acp_editor.editor(["what?"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "//status")
        (said, _) = await editor.program.db.transcript(session)
        assert "/status" in str(said.content)
        assert "//status" not in str(said.content)


async def test_compact_is_the_same_as_everywhere_and_the_whole_transcript_comes_back(db: AsyncSessionDB) -> None:
    session = "talk"
    await fill(db)
    before = len(await db.transcript(session))
    program = acp_editor.House(db, ScriptedModel(["A summary of it all."] * 3, window=WINDOW))
    async with acp_editor.seated(program) as editor:
        await editor.ask("session/resume", sessionId=session, cwd="/", mcpServers=[])
        assert await editor.prompt(session, "/compact") == "end_turn"
        assert (await db.context(session)).cut_seq > 0
        assert "Summarizing" in editor.text("agent_thought_chunk")
        assert "Compacted up to" in editor.text()
    async with acp_editor.seated(program) as editor:
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        shown = editor.told("user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update")
        assert len(shown) >= before


async def test_retry_is_a_turn_of_its_own() -> None:
    async with acp_editor.editor(["A", "B"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "hello")
        assert await editor.prompt(session, "/retry") == "end_turn"
        assert editor.text().endswith("B")
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        replayed = editor.told("user_message_chunk")
        assert [each["content"]["text"] for each in replayed] == ["hello"]


async def test_a_branch_is_told_of_and_the_session_stays() -> None:
    async with acp_editor.editor(["A", "B"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "hello")
        await editor.prompt(session, "/branch")
        assert "Created the branch" in editor.text()
        await editor.prompt(session, "still here")
        assert len(await editor.program.db.transcript(session)) == 4
        listed = (await editor.ask("session/list"))["sessions"]
        assert len(listed) == 2


# --- what others do ------------------------------------------------------------------------------------


async def test_what_others_say_in_the_conversation_is_told_before_what_comes_after_it() -> None:
    async with acp_editor.editor(["A", "B"]) as editor:
        db = editor.program.db
        session = await editor.new()
        await editor.prompt(session, "hello")
        await db.append_message(session, role="user", content="from the terminal")
        await db.append_message(session, role="assistant", content="to the terminal")
        await editor.prompt(session, "and I?")
        assert editor.text("user_message_chunk") == "from the terminal"
        assert editor.text() == "Ato the terminalB"


async def test_what_is_ours_is_never_told_as_somebody_elses_however_slow_an_editor_reads() -> None:
    async with acp_editor.editor(["A"]) as editor:
        here = await editor.new()
        await editor.until("available_commands_update")
        editor.reads.clear()
        editor.asking("session/set_mode", sessionId=here, modeId="code")
        await acp_editor.so(lambda: any("config_option_update" in str(frame) for frame in editor.frames))
        editor.program.db.notifications._dispatch(notifications.Hint("moved", here))
        prompting = editor.prompting(here, "hello")
        (door,) = editor.program.doors
        await acp_editor.so(lambda: door.running(here))
        await door.wait_idle(here)
        editor.reads.set()
        assert acp_editor.result(await prompting) == {"stopReason": "end_turn"}
        assert editor.told("user_message_chunk") == []
        assert editor.text() == "A"


async def test_prompt_is_answered_although_the_usage_cannot_be_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(usage, "read", hang)
    monkeypatch.setattr(subscriptions, "GAP_SECONDS", 0.01)

    async with acp_editor.editor(["A"]) as editor:
        async with asyncio.timeout(30):
            assert await editor.prompt(await editor.new(), "hello") == "end_turn"


async def test_what_another_process_writes_is_told_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)
    place = str(tmp_path / "store.db")

    async with agents.store(place) as db:
        program = acp_editor.House(db, ScriptedModel(["A"]))
        async with acp_editor.seated(program) as editor, AsyncSessionDB(SessionDB(place)) as other:
            here = await editor.new()
            await editor.prompt(here, "hello")
            await editor.until("usage_update")
            await other.append_message(here, role="user", content="from the terminal")
            await other.append_message(here, role="assistant", content="to the terminal")
            await editor.until("user_message_chunk")
            await editor.until("agent_message_chunk")
            assert editor.text("user_message_chunk") == "from the terminal"
            assert editor.text() == "Ato the terminal"
