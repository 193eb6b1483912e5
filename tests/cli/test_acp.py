"""`holdfast acp`: standard output carries frames only, and the end of the input ends the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from holdfast import installation
from tests.support import cli_process
from tests.support.cli_process import OFFLINE, Holdfast
from tests.support.rpc_peers import request

HELLO = request(1, "initialize", {"protocolVersion": 1})


def send(process: subprocess.Popen[Any], *frames: object) -> None:
    process.stdin.write("".join(json.dumps(frame) + "\n" for frame in frames))  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]


def test_input_is_answered_by_frames_only(tmp_path: Path) -> None:
    options = {"env": OFFLINE, "stdin": subprocess.PIPE, "errors": "surrogateescape"}
    with cli_process.start(tmp_path, "acp", **options) as process:
        process.stdin.write("\udcff\udcfe nonsense\n")
        notification = {"jsonrpc": "2.0", "method": "session/dance"}
        unexpected = {"jsonrpc": "2.0", "id": 4711, "result": {"outcome": {"outcome": "cancelled"}}}
        send(process, HELLO, [], unexpected, request(2, "session/list", {}), request(3, "session/explode", {}))
        send(process, notification)
        answers = [json.loads(process.stdout.readline()) for _ in range(5)]
        rest, err = process.communicate(timeout=cli_process.PATIENCE)
    assert (process.returncode, rest) == (0, ""), err
    found = {each["id"]: each for each in answers}
    assert found[1]["result"]["agentInfo"]["name"] == "holdfast"
    assert found[2]["result"] == {"sessions": []}
    assert found[3]["error"]["code"] == -32601
    assert [each["error"]["code"] for each in answers if each["id"] is None] == [-32700, -32600]
    assert "Traceback" not in err


def test_missing_package_is_named(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    done = holdfast("acp")
    assert done.code == 1
    assert installation.install_command("acp") in done.err


@pytest.mark.parametrize("wrong", ["store", "log", "package", "settings", "settings of a profile", "variable"])
def test_failure_after_the_greeting_is_answered(tmp_path: Path, home: Path, wrong: str) -> None:
    env, arguments = dict(OFFLINE), ["--db", str(tmp_path / "store.db")]
    if wrong == "store":
        (tmp_path / "store.db").write_text("This is no store, and longer than the head of one would be. " * 20)
    elif wrong == "log":
        env["HOLDFAST_LOG"] = str(tmp_path / "nowhere" / "log")
    elif wrong == "package":
        (tmp_path / "pydantic.py").write_text("raise ImportError('It does not fit.')")
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    elif wrong == "variable":
        env["HOLDFAST_PROFILE"] = "unknown"
    else:
        (home / "config.toml").write_text("model = [\n")
        arguments += ["--profile", "work"] if wrong == "settings of a profile" else []
    frames = [HELLO, request(2, "session/new", {"cwd": str(tmp_path), "mcpServers": []})]
    done = cli_process.run(tmp_path, "acp", *arguments, env=env, piped="\n".join(map(json.dumps, frames)))
    hello, refused = map(json.loads, done.out.splitlines())
    assert hello["result"]["protocolVersion"] == 1
    assert (refused["id"], refused["error"]["code"]) == (2, -32603)
    assert refused["error"]["message"] in done.err
    assert "Traceback" not in done.err
    # Invalid settings are a usage error of every command.
    assert done.code == (1 if wrong in ("store", "package") else 2)


def test_usage_error_is_not_answered_with_frames(holdfast: Holdfast) -> None:
    done = holdfast("acp", "--profile", "unknown")
    assert (done.code, done.out) == (2, "")
    assert "no profile 'unknown'" in done.err
