"""Sessions by their ids: new, load, resume, close, how they behave, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.acp import client as editors
from holdfast.acp import server
from holdfast.acp import session as sessions
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime, subscriptions
from tests.support import acp_editor, agents, approvals

UNKNOWN = "20200101_000000_abcdef"


async def test_opening_and_closing_leaves_nothing_behind() -> None:
    async with acp_editor.editor() as editor:
        session = await editor.new()
        assert await editor.ask("session/close", sessionId=session) == {}
        with pytest.raises(errors.NoSuchSession):
            await editor.program.db.head(session)
        assert (await editor.ask("session/list"))["sessions"] == []


async def test_a_new_session_says_what_there_is_to_choose() -> None:
    async with acp_editor.editor() as editor:
        made = await editor.ask("session/new", cwd="/", mcpServers=[])
        assert made["modes"]["currentModeId"] == "ask"
        assert [each["id"] for each in made["modes"]["availableModes"]] == ["ask", "code", "read-only"]
        mode, model = made["configOptions"]
        assert (mode["id"], mode["currentValue"]) == ("mode", "ask")
        assert (model["id"], model["currentValue"]) == ("model", "scripted/model")
        assert [each["value"] for each in model["options"]] == ["scripted/model", "other/model"]


async def test_a_session_works_in_its_own_folders(tmp_path: Path) -> None:
    async with acp_editor.editor() as editor:
        await editor.new(str(tmp_path), additionalDirectories=["/"])
        (place,) = editor.program.places
        assert place.folders == (str(tmp_path), "/")


@pytest.mark.parametrize("folder", ["relative", "/no/such/folder/anywhere", "/\0", ""])
async def test_a_folder_that_is_none_is_refused(folder: str) -> None:
    async with acp_editor.editor() as editor:
        assert (await acp_editor.refusal(editor.new(folder))).code == -32602
        assert (await acp_editor.refusal(editor.new("/", additionalDirectories=[folder]))).code == -32602


# --- again ---------------------------------------------------------------------------------------------


async def test_loading_tells_everything_before_it_answers(db: AsyncSessionDB) -> None:
    script = [approvals.runs("make test"), "first", "second"]

    program = acp_editor.House(db, ScriptedModel(script))
    async with acp_editor.seated(program) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.prompt(session, "two")
    async with acp_editor.seated(program) as editor:
        loading = editor.asking("session/load", sessionId=session, cwd="/", mcpServers=[])
        answer = await loading
        before = editor.frames[: editor.frames.index(answer)]
        kinds = [each["params"]["update"]["sessionUpdate"] for each in before if "method" in each]
        assert kinds == [
            "user_message_chunk",
            "tool_call",
            "tool_call_update",
            "agent_message_chunk",
            "user_message_chunk",
            "agent_message_chunk",
        ]
        assert editor.text("user_message_chunk") == "onetwo"
        assert editor.text() == "firstsecond"
        await editor.until("available_commands_update")
        assert (await editor.until("session_info_update"))["title"]


async def test_a_call_that_nobody_finished_is_not_open_when_it_is_loaded() -> None:
    async with acp_editor.editor() as editor:
        db = editor.program.db
        call = types.ToolCall("c1", "shell", {"command": "make"})
        await db.create_session("talk", source="test")
        await db.append_message("talk", role="user", content="go")
        await db.append_message("talk", role="assistant", tool_calls=[call])
        await editor.ask("session/load", sessionId="talk", cwd="/", mcpServers=[])
        assert editor.told("tool_call")
        assert editor.open_calls("talk") == set()


async def test_a_call_that_another_process_finishes_later_is_told_as_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with acp_editor.editor() as editor:
        db = editor.program.db
        call = types.ToolCall("c1", "shell", {"command": "make"})
        await db.create_session("talk", source="test")
        await db.append_message("talk", role="user", content="go")
        await db.append_message("talk", role="assistant", tool_calls=[call])
        await editor.ask("session/load", sessionId="talk", cwd="/", mcpServers=[])
        await db.append_message("talk", role="tool", content="built", tool_call_id="c1")
        told = await editor.until("tool_call_update", status="completed")
        assert "built" in str(told["content"])


async def test_resuming_tells_nothing_and_goes_on() -> None:
    async with acp_editor.editor(["A", "B"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.ask("session/close", sessionId=session)
        assert (await acp_editor.refusal(editor.prompt(session, "closed"))).code == -32002
        await editor.ask("session/resume", sessionId=session, cwd="/", mcpServers=[])
        assert not editor.told("user_message_chunk")
        await editor.prompt(session, "two")
        assert [each.role for each in await editor.program.db.transcript(session)] == ["user", "assistant"] * 2


async def test_loading_what_is_open_opens_it_anew_and_answers_what_ran() -> None:
    model = agents.Trickle("so far ")

    async with acp_editor.editor(model=model) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "one")
        await model.stuck.reached.wait()
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        assert editor.program.open == 1


async def test_any_id_the_conversation_ever_had_opens_it() -> None:
    async with acp_editor.editor(["A"]) as editor:
        db = editor.program.db
        await db.create_session("talk", source="test")
        await db.append_message("talk", role="user", content="one")
        head = (await db.branch("talk")).id
        await editor.ask("session/load", sessionId=head, cwd="/", mcpServers=[])
        await editor.prompt(head, "two")
        assert editor.text(session=head) == "A"


async def test_an_id_nobody_has_is_not_found_whatever_is_asked_of_it() -> None:
    where: dict[str, Any] = {"cwd": "/", "mcpServers": []}
    methods: dict[str, dict[str, Any]] = {
        "session/load": where,
        "session/resume": where,
        "session/fork": where,
        "session/close": {},
        "session/prompt": {"prompt": [{"type": "text", "text": "x"}]},
        "session/set_mode": {"modeId": "ask"},
        "session/set_config_option": {"configId": "mode", "value": "ask"},
    }

    async with acp_editor.editor() as editor:
        for method, params in methods.items():
            for name in (UNKNOWN, "x" * 5_000, "", "../../etc"):
                refused = await acp_editor.refusal(editor.ask(method, sessionId=name, **params))
                assert refused.code == -32002, (method, name)


async def test_a_deleted_conversation_is_not_found() -> None:
    async with acp_editor.editor(["A"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.ask("session/close", sessionId=session)
        await editor.program.db.delete_conversation(session)
        refused = await acp_editor.refusal(editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[]))
        assert refused.code == -32002


async def test_what_has_not_begun_is_opened_again_all_the_same() -> None:
    async with acp_editor.editor(["A", "B"]) as editor:
        session = await editor.new()
        for method in ("session/load", "session/resume"):
            await editor.ask(method, sessionId=session, cwd="/", mcpServers=[])
        fork = (await editor.ask("session/fork", sessionId=session, cwd="/", mcpServers=[]))["sessionId"]
        assert fork != session
        assert [await editor.prompt(each, "hello") for each in (session, fork)] == ["end_turn", "end_turn"]


async def test_a_prompt_to_a_conversation_that_was_deleted_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with acp_editor.editor(["A"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.program.db.delete_conversation(session)
        refused = await acp_editor.refusal(editor.prompt(session, "two"))
        assert "deleted" in str(refused)
    assert not [each for each in caplog.records if each.exc_info]


async def test_what_closes_slowly_keeps_no_other_session_waiting(db: AsyncSessionDB) -> None:
    leave = asyncio.Event()

    class Slow(acp_editor.House):
        @asynccontextmanager
        async def open_runtime(
            self, place: sessions.SessionSpec, client: editors.ToolClient
        ) -> AsyncIterator[runtime.Runtime]:
            async with super().open_runtime(place, client) as opened:
                yield opened
            if place is self.places[0]:
                await leave.wait()

    async with acp_editor.seated(Slow(db, ScriptedModel([]))) as editor:
        closing = editor.asking("session/close", sessionId=await editor.new())
        await editor.ask("session/close", sessionId=await editor.new())
        assert not closing.done()
        leave.set()
        assert acp_editor.result(await closing) == {}


# --- how a session behaves -----------------------------------------------------------------------------


async def test_read_only_runs_nothing_and_asks_nothing() -> None:
    async with acp_editor.editor([approvals.runs("make test"), "a pity"]) as editor:
        session = await editor.new()
        assert await editor.ask("session/set_mode", sessionId=session, modeId="read-only") == {}
        told = await editor.until("config_option_update")
        assert told["configOptions"][0]["currentValue"] == "read-only"
        await editor.prompt(session, "go")
        assert editor.program.shell.ran == []
        assert editor.questions == []


async def test_a_mode_chosen_as_an_option_is_the_same_mode() -> None:
    async with acp_editor.editor() as editor:
        session, other = await editor.new(), await editor.new()
        given = await editor.ask("session/set_config_option", sessionId=session, configId="mode", value="code")
        assert given["configOptions"][0]["currentValue"] == "code"
        assert (await editor.until("current_mode_update"))["currentModeId"] == "code"
        looked = await editor.ask("session/set_config_option", sessionId=other, configId="model", value="other/model")
        assert looked["configOptions"][0]["currentValue"] == "ask"


async def test_another_model_answers_from_the_next_turn_on() -> None:
    async with acp_editor.editor(["A"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        given = await editor.ask("session/set_config_option", sessionId=session, configId="model", value="other/model")
        assert given["configOptions"][1]["currentValue"] == "other/model"
        await editor.prompt(session, "two")
        assert editor.text() == "Athe other one"


async def test_a_model_chosen_by_a_command_is_told_of() -> None:
    async with acp_editor.editor() as editor:
        session = await editor.new()
        await editor.prompt(session, "/model other/model")
        told = await editor.until("config_option_update")
        assert told["configOptions"][1]["currentValue"] == "other/model"


@pytest.mark.parametrize(
    ("option", "value"), [("mode", "yolo"), ("model", "no/such"), ("model", ""), ("colour", "red"), ("mode", "")]
)
async def test_what_cannot_be_chosen_is_refused_and_changes_nothing(option: str, value: str) -> None:
    async with acp_editor.editor() as editor:
        session = await editor.new()
        asked = editor.ask("session/set_config_option", sessionId=session, configId=option, value=value)
        assert (await acp_editor.refusal(asked)).code == -32602
        assert (
            await acp_editor.refusal(editor.ask("session/set_mode", sessionId=session, modeId="yolo"))
        ).code == -32602
        given = await editor.ask("session/set_config_option", sessionId=session, configId="mode", value="ask")
        assert given["configOptions"][1]["currentValue"] == "scripted/model"


# --- what is refused -----------------------------------------------------------------------------------


async def test_there_is_nothing_to_log_in_to() -> None:
    async with acp_editor.editor() as editor:
        assert (await acp_editor.refusal(editor.ask("authenticate", methodId="oauth"))).code == -32602


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/new", {}, -32602),
        ("session/new", {"cwd": 7, "mcpServers": []}, -32602),
        ("session/prompt", {"sessionId": "x", "prompt": "text"}, -32602),
        ("session/prompt", {"sessionId": "x", "prompt": [{"type": "dance"}]}, -32602),
        ("session/explode", {}, -32601),
        ("_own/method", {}, -32601),
    ],
)
async def test_what_is_asked_wrongly_gets_the_protocols_error(method: str, params: dict[str, Any], code: int) -> None:
    async with acp_editor.editor() as editor:
        assert (await acp_editor.refusal(editor.ask(method, **params))).code == code
        await editor.new()


@pytest.mark.parametrize("params", [{}, {"params": None}, {"params": {}}])
async def test_what_can_all_be_left_out_may_be(params: dict[str, Any]) -> None:
    async with acp_editor.editor() as editor:
        editor.say({"jsonrpc": "2.0", "id": "bare", "method": "session/list", **params})
        await acp_editor.so(lambda: [each for each in editor.frames if each.get("id") == "bare"])
        assert editor.frames[-1]["result"] == {"sessions": []}


async def test_more_sessions_than_there_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SESSIONS", 2)

    async with acp_editor.editor() as editor:
        one, _ = await editor.new(), await editor.new()
        assert (await acp_editor.refusal(editor.new())).code == -32600
        await editor.ask("session/close", sessionId=one)
        await editor.new()


async def test_a_fault_of_ours_is_told_without_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: acp_editor.House) -> list[str]:
        raise RuntimeError("secret inner thing")

    monkeypatch.setattr(acp_editor.House, "models", broken)

    async with acp_editor.editor() as editor:
        answer = await editor.asking("session/new", cwd="/", mcpServers=[])
        assert answer["error"]["code"] == -32603
        assert "secret" not in str(answer)


async def test_closing_in_a_turn_answers_its_prompt_first() -> None:
    model = agents.Trickle("so far ")

    async with acp_editor.editor(model=model) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "one")
        await model.stuck.reached.wait()
        closing = editor.asking("session/close", sessionId=session)
        assert acp_editor.result(await prompting) == {"stopReason": "cancelled"}
        assert acp_editor.result(await closing) == {}
        assert editor.program.open == 0


async def test_what_a_tool_tells_the_editor_never_overtakes_its_call(db: AsyncSessionDB) -> None:
    from acp import helpers

    from holdfast.tools import base as tools

    async def run(_: dict[str, Any]) -> str:
        shown = helpers.update_tool_call(tools.current().call_id, content=[helpers.tool_terminal_ref("t1")])
        await program.clients[0].session_update(session_id=program.places[0].session_id, update=shown)
        return "It ran."

    program = acp_editor.House(db, ScriptedModel([agents.calls("look"), "done"]), tools=[agents.tool("look", run)])
    async with acp_editor.seated(program) as editor:
        session = await editor.new()
        await editor.prompt(session, "go")
        calls = editor.told("tool_call", "tool_call_update")
        assert [each["sessionUpdate"] for each in calls] == ["tool_call", "tool_call_update", "tool_call_update"]
        assert calls[2]["content"] == [{"type": "terminal", "terminalId": "t1"}]
        assert calls[2]["status"] == "completed"


async def test_two_editors_in_one_conversation_take_turns_and_lose_nothing(db: AsyncSessionDB) -> None:
    one, two = acp_editor.House(db, ScriptedModel(["A", "C"])), acp_editor.House(db, ScriptedModel(["B"]))
    async with acp_editor.seated(one) as here, acp_editor.seated(two) as there:
        session = await here.new()
        await here.prompt(session, "one")
        await there.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        both = await asyncio.gather(here.prompt(session, "two"), there.prompt(session, "three"))
        assert both == ["end_turn", "end_turn"]
    said = await db.transcript(session)
    assert [each.role for each in said] == ["user", "assistant"] * 3
