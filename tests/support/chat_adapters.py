"""The chat services on loopback, each with the settings and secrets that connect to it, behind one interface."""

from __future__ import annotations

import html
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import utils
from typing import Any, ClassVar, NamedTuple

from holdfast.gateway import platform, routes
from holdfast.gateway.platforms import plugins, slack
from holdfast.gateway.platforms.email import inbound_mail
from holdfast.gateway.platforms.telegram import updates
from tests.support import discord_server, email_server, slack_server, telegram_server
from tests.support.polling import until_async


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


class ChatAdapter:
    """Two people and the bot on a service: Ann writes in her direct chat, Ben elsewhere, to the bot as well.

    `route` is that of Ann's chat. A service `acknowledges` if it repeats messages until the bot confirmed them. It
    `keeps_order` if a message that could not be stored is delivered again before the next one. `repeated` is what Ann
    receives twice by point of `platform_kills`, because the service does not recognise a message that is sent again.
    """

    name: str
    route: str
    options: ClassVar[dict[str, Any]] = {}
    acknowledges = keeps_order = True
    repeated: ClassVar[dict[str, list[str]]] = {}

    def __init__(self, service: Service) -> None:
        self.server, self.service, self._said = service.server, service, list[Any]()

    @property
    def owner(self) -> str:
        return routes.identity_of(self.route, self.name, self.service.sender)

    def load(self) -> platform.Platform:
        """Return the platform as the program loads it: by its entry point."""
        (found,) = plugins.load({self.name: {**self.service.table, **self.options}}, self.service.secrets)
        return found

    async def join(self) -> None:
        """Let the bot, which is connected, join the chats."""

    def is_connected(self) -> Any:
        """Return whether the service would deliver a message now."""
        return True

    async def say(self, text: str, *, by_ben: bool = False) -> str:
        """Send a message to the bot, and return its key."""
        raise NotImplementedError

    async def texts(self, *, to_ben: bool = False) -> list[str]:
        """Return the messages of the bot in a chat as a person reads them."""
        raise NotImplementedError

    async def shows(self, text: str) -> bool:
        """Return whether a message of the bot in Ann's chat contains a text."""
        return any(text in each for each in await self.texts())

    def files(self) -> list[bytes]:
        """Return the files that Ann received."""
        raise NotImplementedError

    def ids(self) -> list[Any]:
        """Return the ids of the bot's messages."""
        return list(self.server.messages)

    def delete_sent(self) -> None:
        """Delete the bot's messages."""
        self.server.messages.clear()

    def is_pending(self) -> bool:
        """Return whether the service waits for the confirmation of a message."""
        return True

    async def repeat(self) -> None:
        """Deliver all messages again, and wait until they are confirmed."""
        for each in self._said:
            await self.deliver_again(each)
        await until_async(lambda: not self.is_pending())

    async def deliver_again(self, said: Any) -> None:
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Break the connection of the bot."""


class Telegram(ChatAdapter):
    name, route = "telegram", "agent:main:telegram:dm:42"
    repeated: ClassVar = {"gateway.sent@1": ["…"], "gateway.sent@3": ["A"], "gateway.sent@4": ["B"]}
    options: ClassVar = {"draft_seconds": 0.01}

    async def say(self, text: str, *, by_ben: bool = False) -> str:
        ben = {"id": 43, "is_bot": False, "first_name": "Ben"}
        where = {"chat": telegram_server.GROUP, "sender": ben} if by_ben else {}
        self._said.append(await self.server.say(f"@Holdfast_bot {text}" if by_ben else text, **where))
        return updates.message_key(self._said[-1]["chat"]["id"], self._said[-1]["message_id"])

    async def texts(self, *, to_ben: bool = False) -> list[str]:
        return list(self.server.texts(telegram_server.GROUP["id"] if to_ben else 42))

    def files(self) -> list[bytes]:
        return [each["sent"][1][1] for each in self.server.messages.values() if "sent" in each]

    def is_pending(self) -> bool:
        return bool(self.server.confirmed < 1_000 + len(self.server.updates))

    async def deliver_again(self, said: Any) -> None:
        await self.server.update(message=said)

    async def disconnect(self) -> None:
        conflict = telegram_server.BotError(409, "Conflict: terminated")
        self.server.failures["getUpdates"] = [telegram_server.BotError(502, "Bad Gateway"), conflict]


class Discord(ChatAdapter):
    name, route, acknowledges = "discord", f"agent:main:discord:dm:{discord_server.ANN}", False
    options: ClassVar = {"draft_seconds": 0.5}

    def is_connected(self) -> Any:
        return self.server.is_connected

    async def say(self, text: str, *, by_ben: bool = False) -> str:
        if by_ben:
            text, where = f"<@{discord_server.BOT}> {text}", {"author": discord_server.BEN}
            return str(self.server.say(text, channel=discord_server.CHANNEL, **where))
        return str(self.server.say(text))

    async def texts(self, *, to_ben: bool = False) -> list[str]:
        return list(self.server.texts(discord_server.CHANNEL if to_ben else discord_server.DM))

    def files(self) -> list[bytes]:
        return [content for each in self.server.sent() for _, content in each["files"] or ()]

    def ids(self) -> list[Any]:
        return [each["id"] for each in self.server.sent()]

    def delete_sent(self) -> None:
        for each in self.ids():
            self.server.delete(each)

    async def repeat(self) -> None:
        self.server.repeat()

    async def disconnect(self) -> None:
        await self.server.disconnect()


class Slack(ChatAdapter):
    name, route, keeps_order = "slack", "agent:main:slack:dm:D1", False
    repeated: ClassVar = {"gateway.sent@3": ["A"], "gateway.sent@4": ["B"]}
    options: ClassVar = {"ping_seconds": 0.5, "draft_seconds": 0.05}

    def load(self) -> platform.Platform:
        loaded = super().load()
        assert isinstance(loaded, slack.Slack)
        loaded.pace = platform.Pace()  # This workspace has no rate limits.
        return loaded

    def is_connected(self) -> Any:
        return self.server.sockets

    async def say(self, text: str, *, by_ben: bool = False) -> str:
        where = {"channel": "C1", "user": "U2"} if by_ben else {}
        self._said.append(self.server.event(text=f"<@UBOT> {text}" if by_ben else text, **where))
        await self.server.deliver(self._said[-1])
        event = self._said[-1]["event"]
        return f"{event['channel']}:{event['ts']}"

    async def texts(self, *, to_ben: bool = False) -> list[str]:
        return [html.unescape(each) for each in self.server.texts("C1" if to_ben else "D1")]

    def files(self) -> list[bytes]:
        return [content for _, _, contents in self.server.shared for content in contents]

    def is_pending(self) -> bool:
        return bool(self.server.pending)

    async def deliver_again(self, said: Any) -> None:
        await self.server.deliver(said, retry=1)

    async def disconnect(self) -> None:
        old = self.server.sockets[:]
        await self.server.disconnect()
        await until_async(lambda: self.server.sockets and not set(old) & set(self.server.sockets))


class Email(ChatAdapter):
    name = "email"
    repeated: ClassVar = {"gateway.sent@1": ["Here they are.", "A", "B"]}  # With the same id, as mail programs expect.

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._first = utils.make_msgid(domain="example.org")
        self.route = f"agent:main:email:dm:ann%40example.org:{inbound_mail.digest(self._first)}"

    async def say(self, text: str, *, by_ben: bool = False) -> str:
        """Ann's mails are one thread."""
        sender = email_server.BEN if by_ben else email_server.ANN
        thread = ("In_Reply_To", "References") if self._said else ("Message_ID",)
        headers = {} if by_ben else dict.fromkeys(thread, self._first)
        self._said.append(email_server.write(text, sender, **headers))
        self.server.deliver(self._said[-1])
        return f"{sender} {self._said[-1]['Message-ID']}"

    async def texts(self, *, to_ben: bool = False) -> list[str]:
        return list(self.server.texts(email_server.BEN if to_ben else email_server.ANN))

    def files(self) -> list[bytes]:
        return [each.get_payload(decode=True) for mail in self.server.sent for each in mail.iter_attachments()]

    def is_pending(self) -> bool:
        return not self.server.is_read()

    async def deliver_again(self, said: Any) -> None:
        self.server.deliver(said)

    async def disconnect(self) -> None:
        """Break both connections: a mail is not marked as read, and one is not sent."""
        self.server.lost_commands, self.server.failures = ["UID STORE"], ["451 Try again"]
        self.server.disconnect()


ADAPTERS: dict[str, type[ChatAdapter]] = {each.name: each for each in (Telegram, Discord, Slack, Email)}


@asynccontextmanager
async def open_chat(name: str) -> AsyncIterator[ChatAdapter]:
    """Run a service, and yield its adapter."""
    async with open_service(name) as service:
        yield ADAPTERS[name](service)
