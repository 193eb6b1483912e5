"""Files through the editor: what its user has not saved is read and changed, and nothing outside is asked for."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.acp import client, client_files
from holdfast.tools.files import editor_buffers
from tests.support import acp_sdk_client, mcp_raw_server

Work = Callable[[acp_sdk_client.Editor, acp_sdk_client.Doing], Awaitable[None]]


def play(
    work: Work,
    *roots: str | Path,
    read: bool = True,
    write: bool = True,
    off_limits: tuple[str, ...] = (),
    meanwhile: Callable[[], object] = lambda: None,
) -> acp_sdk_client.Editor:
    """Have it done with an editor that offers this much."""
    editor = acp_sdk_client.Editor()

    async def run() -> None:
        async with acp_sdk_client.connected(editor) as conn:
            offered = acp_sdk_client.offering(read=read, write=write)
            tools = client_files.file_tools_for(conn, acp_sdk_client.SESSION, offered, roots, off_limits=off_limits)
            await work(editor, acp_sdk_client.Doing(tools, meanwhile))

    asyncio.run(run())
    return editor


def test_what_is_not_saved_is_read_and_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old\n")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.buffers[str(path)] = "one\ntwo\nthree\n"
        assert await do.text("read_file", path="a.txt", from_line=2, lines=1) == "2\ttwo\n[Lines 2-2 of 3.]"
        told = await do.text("edit_file", path="a.txt", old_text="two", new_text="2")
        assert told.startswith("Changed: a.txt (+1 -1 lines).")
        # What was shown before it was permitted is the difference to what the user sees.
        assert do.acts[-1].detail.endswith(" one\n-two\n+2\n three\n ")

    editor = play(work, tmp_path)
    assert path.read_text() == "one\n2\nthree\n"
    assert set(editor.asked) == {"read", "write"}


def test_a_new_file_has_its_folders_and_is_written_by_the_editor(tmp_path: Path) -> None:
    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert (await do.text("write_file", path="deep/er/a.txt", content="x\n")).startswith("Written: ")
        assert do.acts[-1].summary.startswith("Write the new file ")

    editor = play(work, tmp_path)
    assert (tmp_path / "deep/er/a.txt").read_text() == "x\n"
    assert editor.asked[-1] == "write"


def test_a_file_that_is_nowhere_is_told_as_ever(tmp_path: Path) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert "No such file" in await do.text("read_file", path="a.txt")
        editor.buffers[str(tmp_path / "a.txt")] = ""
        assert "No such file" in await do.text("read_file", path="a.txt")
        editor.buffers[str(tmp_path / "a.txt")] = "not saved yet"
        assert await do.text("read_file", path="a.txt") == "1\tnot saved yet"

    play(work, tmp_path)


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "link/secret", ".git/hooks/pre-commit", "own.db", "", "."]
)
def test_the_editor_is_never_asked_for_what_is_outside(tmp_path: Path, path: str) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("hidden")
    (root / "link").symlink_to(tmp_path)
    (root / "own.db").write_text("ours")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert not (await do("write_file", path=path, content="x")).ok
        assert editor.asked == []
        if not path.startswith(".git"):
            assert not (await do("read_file", path=path)).ok
            assert editor.asked == []

    play(work, root, off_limits=(str(root / "own.db"),))
    assert (tmp_path / "secret").read_text() == "hidden"


def test_folders_besides_the_first_are_open_too(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (second / "a.txt").write_text("there")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert await do.text("read_file", path=str(second / "a.txt")) == "1\tthere"
        assert editor.paths == [str(second / "a.txt")]

    play(work, first, second)


def test_an_editor_that_knows_its_folder_by_a_link_is_asked_by_that_name(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    (real / "a.txt").write_text("saved")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.buffers[str(tmp_path / "link" / "a.txt")] = "not saved"
        assert await do.text("read_file", path="a.txt") == "1\tnot saved"

    play(work, tmp_path / "link")


def test_who_changes_it_while_it_is_asked_for_keeps_his_change(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    made = list[acp_sdk_client.Editor]()

    def typed() -> None:
        made[0].buffers[str(tmp_path / "a.txt")] = "one, and more\n"

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        made.append(editor)
        assert "changed by another program" in await do.text("edit_file", path="a.txt", old_text="one", new_text="1")

    editor = play(work, tmp_path, meanwhile=typed)
    assert "write" not in editor.asked
    assert (tmp_path / "a.txt").read_text() == "one\n"


def test_who_only_saves_meanwhile_does_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    made = list[acp_sdk_client.Editor]()

    def saved() -> None:
        path.write_text(made[0].buffers.pop(str(path)))

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        made.append(editor)
        editor.buffers[str(path)] = "two\n"
        assert (await do("edit_file", path="a.txt", old_text="two", new_text="2")).ok

    play(work, tmp_path, meanwhile=saved)
    assert path.read_text() == "2\n"


def test_a_link_put_there_meanwhile_is_not_written_through(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("hidden")

    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert not (await do("write_file", path="a.txt", content="x")).ok

    editor = play(work, root, meanwhile=lambda: (root / "a.txt").symlink_to(tmp_path / "secret"))
    assert "write" not in editor.asked
    assert (tmp_path / "secret").read_text() == "hidden"


def test_a_folder_that_became_a_link_is_not_written_into(tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()

    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert not (await do("write_file", path="new/a.txt", content="x")).ok

    editor = play(work, root, meanwhile=lambda: (root / "new").symlink_to(outside))
    assert "write" not in editor.asked
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(("read", "write", "asked"), [(True, False, {"read"}), (False, True, {"write"})])
def test_what_is_not_offered_is_done_by_our_own_hands(tmp_path: Path, read: bool, write: bool, asked: set[str]) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert (await do("edit_file", path="a.txt", old_text="one", new_text="two")).ok
        assert await do.text("read_file", path="a.txt") == "1\ttwo"

    editor = play(work, tmp_path, read=read, write=write)
    assert set(editor.asked) == asked
    assert (tmp_path / "a.txt").read_text() == "two\n"


def test_an_editor_that_offers_what_it_does_not_know_is_asked_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.refusing = {"read": acp_sdk_client.no_such_method(), "write": acp_sdk_client.no_such_method()}
        for old, new in (("one", "two"), ("two", "three")):
            assert (await do("edit_file", path="a.txt", old_text=old, new_text=new)).ok
        assert editor.asked == ["read", "write"]

    play(work, tmp_path)
    assert (tmp_path / "a.txt").read_text() == "three\n"


def test_what_the_editor_refuses_is_not_had_in_another_way(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("private\n")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.refusing = {"read": acp_sdk_client.refused("it is private")}
        told = await do.text("read_file", path="a.txt")
        assert "private\n" not in told
        assert "it is private" in told
        editor.refusing = {"write": acp_sdk_client.refused("the disk is full")}
        assert "the disk is full" in await do.text("write_file", path="a.txt", content="x")

    play(work, tmp_path)
    assert (tmp_path / "a.txt").read_text() == "private\n"


def test_an_editor_that_is_gone_or_says_nothing_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.setattr(client.request, "__defaults__", (0.05,))

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.before = lambda _: asyncio.Event().wait()
        assert "did not answer within" in await do.text("read_file", path="a.txt")

    play(work, tmp_path)

    async def gone() -> str:
        async with acp_sdk_client.connected(acp_sdk_client.Editor()) as conn:
            tools = client_files.file_tools_for(
                conn, acp_sdk_client.SESSION, acp_sdk_client.offering(read=True), [tmp_path]
            )
        return await acp_sdk_client.Doing(tools).text("read_file", path="a.txt")

    assert "The editor has disconnected." in asyncio.run(gone())


@pytest.mark.parametrize(
    ("name", "data"),
    [("latin.txt", b"caf\xe9\n"), ("big.txt", b"x\n" * (editor_buffers.MAX_BYTES // 2 + 1))],
)
def test_what_is_no_text_for_an_editor_is_changed_on_the_disk(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data + b"end\n")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert (await do("edit_file", path=name, old_text="end", new_text="END")).ok
        assert editor.asked == []

    play(work, tmp_path)
    assert (tmp_path / name).read_bytes() == data + b"END\n"


def test_a_picture_is_shown_and_not_asked_for_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(base64.b64decode(mcp_raw_server.PNG))

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        shown = await do("read_file", path="a.png")
        assert isinstance(shown.content, list)
        assert [part["type"] for part in shown.content] == ["text", "image"]
        assert editor.asked == []

    play(work, tmp_path)


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
def test_line_ends_stay_as_the_editor_has_them(tmp_path: Path, ends: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"saved\r\n")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.buffers[str(path)] = f"one{ends}two{ends}"
        assert (await do("write_file", path="a.txt", content="1\n2\n3\n")).ok

    play(work, tmp_path)
    assert path.read_bytes() == f"1{ends}2{ends}3{ends}".encode()


def test_files_are_found_and_searched_without_the_editor(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("needle\n")

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert "a.txt" in await do.text("find_files", pattern="*.txt")
        assert "a.txt:1: needle" in await do.text("search_files", text="needle")
        assert editor.asked == []

    play(work, tmp_path)
    assert os.listdir(tmp_path) == ["a.txt"]
