"""`holdfast acp`: standard output carries frames only, and the end of the input is the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from holdfast import process_info
from tests.support import cli_in_process, cli_process, polling
from tests.support.rpc_peers import request

OFFLINE = {"HOLDFAST_MODEL": "offline"}
HELLO = request(1, "initialize", {"protocolVersion": 1})


def test_what_is_piped_in_is_answered_by_frames_and_nothing_else(tmp_path: Path) -> None:
    lines = [
        json.dumps(HELLO).encode(),
        b"\xff\xfe nonsense",
        b"[]",
        json.dumps(request(2, "session/list", {})).encode(),
        json.dumps(request(3, "session/explode", {})).encode(),
        json.dumps({"jsonrpc": "2.0", "method": "session/dance"}).encode(),
    ]
    with subprocess.Popen(
        [*cli_process.PROGRAM, "acp"],
        cwd=tmp_path,
        env=cli_process.environment(tmp_path, OFFLINE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n".join(lines) + b"\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(5)]
        rest, said = process.communicate(timeout=cli_process.PATIENCE)
        assert process.returncode == 0, said
    assert rest == b""
    found = {each["id"]: each for each in answers}
    assert found[1]["result"]["agentInfo"]["name"] == "holdfast"
    assert found[2]["result"] == {"sessions": []}
    assert found[3]["error"]["code"] == -32601
    assert [each["error"]["code"] for each in answers if each["id"] is None] == [-32700, -32600]
    assert b"Traceback" not in said


def test_it_leaves_when_it_is_asked_to(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*cli_process.PROGRAM, "acp"],
        env=cli_process.environment(tmp_path, OFFLINE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for frame in (HELLO, request(2, "session/list", {})):
            process.stdin.write(json.dumps(frame).encode() + b"\n")
            process.stdin.flush()
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(cli_process.PATIENCE) == 128 + signal.SIGTERM


def test_a_part_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    done = cli_in_process.run(tmp_path, "acp")
    assert done.code == 1
    assert "pip install 'holdfast[acp]'" in done.err


@pytest.mark.parametrize(
    "wrong", ["the store", "the log", "a part", "a setting", "a setting of a profile", "a variable"]
)
def test_a_start_that_fails_after_the_greeting_is_answered(tmp_path: Path, wrong: str) -> None:
    if wrong == "the store":
        (tmp_path / "store.db").write_text("This is no store, and longer than the head of one would be. " * 20)
    given = {"HOLDFAST_LOG": str(tmp_path / "nowhere" / "log")} if wrong == "the log" else {}
    if wrong == "a part":
        (tmp_path / "pydantic.py").write_text("raise ImportError('It does not fit.')")
        given = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    if wrong.startswith("a setting"):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "config.toml").write_text("model = [\n")
    if wrong == "a variable":
        given = {"HOLDFAST_PROFILE": "nobody"}
    more = ["--profile", "work"] if wrong == "a setting of a profile" else []
    lines = [HELLO, request(2, "session/new", {"cwd": str(tmp_path), "mcpServers": []})]
    done = subprocess.run(
        [*cli_process.PROGRAM, "acp", "--db", str(tmp_path / "store.db"), *more],
        env=cli_process.environment(tmp_path, OFFLINE | given),
        input="\n".join(map(json.dumps, lines)),
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=cli_process.PATIENCE,
    )
    hello, refused = map(json.loads, done.stdout.splitlines())
    assert hello["result"]["protocolVersion"] == 1
    assert (refused["id"], refused["error"]["code"]) == (2, -32603)
    assert refused["error"]["message"] in done.stderr
    assert "Traceback" not in done.stderr
    # Settings that are wrong are wrong use of the program, whichever command needs them.
    assert done.returncode == (2 if wrong in ("a setting", "a setting of a profile", "a variable") else 1)


@pytest.mark.parametrize("variable", ["", "neither"])
def test_what_is_wrong_on_the_command_line_is_no_matter_for_an_editor(tmp_path: Path, variable: str) -> None:
    done = cli_in_process.run(tmp_path, "acp", "--profile", "nobody", env={"HOLDFAST_PROFILE": variable})
    assert (done.code, done.out) == (2, "")
    assert "no profile 'nobody'" in done.err


def test_an_editor_that_reads_nothing_more_is_gone_though_it_could_still_say_something(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    with subprocess.Popen(
        [*cli_process.PROGRAM, "acp"],
        env=cli_process.environment(tmp_path, OFFLINE),
        stdin=subprocess.PIPE,
        stdout=writes,
    ) as process:
        os.close(writes)
        assert process.stdin is not None

        def say(frame: object) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps(frame).encode() + b"\n")
            process.stdin.flush()

        with os.fdopen(reads, "rb") as frames:

            def until(key: str, value: object) -> Any:
                return next(each for each in map(json.loads, frames) if each.get(key) == value)

            say(HELLO)
            say(request(2, "session/new", {"cwd": str(tmp_path), "mcpServers": []}))
            words = {"type": "text", "text": "run `echo $$ > pid; exec sleep 600`"}
            say(request(3, "session/prompt", {"sessionId": until("id", 2)["result"]["sessionId"], "prompt": [words]}))
            asked = until("method", "session/request_permission")
            outcome = {"outcome": "selected", "optionId": "once"}
            say({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}})
            pid = tmp_path / "pid"
            polling.until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        assert process.wait(cli_process.PATIENCE) == 0
        polling.until(lambda: not process_info.exists(int(pid.read_text())))
