"""A gateway that is killed with SIGKILL loses no message, and sends none again that the platform confirmed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support import discord_server, platform_kills, slack_server, telegram_server


@asynccontextmanager
async def telegram() -> AsyncIterator[platform_kills.Chat]:
    async with telegram_server.serve() as api:

        async def texts() -> list[str]:
            return api.texts()

        table = f"[gateway.telegram]\ntoken_env = 'TOKEN'\napi_url = '{api.url}'\n[gateway.allow]\ntelegram = [42]\n"
        yield platform_kills.Chat(
            table, {"TOKEN": telegram_server.TOKEN}, lambda: True, api.say, texts, deduplicates=False
        )


@asynccontextmanager
async def discord() -> AsyncIterator[platform_kills.Chat]:
    async with discord_server.serving() as server:

        async def say(text: str) -> None:
            server.say(text)

        async def texts() -> list[str]:
            return server.texts()

        table = f"[gateway.discord]\ntoken_env = 'TOKEN'\napi_url = '{server.url}/api/v10'\n"
        allow = f"[gateway.allow]\ndiscord = [{discord_server.ANN}]\n"
        yield platform_kills.Chat(
            table + allow, {"TOKEN": discord_server.TOKEN}, lambda: server.is_connected, say, texts
        )


@asynccontextmanager
async def slack() -> AsyncIterator[platform_kills.Chat]:
    async with slack_server.SlackServer().run() as server:

        async def say(text: str) -> None:
            await server.deliver(server.event(text=text))

        async def texts() -> list[str]:
            return server.texts()

        table = f"[gateway.slack]\nbot_token_env = 'BOT'\napp_token_env = 'APP'\napi_url = '{server.url}/api/'\n"
        allow = "[gateway.allow]\nslack = ['U1']\n"
        yield platform_kills.Chat(table + allow, slack_server.SECRETS, lambda: server.sockets, say, texts)


@pytest.mark.parametrize("point", platform_kills.POINTS)
@pytest.mark.parametrize("platform", [telegram, discord, slack])
async def test_killed_gateway_loses_nothing_and_repeats_no_confirmed_message(
    platform: object, point: str, tmp_path: Path
) -> None:
    async with platform() as chat:  # type: ignore[operator]
        await platform_kills.check_kill(chat, point, tmp_path)
