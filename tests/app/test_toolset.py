"""The tools of the program have the access that they need, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, SessionDB, config, content_parts, types
from holdfast.acp import conversion
from holdfast.agent import memory as agent_memory
from holdfast.app import compose, toolset
from holdfast.gateway import settings as gateways
from holdfast.model import ScriptedModel, base, providers
from holdfast.tools import memory


def test_environment_of_commands_has_no_token_that_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CAT", "DOG", "OTHER", "HOLDFAST_DB"):
        monkeypatch.setenv(name, f"{name}-0123456789abcdef")
    monkeypatch.setenv("PLAIN", "1")
    http, hooks = gateways.Http(tokens={"cat": "CAT"}), {"ci": gateways.Hook(secret_env="DOG")}
    found = msgspec.structs.replace(
        config.load({}, files=False),
        gateway=gateways.GatewaySettings(http=http, hooks=hooks),
        providers={"mine": providers.Provider("mine", base_url="http://localhost:1", key_env="OTHER")},
    )
    made = toolset.command_environment(found)()
    assert not {"CAT", "DOG", "OTHER", "HOLDFAST_DB"} & set(made)
    assert made["PLAIN"] == "1"


def test_every_tool_has_a_kind_and_states_whether_it_changes_anything(tmp_path: Path) -> None:
    settings, processes = config.load({}, files=False), None
    with SessionDB(":memory:") as db:
        store = AsyncSessionDB(db)
        tools = [
            *toolset.build_shell_tools(processes, settings, [str(tmp_path)]),  # type: ignore[arg-type]
            *toolset.build_file_tools(str(tmp_path), []),
            *toolset.build_recall_tools(store),
            memory.memory(agent_memory.Notes(store, "")),
        ]
    assert [each.spec.name for each in tools if conversion.tool_kind(each.spec.name) == "other"] == []
    silent = {each.spec.name for each in tools if not each.parallel and not each.alters({})}
    # These describe their changes in a plan and ask for approval.
    assert silent == {"shell", "start_process", "write_process", "write_file", "edit_file"}


@pytest.mark.parametrize("where", ["inside", "around"])
async def test_files_of_the_program_are_off_limits(settings: config.Settings, tmp_path: Path, where: str) -> None:
    project = tmp_path / "project"
    home = project / "home" if where == "inside" else project
    home.mkdir(parents=True)
    user_file = (project / ".config" / "holdfast" if where == "inside" else project) / "config.toml"
    changes: dict[str, Any] = {"home": str(home), "database": str(home / "store.db"), "user_file": str(user_file)}
    (project / "notes.txt").write_text("the note", encoding="utf-8")
    async with compose.start(msgspec.structs.replace(settings, **changes), folder=str(project), reviews=False) as app:
        agent = await app.runtime.agents.get("talk")

        async def call(tool: str, path: Path, **more: str) -> str:
            """Return the result that the model gets when it calls a tool in a turn of its own."""
            reply = base.Reply(calls=(types.ToolCall("", tool, {"path": str(path), **more}),), usage=types.Usage(10, 5))
            agent.model = ScriptedModel([reply, "I see."])
            assert (await agent.run_conversation("Do it.")).completed
            last = next(each for each in reversed(agent.model.requests[-1].messages) if each.role == "tool")
            return content_parts.text(last.content)

        assert await call("read_file", project / "notes.txt") == "1\tthe note"
        own = [home / "store.db", home / "store.db-wal", home / "processes" / "x", user_file.with_name("gateway.env")]
        for path in own:
            assert "off limits" in await call("read_file", path)
        assert "off limits" in await call("write_file", user_file, content="[permissions]")
    assert not user_file.exists()
