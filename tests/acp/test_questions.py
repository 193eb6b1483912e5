"""Questions to the person at the editor: what they say counts, and what nobody said is not put into their mouth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.acp import session as sessions
from tests.support import acp_editor, approvals

DENIED = "The person denied it."
Frame = dict[str, Any]


def selected(option: object) -> Frame:
    return {"result": {"outcome": {"outcome": "selected", "optionId": option}}}


def told(answer: Frame) -> tuple[str, list[Any]]:
    """What the model is told of a command for which a question was answered so, and what was written down."""
    found = list[Any]()

    async def story(editor: acp_editor.Editor) -> None:
        editor.answer = lambda _: None
        session = await editor.new()
        prompting = editor.prompting(session, "go")
        await editor.questioned()
        asked = next(each for each in editor.frames if each.get("method") == "session/request_permission")
        # The prompt may have the same number as the question: they are the two sides' own.
        editor.raw(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode())
        assert acp_editor.result(await prompting) == {"stopReason": "end_turn"}
        assert editor.program.shell.ran == []
        (result,) = (each for each in await editor.program.db.transcript(session) if each.role == "tool")
        found.extend([result.content, await approvals.audit(editor.program.db)])

    acp_editor.run(story, [approvals.runs("make it"), "A pity."])
    return found[0], found[1]


@pytest.mark.parametrize("answer", [selected("deny"), {"result": {"outcome": {"outcome": "cancelled"}}}])
def test_a_no_is_the_persons(answer: Frame) -> None:
    said, written = told(answer)
    assert said.endswith(DENIED)
    assert written == [("make it", False, "the editor: no", None)]


@pytest.mark.parametrize(
    "answer",
    [
        {"result": {}},
        {"result": None},
        {"result": "once"},
        {"result": [1]},
        {"result": {"outcome": "once"}},
        {"result": {"outcome": {"outcome": "selected"}}},
        selected("nope"),
        selected(5),
        {"error": {"code": -32603, "message": "The window is closed."}},
        {"error": "boo"},
        {"jsonrpc": "1.0", **selected("once")},
    ],
)
def test_what_nobody_said_is_said_to_be_nobodys(answer: Frame) -> None:
    said, written = told(answer)
    assert said.endswith(sessions.NOT_ASKED)
    assert "denied" not in said
    assert written == [("make it", False, "nobody", None)]
