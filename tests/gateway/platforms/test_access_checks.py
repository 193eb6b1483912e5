"""The access checks of the platforms, with their client libraries and services on loopback."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast import errors, installation
from holdfast.gateway import platform
from holdfast.gateway.platforms import plugins, slack
from tests.support import documents
from tests.support.chat_adapters import Service, open_service

NAMES = ["telegram", "discord", "slack", "email"]


async def check(name: str, service: Service, **changed: Any) -> platform.AccessReport:
    """Check the platform as the setup does; `changed` are other settings."""
    (found,) = plugins.load({name: {**service.table, **changed}}, service.secrets)
    assert isinstance(found, platform.ChecksAccess)
    report = await found.check_access()
    if isinstance(found, platform.HasConnections):
        await found.close()
    assert not any(secret in str(report) for secret in service.secrets.values())
    return report


@pytest.mark.parametrize("name", NAMES)
async def test_right_credentials_name_the_account(name: str) -> None:
    async with open_service(name) as service:
        assert await check(name, service) == platform.AccessReport(service.account, [])


WRONG = [
    ("telegram", "token_env", "123456:AAF-wrong", "Telegram refused the token"),
    ("discord", "token_env", "wrong-token", "Discord refused the token"),
    ("slack", "bot_token_env", "xoxb-wrong", "Slack refused the bot token (xoxb-...): invalid_auth"),
    ("slack", "app_token_env", "xapp-wrong", "Slack refused the app-level token (xapp-...): invalid_auth"),
]


@pytest.mark.parametrize(("name", "setting", "token", "what"), WRONG)
async def test_wrong_token_is_reported_without_an_account(name: str, setting: str, token: str, what: str) -> None:
    async with open_service(name) as service:
        found = await check(name, service._replace(secrets={**service.secrets, setting: token}))
    assert found.account == ""
    (problem,) = found.problems
    assert what in problem.what
    assert problem.remedy


RIGHTS = [
    ("telegram", {"webhook": "https://other.example/x"}, {}, "registered at other.example"),
    ("telegram", {}, {"groups": "all"}, "its privacy mode is on"),
    ("discord", {"guilds": []}, {}, "not in any server"),
    ("discord", {}, {"free_channels": [1]}, "Message Content Intent"),
    ("slack", {"scopes": sorted(slack.SCOPES - {"files:read", "users:read"})}, {}, "scopes files:read, users:read."),
]


@pytest.mark.parametrize(("name", "state", "settings", "what"), RIGHTS)
async def test_missing_rights_are_reported_with_the_account(
    name: str, state: dict[str, Any], settings: dict[str, Any], what: str
) -> None:
    async with open_service(name) as service:
        for attribute, value in state.items():
            setattr(service.server, attribute, value)
        found = await check(name, service, **settings)
        if name == "discord" and not settings:
            assert "client_id=900&scope=bot+applications.commands" in found.problems[0].remedy
        service.server.flags = 1 << 19  # The limited intent of a bot in few servers is enough.
        if "free_channels" in settings:
            assert not (await check(name, service, **settings)).problems
    assert found.account == service.account
    assert [what in problem.what for problem in found.problems] == [True]


@pytest.mark.parametrize("name", NAMES)
async def test_unreachable_service_is_reported(name: str) -> None:
    async with open_service(name) as service:
        pass
    found = await check(name, service)
    assert found.account == ""
    assert all("Check " in problem.remedy for problem in found.problems)
    assert all(name == "telegram" or problem.what.endswith("the connection was refused.") for problem in found.problems)
    assert len(found.problems) == (2 if name == "email" else 1)  # A mailbox has two servers.


def test_timeout_is_named() -> None:
    (problem,) = platform.unreachable("Slack", TimeoutError()).problems
    assert problem.what == "Slack cannot be reached: the connection timed out."


def test_documented_manifest_has_the_scopes_that_are_checked() -> None:
    page = (documents.ROOT / "docs/platforms/slack.md").read_text("utf-8")
    (listed,) = re.findall(r"bot: \[([^\]]+)\]", page)
    assert set(re.findall(r"[\w:]+", listed)) == slack.SCOPES


def test_platform_without_its_extra_is_listed_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(installation.EXTRAS, "slack", "no_such_module")
    listed = plugins.list_platforms()
    assert (listed["http"], listed["telegram"]) == ("", "")
    assert listed["slack"] == installation.install_command("slack")
    with pytest.raises(errors.SettingInvalid, match=r"slack is not installed. Run: .*\[slack\]"):
        plugins.load_guide("slack")
