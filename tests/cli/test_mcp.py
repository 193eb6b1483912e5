"""Servers of tools in the program: they are listed, and their prompts can be said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import cli_process, provider_process, pty_terminal

Holdfast = Callable[..., cli_process.Run]
RAW = Path(__file__).parent.parent / "support" / "mcp_raw_server.py"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "config.toml").write_text(
        f"""
        [memory]
        review = false
        [mcpServers.good]
        command = "{sys.executable}"
        args = ["-I", "{RAW}", "ten"]
        [mcpServers.bad]
        command = "/no/such/program"
        [mcpServers.off]
        command = "x"
        enabled = false
        """
    )
    return tmp_path


def test_servers_are_listed_with_their_state(holdfast: Holdfast, home: Path) -> None:
    done = holdfast("mcp", "list")
    assert done.code == 0
    good, bad = done.out.splitlines()
    assert good.split() == ["good", "ready", "10", "tools"]
    assert bad.split()[:4] == ["bad", "down", "0", "tools"]
    assert "there is no program '/no/such/program'" in bad


def test_machines_get_the_same_as_json(holdfast: Holdfast, home: Path) -> None:
    good, bad = holdfast("mcp", "list", "--json").data["servers"]
    assert good["tools"][0] == "good__t0"
    assert (good["state"], good["why"], good["prompts"]) == ("ready", None, ["greet", "plain words"])
    assert (bad["state"], bad["tools"]) == ("down", [])


def test_without_servers_it_says_how_to_have_one(holdfast: Holdfast) -> None:
    done = holdfast("mcp", "list")
    assert (done.code, done.out) == (0, "")
    assert "[mcpServers.NAME]" in done.err


def test_a_prompt_is_said_as_if_it_had_been_typed(home: Path) -> None:
    with (
        provider_process.playing(provider_process.said("Hello."), provider_process.said("Hello, Ann.")) as played,
        pty_terminal.opened(home, columns=200, env=played.env) as screen,
    ):
        screen.enter("hi")
        screen.wait_for("The MCP server bad is not available")
        screen.wait_for("Hello.")
        screen.enter("/good:greet who=Ann")
        screen.wait_for("Greet Ann kindly.")
        screen.wait_for("Hello, Ann.")
        assert screen.leave() == 0
    asked = str(played.asked[-1].body)
    assert "Greet Ann kindly." in asked
    assert "good__t9" in asked
