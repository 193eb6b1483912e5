"""`holdfast rpc`: standard output carries frames only; tokens, and the end on a signal."""

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

from holdfast import SessionDB
from tests.support import cli_process
from tests.support.cli_process import OFFLINE, Holdfast
from tests.support.rpc_peers import request


def test_input_is_answered_by_frames_only(tmp_path: Path) -> None:
    lines = [
        json.dumps(request(1, "session.create", {})),
        "\udcff\udcfe nonsense",
        "[]",
        '{"jsonrpc": "2.0", "id": 2, "method": "prompt.submit", "params": {"session_id": 7}}',
        json.dumps(request(3, "session.list", {})),
        json.dumps(request(4, "prompt.submit", {"text": "Hello", "uid": "u"})),
    ]
    done = cli_process.run(tmp_path, "rpc", "--log-level", "debug", env=OFFLINE, piped="\n".join(lines))
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    ready, *answers = map(json.loads, done.out.splitlines())
    assert (ready["method"], ready["params"]["type"]) == ("event", "ready")
    found = {each["id"]: each for each in answers if each.get("id") is not None}
    assert found[1]["result"]["begun"] is False
    assert found[2]["error"]["code"] == -32602
    assert "sessions" in found[3]["result"]
    assert found[4]["result"]["session_id"] == found[1]["result"]["session_id"]
    assert [each["error"]["code"] for each in answers if "id" in each and each["id"] is None] == [-32700, -32600]
    # The turn ends although the input ended before.
    last = answers[-1]["params"]
    assert (last["type"], last["payload"]["uid"], last["payload"]["status"]) == ("message.complete", "u", "completed")
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        assert [each.end_reason for each in db.list_sessions(every=True)] == ["tui_close"]


PRINTS = """
import os
from holdfast.rpc import line_transport
print("before")
with line_transport.reserve_stdio() as kept:
    print("printed")
    os.system("echo started; cat")
    os.write(kept.writes, b"frame " + os.read(kept.reads, 100))
    print("at the end")
print("after", input())
"""


def test_prints_and_child_processes_do_not_use_the_frame_streams(tmp_path: Path) -> None:
    # With a pipe, printed text stays in a buffer and could be flushed too late.
    streams = {"stdin": subprocess.PIPE, "command": [sys.executable, "-c", PRINTS]}
    with cli_process.start(tmp_path, **streams) as process:
        process.stdin.write("in\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == ["before\n", "frame in\n"]
        process.stdin.write("more\n")
        process.stdin.close()
        assert process.stdout.read() == "after more\n"
        assert {*process.stderr.read().splitlines()} == {"printed", "started", "at the end"}


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_closed_stream_is_reported_and_no_other_file_gets_frames(tmp_path: Path, closed: str) -> None:
    log, script = tmp_path / "my.log", ["sh", "-c", f'exec "$@" {closed}', "sh", *cli_process.PROGRAM]
    frames = json.dumps(request(1, "server.info"))
    done = cli_process.run(
        tmp_path, "rpc", command=script, env={**OFFLINE, "HOLDFAST_LOG": str(log)}, piped=frames * (closed == ">&-")
    )
    sentence = "holdfast: Standard input and output must be open: they carry the frames."
    assert (done.code, done.sentence) == (2, sentence)
    assert not log.exists()


def test_output_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = cli_process.run(tmp_path, "rpc", env=OFFLINE, stdout=full)
    assert (done.code, done.sentence) == (1, "holdfast: cannot write the output: No space left on device.")


def test_websocket_prints_a_token_and_ends_on_a_signal(tmp_path: Path) -> None:
    with cli_process.start(tmp_path, "rpc", "--websocket", "localhost:0", env=OFFLINE) as process:
        try:
            token = re.match(r"Token for this run: ([\w-]{40,}) ", process.stderr.readline())
            address = re.fullmatch(r"Listening at (ws://localhost:\d+/)\n", process.stderr.readline())
            assert token
            assert address
            assert asyncio.run(interrupt_prompt(address[1], token[1], process)) == ("ready", "interrupted", 1001)
            assert process.wait(cli_process.PATIENCE) == 128 + signal.SIGTERM
            assert (process.stdout.read(), process.stderr.read()) == ("", "")
        finally:
            process.kill()


async def interrupt_prompt(address: str, token: str, process: subprocess.Popen[str]) -> tuple[Any, Any, int | None]:
    """Send a signal during a turn; return the greeting, the status of the turn, and the close code."""

    async def wait_for(kind: str) -> dict[str, Any]:
        while (event := json.loads(await connection.recv()).get("params", {})).get("type") != kind:
            pass
        return event["payload"]

    headers = {"Authorization": f"Bearer {token}"}
    async with client.connect(address, additional_headers=headers, proxy=None) as connection:
        greeting = json.loads(await connection.recv())
        await connection.send(json.dumps(request(1, "prompt.submit", {"text": "run sleep 30"})))
        await wait_for("approval.request")
        process.send_signal(signal.SIGTERM)
        ended = await wait_for("message.complete")
        await connection.wait_closed()
        return greeting["params"]["type"], ended["status"], connection.close_code


@pytest.mark.parametrize(
    ("arguments", "token", "sentence"),
    [
        ("--websocket x", "", "the port must be a number"),
        ("--origin https://example.org", "", "--origin needs --websocket"),
        ("--websocket 0 --origin https://example.org/", "", "a scheme and a host"),
        ("--websocket 0", "short", "The token must have at least 16 ASCII characters, without spaces and commas."),
    ],
)
def test_invalid_option_or_token_is_refused(holdfast: Holdfast, arguments: str, token: str, sentence: str) -> None:
    assert sentence in holdfast("rpc", *arguments.split(), **OFFLINE, HOLDFAST_RPC_TOKEN=token).failure(2)
