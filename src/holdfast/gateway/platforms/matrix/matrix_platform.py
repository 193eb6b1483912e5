"""The Matrix platform: a sync loop that receives events, and requests that send messages.

The position of the sync loop is stored in the account data of the bot, after the events up to it are stored here. So a
crash leads to repeated events, which their ids identify, and never to lost ones; several gateways share the position.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any
from urllib import parse

import aiohttp
import msgspec
import nio  # type: ignore[import-untyped]

from holdfast import errors
from holdfast.gateway import platform
from holdfast.gateway.platforms import downloads
from holdfast.gateway.platforms.matrix import matrix_events

logger = logging.getLogger("holdfast.gateway")

LIMIT = 16_000
SYNC_SECONDS, DOWNLOAD_SECONDS, TYPING_SECONDS = 30, 60.0, 6
FIRST_SYNC_SECONDS = 300.0
"""The time limit of a request for the state of all rooms, which has none in the library."""
MAX_FAILURES = 5
"""The failed requests for an event after which it is treated as invisible, because later events wait for it."""
JOIN_PAUSES, MAX_JOIN_PAUSE = (1.0, 2.0, 4.0), 10.0
"""Seconds between the attempts to join a room."""
MAX_BUSY_ROOMS = 5
"""Rooms whose events are received concurrently."""
POSITION = "io.github.holdfast-agent.sync"
"""The type of the account data with the position of the sync loop."""
ENCRYPTED = "I cannot read encrypted messages. Please invite me to a room without encryption."
UPGRADED = "%s: the room %s was replaced by %s. Invite the bot there, and continue the conversation with /resume."
_TYPES = ["m.room.message", "m.room.encrypted", "m.reaction", "m.room.redaction", "m.room.member", "m.room.tombstone"]
_NOTHING = {"not_types": ["*"]}
_EVENT_ID = re.compile(r"\$[!-~]{1,254}")
_MXC = re.compile(r"mxc://([\w\[][\w.:\[\]-]*)/([\w-]+)")


class MatrixPlatform:
    """A bot account on a homeserver."""

    separate_files = True

    def __init__(
        self,
        name: str,
        token: str,
        *,
        homeserver: str,
        invites: Sequence[str] = (),
        draft_seconds: float = 5.0,
        max_file_bytes: int = 20_000_000,
        page_size: int = 100,
    ) -> None:
        """`page_size` is how many events of a room are read at once."""
        self._name, self._token, self._homeserver = name, token, homeserver
        self._invites, self._draft_seconds, self._max_file_bytes = invites, draft_seconds, max_file_bytes
        self._page_size = page_size
        self._client: nio.AsyncClient | None = None
        self._ready, self._busy_rooms = asyncio.Event(), asyncio.Semaphore(MAX_BUSY_ROOMS)
        self._names: tuple[str, ...] = ()
        """The id of the bot, its local part and the display name."""
        self._encrypted = set[str]()
        """Encrypted rooms whose members were notified."""
        self._failures = Counter[str]()
        """Failed requests by event."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def limit(self) -> int:
        return LIMIT

    @property
    def draft_seconds(self) -> float:
        return self._draft_seconds

    def render(self, text: str) -> str:
        return text  # A message has the Markdown text and HTML, which `send` adds.

    def measure(self, text: str) -> int:
        """Return the length in bytes of JSON, because the size of an event is limited."""
        return len(msgspec.json.encode(text))

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def check_access(self) -> platform.AccessReport:
        try:
            async with self._open_client() as client:
                return platform.AccessReport(client.user_id)
        except (errors.SendFailed, errors.SendRefused) as error:
            is_token = "M_UNKNOWN_TOKEN" in str(error)
            return platform.failed_access(
                str(error), "Get a new access token." if is_token else "Check the network and `homeserver`."
            )

    # --- receive ---------------------------------------------------------------------------------------------

    async def run(self, handler: platform.Handler) -> None:
        async with self._open_client() as client:
            self._client = client
            try:
                await self._sync(client, handler)
            finally:
                self._client = None

    @asynccontextmanager
    async def _open_client(self) -> AsyncIterator[nio.AsyncClient]:
        config = nio.AsyncClientConfig(max_limit_exceeded=0, max_timeouts=0)
        client = nio.AsyncClient(self._homeserver, config=config)
        client.access_token = self._token
        try:
            with _translate_errors():
                client.user_id = _check(await client.whoami()).user_id
            yield client
        finally:
            await client.close()

    async def _sync(self, client: nio.AsyncClient, handler: platform.Handler) -> None:
        """Receive events until cancelled; the first request reads the state of all rooms."""
        profile = await client.get_displayname(client.user_id)
        own_name = getattr(profile, "displayname", None) or ""
        self._names = (client.user_id, client.user_id[1:].partition(":")[0], own_name)
        since, is_first, has_news = await self._load_position(client), True, False
        wanted, joining = _sync_filter(self._page_size), set[asyncio.Task[None]]()
        try:
            while True:
                wait = 0 if is_first else SYNC_SECONDS * 1_000
                async with asyncio.timeout(FIRST_SYNC_SECONDS if is_first else None):
                    found = _check(await client.sync(wait, sync_filter=wanted, since=since, full_state=is_first))
                for room_id, invite in found.rooms.invite.items():
                    joining.add(asyncio.create_task(self._accept_invite(client, room_id, invite.invite_state)))
                has_news = has_news or since is None or bool(found.rooms.invite)
                # Without a position the account is used for the first time, so all messages are history.
                rooms = found.rooms.join.items() if since else ()
                received = [self._receive_room(client, handler, room, joined, since) for room, joined in rooms]
                for result in await asyncio.gather(*received, return_exceptions=True):
                    if isinstance(result, BaseException):
                        raise result
                    has_news = has_news or result
                # Invitations are received once, so the position is stored after the rooms were joined.
                for task in [each for each in joining if each.done()]:
                    task.result()
                    joining.remove(task)
                if has_news and not joining:
                    await self._store_position(client, found.next_batch)
                    has_news = False
                since, is_first = found.next_batch, False
                self._ready.set()
        finally:
            for task in joining:
                task.cancel()

    async def _receive_room(
        self, client: nio.AsyncClient, handler: platform.Handler, room_id: str, joined: Any, since: str | None
    ) -> bool:
        """Receive the new events of a room, in order; return whether others sent any."""
        async with self._busy_rooms:
            events = await self._new_events(client, room_id, joined.timeline, since)
            others = [each for each in events if each.get("sender") != client.user_id]
            for source in others:
                await self._receive(client, handler, client.rooms[room_id], source)
        return bool(others)

    async def _load_position(self, client: nio.AsyncClient) -> str | None:
        async with await client.send("GET", _position_path(client), headers=self._headers) as response:
            if response.status == 404:
                return None
            response.raise_for_status()
            since: str = (await response.json())["since"]
            return since

    async def _store_position(self, client: nio.AsyncClient, since: str) -> None:
        data = msgspec.json.encode({"since": since})
        async with await client.send("PUT", _position_path(client), data, self._headers) as response:
            response.raise_for_status()

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}

    async def _accept_invite(self, client: nio.AsyncClient, room_id: str, state: Sequence[Any]) -> None:
        """Join a room, unless the inviter is not listed. A failure is retried."""
        invitations = [
            each for each in state if isinstance(each, nio.InviteMemberEvent) and each.state_key == client.user_id
        ]
        # The homeserver checked the sender of the last one; the server of the inviter sent the others.
        sender = invitations[-1].sender if invitations else ""
        if not {sender, f"*:{sender.partition(':')[2]}", "*"} & set(self._invites):
            logger.info("%s ignores the invitation of %s", self.name, errors.quote(sender))
            return
        for pause in (*JOIN_PAUSES, None):
            try:
                with _translate_errors():
                    _check(await client.join(room_id))
                return
            except (errors.SendRefused, errors.SendFailed) as error:
                logger.warning("%s could not join a room: %s", self.name, error)
                if pause is None or isinstance(error, errors.SendRefused):
                    return
                await asyncio.sleep(min(error.retry_after or pause, MAX_JOIN_PAUSE))

    async def _new_events(self, client: nio.AsyncClient, room_id: str, timeline: Any, since: str | None) -> list[Any]:
        """Return the events after a position and after the bot joined, also if the response has only the last ones."""
        found = [each.source for each in timeline.events]
        start = timeline.prev_batch if timeline.limited else None
        while start is not None and not any(matrix_events.is_own_join(each, client.user_id) for each in found):
            page = await client.room_messages(
                room_id, start, since, limit=self._page_size, message_filter={"types": _TYPES}
            )
            try:
                _check(page)
            except errors.SendRefused as error:
                logger.warning("%s cannot read earlier messages of a room: %s", self.name, error)
                break
            found = [*reversed([each.source for each in page.chunk]), *found]
            start = page.end  # A page may be empty although there are further ones.
        joins = [index for index, each in enumerate(found) if matrix_events.is_own_join(each, client.user_id)]
        return found[joins[-1] + 1 :] if joins else found

    async def _receive(
        self, client: nio.AsyncClient, handler: platform.Handler, room: nio.MatrixRoom, source: dict[str, Any]
    ) -> None:
        """Pass an event to the gateway. An error leaves the position unchanged, so the event is received again."""
        event, incoming = matrix_events.parse_event(source), None
        if event is None:
            return
        match event.type:
            case "m.room.redaction":
                await handler.delete(self.name, event.redacts or event.content.redacts)
            case "m.room.message" if event.content.msgtype != "m.notice":  # Messages of bots, by convention.
                incoming = await self._read_message(client, room, event)
            case "m.reaction":
                incoming = await self._read_reaction(client, room, event)
            case "m.room.tombstone":
                room_ids = (errors.quote(room.room_id), errors.quote(event.content.replacement_room))
                logger.warning(UPGRADED, self.name, *room_ids)
            case "m.room.encrypted" if room.room_id not in self._encrypted:
                self._encrypted.add(room.room_id)
                logger.warning("%s cannot read the encrypted room %s", self.name, errors.quote(room.room_id))
                content = matrix_events.text_content(ENCRYPTED, "m.notice")
                await client.room_send(room.room_id, "m.room.message", content)
        if incoming is not None:
            await handler.receive(incoming)

    async def _read_message(
        self, client: nio.AsyncClient, room: nio.MatrixRoom, event: matrix_events.RoomEvent
    ) -> platform.Incoming | None:
        content, thread, edits = event.content, event.content.thread, ""
        if content.relation.rel_type == "m.replace":
            edits = content.relation.event_id
            if content.new is None:
                return None
            content = content.new
        is_for_bot = room.member_count <= 2 or matrix_events.is_mentioned(content, client.user_id)
        text = matrix_events.strip_mention(content.text, self._names)
        number = matrix_events.chosen_number(text) if content.replied_to else None
        if not is_for_bot and number is None:
            return None
        if edits:
            original = await self._find_event(client, room.room_id, edits)
            if original is None or original.sender != event.sender:
                return None  # Only the sender may edit a message; homeservers do not check that.
            thread = original.content.thread
        quoted = await self._find_event(client, room.room_id, content.replied_to) if content.replied_to else None
        choice = matrix_events.chosen_text(quoted, number, client.user_id)
        if not is_for_bot and choice is None:
            return None
        incoming = msgspec.structs.replace(
            self._incoming(room, event, thread),
            text=choice or text,
            edits=edits,
            reply_to=_quote(content.replied_to, quoted, room) if content.replied_to and choice is None else None,
        )
        if content.url is None:
            return incoming
        return msgspec.structs.replace(incoming, complete=partial(self._add_file, client, incoming, content))

    async def _read_reaction(
        self, client: nio.AsyncClient, room: nio.MatrixRoom, event: matrix_events.RoomEvent
    ) -> platform.Incoming | None:
        """Return the answer to a question that a reaction chooses."""
        relation = event.content.relation
        number = matrix_events.chosen_number(relation.key)
        question = await self._find_event(client, room.room_id, relation.event_id) if number is not None else None
        choice = matrix_events.chosen_text(question, number, client.user_id)
        if question is None or choice is None:
            return None
        return msgspec.structs.replace(self._incoming(room, event, question.content.thread), text=choice)

    async def _find_event(self, client: nio.AsyncClient, room_id: str, event_id: str) -> matrix_events.RoomEvent | None:
        """Return an event that another one refers to; None if the bot cannot see it, or after repeated errors."""
        try:
            return await _fetch(client, room_id, event_id)
        except errors.SendFailed as error:
            self._failures[event_id] += 1
            if error.retry_after is not None or self._failures[event_id] < MAX_FAILURES:
                raise
            del self._failures[event_id]
            logger.warning("%s ignores the event %s: %s", self.name, errors.quote(event_id), error)
            return None

    def _incoming(self, room: nio.MatrixRoom, event: matrix_events.RoomEvent, thread: str) -> platform.Incoming:
        kind: platform.ChatKind = "thread" if thread else "dm" if room.member_count <= 2 else "group"
        return platform.Incoming(
            platform=self.name,
            key=event.event_id,
            kind=kind,
            chat=(room.room_id, thread) if thread else (room.room_id,),
            sender=event.sender,
            name=_display_name(room, event.sender),
            address={"chat": room.room_id, "event": event.event_id, **({"thread": thread} if thread else {})},
        )

    async def _add_file(
        self, client: nio.AsyncClient, incoming: platform.Incoming, content: matrix_events.Content
    ) -> platform.Incoming:
        """Add the file of a message, or a note why it is missing: an unavailable file must not stop the loop."""
        name, limit = content.filename or content.body, self._max_file_bytes
        found: platform.Attachment | str = downloads.too_large(name, limit)
        try:
            if content.info.size <= limit:
                async with asyncio.timeout(DOWNLOAD_SECONDS), await self._get_media(client, content.url) as response:
                    response.raise_for_status()
                    if (data := await downloads.read_body(response, limit)) is not None:
                        found = platform.Attachment(data, content.info.mimetype, name)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            found = downloads.not_received(name, "it is unavailable")
        return downloads.add_files(incoming, [found])

    async def _get_media(self, client: nio.AsyncClient, url: str | None) -> aiohttp.ClientResponse:
        """Request a file. The method `download` of the library has no limit of the size."""
        if (found := _MXC.fullmatch(url or "")) is None:
            raise ValueError("The address of the file is not valid.")
        path = f"/_matrix/client/v1/media/download/{found[1]}/{found[2]}"
        response: aiohttp.ClientResponse = await client.send("GET", path, headers=self._headers)
        return response

    # --- send ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[nio.AsyncClient]:
        """Yield the client of the sync loop, or another one while the gateway stops."""
        with _translate_errors():
            if self._client is not None:
                yield self._client
                return
            async with self._open_client() as client:
                yield client

    async def is_direct(self, address: dict[str, Any]) -> bool:
        async with self._sending() as client:
            room = client.rooms.get(address["chat"])
            if room is not None and room.member_count > 2:
                return False  # This counts invited users, too.
            # The homeserver knows of a member before the next response to the sync loop.
            return len(_check(await client.joined_members(address["chat"])).members) <= 2

    async def send(self, delivery: platform.Delivery) -> str:
        """Send a message. If the chat is a Matrix id, it is sent in the direct room with this user."""
        if delivery.address["chat"].startswith("@"):
            address = {"chat": await self._open_direct_room(delivery.address["chat"])}
            delivery = msgspec.structs.replace(delivery, address=address)
        # The homeserver sends a message with the same transaction id once. Ids of another store must not be the same.
        sent, transaction = delivery.draft or "", f"{delivery.id}-{delivery.at:.6f}"
        async with self._sending() as client:
            if delivery.text:
                msgtype = "m.notice" if delivery.kind == "notice" and not delivery.is_draft else "m.text"
                content = matrix_events.text_content(delivery.text, msgtype)
                sent = await _send_text(client, delivery, content, transaction)
            for index, file in enumerate(delivery.files):
                data = io.BytesIO(await file.read())
                uploaded, _ = await client.upload(data, file.media_type, file.name, filesize=file.size)
                content = matrix_events.file_content(file, _check(uploaded).content_uri)
                content = matrix_events.with_thread(content, delivery.address)
                event = await _send_event(client, delivery.address["chat"], content, f"{transaction}-{index}")
                sent = sent or event
        return sent

    async def _open_direct_room(self, user_id: str) -> str:
        """Return an unencrypted room of the bot and a user; without one, create it and invite the user."""
        with _translate_errors():
            async with self._open_client() as client:
                if user_id == client.user_id:
                    raise errors.SendRefused("This is the id of the bot.")
                # Synapse repeats an initial response for two minutes; the second one has the changes since.
                for is_first in (True, False):
                    _check(await client.sync(0, sync_filter=_sync_filter(1), full_state=is_first))
                for room in client.rooms.values():
                    if user_id in room.users and room.member_count == 2 and not room.encrypted:
                        return str(room.room_id)
                preset = nio.RoomPreset.trusted_private_chat
                created = await client.room_create(is_direct=True, invite=[user_id], preset=preset)
                return str(_check(created).room_id)

    async def send_question(self, delivery: platform.Delivery, question: platform.ApprovalQuestion) -> str:
        transaction = f"{delivery.id}-{delivery.at:.6f}"
        async with self._sending() as client:
            content = matrix_events.question_content(delivery.text, question)
            sent = await _send_text(client, delivery, content, transaction)
            with suppress(errors.SendFailed, errors.SendRefused):  # The reactions only save typing.
                for number in range(1, len(question.choices) + 1):
                    relation = {"rel_type": "m.annotation", "event_id": sent, "key": f"{number}{matrix_events.KEYCAP}"}
                    reaction = {"m.relates_to": relation}
                    await _send_event(
                        client, delivery.address["chat"], reaction, f"{transaction}-{number}", "m.reaction"
                    )
        return sent

    async def send_typing(self, address: dict[str, Any]) -> None:
        async with self._sending() as client:
            _check(await client.room_typing(address["chat"], True, TYPING_SECONDS * 1_000))

    async def edit_draft(self, address: dict[str, Any], draft: str, text: str) -> None:
        async with self._sending() as client:
            content = matrix_events.edit_content(matrix_events.text_content(text), draft)
            await _send_event(client, address["chat"], content)

    async def delete_draft(self, address: dict[str, Any], draft: str) -> None:
        async with self._sending() as client:
            _check(await client.room_redact(address["chat"], draft, tx_id=f"delete-{draft}"))


async def _fetch(client: nio.AsyncClient, room_id: str, event_id: str) -> matrix_events.RoomEvent | None:
    """Return another event of a room; None if the bot cannot see it."""
    # Every member can write any id, which must not stop the loop.
    if not _EVENT_ID.fullmatch(event_id):
        return None
    found = await client.room_get_event(room_id, event_id)
    # Without a Matrix code, too: a proxy that refuses an id, for example for its slashes, refuses it forever.
    # The library returns an error for an event that it considers malformed, too.
    if isinstance(found, nio.ErrorResponse) and (_is_final(found) or _status(found) == 200):
        return None
    return matrix_events.parse_event(_check(found).event.source)


async def _send_text(
    client: nio.AsyncClient, delivery: platform.Delivery, content: dict[str, Any], transaction: str
) -> str:
    """Send a message, or replace the draft by it; return the id of the message that users see."""
    room = delivery.address["chat"]
    draft = await _fetch(client, room, delivery.draft) if delivery.draft is not None else None
    # Clients do not show the edits of a redacted event, which has no content.
    if draft is None or not draft.content.msgtype:
        return await _send_event(client, room, matrix_events.with_thread(content, delivery.address), transaction)
    await _send_event(client, room, matrix_events.edit_content(content, draft.event_id), transaction)
    return draft.event_id


async def _send_event(
    client: nio.AsyncClient,
    room: str,
    content: dict[str, Any],
    transaction: str | None = None,
    kind: str = "m.room.message",
) -> str:
    event_id: str = _check(await client.room_send(room, kind, content, transaction)).event_id
    return event_id


def _sync_filter(page_size: int) -> dict[str, Any]:
    return {
        "presence": _NOTHING,
        "account_data": _NOTHING,
        "room": {
            "account_data": _NOTHING,
            "ephemeral": _NOTHING,
            # All members, because their number decides whether a room is a direct chat.
            "state": {"types": ["m.room.member", "m.room.encryption"]},
            "timeline": {"types": _TYPES, "limit": page_size},
        },
    }


def _quote(key: str, quoted: matrix_events.RoomEvent | None, room: nio.MatrixRoom) -> platform.Quote:
    if quoted is None:
        return platform.Quote(key)
    return platform.Quote(key, quoted.text, _display_name(room, quoted.sender))


def _display_name(room: nio.MatrixRoom, user_id: str) -> str:
    user = room.users.get(user_id)
    return str(user.display_name or "") if user is not None else ""


def _position_path(client: nio.AsyncClient) -> str:
    return f"/_matrix/client/v3/user/{parse.quote(client.user_id)}/account_data/{POSITION}"


def _check(response: Any) -> Any:
    """Return a response. Raises SendRefused for a final error, and SendFailed for one that may pass."""
    if not isinstance(response, nio.ErrorResponse):
        return response
    if _is_final(response) and response.status_code:  # An error without a Matrix code is one of a proxy.
        raise errors.SendRefused(_describe(response))
    headers = response.transport_response.headers if response.transport_response is not None else {}
    retry_after = response.retry_after_ms / 1_000 if response.retry_after_ms else platform.parse_retry_after(headers)
    raise errors.SendFailed(_describe(response), retry_after=retry_after)


def _is_final(response: nio.ErrorResponse) -> bool:
    return 400 <= _status(response) < 500 and _status(response) not in (401, 408, 429)  # A token may be replaced.


def _status(response: nio.ErrorResponse) -> int:
    return response.transport_response.status if response.transport_response is not None else 0


def _describe(response: nio.ErrorResponse) -> str:
    return f"The homeserver answered: {response.status_code or 'error'} {errors.quote(response.message)}"


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise errors.SendFailed(f"The homeserver is not reachable: {platform.describe_failure(error)}.") from error
