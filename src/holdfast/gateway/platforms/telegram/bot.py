"""The platform: receives updates, sends messages, and translates the errors of the Bot API.

An update is acknowledged after its message is stored: by the offset of the next poll, or by the response to the
webhook. Telegram cannot deduplicate sends, so a message whose outcome is unknown may be sent twice.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import telegram
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from telegram import error as telegram_errors
from telegram import request as telegram_requests

from holdfast import errors
from holdfast.agent import commands
from holdfast.gateway import platform
from holdfast.gateway.platforms import downloads
from holdfast.gateway.platforms.http import requests, server
from holdfast.gateway.platforms.telegram import markdown, updates

logger = logging.getLogger("holdfast.gateway")

MAX_TEXT = 4_096
"""The longest text in UTF-16 code units."""
MAX_DOWNLOAD, MAX_UPLOAD, MAX_PHOTO = 20_000_000, 50_000_000, 10_000_000
"""Telegram's limits of files in bytes."""
DOWNLOAD_ATTEMPTS, DOWNLOAD_PAUSE, MAX_DOWNLOAD_PAUSE = 3, 1.0, 30.0
"""Few attempts at a file and short pauses in seconds between them, because later updates wait for it."""
UPLOAD_SECONDS = platform.SEND_SECONDS + 5
MAX_FAILURES = 5
"""The unexpected errors of an update after which it is skipped, because later updates wait for it."""
PHOTO_TYPES = ("image/jpeg", "image/png")
"""The types that are sent as photos. Telegram would convert others, and only show the first frame of a GIF."""
MAX_UPDATE_BYTES = 1_000_000
MAX_COMMANDS, MAX_DESCRIPTION = 100, 256
PACE = platform.Pace(platform.Rate(30, 1.0), platform.Rate(20, 60.0))
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 -- the name of a header
HIDDEN = "[token]"
NO_PREVIEW = telegram.LinkPreviewOptions(is_disabled=True)
"""Telegram would fetch every link of a reply: a link that a model was tricked into could disclose data."""
_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")
_LOGGERS = ("httpx", "httpcore", "telegram")
"""The loggers of the client library, which log addresses with the token."""


class TelegramSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[gateway.telegram]`."""

    token_env: str
    """The environment variable with the bot's token."""
    groups: Literal["mention", "all"] = "mention"
    """Which messages of a group are answered: those that address the bot, or all that it receives."""
    draft_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 3.0
    """Seconds between two edits of a reply that is being written."""
    poll_seconds: Annotated[int, msgspec.Meta(ge=1, le=50)] = 30
    """Seconds that Telegram may keep a poll open."""
    webhook_url: str = ""
    """The public https address that Telegram delivers updates to; empty: long polling."""
    webhook_secret_env: str = ""
    """The environment variable with the secret of the webhook: 16 to 256 letters, digits, `_` and `-`."""
    webhook_host: str = "127.0.0.1"
    """The address that the webhook's server listens at, behind a reverse proxy."""
    webhook_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8643
    """The port that the webhook's server listens at; 0 takes any free port."""
    api_url: str = "https://api.telegram.org"
    """The address of the Bot API server."""


def create(context: platform.PlatformContext) -> TelegramPlatform:
    """Return the platform of a settings table. Raises SettingInvalid, which never contains a secret."""
    settings = msgspec.convert(dict(context.settings), TelegramSettings)
    secret = context.secrets.get(settings.webhook_secret_env, "")
    if not _is_private(settings.api_url):
        raise errors.SettingInvalid("`api_url` must begin with https://, or be an address of this machine.")
    if settings.webhook_url and not (settings.webhook_url.startswith("https://") and _SECRET.fullmatch(secret)):
        raise errors.SettingInvalid(
            "`webhook_url` must begin with https://, and the variable that `webhook_secret_env` names must contain "
            "16 to 256 letters, digits, `_` or `-`, for example of: openssl rand -hex 24"
        )
    token = context.secrets[settings.token_env]
    if not _TOKEN.fullmatch(token):
        raise errors.SettingInvalid(f"{settings.token_env} does not contain a token such as 123456:ABC-DEF.")
    return TelegramPlatform(context.name, settings, token, secret)


def _is_private(address: str) -> bool:
    """Return whether the token can be sent to an address without being disclosed on the way."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and requests.is_loopback(parts.hostname or ""))


class TelegramPlatform:
    """A bot. `close` closes its connections."""

    separate_files = True

    def __init__(self, name: str, settings: TelegramSettings, token: str, secret: str = "") -> None:
        for each in _LOGGERS:
            logging.getLogger(each).setLevel(logging.WARNING)
        self._name, self._settings, self._token, self._secret = name, settings, token, secret
        address = settings.api_url.rstrip("/")
        self._requests = (
            telegram_requests.HTTPXRequest(64, read_timeout=20, connect_timeout=10, pool_timeout=20),
            telegram_requests.HTTPXRequest(1, read_timeout=10, connect_timeout=10),
        )
        self._bot = telegram.Bot(token, f"{address}/bot", f"{address}/file/bot", *self._requests)
        self._ready = asyncio.Event()
        self._receiving = asyncio.Lock()
        self._failures = Counter[int]()
        """Unexpected errors by update."""
        self.webhook_port = 0
        """The port of the webhook's server while it runs."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def limit(self) -> int:
        return MAX_TEXT

    @property
    def draft_seconds(self) -> float:
        return self._settings.draft_seconds

    @property
    def pace(self) -> platform.Pace:
        return PACE

    def render(self, text: str) -> str:
        return markdown.render(text)

    def measure(self, text: str) -> int:
        return markdown.measure(text)

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def close(self) -> None:
        """Close the connections to Telegram, after the gateway was stopped."""
        for each in self._requests:
            await each.shutdown()

    async def check_access(self) -> platform.AccessReport:
        try:
            await self._bot.initialize()
            registered = (await self._bot.get_webhook_info()).url
        except telegram_errors.InvalidToken as error:
            return platform.failed_access(self._describe(error), "Get the token of the bot: write /token to BotFather.")
        except telegram_errors.TelegramError as error:
            return platform.failed_access(self._describe(error), "Check the network and `api_url`, then try again.")
        problems, settings = list[platform.AccessProblem](), self._settings
        if registered not in ("", settings.webhook_url):
            what = f"A webhook of this bot is registered at {urlsplit(registered).hostname}."
            remedy = "Stop the program that uses it. The gateway replaces the registration when it starts."
            problems.append(platform.AccessProblem(what, remedy))
        if settings.groups == "all" and not self._bot.bot.can_read_all_group_messages:
            what = 'With `groups = "all"` the bot must receive all messages of groups, but its privacy mode is on.'
            problems.append(platform.AccessProblem(what, "Write /setprivacy to BotFather and choose Disable."))
        return platform.AccessReport(f"@{self._bot.bot.username}", problems)

    # --- receiving -----------------------------------------------------------------------------------

    async def run(self, handler: platform.Handler) -> None:
        try:
            await self._bot.initialize()
            if self._settings.webhook_url:
                await self._serve(handler)
            else:
                await self._poll(handler)
        except telegram_errors.RetryAfter as error:
            raise errors.SendFailed("Too many requests.", retry_after=_seconds(error)) from None
        except telegram_errors.TelegramError as error:
            # Without its causes: some contain the token.
            raise ConnectionError(self._describe(error)) from None

    async def _poll(self, handler: platform.Handler) -> None:
        await self._bot.delete_webhook()
        self._ready.set()
        offset, seconds = None, self._settings.poll_seconds
        while True:
            try:
                found = await self._bot.get_updates(offset, timeout=seconds, allowed_updates=updates.ALLOWED)
            except telegram_errors.RetryAfter as error:
                await asyncio.sleep(_seconds(error))
                continue
            if offset is not None:
                # Until now, an error would have repeated the updates before it, with those that were skipped.
                self._failures.clear()
            for update in found:
                await self._receive(handler, update)
                offset = update.update_id + 1

    async def _serve(self, handler: platform.Handler) -> None:
        async def receive(request: Request) -> Response:
            given = request.headers.get(SECRET_HEADER, "")
            if not hmac.compare_digest(given.encode(), self._secret.encode()):
                raise requests.HttpError(403, "Wrong secret token.", code="wrong_secret")
            update = telegram.Update.de_json(msgspec.json.decode(await request.body()), self._bot)
            async with self._receiving:
                await self._receive(handler, update)
            self._failures.pop(update.update_id, None)
            return Response()

        settings = self._settings
        path = urlsplit(settings.webhook_url).path or "/"
        app = requests.RequestFilter(
            Router([Route(path, receive, methods=["POST"])]), max_body=MAX_UPDATE_BYTES, hosts=None
        )
        listening = socket.create_server((settings.webhook_host, settings.webhook_port))
        listening.setblocking(False)
        async with server.serve(app, listening):
            self.webhook_port = listening.getsockname()[1]
            # One connection at a time, so that messages arrive in order.
            await self._bot.set_webhook(
                settings.webhook_url,
                secret_token=self._secret,
                allowed_updates=updates.ALLOWED,
                max_connections=1,
            )
            self._ready.set()
            await asyncio.Event().wait()

    async def _receive(self, handler: platform.Handler, update: telegram.Update) -> None:
        """Store the message of an update. Raises an error if the update must be delivered again."""
        try:
            await self._store(handler, update)
        except errors.StoreError:
            raise
        except Exception:
            self._failures[update.update_id] += 1
            if self._failures[update.update_id] < MAX_FAILURES:
                raise
            logger.exception("%s skips update %d after %d errors", self.name, update.update_id, MAX_FAILURES)

    async def _store(self, handler: platform.Handler, update: telegram.Update) -> None:
        if update.callback_query is not None:
            if (pressed := updates.read_button(self.name, update)) is not None:
                await handler.receive(pressed)
            try:
                await self._bot.answer_callback_query(update.callback_query.id)
                if pressed is not None and pressed.kind == "dm":  # In a group, others can press the buttons, too.
                    await update.callback_query.edit_message_reply_markup()
            except telegram_errors.TelegramError as error:
                logger.debug("Telegram did not accept the answer to a button: %s", self._describe(error))
            return
        incoming = updates.read_message(self.name, self._bot.bot, update, self._settings.groups == "all")
        if incoming is None or not incoming.mentioned:
            return
        message = update.effective_message
        if message is not None and (files := updates.find_files(message)):
            incoming = msgspec.structs.replace(incoming, complete=partial(self._add_files, incoming, files))
        await handler.receive(incoming)

    async def _add_files(
        self, incoming: platform.Incoming, files: Sequence[updates.FileReference]
    ) -> platform.Incoming:
        return downloads.add_files(incoming, [await self._download(each) for each in files])

    async def _download(self, file: updates.FileReference) -> platform.Attachment | str:
        """Return a file, or a note. Telegram limits the size to 20 MB, a server of one's own may not."""
        pause = 0.0
        for _ in range(DOWNLOAD_ATTEMPTS):
            await asyncio.sleep(pause)
            pause = DOWNLOAD_PAUSE
            try:
                size, found = file.size, None
                if size <= MAX_DOWNLOAD:
                    found = await self._bot.get_file(file.file_id)
                    size = found.file_size or 0
                if found is None or size > MAX_DOWNLOAD:
                    return downloads.too_large(file.name, MAX_DOWNLOAD)
                return platform.Attachment(bytes(await found.download_as_bytearray()), file.media_type, file.name)
            except telegram_errors.TelegramError as error:
                logger.warning("%s could not download a file: %s", self.name, self._describe(error))
                if _is_final(error):
                    break
                if isinstance(error, telegram_errors.RetryAfter):
                    pause = min(_seconds(error), MAX_DOWNLOAD_PAUSE)
            except Exception as error:  # noqa: BLE001 -- the border to the library, which trusts the responses
                logger.warning("%s could not download a file: %s", self.name, type(error).__name__)
        return downloads.not_received(file.name, "Telegram did not deliver it")

    # --- sending -------------------------------------------------------------------------------------

    async def send(self, delivery: platform.Delivery) -> str:
        with self._translate():
            return await self._send(delivery, None)

    async def send_question(self, delivery: platform.Delivery, question: platform.ApprovalQuestion) -> str:
        rows = [[telegram.InlineKeyboardButton(each.label, callback_data=each.text)] for each in question.choices]
        with self._translate():
            return await self._send(delivery, telegram.InlineKeyboardMarkup(rows))

    async def send_typing(self, address: dict[str, Any]) -> None:
        with self._translate():
            await self._bot.send_chat_action(address["chat"], "typing", message_thread_id=address.get("thread"))

    async def edit_draft(self, address: dict[str, Any], draft: str, text: str) -> None:
        with self._translate():
            await self._edit(address, draft, text)

    async def delete_draft(self, address: dict[str, Any], draft: str) -> None:
        with self._translate(), suppress(telegram_errors.BadRequest):
            await self._bot.delete_message(address["chat"], int(draft))

    async def show_commands(self, listed: Sequence[commands.CommandInfo]) -> None:
        shown = [(each.name, each.help[:MAX_DESCRIPTION]) for each in listed if _COMMAND.fullmatch(each.name)]
        with self._translate():
            await self._bot.set_my_commands(shown[:MAX_COMMANDS])

    async def _send(self, delivery: platform.Delivery, buttons: telegram.InlineKeyboardMarkup | None) -> str:
        try:
            return await self._send_once(delivery, buttons)
        except telegram_errors.ChatMigrated as error:
            # The group became a supergroup, whose id is new and which lacks the draft and the message to reply to.
            moved = msgspec.structs.replace(delivery, address={"chat": error.new_chat_id}, draft=None)
            return await self._send_once(moved, buttons)

    async def _send_once(self, delivery: platform.Delivery, buttons: telegram.InlineKeyboardMarkup | None) -> str:
        sent = [await self._send_text(delivery, buttons)] if delivery.text else []
        sent += [await self._send_file(delivery, each) for each in delivery.files]
        return sent[0]

    async def _send_text(self, delivery: platform.Delivery, buttons: telegram.InlineKeyboardMarkup | None) -> str:
        if delivery.draft is not None and await self._edit(delivery.address, delivery.draft, delivery.text):
            return delivery.draft
        sent = await self._bot.send_message(
            text=delivery.text,
            parse_mode="HTML",
            link_preview_options=NO_PREVIEW,
            reply_markup=buttons,
            **_target(delivery),
        )
        return str(sent.message_id)

    async def _edit(self, address: dict[str, Any], draft: str, text: str) -> bool:
        """Replace the text of a draft; return whether the draft still exists."""
        try:
            await self._bot.edit_message_text(
                text, address["chat"], int(draft), parse_mode="HTML", link_preview_options=NO_PREVIEW
            )
        except telegram_errors.BadRequest as error:
            reason = error.message.lower()
            if "not modified" in reason:
                return True
            if "to edit not found" in reason or "can't be edited" in reason:
                return False
            raise
        return True

    async def _send_file(self, delivery: platform.Delivery, file: platform.OutgoingFile) -> str:
        if file.size > MAX_UPLOAD:
            raise errors.SendRefused(f"{file.name} has {file.size:,} bytes; Telegram accepts {MAX_UPLOAD:,}.")
        content = telegram.InputFile(await file.read(), filename=file.name)
        method: Callable[..., Awaitable[telegram.Message]] = self._bot.send_document
        if file.media_type in PHOTO_TYPES and file.size <= MAX_PHOTO:
            method = self._bot.send_photo
        elif file.media_type.startswith("audio/"):
            method = self._bot.send_voice if file.media_type == "audio/ogg" else self._bot.send_audio
        try:
            kind = method.__name__.removeprefix("send_")
            sent = await method(**{kind: content}, read_timeout=UPLOAD_SECONDS, **_target(delivery))
        except telegram_errors.BadRequest:
            if method == self._bot.send_document:
                raise
            # For example an image with unusual proportions.
            sent = await self._bot.send_document(document=content, read_timeout=UPLOAD_SECONDS, **_target(delivery))
        return str(sent.message_id)

    @contextmanager
    def _translate(self) -> Iterator[None]:
        """Translate the errors of the client library."""
        try:
            yield
        except telegram_errors.RetryAfter as error:
            raise errors.SendFailed("Too many requests.", retry_after=_seconds(error)) from None
        except (telegram_errors.BadRequest, telegram_errors.Forbidden, telegram_errors.ChatMigrated) as error:
            raise errors.SendRefused(self._describe(error)) from None
        except telegram_errors.TelegramError as error:
            raise errors.SendFailed(self._describe(error)) from None

    def _describe(self, error: telegram_errors.TelegramError) -> str:
        if isinstance(error, telegram_errors.InvalidToken):
            return f"Telegram refused the token in {self._settings.token_env}."
        if isinstance(error, telegram_errors.Conflict):
            return "Another program receives the updates of this bot. Stop it, or use a webhook."
        # Without the number before the colon, which is encoded in addresses. The library changes the case of texts.
        secret = re.escape(self._token.partition(":")[2])
        return f"Telegram: {re.sub(secret, HIDDEN, error.message, flags=re.IGNORECASE)}"


def _target(delivery: platform.Delivery) -> dict[str, Any]:
    """Return the arguments that select the chat, the topic and, in a group, the message to reply to."""
    address, reply = delivery.address, None
    if "reply_to" in address and not delivery.part:
        reply = telegram.ReplyParameters(address["reply_to"], allow_sending_without_reply=True)
    return {"chat_id": address["chat"], "message_thread_id": address.get("thread"), "reply_parameters": reply}


def _seconds(error: telegram_errors.RetryAfter) -> float:
    found = error.retry_after
    return found.total_seconds() if isinstance(found, timedelta) else float(found)


def _is_final(error: telegram_errors.TelegramError) -> bool:
    return isinstance(error, telegram_errors.BadRequest | telegram_errors.Forbidden | telegram_errors.InvalidToken)
