"""A turn as its chat sees it: that an answer is being written, what it asks, and as much of it as the platform shows.

What a turn asks is sent to the chat it came from, where /approve and /deny answer; nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from holdfast import errors, events, types
from holdfast.gateway import gateway_context, outgoing, platform, questions
from holdfast.runtime import runtime as runtimes

logger = logging.getLogger("holdfast.gateway")

TYPING = 4.0
"""Seconds after which a platform is told again that an answer is being written."""
NOT_ANSWERED = "Nobody answered in time."


class Watch:
    """What was seen of a turn."""

    def __init__(
        self,
        home: gateway_context.House,
        runtime: runtimes.Runtime,
        conversation_id: str,
        where: gateway_context.Place,
        arrival: types.InboundMessage | None,
        uid: str,
    ) -> None:
        self._home, self._runtime, self._here, self._where = home, runtime, conversation_id, where
        self._arrival = arrival
        can = home.able.get(where.platform, platform.Abilities())
        self._shows, self._types, self._mute = can.shows if arrival is not None else None, can.types, can.mute
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._own = uid
        self.mine = self._told = False
        """Whether the turn that runs is that of the arrival; whether it is one that this chat is asked about."""
        self.when_mine: Callable[[], object] = lambda: None
        """Called when it is."""
        self.gave_way = False
        """Whether the turn was interrupted for what came after it."""
        self.stored: dict[str, int] = {}
        """Everything that was stored meanwhile: uid and seq."""

    @property
    def seq(self) -> int | None:
        """The message that the turn began with; None while there is none."""
        return self.stored.get(self._own)

    @property
    def asks(self) -> bool:
        """Whether there is somebody who could be asked: an answer comes by the way that the message came."""
        mute = self._mute is not None and self._mute.mute
        return self._where.by == self._where.platform and not mute

    @property
    def types(self) -> bool:
        """Whether the platform shows that an answer is being written."""
        return self._types is not None

    def heard(self, emitted: events.Emitted) -> None:
        """Another chat may be in the same conversation: of its turns nothing is shown or asked here."""
        match emitted.event:
            case events.MessageStored(seq, uid):
                self.stored[uid] = seq
                if uid == self._own:
                    self.mine = True
                    self.when_mine()
            case events.TurnStarted(notice=notice):
                self._told = self.mine or bool(notice)
            case events.ApprovalAsked() if self._told and self.asks:
                self._asked[emitted.event.request_id] = asyncio.create_task(self._ask(emitted.event, self.mine))
            case events.ApprovalSettled(request_id):
                if (waiting := self._asked.pop(request_id, None)) is not None:
                    waiting.cancel()
        self._show(emitted.event)
        if isinstance(emitted.event, events.TurnFinished):
            self.mine = self._told = False

    async def type(self) -> None:
        """Say that an answer is being written, until cancelled."""
        while self._types is not None:
            try:
                await self._types.typing(self._where.address)
            except Exception as error:  # noqa: BLE001 -- a platform's own; nobody misses this sign
                logger.debug("%s was not told that an answer is being written: %s", self._where.platform, error)
            await asyncio.sleep(TYPING)

    def close(self) -> None:
        for waiting in self._asked.values():
            waiting.cancel()

    def _show(self, event: events.AnyEvent) -> None:
        if self._shows is None or self._arrival is None or not self.mine:
            return
        try:
            self._shows.heard(self._arrival, event)
        except Exception:
            # What a platform shows of a turn changes nothing about the turn.
            logger.exception("%s could not show a turn", self._where.platform)

    async def _ask(self, asked: events.ApprovalAsked, mine: bool) -> None:
        """Send a question to the chat, and answer it where nobody does in time."""
        try:
            # One after the other: each has the next number, and parts of two are not mixed.
            async with self._runtime.approvals.prompt_lock:
                await self._post(asked, self._arrival.id if mine and self._arrival else None)
        except errors.HoldfastError as error:
            logger.warning("a question could not be sent, and is denied in time: %s", error)
        self._home.goes_out(self._where.platform)
        await asyncio.sleep(self._home.settings.answer_within)
        self._runtime.approvals.expire(self._here, asked.request_id, NOT_ANSWERED)

    async def _post(self, asked: events.ApprovalAsked, arrival: int | None) -> None:
        number = await questions.next_number(self._home.db, self._here)
        text = outgoing.question(msgspec.structs.replace(asked, number=number))
        said = outgoing.to(self._where, text, self._home.platforms, kind="question")
        for place, part in enumerate(said):
            key = questions.Part(number, asked.request_id, place, len(said)).key
            await self._home.db.mail.post(part, key=key, inbound_id=arrival, conversation_id=self._here)


@asynccontextmanager
async def watched(
    home: gateway_context.House,
    runtime: runtimes.Runtime,
    conversation_id: str,
    where: gateway_context.Place,
    arrival: types.InboundMessage | None = None,
    uid: str = "",
) -> AsyncIterator[Watch]:
    """See the turns of a conversation to the end of the block; all that was emitted by then was seen.

    `uid` is that of the message whose turn it is about.
    """
    watch = Watch(home, runtime, conversation_id, where, arrival, uid)
    home.speaking[conversation_id] = where
    with runtime.subscribe(conversation_id, can_approve=watch.asks, takes_inbox=False, on_event=watch.heard):
        typing = asyncio.create_task(watch.type()) if watch.types else None
        try:
            yield watch
        finally:
            if typing is not None:
                typing.cancel()
                await asyncio.wait([typing])
            watch.close()
            home.speaking.pop(conversation_id, None)
