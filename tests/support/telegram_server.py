"""A Bot API server on loopback, as Telegram's: it checks tokens, markup and lengths, and keeps unconfirmed updates.

It delivers the requested types of updates only, to one poll at a time and only while no webhook is registered.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from html.parser import HTMLParser
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from holdfast.gateway.platforms.http import server

TOKEN = "123456:AAF-secret-token-of-the-bot"
ME = {"id": 99, "is_bot": True, "first_name": "Holdfast", "username": "Holdfast_bot"}
ANN = {"id": 42, "is_bot": False, "first_name": "Ann"}
CONSTANTS = {"getme": ME, "answercallbackquery": True, "setmycommands": True, "sendchataction": True}
GROUP = {"id": -100, "type": "supergroup", "title": "Garden", "is_forum": True}
TAGS = {"b", "i", "s", "a", "code", "pre", "blockquote"}


class BotError(Exception):
    """An error response."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        body = {"ok": False, "error_code": code, "description": description}
        self.response = JSONResponse({**body, "parameters": parameters} if parameters else body, code)


class _Markup(HTMLParser):
    """Parses a text as Telegram does: only known tags, properly nested."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.visible, self.open = "", list[str]()
        self.feed(text)
        self.close()
        if self.open:
            self.fail()

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS or (tag in self.open and tag in ("a", "blockquote", "pre")):
            self.fail()
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.fail()

    def handle_data(self, data: str) -> None:
        self.visible += data

    def fail(self) -> None:
        raise BotError(400, "Bad Request: can't parse entities")


def visible_text(text: str, limit: int = 4_096) -> str:
    """Return the visible text of a message. Raises BotError if Telegram would refuse it."""
    found = _Markup(text).visible
    if not found.strip():
        raise BotError(400, "Bad Request: message text is empty")
    if len(found.encode("utf-16-le")) // 2 > limit:
        raise BotError(400, "Bad Request: message is too long")
    return found


class BotApi:
    """The state of the server. `say` and the like are the actions of users."""

    def __init__(self) -> None:
        self.url = ""
        self.updates: list[dict[str, Any]] = []
        """All updates so far; those with an id below `confirmed` are not delivered again."""
        self.confirmed = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.messages: dict[int, dict[str, Any]] = {}
        """The bot's messages by id."""
        self.files: dict[str, bytes] = {}
        self.webhook = ""
        """The address of the registered webhook."""
        self.failures: dict[str, list[Exception | Response]] = defaultdict(list)
        """The next outcomes by method. A Response replaces that of a request that took effect."""
        self._changed, self._closed, self._polls = asyncio.Condition(), False, 0
        self._allowed: list[str] | None = None
        """The types of updates that the bot requested."""
        self._numbers = iter(range(1, 10_000))

    # --- users ---------------------------------------------------------------------------------------

    async def update(self, **fields: Any) -> dict[str, Any]:
        async with self._changed:
            self.updates.append({"update_id": 1_000 + len(self.updates), **fields})
            self._changed.notify_all()
        return self.updates[-1]

    def message(self, text: str = "", *, sender: dict[str, Any] = ANN, **fields: Any) -> dict[str, Any]:
        """Return a message from a private chat, unless `chat` says otherwise. Commands and mentions are marked."""
        chat = {"id": sender["id"], "type": "private", "first_name": "Ann"}
        base = {"message_id": next(self._numbers), "date": 1_700_000_000, "chat": chat, "from": sender}
        if text:
            base |= {"text": text, "entities": entities_of(text)}
        return {**base, **fields}

    async def say(self, text: str = "", **fields: Any) -> dict[str, Any]:
        message = self.message(text, **fields)
        await self.update(message=message)
        return message

    async def press(self, message_id: int, data: str, sender: dict[str, Any] = ANN) -> None:
        query = {"id": f"q{len(self.updates)}", "from": sender, "chat_instance": "x", "data": data}
        await self.update(callback_query={**query, "message": self.messages[message_id]})

    def texts(self, chat: int = 42) -> list[str]:
        """Return the visible texts of the bot's messages in a chat."""
        return [each.get("text", "") for each in self.messages.values() if each["chat"]["id"] == chat]

    def called(self, method: str) -> list[dict[str, Any]]:
        return [given for name, given in self.calls if name == method]

    # --- the API -------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        if request.path_params["token"] != TOKEN:
            return BotError(401, "Unauthorized").response
        async with request.form() as form:
            given = {name: await _value(value) for name, value in form.items()}
        method = request.path_params["method"]
        self.calls.append((method, given))
        failure = self.failures[method].pop(0) if self.failures[method] else None
        try:
            if isinstance(failure, Exception):
                raise failure
            name = method.lower()
            result = CONSTANTS[name] if name in CONSTANTS else await getattr(self, f"do_{name}")(given)
        except BotError as error:
            return error.response
        return failure if isinstance(failure, Response) else JSONResponse({"ok": True, "result": result})

    async def download(self, request: Request) -> Response:
        if request.path_params["token"] != TOKEN or request.path_params["path"] not in self.files:
            return BotError(404, "Not Found").response
        return Response(self.files[request.path_params["path"]])

    async def do_getwebhookinfo(self, _: dict[str, Any]) -> Any:
        return {"url": self.webhook, "has_custom_certificate": False, "pending_update_count": 0}

    async def do_setwebhook(self, given: dict[str, Any]) -> Any:
        self.webhook, self._allowed = given["url"], given["allowed_updates"]
        return True

    async def do_deletewebhook(self, _: dict[str, Any]) -> Any:
        self.webhook = ""
        return True

    async def do_getupdates(self, given: dict[str, Any]) -> Any:
        if self.webhook:
            raise BotError(409, "Conflict: can't use getUpdates method while webhook is active")
        self.confirmed, self._allowed = max(self.confirmed, given.get("offset", 0)), given.get("allowed_updates")
        self._polls = poll = self._polls + 1
        async with self._changed:
            self._changed.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(given.get("timeout", 0)):
                    await self._changed.wait_for(lambda: self._closed or self._polls != poll or self._unconfirmed())
        if self._polls != poll:
            raise BotError(409, "Conflict: terminated by other getUpdates request")
        return self._unconfirmed()[:100]

    def _unconfirmed(self) -> list[dict[str, Any]]:
        wanted = [each for each in self.updates if self._allowed is None or not set(self._allowed).isdisjoint(each)]
        return [each for each in wanted if each["update_id"] >= self.confirmed]

    async def close(self) -> None:
        """End the polls that wait."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def do_sendmessage(self, given: dict[str, Any]) -> Any:
        return self._add(given, text=visible_text(given["text"]))

    async def do_editmessagetext(self, given: dict[str, Any]) -> Any:
        message, text = self.messages.get(given["message_id"]), visible_text(given["text"])
        if message is None:
            raise BotError(400, "Bad Request: message to edit not found")
        if message["text"] == text:
            raise BotError(400, "Bad Request: message is not modified")
        message["text"] = text
        return message

    async def do_editmessagereplymarkup(self, given: dict[str, Any]) -> Any:
        del self.messages[given["message_id"]]["reply_markup"]
        return self.messages[given["message_id"]]

    async def do_deletemessage(self, given: dict[str, Any]) -> Any:
        if self.messages.pop(given["message_id"], None) is None:
            raise BotError(400, "Bad Request: message to delete not found")
        return True

    async def do_getfile(self, given: dict[str, Any]) -> Any:
        if given["file_id"] not in self.files:
            raise BotError(400, "Bad Request: wrong file_id")
        name = given["file_id"]
        return {"file_id": name, "file_unique_id": "u", "file_path": name, "file_size": len(self.files[name])}

    async def _add_media(self, given: dict[str, Any], kind: str) -> Any:
        if not given[kind][1]:
            raise BotError(400, "Bad Request: file must be non-empty")
        return self._add(given, sent=(kind, given[kind]))

    do_sendphoto = functools.partialmethod(_add_media, kind="photo")
    do_senddocument = functools.partialmethod(_add_media, kind="document")
    do_sendvoice = functools.partialmethod(_add_media, kind="voice")
    do_sendaudio = functools.partialmethod(_add_media, kind="audio")

    def _add(self, given: dict[str, Any], sent: Any = None, **fields: Any) -> Any:
        number = next(self._numbers)
        chat = GROUP if given["chat_id"] == GROUP["id"] else {"id": given["chat_id"], "type": "private"}
        message = {"message_id": number, "date": 1_700_000_000, "chat": chat, "from": ME, **fields}
        for name in ("reply_markup", "message_thread_id"):
            if name in given:
                message[name] = given[name]
        self.messages[number] = message | ({"sent": sent} if sent else {})
        return message


async def _value(value: str | UploadFile) -> Any:
    if isinstance(value, UploadFile):
        return value.filename, await value.read()
    try:
        return json.loads(value)
    except ValueError:
        return value


def entities_of(text: str) -> list[dict[str, Any]]:
    """Return the entities that Telegram finds in an ASCII text: a command at its beginning, and mentions."""
    found, offset = list[dict[str, Any]](), 0
    for word in text.split(" "):
        if word.startswith("/") and not offset:
            found.append({"type": "bot_command", "offset": 0, "length": len(word)})
        if word.startswith("@"):
            found.append({"type": "mention", "offset": offset, "length": len(word)})
        offset += len(word) + 1
    return found


@asynccontextmanager
async def serve() -> AsyncIterator[BotApi]:
    api = BotApi()
    methods = Route("/bot{token}/{method}", api.handle, methods=["POST"])
    router = Router([Route("/file/bot{token}/{path:path}", api.download), methods])
    listening = server.bind("127.0.0.1", 0, has_tokens=False)
    api.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with server.serve(router, listening):
        try:
            yield api
        finally:
            await api.close()
