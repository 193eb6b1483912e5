"""Names and words of a server, in what any provider accepts and any terminal can show. Pure."""

from __future__ import annotations

import hashlib
import re

LONGEST_NAME = 64
LONGEST_DESCRIPTION = 1_000
LONGEST_GIVEN = 256
APART = "__"


def prefix(server: str) -> str:
    """A server's name in front of its tools'. It holds no double underscore: where it ends is never in doubt."""
    return _marked(re.sub(r"_+", "_", _clean(server)).strip("_") or "server", server, 24)


def name(server: str, tool: str) -> str:
    """The name of a tool of a server, the same each time. Two tools that differ have names that differ."""
    before = prefix(server) + APART
    return before + _marked(_clean(tool) or "tool", tool, LONGEST_NAME - len(before))


def word(text: str) -> str:
    """A name of a server's as one word that can be typed; others may become the same."""
    return _clean(text)[:LONGEST_NAME].strip("_") or "unnamed"


def _clean(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", text)


def _marked(cleaned: str, original: str, room: int) -> str:
    """Where something had to be changed or cut, a piece of the original's digest tells it from its likes."""
    if cleaned == original and len(cleaned) <= room:
        return cleaned
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{cleaned[: room - 9]}-{digest}"


def line(text: str, limit: int) -> str:
    """Text from a server as one line: nothing in it moves a cursor, turns a direction or goes on for ever."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text[: limit * 4]).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def description(server: str, said: str) -> str:
    """A tool's own words, with whose they are: they inform, and instruct nobody."""
    whose = f"[Tool of the MCP server {line(server, 60)}; the description is the server's.] "
    words = "".join(c if c.isprintable() or c == "\n" else " " for c in said[: LONGEST_DESCRIPTION * 2])
    told = whose + words.strip()
    return told if len(told) <= LONGEST_DESCRIPTION else f"{told[: LONGEST_DESCRIPTION - 1]}…"
