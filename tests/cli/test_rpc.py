"""`holdfast rpc`: standard output carries frames only, whatever comes in and whoever prints; a token, a stop."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio import client

from holdfast import SessionDB
from tests.support import cli_in_process, cli_process
from tests.support.rpc_peers import request

OFFLINE = {"HOLDFAST_MODEL": "offline"}


def test_what_is_piped_in_is_answered_by_frames_and_nothing_else(tmp_path: Path) -> None:
    lines = [
        json.dumps(request(1, "session.create", {})).encode(),
        b"\xff\xfe nonsense",
        b"[]",
        b'{"jsonrpc": "2.0", "id": 2, "method": "prompt.submit", "params": {"session_id": 7}}',
        json.dumps(request(3, "session.list", {})).encode(),
        json.dumps(request(4, "prompt.submit", {"text": "Hello", "uid": "u"})).encode(),
    ]
    done = subprocess.run(
        [*cli_process.PROGRAM, "rpc", "--log-level", "debug"],
        cwd=tmp_path,
        env=cli_process.environment(tmp_path, OFFLINE),
        input=b"\n".join(lines),
        capture_output=True,
        timeout=cli_process.PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ready, *answers = map(json.loads, done.stdout.splitlines())
    assert (ready["method"], ready["params"]["type"]) == ("event", "ready")
    found = {each["id"]: each for each in answers if each.get("id") is not None}
    assert found[1]["result"]["begun"] is False
    assert found[2]["error"]["code"] == -32602
    assert "sessions" in found[3]["result"]
    # The input ended before the turn did: it is told to its end all the same, and last of all.
    assert found[4]["result"]["session_id"] == found[1]["result"]["session_id"]
    last = answers[-1]["params"]
    assert (last["type"], last["payload"]["uid"], last["payload"]["status"]) == ("message.complete", "u", "completed")
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        assert [each.end_reason for each in db.list_sessions(every=True)] == ["tui_close"]
    assert [each["error"]["code"] for each in answers if "id" in each and each["id"] is None] == [-32700, -32600]
    assert b"Traceback" not in done.stderr


PRINTS = """
import os, subprocess, sys
from holdfast.rpc import line_transport
print("before")
with line_transport.reserve_stdio() as kept:
    print("printed")
    os.system("echo started; cat")
    os.write(kept.writes, b"frame " + os.read(kept.reads, 100))
    print("at the end")
print("after", input())
"""


def test_whoever_prints_or_reads_meanwhile_does_it_elsewhere(tmp_path: Path) -> None:
    # By a pipe what is printed waits in a buffer, which is where it could come out too late.
    with subprocess.Popen(
        [sys.executable, "-c", PRINTS],
        env=cli_process.environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"in\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == [b"before\n", b"frame in\n"]
        process.stdin.write(b"more\n")
        process.stdin.close()
        assert process.stdout.read() == b"after more\n"
        assert {*process.stderr.read().splitlines()} == {b"printed", b"started", b"at the end"}


def test_where_standard_error_is_closed_what_is_printed_goes_nowhere(tmp_path: Path) -> None:
    # A socket, as node has it, could be written to though it is input.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", PRINTED],
            env=cli_process.environment(tmp_path),
            stdin=theirs,
            stdout=subprocess.PIPE,
            timeout=cli_process.PATIENCE,
            check=False,
        )
        theirs.close()
        assert (done.stdout, ours.recv(100)) == (b"frame", b"")


PRINTED = """
import os
from holdfast.rpc import line_transport
with line_transport.reserve_stdio() as kept:
    for descriptor in (1, 2):
        os.write(descriptor, b"words")
    os.write(kept.writes, b"frame")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_what_is_closed_is_said_and_no_other_file_gets_frames(tmp_path: Path, closed: str) -> None:
    log = tmp_path / "my.log"
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *cli_process.PROGRAM, "rpc"],
        cwd=tmp_path,
        env=cli_process.environment(tmp_path, {**OFFLINE, "HOLDFAST_LOG": str(log)}),
        input=json.dumps(request(1, "server.info")).encode() if closed == ">&-" else b"",
        capture_output=True,
        timeout=cli_process.PATIENCE,
        check=False,
    )
    said = b"holdfast: Standard input and output must be open: they carry the frames.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", said)
    assert not log.exists()


def test_output_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*cli_process.PROGRAM, "rpc"],
            cwd=tmp_path,
            env=cli_process.environment(tmp_path, OFFLINE),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=cli_process.PATIENCE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        b"holdfast: cannot write the output: No space left on device.\n",
    )


def test_a_token_is_made_and_told_and_a_signal_ends_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*cli_process.PROGRAM, "rpc", "--websocket", "localhost:0"],
        cwd=tmp_path,
        env=cli_process.environment(tmp_path, OFFLINE),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            token = re.match(r"Token for this run: ([\w-]{40,}) ", process.stderr.readline())
            address = re.fullmatch(r"Listening at (ws://localhost:\d+/)\n", process.stderr.readline())
            assert token
            assert address
            assert asyncio.run(greeted(address[1], token[1], process)) == ("ready", "interrupted", 1001)
            assert process.wait(cli_process.PATIENCE) == 128 + signal.SIGTERM
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
        finally:
            process.kill()


async def greeted(address: str, token: str, process: subprocess.Popen[str]) -> tuple[Any, Any, int | None]:
    """How a client is greeted, told what becomes of its prompt, and that the program ends."""
    async with client.connect(address, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as made:
        said = json.loads(await made.recv())
        await made.send(json.dumps(request(1, "prompt.submit", {"text": "run sleep 30"})))
        await until(made, "approval.request")
        process.send_signal(signal.SIGTERM)
        ended = await until(made, "message.complete")
        await made.wait_closed()
        return said["params"]["type"], ended["status"], made.close_code


async def until(made: client.ClientConnection, kind: str) -> dict[str, Any]:
    """What the next event of this kind carries."""
    while (told := json.loads(await made.recv()).get("params", {})).get("type") != kind:
        pass
    carried: dict[str, Any] = told["payload"]
    return carried


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--websocket", "x"], "the port must be a number"),
        (["--websocket", "::1:80"], "in brackets"),
        (["--origin", "https://example.org"], "--origin needs --websocket"),
        (["--websocket", "0", "--origin", "https://example.org/"], "a scheme and a host"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = cli_in_process.run(tmp_path, "rpc", *arguments)
    assert done.code == 2
    assert words in done.sentence


@pytest.mark.parametrize("token", ["short", " " * 20])
def test_a_token_that_is_short_or_cannot_be_said_is_refused(tmp_path: Path, token: str) -> None:
    done = cli_in_process.run(tmp_path, "rpc", "--websocket", "0", env={**OFFLINE, "HOLDFAST_RPC_TOKEN": token})
    assert done.code == 1
    assert done.sentence == "holdfast: The token must have at least 16 ASCII characters, without spaces and commas."
