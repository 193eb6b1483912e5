"""Names and texts of a server in a form that every provider accepts and every terminal can show."""

from __future__ import annotations

import hashlib
import re

MAX_TOOL_NAME = 64
MAX_DESCRIPTION = 1_000
SEPARATOR = "__"


def prefix(server: str) -> str:
    """Return the prefix of a server's tools. It has no double underscore, so that its end is unambiguous."""
    return _mark(re.sub(r"_+", "_", _clean(server)).strip("_") or "server", server, 24)


def tool_name(server: str, tool: str) -> str:
    """Return the name of a server's tool for the model. Different tools have different names."""
    before = prefix(server) + SEPARATOR
    return before + _mark(_clean(tool) or "tool", tool, MAX_TOOL_NAME - len(before))


def typed_name(text: str) -> str:
    """Return a name as one word that can be typed. Different names may become the same."""
    return _clean(text)[:MAX_TOOL_NAME].strip("_") or "unnamed"


def _clean(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", text)


def _mark(cleaned: str, original: str, limit: int) -> str:
    """Append a part of the original's digest to a name that had to be changed or cut."""
    if cleaned == original and len(cleaned) <= limit:
        return cleaned
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{cleaned[: limit - 9]}-{digest}"


def one_line(text: str, limit: int) -> str:
    """Return text of a server as one line without control characters, cut to a limit."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text[: limit * 4]).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def description(server: str, text: str) -> str:
    """Return a tool's description, marked as the server's."""
    printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text[: MAX_DESCRIPTION * 2])
    marked = f"[Tool of the MCP server {one_line(server, 60)}; the description is the server's.] {printable.strip()}"
    return marked if len(marked) <= MAX_DESCRIPTION else f"{marked[: MAX_DESCRIPTION - 1]}…"
