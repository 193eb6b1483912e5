"""A real homeserver (Synapse on SQLite, on loopback) for tests, and people that use it with a client library."""

from __future__ import annotations

import asyncio
import base64
import hmac
import io
import itertools
import json
import secrets
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import nio

from tests.support import polling

SECRET = "registration"
_FAST = {"per_second": 10_000, "burst_count": 10_000}


class Account(NamedTuple):
    user_id: str
    token: str


class Homeserver:
    """A running Synapse."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._names, self._folder = itertools.count(1), folder
        self.process: subprocess.Popen[bytes] | None = None
        key = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        (folder / "signing.key").write_text(f"ed25519 a_test {key}\n")
        (folder / "log.yaml").write_text(json.dumps({"version": 1, "root": {"level": "ERROR"}}))
        (folder / "homeserver.yaml").write_text(json.dumps(self._config()))

    def _config(self) -> dict[str, Any]:
        folder, resources = self._folder, [{"names": ["client", "media"]}]
        listener = {"port": self.port, "bind_addresses": ["127.0.0.1"], "type": "http", "resources": resources}
        return {
            "server_name": "test",
            "listeners": [listener],
            "database": {"name": "sqlite3", "args": {"database": str(folder / "synapse.db")}},
            "media_store_path": str(folder / "media"),
            "signing_key_path": str(folder / "signing.key"),
            "log_config": str(folder / "log.yaml"),
            "registration_shared_secret": SECRET,
            "macaroon_secret_key": "macaroon",
            "form_secret": "form",
            "bcrypt_rounds": 4,
            "presence": {"enabled": False},
            "report_stats": False,
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            **dict.fromkeys(("rc_message", "rc_room_creation", "rc_registration"), _FAST),
            "rc_invites": {"per_room": _FAST, "per_user": _FAST, "per_issuer": _FAST},
            "rc_joins": {"local": _FAST},
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "synapse.app.homeserver", "-c", str(self._folder / "homeserver.yaml")]
        with open(self._folder / "output", "ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._folder)
        polling.until(self._is_up, f"Synapse in {self._folder}", 120)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _is_up(self) -> bool:
        assert self.process.poll() is None, (self._folder / "output").read_text()
        with suppress(urllib.error.URLError):
            self.request("GET", "/_matrix/client/versions")
            return True
        return False

    def request(self, method: str, path: str, body: object = None, token: str = "") -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            found: dict[str, Any] = json.loads(response.read())
        return found

    def register(self, name: str, *, admin: bool = False) -> Account:
        """Create an account whose name begins with `name`."""
        path, user, password = "/_synapse/admin/v1/register", f"{name}{next(self._names)}", "password"
        nonce = self.request("GET", path)["nonce"]
        signed = "\0".join([nonce, user, password, "admin" if admin else "notadmin"]).encode()
        mac = hmac.new(SECRET.encode(), signed, "sha1").hexdigest()
        body = {"nonce": nonce, "username": user, "password": password, "admin": admin, "mac": mac}
        made = self.request("POST", path, body)
        return Account(made["user_id"], made["access_token"])


@contextmanager
def run(folder: Path) -> Iterator[Homeserver]:
    """Run a homeserver until the end of the block."""
    server = Homeserver(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Person:
    """A user with a client that records the events of the rooms."""

    def __init__(self, server: Homeserver, account: Account, bot: Account) -> None:
        self.client = nio.AsyncClient(server.url)
        self.client.user_id, self.client.access_token = account
        self.user_id, self._bot = account.user_id, bot.user_id
        self.events: list[dict[str, Any]] = []

    async def receive(self, seconds: float = 0) -> None:
        """Receive the events so far, or wait for the next ones."""
        timeline = {"room": {"timeline": {"limit": 1_000}}}
        response = await self.client.sync(int(seconds * 1_000), sync_filter=timeline)
        assert isinstance(response, nio.SyncResponse), response
        for room_id, joined in response.rooms.join.items():
            self.events += [{**each.source, "room_id": room_id} for each in joined.timeline.events]

    async def wait_for(self, condition: Callable[[], Any]) -> None:
        """Receive events until a condition holds; fail after some seconds."""
        async with asyncio.timeout(60):
            while not condition():
                await self.receive(2)

    async def open_room(self, *others: Person, invite_bot: bool = True) -> str:
        """Create a room, and wait until the bot and these people are in it."""
        invited = [*(each.user_id for each in others), *([self._bot] if invite_bot else [])]
        made = await self.client.room_create(invite=invited)
        for each in others:
            await each.client.join(made.room_id)
        if invite_bot:
            await self.wait_for(lambda: self.has_joined(made.room_id))
        return str(made.room_id)

    def has_joined(self, room: str) -> bool:
        """Return whether the bot is in a room."""
        return any(
            (each["room_id"], each.get("state_key"), each["content"].get("membership")) == (room, self._bot, "join")
            for each in self.events
        )

    async def send(self, room: str, content: str | dict[str, Any], kind: str = "m.room.message") -> str:
        content = {"msgtype": "m.text", "body": content} if isinstance(content, str) else content
        sent = await self.client.room_send(room, kind, content)
        return str(sent.event_id)

    async def upload(self, data: bytes, media_type: str) -> str:
        uploaded, _ = await self.client.upload(io.BytesIO(data), media_type, filesize=len(data))
        return str(uploaded.content_uri)

    def seen(self, room: str) -> list[dict[str, Any]]:
        """Return the messages of the bot in a room as a client shows them: edited and without deleted ones."""
        shown = dict[str, dict[str, Any]]()
        for each in self.events:
            relation, content = each["content"].get("m.relates_to", {}), each["content"]
            if each["room_id"] != room or (each["sender"] != self._bot and each["type"] != "m.room.redaction"):
                continue
            if each["type"] == "m.room.redaction":
                shown.pop(content.get("redacts") or each["redacts"], None)
            elif relation.get("rel_type") == "m.replace":
                if relation["event_id"] in shown:
                    shown[relation["event_id"]] |= content["m.new_content"]
            elif each["type"] == "m.room.message" and "msgtype" in content:
                shown[each["event_id"]] = {**content, "id": each["event_id"]}
        return list(shown.values())

    def texts(self, room: str) -> list[str]:
        return [each["body"] for each in self.seen(room) if each["body"] != "…"]

    async def replies(self, room: str, count: int) -> list[dict[str, Any]]:
        """Wait until the bot shows this many messages besides drafts, and return them."""
        await self.wait_for(lambda: len(self.texts(room)) >= count)
        return self.seen(room)


@asynccontextmanager
async def person(server: Homeserver, bot: Account, name: str = "ann") -> AsyncIterator[Person]:
    """A new user of the homeserver."""
    found = Person(server, server.register(name), bot)
    try:
        yield found
    finally:
        await found.client.close()
