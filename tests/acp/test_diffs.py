"""Differences and places: what an editor draws of a call, told from the call and its words alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from acp import schema
from hypothesis import given
from hypothesis import strategies as some

from holdfast import types
from holdfast.acp import diffs
from holdfast.model import base as model
from holdfast.tools.files import diff, file_tools
from tests.support import acp_editor
from tests.support import file_tools as doing

CWD = "/project"


def pairs(shown: diffs.CallView) -> list[tuple[str, str | None, str]]:
    """Each difference: the file, what was, what is."""
    assert all(isinstance(each, schema.FileEditToolCallContent) for each in shown.content)
    return [(each.path, each.old_text, each.new_text) for each in shown.content]  # type: ignore[union-attr]


def places(shown: diffs.CallView) -> list[tuple[str, int | None]]:
    return [(each.path, each.line) for each in shown.locations]


def test_an_edit_is_shown_as_asked_for_until_it_is_known_what_it_comes_to() -> None:
    shown = diffs.view_call("edit_file", {"path": "a.py", "old_text": "x", "new_text": "y"}, None, CWD)
    assert pairs(shown) == [("/project/a.py", "x", "y")]
    assert places(shown) == [("/project/a.py", None)]
    edits = [{"old_text": "a", "new_text": "b"}, {"old_text": "c", "new_text": "d"}, {"old_text": 1}, "no"]
    several = diffs.view_call("edit_file", {"path": "/other/a.py", "edits": edits}, None, Path(CWD))
    assert pairs(several) == [("/other/a.py", "a", "b"), ("/other/a.py", "c", "d")]


def test_what_the_tools_say_becomes_differences_with_their_lines(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1, 101)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    do = doing.Doing(tmp_path)
    edits = [{"old_text": "line 3\n", "new_text": "LINE 3\n"}, {"old_text": "line 90\n", "new_text": "a\nb\n"}]
    result = do.text("edit_file", path="a.txt", edits=edits)
    for words in (result, do.acts[-1].detail):
        shown = diffs.view_call("edit_file", {"path": "a.txt", "edits": edits}, words, tmp_path)
        path = str(tmp_path / "a.txt")
        assert places(shown) == [(path, 3), (path, 90)]
        first, second = pairs(shown)
        assert first == (path, "\n".join(lines[:6]), "\n".join([*lines[:2], "LINE 3", *lines[3:6]]))
        assert second == (path, "\n".join(lines[86:93]), "\n".join([*lines[86:89], "a", "b", *lines[90:93]]))


def test_a_file_that_is_written_over_is_shown_with_what_was_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    given = {"path": "a.txt", "content": "one\n2\n"}
    result = doing.Doing(tmp_path).text("write_file", **given)
    shown = diffs.view_call("write_file", given, result, tmp_path)
    assert pairs(shown) == [(str(tmp_path / "a.txt"), "one\ntwo\n", "one\n2\n")]


def test_a_new_file_has_no_old_text(tmp_path: Path) -> None:
    given = {"path": "a.txt", "content": "one\n\x1b[2J\n"}
    do = doing.Doing(tmp_path)
    result = do.text("write_file", **given)
    for words in (None, result):
        assert pairs(diffs.view_call("write_file", given, words, tmp_path)) == [
            (str(tmp_path / "a.txt"), None, given["content"])
        ]


def test_lines_of_windows_are_shown_without_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\nfour\r\nfive\r\n")
    given = {"path": "a.txt", "old_text": "one", "new_text": "1"}
    result = doing.Doing(tmp_path).text("edit_file", **given)
    (shown,) = pairs(diffs.view_call("edit_file", given, result, tmp_path))
    assert shown[1:] == ("one\ntwo\nthree\nfour", "1\ntwo\nthree\nfour")


def test_what_failed_is_told_in_words(tmp_path: Path) -> None:
    given = {"path": "a.txt", "old_text": "one", "new_text": "1"}
    result = doing.Doing(tmp_path).text("edit_file", **given)
    assert result.startswith("Error: ")
    assert diffs.view_call("edit_file", given, result, tmp_path).content == []


def test_a_difference_that_was_cut_is_not_believed() -> None:
    whole = "Changed: a (+1 -1 lines).\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    asked = {"path": "a", "old_text": "two", "new_text": "2"}
    assert pairs(diffs.view_call("edit_file", asked, whole, CWD)) == [
        ("/project/a", "one\ntwo\nthree", "one\n2\nthree")
    ]
    for end in range(len("Changed: "), whole.rindex("\n") + 1):
        assert pairs(diffs.view_call("edit_file", asked, whole[:end], CWD)) == [("/project/a", "two", "2")]
    over = {"path": "a", "content": "all of it"}
    assert diffs.view_call("write_file", over, whole[:50], CWD).content == []
    assert (
        diffs.view_call("write_file", over, f"{whole}\n[… 7 more lines of changes are not shown …]", CWD).content == []
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "words", "expected"),
    [
        ("read_file", {"path": "a/../b.py", "from_line": 12}, "12\tx", [("/project/b.py", 12)]),
        ("read_file", {"path": "b.py", "from_line": True}, None, [("/project/b.py", None)]),
        ("read_file", {"path": "b.py", "from_line": -1}, None, [("/project/b.py", None)]),
        ("read_file", '{"path": "b.py"}', None, [("/project/b.py", None)]),
        ("read_file", '{"path": "b.p', None, []),
        ("read_file", "[1]", None, []),
        ("read_file", {"path": 7}, None, []),
        ("read_file", {"path": "a\0b"}, None, []),
        (
            "search_files",
            {"text": "x"},
            "a.py:3: x = 1:2: \nb c:10: x\n[No more]",
            [("/project/a.py", 3), ("/project/b c", 10)],
        ),
        ("search_files", {"text": "x"}, None, []),
        ("shell", {"command": "ls"}, "a.py:3: x", []),
        ("files__read", {"path": "a"}, "text", [("/project/a", None)]),
    ],
)
def test_places_are_absolute_and_only_what_is_one(
    tool: str, arguments: dict[str, Any] | str, words: str | None, expected: list[tuple[str, int | None]]
) -> None:
    shown = diffs.view_call(tool, arguments, words, CWD)
    assert places(shown) == expected
    assert shown.content == []


def test_places_of_a_search_are_few() -> None:
    words = "\n".join(f"a.py:{number}: x" for number in range(1, 1000))
    assert len(diffs.view_call("search_files", {"text": "x"}, words, CWD).locations) == diffs.MAX_LOCATIONS


@given(some.text("ab \n-+@[\t"), some.text("ab \n-+@[\t"))
def test_for_any_two_texts_a_difference_is_read_as_it_was_written(old: str, new: str) -> None:
    detail, added, gone = diff.unified(old, new)
    shown = diffs.view_call("edit_file", {"path": "a"}, detail, CWD)
    if old == new:
        assert shown.content == []
        return
    whole_old, whole_new = old.split("\n"), new.split("\n")
    assert len(shown.content) == len(shown.locations) > 0 or "[… " in detail
    for each in pairs(shown):
        assert "\n".join(whole_old).find(each[1] or "") >= 0
        assert "\n".join(whole_new).find(each[2]) >= 0
    assert added or gone


def test_a_terminal_is_shown_by_its_id() -> None:
    assert diffs.terminal_content("t1").model_dump(by_alias=True, exclude_none=True) == {
        "type": "terminal",
        "terminalId": "t1",
    }


async def test_an_edit_is_shown_in_the_question_at_its_end_and_when_it_is_loaded(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1, 200)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    asked = {"path": "a.txt", "old_text": "line 150\n", "new_text": "x" * 400 + "\n"}
    call = model.Reply(calls=(types.ToolCall("e1", "edit_file", asked),), usage=types.Usage(10, 5))
    place = {"path": str(tmp_path / "a.txt"), "line": 150}
    around = (lines[146:149], lines[150:153])
    difference = {
        "type": "diff",
        "path": str(tmp_path / "a.txt"),
        "oldText": "\n".join([*around[0], "line 150", *around[1]]),
        "newText": "\n".join([*around[0], "x" * 400, *around[1]]),
    }

    async with acp_editor.editor([call, "Done."], tools=file_tools.file_tools([str(tmp_path)])) as editor:
        session = await editor.new(str(tmp_path))
        await editor.prompt(session, "edit it")
        question = editor.questions[0]["toolCall"]
        assert difference in question["content"]
        assert question["locations"] == [place]
        (begun,) = editor.told("tool_call")
        assert [each["oldText"] for each in begun["content"]] == ["line 150\n"]
        ended = editor.told("tool_call_update")[-1]
        assert (ended["status"], ended["content"], ended["locations"]) == ("completed", [difference], [place])
        told = len(editor.updates)
        await editor.ask("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        again = [each["update"] for each in editor.updates[told:] if each["update"].get("toolCallId")]
        assert again[-1]["content"] == [difference]


@pytest.mark.parametrize("number", ["9" * 10, "9" * 5000])
def test_a_difference_with_a_place_that_no_file_has_is_none(number: str) -> None:
    words = f"Changed: a\n@@ -{number},1 +{number},1 @@\n-a\n+b"
    shown = diffs.view_call("edit_file", {"path": "a", "old_text": "x", "new_text": "y"}, words, "/p")
    assert [each.line for each in shown.locations] == [None]
