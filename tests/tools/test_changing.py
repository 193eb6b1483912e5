"""Writing and editing: what people permit is what is done, and what is not changed stays as it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors, types
from holdfast.tools import registry
from holdfast.tools.files import edit, file_tools, workspace, write
from tests.support import file_tools as doing
from tests.support.polling import until, until_async


def test_a_change_is_shown_before_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one\ntwo\nthree\n", encoding="utf-8")
    seen = list[str]()
    do = doing.Doing(tmp_path, meanwhile=lambda: seen.append(path.read_text("utf-8")))
    result = do.text("edit_file", path="a.py", old_text="two", new_text="2")
    (act,) = do.acts
    assert seen == ["one\ntwo\nthree\n"]
    assert path.read_text("utf-8") == "one\n2\nthree\n"
    assert act.kind == "change"
    assert act.summary == "Change 'a.py' (+1 -1 lines)."
    assert act.detail == "@@ -1,4 +1,4 @@\n one\n-two\n+2\n three\n "
    assert act.paths == (str(path),)
    assert not act.danger
    assert result.startswith("Changed: a.py (+1 -1 lines).\n@@")


@pytest.mark.parametrize(("content", "lines"), [("", 0), ("one", 1), ("one\n", 1), ("one\ntwo\n", 2)])
def test_a_new_file_is_announced_with_the_lines_it_has(tmp_path: Path, content: str, lines: int) -> None:
    do = doing.Doing(tmp_path)
    result = do.text("write_file", path="a", content=content)
    (act,) = do.acts
    assert act.summary == f"Write the new file 'a' (+{lines} -0 lines)."
    assert "-" not in act.detail.partition("\n")[2]
    assert result == f"Written: a (+{lines} -0 lines)."


def test_a_draft_nobody_waits_for_is_not_made(tmp_path: Path) -> None:
    where, asked = workspace.Workspace([str(tmp_path)]), list[bool]()
    place = where.resolve("a")

    def change(_: write.FileText | None, stop: Callable[[], bool]) -> write.FileText:
        asked.append(stop())
        return write.FileText("x")

    for answers, calls in (([True], []), ([False, False, True], [False])):
        with pytest.raises(errors.ToolFailed, match="Cancelled"):
            write.prepare(place, write.snapshot(where, place), change, iter(answers).__next__)
        assert asked == calls


async def test_a_cancelled_edit_of_a_large_file_ends_between_its_edits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("one two three", encoding="utf-8")
    edits = [{"old_text": word, "new_text": word.upper()} for word in ("one", "two", "three")]
    stops, begun = list[Callable[[], bool]](), list[edit.TextEdit]()
    unless, replaced = write.check_cancelled, edit.apply_edit

    def looked(stop: Callable[[], bool]) -> None:
        stops.append(stop)
        unless(stop)

    def slowly(text: str, edit: edit.TextEdit) -> str:
        begun.append(edit)
        until(stops[-1], "the edit is told to stop")
        return replaced(text, edit)

    monkeypatch.setattr(write, "check_cancelled", looked)
    monkeypatch.setattr(edit, "apply_edit", slowly)
    call = asyncio.create_task(doing.Doing(tmp_path).awaited("edit_file", path="a", edits=edits))
    await until_async(lambda: begun, "the first edit is under way")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [edit.old_text for edit in begun] == ["one"]
    assert (tmp_path / "a").read_text("utf-8") == "one two three"


def test_what_is_not_permitted_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one", encoding="utf-8")
    do = doing.Doing(tmp_path, allow=False)
    assert not do("write_file", path="new/b", content="x").ok
    assert not do("edit_file", path="a", old_text="one", new_text="two").ok
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text("utf-8") == "one"


def test_nobody_there_to_ask_means_no(tmp_path: Path) -> None:
    tools = registry.Registry(file_tools.file_tools([str(tmp_path)]))
    call = types.ToolCall("x", "write_file", {"path": "a", "content": "x"})
    assert not asyncio.run(tools.run(call)).ok
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", ["write", "replace", "delete", "chmod", "link", "folder"])
@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_a_file_that_changed_while_people_were_asked_is_left_alone(tmp_path: Path, tool: str, change: str) -> None:
    path = tmp_path / "project" / "a"
    path.parent.mkdir()
    path.write_text("one", encoding="utf-8")
    (tmp_path / "other").write_text("one", encoding="utf-8")

    def meanwhile() -> None:
        if change == "write":
            path.write_text("theirs", encoding="utf-8")
            return
        if change == "chmod":
            path.chmod(0o600)
            return
        path.unlink()
        if change == "replace":
            path.write_text("one", encoding="utf-8")
            (tmp_path / "keep").write_text("one", encoding="utf-8")
            os.replace(tmp_path / "keep", path)
        elif change == "link":
            path.symlink_to(tmp_path / "other")
        elif change == "folder":
            path.mkdir()

    more: dict[str, Any] = {"content": "two"} if tool == "write_file" else {"old_text": "one", "new_text": "two"}
    result = doing.Doing(path.parent, meanwhile=meanwhile)(tool, path="a", **more)
    assert not result.ok
    assert (tmp_path / "other").read_text("utf-8") == "one"
    assert "two" not in [each.read_text("utf-8") for each in path.parent.iterdir() if each.is_file()]


def test_a_new_file_does_not_replace_one_that_came_meanwhile(tmp_path: Path) -> None:
    do = doing.Doing(tmp_path, meanwhile=lambda: (tmp_path / "a").write_text("theirs", encoding="utf-8"))
    assert not do("write_file", path="a", content="ours").ok
    assert (tmp_path / "a").read_text("utf-8") == "theirs"
    assert os.listdir(tmp_path) == ["a"]


def test_new_folders_are_made_and_told(tmp_path: Path) -> None:
    do = doing.Doing(tmp_path)
    assert do("write_file", path="a/b/c.txt", content="x\n").ok
    assert do.acts[0].summary == "Write the new file 'a/b/c.txt', and the folders it needs (+1 -0 lines)."
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"x\n"


def test_line_ends_and_marks_and_odd_bytes_stay(tmp_path: Path) -> None:
    (tmp_path / "dos").write_bytes(b"\xef\xbb\xbfone\r\ntwo\xff\r\n")
    do = doing.Doing(tmp_path)
    assert do("edit_file", path="dos", old_text="one\n", new_text="1\n1\n").ok
    assert (tmp_path / "dos").read_bytes() == b"\xef\xbb\xbf1\r\n1\r\ntwo\xff\r\n"
    assert do("write_file", path="dos", content="all\nnew\n").ok
    assert (tmp_path / "dos").read_bytes() == b"\xef\xbb\xbfall\r\nnew\r\n"


@given(st.binary(max_size=40))
def test_for_any_bytes_a_file_is_the_same_after_it_was_read_as_text(data: bytes) -> None:
    assert write.decode(data).encode() == data


def test_several_edits_are_all_done_or_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one two three", encoding="utf-8")
    do = doing.Doing(tmp_path)
    edits = [{"old_text": "one", "new_text": "1"}, {"old_text": "1 two", "new_text": "2"}]
    assert do("edit_file", path="a", edits=edits).ok
    assert path.read_text("utf-8") == "2 three"
    result = do("edit_file", path="a", edits=[{"old_text": "2", "new_text": "x"}, {"old_text": "2", "new_text": "y"}])
    assert "Edit 2:" in str(result.content)
    assert path.read_text("utf-8") == "2 three"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"old_text": "a"},
        {"edits": []},
        {"edits": ["a"]},
        {"edits": [{"old_text": "a"}]},
        {"edits": [{"old_text": "a", "new_text": 1}]},
        {"edits": [{"old_text": "a", "new_text": "b", "more": 1}]},
        {"edits": [{"old_text": "a", "new_text": "b"}], "old_text": "a", "new_text": "b"},
        {"edits": [{"old_text": "a", "new_text": "b"}] * 51},
    ],
)
def test_edits_that_make_no_sense_are_told(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "a").write_text("a", encoding="utf-8")
    do = doing.Doing(tmp_path)
    result = do("edit_file", path="a", **wrong)
    assert not result.ok
    assert "the tool failed" not in str(result.content)
    assert not do.acts


def test_what_cannot_be_changed_is_told(tmp_path: Path) -> None:
    do = doing.Doing(tmp_path)
    (tmp_path / "same").write_text("x", encoding="utf-8")
    (tmp_path / "fixed").write_text("x", encoding="utf-8")
    (tmp_path / "fixed").chmod(0o444)
    (tmp_path / "data").write_bytes(b"x\0")
    for tool, more, told in (
        ("write_file", {"path": "same", "content": "x"}, "Nothing would change"),
        ("write_file", {"path": "fixed", "content": "y"}, "read-only"),
        ("edit_file", {"path": "data", "old_text": "x", "new_text": "y"}, "not a text file"),
        ("edit_file", {"path": "none", "old_text": "x", "new_text": "y"}, "Use write_file"),
        ("write_file", {"path": "big", "content": "x" * (write.MAX_BYTES + 1)}, "the limit is"),
        ("write_file", {"path": "half", "content": "\ud800"}, "unpaired surrogates"),
        ("write_file", {"path": "same/below", "content": "x"}, "Not a directory"),
    ):
        result = do(tool, **more)
        assert not result.ok
        assert told in str(result.content), told
