"""MCP servers: the cost of fifty tools of five servers for a turn that calls none."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench import timing
from bench.figures import Figure, at_most
from bench.scale import Scale
from holdfast import AIAgent, AsyncSessionDB, SessionDB
from holdfast.model import ScriptedModel
from holdfast.tools.mcp import servers, settings

SERVERS, TOOLS = 5, 50
_RAW = Path(__file__).parent.parent / "tests" / "support" / "mcp_raw_server.py"


async def figures(scale: Scale, folder: Path) -> Figure:
    """Compare a later turn with the tools to one without."""
    command = {"command": sys.executable, "args": ("-I", str(_RAW), "ten")}
    wanted = [settings.ServerConfig(name=f"server{number}", **command) for number in range(SERVERS)]  # type: ignore[arg-type]
    async with (
        servers.McpServers(wanted, str(folder), patience=60) as others,
        AsyncSessionDB(SessionDB(folder / "servers.db")) as db,
    ):
        agents = {
            name: AIAgent(
                db=db,
                model=ScriptedModel(["Fine."] * 10_000),
                session_id=name,
                tool_source=source,
            )
            for name, source in (("alone", None), ("served", others.offer))
        }
        taken: dict[str, list[float]] = {name: [] for name in agents}
        for number in range(scale.turns + 5):
            for name, agent in agents.items():
                began = time.perf_counter()
                assert (await agent.run_conversation("And then?")).completed
                if number >= 5:
                    taken[name].append(time.perf_counter() - began)
        assert len(agents["served"].tools.specs) == TOOLS
    middle = timing.medians(taken)
    floor = ("without tools", middle["alone"] * 1e3)
    name = f"a later turn with {TOOLS} tools of {SERVERS} servers"
    return Figure("agent.servers", name, "ms", middle["served"] * 1e3, floor, at_most(4, "value"))
