"""The gateway of the program: what it is made of, for whom, and what a restart leaves to the next."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, SessionDB, config, errors, types
from holdfast.app import gateway
from holdfast.gateway import platform
from holdfast.gateway import settings as gateways
from holdfast.gateway.platforms.http import webhooks
from tests.support import gateways as stage
from tests.support import memory_platform


def settings(home: Path, **said: Any) -> config.Settings:
    found = config.load({"HOLDFAST_HOME": str(home), "HOLDFAST_MODEL": "offline"}, files=False)
    return msgspec.structs.replace(found, gateway=gateways.GatewaySettings(**said))


async def offered(opened: gateway.RunningGateway, owner: str) -> set[str]:
    """The tools that an agent of this owner has."""
    async with opened.gateway.runtimes.use(owner) as runtime:
        assert runtime.approvals.owner == runtime.owner == owner
        agent = await runtime.agents.get("20260101-000000-aaaaaa")
        # Their folder is none they know of, so a conversation does not belong to it.
        assert agent.new_conversation.folder is None
        return {spec.name for spec in agent.tools.specs}


@pytest.mark.parametrize(
    ("shell", "who"),
    [
        (False, set()),
        (True, {"telegram:42", "telegram:43", "telegram:group:42"}),
        ({"telegram": [42]}, {"telegram:42"}),
        ({"discord": [42]}, set()),
        ({"telegram": ["group:42"]}, set()),
    ],
)
def test_only_those_who_are_named_have_what_this_machine_can_do(shell: Any, who: set[str]) -> None:
    owners = {"telegram:42", "telegram:43", "telegram:group:42"}
    assert {owner for owner in owners if gateway.is_granted(shell, owner)} == who


async def test_nobody_runs_commands_by_default_and_each_has_files_of_their_own(tmp_path: Path) -> None:
    chat = memory_platform.MemoryPlatform()
    async with gateway.serve(settings(tmp_path, shell={"loopback": ["boss"]}), platforms=[chat]) as opened:
        mine, boss = await offered(opened, "loopback:ann"), await offered(opened, "loopback:boss")
    assert boss - mine >= {"shell"}
    assert not {name for name in mine if "shell" in name or "process" in name}
    assert "read_file" in mine
    folders = [tmp_path / "gateway" / name for name in ("loopback:ann", "loopback:boss")]
    assert [oct(each.stat().st_mode & 0o777) for each in (folders[0].parent, *folders)] == ["0o700"] * 3


@pytest.mark.parametrize("owner", ["telegram:..", "telegram:%2F..%2Fboss", "telegram:Ann", "telegram:group:-100"])
def test_a_folder_never_leads_out_of_the_one_they_all_are_in(tmp_path: Path, owner: str) -> None:
    found = gateway.folder_of(settings(tmp_path), owner)
    assert os.path.dirname(os.path.realpath(found)) == os.path.realpath(tmp_path / "gateway")
    assert found.lower() != gateway.folder_of(settings(tmp_path), "telegram:ann").lower()


@pytest.mark.parametrize(
    ("kind", "chat", "wanted"),
    [
        ("group", ("-100",), True),
        ("thread", ("-100", "7"), True),
        ("group", ("-101",), False),
        ("dm", ("-100",), False),
        ("thread", ("-101", "-100"), False),
        ("group", (), False),
    ],
)
def test_only_groups_that_are_named_are_shared(kind: platform.ChatKind, chat: tuple[str, ...], wanted: bool) -> None:
    came = platform.Incoming(platform="telegram", key="1", kind=kind, chat=chat, sender="42")
    assert gateway.is_shared(gateways.ids({"telegram": [-100]}), came) is wanted
    assert not gateway.is_shared(gateways.ids({"discord": [-100]}), came)


LONG = "x" * 20


@pytest.mark.parametrize(
    ("said", "secrets", "wrong"),
    [
        ({"http": gateways.Http(tokens={"ann": "A"})}, {}, "The token of ann must be in the environment variable A"),
        (
            {"http": gateways.Http(tokens={"ann": "A", "ben": "B"})},
            {"A": LONG, "B": LONG},
            "must not have the same token",
        ),
        ({"http": gateways.Http(tokens={"ann": "A"})}, {"A": "short"}, "must have at least 16"),
        (
            {"hooks": {"ci": gateways.Hook(secret_env="S")}},
            {},
            "The secret of ci must be in the environment variable S",
        ),
        ({"hooks": {"ci": gateways.Hook(secret_env="S")}}, {"S": "short"}, "gateway.hooks.ci"),
        (
            {"hooks": {"ci": gateways.Hook(secret_env="S"), "cd": gateways.Hook(secret_env="T")}},
            {"S": LONG, "T": LONG},
            "must not have the same secret",
        ),
        ({"http": gateways.Http(host="0.0.0.0")}, {}, "other machines could use the agent"),
        ({"http": gateways.Http(enabled=False)}, {}, "The gateway has no platform"),
    ],
)
def test_what_settings_lack_is_said_and_nothing_is_served(
    tmp_path: Path, said: dict[str, Any], secrets: dict[str, str], wrong: str
) -> None:
    wanted = msgspec.structs.replace(
        settings(tmp_path, **said), secrets={name: config.Secret(value) for name, value in secrets.items()}
    )

    async def story() -> None:
        async with gateway.serve(wanted):
            pass

    with pytest.raises(errors.SettingInvalid, match=wrong) as refused:
        asyncio.run(story())
    assert not [value for value in secrets.values() if value in str(refused.value)]


@pytest.mark.parametrize(
    ("to", "told"),
    [(None, 0), ("loopback:ann", 0), ("telegram:42", 1), ("https://example.com/x", 0)],
)
def test_a_hook_whose_replies_have_nowhere_to_go_is_said_so(to: str | None, told: int) -> None:
    hooks = {"ci": webhooks.HookConfig(LONG, gateways.Hook(secret_env="S", to=to))}
    assert len(gateway.missing_platforms(hooks, {"loopback", "hooks"})) == told


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, True),
        ({"loopback": gateways.LoopbackSettings()}, False),
        ({"loopback": gateways.LoopbackSettings(), "http": gateways.Http(port=1)}, True),
        ({"loopback": gateways.LoopbackSettings(socket="s"), "http": gateways.Http(tokens={"ann": "A"})}, True),
        ({"loopback": gateways.LoopbackSettings(socket="s"), "hooks": {"ci": gateways.Hook(secret_env="S")}}, True),
        ({"http": gateways.Http(enabled=False)}, False),
    ],
)
def test_there_is_a_server_where_something_needs_it_or_nothing_else_is_there(
    said: dict[str, Any], wanted: bool
) -> None:
    assert gateways.GatewaySettings(**said).has_http is wanted


async def test_settings_say_who_is_let_in(tmp_path: Path) -> None:
    chat = memory_platform.MemoryPlatform("telegram")
    said = settings(tmp_path, allow={"telegram": [42]}, strangers="silence")
    async with gateway.serve(said, platforms=[chat]) as opened, asyncio.timeout(60):
        assert await chat.say("Hi", chat="43", sender="43", key="a") is None
        assert await chat.say("Hi", chat="42", sender="42", key="b") is not None
        await chat.replies(1)
        await stage.wait_idle(opened.gateway, opened.db)
        found = await opened.db.mail.inbound_by_key("telegram", "b")
    assert [each.address for each in chat.sent] == [{"chat": "42"}]
    assert found is not None
    assert found.outcome == "answered"


def test_one_that_starts_before_the_other_stops_loses_and_repeats_nothing(tmp_path: Path) -> None:
    keys = [f"{chat}-{number}" for chat in range(4) for number in range(5)]

    async def say(chat: memory_platform.MemoryPlatform, wanted: list[str]) -> None:
        for key in wanted:
            await chat.say(f"Note: {key}", key=key, chat=key[0], sender=key[0])

    async def story() -> list[types.Outgoing]:
        first, second = memory_platform.MemoryPlatform(), memory_platform.MemoryPlatform()
        said = settings(tmp_path, grace=0.0)
        async with asyncio.timeout(120):
            async with gateway.serve(said, platforms=[second]) as stays:
                async with gateway.serve(said, platforms=[first]):
                    await say(first, keys[:10])
                # Whatever the first one was in the middle of is now the other one's.
                await say(second, keys[10:])
                await stage.wait_settled(stays.db, *keys)
                await stage.wait_idle(stays.gateway, stays.db)
        return [*first.sent, *second.sent]

    sent = asyncio.run(story())
    with SessionDB(tmp_path / "holdfast.db") as db:
        assert db.admin.fsck().ok
        ids = {key: found.id for key in keys if (found := db.mail.inbound_by_key("loopback", key)) is not None}
        outcomes = {found.outcome for key in keys if (found := db.mail.inbound_by_key("loopback", key)) is not None}
    assert outcomes == {"answered"}
    assert sorted(each.inbound_id or 0 for each in sent) == sorted(ids.values())


def test_nobody_finds_what_another_said(tmp_path: Path) -> None:
    async def story() -> set[str]:
        chat = memory_platform.MemoryPlatform()
        async with gateway.serve(settings(tmp_path), platforms=[chat]) as opened, asyncio.timeout(60):
            for name in ("ann", "ben"):
                await chat.say(f"Note: the word of {name} is {name}-secret.", chat=name, sender=name)
            await chat.replies(2)
            await chat.say("/search secret", chat="ann", sender="ann", key="ask")
            await chat.say("/sessions", chat="ann", sender="ann", key="list")
            await chat.replies(4)
            await stage.wait_idle(opened.gateway, opened.db)
            await _owners(opened.db)
        return {each.text for each in chat.sent if each.address == {"chat": "ann"}}

    told = asyncio.run(story())
    assert [text for text in told if "ann-secret" in text]
    assert not [text for text in told if "ben-secret" in text]


async def _owners(db: AsyncSessionDB) -> None:
    owners = {(await db.conversation(each.id)).owner for each in await db.list_sessions()}
    assert owners == {"loopback:ann", "loopback:ben"}
