"""The client tools: requests to the editor, its files and its terminals, and what happens if it fails."""

from __future__ import annotations

import asyncio
import base64
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema

from holdfast import content_parts, errors
from holdfast.acp import client, client_files, client_terminals
from holdfast.tools.files import editor_buffers
from holdfast.tools.shell import shell
from tests.support import acp_sdk_client, mcp_raw_server, processes
from tests.support.acp_sdk_client import Editor, method_not_found, request_error
from tests.support.file_tools import ToolRunner
from tests.support.polling import until_async

Client = tuple[Editor, ToolRunner]


# --- requests --------------------------------------------------------------------------------------------


async def fail(error: BaseException) -> object:
    raise error


async def answer_invalid() -> object:
    return schema.CreateTerminalResponse.model_validate({"terminal": 1})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda: fail(acp.RequestError(-32603, "No", {"details": "private"})), "request: 'No: private'."),
        (lambda: fail(acp.RequestError(-32603, "No", {"details": 7, "message": "no"})), "request: 'No: no'."),
        (answer_invalid, "invalid response"),
        (lambda: fail(ConnectionError("Connection closed")), "has disconnected"),
        (lambda: asyncio.Event().wait(), "did not answer within 0.01 s"),
        (lambda: fail(acp.RequestError(-32603, "x\n\x1b[2J" * 1000)), "x"),
        (lambda: fail(method_not_found()), ""),
    ],
)
async def test_failed_request_is_a_one_line_tool_error(answer: Callable[[], Awaitable[object]], expected: str) -> None:
    with pytest.raises(errors.ToolFailed) as found:
        await client.request(answer(), 0.01)
    assert expected in str(found.value)
    assert str(found.value).isprintable()
    assert len(str(found.value)) < 400
    assert isinstance(found.value, client.NotOffered) == (not expected)


# --- files -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_files(
    *roots: str | Path, read: bool = True, write: bool = True, off_limits: tuple[str, ...] = ()
) -> AsyncIterator[Client]:
    """Connect an editor with these capabilities, and run the file tools for it."""
    editor = Editor()
    async with acp_sdk_client.connect(editor) as conn:
        files = schema.FileSystemCapabilities(read_text_file=read, write_text_file=write)
        offered, session = schema.ClientCapabilities(fs=files), acp_sdk_client.SESSION
        yield editor, ToolRunner(client_files.file_tools_for(conn, session, offered, roots, off_limits=off_limits))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    return path


async def test_unsaved_text_is_read_and_changed(file: Path) -> None:
    async with open_files(file.parent) as (editor, do):
        editor.buffers[str(file)] = "one\ntwo\nthree\n"
        assert await do.text("read_file", path="a.txt", from_line=2, lines=1) == "2\ttwo\n[Lines 2-2 of 3.]"
        changed = await do.text("edit_file", path="a.txt", old_text="two", new_text="2")
        assert changed.startswith("Changed: a.txt (+1 -1 lines).")
        # The approval shows the difference to the unsaved text.
        assert do.acts[-1].detail.endswith(" one\n-two\n+2\n three")
    assert file.read_text() == "one\n2\nthree\n"
    assert set(editor.asked) == {"read", "write"}


async def test_new_file_is_written_by_the_editor_and_a_missing_one_reported(tmp_path: Path) -> None:
    async with open_files(tmp_path) as (editor, do):
        assert (await do.text("write_file", path="deep/er/a.txt", content="x\n")).startswith("Written: ")
        assert do.acts[-1].summary.startswith("Write the new file ")
        assert (editor.asked[-1], (tmp_path / "deep/er/a.txt").read_text()) == ("write", "x\n")
        for buffer, expected in ((None, "No such file"), ("", "No such file"), ("not saved yet", "1\tnot saved yet")):
            if buffer is not None:
                editor.buffers[str(tmp_path / "a.txt")] = buffer
            assert expected in await do.text("read_file", path="a.txt")
        assert "a.txt:1: x" in await do.text("search_files", text="x")


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "link/secret", ".git/hooks/pre-commit", "own.db", "", "."]
)
async def test_editor_is_not_asked_for_files_outside(tmp_path: Path, path: str) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("hidden")
    (root / "link").symlink_to(tmp_path)
    (root / "own.db").write_text("ours")
    async with open_files(root, off_limits=(str(root / "own.db"),)) as (editor, do):
        assert not (await do("write_file", path=path, content="x")).ok
        if not path.startswith(".git"):
            assert not (await do("read_file", path=path)).ok
        assert editor.asked == []
    assert (tmp_path / "secret").read_text() == "hidden"


async def test_other_folders_and_links_are_asked_for_by_their_own_names(tmp_path: Path) -> None:
    real, link, second = tmp_path / "real", tmp_path / "link", tmp_path / "second"
    for folder in (real, second):
        folder.mkdir()
        (folder / "a.txt").write_text("saved")
    link.symlink_to(real)
    async with open_files(link, second) as (editor, do):
        editor.buffers[str(link / "a.txt")] = "not saved"
        assert await do.text("read_file", path="a.txt") == "1\tnot saved"
        assert await do.text("read_file", path=str(second / "a.txt")) == "1\tsaved"
        assert editor.paths[-1] == str(second / "a.txt")


async def test_change_of_the_person_during_an_approval_is_kept(file: Path) -> None:
    async with open_files(file.parent) as (editor, do):
        do.meanwhile = lambda: editor.buffers.update({str(file): "one, and more\n"})
        assert "changed by another program" in await do.text("edit_file", path="a.txt", old_text="one", new_text="1")
        assert ("write" in editor.asked, file.read_text()) == (False, "one\n")
        # Saving alone is no change.
        editor.buffers[str(file)] = "two\n"
        do.meanwhile = lambda: file.write_text(editor.buffers.pop(str(file)))
        assert (await do("edit_file", path="a.txt", old_text="two", new_text="2")).ok
    assert file.read_text() == "2\n"


@pytest.mark.parametrize(("path", "target"), [("a.txt", "secret"), ("new/a.txt", ".")])
async def test_link_created_during_an_approval_is_not_followed(path: str, target: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("hidden")
    async with open_files(root) as (editor, do):
        do.meanwhile = lambda: (root / Path(path).parts[0]).symlink_to(outside / target)
        assert not (await do("write_file", path=path, content="x")).ok
        assert "write" not in editor.asked
    assert [(each.name, each.read_text()) for each in outside.iterdir()] == [("secret", "hidden")]


@pytest.mark.parametrize(
    ("read", "write", "known", "asked"),
    [(True, False, True, {"read"}), (False, True, True, {"write"}), (True, True, False, {"read", "write"})],
    ids=["read only", "write only", "unknown methods"],
)
async def test_files_are_used_without_editor(file: Path, read: bool, write: bool, known: bool, asked: set[str]) -> None:
    async with open_files(file.parent, read=read, write=write) as (editor, do):
        if not known:
            editor.refusing = {"read": method_not_found(), "write": method_not_found()}
        for old, new in (("one", "two"), ("two", "three")):
            assert (await do("edit_file", path="a.txt", old_text=old, new_text=new)).ok
        assert set(editor.asked) == asked
        assert known or len(editor.asked) == 2
    assert file.read_text() == "three\n"


async def test_refusal_of_the_editor_is_not_circumvented(file: Path) -> None:
    async with open_files(file.parent) as (editor, do):
        editor.refusing = {"read": request_error("it is private")}
        text = await do.text("read_file", path="a.txt")
        assert "it is private" in text
        assert "one" not in text
        editor.refusing = {"write": request_error("the disk is full")}
        assert "the disk is full" in await do.text("write_file", path="a.txt", content="x")
    assert file.read_text() == "one\n"
    assert "The editor has disconnected." in await do.text("read_file", path="a.txt")


@pytest.mark.parametrize(
    ("name", "data"), [("latin.txt", b"caf\xe9\n"), ("big.txt", b"x\n" * (editor_buffers.MAX_BYTES // 2 + 1))]
)
async def test_file_that_is_no_text_for_an_editor_is_changed_on_disk(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data + b"end\n")
    (tmp_path / "a.png").write_bytes(base64.b64decode(mcp_raw_server.PNG))
    async with open_files(tmp_path) as (editor, do):
        assert (await do("edit_file", path=name, old_text="end", new_text="END")).ok
        shown = await do("read_file", path="a.png")
        assert [part["type"] for part in shown.content] == ["text", "image"]  # type: ignore[union-attr]
        assert editor.asked == []
    assert (tmp_path / name).read_bytes() == data + b"END\n"


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
async def test_line_ends_of_the_editor_are_kept(file: Path, ends: str) -> None:
    file.write_bytes(b"saved\r\n")
    async with open_files(file.parent) as (editor, do):
        editor.buffers[str(file)] = f"one{ends}two{ends}"
        assert (await do("write_file", path="a.txt", content="1\n2\n3\n")).ok
    assert file.read_bytes() == f"1{ends}2{ends}3{ends}".encode()


# --- terminals -------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, which must be empty afterwards."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    assert list(made.iterdir()) == []


@asynccontextmanager
async def open_terminals(
    root: Path, leash: processes.Leash, *, terminal: bool = True
) -> AsyncIterator[tuple[Editor, ToolRunner, Any]]:
    """Connect an editor, and run the shell tool in its terminals."""
    editor = Editor()
    async with acp_sdk_client.connect(editor) as conn:
        run = client_terminals.ClientTerminals(conn, acp_sdk_client.SESSION).run if terminal else None
        yield editor, ToolRunner([shell.shell([str(root)], lambda: leash.environment, run)]), conn


@pytest.mark.parametrize("by_shell", [False, True])
@pytest.mark.parametrize(
    ("command", "wrote"),
    [
        ("echo one; echo two >&2; pwd", "one\ntwo\n{folder}"),
        ("printf '%s\\n' \"a  b\" 'c$HOME' | cat", "a  b\nc$HOME"),
        ('x="it\'s"; echo "$x"\necho \'über\n`next`\'', "it's\nüber\n`next`"),
        (f"echo ${processes.NAME} [$EDITOR_TOKEN]", "{mark} []"),
    ],
)
async def test_command_means_the_same_to_every_editor_and_has_our_environment(
    tmp_path: Path, place: Path, leash: processes.Leash, command: str, wrote: str, by_shell: bool
) -> None:
    async with open_terminals(tmp_path, leash) as (editor, do, _):
        editor.by_shell = by_shell
        result = await do("shell", command=command)
        assert result.ok
        expected = wrote.format(folder=os.path.realpath(tmp_path), mark=leash.environment[processes.NAME])
        assert result.content == f"{expected}\n[exit code 0]"
        assert (do.acts[-1].detail, editor.terminals) == (command, {})


@pytest.mark.parametrize(
    ("command", "ok", "starts", "ends"),
    [
        ("printf '\\033[31mred\\033[0m\\n'; exit 3", False, "red", "red\n[exit code 3]"),
        ("kill -TERM $$", False, "[no output]", "[killed by 'SIGTERM']"),
        ("echo x >> log; cat log; no-such-command", False, "x\n", "[exit code 127]"),
        (
            f"head -c {client_terminals.OUTPUT_BYTES + 10} /dev/zero | tr '\\0' x; echo; echo end",
            True,
            "[The beginning of the output was discarded.]",
            "end\n[exit code 0]",
        ),
        # Out of the process group that the editor would kill, and away from its output.
        (
            "setsid sleep 600 </dev/null >/dev/null 2>&1 & echo begun",
            True,
            "begun\n[1 process it left was stopped;",
            "[exit code 0]",
        ),
    ],
    ids=["exit code", "signal", "not found", "long output", "process left"],
)
async def test_end_of_a_command_is_reported(
    tmp_path: Path, leash: processes.Leash, command: str, ok: bool, starts: str, ends: str
) -> None:
    async with open_terminals(tmp_path, leash) as (_, do, _):
        found = await do("shell", command=command)
        assert (found.ok, str(found.content).startswith(starts), str(found.content).endswith(ends)) == (ok, True, True)
        # The log has only the text, which must be enough to know the status.
        assert content_parts.is_success("shell", found.content) == ok
        assert leash.at_large() == []


async def test_slow_command_is_killed_and_its_output_reported(tmp_path: Path, leash: processes.Leash) -> None:
    async with open_terminals(tmp_path, leash) as (editor, do, _):
        for seconds in (1, 5, 25):  # On a busy machine it may be killed before it writes anything.
            found = await do("shell", command="echo begun; sleep 600", timeout=seconds)
            assert not found.ok
            assert f"[killed after {seconds} s;" in str(found.content)
            if "begun" in str(found.content):
                break
        assert str(found.content).startswith("begun\n[killed after")
    assert [each for each in editor.asked if each in ("kill", "release")][:2] == ["kill", "release"]


@pytest.mark.parametrize("when", ["create", "wait"])
async def test_cancelled_command_is_stopped(tmp_path: Path, place: Path, leash: processes.Leash, when: str) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == when:
            reached.set()
            await go_on.wait()

    async with open_terminals(tmp_path, leash) as (editor, do, _):
        editor.before = hold
        running = asyncio.create_task(do("shell", command="sleep 600"))
        await reached.wait()
        running.cancel()
        if when == "wait":
            go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        go_on.set()  # A terminal that is created too late is released, and has run nothing.
        await until_async(lambda: editor.asked[-1] == "release" and not editor.terminals)
        assert leash.at_large() == []


@pytest.mark.parametrize("how", ["timeout", "cancelled", "disconnected", "finished"])
async def test_nothing_continues_if_the_editor_neither_kills_nor_releases(
    tmp_path: Path, place: Path, leash: processes.Leash, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(client_terminals, "KILL_SECONDS", 0.05)

    async def hold(method: str) -> None:
        if method in ("kill", "release"):
            await asyncio.Event().wait()

    async with open_terminals(tmp_path, leash) as (editor, do, conn):
        editor.before = hold
        command = "echo here" if how == "finished" else "setsid sleep 600 & touch begun; sleep 600"
        running = asyncio.create_task(do("shell", command=command, timeout=1 if how == "timeout" else 600))
        begun = tmp_path / "begun"
        await until_async(lambda: running.done() or (begun.exists() and "wait" in editor.asked))
        if how == "cancelled":
            running.cancel()
        if how == "disconnected":
            await conn.close()
        await asyncio.wait([running])
        assert leash.at_large() == []
        if how == "cancelled":
            assert {"kill", "release"} <= {*editor.asked}  # Both are requested at once.
        elif how == "disconnected":
            assert "The editor has disconnected." in str(running.result().content)
        elif how == "finished":
            assert running.result().content == "here\n[exit code 0]"


@pytest.mark.parametrize("how", ["no terminals", "unknown method", "odd folder"])
async def test_command_runs_directly_if_the_editor_cannot_run_it(
    tmp_path: Path, leash: processes.Leash, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_terminals(tmp_path, leash, terminal=how != "no terminals") as (editor, do, _):
        if how == "unknown method":
            editor.refusing = {"create": method_not_found()}
        elif how == "odd folder":
            (tmp_path / "a b;touch c").mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b;touch c"))
            editor.by_shell = True
        assert await do.text("shell", command="echo x >> log; cat log") == "x\n[exit code 0]"
        assert editor.asked[-1:] == {"no terminals": [], "unknown method": ["create"]}.get(how, ["release"])


@pytest.mark.parametrize("method", ["wait", "output"])
async def test_running_command_is_never_repeated(tmp_path: Path, leash: processes.Leash, method: str) -> None:
    async with open_terminals(tmp_path, leash) as (editor, do, _):
        editor.refusing = {method: method_not_found()}
        assert not (await do("shell", command="echo x >> log; sleep 0.2")).ok
    assert (editor.asked[-1], len(editor.started)) == ("release", 1)
    log = tmp_path / "log"
    assert not log.exists() or log.read_text() in ("", "x\n")


async def test_command_that_the_editor_refuses_is_not_run(tmp_path: Path, place: Path, leash: processes.Leash) -> None:
    async with open_terminals(tmp_path, leash) as (editor, do, _):
        editor.refusing = {"create": request_error("no more terminals")}
        found = await do("shell", command="touch done")
        assert (found.ok, "no more terminals" in str(found.content)) == (False, True)
    assert not (tmp_path / "done").exists()


SUCCESS = schema.TerminalExitStatus(exit_code=0)
KILLED = schema.TerminalExitStatus(exit_code=0, signal="SIGKILL")


@pytest.mark.parametrize(("status", "timeout"), [(SUCCESS, 2.5), (KILLED, None), (None, None)])
def test_killed_or_unfinished_command_has_failed(status: Any, timeout: float | None) -> None:
    found = schema.TerminalOutputResponse(output="out\n", truncated=False, exit_status=status)
    result = client_terminals.format_output(found, timeout)
    assert (result.ok, content_parts.is_success("shell", result.content)) == (False, False)
