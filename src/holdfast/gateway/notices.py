"""Notices, such as the end of a background process, for conversations that belong to a chat.

A notice waits in the inbox of its conversation, is answered as a turn by the process that works on the chat, and the
reply is sent there. A notice never interrupts a turn: it is answered before the next message, or when no turn runs.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from holdfast import errors, events, types
from holdfast.gateway import gateway_context, replies, turn_progress
from holdfast.runtime import runtime as runtimes

logger = logging.getLogger("holdfast.gateway")

MAX_INBOXES = 1_000
RETRY_FACTOR = 5
"""A notice is tried again after this many times the setting `retry`."""


class Notices:
    """Reads the inboxes of conversations that belong to a chat, and sends replies and notices there."""

    def __init__(self, context: gateway_context.GatewayContext) -> None:
        self._context = context
        self._tried: dict[int, float] = {}
        self._sending = set[asyncio.Task[None]]()

    def attach(self, runtime: runtimes.Runtime) -> None:
        """Let a runtime record the outcome of notices together with the replies."""
        runtime.settle_entry = self.settle
        runtime.send_to_chat = self.send
        runtime.wake_sender = self._context.wake_sender

    async def waiting(self) -> list[tuple[str, str]]:
        """Return the routes and conversations with open entries, except those tried a moment ago."""
        now, found = monotonic(), list[tuple[str, str]]()
        self._tried = {id_: until for id_, until in self._tried.items() if until > now}
        for each in await self._context.db.mail.open_inboxes(MAX_INBOXES):
            if each.oldest not in self._tried:
                found.append((each.route, each.conversation_id))
                self._tried[each.oldest] = now + RETRY_FACTOR * self._context.settings.retry
        return found

    async def settle(
        self, entry: types.InboxEntry, result: events.TurnResult | None, outcome: str, seq: int | None
    ) -> str | None:
        """Record the outcome of a notice and queue the reply, in one transaction; return the route of its chat."""
        home = await self._last_chat(entry.conversation_id)
        text = replies.result_text(result) if result is not None else None
        turn = [] if seq is None else await turn_progress.read_turn(self._context.db, entry.conversation_id, seq)
        attachments = replies.find_attachments(turn)
        if home is None or result is None or not (text or attachments):
            await self._context.db.mail.settle_inbox_entry(entry.id, outcome, seq)
            return home.route if home is not None else None
        last = result.messages[-1] if result.messages else None
        outgoing = replies.build(
            self._context,
            gateway_context.reply_address(home),
            text,
            attachments=attachments,
            seq=last.seq if last and last.role == "assistant" else None,
        )
        await self._context.db.mail.settle_inbox_entry(entry.id, outcome, seq, outgoing)
        self._context.wake_sender(home.platform)
        return home.route

    def send(self, conversation_id: str, route: str | None, notice: events.Notice) -> None:
        """Send a notice to the chat of its turn (None: of its conversation), concurrently with the turn."""
        sending = asyncio.create_task(self._send(conversation_id, route, notice))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def _send(self, conversation_id: str, route: str | None, notice: events.Notice) -> None:
        try:
            home = await self._last_chat(conversation_id, route)
            if home is None or not self._context.can(home.platform).interactive:
                return
            to = gateway_context.reply_address(home)
            for part in replies.build(self._context, to, notice.text, kind="notice"):
                await self._context.db.mail.post(part, conversation_id=conversation_id)
            self._context.wake_sender(to.platform)
        except Exception as error:  # noqa: BLE001 -- a notice never stops a turn
            logger.warning("could not send a notice to the chat of %s: %s", conversation_id, error)

    async def _last_chat(self, conversation_id: str, route: str | None = None) -> types.Home | None:
        try:
            return await self._context.last_chat(conversation_id, route)
        except errors.NoSuchSession:
            return None
