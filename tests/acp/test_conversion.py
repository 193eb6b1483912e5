"""Conversion between values of the protocol and of the program: prompts, calls, approvals, plans and diffs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from acp import schema
from hypothesis import given
from hypothesis import strategies as some

from holdfast import errors, events, types
from holdfast.acp import conversion, diffs, plans
from holdfast.model import base as model
from holdfast.tools.files import diff, file_tools
from tests.support.acp_editor import open_editor
from tests.support.agents import turn_result
from tests.support.file_tools import FileTools

CWD = "/project"


def text(words: str) -> schema.TextContentBlock:
    return schema.TextContentBlock(type="text", text=words)


def resource(words: str, uri: str = "file:///a/b.txt") -> schema.EmbeddedResourceContentBlock:
    inner = schema.TextResourceContents(uri=uri, text=words)
    return schema.EmbeddedResourceContentBlock(type="resource", resource=inner)


def test_text_and_resources_of_a_prompt_are_distinguished() -> None:
    parsed = conversion.parse_prompt([text("Look at"), resource("secret plan"), text(" please")])
    assert parsed.text == "Look at @b.txt please"
    assert not parsed.is_plain
    pieces = [each for each in parsed.pieces if isinstance(each, conversion.TextPiece)]
    known = {"uri": "file:///a/b.txt", "name": "b.txt"}
    assert [conversion.text_part(each).get("resource") for each in pieces] == [None, known, None]
    blob = schema.BlobResourceContents(uri="file:///a.bin", blob="AAAA", mime_type="application/octet-stream")
    (piece,) = conversion.parse_prompt([schema.EmbeddedResourceContentBlock(type="resource", resource=blob)]).pieces
    assert "file:///a.bin" in piece.text


@given(some.text(alphabet="`a\n\r\t ", max_size=60))
def test_any_resource_is_fenced_and_comes_back_verbatim(words: str) -> None:
    first, *inner, last = conversion.fence(words).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert not any(line.strip().startswith(first) for line in inner)
    (piece,) = conversion.parse_prompt([resource(words)]).pieces
    assert f"\n{words}\n" in piece.text
    assert conversion.content_blocks([conversion.text_part(piece)]) == [resource(words)]


def test_resource_of_an_older_version_comes_back() -> None:
    known = {"uri": "file:///a/b.txt", "name": "b.txt"}
    stored = {"type": "text", "text": "\n\nfile:///a/b.txt\n````\none\n```\n````\n\n", "resource": known}
    assert conversion.content_blocks([stored]) == [resource("one\n```")]


def choose(option: str) -> schema.RequestPermissionResponse:
    return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=option))


@given(some.text(max_size=20))
def test_only_known_approvals_permit(option: str) -> None:
    offered = schema.PermissionOption(option_id=option, name=option, kind="allow_once")
    answered = conversion.parse_choice(choose(option), [offered])
    assert answered == (option if option in ("once", "conversation", "always") else "deny")
    with pytest.raises(ValueError, match="was not offered"):
        conversion.parse_choice(choose(f"{option}x"), [offered])


@pytest.mark.parametrize("number", [1, 20])
def test_options_have_the_kind_of_their_answer_and_show_every_rule(number: int) -> None:
    rules = [f"shell(make target-{each} *)" for each in range(number)]
    asked = events.ApprovalAsked("r", "c", "shell", "Run it.", remembers=", ".join(rules))
    options = conversion.permission_options(asked)
    shown = str([*options, *conversion.approval_content(asked)])
    assert [each for each in rules if each not in shown] == []
    for each in options:
        answered = conversion.parse_choice(choose(each.option_id), [each])
        assert (answered == "deny") == (each.kind == "reject_once")
        assert (answered in ("conversation", "always")) == (each.kind == "allow_always")


@pytest.mark.parametrize(
    ("given", "stop"),
    [
        ({}, "end_turn"),
        ({"partial": True}, "max_tokens"),
        ({"exit_reason": "interrupted", "interrupted": True}, "cancelled"),
        ({"exit_reason": "steps", "completed": False}, "max_turn_requests"),
    ],
)
def test_turn_has_a_stop_reason_and_a_failed_one_is_an_error(given: dict[str, Any], stop: str) -> None:
    assert conversion.stop_reason(turn_result(**given)) == stop
    with pytest.raises(errors.RpcRefused, match="It went wrong") as caught:
        conversion.stop_reason(turn_result(exit_reason="lease_lost", failed=True, error="It went wrong."))
    assert caught.value.code == -32603


STEP = {"step": "look", "status": "pending"}


@pytest.mark.parametrize(
    "steps",
    [
        None,
        [{"step": 7, "status": "pending"}],
        [{"step": "x", "status": "soon"}],
        [STEP | {"priority": "urgent"}],
        [STEP] * 101,
    ],
)
async def test_invalid_plan_is_refused_and_not_shown(steps: Any) -> None:
    assert plans.plan_update({"steps": steps}) is None
    with pytest.raises(errors.ToolFailed):
        await plans.TOOL.run({"steps": steps})


def pairs(shown: diffs.CallView) -> list[tuple[str, str | None, str]]:
    """Return the path, the old and the new text of each diff."""
    assert all(isinstance(each, schema.FileEditToolCallContent) for each in shown.content)
    return [(each.path, each.old_text, each.new_text) for each in shown.content]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("before", "tool", "given", "expected"),
    [
        (b"one\ntwo\n", "write_file", {"content": "one\n2\n"}, [("one\ntwo", "one\n2")]),
        (None, "write_file", {"content": "one\n\x1b[2J\n"}, [(None, "one\n\x1b[2J\n")]),
        (b"1\r\n2\r\n3\r\n4\r\n5\r\n", "edit_file", {"old_text": "1", "new_text": "x"}, [("1\n2\n3\n4", "x\n2\n3\n4")]),
        (None, "edit_file", {"old_text": "one", "new_text": "1"}, []),
    ],
    ids=["written over", "new file", "Windows line ends", "failed"],
)
def test_result_of_a_tool_becomes_a_diff(
    before: bytes | None, tool: str, given: dict[str, str], expected: list[Any], tmp_path: Path
) -> None:
    if before is not None:
        (tmp_path / "a.txt").write_bytes(before)
    asked = {"path": "a.txt", **given}
    result = FileTools(tmp_path).text(tool, **asked)
    shown = diffs.view_call(tool, asked, result, tmp_path)
    assert [each[1:] for each in pairs(shown)] == expected


def test_truncated_diff_is_ignored() -> None:
    full = "Changed: a (+1 -1 lines).\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    asked = {"path": "a", "old_text": "two", "new_text": "2"}
    assert pairs(diffs.view_call("edit_file", asked, full, CWD)) == [("/project/a", "one\ntwo\nthree", "one\n2\nthree")]
    for end in range(len("Changed: "), full.rindex("\n") + 1):
        assert pairs(diffs.view_call("edit_file", asked, full[:end], CWD)) == [("/project/a", "two", "2")]
    over = {"path": "a", "content": "all of it"}
    for cut in (full[:50], f"{full}\n[… 7 more lines of changes are not shown …]"):
        assert diffs.view_call("write_file", over, cut, CWD).content == []
    for number in ("9" * 10, "9" * 5000):
        words = f"Changed: a\n@@ -{number},1 +{number},1 @@\n-a\n+b"
        assert [each.line for each in diffs.view_call("edit_file", asked, words, CWD).locations] == [None]


@pytest.mark.parametrize(
    ("tool", "arguments", "words", "expected"),
    [
        ("read_file", {"path": "a/../b.py", "from_line": 12}, "12\tx", [("/project/b.py", 12)]),
        ("read_file", {"path": "b.py", "from_line": True}, None, [("/project/b.py", None)]),
        ("read_file", '{"path": "b.py"}', None, [("/project/b.py", None)]),
        ("read_file", {"path": 7}, None, []),
        ("read_file", {"path": "a\0b"}, None, []),
        ("search_files", {"text": "x"}, "a.py:3: x:2: \nb c:10: x\n[No]", [("/project/a.py", 3), ("/project/b c", 10)]),
        ("shell", {"command": "ls"}, "a.py:3: x", []),
        ("files__read", {"path": "a"}, "text", [("/project/a", None)]),
    ],
)
def test_locations_are_absolute(
    tool: str, arguments: dict[str, Any] | str, words: str | None, expected: list[tuple[str, int | None]]
) -> None:
    shown = diffs.view_call(tool, arguments, words, CWD)
    assert ([(each.path, each.line) for each in shown.locations], shown.content) == (expected, [])
    many = "\n".join(f"a.py:{number}: x" for number in range(1, 1000))
    assert len(diffs.view_call("search_files", {"text": "x"}, many, CWD).locations) == diffs.MAX_LOCATIONS


@given(some.text("ab \n-+@[\t"), some.text("ab \n-+@[\t"))
def test_diff_of_any_two_texts_is_parsed(old: str, new: str) -> None:
    detail, added, gone = diff.unified(old, new)
    shown = diffs.view_call("edit_file", {"path": "a"}, detail, CWD)
    if old == new:
        assert shown.content == []
        return
    assert len(shown.content) == len(shown.locations) > 0 or "[… " in detail
    for each in pairs(shown):
        assert (each[1] or "") in old
        assert each[2] in new
    assert added or gone


async def test_edit_is_shown_in_the_question_in_the_result_and_when_loaded(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1, 200)]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines) + "\n")
    asked = {"path": "a.txt", "old_text": "line 150\n", "new_text": "x" * 400 + "\n"}
    call = model.Reply(calls=(types.ToolCall("e1", "edit_file", asked),), usage=types.Usage(10, 5))
    place = {"path": str(path), "line": 150}
    old, new = ("\n".join([*lines[146:149], middle, *lines[150:153]]) for middle in ("line 150", "x" * 400))
    difference = {"type": "diff", "path": str(path), "oldText": old, "newText": new}
    async with open_editor([call, "Done."], tools=file_tools.file_tools([str(tmp_path)])) as editor:
        session = await editor.new(str(tmp_path))
        await editor.prompt(session, "edit it")
        question = editor.questions[0]["toolCall"]
        assert difference in question["content"]
        assert question["locations"] == [place]
        (begun,) = editor.received("tool_call")
        assert [each["oldText"] for each in begun["content"]] == ["line 150\n"]
        ended = editor.received("tool_call_update")[-1]
        assert (ended["status"], ended["content"], ended["locations"]) == ("completed", [difference], [place])
        await editor.ask("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        assert editor.received("tool_call_update")[-1]["content"] == [difference]
