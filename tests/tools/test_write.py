"""write_file and edit_file do exactly what was approved, and keep everything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.tools import registry
from holdfast.tools.files import file_tools, write
from tests.support.file_tools import FileTools


def test_change_is_shown_before_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one\ntwo\nthree\n", encoding="utf-8")
    seen = list[str]()
    tools = FileTools(tmp_path, meanwhile=lambda: seen.append(path.read_text("utf-8")))
    result = tools.text("edit_file", path="a.py", old_text="two", new_text="2")
    (act,) = tools.acts
    assert seen == ["one\ntwo\nthree\n"]
    assert path.read_text("utf-8") == "one\n2\nthree\n"
    assert (act.kind, act.paths, act.danger) == ("change", (str(path),), "")
    assert act.summary == "Change 'a.py' (+1 -1 lines)."
    assert act.detail == "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    assert result.startswith("Changed: a.py (+1 -1 lines).\n@@")


@pytest.mark.parametrize(("content", "lines"), [("", 0), ("one", 1), ("one\ntwo\n", 2)])
def test_new_file_is_announced_with_its_folders_and_lines(tmp_path: Path, content: str, lines: int) -> None:
    tools = FileTools(tmp_path)
    result = tools.text("write_file", path="a/b/c.txt", content=content)
    (act,) = tools.acts
    assert act.summary == f"Write the new file 'a/b/c.txt', and the folders it needs (+{lines} -0 lines)."
    assert "-" not in act.detail.partition("\n")[2]
    assert result == f"Written: a/b/c.txt (+{lines} -0 lines)."
    assert (tmp_path / "a" / "b" / "c.txt").read_text("utf-8") == content


async def test_denied_change_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one", encoding="utf-8")
    tools = FileTools(tmp_path, allow=False)
    assert not (await tools.awaited("write_file", path="new/b", content="x")).ok
    assert not (await tools.awaited("edit_file", path="a", old_text="one", new_text="two")).ok
    ungated = registry.Registry(file_tools.file_tools([str(tmp_path)]))
    assert not (await ungated.run(types.ToolCall("x", "write_file", {"path": "b", "content": "x"}))).ok
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text("utf-8") == "one"


@pytest.mark.parametrize("change", ["write", "replace", "delete", "chmod", "link"])
@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_file_changed_during_the_approval_is_left_alone(tmp_path: Path, tool: str, change: str) -> None:
    path = tmp_path / "project" / "a"
    path.parent.mkdir()
    path.write_text("one", encoding="utf-8")
    (tmp_path / "other").write_text("one", encoding="utf-8")

    (tmp_path / "new").write_text("one", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    meanwhile: Callable[[], object] = {
        "write": lambda: path.write_text("theirs", encoding="utf-8"),
        "chmod": lambda: path.chmod(0o600),
        "delete": path.unlink,
        "replace": lambda: os.replace(tmp_path / "new", path),
        "link": lambda: os.replace(tmp_path / "link", path),
    }[change]
    more: dict[str, Any] = {"content": "two"} if tool == "write_file" else {"old_text": "one", "new_text": "two"}
    assert not FileTools(path.parent, meanwhile=meanwhile)(tool, path="a", **more).ok
    assert (tmp_path / "other").read_text("utf-8") == "one"
    assert "two" not in [each.read_text("utf-8") for each in path.parent.iterdir() if each.is_file()]
    assert os.listdir(path.parent) in ([], ["a"])  # No temporary file is left.


def test_new_file_does_not_replace_one_created_meanwhile(tmp_path: Path) -> None:
    tools = FileTools(tmp_path, meanwhile=lambda: (tmp_path / "a").write_text("theirs", encoding="utf-8"))
    assert not tools("write_file", path="a", content="ours").ok
    assert (tmp_path / "a").read_text("utf-8") == "theirs"
    assert os.listdir(tmp_path) == ["a"]


def test_line_ends_byte_order_mark_and_invalid_bytes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "dos").write_bytes(b"\xef\xbb\xbfone\r\ntwo\xff\r\n")
    tools = FileTools(tmp_path)
    assert tools("edit_file", path="dos", old_text="one\n", new_text="1\n1\n").ok
    assert (tmp_path / "dos").read_bytes() == b"\xef\xbb\xbf1\r\n1\r\ntwo\xff\r\n"
    assert tools("write_file", path="dos", content="all\nnew\n").ok
    assert (tmp_path / "dos").read_bytes() == b"\xef\xbb\xbfall\r\nnew\r\n"


@given(st.binary(max_size=40))
def test_any_bytes_survive_decoding_and_encoding(data: bytes) -> None:
    assert write.decode(data).encode() == data


def test_several_edits_are_all_done_or_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one two three", encoding="utf-8")
    tools = FileTools(tmp_path)
    edits = [{"old_text": "one", "new_text": "1"}, {"old_text": "1 two", "new_text": "2"}]
    assert tools("edit_file", path="a", edits=edits).ok
    assert path.read_text("utf-8") == "2 three"
    edits = [{"old_text": "2", "new_text": "x"}, {"old_text": "2", "new_text": "y"}]
    assert "Edit 2:" in str(tools("edit_file", path="a", edits=edits).content)
    assert path.read_text("utf-8") == "2 three"


EDIT = {"old_text": "a", "new_text": "b"}


@pytest.mark.parametrize(
    "wrong", [{}, {"edits": []}, {"edits": [{**EDIT, "more": 1}]}, {"edits": [EDIT], **EDIT}, {"edits": [EDIT] * 51}]
)
def test_invalid_edits_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "a").write_text("a", encoding="utf-8")
    tools = FileTools(tmp_path)
    assert "the tool failed" not in tools.refusal("edit_file", path="a", **wrong)
    assert not tools.acts


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("same", "x", "Nothing would change"),
        ("fixed", "y", "read-only"),
        ("big", "x" * (write.MAX_BYTES + 1), "the limit is"),
        ("half", "\ud800", "unpaired surrogates"),
        ("data", None, "not a text file"),
        ("none", None, "Use write_file"),
    ],
)
def test_impossible_change_is_refused(tmp_path: Path, path: str, content: str | None, reason: str) -> None:
    (tmp_path / "same").write_text("x", encoding="utf-8")
    (tmp_path / "fixed").write_text("x", encoding="utf-8")
    (tmp_path / "fixed").chmod(0o444)
    (tmp_path / "data").write_bytes(b"x\0")
    tools = FileTools(tmp_path)
    tool, more = "write_file", {"content": content}
    if content is None:
        tool, more = "edit_file", {"old_text": "x", "new_text": "y"}
    assert reason in tools.refusal(tool, path=path, **more)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("pipe", "saved\n", "regular"),
        ("folder", "saved\n", "folder"),
        ("fixed", "saved\n", "read-only"),
        ("new", "x\ud800", "unpaired surrogates"),
    ],
)
async def test_editor_writes_no_special_or_read_only_file(tmp_path: Path, name: str, text: str, reason: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "fixed").write_text("saved\n")
    (tmp_path / "fixed").chmod(0o444)
    editor = mock.AsyncMock()  # in which every file is open
    editor.read.return_value = text
    tools = registry.Registry(file_tools.file_tools([str(tmp_path)], editor=editor))
    result = await tools.run(types.ToolCall("1", "write_file", {"path": name, "content": "x"}))
    assert reason in str(result.content)
    editor.write.assert_not_awaited()
    assert bool(editor.read.await_count) is (name not in ("pipe", "folder"))
