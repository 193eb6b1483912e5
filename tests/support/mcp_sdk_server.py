"""An MCP server made with the SDK: `python mcp_sdk_server.py`."""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("kind")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def extra() -> str:
    """One more."""
    return "extra"


@server.tool()
async def grow(context: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(extra)
    await context.notify_tools_changed()
    return "grown"


@server.prompt()
def review(code: str) -> str:
    """Review some code."""
    return f"Review this: {code}"


if __name__ == "__main__":
    server.run("stdio")
