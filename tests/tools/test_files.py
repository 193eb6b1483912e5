"""Reading files: only where it was allowed, only regular ones, in parts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import types
from holdfast.tools import base, registry
from holdfast.tools.files import read as read_tool
from holdfast.tools.files import workspace


def read(root: Path, **arguments: Any) -> base.Result:
    tools = registry.Registry([read_tool.read_file(workspace.Workspace([str(root)]))])
    return asyncio.run(tools.run(types.ToolCall("x", "read_file", arguments)))


def test_a_file_comes_with_numbered_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert read(tmp_path, path="a.txt") == base.Result("1\tone\n2\ttwo")
    assert read(tmp_path, path=str(tmp_path / "a.txt")).ok


def test_a_long_file_comes_in_parts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(map(str, range(1, 1001))), encoding="utf-8")
    first = str(read(tmp_path, path="a.txt").content)
    assert first.endswith("[Lines 1-400 of 1000.]")
    assert read(tmp_path, path="a.txt", from_line=999).content == "999\t999\n1000\t1000"
    assert "1000 lines" in str(read(tmp_path, path="a.txt", from_line=1001).content)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "link/secret", "~root/x", "", "a\0b"])
def test_what_lies_outside_is_refused(tmp_path: Path, path: str) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("hidden", encoding="utf-8")
    (root / "link").symlink_to(tmp_path)
    result = read(root, path=path)
    assert not result.ok
    assert "hidden" not in str(result.content)


def test_a_folder_a_pipe_and_a_picture_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "picture").write_bytes(b"\x89PNG\0\0")
    for path, told in ((".", "folder"), ("pipe", "regular"), ("picture", "not a text file"), ("nothing", "No such")):
        result = read(tmp_path, path=path)
        assert not result.ok
        assert told in str(result.content)


@pytest.mark.parametrize("wrong", [{"from_line": 0}, {"lines": -1}, {"from_line": "1"}, {"from_line": True}, {"x": 1}])
def test_wrong_arguments_are_told(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "a.txt").write_text("one", encoding="utf-8")
    assert not read(tmp_path, path="a.txt", **wrong).ok


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ok \xff\xfe\n")
    assert read(tmp_path, path="a.txt").content == "1\tok \ufffd\ufffd"
    (tmp_path / "empty").touch()
    assert read(tmp_path, path="empty").ok
