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
from holdfast.gateway.platforms.http import requests, server
from holdfast.gateway.platforms.telegram import markdown, updates
from holdfast.tools.files import images

logger = logging.getLogger("holdfast.gateway")

MAX_TEXT, MAX_CAPTION = 4_096, 1_024
"""The longest text and caption, in UTF-16 code units."""
MAX_DOWNLOAD, MAX_UPLOAD, MAX_PHOTO = 20_000_000, 50_000_000, 10_000_000
"""Telegram's limits of files in bytes."""
MAX_DOWNLOAD_ATTEMPTS = 5
"""After so many failed downloads a message is stored without its file, because later updates wait for it."""
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
        """Failed downloads by update."""
        self._accepted: dict[int, list[str]] = {}
        """The messages that Telegram accepted of a delivery whose other messages failed; they are not sent again."""
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
        except telegram_errors.TelegramError as error:
            # Without its causes: some contain the token.
            raise ConnectionError(self._describe(error)) from None

    async def _poll(self, handler: platform.Handler) -> None:
        await self._bot.delete_webhook()
        self._ready.set()
        offset, seconds = None, self._settings.poll_seconds
        while True:
            for update in await self._bot.get_updates(offset, timeout=seconds, allowed_updates=updates.ALLOWED):
                await self._receive(handler, update)
                offset = update.update_id + 1

    async def _serve(self, handler: platform.Handler) -> None:
        async def receive(request: Request) -> Response:
            given = request.headers.get(SECRET_HEADER, "")
            if not hmac.compare_digest(given.encode(), self._secret.encode()):
                raise requests.HttpError(403, "Wrong secret token.", code="wrong_secret")
            update = telegram.Update.de_json(msgspec.json.decode(await request.body()), self._bot)
            try:
                async with self._receiving:
                    await self._receive(handler, update)
            except telegram_errors.TelegramError as error:
                raise requests.HttpError(503, self._describe(error)) from None
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
        if update.callback_query is not None:
            if (pressed := updates.read_button(self.name, update)) is not None:
                await handler.receive(pressed)
            try:
                await self._bot.answer_callback_query(update.callback_query.id)
            except telegram_errors.TelegramError as error:
                logger.debug("Telegram did not accept the answer to a button: %s", self._describe(error))
            return
        incoming = updates.read_message(self.name, self._bot.bot, update, self._settings.groups == "all")
        if incoming is None or not incoming.mentioned:
            return
        message = update.effective_message
        if message is not None and (files := updates.find_files(message)):
            complete = partial(self._add_files, incoming, files, update.update_id)
            incoming = msgspec.structs.replace(incoming, complete=complete)
        await handler.receive(incoming)
        self._failures.pop(update.update_id, None)

    async def _add_files(
        self, incoming: platform.Incoming, files: Sequence[updates.FileReference], update_id: int
    ) -> platform.Incoming:
        """Download the files of a message. Telegram limits their size to 20 MB, a server of one's own may not."""
        attachments, notes = list[platform.Attachment](), list[str]()
        for file in files:
            try:
                size, found = file.size, None
                if size <= MAX_DOWNLOAD:
                    found = await self._bot.get_file(file.file_id)
                    size = found.file_size or 0
                if found is None or size > MAX_DOWNLOAD:
                    notes.append(updates.build_note(file, f"{size:,} bytes"))
                    continue
                data = bytes(await found.download_as_bytearray())
            except telegram_errors.TelegramError as error:
                self._failures[update_id] += 1
                if not _is_final(error) and self._failures[update_id] < MAX_DOWNLOAD_ATTEMPTS:
                    raise
                notes.append(updates.build_note(file, "Telegram did not deliver it"))
                continue
            attachments.append(platform.Attachment(data, file.media_type, file.name))
        text = updates.join_text(incoming.text, notes)
        return msgspec.structs.replace(incoming, text=text, attachments=tuple(attachments))

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
            try:
                await self._edit(address, draft, text)
            except telegram_errors.RetryAfter as error:
                await asyncio.sleep(_seconds(error))

    async def delete_draft(self, address: dict[str, Any], draft: str) -> None:
        with self._translate(), suppress(telegram_errors.BadRequest):
            await self._bot.delete_message(address["chat"], int(draft))

    async def show_commands(self, listed: Sequence[commands.CommandInfo]) -> None:
        shown = [(each.name, each.help[:MAX_DESCRIPTION]) for each in listed if _COMMAND.fullmatch(each.name)]
        with self._translate():
            await self._bot.set_my_commands(shown[:MAX_COMMANDS])

    async def _send(self, delivery: platform.Delivery, buttons: telegram.InlineKeyboardMarkup | None) -> str:
        try:
            return await self._send_parts(delivery, buttons)
        except telegram_errors.ChatMigrated as error:
            # The group became a supergroup, whose id is new and which lacks the draft and the message to reply to.
            moved = msgspec.structs.replace(delivery, address={"chat": error.new_chat_id}, draft=None)
            return await self._send_parts(moved, buttons)

    async def _send_parts(self, delivery: platform.Delivery, buttons: telegram.InlineKeyboardMarkup | None) -> str:
        """Send the text and the files of a delivery. After a failure the next call continues with the rest."""
        accepted = self._accepted.pop(delivery.id, [])
        draft, length = delivery.draft, markdown.utf16_length(markdown.visible_text(delivery.text))
        has_caption = len(delivery.files) == 1 and draft is None and length <= MAX_CAPTION
        has_text = bool(delivery.text) and not has_caption
        try:
            if draft is not None and not delivery.text and not accepted:
                await self.delete_draft(delivery.address, draft)
            if has_text and not accepted:
                accepted.append(await self._send_text(delivery, buttons))
            for file in delivery.files[len(accepted) - has_text :]:
                accepted.append(await self._send_file(delivery, file, delivery.text if has_caption else ""))
        except BaseException:
            if accepted:
                self._accepted[delivery.id] = accepted
            raise
        return accepted[0] if accepted else f"empty-{delivery.id}"

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

    async def _send_file(self, delivery: platform.Delivery, file: platform.OutgoingFile, caption: str) -> str:
        if file.size > MAX_UPLOAD:
            raise errors.SendRefused(f"{file.name} has {file.size:,} bytes; Telegram accepts {MAX_UPLOAD:,}.")
        content = telegram.InputFile(await file.read(), filename=file.name)
        method: Callable[..., Awaitable[telegram.Message]] = self._bot.send_document
        if file.media_type in images.MEDIA_TYPES and file.size <= MAX_PHOTO:
            method = self._bot.send_photo
        elif file.media_type.startswith("audio/"):
            method = self._bot.send_voice if file.media_type == "audio/ogg" else self._bot.send_audio
        given = {"caption": caption or None, "parse_mode": "HTML", **_target(delivery)}
        try:
            kind = method.__name__.removeprefix("send_")
            sent = await method(**{kind: content}, **given)
        except telegram_errors.BadRequest:
            if method == self._bot.send_document:
                raise
            # For example an image with unusual proportions.
            sent = await self._bot.send_document(document=content, **given)
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
        # Without the number before the colon, which is encoded in addresses.
        return f"Telegram: {error.message.replace(self._token.partition(':')[2], HIDDEN)}"


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
