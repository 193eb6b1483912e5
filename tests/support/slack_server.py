"""A Slack workspace on loopback: the Web API, the Socket Mode WebSocket, file uploads and downloads."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self
from urllib import parse

import uvicorn
from starlette import applications, requests, responses, routing, websockets

from holdfast.gateway import platform
from holdfast.gateway.platforms import slack
from holdfast.gateway.platforms.http import server
from tests.support.polling import until_async

BOT, BOT_TOKEN, APP_TOKEN, SECRET = "UBOT", "xoxb-1-bot", "xapp-1-app", "signing-secret"
SECRETS = {"BOT": BOT_TOKEN, "APP": APP_TOKEN, "SECRET": SECRET}


class SlackServer:
    """`messages` are the messages of the bot by channel and timestamp, as users see them."""

    url: str

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failures: dict[str, list[responses.Response]] = {}
        """The next responses of a method instead of the real one."""
        self.lost: dict[str, int] = {}
        """How many of the next requests of a method succeed without a proper response."""
        self.files: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}
        self.shared: list[tuple[str, str | None, list[bytes]]] = []
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.pending: dict[str, dict[str, Any]] = {}
        self.sockets: list[websockets.WebSocket] = []
        self.names = {"U1": "Ann"}
        self.tokens: list[str] = []
        self.scopes = sorted(slack.SCOPES)
        self._numbers = itertools.count(1)
        self._began = time.time()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Self]:
        routes: list[routing.BaseRoute] = [
            routing.Route("/api/{method}", self._call, methods=["POST", "GET"]),
            routing.Route("/upload/{id}", self._upload, methods=["POST"]),
            routing.Route("/files/{name}", self._file),
            routing.WebSocketRoute("/link", self._link),
        ]
        listening = server.bind("127.0.0.1", 0, has_tokens=False)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        options: dict[str, Any] = {"lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 1}
        app = applications.Starlette(routes=routes)
        running = server.HttpServer(uvicorn.Config(app, ws="websockets-sansio", **options))
        task = asyncio.create_task(running.serve([listening]))
        try:
            await until_async(lambda: running.started)
            yield self
        finally:
            running.should_exit = True
            await task
            listening.close()

    def platform(self, *, http: bool = False, **given: Any) -> slack.Slack:
        """Return the platform under test, connected to this server."""
        way = {"signing_secret_env": "SECRET", "port": 0} if http else {"app_token_env": "APP"}
        table = {"bot_token_env": "BOT", "api_url": f"{self.url}/api/", "ping_seconds": 0.5, "draft_seconds": 0.05}
        made = slack.create(platform.PlatformContext("slack", {**table, **way, **given}, SECRETS))
        made.pace = platform.Pace()  # This workspace has no rate limits.
        return made

    # --- events ---------------------------------------------------------------------------------------------

    def next_ts(self) -> str:
        return f"{self._began + next(self._numbers):.6f}"

    def event(self, **fields: Any) -> dict[str, Any]:
        """Return an Events API payload of a message; by default of Ann in her direct messages."""
        known = {"type": "message", "channel": "D1", "user": "U1", "ts": self.next_ts()}
        return {"type": "event_callback", "event_id": f"Ev{next(self._numbers)}", "event": {**known, **fields}}

    async def deliver(self, payload: dict[str, Any], kind: str = "events_api", retry: int = 0) -> str:
        """Send an envelope, and return its id."""
        envelope = {"type": kind, "envelope_id": f"env{next(self._numbers)}", "payload": payload}
        self.pending[envelope["envelope_id"]] = {**envelope, "retry_attempt": retry}
        await self._send(self.sockets[-1], self.pending[envelope["envelope_id"]])
        return str(envelope["envelope_id"])

    async def acknowledge(self, payload: dict[str, Any], kind: str = "events_api", retry: int = 0) -> dict[str, Any]:
        """Send an envelope, and return its acknowledgement."""
        sent = await self.deliver(payload, kind, retry)
        await until_async(lambda: sent in self.acknowledged)
        return self.acknowledged[sent]

    async def say(self, text: str, **fields: Any) -> dict[str, Any]:
        """Deliver a message of a user; return its payload once it is acknowledged."""
        payload = self.event(text=text, **fields)
        await self.acknowledge(payload)
        return payload

    async def disconnect(self) -> None:
        """Close all connections; unacknowledged envelopes are sent again on the next one."""
        for each in self.sockets[:]:
            await each.close(1001)

    async def _send(self, link: websockets.WebSocket, value: dict[str, Any]) -> None:
        await link.send_text(json.dumps(value))

    async def _link(self, link: websockets.WebSocket) -> None:
        await link.accept()
        await self._send(link, {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A1"}})
        self.sockets.append(link)
        for envelope in list(self.pending.values()):
            await self._send(link, {**envelope, "retry_attempt": 1, "retry_reason": "timeout"})
        with suppress(websockets.WebSocketDisconnect, RuntimeError):
            while True:
                found = json.loads(await link.receive_text())
                self.acknowledged[found["envelope_id"]] = found
                self.pending.pop(found["envelope_id"], None)
        self.sockets.remove(link)

    # --- the Web API ----------------------------------------------------------------------------------------

    async def _call(self, request: requests.Request) -> responses.Response:
        method, body = request.path_params["method"], await request.body()
        is_json = request.headers.get("content-type", "").startswith("application/json")
        given = json.loads(body) if is_json else dict(parse.parse_qsl(body.decode()))
        given = {**request.query_params, **given}
        token = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        if request.headers.get("authorization") != f"Bearer {token}":
            return responses.JSONResponse({"ok": False, "error": "invalid_auth"})
        self.calls.append((method, given))
        if self.failures.get(method):
            return self.failures[method].pop(0)
        answer = getattr(self, "_" + method.replace(".", "_"))(given)
        if self.lost.get(method):
            self.lost[method] -= 1
            return responses.Response(status_code=503)
        headers = {"x-oauth-scopes": ",".join(self.scopes)}
        return responses.JSONResponse({"ok": "error" not in answer, **answer}, headers=headers)

    def _auth_test(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"user_id": BOT, "user": "holdfast", "bot_id": "B1", "team_id": "T1", "team": "Harbour"}

    def _apps_connections_open(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"url": self.url.replace("http", "ws") + "/link?ticket=1"}

    def _users_info(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"user": {"profile": {"display_name": self.names.get(given["user"], "")}}}

    def _chat_postMessage(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 -- the name of the method
        if not _is_channel(given["channel"]):
            return {"error": "channel_not_found"}
        if _is_too_long(given):
            return {"error": "msg_too_long"}
        ts = self.next_ts()
        self.messages[f"{given['channel']}:{ts}"] = {**given, "ts": ts, "user": BOT}
        return {"channel": given["channel"], "ts": ts}

    def _chat_update(self, given: dict[str, Any]) -> dict[str, Any]:
        found = self.messages.get(f"{given['channel']}:{given['ts']}")
        if found is None:
            return {"error": "message_not_found"}
        if _is_too_long(given):
            return {"error": "msg_too_long"}
        found.update(given)
        return {"channel": given["channel"], "ts": given["ts"]}

    def _chat_delete(self, given: dict[str, Any]) -> dict[str, Any]:
        found = self.messages.pop(f"{given['channel']}:{given['ts']}", None)
        return {} if found else {"error": "message_not_found"}

    def _conversations_open(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"channel": {"id": given["users"].replace("U", "D")}}

    def _conversations_history(self, given: dict[str, Any]) -> dict[str, Any]:
        if not _is_channel(given["channel"]):
            return {"error": "channel_not_found"}
        here = [each for each in self.messages.values() if each["channel"] == given["channel"]]
        found = [each for each in here if float(each["ts"]) > float(given["oldest"])][-int(given["limit"]) :]
        if given.get("include_all_metadata") not in ("1", "true", True):
            found = [{key: value for key, value in each.items() if key != "metadata"} for each in found]
        return {"messages": found}

    def _conversations_replies(self, given: dict[str, Any]) -> dict[str, Any]:
        found = self._conversations_history(given)["messages"]
        return {"messages": [each for each in found if each.get("thread_ts") == given["ts"]]}

    def _files_getUploadURLExternal(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        name = f"F{next(self._numbers)}"
        return {"upload_url": f"{self.url}/upload/{name}", "file_id": name}

    def _files_completeUploadExternal(self, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        listed = json.loads(given["files"])
        if not _is_channel(given["channel_id"]):
            return {"error": "invalid_channel"}
        self.shared.append((given["channel_id"], given.get("thread_ts"), [self.uploads[each["id"]] for each in listed]))
        return {"files": listed}

    async def _upload(self, request: requests.Request) -> responses.Response:
        self.uploads[request.path_params["id"]] = await request.body()
        return responses.PlainTextResponse("OK")

    async def _file(self, request: requests.Request) -> responses.Response:
        self.tokens.append(request.headers.get("authorization", ""))
        found = self.files.get(request.path_params["name"])
        return responses.Response(found) if found is not None else responses.RedirectResponse("/files/a.png")

    def texts(self, channel: str = "D1") -> list[str]:
        """Return the texts of the bot's messages in a channel, in order."""
        return [each["text"] for each in self.messages.values() if each["channel"] == channel]

    def count(self, method: str) -> int:
        return sum(called == method for called, _ in self.calls)


def _is_channel(text: str) -> bool:
    """Return whether the text names a channel: of most methods, only posting a message accepts a user, too."""
    return text[:1] in ("C", "D", "G")


def _is_too_long(given: dict[str, Any]) -> bool:
    """Return whether the text of a message exceeds the limit of a block."""
    return len(given["text"].encode("utf-16-le")) // 2 > slack.MAX_TEXT
