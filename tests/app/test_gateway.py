"""The gateway of the program: its settings, its owners, and what a restart leaves to the next process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import config, errors
from holdfast.app import gateway, systemd
from holdfast.gateway import platform, routes
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms.http import webhooks
from tests.support import memory_platform


@pytest.fixture
def home(tmp_path: Path) -> config.Settings:
    return config.load({"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_MODEL": "offline"}, files=False)


def configure(home: config.Settings, **said: Any) -> config.Settings:
    return msgspec.structs.replace(home, gateway=gateway_settings.GatewaySettings(**said))


async def offered(opened: gateway.RunningGateway, owner: str) -> set[str]:
    """Return the tools of an agent of this owner."""
    async with opened.gateway.runtimes.use(routes.Principal(owner, owner)) as runtime:
        assert runtime.approvals.owner == runtime.owner == owner
        agent = await runtime.agents.get("20260101-000000-aaaaaa")
        assert agent.new_conversation.folder is None  # the owner does not know the folder
        return {spec.name for spec in agent.tools.specs}


@pytest.mark.parametrize(
    ("shell", "who"),
    [
        (False, set()),
        (True, {"telegram:42", "telegram:43", "telegram:group:42"}),
        ({"telegram": [42]}, {"telegram:42"}),
        ({"telegram": ["group:42"]}, set()),
    ],
)
def test_only_named_owners_are_granted_the_shell(shell: Any, who: set[str]) -> None:
    owners = {"telegram:42", "telegram:43", "telegram:group:42"}
    assert {owner for owner in owners if gateway.is_granted(shell, owner)} == who


async def test_owners_have_private_folders_and_only_named_ones_a_shell(home: config.Settings, tmp_path: Path) -> None:
    chat = memory_platform.MemoryPlatform()
    async with gateway.serve(configure(home, shell={"loopback": ["boss"]}), platforms=[chat]) as opened:
        mine, boss = await offered(opened, "loopback:ann"), await offered(opened, "loopback:boss")
    assert boss - mine >= {"shell"}
    assert not {name for name in mine if "shell" in name or "process" in name}
    assert "read_file" in mine
    folders = [tmp_path / "gateway" / name for name in ("loopback:ann", "loopback:boss")]
    assert [oct(each.stat().st_mode & 0o777) for each in (folders[0].parent, *folders)] == ["0o700"] * 3


@pytest.mark.parametrize("owner", ["telegram:..", "telegram:%2F..%2Fboss", "telegram:Ann", "telegram:group:-100"])
def test_folder_of_an_owner_is_inside_the_gateway_folder(home: config.Settings, tmp_path: Path, owner: str) -> None:
    found = gateway.folder_of(home, owner)
    assert os.path.dirname(os.path.realpath(found)) == os.path.realpath(tmp_path / "gateway")
    assert found.lower() != gateway.folder_of(home, "telegram:ann").lower()


@pytest.mark.parametrize(
    ("kind", "chat", "wanted"),
    [
        ("group", ("-100",), True),
        ("thread", ("-100", "7"), True),
        ("dm", ("-100",), False),
        ("thread", ("-101", "-100"), False),
    ],
)
def test_only_named_groups_are_shared(kind: platform.ChatKind, chat: tuple[str, ...], wanted: bool) -> None:
    came = platform.Incoming(platform="telegram", key="1", kind=kind, chat=chat, sender="42")
    assert gateway.is_shared(gateway_settings.ids({"telegram": [-100]}), came) is wanted
    assert not gateway.is_shared(gateway_settings.ids({"discord": [-100]}), came)


LONG, Http = "x" * 20, gateway_settings.Http


def hook(variable: str) -> gateway_settings.Hook:
    return gateway_settings.Hook(secret_env=variable)


@pytest.mark.parametrize(
    ("said", "secrets", "message"),
    [
        ({"http": Http(tokens={"ann": "A"})}, {}, "The token of ann must be in the environment variable A"),
        ({"http": Http(tokens={"ann": "A", "ben": "B"})}, {"A": LONG, "B": LONG}, "must not have the same token"),
        ({"http": Http(tokens={"ann": "A"})}, {"A": "short"}, "must have at least 16"),
        ({"hooks": {"ci": hook("S")}}, {}, "The secret of ci must be in the environment variable S"),
        ({"hooks": {"ci": hook("S"), "cd": hook("T")}}, {"S": LONG, "T": LONG}, "must not have the same secret"),
        ({"http": Http(host="0.0.0.0")}, {}, "other machines could use the agent"),
        ({"http": Http(enabled=False)}, {}, "The gateway has no platform"),
    ],
)
async def test_invalid_settings_are_refused_without_showing_secrets(
    home: config.Settings, said: dict[str, Any], secrets: dict[str, str], message: str
) -> None:
    known = {name: config.Secret(value) for name, value in secrets.items()}
    wanted = msgspec.structs.replace(configure(home, **said), secrets=known)
    with pytest.raises(errors.SettingInvalid, match=message) as refused:
        await gateway.serve(wanted).__aenter__()
    assert not [value for value in secrets.values() if value in str(refused.value)]


@pytest.mark.parametrize(
    ("to", "missing"),
    [(None, 0), ("loopback:ann", 0), ("telegram:42", 1), ("https://example.com/x", 0)],
)
def test_hook_with_replies_to_a_missing_platform_is_reported(to: str | None, missing: int) -> None:
    hooks = {"ci": webhooks.HookConfig(LONG, gateway_settings.Hook(secret_env="S", to=to))}
    assert len(gateway.missing_platforms(hooks, {"loopback", "hooks"})) == missing


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [("", "", None), ("60000000", "", 30.0), ("60000000", "own", 30.0), ("60000000", "1", None), ("0", "", None),
     ("soon", "", None), ("-1", "", None)],
)  # fmt: skip
def test_watchdog_interval_is_half_of_the_timeout(usec: str, pid: str, expected: float | None) -> None:
    pid = str(os.getpid()) if pid == "own" else pid
    environ = {name: value for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)) if value}
    assert systemd.watchdog_interval(environ) == expected
