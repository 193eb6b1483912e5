"""Start-up of `holdfast acp`, relative to a bare interpreter and to an echo agent of the SDK.

An editor waits for the responses to `initialize` and `session/new` before the user can type.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import timing
from bench.figures import Figure, at_most
from bench.scale import Scale

ECHO = """
import asyncio, acp

class Echo(acp.Agent):
    async def initialize(self, protocol_version, **_):
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd, **_):
        return acp.NewSessionResponse(session_id="one")

asyncio.run(acp.run_agent(Echo()))
"""


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    program = str(Path(sys.executable).parent / "holdfast")
    environment = {**os.environ, "HOLDFAST_HOME": str(folder / "home"), "HOLDFAST_MODEL": "offline"}

    def bare(_: int) -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True, cwd=folder)

    def until(answers: int, *command: str) -> timing.Operation:
        return lambda _: _start_and_ask(answers, folder, environment, *command)

    echo = (sys.executable, "-c", ECHO)
    operations: dict[str, timing.Operation] = {
        "bare": bare,
        "greeted": until(1, program, "acp"),
        "greeted.echo": until(1, *echo),
        "opened": until(2, program, "acp"),
        "opened.echo": until(2, *echo),
    }
    timing.interleave(operations, 1)
    taken = {name: value * 1e3 for name, value in timing.medians(timing.interleave(operations, scale.editors)).items()}
    bare_one, greeted = ("bare interpreter", taken["bare"]), ("echo of the SDK", taken["greeted.echo"])
    opened = ("echo of the SDK", taken["opened.echo"])
    # Loading the SDK takes most of the time of any agent; `initialize` is answered before.
    yield Figure("acp.greeted", "start to initialize answered", "ms", taken["greeted"], greeted, at_most(0.5))
    yield Figure("acp.bare", "the same, relative to a bare interpreter", "ms", taken["greeted"], bare_one)
    yield Figure("acp.opened", "start to session/new answered", "ms", taken["opened"], opened, at_most(2))


def _start_and_ask(answers: int, folder: Path, environment: dict[str, str], *command: str) -> None:
    """Start an agent, send the first requests of an editor until `answers` of them are answered, and kill it."""
    asked = [
        ("initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
        ("session/new", {"cwd": str(folder), "mcpServers": []}),
    ]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for number, (method, params) in enumerate(asked[:answers]):
                frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                process.stdin.write(json.dumps(frame).encode() + b"\n")
                process.stdin.flush()
                _wait(process, number)
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], number: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        frame = json.loads(line)
        if frame.get("id") == number:
            assert "result" in frame, frame
            return
    raise AssertionError("the agent ended before it answered")
