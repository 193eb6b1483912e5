"""Commands in terminals of the editor: the same as by our own hands, seen while they run, and stopped when we are."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from acp import schema

from holdfast import content_parts
from holdfast.acp import client, client_terminals
from holdfast.tools import base
from holdfast.tools.shell import shell
from tests.support import acp_sdk_client
from tests.support import processes as leashes

Work = Callable[[acp_sdk_client.Editor, acp_sdk_client.Doing], Awaitable[None]]


@pytest.fixture
def leash() -> Iterator[leashes.Leash]:
    with leashes.leashed() as found:
        yield found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made: nothing of a command stays there."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def play(
    work: Work, leash: leashes.Leash, root: Path, *, terminal: bool = True, by_shell: bool = False
) -> acp_sdk_client.Editor:
    """Have it done with an editor that runs commands in one of the ways they do."""
    editor = acp_sdk_client.Editor()
    editor.by_shell = by_shell

    async def run() -> None:
        async with acp_sdk_client.connected(editor) as conn, opened(conn, root, leash, terminal=terminal) as made:
            await work(editor, acp_sdk_client.Doing([made]))

    asyncio.run(run())
    return editor


@asynccontextmanager
async def opened(conn: Any, root: Path, leash: leashes.Leash, *, terminal: bool = True) -> AsyncIterator[base.Tool]:
    """The tool of an editor that has terminals; it is there for as long as the block."""
    run = client_terminals.ClientTerminals(conn, acp_sdk_client.SESSION).run if terminal else None
    yield shell.shell([str(root)], lambda: leash.environment, run)


@pytest.mark.parametrize("by_shell", [False, True])
@pytest.mark.parametrize(
    ("command", "wrote"),
    [
        ("echo one; echo two >&2", "one\ntwo"),
        ("printf '%s\\n' \"a  b\" 'c$HOME' | cat", "a  b\nc$HOME"),
        ('x="it\'s"; echo "$x"\necho \'über\n`next`\'', "it's\nüber\n`next`"),
        ("pwd", ""),
    ],
)
def test_a_command_line_means_the_same_to_every_editor(
    tmp_path: Path, place: Path, leash: leashes.Leash, command: str, wrote: str, by_shell: bool
) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        result = await do("shell", command=command)
        assert result.ok
        assert result.content == f"{wrote or os.path.realpath(tmp_path)}\n[exit code 0]"
        assert do.acts[-1].detail == command
        assert editor.terminals == {}

    play(work, leash, tmp_path, by_shell=by_shell)
    assert list(place.iterdir()) == []


def test_a_command_has_our_environment_and_not_the_editors(tmp_path: Path, leash: leashes.Leash) -> None:
    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        told = await do.text("shell", command=f"echo ${leashes.NAME} [$EDITOR_TOKEN]")
        assert told == f"{leash.environment[leashes.NAME]} []\n[exit code 0]"

    play(work, leash, tmp_path)


def test_the_terminal_is_shown_where_the_call_is_while_it_runs(tmp_path: Path, leash: leashes.Leash) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        running = asyncio.create_task(do("shell", command="while [ ! -e go ]; do sleep 0.01; done"))
        async with asyncio.timeout(60):
            while not editor.updates:
                await asyncio.sleep(0.01)
        assert not running.done()
        (update,) = editor.updates
        assert isinstance(update, schema.ToolCallProgress)
        assert update.tool_call_id == "call-1"
        assert update.content == [schema.TerminalToolCallContent(type="terminal", terminal_id="terminal-1")]
        (tmp_path / "go").touch()
        assert (await running).ok

    editor = play(work, leash, tmp_path)
    # People read there what it is.
    assert os.path.basename(editor.started[0][-1]).startswith("while-e-go-do-sleep")


def test_an_error_of_the_command_is_told_as_one(tmp_path: Path, leash: leashes.Leash) -> None:
    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        failed = await do("shell", command="printf '\\033[31mred\\033[0m\\n'; exit 3")
        assert (failed.ok, failed.content) == (False, "red\n[exit code 3]")
        killed = await do("shell", command="kill -TERM $$")
        assert (killed.ok, killed.content) == (False, "[no output]\n[killed by 'SIGTERM']")

    play(work, leash, tmp_path)


def test_a_command_that_takes_too_long_is_killed_and_what_it_wrote_is_told(
    tmp_path: Path, leash: leashes.Leash
) -> None:
    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        for seconds in (1, 5, 25):  # On a busy machine it may be killed before it says anything.
            result = await do("shell", command="echo begun; sleep 600", timeout=seconds)
            assert not result.ok
            assert f"[killed after {seconds} s;" in str(result.content)
            if "begun" in str(result.content):
                break
        assert str(result.content).startswith("begun\n[killed after")

    editor = play(work, leash, tmp_path)
    assert [each for each in editor.asked if each in ("kill", "release")][:2] == ["kill", "release"]


@pytest.mark.parametrize("when", ["create", "wait"])
def test_cancelled_at_any_moment_nothing_runs_on(tmp_path: Path, place: Path, leash: leashes.Leash, when: str) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def before(method: str) -> None:
            if method == when:
                reached.set()
                await go_on.wait()

        editor.before = before
        running = asyncio.create_task(do("shell", command="sleep 600"))
        await reached.wait()
        running.cancel()
        if when == "wait":
            go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        # A terminal that comes when nobody waits for it any more is let go of, and has run nothing.
        go_on.set()
        async with asyncio.timeout(60):
            while editor.asked[-1] != "release" or editor.terminals:
                await asyncio.sleep(0.001)
        assert leash.at_large() == []

    play(work, leash, tmp_path)
    assert list(place.iterdir()) == []


def test_a_terminal_that_comes_too_late_is_let_go_of(
    tmp_path: Path, leash: leashes.Leash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS", 0.05)

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        come = asyncio.Event()

        async def before(method: str) -> None:
            if method == "create":
                await come.wait()

        editor.before = before
        assert "did not answer within 0.05 s" in await do.text("shell", command="touch done")
        come.set()
        async with asyncio.timeout(60):
            while editor.asked[-1] != "release" or editor.terminals:
                await asyncio.sleep(0.001)

    play(work, leash, tmp_path)
    assert not (tmp_path / "done").exists()


async def test_terminal_that_is_created_together_with_a_cancellation_is_released() -> None:
    released: list[str] = []

    class Client:
        async def create_terminal(self, **_: Any) -> schema.CreateTerminalResponse:
            running.cancel()
            return schema.CreateTerminalResponse(terminal_id="late")

        async def release_terminal(self, _session_id: str, terminal_id: str) -> None:
            released.append(terminal_id)

    running: asyncio.Task[str]
    conn: Any = Client()
    running = asyncio.create_task(client_terminals.ClientTerminals(conn, acp_sdk_client.SESSION)._create("script", "/"))
    await asyncio.wait([running])
    assert running.cancelled()
    async with asyncio.timeout(60):
        while not released:
            await asyncio.sleep(0)


def test_kill_and_release_are_asked_at_once_of_an_editor_that_answers_neither(
    tmp_path: Path, leash: leashes.Leash, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        reached, both, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def before(method: str) -> None:
            if method == "wait":
                reached.set()
            if method in ("kill", "release"):
                if {"kill", "release"} <= {*editor.asked}:
                    both.set()
                await never.wait()

        editor.before = before
        running = asyncio.create_task(do("shell", command="sleep 600"))
        await reached.wait()
        running.cancel()
        async with asyncio.timeout(60):
            await both.wait()
        never.set()
        await asyncio.wait([running])

    monkeypatch.setattr(client_terminals, "KILL_SECONDS", 600)
    play(work, leash, tmp_path)


def test_what_a_command_leaves_is_stopped_and_told(tmp_path: Path, leash: leashes.Leash) -> None:
    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        # Out of the group the editor would kill, and away from its output.
        told = await do.text("shell", command="setsid sleep 600 </dev/null >/dev/null 2>&1 & echo begun")
        assert told.startswith("begun\n[1 process it left was stopped;")
        assert told.endswith("[exit code 0]")
        assert leash.at_large() == []

    play(work, leash, tmp_path)


@pytest.mark.parametrize("how", ["late", "cancelled", "gone"])
async def test_nothing_runs_on_whatever_the_editor_does(
    tmp_path: Path, place: Path, leash: leashes.Leash, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(client_terminals, "KILL_SECONDS", 0.05)
    editor = acp_sdk_client.Editor()

    async def nothing(method: str) -> None:
        if method in ("kill", "release"):
            await asyncio.Event().wait()

    editor.before = nothing
    async with acp_sdk_client.connected(editor) as conn, opened(conn, tmp_path, leash) as tool:
        command = "setsid sleep 600 & touch begun; sleep 600"
        doing = acp_sdk_client.Doing([tool])("shell", command=command, timeout=1 if how == "late" else 600)
        running = asyncio.create_task(doing)
        async with asyncio.timeout(60):
            while not running.done() and (not (tmp_path / "begun").exists() or "wait" not in editor.asked):
                await asyncio.sleep(0.01)
        if how == "cancelled":
            running.cancel()
        if how == "gone":
            await conn.close()
        await asyncio.wait([running])
        assert leash.at_large() == []
    assert list(place.iterdir()) == []


def test_an_output_longer_than_is_kept_says_so(tmp_path: Path, leash: leashes.Leash) -> None:
    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        command = f"head -c {client_terminals.OUTPUT_BYTES + 10} /dev/zero | tr '\\0' x; echo; echo end"
        told = await do.text("shell", command=command)
        assert told.startswith("[The beginning of the output was discarded.]")
        assert told.endswith("end\n[exit code 0]")

    play(work, leash, tmp_path)


@pytest.mark.parametrize("knows", [False, True])
def test_without_terminals_our_own_hands_run_it(tmp_path: Path, leash: leashes.Leash, knows: bool) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.refusing = {"create": acp_sdk_client.no_such_method()}
        assert await do.text("shell", command="echo here") == "here\n[exit code 0]"
        assert editor.asked == (["create"] if knows else [])

    play(work, leash, tmp_path, terminal=knows)


def test_an_editor_whose_commands_see_other_files_leaves_it_to_us(
    tmp_path: Path, place: Path, leash: leashes.Leash
) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.elsewhere = "/nowhere"
        assert await do.text("shell", command="echo x >> log; cat log") == "x\n[exit code 0]"
        assert editor.asked[-1] == "release"

    play(work, leash, tmp_path)
    assert list(place.iterdir()) == []


def test_a_command_that_is_not_found_is_run_once(tmp_path: Path, leash: leashes.Leash) -> None:
    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        told = await do.text("shell", command="echo x >> log; cat log; no-such-command")
        assert told.startswith("x\n")
        assert told.endswith("[exit code 127]")

    play(work, leash, tmp_path)
    assert (tmp_path / "log").read_text() == "x\n"


@pytest.mark.parametrize("method", ["wait", "output"])
def test_a_command_that_runs_is_not_run_again_where_the_editor_knows_nothing_more(
    tmp_path: Path, leash: leashes.Leash, method: str
) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.refusing = {method: acp_sdk_client.no_such_method()}
        assert not (await do("shell", command="echo x >> log; sleep 0.2")).ok

    editor = play(work, leash, tmp_path)
    assert editor.asked[-1] == "release"
    assert len(editor.started) == 1
    log = tmp_path / "log"
    assert not log.exists() or log.read_text() in ("", "x\n")


def test_what_the_editor_refuses_to_run_is_not_run(tmp_path: Path, place: Path, leash: leashes.Leash) -> None:
    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        editor.refusing = {"create": acp_sdk_client.refused("no more terminals")}
        result = await do("shell", command="touch done")
        assert not result.ok
        assert "no more terminals" in str(result.content)

    play(work, leash, tmp_path)
    assert not (tmp_path / "done").exists()
    assert list(place.iterdir()) == []


def test_an_editor_that_does_not_let_go_keeps_nobody_waiting(
    tmp_path: Path, leash: leashes.Leash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_terminals, "KILL_SECONDS", 0.05)

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        async def before(method: str) -> None:
            if method == "release":
                await asyncio.Event().wait()

        editor.before = before
        assert await do.text("shell", command="echo here") == "here\n[exit code 0]"

    play(work, leash, tmp_path)


def test_an_editor_that_goes_in_the_middle_is_told(tmp_path: Path, leash: leashes.Leash) -> None:
    editor = acp_sdk_client.Editor()

    async def run() -> str:
        async with acp_sdk_client.connected(editor) as conn, opened(conn, tmp_path, leash) as made:
            running = asyncio.create_task(acp_sdk_client.Doing([made]).text("shell", command="sleep 600"))
            async with asyncio.timeout(60):
                while "wait" not in editor.asked:
                    await asyncio.sleep(0.01)
            await conn.close()
            return await running

    assert "The editor has disconnected." in asyncio.run(run())


@pytest.mark.parametrize("folder", ["..", "/", "nowhere", "link"])
def test_a_folder_outside_is_refused_before_the_editor_is_asked(
    tmp_path: Path, leash: leashes.Leash, folder: str
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)

    async def work(editor: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert not (await do("shell", command="ls", folder=folder)).ok
        assert editor.asked == []

    play(work, leash, root)


def test_a_temporary_folder_with_an_odd_name_is_not_used(
    tmp_path: Path, leash: leashes.Leash, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a b;touch c"
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))

    async def work(_: acp_sdk_client.Editor, do: acp_sdk_client.Doing) -> None:
        assert await do.text("shell", command="echo here") == "here\n[exit code 0]"

    play(work, leash, tmp_path, by_shell=True)


@pytest.mark.parametrize(
    ("status", "late", "ok", "ending"),
    [
        ({"exit_code": 0}, None, True, "[exit code 0]"),
        ({"exit_code": 1}, None, False, "[exit code 1]"),
        ({"exit_code": 0}, 2.5, False, "[killed after 2.5 s; give it a longer `timeout`, or use start_process]"),
        ({"signal": "SIGKILL"}, None, False, "[killed by 'SIGKILL']"),
        ({"exit_code": 0, "signal": "SIGKILL"}, None, False, "[killed by 'SIGKILL']"),
        ({}, None, False, "[It was stopped; the exit code is unknown.]"),
        (None, None, False, "[It was stopped; the exit code is unknown.]"),
    ],
)
def test_only_what_ended_well_by_itself_went_well(
    status: dict[str, Any] | None, late: float | None, ok: bool, ending: str
) -> None:
    ended = None if status is None else schema.TerminalExitStatus(**status)
    found = schema.TerminalOutputResponse(output="out\n", truncated=False, exit_status=ended)
    result = client_terminals.format_output(found, late)
    assert (result.ok, result.content) == (ok, f"out\n{ending}")
    # It is known from the words alone, too: they are all that the log keeps.
    assert content_parts.is_success("shell", result.content) == ok
