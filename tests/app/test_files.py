"""The tools for files as the program builds them: its own files stay closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import content_parts, types
from holdfast.agent import agent as agents
from holdfast.app import compose
from holdfast.model import ScriptedModel, base
from tests.app.test_running import settings


def reads(path: str) -> base.Reply:
    return base.Reply(calls=(types.ToolCall("", "read_file", {"path": path}),), usage=types.Usage(10, 5))


async def result(agent: agents.AIAgent, path: str) -> str:
    """What the model is told when it reads a file in a turn of its own."""
    model = ScriptedModel([reads(path), "I see."])
    agent.model = model
    assert (await agent.run_conversation(f"Read {path}.")).completed
    last = next(message for message in reversed(model.requests[-1].messages) if message.role == "tool")
    return content_parts.text(last.content)


@pytest.mark.parametrize("where", ["inside", "around"])
def test_the_programs_own_files_are_closed_to_its_tools(tmp_path: Path, where: str) -> None:
    home = tmp_path / "project" / "home" if where == "inside" else tmp_path / "project"
    home.mkdir(parents=True)
    user_file = tmp_path / "project" / ".config" / "holdfast" / "config.toml"
    given = msgspec.structs.replace(settings(home), user_file=str(user_file))
    (tmp_path / "project" / "notes.txt").write_text("the note", encoding="utf-8")

    async def story() -> dict[str, str]:
        async with compose.start(given, folder=str(tmp_path / "project"), reviews=False) as app:
            agent = await app.runtime.agents.get("talk")
            paths = ["notes.txt", str(home / "store.db"), str(home / "store.db-wal"), str(home / "processes" / "x")]
            told = {path: await result(agent, path) for path in paths}
            written: dict[str, Any] = {"path": str(user_file), "content": "[permissions]"}
            call = base.Reply(calls=(types.ToolCall("w", "write_file", written),))
            model = ScriptedModel([call, "Done."])
            agent.model = model
            await agent.run_conversation("Write.")
            return {**told, "written": content_parts.text(model.requests[-1].messages[-1].content)}

    told = asyncio.run(story())
    assert told.pop("notes.txt") == "1\tthe note"
    assert all("off limits" in each for each in told.values()), told
    assert not user_file.exists()
