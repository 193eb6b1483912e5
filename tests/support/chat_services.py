"""The chat services on loopback by platform, each with the settings and secrets that connect to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.support import discord_server, email_server, slack_server, telegram_server


class Service(NamedTuple):
    """A running service. `secrets` are the right answers to the questions of the setup, by setting."""

    server: Any
    address: dict[str, Any]
    secrets: dict[str, str]
    account: str
    sender: str

    @property
    def table(self) -> dict[str, Any]:
        """The settings, in which each variable has the name of its setting."""
        return {**self.address, **{name: name for name in self.secrets}}


@asynccontextmanager
async def open_service(name: str) -> AsyncIterator[Service]:
    if name == "telegram":
        async with telegram_server.serve() as api:
            secrets = {"token_env": telegram_server.TOKEN}
            yield Service(api, {"api_url": api.url}, secrets, "@Holdfast_bot", "42")
    elif name == "discord":
        async with discord_server.serving() as server:
            secrets = {"token_env": discord_server.TOKEN}
            yield Service(server, {"api_url": f"{server.url}/api/v10"}, secrets, "Holdfast", str(discord_server.ANN))
    elif name == "email":
        async with email_server.MailServer().run() as server:
            table = {key: value for key, value in server.settings().items() if key != "password_env"}
            secrets = {"password_env": email_server.PASSWORD}
            yield Service(server, table, secrets, email_server.AGENT, email_server.ANN)
    else:
        async with slack_server.SlackServer().run() as workspace:
            secrets = {"bot_token_env": slack_server.BOT_TOKEN, "app_token_env": slack_server.APP_TOKEN}
            yield Service(workspace, {"api_url": f"{workspace.url}/api/"}, secrets, "holdfast in Harbour", "U1")
