"""Files that an editor has open: where it has nothing to say the disk counts, and nothing is written to both."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path

import pytest

from holdfast import errors, types
from holdfast.tools import base, registry
from holdfast.tools.files import editor_buffers, file_tools, workspace
from tests.support import mcp_raw_server


class Open:
    """An editor with some files open. What it does not have, it leaves to the disk."""

    def __init__(self, writes: bool = True, **texts: str) -> None:
        self.texts, self.writes = texts, writes
        self.read_there: dict[str, bool] = {}

    async def read(self, place: workspace.WorkspacePath, there: bool) -> str | None:
        self.read_there[place.name] = there
        return self.texts.get(place.name)

    async def write(self, place: workspace.WorkspacePath, text: str) -> bool:
        if self.writes:
            self.texts[place.name] = text
        return self.writes


def held(root: Path, editor: Open, name: str) -> bytes | None:
    where = workspace.Workspace([str(root)])
    return asyncio.run(editor_buffers.read(editor, where, where.resolve(name)))


def test_an_editor_is_told_whether_the_disk_has_the_file(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("x")
    editor = Open(saved="y", new="z")
    assert held(tmp_path, editor, "saved") == b"y"
    assert held(tmp_path, editor, "new") == b"z"
    assert held(tmp_path, editor, "other") is None
    assert editor.read_there == {"saved": True, "new": False, "other": False}


@pytest.mark.parametrize(
    "data", [b"\0", b"text\0text", base64.b64decode(mcp_raw_server.PNG), b"x" * (editor_buffers.MAX_BYTES + 1)]
)
def test_what_is_nothing_for_an_editor_is_not_asked_for(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    editor = Open(a="text")
    assert held(tmp_path, editor, "a") is None
    assert editor.read_there == {}


def test_what_is_no_ordinary_file_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    editor = Open(pipe="x", folder="x")
    for name in ("pipe", "folder"):
        with pytest.raises(errors.ToolFailed):
            held(tmp_path, editor, name)
    assert editor.read_there == {}


def test_half_a_character_is_refused_and_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(errors.ToolFailed, match="unpaired surrogates"):
        held(tmp_path, Open(a="x\ud800"), "a")


@pytest.mark.parametrize("writes", [True, False])
async def test_a_change_goes_to_the_editor_or_to_the_disk_and_never_to_both(tmp_path: Path, writes: bool) -> None:
    (tmp_path / "a").write_text("saved\n")
    editor = Open(writes, a="not saved\n")
    tools = {tool.spec.name: tool for tool in file_tools.file_tools([str(tmp_path)], editor=editor)}
    plan = await tools["edit_file"].run({"path": "a", "old_text": "not saved", "new_text": "changed"})
    assert isinstance(plan, base.Plan)
    await plan.go()
    assert editor.texts["a"] == ("changed\n" if writes else "not saved\n")
    assert (tmp_path / "a").read_text() == ("saved\n" if writes else "changed\n")


def test_a_file_that_is_read_only_on_the_disk_is_not_changed_by_the_editor_either(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("saved\n")
    (tmp_path / "a").chmod(0o444)
    editor = Open(a="saved\n")
    tools = registry.Registry(file_tools.file_tools([str(tmp_path)], editor=editor))
    call = types.ToolCall("1", "write_file", {"path": "a", "content": "x"})
    assert "read-only" in str(asyncio.run(tools.run(call)).content)
    assert editor.texts == {"a": "saved\n"}


def test_without_an_editor_nobody_is_asked(tmp_path: Path) -> None:
    where = workspace.Workspace([str(tmp_path)])
    assert asyncio.run(editor_buffers.read(None, where, where.resolve("a"))) is None
    assert asyncio.run(editor_buffers.write(None, where, where.resolve("a"), b"x")) is False
