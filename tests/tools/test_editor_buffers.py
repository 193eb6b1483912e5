"""Unsaved text of an editor is read and changed in the editor, all other files on the disk."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from holdfast import errors, types
from holdfast.tools import base, registry
from holdfast.tools.files import editor_buffers, file_tools, workspace
from tests.support import mcp_raw_server


class FakeEditor:
    """An editor with some open files."""

    def __init__(self, writes: bool = True, **texts: str) -> None:
        self.texts, self.writes = texts, writes
        self.asked: dict[str, bool] = {}

    async def read(self, place: workspace.WorkspacePath, exists: bool) -> str | None:
        self.asked[place.name] = exists
        return self.texts.get(place.name)

    async def write(self, place: workspace.WorkspacePath, text: str) -> bool:
        if self.writes:
            self.texts[place.name] = text
        return self.writes


async def read(root: Path, editor: FakeEditor | None, name: str) -> bytes | None:
    where = workspace.Workspace([str(root)])
    return await editor_buffers.read(editor, where, where.resolve(name))


async def test_editor_is_asked_for_its_text_and_told_whether_the_file_exists(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("x")
    editor = FakeEditor(saved="y", new="z")
    assert [await read(tmp_path, editor, name) for name in ("saved", "new", "other")] == [b"y", b"z", None]
    assert editor.asked == {"saved": True, "new": False, "other": False}
    where = workspace.Workspace([str(tmp_path)])
    assert await read(tmp_path, None, "saved") is None
    assert await editor_buffers.write(None, where, where.resolve("a"), b"x") is False


@pytest.mark.parametrize(
    "data", [b"text\0text", base64.b64decode(mcp_raw_server.PNG), b"x" * (editor_buffers.MAX_BYTES + 1)]
)
async def test_editor_is_not_asked_for_binary_or_huge_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    editor = FakeEditor(a="text")
    assert await read(tmp_path, editor, "a") is None
    assert editor.asked == {}


async def test_special_files_and_unpaired_surrogates_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    editor = FakeEditor(pipe="x", folder="x", a="x\ud800")
    for name in ("pipe", "folder"):
        with pytest.raises(errors.ToolFailed):
            await read(tmp_path, editor, name)
    assert editor.asked == {}
    with pytest.raises(errors.ToolFailed, match="unpaired surrogates"):
        await read(tmp_path, editor, "a")


@pytest.mark.parametrize("writes", [True, False])
async def test_change_is_written_to_the_editor_or_to_the_disk(tmp_path: Path, writes: bool) -> None:
    (tmp_path / "a").write_text("saved\n")
    editor = FakeEditor(writes, a="not saved\n")
    tools = {tool.spec.name: tool for tool in file_tools.file_tools([str(tmp_path)], editor=editor)}
    plan = await tools["edit_file"].run({"path": "a", "old_text": "not saved", "new_text": "changed"})
    assert isinstance(plan, base.Plan)
    await plan.go()
    assert editor.texts["a"] == ("changed\n" if writes else "not saved\n")
    assert (tmp_path / "a").read_text() == ("saved\n" if writes else "changed\n")


async def test_read_only_file_is_not_changed_in_the_editor(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("saved\n")
    (tmp_path / "a").chmod(0o444)
    editor = FakeEditor(a="saved\n")
    tools = registry.Registry(file_tools.file_tools([str(tmp_path)], editor=editor))
    result = await tools.run(types.ToolCall("1", "write_file", {"path": "a", "content": "x"}))
    assert "read-only" in str(result.content)
    assert editor.texts == {"a": "saved\n"}
