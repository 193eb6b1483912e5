"""Chat platforms: latency, idle memory and throughput of the gateway program, relative to its loopback socket.

The gateway runs as a process with one platform, and without the rate limits of that platform. The server of the
platform is a fake on loopback in this process, for Matrix a real Synapse, so its work is part of the latency; the
client library is the real one. The model answers at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from tests.support import (
    discord_server,
    email_server,
    matrix_server,
    polling,
    postgres,
    slack_server,
    telegram_server,
)

from bench import provider, timing
from bench.figures import Figure
from bench.scale import Scale

SETTINGS = """\
[memory]
enabled = false
[gateway]
grace = 0
allow = {{telegram = ["*"], discord = ["*"], slack = ["*"], email = ["*"], matrix = ["*"]}}
limits = {{minute = 100000, day = 100000, person_minute = 100000, person_day = 100000}}
[gateway.http]
enabled = false
{platform}
"""
PROGRAM = "from holdfast import cli; from holdfast.gateway import platform; {unlimited}; cli.main()"
"""The program without the rate limits of the platform."""
LIMIT_SECONDS = 900.0
IDLE_SECONDS = 1.0
FIRST_USER = 10_000


class Users:
    """The users of a platform: `say` sends a message of one of them, `answered` counts the replies."""

    def __init__(
        self,
        settings: str,
        environment: Mapping[str, str],
        say: Callable[[int], Awaitable[object]],
        is_connected: Callable[[], object] = lambda: True,
    ) -> None:
        self.settings, self.environment, self.say, self.is_connected = settings, environment, say, is_connected
        self.answered = 0
        self._changed = asyncio.Event()

    def count(self) -> None:
        self.answered += 1
        self._changed.set()

    async def ask(self, *users: int) -> None:
        """Send a message of each of these users, and wait for all replies."""
        wanted = self.answered + len(users)
        for user in users:
            await self.say(user)
        while self.answered < wanted:
            self._changed.clear()
            await self._changed.wait()


def _count_replies(server: object, users: Users, *methods: str) -> None:
    """Count the calls of these methods of a server that contain the reply, and not those of its draft."""

    def watch(method: str) -> None:
        call = getattr(server, method)

        def counting(*arguments: Any) -> Any:
            if provider.TEXT in str(arguments):
                users.count()
            return call(*arguments)

        setattr(server, method, counting)

    for each in methods:
        watch(each)


# --- the platforms -----------------------------------------------------------------------------------


@asynccontextmanager
async def _loopback(folder: Path) -> AsyncIterator[Users]:
    path, connected = str(folder / "socket"), list[asyncio.StreamWriter]()

    async def connect() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_unix_connection(path)
        tasks.append(asyncio.create_task(read(reader)))
        return writer

    async def read(reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if json.loads(line)["type"] == "reply":
                users.count()

    async def say(user: int) -> None:
        if not connected:
            connected.append(await connect())
        line = {"text": "And then?", "chat": f"c{user}", "sender": f"s{user}"}
        connected[0].write(json.dumps(line).encode() + b"\n")

    tasks = list[asyncio.Task[None]]()
    users = Users(f"[gateway.loopback]\nsocket = '{path}'", {}, say)
    yield users
    for task in tasks:
        task.cancel()


@asynccontextmanager
async def _telegram(_: Path) -> AsyncIterator[Users]:
    async with telegram_server.serve() as server:
        settings = f"[gateway.telegram]\ntoken_env = 'TOKEN'\ndraft_seconds = 60\napi_url = '{server.url}'"

        async def say(user: int) -> None:
            await server.say("And then?", sender={"id": user, "is_bot": False, "first_name": "Ann"})

        users = Users(settings, {"TOKEN": telegram_server.TOKEN}, say, lambda: server.called("getUpdates"))
        _count_replies(server, users, "do_sendmessage", "do_editmessagetext")
        yield users


@asynccontextmanager
async def _discord(_: Path) -> AsyncIterator[Users]:
    async with discord_server.serving() as server:
        settings = f"[gateway.discord]\ntoken_env = 'TOKEN'\ndraft_seconds = 60\napi_url = '{server.url}/api/v10'"

        async def say(user: int) -> None:
            channel = {"id": str(user), "type": 1, "recipients": [discord_server.user(user)]}
            discord_server.CHANNELS.setdefault(user, channel)
            server.say("And then?", author=user, channel=user)

        users = Users(settings, {"TOKEN": discord_server.TOKEN}, say, lambda: server.identified)
        _count_replies(server, users, "_post", "_change")
        yield users


@asynccontextmanager
async def _slack(_: Path) -> AsyncIterator[Users]:
    async with slack_server.SlackServer().run() as server:
        settings = f"[gateway.slack]\nbot_token_env = 'BOT'\napp_token_env = 'APP'\napi_url = '{server.url}/api/'"
        settings += "\ndraft_seconds = 60"

        async def say(user: int) -> None:
            await server.deliver(server.event(text="And then?", user=f"U{user}", channel=f"D{user}"))

        users = Users(settings, slack_server.SECRETS, say, lambda: server.sockets)
        _count_replies(server, users, "_chat_postMessage", "_chat_update")
        yield users


@asynccontextmanager
async def _email(_: Path) -> AsyncIterator[Users]:
    logging.getLogger("mail.log").setLevel(logging.ERROR)  # The server warns about itself.
    async with email_server.MailServer().run() as server:
        accept = server.handle_DATA

        async def say(user: int) -> None:
            thread = f"<{user}@example.org>"  # Each user has one conversation.
            server.deliver(email_server.write("And then?", f"u{user}@example.org", References=thread))

        async def accept_counted(*arguments: Any) -> str:
            users.count()
            return await accept(*arguments)

        server.handle_DATA = accept_counted  # type: ignore[method-assign]
        table = [f"{key} = {json.dumps(value)}" for key, value in server.settings().items()]
        users = Users("\n".join(["[gateway.email]", *table]), {"PASSWORD": email_server.PASSWORD}, say)
        yield users


@asynccontextmanager
async def _matrix(folder: Path) -> AsyncIterator[Users]:
    """The homeserver is a real one, so its work is part of the latency."""
    with matrix_server.run(folder) as server:
        bot, rooms = server.register("bot"), dict[int, str]()
        async with matrix_server.person(server, bot) as ann:

            async def receive() -> None:
                while True:
                    known = len(ann.events)
                    await ann.receive(30)
                    for each in ann.events[known:]:
                        content = each["content"].get("m.new_content", each["content"])
                        if each["sender"] == bot.user_id and content.get("body") == provider.TEXT:
                            users.count()

            async def say(user: int) -> None:
                if user not in rooms:
                    rooms[user] = (await ann.client.room_create(invite=[bot.user_id])).room_id
                    path = f"/_matrix/client/v3/join/{rooms[user]}"
                    await asyncio.to_thread(server.request, "POST", path, {}, bot.token)
                await ann.send(rooms[user], "And then?")

            settings = f"[gateway.matrix]\nhomeserver = '{server.url}'\ntoken_env = 'TOKEN'\ndraft_seconds = 60"
            users = Users(settings, {"TOKEN": bot.token}, say)
            receiving = asyncio.create_task(receive())
            yield users
            receiving.cancel()


PLATFORMS: dict[str, Callable[[Path], AbstractAsyncContextManager[Users]]] = {
    "loopback": _loopback,
    "telegram": _telegram,
    "discord": _discord,
    "slack": _slack,
    "email": _email,
    "matrix": _matrix,
}


# --- the program -------------------------------------------------------------------------------------

UNLIMITED = {
    "loopback": "pass",
    "telegram": "from holdfast.gateway.platforms.telegram import bot; bot.PACE = platform.Pace()",
    "discord": "from holdfast.gateway.platforms import discord; discord.DiscordPlatform.pace = platform.Pace()",
    "slack": "from holdfast.gateway.platforms import slack; slack.Slack.pace = platform.Pace()",
    "email": "pass",
    "matrix": "pass",
}


class Measured(NamedTuple):
    """The results of one platform."""

    latency: float
    """Median seconds from a message to its reply, one at a time."""
    rate: float
    """Messages per second if all are sent at once."""
    memory: float
    """Resident megabytes before the first message."""


@asynccontextmanager
async def _running(
    name: str, folder: Path, database: str, model: provider.Provider
) -> AsyncIterator[tuple[Users, int]]:
    """Run a gateway with one platform; yield the users of the platform and the id of the process."""
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(folder / "notify"))
        async with PLATFORMS[name](folder) as users:
            (folder / "config.toml").write_text(SETTINGS.format(platform=users.settings), encoding="utf-8")
            own = {"HOLDFAST_DB": database, "NOTIFY_SOCKET": str(folder / "notify"), **users.environment}
            with subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(unlimited=UNLIMITED[name]), "gateway"],
                cwd=folder.parent,
                env=model.environment(str(folder)) | own,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                try:
                    await asyncio.to_thread(_wait_ready, process, notifications)
                    await polling.until_async(users.is_connected)
                    yield users, process.pid
                finally:
                    process.kill()


def _wait_ready(process: subprocess.Popen[bytes], notifications: socket.socket) -> None:
    notifications.settimeout(1.0)
    received = b""
    while not received.startswith(b"READY=1"):
        with suppress(TimeoutError):
            received = notifications.recv(4096)
        assert process.poll() is None, f"the gateway ended: {process.args}"


async def _measure(
    folder: Path, databases: Mapping[str, str], scale: Scale, model: provider.Provider
) -> dict[str, Measured]:
    """Measure all platforms: latencies in turn, so that they are comparable, and rates one after the other."""
    people, many = range(FIRST_USER, FIRST_USER + scale.platform_users), 2 * scale.platform_messages
    async with asyncio.timeout(LIMIT_SECONDS), AsyncExitStack() as stack:
        running = {
            name: await stack.enter_async_context(_running(name, folder / name, databases[name], model))
            for name in PLATFORMS
        }
        await asyncio.sleep(IDLE_SECONDS)
        memory = {name: _resident_megabytes(pid) for name, (_, pid) in running.items()}
        taken: dict[str, list[float]] = {name: [] for name in running}
        for number in range(-len(people), scale.platform_messages):  # The first messages begin the conversations.
            for name, (users, _) in running.items():
                began = time.perf_counter()
                await users.ask(people[number % len(people)])
                if number >= 0:
                    taken[name].append(time.perf_counter() - began)
        rates = dict[str, float]()
        for name, (users, _) in running.items():
            began = time.perf_counter()
            await users.ask(*(people[number % len(people)] for number in range(many)))
            rates[name] = many / (time.perf_counter() - began)
    return {name: Measured(timing.median(taken[name]), rates[name], memory[name]) for name in running}


def _resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


# --- figures -----------------------------------------------------------------------------------------


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _figures(scale, "", folder / "sqlite", {name: str(folder / f"{name}.db") for name in PLATFORMS})
    with postgres.Server(fsync=True) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for name in PLATFORMS:
                connection.execute(f"CREATE SCHEMA {name}")
        yield from _figures(scale, "pg.", folder / "postgres", {name: server.dsn(name) for name in PLATFORMS})


def _figures(scale: Scale, prefix: str, folder: Path, databases: Mapping[str, str]) -> Iterator[Figure]:
    folder.mkdir()
    with provider.serve() as model:
        found = asyncio.run(_measure(folder, databases, scale, model))
    floor, store = found.pop("loopback"), "PostgreSQL, " if prefix else ""
    for name, each in found.items():
        key, title = f"{prefix}platforms.{name}", f"{store}{name.capitalize()}"
        floor_latency = ("loopback", floor.latency * 1e3)
        yield Figure(f"{key}.p50", f"{title}: answered, p50", "ms", each.latency * 1e3, floor_latency)
        yield Figure(f"{key}.rate", f"{title}: all at once", "messages/s", each.rate, ("loopback", floor.rate))
        if not prefix:
            yield Figure(f"{key}.memory", f"{title}: idle memory", "MB", each.memory, ("loopback", floor.memory))
