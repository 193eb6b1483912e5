"""A session: prompts and their updates, permission requests, cancellation and slash commands."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.acp import session as sessions
from holdfast.agent.commands import base as commands
from holdfast.model import base
from holdfast.tools.files import images
from tests.support import agents, approvals
from tests.support.acp_editor import Program, connect, open_editor, refusal, result
from tests.support.compaction import WINDOW, fill

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LARGE_PNG = base64.b64encode(base64.b64decode(PNG) + bytes(images.MAX_BYTES)).decode()

BIG = "x" * 2_000_000
WHERE: dict[str, Any] = {"cwd": "/", "mcpServers": []}
CANCELLED = {"stopReason": "cancelled"}


def resource(uri: str, text: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "text": text}}


async def test_prompt_is_answered_after_its_updates_also_if_the_editor_is_slow() -> None:
    deltas = [base.ThinkingDelta("hm"), *(base.ContentDelta(f"{n} ") for n in range(500)), base.FinishDelta("stop")]
    async with open_editor([deltas]) as editor:
        session = await editor.new()
        editor.reads.clear()
        prompting = editor.prompting(session, "hello")
        await asyncio.sleep(0)
        editor.reads.set()
        assert result(await prompting) == {"stopReason": "end_turn"}
        assert editor.text("agent_thought_chunk") == "hm"
        assert editor.text() == "".join(f"{n} " for n in range(500))
        *_, last, response = editor.frames
        assert response["result"] == {"stopReason": "end_turn"}
        assert last["params"]["update"]["sessionUpdate"] == "usage_update"


async def test_prompts_of_a_session_are_answered_in_order_and_sessions_are_separate() -> None:
    async with open_editor(["A", "B", "C"]) as editor:
        one, two = await editor.new(), await editor.new()
        prompting = [editor.prompting(one, "one"), editor.prompting(one, "two")]
        assert [result(await each)["stopReason"] for each in prompting] == ["end_turn", "end_turn"]
        await editor.prompt(two, "hello")
        assert (editor.text(session=one), editor.text(session=two)) == ("AB", "C")


# --- contents of a prompt ------------------------------------------------------------------------------


async def test_attachments_reach_the_model_and_are_loaded_unchanged() -> None:
    async with open_editor(["I see"]) as editor:
        session = await editor.new()
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": "Look at "},
            {"type": "resource_link", "uri": "file:///a/b.py", "name": "b.py"},
            resource("file:///c.txt", BIG),
            {"type": "image", "data": PNG, "mimeType": "image/png"},
        ]
        await editor.ask("session/prompt", sessionId=session, prompt=blocks)
        (asked,) = editor.program.model.requests
        assert "file:///a/b.py" in str(asked.messages[-1].content)
        assert PNG in str(asked.messages[-1].content)
        (stored, _) = await editor.program.db.transcript(session)
        assert BIG in str(stored.content)
        await editor.ask("session/load", sessionId=session, **WHERE)
        shown = [each["content"] for each in editor.received("user_message_chunk")]
        assert [each["type"] for each in shown] == ["text", "resource_link", "resource", "image"]
        assert (shown[2], shown[3]["data"]) == (blocks[2], blocks[3]["data"])


async def test_text_of_a_prompt_is_stored_verbatim() -> None:
    async with open_editor(["A", "B", "C"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "    indented\nnext\n")
        blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "  two"}]
        await editor.ask("session/prompt", sessionId=session, prompt=blocks)
        await editor.prompt(session, "  //no command ")
        stored = [each.content for each in await editor.program.db.transcript(session) if each.role == "user"]
        assert stored[0][-1] == {"type": "text", "text": "    indented\nnext\n"}
        assert stored[1:] == [blocks, "  /no command "]


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}],
        [{"type": "image", "data": "no base64", "mimeType": "image/png"}],
        [{"type": "image", "data": "AAAA", "mimeType": "image/png"}],
        [{"type": "image", "data": LARGE_PNG, "mimeType": "image/png"}],
    ],
    ids=["empty", "audio", "no base64", "no image", "too large"],
)
async def test_invalid_prompt_is_refused_and_leaves_nothing_behind(prompt: list[dict[str, Any]]) -> None:
    async with open_editor() as editor:
        session = await editor.new()
        assert (await refusal(editor.ask("session/prompt", sessionId=session, prompt=prompt))).code == -32602
        with pytest.raises(errors.NoSuchSession):
            await editor.program.db.head(session)


@pytest.mark.parametrize("words", ["", "I must not say"])
async def test_refusal_of_the_provider_is_a_refusal(words: str) -> None:
    parts = (content_parts.Text(words),) if words else ()
    refused = base.Reply(parts, (), "refused", types.Usage(), "scripted/model")
    async with open_editor([refused, "well"]) as editor:
        session = await editor.new()
        assert await editor.prompt(session, "go") == "refusal"
        assert (words or "declined") in editor.text()
        assert await editor.prompt(session, "and now?") == "end_turn"


async def test_failed_turn_is_an_error_and_its_prompt_is_kept() -> None:
    async with open_editor([errors.KeyRefused("The key was refused."), "now"]) as editor:
        session = await editor.new()
        refused = await refusal(editor.prompt(session, "hello"))
        assert (refused.code, "key" in str(refused)) == (-32603, True)
        assert [each.role for each in await editor.program.db.transcript(session)] == ["user"]
        assert await editor.prompt(session, "again") == "end_turn"


# --- tools and permission requests ---------------------------------------------------------------------


async def test_permission_request_shows_the_call_and_approval_runs_it() -> None:
    script = [approvals.shell_reply("make test"), "done", approvals.shell_reply("rm -rf /"), "done"]
    async with open_editor(script) as editor:
        session = await editor.new()
        await editor.prompt(session, "go")
        (asked,) = editor.questions
        assert asked["toolCall"]["toolCallId"] == editor.received("tool_call")[0]["toolCallId"]
        kinds = [each["kind"] for each in asked["options"]]
        assert kinds == ["allow_once", "allow_always", "allow_always", "reject_once"]
        assert editor.program.shell.ran == ["make test"]
        states = [each.get("status") for each in editor.received("tool_call", "tool_call_update")]
        assert states == ["in_progress", "pending", "in_progress", "completed"]
        await editor.prompt(session, "go on")  # Approval of a dangerous command is never remembered.
        assert [each["optionId"] for each in editor.questions[1]["options"]] == ["once", "deny"]


def selected(option: object) -> dict[str, Any]:
    return {"result": {"outcome": {"outcome": "selected", "optionId": option}}}


@pytest.mark.parametrize(
    ("answer", "by"),
    [
        (selected("deny"), "the editor: no"),
        ({"result": {"outcome": {"outcome": "cancelled"}}}, "the editor: no"),
        *(
            (each, "no approver")
            for each in (
                {"result": None},
                {"result": {"outcome": "once"}},
                {"result": {"outcome": {"outcome": "selected"}}},
                selected("nope"),
                {"error": {"code": -32603, "message": "The window is closed."}},
                {"jsonrpc": "1.0", **selected("once")},
            )
        ),
    ],
)
async def test_only_approval_permits_and_only_denial_is_attributed_to_a_person(answer: dict[str, Any], by: str) -> None:
    async with open_editor([approvals.shell_reply("make it"), "A pity."]) as editor:
        editor.answer = lambda _: None
        session = await editor.new()
        prompting = editor.prompting(session, "go")
        await editor.wait_question()
        asked = next(each for each in editor.frames if each.get("method") == "session/request_permission")
        # The prompt may have the same id as the question: the ids of the two sides are independent.
        editor.raw(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode())
        assert result(await prompting) == {"stopReason": "end_turn"}
        assert editor.program.shell.ran == []
        assert editor.received("tool_call_update")[-1]["status"] == "failed"
        (denial,) = (each.content for each in await editor.program.db.transcript(session) if each.role == "tool")
        assert await approvals.audit_rows(editor.program.db) == [("make it", False, by, None)]
    assert str(denial).endswith(sessions.NOT_ASKED if by == "no approver" else "The person denied it.")
    assert ("denied" in str(denial)) is (by != "no approver")


async def test_remembered_approval_is_not_asked_for_again() -> None:
    script = [reply for number in "123" for reply in (approvals.shell_reply("make test"), number)]
    async with open_editor(script) as editor:
        editor.answer = lambda _: selected("conversation")["result"]
        session = await editor.new()
        await editor.prompt(session, "go")
        await editor.prompt(session, "again")
        then = [each["toolCallId"] for each in editor.received("tool_call")]
        assert len({*then}) == 2  # Calls with equal ids of the provider have different ones.
        await editor.ask("session/close", sessionId=session)
        await editor.ask("session/load", sessionId=session, **WHERE)
        assert [each["toolCallId"] for each in editor.received("tool_call")[2:]] == then
        await editor.prompt(session, "and again")
        assert (editor.program.shell.ran, len(editor.questions)) == (["make test"] * 3, 1)


# --- cancellation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "cancel_request", "close", "load", "shutdown", "disconnect"])
async def test_ended_turn_keeps_the_text_so_far(how: str, db: AsyncSessionDB) -> None:
    model = agents.Trickle("so far ")
    program = Program(db, model)
    async with connect(program) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "hello")
        await model.stuck.reached.wait()
        if how == "cancel":
            editor.notify("session/cancel", sessionId=session)
        elif how == "cancel_request":
            editor.notify("$/cancel_request", requestId=editor.number)
        elif how == "shutdown":
            editor.serving.cancel()
        elif how == "disconnect":
            editor.prompting(session, "this one waits")
            editor.vanish()
        else:
            await editor.ask(f"session/{how}", sessionId=session, **(WHERE if how == "load" else {}))
        if how != "disconnect":
            assert result(await prompting) == CANCELLED
        if how in ("shutdown", "disconnect"):
            await asyncio.wait([editor.serving])
        assert program.open == (how in ("cancel", "cancel_request", "load"))
        user, partial = await db.transcript(session)
        assert (content_parts.text(user.content), partial.role) == ("hello", "assistant")
        assert "so far" in str(partial.content)


@pytest.mark.parametrize("how", ["cancelled", "read-only"])
async def test_withdrawn_permission_request_runs_nothing(how: str) -> None:
    async with open_editor([approvals.shell_reply("make test"), "A pity.", "here I am"]) as editor:
        editor.answer = lambda _: None
        session = await editor.new()
        prompting = editor.prompting(session, "go")
        await editor.wait_question()
        if how == "cancelled":
            editor.notify("session/cancel", sessionId=session)
        else:
            await editor.ask("session/set_mode", sessionId=session, modeId="read-only")
        assert result(await prompting)["stopReason"] == ("cancelled" if how == "cancelled" else "end_turn")
        assert editor.program.shell.ran == []
        assert editor.received("tool_call_update")[-1]["status"] == "failed"
        assert editor.open_calls(session) == set()
        assert await editor.prompt(session, "hello") == "end_turn"


async def test_cancellation_includes_waiting_prompts_and_unknown_ones_are_ignored() -> None:
    async with open_editor(["here I am"] * 3) as editor:
        session = await editor.new()
        asked = [editor.prompting(session, "one"), editor.prompting(session, "two")]
        editor.notify("session/cancel", sessionId=session)
        assert [result(await each) for each in asked] == [CANCELLED, CANCELLED]
        unwanted = editor.prompting(session, "never begun")
        editor.notify("$/cancel_request", requestId=editor.number)
        assert result(await unwanted) == CANCELLED
        editor.notify("session/cancel", sessionId="unknown")
        editor.notify("session/cancel", sessionId=session)
        editor.notify("$/cancel_request", requestId=99)
        assert await editor.prompt(session, "three") == "end_turn"


async def test_cancelled_prompt_is_answered_although_its_turn_does_not_end() -> None:
    over, stopped = asyncio.Event(), asyncio.Event()

    async def stay(_: dict[str, Any]) -> str:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                stopped.set()
        return "at last"

    async with open_editor([agents.calls("stay"), "B"], tools=[agents.tool("stay", stay)]) as editor:
        session = await editor.new()
        first = editor.prompting(session, "go")
        await editor.until("tool_call")
        editor.notify("session/cancel", sessionId=session)
        assert result(await agents.LoopClock().finish(first)) == CANCELLED
        assert stopped.is_set()
        second = editor.prompting(session, "and now?")
        over.set()
        assert result(await second) == {"stopReason": "end_turn"}
        assert (editor.text(), editor.open_calls(session)) == ("B", set())


# --- commands ------------------------------------------------------------------------------------------


class PromptCommands:
    """The prompts of a server, which are added some time after the session was opened."""

    def __init__(self) -> None:
        self.added: list[commands.SlashCommand] = []

    def listed(self) -> list[commands.SlashCommand]:
        return self.added

    async def text(self, name: str, argument: str) -> str | None:
        return f"Greet {argument}" if any(each.name == name for each in self.added) else None


async def do_nothing(_: commands.Invocation) -> None:
    pass


async def test_available_commands_are_listed_and_updated() -> None:
    later = PromptCommands()
    async with open_editor(["Hello Ann"], prompt_commands=later, poll_seconds=0.01) as editor:
        session = await editor.new()
        listed = await editor.until("available_commands_update")
        names = {each["name"] for each in listed["availableCommands"]}
        assert {"compact", "status", "undo", "model", "branch"} <= names
        assert not names & {"quit", "new", "reset", "resume"}
        later.added.append(commands.SlashCommand(name="wiki:greet", help="Greets.", run=do_nothing, argument="NAME"))
        listed = await editor.until("available_commands_update")
        expected = {"name": "wiki:greet", "description": "Greets.", "input": {"hint": "NAME"}}
        assert listed["availableCommands"][-1] == expected
        assert await editor.prompt(session, "/wiki:greet Ann") == "end_turn"
        (stored, _) = await editor.program.db.transcript(session)
        assert "Greet Ann" in str(stored.content)


async def test_command_is_answered_and_is_no_message() -> None:
    async with open_editor() as editor:
        session = await editor.new()
        for line, answer in (("/status", "model"), ("/nonsense", "Unknown command"), ("/title A", "its first message")):
            assert await editor.prompt(session, line) == "end_turn"
            assert answer in editor.text()
        with pytest.raises(errors.NoSuchSession):
            await editor.program.db.head(session)


async def test_compaction_can_be_cancelled(db: AsyncSessionDB) -> None:
    await fill(db)
    slow = agents.Trickle()
    slow.window = WINDOW
    async with connect(Program(db, slow)) as editor:
        await editor.ask("session/resume", sessionId="talk", **WHERE)
        prompting = editor.prompting("talk", "/compact")
        await slow.stuck.reached.wait()
        editor.notify("session/cancel", sessionId="talk")
        assert result(await prompting) == CANCELLED
        assert (await db.context("talk")).cut_seq == 0
