"""The door: who may speak is asked, attachments are put away, and what came in is stored. Then it is acknowledged.

What people write is data. Their names are cleaned and stand with what they said, never in a prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast import fault_points, types
from holdfast.gateway import pairing_codes, platform, route_keys, spans
from holdfast.model import base as models
from holdfast.store import async_db, titles

LONGEST_NAME = 100
LONGEST_KEY = 150

Tell = Callable[[platform.Came, str, platform.Verdict], Awaitable[None]]
"""Tells whoever was refused, if anybody does."""
Ask = Callable[[str, models.Request], Awaitable[models.Reply]]
"""Has the model of an owner answer one request."""


def never(_: platform.Came) -> bool:
    """No group is shared."""
    return False


class Door:
    """Takes in what platforms bring. `guards` are asked in order, and the first who refuses decides."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        poke: Callable[[str], object],
        *,
        profile: str = "main",
        guards: Sequence[platform.Guard] = (),
        shared: Callable[[platform.Came], bool] = never,
        goes_out: Callable[[str], object] = lambda _: None,
        counted: Callable[[str], object] = lambda _: None,
        ask: Ask | None = None,
        withdraw: Callable[[types.InboundMessage], None] = lambda _: None,
    ) -> None:
        self._db, self._poke, self._profile, self._guards = db, poke, profile, tuple(guards)
        self._shared, self._goes_out, self._counted = shared, goes_out, counted
        self._ask, self.withdraw = ask, withdraw

    async def came(self, came: platform.Came) -> types.InboundMessage | None:
        """Store it, once however often it comes. None: it is not for the agent, or not from somebody who may."""
        found = await self._spanned(came, self._tell)
        return found if isinstance(found, types.InboundMessage) else None

    async def answered(self, came: platform.Came) -> types.InboundMessage | platform.NotTaken:
        """The same; why it is not taken is for whoever asks, and not sent to anybody."""
        return await self._spanned(came, _nobody)

    async def refused(self, came: platform.Came) -> platform.NotTaken | None:
        """Why this would not be taken; nothing is written for it. None: it would."""
        verdict = await self._judged(came, route_keys.route(self._profile, came, self._shared(came)))
        return platform.NotTaken(verdict.why, verdict.say, verdict.retry_after) if verdict is not None else None

    async def ask(self, came: platform.Came, request: models.Request) -> models.Reply | platform.NotTaken:
        """Have the model answer a request outside any conversation. Nothing is stored."""
        if (refused := await self.refused(came)) is not None or self._ask is None:
            return refused or platform.NotTaken("person")
        owner = route_keys.owner(route_keys.route(self._profile, came), came.platform, came.sender)
        return await self._ask(owner, request)

    async def _judged(self, came: platform.Came, route: str) -> platform.Verdict | None:
        """What the first guard said who refuses it; None: nobody does."""
        for guard in self._guards:
            verdict = await guard(came, route)
            if not verdict.allowed:
                return verdict
        return None

    async def _spanned(self, came: platform.Came, tell: Tell) -> types.InboundMessage | platform.NotTaken:
        with spans.span("holdfast.arrival", platform=came.platform, chat_kind=came.kind) as put:
            found = await self._came(came, tell)
            put("taken", isinstance(found, types.InboundMessage))
            if isinstance(found, types.InboundMessage):
                put("arrival", found.id)
            return found

    async def _came(self, came: platform.Came, tell: Tell) -> types.InboundMessage | platform.NotTaken:
        if not came.mentioned and came.kind != "dm":
            return platform.NotTaken("empty")
        if not came.text.strip() and not came.attachments:
            return platform.NotTaken("empty")
        route = route_keys.route(self._profile, came, self._shared(came))
        key = _key(came.key)
        # Before anybody is asked: what is known already is not counted twice, and whoever sent it was let in.
        known = await self._db.mail.inbound_by_key(came.platform, key) if self._guards else None
        if known is not None:
            return known
        if (verdict := await self._judged(came, route)) is not None:
            await tell(came, key, verdict)
            return platform.NotTaken(verdict.why, verdict.say, verdict.retry_after)
        arrival, new = await self._db.mail.add_inbound(
            types.NewInboundMessage(
                platform=came.platform,
                key=key,
                route=route,
                chat=came.to or route_keys.chat(came),
                sender=came.sender,
                address=came.address,
                text=came.text,
                parts=[
                    *[part for each in came.attachments for part in await self._kept(each)],
                    *([msgspec.to_builtins(came.terms)] if came.terms != platform.Terms() else []),
                ],
                name=titles.normalize(came.name)[:LONGEST_NAME],
                home=came.home,
            )
        )
        fault_points.reach("gateway", "arrived")
        if new:
            self._counted(came.platform)
        self._poke(route)
        return arrival

    async def _tell(self, came: platform.Came, key: str, verdict: platform.Verdict) -> None:
        if not verdict.say:
            return
        platform = came.home or came.platform
        address = {**came.address, pairing_codes.STRANGER: came.sender} if verdict.pairs else came.address
        refusal = types.NewOutgoing(
            platform=platform, chat=came.to or route_keys.chat(came), address=address, text=verdict.say, kind="notice"
        )
        await self._db.mail.post(refusal, key=f"refused:{_key(f'{came.platform}:{key}')}")
        self._goes_out(platform)

    async def _kept(self, attachment: platform.Attachment) -> list[dict[str, Any]]:
        """An attachment as parts of a message: a picture, or a file that tools can read."""
        blob = await self._db.blobs.put(attachment.data, attachment.media_type)
        if attachment.media_type.startswith("image/"):
            return [{"type": "image", "media_type": attachment.media_type, "blob": blob.digest}]
        name = titles.normalize(attachment.name)[:LONGEST_NAME] or "a file"
        told = (
            f"[Attached: {name}, {attachment.media_type}, {blob.size:,} bytes; read_output shows it as {blob.digest}.]"
        )
        return [{"type": "text", "text": told}, {"type": "file", "blob": blob.digest, "name": name}]


async def _nobody(_came: platform.Came, _key: str, _verdict: platform.Verdict) -> None:
    return


def _key(key: str) -> str:
    """A platform's id of a message, within what the store takes for one."""
    fits = 0 < len(key) <= LONGEST_KEY and key.isprintable()
    return key if fits else f"={blake2b(key.encode(errors='surrogatepass'), digest_size=20).hexdigest()}"
