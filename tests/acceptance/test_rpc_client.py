"""Third-party clients of the RPC server: npm's json-rpc-2.0 and vscode-jsonrpc, over stdio and WebSocket."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB
from tests.acceptance import npm
from tests.acceptance.installation import PATIENCE
from tests.support import cli_process

LIBRARY, SOCKETS = ("json-rpc-2.0", "1.8.1"), ("ws", "8.22.2")
VSCODE = ("vscode-jsonrpc", "8.2.1")
SCRIPT, OTHER = Path(__file__).parent / "rpc_client.cjs", Path(__file__).parent / "rpc_vscode.cjs"
TOKEN = "a-token-for-this-test-only"


def run_client(
    home: Path, kind: str, *rest: str | Path, package: tuple[str, str] = LIBRARY, script: Path = SCRIPT
) -> dict[str, Any]:
    """Run a client script and return its report."""
    node, library = npm.installed(*package)
    # Before node 22, the built-in WebSocket needs a flag, and node prints a warning.
    options = ["--experimental-websocket", "--no-warnings"]
    return npm.run_script(home, *node.node, *options, script, kind, library, *rest)


def check(home: Path, seen: dict[str, Any]) -> None:
    """Check a conversation as the client saw it and as it is stored."""
    assert seen["strange"] == []
    assert seen["ready"] == seen["info"]
    assert {"session.create", "prompt.submit"} <= {*seen["info"]["methods"]}
    for turn in ("first", "second"):
        assert seen[turn]["status"] == "completed"
        assert seen[turn]["text"]
    deltas = [each for each in seen["events"] if each["type"] == "message.delta"]
    assert "".join(each["payload"]["text"] for each in deltas) == seen["first"]["text"] + seen["second"]["text"]
    said = seen["history"]["messages"]
    assert [each["role"] for each in said] == ["user", "assistant"] * 2
    assert [each["text"] for each in said][::2] == ["Hello there", "And again"]
    title, unknown = seen["batch"]
    assert (title["id"], title["result"]["title"]) == ("a", "By a client")
    assert (unknown["id"], unknown["error"]["code"]) == ("b", -32601)
    assert seen["refused"] == -32602
    assert seen["closed"]["ended"]
    assert [each["title"] for each in seen["list"]["sessions"]] == ["By a client"]
    with SessionDB(home / "data" / "holdfast.db") as db:
        (head,) = db.list_sessions()
        assert (head.id, head.end_reason) == (seen["closed"]["session_id"], "tui_close")
        assert db.admin.fsck().ok


def test_conversation_over_stdio(tmp_path: Path) -> None:
    seen = run_client(tmp_path, "lines", *cli_process.PROGRAM, "rpc")
    check(tmp_path, seen)
    assert seen["code"] == 0


def test_conversation_over_websocket(tmp_path: Path) -> None:
    _, sockets = npm.installed(*SOCKETS)
    with serve(tmp_path) as address:
        seen = run_client(tmp_path, "websocket", sockets, address, TOKEN)
    check(tmp_path, seen)
    assert seen["refusals"] == [401, 401, 403]
    assert seen["protocol"] == "holdfast.rpc"
    assert seen["code"] == 1009


def check_vscode(home: Path, seen: dict[str, Any]) -> None:
    assert seen["reply"]["status"] == "completed"
    deltas = [each["payload"]["text"] for each in seen["events"] if each["type"] == "message.delta"]
    assert "".join(deltas) == seen["reply"]["text"]
    assert [each["role"] for each in seen["history"]["messages"]] == ["user", "assistant"]
    # Each was answered: that it was cancelled, or before the cancellation came.
    assert {-32800} <= {*seen["cancelled"]} <= {-32800, 0}
    assert seen["refused"] == -32601
    assert seen["closed"]["ended"]
    with SessionDB(home / "data" / "holdfast.db") as db:
        (head,) = db.list_sessions(limit=1)
        assert (head.title, head.end_reason) == ("By another", "tui_close")


@pytest.fixture
def many(tmp_path: Path) -> None:
    """Conversations whose list takes long enough for a cancellation to arrive."""
    (tmp_path / "data").mkdir()
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        for number in range(1_000):
            db.create_session(f"talk-{number}", source="test")


@pytest.mark.usefixtures("many")
def test_conversation_with_vscode_jsonrpc(tmp_path: Path) -> None:
    seen = run_client(tmp_path, "lines", *cli_process.PROGRAM, "rpc", package=VSCODE, script=OTHER)
    check_vscode(tmp_path, seen)
    assert seen["code"] == 0


@pytest.mark.usefixtures("many")
def test_conversation_over_the_browser_websocket(tmp_path: Path) -> None:
    with serve(tmp_path) as address:
        seen = run_client(tmp_path, "websocket", address, TOKEN, package=VSCODE, script=OTHER)
    check_vscode(tmp_path, seen)
    assert seen["code"] == 1000


@contextmanager
def serve(home: Path) -> Iterator[str]:
    """Run the server until SIGTERM; yield its address."""
    env = {"HOLDFAST_MODEL": "offline", "HOLDFAST_RPC_TOKEN": TOKEN}
    with cli_process.start(home, "rpc", "--websocket", "0", env=env, stdout=subprocess.DEVNULL) as process:
        try:
            found = re.fullmatch(r"Listening at (ws://127\.0\.0\.1:\d+/)\n", process.stderr.readline())
            assert found
            yield found[1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        finally:
            process.kill()
