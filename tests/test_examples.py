"""The examples are short, listed, and print what their page shows."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio import client

from tests.support import postgres, provider_process

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
SERVERS = {"websocket.py"}
LONGEST = 20


def shown() -> dict[str, str]:
    """Return the output of each example according to the page, by name, in the order of the page."""
    page = (FOLDER / "README.md").read_text("utf-8")
    return dict(re.findall(r"^## \[(\w+\.py)\]\(\1\)$.*?^```output\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))


STRUCTURED = '{"city": "Bergen", "leaves": "9:40", "platform": 4}'


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    reply = STRUCTURED if "structured_output" in request.node.name else "Air scatters blue light most."
    with provider_process.serve(provider_process.reply(reply)) as provider:
        yield {**os.environ, **provider.env}


@pytest.mark.parametrize("example", [each for each in EXAMPLES if each.name not in SERVERS], ids=lambda path: path.name)
def test_example_prints_the_documented_output(example: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    if "DATABASE_URL" in example.read_text("utf-8"):
        environment["DATABASE_URL"] = postgres.fresh()
    ran = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == shown()[example.name]


def test_websocket_example_streams_the_answer(tmp_path: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "websocket:app", "--app-dir", str(FOLDER), "--port", str(port)]
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    while "running on" not in (line := server.stderr.readline()):
        assert line, "the server ended"

    async def talk() -> str:
        async with client.connect(f"ws://127.0.0.1:{port}/chat/one", proxy=None) as connection:
            await connection.send("Why is the sky blue?")
            return str(await connection.recv())

    try:
        assert asyncio.run(asyncio.wait_for(talk(), 60)) + "\n" == shown()["websocket.py"]
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_every_example_is_short_and_listed() -> None:
    assert [each.name for each in EXAMPLES if len(each.read_text("utf-8").splitlines()) > LONGEST] == []
    assert sorted(shown()) == [example.name for example in EXAMPLES]
