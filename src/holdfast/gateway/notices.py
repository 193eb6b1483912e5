"""Notices of programs, such as that a process has ended, for conversations that were last spoken to from a chat.

They wait in the inbox, are answered as turns by whoever works on that chat, and the reply goes there. They never
interrupt: a notice comes before the next message or when nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from holdfast import errors, events, types
from holdfast.gateway import gateway_context, platform, reply_text
from holdfast.gateway import outgoing as gateway_outgoing
from holdfast.runtime import runtime as runtimes

logger = logging.getLogger("holdfast.gateway")

MOST = 1_000
AGAIN = 5.0
"""Seconds after which a notice is tried again that could not be answered."""


class Notices:
    """What waits in the inboxes of conversations that have a chat."""

    def __init__(self, home: gateway_context.House) -> None:
        self._home = home
        self._tried: dict[int, float] = {}
        self._sending = set[asyncio.Task[None]]()

    def attend(self, runtime: runtimes.Runtime) -> None:
        """Have what becomes of notices at this desk written down together with the replies."""
        runtime.settle_entry = self.note
        runtime.send_to_chat = self.send

    async def waiting(self) -> list[tuple[str, str]]:
        """The routes and conversations where something waits that was not tried just now."""
        now, found = monotonic(), list[tuple[str, str]]()
        self._tried = {id_: until for id_, until in self._tried.items() if until > now}
        for each in await self._home.db.mail.open_inboxes(MOST):
            if each.oldest not in self._tried:
                found.append((each.route, each.conversation_id))
                self._tried[each.oldest] = now + AGAIN
        return found

    async def note(
        self, inbound: types.InboxEntry, result: events.TurnResult | None, outcome: str, seq: int | None
    ) -> object:
        """What became of a notice, and the reply to the chat of its conversation, in one."""
        home = await self._homes(inbound.conversation_id)
        text = reply_text.of(result, 0) if result is not None else None
        if home is None or not text or result is None:
            return await self._home.db.mail.settle_inbox_entry(inbound.id, outcome, seq)
        last = result.messages[-1] if result.messages else None
        outgoing = gateway_outgoing.to(
            gateway_context.place_of(home),
            text,
            self._home.platforms,
            attachments=gateway_outgoing.pictures(result.messages),
            seq=last.seq if last and last.role == "assistant" else None,
        )
        settled = await self._home.db.mail.settle_inbox_entry(inbound.id, outcome, seq, outgoing)
        self._home.goes_out(home.platform)
        return settled

    def send(self, conversation_id: str, notice: events.Notice) -> None:
        """Send a notice to the chat of its conversation, concurrently with the turn."""
        sending = asyncio.create_task(self._send(conversation_id, notice))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def _send(self, conversation_id: str, notice: events.Notice) -> None:
        try:
            where = await self._chat(conversation_id)
            if where is None or self._home.able.get(where.platform, platform.Abilities()).mute is not None:
                return
            for part in gateway_outgoing.to(where, notice.text, self._home.platforms, kind="notice"):
                await self._home.db.mail.post(part, conversation_id=conversation_id)
            self._home.goes_out(where.platform)
        except Exception as error:  # noqa: BLE001 -- a notice never stops a turn
            logger.warning("could not send a notice to the chat of %s: %s", conversation_id, error)

    async def _chat(self, conversation_id: str) -> gateway_context.Place | None:
        """The chat whose turn runs, else the one that spoke last; that is known when its message is settled."""
        for _ in range(10):
            if (where := self._home.speaking.get(conversation_id)) is not None:
                return where
            if (home := await self._homes(conversation_id)) is not None:
                return gateway_context.place_of(home)
            await asyncio.sleep(1)
        return None

    async def _homes(self, conversation_id: str) -> types.Home | None:
        try:
            return await self._home.db.mail.last_chat(conversation_id)
        except errors.NoSuchSession:
            return None
