"""The tools of the program are given what they need, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, SessionDB, config
from holdfast.acp import conversion
from holdfast.agent import memory as agent_memory
from holdfast.app import toolset
from holdfast.gateway import settings as gateways
from holdfast.model import providers
from holdfast.tools import base, memory


def test_no_token_that_settings_name_is_in_the_environment_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CAT", "DOG", "OTHER", "HOLDFAST_DB"):
        monkeypatch.setenv(name, f"{name}-0123456789abcdef")
    monkeypatch.setenv("PLAIN", "1")
    wanted = gateways.GatewaySettings(
        http=gateways.Http(tokens={"cat": "CAT"}), hooks={"ci": gateways.Hook(secret_env="DOG")}
    )
    found = msgspec.structs.replace(
        config.load({}, files=False),
        gateway=wanted,
        providers={"mine": providers.Provider("mine", base_url="http://localhost:1", key_env="OTHER")},
    )
    made = toolset.command_environment(found)()
    assert not {"CAT", "DOG", "OTHER", "HOLDFAST_DB"} & set(made)
    assert made["PLAIN"] == "1"


def every_tool(folder: Path, store: AsyncSessionDB) -> list[base.Tool]:
    """All that the program itself gives an agent; none of them is run."""
    settings = config.load({}, files=False)
    known: Any = None
    return [
        *toolset.build_shell_tools(known, settings, [str(folder)]),
        *toolset.build_file_tools(str(folder), []),
        *toolset.build_recall_tools(store),
        memory.memory(agent_memory.Notes(store, "")),
    ]


def test_of_every_tool_an_editor_knows_what_it_is_and_a_read_only_session_whether_it_changes_something(
    tmp_path: Path,
) -> None:
    with SessionDB(":memory:") as db:
        tools = every_tool(tmp_path, AsyncSessionDB(db))
    assert [each.spec.name for each in tools if conversion.tool_kind(each.spec.name) == "other"] == []
    silent = {each.spec.name for each in tools if not each.parallel and not each.alters({})}
    # These say in a plan what they would do, and are asked about. Whatever else there is either looks, or says so.
    assert silent == {"shell", "start_process", "write_process", "write_file", "edit_file"}
