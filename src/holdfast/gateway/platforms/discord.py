"""Discord: direct messages, channels and threads, through a bot account and discord.py (extra `discord`).

Discord does not acknowledge single messages: a session that is resumed after a disconnect delivers the missed events
again, and a new session reads the messages that were sent since the newest known one of each chat. Keys deduplicate
both.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from holdfast import errors, installation, safe_text, types
from holdfast.agent import commands
from holdfast.gateway import platform, text_split
from holdfast.gateway.platforms import downloads
from holdfast.store import titles

try:
    import aiohttp
    import discord
    import yarl
    from discord import gateway as discord_gateway
    from discord import http as discord_http
except ModuleNotFoundError as error:
    command = installation.install_command("discord")
    raise errors.SettingInvalid(f"Discord support is not installed. Run: {command}") from error

T = TypeVar("T")
logger = logging.getLogger("holdfast.gateway")
discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # The voice libraries are not used.

API_URL = "https://discord.com/api/v10"
MAX_TEXT = 2_000
NO_HISTORY = 160002
"""The error that a bot without the permission Read Message History cannot refer to a message."""
NOT_EDITABLE = (50083, 30046)
"""Errors of an edit for which a new message is sent: the thread is archived, or an old message was edited too often."""
MAX_COMMANDS, MAX_DESCRIPTION, MAX_LABEL = 100, 100, 80
MAX_RATE_LIMIT = 30.0
"""The longest rate limit in seconds that discord.py waits for; the gateway retries after a longer one."""
MAX_MISSED = 500
"""The newest messages of a chat among which a new session finds those that were missed."""
MAX_READING = 5
"""Chats whose missed messages are read concurrently."""
MAX_REMEMBERED = 1_000
"""Chats and edited messages that a process remembers."""
DOWNLOAD_ATTEMPTS, DOWNLOAD_PAUSE = 3, 0.5
MAX_RETRY_SECONDS = 30.0
"""The longest pause before another attempt to receive a message."""
REFUSED_SECONDS = 900.0
"""The pause after Discord refused the settings of the bot, such as its intents."""
CLOSE_SECONDS = 5.0
"""The time limit of requests after the platform was stopped, in seconds."""
ARGUMENTS = "arguments"
"""The option of a slash command that takes the text after its name."""
NOT_ACCEPTED = "This was not accepted."
NOT_STORED = "This could not be stored. Please try again."
PERMISSIONS = discord.Permissions(
    view_channel=True,
    send_messages=True,
    send_messages_in_threads=True,
    attach_files=True,
    read_message_history=True,
)
_API_URL = re.compile(r"https://[^\s?#]+[^\s?#/]|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/[^\s?#]*[^\s?#/])?")
_COMMAND_NAME = re.compile(r"[-_a-z0-9]{1,32}")
SERVICE_ERRORS = (discord.HTTPException, discord.RateLimited, aiohttp.ClientError, OSError)
PORTAL = "https://discord.com/developers/applications"
SETUP = platform.SetupGuide(
    [platform.SetupField("token_env", "Bot token", "Choose Reset Token on the page Bot.", "DISCORD_TOKEN")],
    intro=f"Open {PORTAL} and create an application.",
    sender="Enable Settings > Advanced > Developer Mode, then right-click your name and choose Copy User ID.",
    sender_pattern=r"[0-9]+",
)


class DiscordSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[gateway.discord]`."""

    token_env: str
    """The environment variable with the token of the bot."""
    free_channels: list[str | int] = []
    """Ids of channels whose messages are all for the agent, threads included; elsewhere it has to be mentioned."""
    message_content: bool = False
    """Whether to request the Message Content Intent, which shows the quoted messages of other people."""
    api_url: str = API_URL
    """The REST API with its version, for example at a proxy. It names the address of the WebSocket gateway."""
    max_download_bytes: Annotated[int, msgspec.Meta(ge=0)] = 20_000_000
    """The largest attachment that is received."""
    max_upload_bytes: Annotated[int, msgspec.Meta(ge=0)] = 10 * 1024 * 1024
    """The largest file that is sent; Discord accepts larger ones in boosted servers."""
    draft_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=60)] = 1.5
    """The interval between two edits of a reply that is being written."""
    link_previews: bool = False
    """Whether Discord fetches the links in replies to show previews."""

    @property
    def needs_content(self) -> bool:
        return self.message_content or bool(self.free_channels)


def create(context: platform.PlatformContext) -> DiscordPlatform:
    """Return the platform of a settings table."""
    settings = msgspec.convert(context.settings, DiscordSettings)
    if not _API_URL.fullmatch(settings.api_url):
        raise errors.SettingInvalid("`api_url` must be an https address, or an http address of this machine.")
    token = context.secrets[settings.token_env].strip()
    if not token or not token.isprintable():
        raise errors.SettingInvalid(f"the environment variable {settings.token_env} does not contain a token.")
    return DiscordPlatform(settings, token)


class Position(NamedTuple):
    """The newest message that was received from a channel."""

    message_id: int
    needs_mention: bool = False
    """Whether the channel was not in `free_channels` then, so that the next messages need a mention."""


class DiscordPlatform:
    """A bot account. discord.py waits for rate limits, sends heartbeats and resumes sessions."""

    name, limit, separate_files = "discord", MAX_TEXT, True
    # Discord accepts 5 new messages and 5 edits in 5 seconds per channel; a streamed reply is one of each.
    pace = platform.Pace(platform.Rate(40, 1.0), platform.Rate(10, 5.0))

    def __init__(self, settings: DiscordSettings, token: str) -> None:
        self._settings, self._token = settings, token
        self._client: discord.Client | None = None
        """The client of `run`, while it is logged in."""
        self._ready = asyncio.Event()
        self._activity = Activity()

    @property
    def draft_seconds(self) -> float:
        return self._settings.draft_seconds

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def run(self, handler: platform.Handler) -> None:
        newest = await handler.newest_messages(self.name)
        async with self._log_in() as client:
            receiver = Receiver(client, handler, self._settings, newest, self._ready, self._activity)
            for each in receiver.listeners:
                client.event(each)
            _, address, _ = await client.http.get_bot_gateway()
            discord_gateway.DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(address)
            self._client = client
            try:
                await client.connect()
            except (discord.PrivilegedIntentsRequired, discord.ConnectionClosed) as error:
                # Discord resets the token of a bot that connects more than 1,000 times a day.
                self._client = None  # It is closed; replies are sent by another one meanwhile.
                logger.error("discord will connect again in %.0f minutes: %s", REFUSED_SECONDS / 60, error)
                await asyncio.sleep(REFUSED_SECONDS)
                raise
            finally:
                self._client = None
                await self._activity.wait_idle(CLOSE_SECONDS)

    @asynccontextmanager
    async def _log_in(self) -> AsyncIterator[discord.Client]:
        # discord.py has no other way to set the address. A process has one platform of this name.
        discord_http.Route.BASE = self._settings.api_url
        intents = discord.Intents(guilds=True, guild_messages=True, dm_messages=True)
        # Without this privileged intent, Discord sends the content of direct messages and mentions only.
        intents.message_content = self._settings.needs_content
        async with discord.Client(
            intents=intents,
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            max_ratelimit_timeout=MAX_RATE_LIMIT,
            allowed_mentions=discord.AllowedMentions.none(),
        ) as client:
            await client.login(self._token)
            yield client

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[discord.Client]:
        """Yield the client for a request: that of `run`, or another one before and after it. Translates errors."""
        with translate_errors():
            if (client := self._client) is not None:
                with self._activity.track():
                    try:
                        yield client
                    except asyncio.CancelledError:
                        # If this request waited for a global rate limit, discord.py would block all others forever.
                        client.http._global_over.set()
                        raise
            else:
                async with self._log_in() as client:
                    yield client

    async def check_access(self) -> platform.AccessReport:
        problems = list[platform.AccessProblem]()
        try:
            async with self._log_in() as client:
                assert client.user is not None  # Set by the login, like the id and the flags.
                assert client.application_id is not None
                flags, account = client.application_flags, str(client.user)
                has_server = bool([each async for each in client.fetch_guilds(limit=1)])
                link = discord.utils.oauth_url(
                    client.application_id, permissions=PERMISSIONS, scopes=("bot", "applications.commands")
                )
        except discord.LoginFailure:
            return platform.failed_access("Discord refused the token.", f"Reset the token of the bot at {PORTAL}.")
        except (discord.DiscordException, aiohttp.ClientError, OSError) as error:
            return platform.unreachable("Discord", error)
        if not has_server:
            what = "The bot is not in any server, so it cannot receive direct messages."
            problems.append(platform.AccessProblem(what, f"Add it to a server that you share with it: {link}"))
        if self._settings.needs_content and not (
            flags.gateway_message_content or flags.gateway_message_content_limited
        ):
            what = "The settings require the Message Content Intent, which is not enabled."
            problems.append(platform.AccessProblem(what, f"Enable it on the page Bot at {PORTAL}."))
        return platform.AccessReport(account, problems)

    # --- sending

    async def send(self, delivery: platform.Delivery) -> str:
        return await self._send(delivery)

    async def send_question(self, delivery: platform.Delivery, question: platform.ApprovalQuestion) -> str:
        view = discord.ui.View(timeout=None)
        asker, last = str(delivery.address.get("sender", "")), len(question.choices) - 1
        for number, choice in enumerate(question.choices):
            style = discord.ButtonStyle.danger if number == last else discord.ButtonStyle.secondary
            view.add_item(
                discord.ui.Button(style=style, label=choice.label[:MAX_LABEL], custom_id=f"{asker}:{choice.text}")
            )
        view.stop()  # Else discord.py keeps every view in memory: presses are handled by their ids alone.
        return await self._send(msgspec.structs.replace(delivery, draft=None), view)

    async def _send(self, delivery: platform.Delivery, view: discord.ui.View | None = None) -> str:
        """Replace the draft, or send a message if there is none or it was deleted."""
        text, limit = delivery.text or None, self._settings.max_upload_bytes
        if any(each.size > limit for each in delivery.files):
            raise errors.SendRefused(f"Discord accepts at most {safe_text.size(limit)} per file.")
        async with self._request() as client:
            channel = await find_channel(client, delivery.address)
            if delivery.draft is not None:
                draft = channel.get_partial_message(int(delivery.draft))
                try:
                    return str((await draft.edit(content=text, attachments=await read_files(delivery.files))).id)
                except discord.HTTPException as error:
                    if error.status != 404 and error.code not in NOT_EDITABLE:
                        raise
            options: dict[str, Any] = {"view": view} if view is not None else {}
            options |= {"nonce": nonce(delivery), "suppress_embeds": not self._settings.link_previews}
            options["reference"] = reference_of(delivery, channel.id)
            try:
                sent = await channel.send(text, files=await read_files(delivery.files), **options)
            except discord.HTTPException as error:
                if error.code != NO_HISTORY:
                    raise
                sent = await channel.send(
                    text, files=await read_files(delivery.files), **{**options, "reference": None}
                )
            return str(sent.id)

    async def send_typing(self, address: dict[str, Any]) -> None:
        async with self._request() as client:
            await (await find_channel(client, address)).typing()

    async def edit_draft(self, address: dict[str, Any], draft: str, text: str) -> None:
        async with self._request() as client:
            await (await find_channel(client, address)).get_partial_message(int(draft)).edit(content=text)

    async def delete_draft(self, address: dict[str, Any], draft: str) -> None:
        async with self._request() as client:
            with suppress(discord.NotFound):
                await (await find_channel(client, address)).get_partial_message(int(draft)).delete()

    def render(self, text: str) -> str:
        return text

    def measure(self, text: str) -> int:
        """Return the length in UTF-16 units, which is never less than what Discord counts."""
        return text_split.utf16_length(text)

    async def show_commands(self, listed: Sequence[commands.CommandInfo]) -> None:
        """Replace the slash commands of the bot, in all servers and direct messages."""
        async with self._request() as client:
            assert client.application_id is not None  # Set by the login.
            await client.http.bulk_upsert_global_commands(client.application_id, build_commands(listed))


class Activity:
    """Counts the operations that use a connection, so that it is closed after them."""

    def __init__(self) -> None:
        self._count, self._idle = 0, asyncio.Event()

    @contextmanager
    def track(self) -> Iterator[None]:
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()

    async def wait_idle(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._count:
                    await self._idle.wait()


class Receiver:
    """Translates the events of one connection into inbound messages. The events of a channel are handled in order."""

    def __init__(
        self,
        client: discord.Client,
        handler: platform.Handler,
        settings: DiscordSettings,
        newest: Sequence[types.InboundMessage],
        ready: asyncio.Event,
        activity: Activity,
    ) -> None:
        self._client, self._handler, self._settings = client, handler, settings
        self._ready, self._activity = ready, activity
        self._positions = {
            int(each.address["channel"]): Position(int(each.key), not each.address.get("free")) for each in newest
        }
        self._unread: dict[int, Position] = {}
        """The positions of the channels whose missed messages were not read yet in this session."""
        self._free = frozenset(map(str, settings.free_channels))
        self._locks = WeakValueDictionary[int, asyncio.Lock]()
        self._reading = asyncio.Semaphore(MAX_READING)
        self._edits: dict[str, str] = {}
        """The key of the last edit of a message, by the key of the message."""

    @property
    def listeners(self) -> tuple[Any, ...]:
        """The coroutine functions to register; discord.py finds the event by the name."""
        edits = (self.on_raw_message_edit, self.on_raw_message_delete, self.on_raw_bulk_message_delete)
        return (self.on_connect, self.on_message, self.on_interaction, *edits)

    async def on_connect(self) -> None:
        """A new session began: read the messages that were sent before it, in each channel ahead of its events."""

        async def read(channel_id: int) -> None:
            async with self._in_order(channel_id):
                pass

        self._unread = dict(self._positions)
        self._ready.set()
        await asyncio.gather(*map(read, self._positions))

    async def _read_missed(self, channel_id: int, position: Position) -> None:
        async def read() -> None:
            channel = cast("discord.TextChannel", await self._client.fetch_channel(channel_id))
            missed = list[discord.Message]()
            async for message in channel.history(limit=MAX_MISSED + 1):
                if message.id <= position.message_id:
                    break
                if len(missed) == MAX_MISSED:
                    text = "discord: reads only the newest %d missed messages of channel %d"
                    logger.warning(text, MAX_MISSED, channel_id)
                    break
                missed.append(message)
            for message in reversed(missed):
                if message.guild is None or not position.needs_mention or self._is_mentioned(message):
                    # The message may have been stored by this key alone, if an edit added its mention.
                    await (self._receive if message.edited_at is None else self._receive_edit)(message)

        try:
            async with self._reading:
                await self._retry(read, f"after {position.message_id}")
        except discord.DiscordException as error:
            logger.warning("discord: could not read the missed messages of channel %d: %s", channel_id, error)

    async def on_message(self, message: discord.Message) -> None:
        async with self._in_order(message.channel.id):
            if str(message.id) not in self._edits:  # Else it was read with the missed messages, already edited.
                await self._receive(message)

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        # Discord also reports previews, pins and the like, without a time of the edit.
        if payload.message.edited_at is not None:
            async with self._in_order(payload.channel_id):
                await self._receive_edit(payload.message)

    async def on_raw_message_delete(self, payload: discord.RawMessageDeleteEvent) -> None:
        await self._delete(payload.channel_id, payload.message_id)

    async def on_raw_bulk_message_delete(self, payload: discord.RawBulkMessageDeleteEvent) -> None:
        for message_id in payload.message_ids:
            await self._delete(payload.channel_id, message_id)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        """A slash command or a pressed button is a message; it is acknowledged once it is stored."""
        asker, line = interaction_text(interaction)
        if not line or interaction.channel is None:
            return
        # Discord waits 3 seconds, so an interaction does not wait for earlier messages of its channel.
        with self._activity.track():
            incoming = await self._incoming(
                interaction.channel, interaction.user, f"interaction:{interaction.id}", line
            )
            # In a server, the reason of a refusal is shown to the user only.
            receive = self._handler.receive if incoming.kind == "dm" else self._handler.submit
            try:
                found = await receive(incoming)
                refusal = found.message if isinstance(found, platform.AdmissionResult) else ""
                answer = "" if isinstance(found, types.InboundMessage) else refusal or NOT_ACCEPTED
            except errors.InvalidArgument:
                answer = NOT_ACCEPTED
            except errors.StoreError as error:
                logger.warning("discord: could not store an interaction: %s", error)
                answer = NOT_STORED
        is_button = interaction.type is discord.InteractionType.component
        try:
            if answer or not is_button:
                await interaction.response.send_message((answer or line)[:MAX_TEXT], ephemeral=True)
            elif asker == incoming.sender:
                await interaction.response.edit_message(view=None)
            else:
                await interaction.response.defer()
        except (discord.DiscordException, aiohttp.ClientError, OSError) as error:
            # Another process of the same bot may have acknowledged it first.
            logger.debug("discord: could not acknowledge an interaction: %s", error)

    @asynccontextmanager
    async def _in_order(self, channel_id: int) -> AsyncIterator[None]:
        with self._activity.track():
            # discord.py starts one task per event, in order, and a lock is acquired in the order of the attempts.
            async with self._locks.setdefault(channel_id, asyncio.Lock()):
                if (position := self._unread.pop(channel_id, None)) is not None:
                    await self._read_missed(channel_id, position)
                yield

    async def _receive_edit(self, message: discord.Message) -> None:
        assert message.edited_at is not None
        original = str(message.id)
        edits = self._edits.get(original, original)
        if edits != (key := f"{original}:{message.edited_at.timestamp():.6f}"):
            await self._receive(message, key=key, edits=edits)

    async def _receive(self, message: discord.Message, key: str = "", edits: str = "") -> None:
        kinds = (discord.MessageType.default, discord.MessageType.reply)
        if message.author.bot or message.webhook_id is not None or message.type not in kinds:
            return
        await self._store(message, key, edits)
        if not edits:  # Afterwards: a session reads the messages that the previous one did not store.
            remember(self._positions, message.channel.id, Position(message.id))

    async def _store(self, message: discord.Message, key: str, edits: str) -> None:
        incoming = await self._incoming(message.channel, message.author, key or str(message.id), message.content)
        incoming = self._address_text(incoming, message)
        if not incoming.mentioned:
            return
        if edits:
            remember(self._edits, str(message.id), incoming.key)
        incoming = msgspec.structs.replace(incoming, reply_to=quote_of(message), edits=edits)
        if message.guild is not None:
            incoming = msgspec.structs.replace(incoming, address={**incoming.address, "reply_to": str(message.id)})
        if message.attachments:
            sizes = [each.size for each in message.attachments if each.size <= self._settings.max_download_bytes]
            complete = partial(self._add_files, incoming, message.attachments)
            incoming = msgspec.structs.replace(incoming, complete=complete, stated_bytes=sum(sizes))
        await self._retry(partial(self._handler.receive, incoming), incoming.key)

    async def _incoming(self, channel: Any, author: discord.abc.User, key: str, text: str) -> platform.Incoming:
        kind, chat = await self._chat(channel, author, key)
        return platform.Incoming(
            platform=DiscordPlatform.name,
            key=key,
            kind=kind,
            chat=chat,
            sender=str(author.id),
            name=author.display_name,
            text=text,
            address={"channel": str(channel.id), "sender": str(author.id), "free": not self._free.isdisjoint(chat)},
        )

    async def _chat(
        self, channel: Any, author: discord.abc.User, key: str
    ) -> tuple[platform.ChatKind, tuple[str, ...]]:
        if guild_id_of(channel) is None:
            return "dm", (str(author.id),)
        if isinstance(channel, discord.PartialMessageable):
            channel = await self._retry(partial(self._client.fetch_channel, channel.id), key)
        if isinstance(channel, discord.Thread):
            return "thread", (str(channel.parent_id), str(channel.id))
        return "group", (str(channel.id),)

    def _address_text(self, incoming: platform.Incoming, message: discord.Message) -> platform.Incoming:
        """Decide whether the agent is addressed, and remove its mention from the text."""
        is_addressed = incoming.kind == "dm" or incoming.address["free"] or self._is_mentioned(message)
        text = re.sub(rf"<@!?{self._own_id}>", "", incoming.text).strip()
        return msgspec.structs.replace(incoming, text=text, mentioned=is_addressed)

    @property
    def _own_id(self) -> int:
        assert self._client.user is not None  # Set by the login.
        return self._client.user.id

    def _is_mentioned(self, message: discord.Message) -> bool:
        return any(each.id == self._own_id for each in message.mentions)

    async def _add_files(
        self, incoming: platform.Incoming, attachments: Sequence[discord.Attachment]
    ) -> platform.Incoming:
        return downloads.add_files(incoming, [await self._download(each) for each in attachments])

    async def _download(self, file: discord.Attachment) -> platform.Attachment | str:
        """Return a file, or a note about it."""
        limit, data = self._settings.max_download_bytes, None
        for attempt in range(DOWNLOAD_ATTEMPTS):
            await asyncio.sleep(DOWNLOAD_PAUSE if attempt else 0)
            try:
                if file.size <= limit:
                    async with aiohttp.request("GET", file.url, raise_for_status=True) as response:
                        data = await downloads.read_body(response, limit)
                if data is None:
                    return downloads.too_large(file.filename, limit)
                return platform.Attachment(data, file.content_type or "", file.filename)
            except (aiohttp.ClientError, OSError) as error:
                # Without the address, which is signed.
                logger.warning("discord: could not download a file: %s", type(error).__name__)
        return downloads.not_received(file.filename, "Discord did not deliver it")

    async def _retry(self, operation: Callable[[], Awaitable[T]], key: object) -> T:
        """Repeat an operation while it fails temporarily: Discord does not deliver the message again."""
        for attempt in itertools.count():
            try:
                return await operation()
            except (errors.StoreError, *SERVICE_ERRORS) as error:
                if self._client.is_closed() or not is_temporary(error):
                    raise
                logger.warning("discord: will retry to receive message %s: %s", key, error)
                await asyncio.sleep(min(0.1 * 2 ** min(attempt, 20), MAX_RETRY_SECONDS))
        raise AssertionError  # The loop has no end.

    async def _delete(self, channel_id: int, message_id: int) -> None:
        async with self._in_order(channel_id):
            key = str(message_id)
            for each in filter(None, (key, self._edits.pop(key, None))):
                await self._retry(partial(self._handler.delete, DiscordPlatform.name, each), each)


# --- translation of values, without state


def remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Set the newest entry of a dictionary, and drop the oldest one if there are too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]


def guild_id_of(channel: Any) -> int | None:
    """Return the server of a channel; None for a direct message."""
    if isinstance(channel, discord.PartialMessageable):
        return channel.guild_id
    guild = getattr(channel, "guild", None)
    return None if guild is None else int(guild.id)


def quote_of(message: discord.Message) -> platform.Quote | None:
    reference = message.reference
    if reference is None or reference.message_id is None or message.type is not discord.MessageType.reply:
        return None
    quoted = reference.resolved
    if not isinstance(quoted, discord.Message):
        return platform.Quote(str(reference.message_id))
    name = titles.normalize(quoted.author.display_name)
    return platform.Quote(str(reference.message_id), quoted.content, name)


def interaction_text(interaction: discord.Interaction) -> tuple[str, str]:
    """Return whom a button was shown to, and the command of a button or slash command; empty if it is neither."""
    data = cast("dict[str, Any]", interaction.data or {})
    if interaction.type is discord.InteractionType.component:
        asker, _, line = str(data.get("custom_id", "")).partition(":")
        return asker, line if line.startswith("/") else ""
    if interaction.type is discord.InteractionType.application_command and data.get("type") == 1:
        given = [str(each.get("value", "")) for each in data.get("options", []) if each.get("name") == ARGUMENTS]
        return "", " ".join([f"/{data['name']}", *given])
    return "", ""


def build_commands(listed: Sequence[commands.CommandInfo]) -> list[dict[str, Any]]:
    """Return Discord's application commands of the commands that it can show."""
    return [
        {
            "type": 1,
            "name": each.name,
            "description": each.help[:MAX_DESCRIPTION] or each.name,
            "options": [
                {"type": 3, "name": ARGUMENTS, "description": each.argument[:MAX_DESCRIPTION], "required": False}
            ]
            if each.argument
            else [],
        }
        for each in listed
        if _COMMAND_NAME.fullmatch(each.name)
    ][:MAX_COMMANDS]


def reference_of(delivery: platform.Delivery, channel_id: int) -> discord.MessageReference | None:
    """Return the message that a delivery replies to, in a server."""
    if "reply_to" not in delivery.address or delivery.part:
        return None
    answered = int(delivery.address["reply_to"])
    return discord.MessageReference(message_id=answered, channel_id=channel_id, fail_if_not_exists=False)


def nonce(delivery: platform.Delivery) -> str:
    """Return the id by which Discord recognises a repeated send. Its length is limited to 25 characters."""
    identity = f"{delivery.id}:{delivery.at}:{delivery.chat}"
    return blake2b(identity.encode(), digest_size=12).hexdigest()


async def read_files(files: Sequence[platform.OutgoingFile]) -> list[discord.File]:
    return [discord.File(io.BytesIO(await each.read()), each.name) for each in files]


async def find_channel(client: discord.Client, address: dict[str, Any]) -> discord.PartialMessageable:
    """Return the channel of an address: that of a message, or the user or channel that a webhook names as `chat`."""
    if "channel" in address:
        return client.get_partial_messageable(int(address["channel"]))
    chat = str(address.get("chat", ""))
    if not chat.isdecimal():
        raise errors.SendRefused(f"{errors.quote(chat)} is not the id of a user or channel.")
    try:
        return client.get_partial_messageable((await client.create_dm(discord.Object(int(chat)))).id)
    except discord.HTTPException as error:
        if error.status not in (400, 403, 404):
            raise
    return client.get_partial_messageable(int(chat))


def is_temporary(error: Exception) -> bool:
    return not isinstance(error, discord.HTTPException) or error.status in (408, 429) or error.status >= 500


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise SendRefused for a final error of Discord, and SendFailed for a temporary one."""
    try:
        yield
    except discord.RateLimited as error:
        raise errors.SendFailed("Discord's rate limit is reached.", retry_after=error.retry_after) from error
    except discord.HTTPException as error:
        if is_temporary(error) or error.status == 401:  # The token may be replaced.
            wait = platform.parse_retry_after(error.response.headers)
            raise errors.SendFailed(f"Discord: {error}", retry_after=wait) from error
        raise errors.SendRefused(f"Discord: {error}") from error
    except (discord.DiscordException, aiohttp.ClientError, OSError) as error:
        raise errors.SendFailed(f"Discord: {type(error).__name__}: {error}") from error
