"""Modes and options are two views of one choice."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.acp import modes
from holdfast.agent import approvals
from tests.support import acp_editor
from tests.support import approvals as house


def test_every_mode_there_is_can_be_chosen() -> None:
    for mode in get_args(approvals.Mode):
        shown = modes.mode_state(mode)
        assert shown.current_mode_id == mode
        assert mode in [each.id for each in shown.available_modes]
        assert modes.parse_mode(mode) == mode


def test_what_is_no_mode_is_none() -> None:
    assert [modes.parse_mode(each) for each in ("", "ASK", None, 7, "yolo")] == [None] * 5


def test_the_model_that_answers_is_always_among_those_to_choose_and_each_is_there_once() -> None:
    _, model = modes.config_options("ask", "own/model", ["a/b", "own/model", "a/b"])
    assert model.current_value == "own/model"
    assert [each.value for each in model.options] == ["own/model", "a/b"]  # type: ignore[union-attr]


def test_the_strictest_mode_is_the_one_that_does_least() -> None:
    assert modes.strictest_mode("code", "read-only", "ask") == "read-only"
    assert modes.strictest_mode("code", "ask") == "ask"
    assert modes.strictest_mode("code") == "code"


@pytest.mark.parametrize("mode", get_args(approvals.Mode))
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_what_is_opened_anew_while_it_is_open_keeps_its_mode(mode: str, method: str) -> None:
    async with acp_editor.editor(["hello"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "hello")
        await editor.ask("session/set_mode", sessionId=session, modeId=mode)
        again = await editor.ask(method, sessionId=session, cwd="/", mcpServers=[])
        assert again["modes"]["currentModeId"] == mode
        assert editor.program.doors[-1].approvals.mode == mode
        await editor.ask("session/close", sessionId=session)
        later = await editor.ask(method, sessionId=session, cwd="/", mcpServers=[])
        assert later["modes"]["currentModeId"] == modes.DEFAULT


@pytest.mark.parametrize(("mode", "forked"), [("read-only", "read-only"), ("ask", "ask"), ("code", "ask")])
async def test_a_fork_does_no_more_than_what_it_came_from(mode: str, forked: str) -> None:
    async with acp_editor.editor(["hello"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "hello")
        await editor.ask("session/set_mode", sessionId=session, modeId=mode)
        fork = await editor.ask("session/fork", sessionId=session, cwd="/", mcpServers=[])
        assert fork["modes"]["currentModeId"] == forked
        assert editor.program.doors[-1].approvals.mode == forked


async def test_a_question_that_is_open_when_read_only_is_chosen_is_taken_back() -> None:
    async with acp_editor.editor([house.runs("make"), "a pity"]) as editor:
        editor.answer = lambda _: None
        session = await editor.new()
        prompting = editor.prompting(session, "go")
        await editor.questioned()
        await editor.ask("session/set_mode", sessionId=session, modeId="read-only")
        assert acp_editor.result(await prompting)["stopReason"] == "end_turn"
        assert editor.program.shell.ran == []
        assert editor.told("tool_call_update")[-1]["status"] == "failed"
