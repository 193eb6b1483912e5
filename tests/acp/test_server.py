"""The ACP server: sessions are created, opened, listed, forked, configured and closed; other requests are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from acp import helpers

from holdfast import AsyncSessionDB, errors, types
from holdfast.acp import modes
from holdfast.acp import session as sessions
from holdfast.agent import approvals as permissions
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.tools import base as tools
from tests.support import agents, approvals
from tests.support.acp_editor import Editor, Program, connect, open_editor, refusal

UNKNOWN = "20200101_000000_abcdef"
WHERE: dict[str, Any] = {"cwd": "/", "mcpServers": []}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return str(tmp_path / "one"), str(tmp_path / "two")


async def list_folders(editor: Editor, **asked: Any) -> dict[str, str]:
    """Return the listed sessions, each with its folder."""
    page = await editor.ask("session/list", **asked)
    return {each["sessionId"]: each["cwd"] for each in page["sessions"]}


async def store(db: AsyncSessionDB, name: str, folder: str | None = None, **more: Any) -> None:
    await db.create_session(name, source="test", folder=folder, **more)
    await db.append_message(name, role="user", content="hi")


class FullProgram(Program):
    """A program that fails to open a second session."""

    async def models(self) -> Sequence[str]:
        if len(self.runtimes) > 1:
            raise errors.SettingInvalid("There are no more models.")
        return await super().models()


class SlowProgram(Program):
    """A program whose first session fails to close when `leave` is set."""

    leave: asyncio.Event

    @asynccontextmanager
    async def open_runtime(self, place: sessions.SessionSpec, client: Any) -> AsyncIterator[runtime.Runtime]:
        async with super().open_runtime(place, client) as opened:
            yield opened
        if place is self.places[0]:
            await self.leave.wait()
            raise errors.HoldfastError("It is stuck.")


# --- new and close -------------------------------------------------------------------------------------


async def test_new_session_has_its_folders_and_choices_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_editor() as editor:
        made = await editor.ask("session/new", cwd=str(tmp_path), additionalDirectories=["/"], mcpServers=[])
        assert [each.folders for each in editor.program.places] == [(str(tmp_path), "/")]
        assert made["modes"]["currentModeId"] == "ask"
        assert [each["id"] for each in made["modes"]["availableModes"]] == ["ask", "code", "read-only"]
        mode, model = made["configOptions"]
        assert (mode["id"], mode["currentValue"]) == ("mode", "ask")
        assert (model["id"], model["currentValue"]) == ("model", "scripted/model")
        assert [each["value"] for each in model["options"]] == ["scripted/model", "other/model"]
        assert await editor.ask("session/close", sessionId=made["sessionId"]) == {}
        with pytest.raises(errors.NoSuchSession):
            await editor.program.db.head(made["sessionId"])
        assert await list_folders(editor) == {}


async def test_failing_close_affects_no_other_session(caplog: pytest.LogCaptureFixture, db: AsyncSessionDB) -> None:
    program = SlowProgram(db, ScriptedModel([]))
    program.leave = asyncio.Event()
    async with connect(program) as editor:
        closing = editor.asking("session/close", sessionId=await editor.new())
        await editor.ask("session/close", sessionId=await editor.new())
        assert not closing.done()
        program.leave.set()
        assert "error" in await closing
    assert program.open == 0


# --- load and resume -----------------------------------------------------------------------------------


async def test_load_sends_the_whole_transcript_before_its_response(db: AsyncSessionDB) -> None:
    program = Program(db, ScriptedModel([approvals.shell_reply("make test"), "first", "second"]))
    async with connect(program) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.prompt(session, "two")
    added = [types.NewMessage(role="user", content=f"({number})") for number in range(1_000)]
    await db.append_messages(session, added)
    async with connect(program) as editor:
        answer = await editor.asking("session/load", sessionId=session, **WHERE)
        before = editor.frames[: editor.frames.index(answer)]
        assert [each["params"]["update"]["sessionUpdate"] for each in before if "method" in each] == [
            "user_message_chunk",
            "tool_call",
            "tool_call_update",
            "agent_message_chunk",
            "user_message_chunk",
            "agent_message_chunk",
            *["user_message_chunk"] * 1_000,
        ]
        assert editor.text("user_message_chunk") == "onetwo" + "".join(str(each.content) for each in added)
        assert editor.text() == "firstsecond"
        await editor.until("available_commands_update")
        assert (await editor.until("session_info_update"))["title"]


async def test_unfinished_call_is_closed_when_loaded_and_completed_by_another_process() -> None:
    async with open_editor(poll_seconds=0.01) as editor:
        db = editor.program.db
        await store(db, "talk")
        await db.append_message("talk", role="assistant", tool_calls=[types.ToolCall("c1", "shell", {"command": "ls"})])
        await editor.ask("session/load", sessionId="talk", **WHERE)
        assert editor.received("tool_call")
        assert editor.open_calls("talk") == set()
        await db.append_message("talk", role="tool", content="built", tool_call_id="c1")
        done = await editor.until("tool_call_update", status="completed")
        assert "built" in str(done["content"])


async def test_resume_sends_no_transcript_and_continues_also_without_messages() -> None:
    async with open_editor(["A", "B", "C"]) as editor:
        session = await editor.new()
        for method in ("session/load", "session/resume"):
            await editor.ask(method, sessionId=session, **WHERE)
        fork = (await editor.ask("session/fork", sessionId=session, **WHERE))["sessionId"]
        assert fork != session
        assert await editor.prompt(fork, "hello") == "end_turn"
        await editor.prompt(session, "one")
        await editor.ask("session/close", sessionId=session)
        assert (await refusal(editor.prompt(session, "closed"))).code == -32002
        await editor.ask("session/resume", sessionId=session, **WHERE)
        assert not editor.received("user_message_chunk")
        await editor.prompt(session, "two")
        assert [each.role for each in await editor.program.db.transcript(session)] == ["user", "assistant"] * 2


async def test_deleted_conversation_refuses_prompts_and_is_not_found(caplog: pytest.LogCaptureFixture) -> None:
    async with open_editor(["A"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.program.db.delete_conversation(session)
        assert "deleted" in str(await refusal(editor.prompt(session, "two")))
        await editor.ask("session/close", sessionId=session)
        assert (await refusal(editor.ask("session/load", sessionId=session, **WHERE))).code == -32002
    assert not [each for each in caplog.records if each.exc_info]


# --- list, folders and forks ------------------------------------------------------------------------------


async def test_session_is_listed_in_its_folder_only(folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = folders
    monkeypatch.chdir(two)
    async with open_editor(["A", "B"]) as editor:
        first, second = await editor.new(f"{one}/../one/"), await editor.new(two)
        await editor.prompt(first, "a")
        await editor.prompt(second, "b")
        assert await list_folders(editor, cwd=one) == {first: one}
        assert await list_folders(editor, cwd=f"{two}/.//") == {second: two}
        assert await list_folders(editor) == {first: one, second: two}
        assert (await editor.program.db.conversation(first)).folder == one
        # A conversation without a folder is listed in every folder, and one of a deleted folder in that.
        await store(editor.program.db, "nowhere")
        await store(editor.program.db, "gone", f"{one}/gone")
        assert (await list_folders(editor, cwd=one))["nowhere"] == one
        assert (await list_folders(editor))["nowhere"] == two
        assert await list_folders(editor, cwd=f"{one}/gone") == {"gone": f"{one}/gone", "nowhere": f"{one}/gone"}


async def test_list_has_each_conversation_of_the_folder_once_in_pages() -> None:
    async with open_editor(page_size=3) as editor:
        db = editor.program.db
        for number in range(20):
            await store(db, f"talk{number}", ("/one", "/two", "/two", None, "/two")[number % 5])
        await store(db, "theirs", "/one", owner="telegram:7")
        seen, asked = list[str](), {"cwd": "/one"}
        while True:
            page = await editor.ask("session/list", **asked)
            assert len(page["sessions"]) <= 3
            seen += [each["sessionId"] for each in page["sessions"]]
            if "nextCursor" not in page:
                break
            asked["cursor"] = page["nextCursor"]
        assert seen == [f"talk{number}" for number in reversed(range(20)) if number % 5 in (0, 3)]
        # A conversation of another owner is neither listed nor opened.
        for method in ("session/load", "session/resume", "session/fork"):
            assert (await refusal(editor.ask(method, sessionId="theirs", **WHERE))).code == -32002
        assert editor.updates == []


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_session_moves_to_the_folder_of_its_next_prompt(folders: tuple[str, str], method: str) -> None:
    one, two = folders
    async with open_editor(["A", "B"]) as editor:
        session = await editor.new(one)
        await editor.prompt(session, "a")
        before = await editor.program.db.conversation(session)
        await editor.until("available_commands_update")
        frames = len(editor.frames)
        await editor.ask(method, sessionId=session, cwd=two, mcpServers=[])
        if method == "session/resume":
            assert "result" in editor.frames[frames]
        assert await list_folders(editor) == {session: one}
        _, seen = await asyncio.gather(editor.prompt(session, "b"), list_folders(editor))
        assert seen in ({session: one}, {session: two})
        assert (await list_folders(editor, cwd=one), await list_folders(editor, cwd=two)) == ({}, {session: two})
        assert (await editor.program.db.conversation(session)).epoch == before.epoch
        assert f"It continues in {two}." in str(editor.frames)


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/fork"])
@pytest.mark.parametrize(("most", "code"), [(1, -32600), (2, -32603)])
async def test_session_that_cannot_be_opened_changes_nothing(
    folders: tuple[str, str], method: str, most: int, code: int, db: AsyncSessionDB
) -> None:
    one, two = folders
    async with connect(FullProgram(db, ScriptedModel(["A"]), max_sessions=most)) as editor:
        await store(db, "talk", one)
        await editor.new(one)
        asked = editor.ask(method, sessionId="talk", cwd=two, mcpServers=[])
        assert (await refusal(asked)).code == code
        assert await list_folders(editor) == {"talk": one}
        assert await db.branches("talk") == []


async def test_fork_has_the_transcript_the_model_and_a_folder_of_its_own(folders: tuple[str, str]) -> None:
    one, two = folders
    async with open_editor(["A"], max_sessions=2) as editor:
        session = await editor.new(one)
        await editor.prompt(session, "one")
        await editor.ask("session/set_config_option", sessionId=session, configId="model", value="other/model")
        made = await editor.ask("session/fork", sessionId=session, cwd=two, mcpServers=[])
        assert made["configOptions"][1]["currentValue"] == "other/model"
        fork = made["sessionId"]
        assert await list_folders(editor) == {session: one, fork: two}
        await editor.prompt(fork, "two")
        assert [len(await editor.program.db.transcript(each)) for each in (session, fork)] == [2, 4]


async def test_fork_during_a_turn_is_refused() -> None:
    model = agents.Trickle("so far ")
    async with open_editor(model=model) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "one")
        await model.stuck.reached.wait()
        assert (await refusal(editor.ask("session/fork", sessionId=session, **WHERE))).code == -32001
        editor.notify("session/cancel", sessionId=session)
        await prompting


# --- modes and models ------------------------------------------------------------------------------------


async def test_read_only_runs_nothing_and_asks_nothing() -> None:
    async with open_editor([approvals.shell_reply("make test"), "a pity"]) as editor:
        session = await editor.new()
        assert await editor.ask("session/set_mode", sessionId=session, modeId="read-only") == {}
        options = await editor.until("config_option_update")
        assert options["configOptions"][0]["currentValue"] == "read-only"
        await editor.prompt(session, "go")
        assert (editor.program.shell.ran, editor.questions) == ([], [])


@pytest.mark.parametrize("mode", get_args(permissions.Mode))
async def test_reopened_session_keeps_its_mode_and_a_fork_is_never_less_strict(mode: str) -> None:
    async with open_editor(["hello"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "hello")
        await editor.ask("session/set_mode", sessionId=session, modeId=mode)
        fork = await editor.ask("session/fork", sessionId=session, **WHERE)
        forked = "ask" if mode == "code" else mode
        assert fork["modes"]["currentModeId"] == editor.program.runtimes[-1].approvals.mode == forked
        for method in ("session/load", "session/resume"):
            again = await editor.ask(method, sessionId=session, **WHERE)
            assert again["modes"]["currentModeId"] == editor.program.runtimes[-1].approvals.mode == mode
        await editor.ask("session/close", sessionId=session)
        later = await editor.ask("session/load", sessionId=session, **WHERE)
        assert later["modes"]["currentModeId"] == modes.DEFAULT


async def test_mode_and_model_can_be_chosen_as_options_or_by_command() -> None:
    async with open_editor(["A"]) as editor:
        session, other = await editor.new(), await editor.new()
        given = await editor.ask("session/set_config_option", sessionId=session, configId="mode", value="code")
        assert given["configOptions"][0]["currentValue"] == "code"
        assert (await editor.until("current_mode_update"))["currentModeId"] == "code"
        await editor.prompt(session, "one")
        given = await editor.ask("session/set_config_option", sessionId=session, configId="model", value="other/model")
        assert given["configOptions"][1]["currentValue"] == "other/model"
        await editor.prompt(session, "two")
        assert editor.text() == "Athe other one"
        await editor.prompt(other, "/model other/model")
        options = (await editor.until("config_option_update"))["configOptions"]
        assert [each["currentValue"] for each in options] == ["ask", "other/model"]


@pytest.mark.parametrize(
    ("option", "value"), [("mode", "yolo"), ("model", "no/such"), ("model", ""), ("colour", "red"), ("mode", "")]
)
async def test_invalid_choice_is_refused_and_changes_nothing(option: str, value: str) -> None:
    async with open_editor() as editor:
        session = await editor.new()
        asked = editor.ask("session/set_config_option", sessionId=session, configId=option, value=value)
        assert (await refusal(asked)).code == -32602
        assert (await refusal(editor.ask("session/set_mode", sessionId=session, modeId="yolo"))).code == -32602
        given = await editor.ask("session/set_config_option", sessionId=session, configId="mode", value="ask")
        assert given["configOptions"][1]["currentValue"] == "scripted/model"


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/new", {"cwd": 7, "mcpServers": []}, -32602),
        ("session/new", {"cwd": "", "mcpServers": []}, -32602),
        ("session/new", {"cwd": "relative", "mcpServers": []}, -32602),
        ("session/new", {**WHERE, "additionalDirectories": ["/no/such/folder/anywhere"]}, -32602),
        ("session/new", {**WHERE, "additionalDirectories": ["/\0"]}, -32602),
        ("session/list", {"cwd": "here"}, -32602),
        ("session/list", {"cwd": "/" + "x" * 5000}, -32602),
        ("session/list", {"cursor": "?"}, -32602),
        ("session/list", {"cursor": "9" * 16}, -32602),
        ("session/prompt", {"sessionId": "x", "prompt": [{"type": "dance"}]}, -32602),
        ("authenticate", {"methodId": "oauth"}, -32602),
        ("session/explode", {}, -32601),
        ("session/load", {"sessionId": UNKNOWN, **WHERE}, -32002),
        ("session/resume", {"sessionId": "x" * 5_000, **WHERE}, -32002),
        ("session/fork", {"sessionId": "", **WHERE}, -32002),
        ("session/close", {"sessionId": "../../etc"}, -32002),
        ("session/prompt", {"sessionId": UNKNOWN, "prompt": [{"type": "text", "text": "x"}]}, -32002),
        ("session/set_mode", {"sessionId": UNKNOWN, "modeId": "ask"}, -32002),
        ("session/set_config_option", {"sessionId": UNKNOWN, "configId": "mode", "value": "ask"}, -32002),
    ],
)
async def test_invalid_request_gets_the_code_of_the_protocol(method: str, params: dict[str, Any], code: int) -> None:
    async with open_editor() as editor:
        assert (await refusal(editor.ask(method, **params))).code == code
        await editor.new()


async def test_internal_error_is_logged_but_not_shown(caplog: pytest.LogCaptureFixture, db: AsyncSessionDB) -> None:
    class Unreachable(Program):
        async def models(self) -> Sequence[str]:
            raise ConnectionRefusedError("Nothing listens at port 1234.")

    async with connect(Unreachable(db, ScriptedModel([]))) as editor:
        answer = await editor.asking("session/new", **WHERE)
        assert answer["error"]["code"] == -32603
        assert "1234" not in str(answer)
    assert "port 1234" in caplog.text


async def test_update_of_a_tool_does_not_overtake_its_call(db: AsyncSessionDB) -> None:
    async def run(_: dict[str, Any]) -> str:
        shown = helpers.update_tool_call(tools.current().call_id, content=[helpers.tool_terminal_ref("t1")])
        await program.clients[0].session_update(session_id=program.places[0].session_id, update=shown)
        return "It ran."

    program = Program(db, ScriptedModel([agents.calls("look"), "done"]), tools=[agents.tool("look", run)])
    async with connect(program) as editor:
        await editor.prompt(await editor.new(), "go")
        calls = editor.received("tool_call", "tool_call_update")
        assert [each["sessionUpdate"] for each in calls] == ["tool_call", "tool_call_update", "tool_call_update"]
        assert calls[2]["content"] == [{"type": "terminal", "terminalId": "t1"}]
        assert calls[2]["status"] == "completed"
