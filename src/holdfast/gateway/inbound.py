"""The inbound handler: check access and limits, store attachments and the message, and wake the router.

User text is data: display names are cleaned and stored with the message, and never become part of a prompt.
"""

from __future__ import annotations

import logging
import mimetypes
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from holdfast import errors, fault_points, types
from holdfast.gateway import access, platform, routes, spans
from holdfast.model import base as models
from holdfast.store import async_db, titles
from holdfast.tools.files import images

logger = logging.getLogger("holdfast.gateway")

MAX_NAME = 100
UNKNOWN_TYPE = "application/octet-stream"
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,100}")

AskModel = Callable[[str, models.Request], Awaitable[models.Reply]]
"""Lets the model of an identity answer one request."""


def is_never_shared(_: platform.Incoming) -> bool:
    return False


class InboundHandler:
    """Accepts messages from platforms. `checks` run in order, and the first that refuses decides."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        notify_route: Callable[[str], object],
        *,
        profile: str = "main",
        checks: Sequence[platform.AdmissionCheck] = (),
        is_shared: Callable[[platform.Incoming], bool] = is_never_shared,
        wake_sender: Callable[[str], object] = lambda _: None,
        count: Callable[[str], object] = lambda _: None,
        ask: AskModel | None = None,
        remember_days: float = 30.0,
    ) -> None:
        self._db, self._notify_route, self._profile, self._checks = db, notify_route, profile, tuple(checks)
        self._is_shared, self._wake_sender, self._count = is_shared, wake_sender, count
        self._ask, self._remember_days = ask, remember_days

    async def receive(self, incoming: platform.Incoming) -> types.InboundMessage | None:
        """Store a message once, however often it is delivered, or reject it and notify its sender.

        A message that cannot be stored, for example because of an id that is too long, is rejected for good: the
        platform would deliver it again and again, before all later messages.
        """
        try:
            found = await self.submit(incoming)
            if isinstance(found, types.InboundMessage):
                return found
            if found.message:
                await self._post_refusal(incoming, found)
        except errors.InvalidArgument as error:
            logger.warning("rejected an invalid message of %s: %s", incoming.platform, error)
        return None

    async def submit(self, incoming: platform.Incoming) -> types.InboundMessage | platform.AdmissionResult:
        """Store a message, or return why it is rejected; the sender is not notified."""
        with spans.span("holdfast.arrival", platform=incoming.platform, chat_kind=incoming.kind) as set_attribute:
            found = await self._store(incoming)
            set_attribute("taken", isinstance(found, types.InboundMessage))
            if isinstance(found, types.InboundMessage):
                set_attribute("arrival", found.id)
            return found

    async def check(self, incoming: platform.Incoming) -> platform.AdmissionResult:
        return await self._check(incoming, self._route(incoming))

    async def ask_model(
        self, incoming: platform.Incoming, request: models.Request
    ) -> models.Reply | platform.AdmissionResult:
        result = await self.check(incoming)
        if not result.allowed or self._ask is None:
            return result
        route = routes.route_of(self._profile, incoming)
        return await self._ask(routes.identity_of(route, incoming.platform, incoming.sender), request)

    async def newest_messages(self, name: str) -> list[types.InboundMessage]:
        return await self._db.mail.newest_inbound(name, self._remember_days)

    async def delete(self, name: str, key: str) -> bool:
        original = await self._db.mail.inbound_by_key(name, platform.storable_key(key))
        if original is None:
            return False
        waiting = await self._db.mail.open_inbound(original.route)
        found = [original] if original.open else []
        found += [each for each in waiting if platform.edited_key(each) == original.key]
        for each in found:
            deletion = platform.MessageDeletion(each.key)
            await self._db.mail.add_inbound(
                types.NewInboundMessage(
                    platform=each.platform,
                    key=platform.deletion_key(each.key),
                    route=each.route,
                    chat=each.chat,
                    sender=each.sender,
                    address=each.address,
                    parts=[msgspec.to_builtins(deletion)],
                    home=each.home,
                )
            )
            self._notify_route(each.route)
        return bool(found)

    def _route(self, incoming: platform.Incoming) -> str:
        return routes.route_of(self._profile, incoming, self._is_shared(incoming))

    async def _check(self, incoming: platform.Incoming, route: str) -> platform.AdmissionResult:
        """Return the result of the first check that refuses a message."""
        for check in self._checks:
            result = await check(incoming, route)
            if not result.allowed:
                return result
        return platform.AdmissionResult(True)

    async def _store(self, incoming: platform.Incoming) -> types.InboundMessage | platform.AdmissionResult:
        is_ignored = not incoming.mentioned and incoming.kind != "dm"
        if is_ignored or not (incoming.text.strip() or incoming.attachments or incoming.complete):
            return platform.AdmissionResult(False, "empty")
        route, key = self._route(incoming), platform.storable_key(incoming.key)
        # Before the checks, so that a repeated delivery does not count against the limits or is downloaded again.
        is_costly = self._checks or incoming.complete is not None
        known = await self._db.mail.inbound_by_key(incoming.platform, key) if is_costly else None
        if known is not None:
            return known
        result = await self._check(incoming, route)
        if result.allowed and incoming.complete is not None:
            # Only now, so that strangers cause no downloads; the check of the size follows.
            incoming = await incoming.complete()
            if not (incoming.text.strip() or incoming.attachments):
                return platform.AdmissionResult(False, "empty")
            result = await self._check(incoming, route)
        if not result.allowed:
            return result
        parts = [part for each in incoming.attachments for part in await self._store_attachment(each)]
        if incoming.edits and await self._is_unchanged(incoming, parts):
            return platform.AdmissionResult(False, "empty")
        inbound, is_new = await self._db.mail.add_inbound(
            types.NewInboundMessage(
                platform=incoming.platform,
                key=key,
                route=route,
                chat=incoming.home_chat or routes.chat_of(incoming),
                sender=incoming.sender,
                address=incoming.address,
                text=incoming.text,
                parts=[*parts, *incoming.extras()],
                name=titles.normalize(incoming.name)[:MAX_NAME],
                home=incoming.home,
            )
        )
        fault_points.reach("gateway", "arrived")
        if is_new:
            self._count(incoming.platform)
        self._notify_route(route)
        return inbound

    async def _is_unchanged(self, edit: platform.Incoming, parts: list[dict[str, Any]]) -> bool:
        """Return whether an edit has the text and files of its message: platforms report reactions as edits."""
        original = await self._db.mail.inbound_by_key(edit.platform, platform.storable_key(edit.edits))
        if original is None or (original.text, platform.content_parts_of(original)) != (edit.text, parts):
            return False
        waiting = await self._db.mail.open_inbound(original.route)
        # After another edit, the same text is a change.
        return original.outcome != "replaced" and all(platform.edited_key(each) != original.key for each in waiting)

    async def _post_refusal(self, incoming: platform.Incoming, result: platform.AdmissionResult) -> None:
        name, address = incoming.home or incoming.platform, incoming.address
        key = platform.storable_key(f"{incoming.platform}:{platform.storable_key(incoming.key)}")
        if result.with_code:
            address = {**address, access.STRANGER: incoming.sender}
        chat = incoming.home_chat or routes.chat_of(incoming)
        refusal = types.NewOutgoing(platform=name, chat=chat, address=address, text=result.message, kind="notice")
        await self._db.mail.post(refusal, key=f"refused:{key}")
        self._wake_sender(name)

    async def _store_attachment(self, attachment: platform.Attachment) -> list[dict[str, Any]]:
        """Return the message parts of an attachment. A file with a name is saved in the working folder later."""
        name, image = titles.normalize(attachment.name)[-MAX_NAME:], images.read_sendable(attachment.data)
        # The data decide, not the sender: a damaged image would block the conversation.
        media_type, why = image.media_type if image is not None else _media_type(attachment), ""
        if image is None and media_type.startswith("image/"):
            media_type, why = UNKNOWN_TYPE, f" You cannot see the image: {images.NOT_SENDABLE}."
        blob = await self._db.blobs.put(attachment.data, media_type)
        file = {"type": "file", "blob": blob.digest, "name": name or "file"}
        if image is not None:
            shown = {"type": "image", "media_type": media_type, "blob": blob.digest}
            return [shown, file] if name else [shown]
        text = f"[Attached: {repr(name) if name else 'a file'}, {media_type}, {blob.size:,} bytes.{why}]"
        return [{"type": "text", "text": text}, file]


def _media_type(attachment: platform.Attachment) -> str:
    stated = attachment.media_type.partition(";")[0].strip().lower()
    return stated if _MEDIA_TYPE.fullmatch(stated) else mimetypes.guess_type(attachment.name)[0] or UNKNOWN_TYPE
