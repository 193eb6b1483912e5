"""Every platform receives, answers and streams alike, with its client library and its service on loopback."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors
from holdfast.gateway import gateway, platform
from holdfast.gateway.platforms import plugins
from holdfast.model import ScriptedModel
from tests.support import agents, chat_adapters, gateways, platform_contract, platform_kills
from tests.support.chat_adapters import ChatAdapter
from tests.support.polling import until_async

pytestmark = pytest.mark.filterwarnings("ignore::telegram.warnings.PTBDeprecationWarning")
EDITABLE = ["telegram", "discord", "slack"]


@pytest.fixture
async def chat(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatAdapter]:
    monkeypatch.setattr(gateway, "MIN_RESTART", 0.01)
    async with chat_adapters.open_chat(request.param) as opened:
        yield opened


@pytest.mark.parametrize("chat", chat_adapters.ADAPTERS, indirect=True)
class TestPlatform(platform_contract.PlatformContract):
    pass


@pytest.mark.parametrize("chat", EDITABLE, indirect=True)
class TestDrafts(platform_contract.DraftContract):
    pass


@pytest.mark.parametrize("chat", EDITABLE, indirect=True)
async def test_deleted_draft_is_replaced_by_a_new_message(chat: ChatAdapter, db: AsyncSessionDB) -> None:
    model = gateways.HeldModel("Hello there!")
    async with platform_contract.answer(db, model, chat):
        await chat.say("Hi")
        await until_async(chat.ids)
        chat.delete_sent()
        model.released.set()
    assert await chat.texts() == ["Hello there!"]


@pytest.mark.parametrize(
    ("chat", "point"),
    [(name, point) for name in EDITABLE for point in platform_kills.POINTS]
    + [("email", point) for point in [*platform_kills.STORING, *platform_kills.SENDING[:2]]],
    indirect=["chat"],
)
async def test_killed_gateway_loses_nothing_and_repeats_no_confirmed_message(
    chat: ChatAdapter, point: str, tmp_path: Path
) -> None:
    await platform_kills.check_kill(chat, point, tmp_path)


@pytest.mark.parametrize("names", [("telegram", "discord"), ("slack", "email")])
async def test_linked_chats_show_the_turns_of_each_other(names: tuple[str, str], db: AsyncSessionDB) -> None:
    async def ask(chat: ChatAdapter, text: str) -> str:
        await gateways.wait_settled(db, await chat.say(text), platform=chat.name)
        await gateways.wait_idle(opened, db)
        return (await chat.texts())[-1]

    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(chat_adapters.open_chat(name)) for name in names]
        running = gateways.open_gateway(db, platform_contract.echo_model(), platforms=[one.load(), two.load()])
        opened, _ = await stack.enter_async_context(running)
        await opened.wait_ready()
        await ask(one, "Hello")
        (code,) = re.findall(r"/link \w{8}", await ask(one, "/link"))
        assert "Linked." in await ask(two, code)
        await ask(two, "From here")
        await ask(one, "Back")
        ours, theirs = (await one.texts())[2:], (await two.texts())[1:]
    assert ours == [f"You on {two.name}: From here", "re From here", "re Back"]
    assert theirs == ["re From here", f"You on {one.name}: Back", "re Back"]


@pytest.mark.parametrize(
    ("name", "setting", "token", "problem"),
    [
        ("telegram", "token_env", "654321:another-secret", "refused the token"),
        ("discord", "token_env", "another-secret", "Improper token"),
        ("slack", "bot_token_env", "xoxb-another-secret", "invalid_auth"),
        ("slack", "app_token_env", "xapp-another-secret", "invalid_auth"),
        ("email", "password_env", "another-secret", "Wrong password"),
    ],
)
async def test_wrong_credentials_are_logged_without_them(
    name: str, setting: str, token: str, problem: str, db: AsyncSessionDB, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, "uvicorn")  # The log of the server in this process.
    async with chat_adapters.open_chat(name) as chat:
        chat.service.secrets[setting] = token
        platform = chat.load()
        async with gateways.open_gateway(db, ScriptedModel(), platforms=[platform]):
            await until_async(lambda: problem in caplog.text)
    assert "another-secret" not in caplog.text + repr(platform)


SILENT = {"telegram": "api_url", "slack": "api_url", "email": "smtp_port"}
"""The setting of the address that files are sent to."""


@pytest.mark.parametrize("chat", SILENT, indirect=True)
async def test_slow_upload_is_ended_by_the_time_limit_of_the_gateway(chat: ChatAdapter) -> None:
    """The gateway gives up slow files only if no client library ends the request before."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def send() -> None:
        where, files = {"chat": chat.service.sender}, (gateways.outgoing_file("a.txt", "text/plain"),)
        async with asyncio.timeout(platform.SEND_SECONDS):
            await loaded.send(gateways.delivery("", platform=chat.name, address=where, files=files))

    async with await asyncio.start_server(ignore, "127.0.0.1", 0) as silent:
        setting, port = SILENT[chat.name], silent.sockets[0].getsockname()[1]
        chat.service.address[setting] = port if setting == "smtp_port" else f"http://127.0.0.1:{port}/"
        loaded = chat.load()
        with pytest.raises(TimeoutError):
            await agents.LoopClock().finish(send(), within=2 * platform.SEND_SECONDS)
        if isinstance(loaded, platform.HasConnections):
            await loaded.close()


TOKEN = "secret-of-the-settings"
SECRETS = {"TOKEN": TOKEN, "APP": TOKEN, "TELEGRAM": "123456:AAF-secret", "EMPTY": " "}
SLACK = {"bot_token_env": "TOKEN", "app_token_env": "APP"}
MATRIX = {"homeserver": "https://matrix.test", "token_env": "TOKEN"}
EMAIL = {"address": "agent@holdfast.test", "password_env": "TOKEN", "trusted_authserv": "mx.test"}
EMAIL |= {"imap_host": "127.0.0.1", "imap_security": "none", "smtp_host": "127.0.0.1", "smtp_security": "none"}
SETTINGS: dict[str, dict[str, Any]] = {"telegram": {"token_env": "TELEGRAM"}, "discord": {"token_env": "TOKEN"}}
SETTINGS |= {"slack": SLACK, "email": EMAIL, "matrix": MATRIX}


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        *((name, {"colour": "red"}, "unknown field `colour`") for name in SETTINGS),
        ("telegram", {"api_url": "http://example.com"}, "`api_url` must begin with https"),
        ("telegram", {"webhook_url": "https://a.b"}, "`webhook_secret_env`"),
        ("telegram", {"token_env": "TOKEN"}, "TOKEN does not contain a token"),
        ("discord", {"token_env": "OTHER"}, "OTHER is not set"),
        ("discord", {"token_env": "EMPTY"}, "EMPTY does not contain a token"),
        ("discord", {"api_url": "http://discord.test/api"}, "api_url"),
        ("slack", {"signing_secret_env": "TOKEN"}, "either `app_token_env`"),
        ("slack", {"app_token_env": None}, "either `app_token_env`"),
        ("slack", {"api_url": "http://slack.com/api/"}, "https://"),
        ("email", {"trusted_authserv": ""}, "set `trusted_authserv`"),
        ("email", {"accept_forged_senders": True}, "set `trusted_authserv`"),
        ("email", {"imap_host": "mail.example.org"}, "must be encrypted"),
        ("email", {"smtp_host": "mail.example.org"}, "must be encrypted"),
        ("email", {"address": "Agent <agent@example.org>"}, "mail addresses"),
        ("email", {"aliases": ["*"]}, "mail addresses"),
        ("matrix", {"homeserver": "matrix.test"}, "`homeserver` must be a URL"),
        ("matrix", {"homeserver": "http://matrix.test"}, "must use https, unless it is on this machine"),
    ],
)
def test_invalid_settings_are_refused_without_secrets(name: str, changed: dict[str, Any], message: str) -> None:
    plugins.load({name: SETTINGS[name]}, SECRETS)
    table = {key: value for key, value in {**SETTINGS[name], **changed}.items() if value is not None}
    with pytest.raises(errors.SettingInvalid, match=message) as refused:
        plugins.load({name: table}, SECRETS)
    assert not any(secret.strip() and secret in str(refused.value) for secret in SECRETS.values())


LIBRARIES = {"telegram": "telegram", "discord": "discord", "slack": "slack_sdk", "matrix": "nio"}


@pytest.mark.parametrize(("name", "library"), LIBRARIES.items())
def test_missing_extra_is_named_with_its_command(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.load({name: SETTINGS[name]}, SECRETS)
    for module in [each for each in sys.modules if each.startswith(f"holdfast.gateway.platforms.{name}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.SettingInvalid, match=rf"not installed\. Run: .*\[{name}\]"):
        plugins.load({name: SETTINGS[name]}, SECRETS)
