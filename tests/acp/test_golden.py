"""Golden frames: whole conversations of an editor, with names instead of ids, times and sizes.

`python -m tests.acp.test_golden` writes them anew: first the requests with their responses, then the other frames.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import content_parts, types
from holdfast.acp import plans
from holdfast.model import ScriptedModel, base
from tests.support import acp_editor, agents
from tests.support.compaction import WINDOW, FakeSummarizer, fill

GOLDEN = Path(__file__).parent / "golden"
SESSION = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6}")
CHANGING = {"updatedAt", "used", "messageId"}
CHOICES = ("modes", "configOptions")
"""Repeated values; the second time they are replaced by their number."""
LONG = 240
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


class Recorder:
    """Records the requests of an editor with their responses."""

    def __init__(self, editor: acp_editor.Editor) -> None:
        self.editor = editor
        self.exchanges: list[dict[str, Any]] = [{"method": "initialize", "answer": editor.frames[0]["result"]}]

    async def ask(self, method: str, **params: Any) -> Any:
        answer = await self.editor.asking(method, **params)
        kept = {key: answer[key] for key in ("result", "error") if key in answer}
        self.exchanges.append({"method": method, "params": params, "answer": kept.get("result", kept)})
        return answer.get("result")

    async def new(self) -> str:
        made = await self.ask("session/new", cwd=acp_editor.FOLDER, mcpServers=[])
        await self.editor.until("available_commands_update")
        return str(made["sessionId"])

    async def prompt(self, session: str, *blocks: str | dict[str, Any]) -> None:
        said = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
        await self.ask("session/prompt", sessionId=session, prompt=said)

    @property
    def unasked(self) -> list[dict[str, Any]]:
        """Return the notifications and requests of the agent, without the long lists of commands."""
        said = [frame for frame in self.editor.frames if "method" in frame]
        kinds = [frame["params"].get("update", {}).get("sessionUpdate") for frame in said]
        return [
            {"method": frame["method"], **frame["params"]}
            for frame, kind in zip(said, kinds, strict=True)
            if kind != "available_commands_update"
        ]


async def conversation(editor: Recorder) -> None:
    session = await editor.new()
    await editor.prompt(
        session,
        "Plan the trip",
        {"type": "resource", "resource": {"uri": "file:///plan.md", "text": "# To the sea\n```\n"}},
        {"type": "resource_link", "uri": "file:///map.png", "name": "map.png"},
        {"type": "image", "mimeType": "image/png", "data": PICTURE},
    )
    await editor.editor.until("session_info_update")
    await editor.ask("session/list")
    await editor.ask("session/set_mode", sessionId=session, modeId="read-only")
    await editor.ask("session/set_config_option", sessionId=session, configId="model", value="other/model")
    await editor.ask("session/fork", sessionId=session, cwd=acp_editor.FOLDER, mcpServers=[])
    await editor.editor.until("session_info_update")
    await editor.ask("session/close", sessionId=session)
    for method in ("session/load", "session/resume"):
        await editor.ask(method, sessionId=session, cwd=acp_editor.FOLDER, mcpServers=[])
        await editor.editor.until("session_info_update")


async def compaction(editor: Recorder) -> None:
    await fill(editor.editor.program.db, 12)
    await editor.ask("session/load", sessionId="talk", cwd=acp_editor.FOLDER, mcpServers=[])
    await editor.prompt("talk", "/compact here 1")
    await editor.ask("session/load", sessionId="talk", cwd=acp_editor.FOLDER, mcpServers=[])


def planned() -> base.Reply:
    steps = [{"step": "Look", "status": "completed"}, {"step": "Go", "status": "in_progress"}]
    return base.Reply(calls=(types.ToolCall("p1", plans.NAME, {"steps": steps}),), usage=types.Usage(10, 5))


def thought() -> base.Reply:
    return base.Reply(
        (content_parts.Reasoning("Where to?"), content_parts.Text("To the sea.")), usage=types.Usage(10, 5)
    )


Story = Callable[[Recorder], Awaitable[None]]
STORIES: dict[str, tuple[Story, Callable[[], dict[str, Any]]]] = {
    "conversation": (conversation, lambda: {"script": [planned(), thought()]}),
    "compaction": (compaction, lambda: {"model": ScriptedModel(window=WINDOW), "summarizer": FakeSummarizer()}),
}


async def record(name: str) -> str:
    """Return the frames of a story."""
    story, given = STORIES[name]
    options = given()
    model = options.pop("model", None) or ScriptedModel(options.pop("script", ()))
    async with agents.store() as db, acp_editor.connect(acp_editor.Program(db, model, **options)) as editor:
        recorder = Recorder(editor)
        await story(recorder)
        return normalize({"exchanges": recorder.exchanges, "unasked": recorder.unasked})


def normalize(frames: dict[str, Any]) -> str:
    """Encode frames, with names for values that change."""
    names: dict[str, str] = {}
    choices: list[Any] = []

    def named(value: Any, key: str = "") -> Any:
        if key in CHOICES:
            if value in choices:
                return f"<{key} {choices.index(value) + 1}>"
            choices.append(value)
        if isinstance(value, dict):
            return {name: named(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [named(each) for each in value]
        if key in CHANGING:
            return f"<{key}>"
        if not isinstance(value, str):
            return value
        value = re.sub(r"[\d,]+ tokens", "<tokens>", value)
        value = value if len(value) <= LONG else f"{value[:LONG]}…"
        return SESSION.sub(lambda found: names.setdefault(found[0], f"<session {len(names) + 1}>"), value)

    return json.dumps(named(frames), indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", STORIES)
async def test_frames_are_unchanged(name: str) -> None:
    assert await record(name) == (GOLDEN / f"{name}.json").read_text("utf-8")


if __name__ == "__main__":
    for each in STORIES:
        (GOLDEN / f"{each}.json").write_text(asyncio.run(record(each)), "utf-8")
