"""`holdfast mcp list`: the servers with their state and tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.cli_process import Holdfast


def test_list_shows_the_state_and_tools_of_servers(
    holdfast: Holdfast, configure: Callable[[str], Path], mcp_settings: str
) -> None:
    none = holdfast("mcp", "list")
    assert (none.code, none.out) == (0, "")
    assert "[mcpServers.NAME]" in none.err
    configure(mcp_settings)
    done = holdfast("mcp", "list")
    assert done.code == 0
    good, bad = done.out.splitlines()
    assert good.split() == ["good", "ready", "10", "tools"]
    assert bad.split()[:4] == ["bad", "down", "0", "tools"]
    assert "there is no program '/no/such/program'" in bad
    good, bad = holdfast("mcp", "list", "--json").data["servers"]
    assert good["tools"][0] == "good__t0"
    assert (good["state"], good["why"], good["prompts"]) == ("ready", None, ["greet", "plain words"])
    assert (bad["state"], bad["tools"]) == ("down", [])
