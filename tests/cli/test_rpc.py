"""`holdfast rpc`: standard output carries frames only, whatever comes in and whoever prints; a token, a stop."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio import client

from tests.cli import inside, program
from tests.rpc.stage import request

OFFLINE = {"HOLDFAST_MODEL": "offline"}


def test_what_is_piped_in_is_answered_by_frames_and_nothing_else(tmp_path: Path) -> None:
    lines = [
        json.dumps(request(1, "session.create", {})).encode(),
        b"\xff\xfe nonsense",
        b"[]",
        b'{"jsonrpc": "2.0", "id": 2, "method": "prompt.submit", "params": {"session_id": 7}}',
        json.dumps(request(3, "session.list", {})).encode(),
    ]
    done = subprocess.run(
        [*program.PROGRAM, "rpc", "--log-level", "debug"],
        cwd=tmp_path,
        env=program.environment(tmp_path, OFFLINE),
        input=b"\n".join(lines),
        capture_output=True,
        timeout=program.PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ready, *answers = map(json.loads, done.stdout.splitlines())
    assert (ready["method"], ready["params"]["type"]) == ("event", "ready")
    found = {each["id"]: each for each in answers if each.get("id") is not None}
    assert found[1]["result"]["begun"] is False
    assert found[2]["error"]["code"] == -32602
    # Opened and closed without a word: nothing is kept of it.
    assert found[3]["result"]["sessions"] == []
    assert [each["error"]["code"] for each in answers if "id" in each and each["id"] is None] == [-32700, -32600]
    assert b"Traceback" not in done.stderr


PRINTS = """
import os, subprocess, sys
from holdfast.rpc import standard
print("before")
with standard.kept() as kept:
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
        env=program.environment(tmp_path),
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


def test_a_token_is_made_and_told_and_a_signal_ends_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*program.PROGRAM, "rpc", "--websocket", "localhost:0"],
        cwd=tmp_path,
        env=program.environment(tmp_path, OFFLINE),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            token = re.match(r"The token is ([\w-]{40,}) ", process.stderr.readline())
            address = re.fullmatch(r"Listening at (ws://localhost:\d+/)\n", process.stderr.readline())
            assert token
            assert address
            assert asyncio.run(greeted(address[1], token[1], process)) == ("ready", 1001)
            assert process.wait(program.PATIENCE) == 128 + signal.SIGTERM
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
        finally:
            process.kill()


async def greeted(address: str, token: str, process: subprocess.Popen[str]) -> tuple[Any, int | None]:
    """How a client is greeted, and told that the program ends."""
    async with client.connect(address, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as made:
        said = json.loads(await made.recv())
        process.send_signal(signal.SIGTERM)
        await made.wait_closed()
        return said["params"]["type"], made.close_code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--websocket", "x"], "a port is a number"),
        (["--websocket", "::1:80"], "in brackets"),
        (["--origin", "https://example.org"], "--origin is for --websocket"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = inside.run(tmp_path, "rpc", *arguments)
    assert done.code == 2
    assert words in done.sentence


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    done = inside.run(tmp_path, "rpc", "--websocket", "0", env={**OFFLINE, "HOLDFAST_RPC_TOKEN": "short"})
    assert (done.code, done.sentence) == (1, "holdfast: A token has at least 16 characters.")
