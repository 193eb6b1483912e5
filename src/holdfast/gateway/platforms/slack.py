"""Slack: direct messages, channels and threads, by Socket Mode or by signed HTTP requests.

A message is acknowledged after it is stored. Slack delivers unacknowledged messages again; the channel and timestamp of
a message identify it, whichever event carries it. The text format is in `slack_format.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any
from urllib import parse
from weakref import WeakValueDictionary

import msgspec
from starlette import applications, requests, responses, routing

from holdfast import errors, installation
from holdfast.gateway import platform, settings
from holdfast.gateway.platforms import downloads, slack_format
from holdfast.gateway.platforms.http import server
from holdfast.model import surrogates

try:
    import aiohttp
    from slack_sdk import errors as slack_errors
    from slack_sdk import signature
    from slack_sdk.socket_mode import aiohttp as socket_mode
    from slack_sdk.socket_mode import async_client, request, response
    from slack_sdk.web import async_client as web
except ModuleNotFoundError:
    raise errors.SettingInvalid(
        f"The support for Slack is not installed. Run: {installation.install_command('slack')}"
    ) from None

logger = logging.getLogger("holdfast.gateway")
# The library logs a failed connection with its address, which contains a ticket. The gateway logs lost connections.
logging.getLogger(socket_mode.__name__).setLevel(logging.CRITICAL)

PATH = "/slack/events"
"""The path of HTTP requests: events, slash commands and buttons."""
MAX_TEXT = 3_000
"""The longest text of a block. An edited message may have 4,000 characters, and a new one 40,000."""
MAX_BODY_BYTES = 1_000_000
REQUEST_SECONDS = int(platform.SEND_SECONDS) + 5
CONNECT_SECONDS = 30.0
NAME_SECONDS = 2.0
MAX_NAMES = 1_000
MAX_MISSED = 3
"""Failed checks of the connection after which a new client is made; the library reconnects before that."""
SEARCH_SECONDS, MAX_SEARCHED = 300.0, 200
"""The limits of the search for an earlier attempt: seconds before its creation, and messages."""
PACE = platform.Pace(total=platform.Rate(200, 60.0), per_chat=platform.Rate(5, 5.0))
_MESSAGE_SUBTYPES = (None, "file_share", "me_message", "thread_broadcast")
_LITERAL: dict[str, Any] = {"parse": "none", "link_names": False}
"""Names of users and channels in a text are not turned into mentions."""
_GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
# The same request may succeed later: Slack has a problem, or the operator corrects the token or its scopes.
_TEMPORARY = frozenset(
    {"ratelimited", "rate_limited", "message_limit_exceeded", "internal_error", "fatal_error", "service_unavailable"}
    | {"request_timeout", "update_failed", "external_channel_migrating", "team_added_to_org", "org_login_required"}
    | {"invalid_auth", "not_authed", "account_inactive", "token_expired", "token_revoked", "missing_scope"}
)

SCOPES = frozenset(
    {"channels:history", "chat:write", "commands", "files:read", "files:write", "groups:history"}
    | {"im:history", "im:write", "mpim:history", "users:read"}
)
"""The scopes of the bot token, as in the manifest of the documentation."""
APPS = "https://api.slack.com/apps"
MANIFEST = "https://github.com/holdfast-agent/holdfast/blob/HEAD/docs/platforms/slack.md"
SETUP = platform.SetupGuide(
    [
        platform.SetupField(
            "bot_token_env", "Bot token (xoxb-...)", "Install the app under Install App.", "SLACK_BOT_TOKEN"
        ),
        platform.SetupField(
            "app_token_env",
            "App-level token (xapp-...)",
            "Create it under Basic Information with the scope connections:write. Leave it empty only if the settings "
            "name a `signing_secret_env`.",
            "SLACK_APP_TOKEN",
            required=False,
        ),
    ],
    intro=f"Open {APPS} and create an app from the manifest at {MANIFEST}.",
    sender="Your member id, such as U012AB3CD: open your Slack profile and choose Copy member ID.",
    sender_pattern=r"[UW][A-Z0-9]+",
    last_step="Write to the app.",
)


class SlackSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[gateway.slack]`. Either `app_token_env` or `signing_secret_env` is required."""

    bot_token_env: str
    """The environment variable with the bot token (`xoxb-…`)."""
    app_token_env: str = ""
    """The environment variable with the app-level token (`xapp-…`), for Socket Mode."""
    signing_secret_env: str = ""
    """The environment variable with the signing secret, for HTTP requests."""
    host: str = "127.0.0.1"
    """The address to listen at for HTTP requests."""
    port: settings.Port = 8644
    """The port to listen at for HTTP requests; 0 takes any free port."""
    max_file_kilobytes: settings.Count = 20_000
    """The largest file that is downloaded, in kilobytes."""
    draft_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.5
    """Seconds between two edits of a reply that is being written."""
    ping_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    """Seconds between two checks of the Socket Mode connection."""
    api_url: str = "https://slack.com/api/"
    """The address of the Web API. Files are downloaded from its host and subdomains only."""


# --- payloads: the fields that are used -----------------------------------------------------------------------


class SlackFile(msgspec.Struct, frozen=True):
    name: str | None = None
    mimetype: str | None = None
    size: int = 0
    url_private_download: str | None = None


class Edited(msgspec.Struct, frozen=True):
    ts: str


class SlackMessage(msgspec.Struct, frozen=True):
    ts: str = ""
    user: str | None = None
    text: str | None = None
    thread_ts: str | None = None
    parent_user_id: str | None = None
    subtype: str | None = None
    bot_id: str | None = None
    edited: Edited | None = None
    files: list[SlackFile] = []

    def key(self, channel: str) -> str:
        """Return the key of this version of the message."""
        return f"{channel}:{self.ts}" + (f":{self.edited.ts}" if self.edited else "")


class SlackEvent(SlackMessage, frozen=True):
    type: str = ""
    channel: str = ""
    deleted_ts: str = ""
    message: SlackMessage | None = None
    previous_message: SlackMessage | None = None


class SlashCommand(msgspec.Struct, frozen=True):
    channel_id: str
    user_id: str
    trigger_id: str
    text: str = ""
    user_name: str = ""


class ObjectId(msgspec.Struct, frozen=True):
    id: str


class ButtonAction(msgspec.Struct, frozen=True):
    action_ts: str
    value: str = ""


class ButtonClick(msgspec.Struct, frozen=True):
    user: ObjectId
    channel: ObjectId
    actions: list[ButtonAction]
    message: SlackMessage = SlackMessage()


# --- the platform ---------------------------------------------------------------------------------------------


class Slack:
    """One Slack app in one workspace."""

    limit, pace, separate_files = MAX_TEXT, PACE, True

    def __init__(self, name: str, wanted: SlackSettings, bot_token: str, app_token: str, secret: str) -> None:
        self.name, self.draft_seconds, self.port = name, wanted.draft_seconds, wanted.port
        self._settings, self._bot_token, self._app_token = wanted, bot_token, app_token
        self._verifier = signature.SignatureVerifier(secret) if secret else None
        # A retry of the library could send a message twice: the outbox repeats failed requests.
        self._web = web.AsyncWebClient(bot_token, wanted.api_url, REQUEST_SECONDS, retry_handlers=[])
        self._bot = ""
        self._names: dict[str, str] = {}
        self._direct_channels: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._active = set[asyncio.Task[Any] | None]()
        self._ready = asyncio.Event()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def run(self, handler: platform.Handler) -> None:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as self._web.session:
            self._bot = (await self._web.auth_test())["user_id"]
            try:
                await (self._listen(handler) if self._verifier else self._connect(handler))
            finally:
                while pending := [task for task in self._active if task]:
                    await asyncio.wait(pending)

    async def check_access(self) -> platform.AccessReport:
        problems, account = list[platform.AccessProblem](), ""
        try:
            found = await self._web.auth_test()
            account = f"{found.get('user')} in {found.get('team')}"
            granted = {each.strip() for each in found.headers.get("x-oauth-scopes", "").split(",")}
            if missing := ", ".join(sorted(SCOPES - granted)):
                remedy = f"Add them under OAuth & Permissions at {APPS}, then reinstall the app."
                problems.append(platform.AccessProblem(f"The bot token lacks the scopes {missing}.", remedy))
            if self._app_token:
                await self._web.apps_connections_open(app_token=self._app_token)
        except slack_errors.SlackApiError as error:
            token = "app-level token (xapp-...)" if account else "bot token (xoxb-...)"
            what = f"Slack refused the {token}: {_error_code(error) or f'status {_status(error)}'}."
            remedy = f"Copy the token again at {APPS}, and check that Socket Mode is enabled."
            return platform.AccessReport("", [*problems, platform.AccessProblem(what, remedy)])
        except (slack_errors.SlackClientError, aiohttp.ClientError, TimeoutError, OSError) as error:
            return platform.unreachable("Slack", error)
        return platform.AccessReport(account, problems)

    async def _connect(self, handler: platform.Handler) -> None:
        """Receive by Socket Mode. The library reconnects; if that does not succeed, ConnectionError is raised."""

        async def on_request(
            client: async_client.AsyncBaseSocketModeClient, envelope: request.SocketModeRequest
        ) -> None:
            try:
                answer = await self._receive(handler, envelope.payload)
            except errors.HoldfastError as error:
                logger.warning("a message of %s is not acknowledged: %s", self.name, error)
            else:
                await client.send_socket_mode_response(response.SocketModeResponse(envelope.envelope_id, answer))

        pause, missed = self._settings.ping_seconds, 0
        client = socket_mode.SocketModeClient(self._app_token, web_client=self._web, ping_interval=pause)
        client.socket_mode_request_listeners.append(on_request)
        try:
            # The library would repeat a failed connection forever, with an address that expires.
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect_to_new_endpoint(force=True)
            self._ready.set()
            while missed < MAX_MISSED:
                await asyncio.sleep(pause)
                missed = 0 if await client.is_connected() else missed + 1
            raise ConnectionError("The connection to Slack was lost.")
        finally:
            await client.close()  # type: ignore[no-untyped-call]

    async def _listen(self, handler: platform.Handler) -> None:
        """Receive by HTTP."""

        async def on_request(incoming: requests.Request) -> responses.Response:
            body = b""
            async for chunk in incoming.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return responses.Response(status_code=413)
            if not self._is_signed(body, incoming):
                return responses.Response(status_code=401)
            payload = _decode(body)
            if payload.get("type") == "url_verification":
                return responses.PlainTextResponse(str(payload.get("challenge")))
            try:
                answer = await self._receive(handler, payload)
            except errors.HoldfastError as error:
                logger.warning("a message of %s is not acknowledged: %s", self.name, error)
                return responses.Response(status_code=503)
            return responses.JSONResponse(answer) if answer else responses.Response()

        app = applications.Starlette(routes=[routing.Route(PATH, on_request, methods=["POST"])])
        listening = socket.create_server((self._settings.host, self._settings.port))
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        async with server.serve(app, listening):
            self._ready.set()
            await asyncio.Event().wait()

    def _is_signed(self, body: bytes, incoming: requests.Request) -> bool:
        assert self._verifier is not None
        try:
            return self._verifier.is_valid_request(body, dict(incoming.headers))
        except (TypeError, ValueError):  # The library does not expect a malformed timestamp, signature or body.
            return False

    # --- inbound ----------------------------------------------------------------------------------------------

    async def _receive(self, handler: platform.Handler, payload: dict[str, Any]) -> dict[str, Any] | None:
        """Store the message of a payload; return the answer to Slack. Raises StoreError if it could not be stored."""
        self._active.add(task := asyncio.current_task())
        payload = surrogates.repair(payload)
        try:
            if payload.get("type") == "event_callback":
                await self._receive_event(handler, msgspec.convert(payload.get("event"), SlackEvent))
            elif payload.get("type") == "block_actions":
                await self._receive_click(handler, msgspec.convert(payload, ButtonClick))
            elif "command" in payload:
                await self._receive_command(handler, msgspec.convert(payload, SlashCommand))
                return {"response_type": "in_channel"}  # Shows the command in the channel, like a message.
        except msgspec.ValidationError as error:
            logger.warning("%s sent a payload that is not understood: %s", self.name, error)
        finally:
            self._active.discard(task)
        return None

    async def _receive_event(self, handler: platform.Handler, event: SlackEvent) -> None:
        if event.type != "message":  # An `app_mention` is a second event of a message, and may lack its files.
            return
        # The library handles events concurrently. The messages of a channel are stored in their order.
        async with self._locks.setdefault(event.channel, asyncio.Lock()):
            changed, before = event.message, event.previous_message or SlackMessage()
            if event.subtype == "message_deleted" or (changed and changed.subtype == "tombstone"):
                ts = event.deleted_ts or (changed.ts if changed else "")
                for version in (SlackMessage(ts), SlackMessage(ts, edited=before.edited)):
                    await handler.delete(self.name, version.key(event.channel))
            elif event.subtype == "message_changed" and changed and changed.edited and changed.text != before.text:
                await self._receive_message(handler, event.channel, changed, edits=before.key(event.channel))
            elif event.subtype in _MESSAGE_SUBTYPES:
                await self._receive_message(handler, event.channel, event)

    async def _receive_message(
        self, handler: platform.Handler, channel: str, message: SlackMessage, edits: str = ""
    ) -> None:
        sender, text = message.user, message.text or ""
        if not sender or sender == self._bot or message.bot_id:
            return
        is_addressed = message.parent_user_id == self._bot or slack_format.has_mention(text, self._bot)
        if not is_addressed and not _is_direct(channel):
            return
        incoming = platform.Incoming(
            platform=self.name,
            key=message.key(channel),
            sender=sender,
            name=await self._find_name(sender),
            text=slack_format.parse(text, self._bot),
            edits=edits,
            **_place(channel, message),
        )
        if message.files:
            complete = partial(self._add_files, incoming, message.files)
            incoming = msgspec.structs.replace(incoming, complete=complete)
        await handler.receive(incoming)

    async def _receive_click(self, handler: platform.Handler, click: ButtonClick) -> None:
        """A click on a choice of a question is a message with the text of the choice."""
        for action in click.actions:
            incoming = platform.Incoming(
                platform=self.name,
                key=f"{click.channel.id}:{action.action_ts}:{click.user.id}",
                sender=click.user.id,
                name=await self._find_name(click.user.id),
                text=action.value,
                **_place(click.channel.id, click.message),
            )
            await handler.receive(incoming)

    async def _receive_command(self, handler: platform.Handler, command: SlashCommand) -> None:
        incoming = platform.Incoming(
            platform=self.name,
            key=f"{command.channel_id}:{command.trigger_id}",
            sender=command.user_id,
            name=command.user_name,
            text=slack_format.parse(command.text, self._bot) or "/help",
            **_place(command.channel_id, SlackMessage()),
        )
        await handler.receive(incoming)

    async def _find_name(self, user: str) -> str:
        """Return the display name of a user; empty if Slack does not return it in time."""
        if user not in self._names:
            try:
                async with asyncio.timeout(NAME_SECONDS):
                    profile = (await self._web.users_info(user=user))["user"]["profile"]
                name = str(profile.get("display_name") or profile.get("real_name") or "")
            except (slack_errors.SlackClientError, aiohttp.ClientError, TimeoutError, KeyError):
                return ""
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            self._names[user] = name
        return self._names[user]

    async def _add_files(self, incoming: platform.Incoming, files: Sequence[SlackFile]) -> platform.Incoming:
        return downloads.add_files(incoming, [await self._download(file) for file in files])

    async def _download(self, file: SlackFile) -> platform.Attachment | str:
        """Return a file of a message, or a note if it is too large, not on a host of Slack, or not available."""
        url, name = file.url_private_download or "", file.name or "file"
        limit = self._settings.max_file_kilobytes * 1_000
        missing, too_large = downloads.not_received(name, "Slack did not deliver it"), downloads.too_large(name, limit)
        if file.size > limit:
            return too_large
        if not self._is_slack_url(url) or self._web.session is None:
            return missing
        headers = {"Authorization": f"Bearer {self._bot_token}"}
        try:
            # A redirect could lead the token to another host.
            async with self._web.session.get(url, headers=headers, allow_redirects=False) as found:
                if found.status != 200:
                    return missing
                content = await downloads.read_body(found, limit)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.warning("%s could not download a file: %s", self.name, type(error).__name__)
            return missing
        if content is None:
            return too_large
        return platform.Attachment(content, file.mimetype or "application/octet-stream", file.name or "")

    def _is_slack_url(self, url: str) -> bool:
        try:
            api, found = parse.urlsplit(self._settings.api_url), parse.urlsplit(url)
            host = found.hostname or ""
            is_known = host == api.hostname or host.endswith(f".{api.hostname}")
            return is_known and (found.scheme, found.port) == (api.scheme, api.port)
        except ValueError:
            return False

    # --- outbound ---------------------------------------------------------------------------------------------

    render, measure = staticmethod(slack_format.render), staticmethod(slack_format.measure)

    async def send_question(self, delivery: platform.Delivery, question: platform.ApprovalQuestion) -> str:
        text = {"type": "mrkdwn", "text": delivery.text, "verbatim": True}
        buttons = [
            {
                "type": "button",
                "action_id": f"choice-{number}",
                "text": {"type": "plain_text", "text": choice.label},
                "value": choice.text,
            }
            for number, choice in enumerate(question.choices)
        ]
        return await self.send(
            delivery, blocks=[{"type": "section", "text": text}, {"type": "actions", "elements": buttons}]
        )

    async def send(self, delivery: platform.Delivery, **content: Any) -> str:
        """Send a message, and return its channel and timestamp."""
        thread = delivery.address.get("thread")
        with _translate_errors():
            channel = await self._find_channel(delivery.address["chat"])
            sent = await self._replace_draft(delivery.draft, delivery.text) if delivery.draft else ""
            if not sent and delivery.attempts > 1:
                sent = await self._find_sent(delivery, channel)
            if not sent and delivery.text:
                posted = await self._web.chat_postMessage(
                    channel=channel,
                    thread_ts=thread,
                    text=delivery.text,
                    unfurl_links=False,  # Slack would fetch every address in the text.
                    unfurl_media=False,
                    metadata=_metadata(delivery),
                    **_LITERAL,
                    **content,
                )
                sent = f"{posted['channel']}:{posted['ts']}"
            for file in delivery.files:
                data = await file.read()
                await self._web.files_upload_v2(channel=channel, thread_ts=thread, filename=file.name, content=data)
        return sent or f"files-{delivery.id}"

    async def _replace_draft(self, draft: str, text: str) -> str:
        """Edit the draft to the final text, and return its id; empty if the text needs a new message."""
        try:
            if text:
                await self._update(draft, text)
                return draft
            channel, _, ts = draft.partition(":")
            await self._web.chat_delete(channel=channel, ts=ts)
        except slack_errors.SlackApiError as error:
            if _error_code(error) not in _GONE:
                raise
        return ""

    async def _find_channel(self, chat: str) -> str:
        """Return the channel of a chat, which is one, or a member: most methods accept channels only."""
        if not chat.startswith(("U", "W")):
            return chat
        if chat not in self._direct_channels:
            self._direct_channels[chat] = (await self._web.conversations_open(users=chat))["channel"]["id"]
        return self._direct_channels[chat]

    async def _find_sent(self, delivery: platform.Delivery, channel: str) -> str:
        """Return the id of the message if an earlier attempt, whose outcome is unknown, sent it; else empty."""
        thread = delivery.address.get("thread")
        options: dict[str, Any] = {"limit": MAX_SEARCHED, "include_all_metadata": True}
        options["oldest"] = f"{delivery.at - SEARCH_SECONDS:.6f}"
        try:
            if thread:
                found = await self._web.conversations_replies(channel=channel, ts=thread, **options)
            else:
                found = await self._web.conversations_history(channel=channel, **options)
        except slack_errors.SlackApiError as error:
            if _error_code(error) == "ratelimited" or _status(error) >= 500:
                raise
            return ""  # Without the permission to read the channel, the message is sent again.
        for each in found.get("messages") or []:
            if each.get("user") == self._bot and each.get("metadata") == _metadata(delivery):
                return f"{channel}:{each['ts']}"
        return ""

    async def edit_draft(self, _: dict[str, Any], draft: str, text: str) -> None:
        with _translate_errors():
            await self._update(draft, text)

    async def delete_draft(self, _: dict[str, Any], draft: str) -> None:
        with _translate_errors():
            await self._replace_draft(draft, "")

    async def _update(self, message: str, text: str) -> None:
        channel, _, ts = message.partition(":")
        await self._web.chat_update(channel=channel, ts=ts, text=text, **_LITERAL)


def create(context: platform.PlatformContext) -> Slack:
    """Return the platform of a settings table. Raises SettingInvalid."""
    wanted = msgspec.convert(dict(context.settings), SlackSettings)
    if bool(wanted.app_token_env) == bool(wanted.signing_secret_env):
        raise errors.SettingInvalid("set either `app_token_env` (Socket Mode) or `signing_secret_env` (HTTP requests).")
    api = parse.urlsplit(wanted.api_url)
    if api.scheme != "https" and api.hostname not in ("127.0.0.1", "localhost"):
        raise errors.SettingInvalid("`api_url` must begin with https://.")
    names = (wanted.bot_token_env, wanted.app_token_env, wanted.signing_secret_env)
    return Slack(context.name, wanted, *(context.secrets.get(name, "").strip() for name in names))


def _is_direct(channel: str) -> bool:
    return channel.startswith("D")


def _place(channel: str, message: SlackMessage) -> dict[str, Any]:
    """Return the fields of an inbound message that name its chat. Only messages for the agent get here."""
    thread = message.thread_ts if message.thread_ts != message.ts else None
    if thread:
        return {"kind": "thread", "chat": (channel, thread), "address": {"chat": channel, "thread": thread}}
    return {"kind": "dm" if _is_direct(channel) else "group", "chat": (channel,), "address": {"chat": channel}}


def _decode(body: bytes) -> dict[str, Any]:
    """Return the payload of a request, which is JSON, a form, or JSON in a form. Empty if it is malformed."""
    try:
        text = body.decode()
        if not text.startswith("{"):
            form = dict(parse.parse_qsl(text))
            if "payload" not in form:
                return form
            text = form["payload"]
        found = json.loads(text)  # msgspec refuses unpaired surrogates, which `_receive` repairs.
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _metadata(delivery: platform.Delivery) -> dict[str, Any]:
    """Return the metadata that identifies a message; the time distinguishes equal ids of different stores."""
    return {"event_type": "holdfast_message", "event_payload": {"id": f"{delivery.id}-{delivery.at:.6f}"}}


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise SendRefused or SendFailed for errors of the library. Their texts never contain a token."""
    try:
        yield
    except slack_errors.SlackApiError as error:
        code = _error_code(error)
        if code and _status(error) < 500 and code not in _TEMPORARY:
            raise errors.SendRefused(f"Slack refused the message: {code}.") from None
        retry_after = platform.parse_retry_after(error.response.headers) if error.response is not None else None
        reason = code or f"status {_status(error)}"
        raise errors.SendFailed(f"Slack did not accept the message: {reason}.", retry_after=retry_after) from None
    except (slack_errors.SlackClientError, aiohttp.ClientError, TimeoutError, OSError) as error:
        raise errors.SendFailed(f"The request to Slack failed: {type(error).__name__}.") from None


def _error_code(error: slack_errors.SlackApiError) -> str:
    """Return the error that Slack names; empty if the response has none, for example if a proxy sent it."""
    data = getattr(error.response, "data", None)
    return str(data.get("error", "")) if isinstance(data, dict) else ""


def _status(error: slack_errors.SlackApiError) -> int:
    # A response that is not JSON is the one of aiohttp.
    found: Any = error.response
    return int(getattr(found, "status_code", 0) or getattr(found, "status", 0))
