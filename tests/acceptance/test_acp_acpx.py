"""npm's acpx, a third-party ACP client for the command line with sessions, files and terminals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.acpx import Client
from tests.acceptance.installation import PATIENCE
from tests.support import cli_process, polling

DENIED = 5
"""The exit code after it denied every permission request."""


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@contextmanager
def session(client: Client) -> Iterator[None]:
    """Keep a session between commands, and close it."""
    client.run("sessions", "new")
    try:
        yield
    finally:
        client.run("sessions", "close")


def user_texts(home: Path) -> list[str]:
    return [text for role, text in cli_process.read_log(home) if role == "user"]


def test_allowed_command_runs_in_the_terminal_and_denied_one_does_not(client: Client) -> None:
    done = client.run("--approve-all", "exec", "run `touch yes.txt`")
    assert "terminal/create" in done
    assert "[done] end_turn" in done
    assert "[done] end_turn" in client.run("--deny-all", "exec", "run `touch no.txt`", code=DENIED)
    assert [path.name for path in client.home.glob("*.txt")] == ["yes.txt"]


def test_session_survives_its_agent_process(client: Client) -> None:
    with session(client):
        client.run("prompt", "My train leaves at 9:40.")
        os.kill(client.agent(), signal.SIGKILL)
        assert "9:40" in client.run("prompt", "When does my train leave?")
    assert user_texts(client.home) == ["My train leaves at 9:40.", "When does my train leave?"]


def test_turn_is_cancelled_from_another_command(client: Client) -> None:
    with session(client):
        asked = client.start("--approve-all", "prompt", "run `touch begun; sleep 600`")
        polling.until((client.home / "begun").exists)
        client.run("cancel")
        out, err = asked.communicate(timeout=PATIENCE)
        assert "cancelled" in out + err
        assert "[done] end_turn" in client.run("prompt", "Hello there")
    assert user_texts(client.home)[-1] == "Hello there"
